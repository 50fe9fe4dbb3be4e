"""The logs of jobs, from which another proxy goes on with them when it becomes the coordinator.

The log of a job is beside its outputs: hidden objects `.dfc/jobs/ID/NNNNNNNN` of their bucket, numbered from 1, each written
only if there is none of that name. So two coordinators cannot both write number n, and the one that is late stops. A record in
the registry says which jobs there are; it is written when the first segments are, and again when the job has ended.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from dfc.errors import BucketDeleting, BucketNotFound, DfcError, Unavailable
from dfc.http.calls.problems import RemoteError
from dfc.jobs.journal import TaskEntry
from dfc.jobs.records import JobEntry, JobRecord
from dfc.jobs.tasks import InputShard
from dfc.limits import LIST_PAGE_MAX
from dfc.names import HIDDEN_PREFIX
from dfc.pages import ListingQuery
from dfc.proxy.cluster import Cluster
from dfc.proxy.listing import merged_pages
from dfc.registry.base import JOBS, RECORD_BYTES_MAX, SharedRegistry
from dfc.registry.leases import Lease
from dfc.wire import OBJECTS_PATH

_log: Final = logging.getLogger("dfc.proxy.jobs")
FORMAT: Final = 1
SHARDS_MAX: Final = 20_000  # in one segment
RESULTS_MAX: Final = 4096
FLUSH_S: Final = 1.0  # results wait so long for others: what a coordinator loses with them is done again
RETRY_FIRST_S: Final = 0.25
RETRY_MAX_S: Final = 5.0
SWEEP_S: Final = 3600.0
ORPHAN_S: Final = 86_400.0
_EXISTS: Final = 412
_PREFIX: Final = f"{HIDDEN_PREFIX}jobs/"
_SEGMENT: Final = re.compile(re.escape(_PREFIX) + r"([0-9a-f]{22})/(\d{8})")  # ids begin with their time
T = TypeVar("T")
_KEPT_WARNINGS_BYTES: Final = RECORD_BYTES_MAX // 4
_segment: Final = msgspec.msgpack.Encoder().encode
_entry: Final = msgspec.json.Encoder().encode


class InputPart(msgspec.Struct, frozen=True):
    """Some shards of an input, in order."""

    number: int
    shards: list[InputShard]


class LogSegment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What has happened: the job's record, if that has changed, and results of tasks. The first ones have the spec and the
    inputs. `owner`: who was the coordinator; in the first segment of each it may be all there is."""

    owner: str
    format: int = FORMAT
    record: JobRecord | None = None
    spec: bytes | None = None
    input_count: int = 0
    inputs: list[InputPart] = []
    results: list[TaskEntry] = []


def short(record: JobRecord) -> JobRecord:
    """The record with as many of its warnings as the registry takes."""
    kept, size = list[str](), 0
    for text in record.warnings:
        size += len(text.encode()) + 8
        if size > _KEPT_WARNINGS_BYTES:
            break
        kept.append(text)
    return msgspec.structs.replace(record, warnings=tuple(kept))


def segment_name(job_id: str, number: int) -> str:
    return f"{_PREFIX}{job_id}/{number:08d}"


def first_segments(owner: str, record: JobRecord, spec: bytes, inputs: Sequence[Sequence[InputShard]]) -> list[LogSegment]:
    """The segments of a job that has just been accepted."""
    parts = [
        InputPart(number, list(shards[start : start + SHARDS_MAX]))
        for number, shards in enumerate(inputs)
        for start in range(0, len(shards), SHARDS_MAX)
    ]
    head = LogSegment(owner=owner, record=record, spec=spec, input_count=len(inputs), inputs=parts[:1])
    return [head, *(LogSegment(owner=owner, inputs=[part]) for part in parts[1:])]


class LogTaken(DfcError):
    """Another coordinator goes on with the job."""

    code = "job_taken"


class LogObjects:
    """The segments of a job as objects of the cluster. Whatever fails for a while is tried again, however long that takes;
    BucketDeleting when their bucket is gone."""

    def __init__(self, cluster: Cluster, job_id: str, bucket: str, bucket_id: str) -> None:
        self._cluster = cluster
        self._job_id = job_id
        self._bucket = bucket
        self._bucket_id = bucket_id

    async def put(self, number: int, data: bytes) -> bool:
        """Write a segment that is not there yet; False if another one is."""

        async def attempt() -> bool | None:
            status, content = await self._ask("PUT", number, data, {"If-None-Match": "*"})
            if status == _EXISTS:
                found = await self._get(number)  # it may be ours: the answer to an earlier try was lost
                return None if found is None else found == data
            return self._check(status, content, (200, 201))

        while (is_ours := await self._retried(attempt)) is None:
            pass
        return is_ours

    async def get(self, number: int) -> bytes | None:
        """Read a segment; None if there is none."""
        return await self._retried(lambda: self._get(number))

    async def delete(self, number: int) -> None:
        """Delete a segment, if it is there."""

        async def attempt() -> None:
            self._check(*await self._ask("DELETE", number), (200, 204, 404))

        await self._retried(attempt)

    async def _get(self, number: int) -> bytes | None:
        status, content = await self._ask("GET", number)
        self._check(status, content, (200, 404))
        return content if status == 200 else None

    def _check(self, status: int, content: bytes, wanted: tuple[int, ...]) -> bool:
        if status not in wanted:
            raise RemoteError(status, content, segment_name(self._job_id, 0))
        return True

    async def _ask(
        self, method: str, number: int, data: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        bucket = self._cluster.bucket(self._bucket)
        if bucket.id != self._bucket_id or bucket.state == "deleting":
            raise self._gone()
        name = segment_name(self._job_id, number)
        url = f"{self._cluster.primary(bucket, name).url}{OBJECTS_PATH}{self._bucket}/{quote(name)}"
        status, _, content = await self._cluster.control.fetch(method, url, data, headers or {}, long=True)
        return status, content

    def _gone(self) -> BucketDeleting:
        return BucketDeleting(f"the bucket {self._bucket!r} was deleted while the job was running")

    async def _retried(self, attempt: Callable[[], Awaitable[T]]) -> T:
        wait_s = RETRY_FIRST_S
        while True:
            try:
                return await attempt()
            except BucketNotFound:
                raise self._gone() from None
            except (Unavailable, RemoteError) as error:
                _log.info("the log of job %s: %s; trying again", self._job_id, error.message)
            await asyncio.sleep(wait_s)
            wait_s = min(RETRY_MAX_S, wait_s * 2)


class JobLogs(Protocol):
    """What the jobs of a proxy tell of themselves."""

    async def begin(self, record: JobRecord, pattern: str, spec: bytes, inputs: Sequence[Sequence[InputShard]]) -> None:
        """A job was accepted. When this returns, it is known to who comes after."""

    async def note(self, record: JobRecord) -> None:
        """The record of a job has changed. When this returns, that counts."""

    async def note_results(self, job_id: str, entries: Sequence[TaskEntry]) -> None:
        """Tasks have ended. What is noted last may be lost."""

    async def end(self, record: JobRecord) -> None:
        """A job has ended, and nothing is left to be done for it."""


class NoLogs:
    """For a proxy whose journal is all there is."""

    async def begin(self, record: JobRecord, pattern: str, spec: bytes, inputs: Sequence[Sequence[InputShard]]) -> None:
        pass

    async def note(self, record: JobRecord) -> None:
        pass

    async def note_results(self, job_id: str, entries: Sequence[TaskEntry]) -> None:
        pass

    async def end(self, record: JobRecord) -> None:
        pass


class _OpenLog:
    """The log of a job that this proxy runs. `number`: of the last segment."""

    def __init__(self, objects: LogObjects, pattern: str) -> None:
        self.objects = objects
        self.pattern = pattern
        self.number = 0
        self.results: list[TaskEntry] = []
        self.flushed_s = 0.0
        self.turn = asyncio.Lock()


class SharedLogs:
    """The logs of the jobs that a coordinator runs under its lease."""

    def __init__(self, cluster: Cluster, registry: SharedRegistry, leadership: Lease) -> None:
        self._cluster = cluster
        self._registry = registry
        self._leadership = leadership
        self._open: dict[str, _OpenLog] = {}
        self.owner: Final = f"{leadership.grant.holder}/{leadership.grant.token}"

    def entries(self) -> list[JobEntry]:
        """All jobs that the registry knows, in the order of their ids."""
        found = self._registry.records(JOBS)
        return [msgspec.json.decode(found[name], type=JobEntry) for name in sorted(found)]

    async def begin(self, record: JobRecord, pattern: str, spec: bytes, inputs: Sequence[Sequence[InputShard]]) -> None:
        log = self._open[record.id] = _OpenLog(self._objects(record), pattern)
        for segment in first_segments(self.owner, record, spec, inputs):
            await self._append(record.id, log, segment)
        await self._keep(JobEntry(record=short(record), pattern=pattern))

    async def note(self, record: JobRecord) -> None:
        log = self._open[record.id]
        async with log.turn:
            await self._flush(record.id, log, record)

    async def note_results(self, job_id: str, entries: Sequence[TaskEntry]) -> None:
        log = self._open[job_id]
        log.results += entries
        now_s = asyncio.get_running_loop().time()
        if len(log.results) >= RESULTS_MAX or now_s - log.flushed_s > FLUSH_S:
            async with log.turn:
                await self._flush(job_id, log)

    async def _flush(self, job_id: str, log: _OpenLog, record: JobRecord | None = None) -> None:
        log.flushed_s = asyncio.get_running_loop().time()
        while True:
            some = log.results[:RESULTS_MAX]
            is_last = len(some) == len(log.results)
            await self._append(job_id, log, LogSegment(owner=self.owner, record=record if is_last else None, results=some))
            del log.results[: len(some)]
            if is_last:
                return

    async def _append(self, job_id: str, log: _OpenLog, segment: LogSegment) -> None:
        """Write the next segment. LogTaken. If the bucket is gone, so are the outputs, and nobody goes on with the job."""
        try:
            if not await log.objects.put(log.number + 1, _segment(segment)):
                raise LogTaken(f"another coordinator goes on with job {job_id}")
        except BucketDeleting:
            return
        log.number += 1

    async def end(self, record: JobRecord) -> None:
        log = self._open[record.id]
        entry = JobEntry(record=short(record), pattern=log.pattern, is_over=True, segments=log.number)
        await self._keep(entry)
        self._open.pop(record.id, None)
        await self.remove(entry)

    async def remove(self, entry: JobEntry) -> None:
        """Remove the log of a job that has ended."""
        objects = self._objects(entry.record)
        try:
            for number in range(entry.segments, 0, -1):
                await objects.delete(number)
        except BucketDeleting:
            pass
        await self._keep(msgspec.structs.replace(entry, segments=0))

    async def sweep(self) -> None:
        """Remove segments of jobs that are not known: a coordinator ended while it accepted them, or while it removed a log.
        Only of jobs from long ago: this proxy may have been replaced by another one, and not know its jobs."""
        for bucket in self._cluster.map.buckets:
            left = dict[str, list[int]]()
            async for page in merged_pages(self._cluster, ListingQuery(bucket.id, prefix=_PREFIX), LIST_PAGE_MAX):
                for name, *_ in page.rows:
                    found = _SEGMENT.fullmatch(name)
                    if found is not None:
                        left.setdefault(found[1], []).append(int(found[2]))
            known = {entry.record.id for entry in self.entries()} | self._open.keys()
            for job_id in left.keys() - known:
                if not self._leadership.is_held or time.time() - int(job_id[:14], 16) / 1e6 < ORPHAN_S:
                    continue
                _log.warning("bucket %s has a log of job %s, which is not known: removing it", bucket.name, job_id)
                objects = LogObjects(self._cluster, job_id, bucket.name, bucket.id)
                for number in left[job_id]:
                    await objects.delete(number)

    async def keep_swept(self) -> None:
        """Sweep now and then."""
        while True:
            try:
                await self.sweep()
            except DfcError as error:  # such as a target that is down
                _log.info("cannot look for logs of jobs that are not known: %s", error.message)
            except Exception:
                _log.exception("looking for logs of jobs that are not known failed; trying again later")
            await asyncio.sleep(SWEEP_S)

    async def forget(self, entry: JobEntry) -> None:
        """Forget a job that has ended."""
        await self._registry.keep(JOBS + entry.record.id, None, self._leadership)

    async def _keep(self, entry: JobEntry) -> None:
        await self._registry.keep(JOBS + entry.record.id, _entry(entry), self._leadership)

    async def take(self, entry: JobEntry) -> AsyncIterator[LogSegment]:
        """Yield all segments of a job, and make its log this proxy's: whoever had it before can add nothing more."""
        log = self._open[entry.record.id] = _OpenLog(self._objects(entry.record), entry.pattern)
        while True:
            data = await log.objects.get(log.number + 1)
            if data is not None:
                log.number += 1
                yield msgspec.msgpack.decode(data, type=LogSegment)
            elif await log.objects.put(log.number + 1, _segment(LogSegment(owner=self.owner))):
                log.number += 1
                return

    def _objects(self, record: JobRecord) -> LogObjects:
        return LogObjects(self._cluster, record.id, record.bucket, record.bucket_id)
