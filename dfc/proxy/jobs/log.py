"""The logs of jobs, from which another proxy goes on with them when it becomes the coordinator."""

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
from dfc.http.retry import RemoteError
from dfc.jobs.journal import TaskEntry
from dfc.jobs.records import JobEntry, JobRecord, short, short_spec
from dfc.jobs.tasks import InputShard
from dfc.limits import LIST_PAGE_MAX
from dfc.listing.pages import ListingQuery
from dfc.names import HIDDEN_PREFIX
from dfc.proxy.cluster import Cluster
from dfc.proxy.objects import merged_pages
from dfc.registry.base import JOBS, JOBS_KEPT_MAX, Lease, LeaseLost, SharedRegistry
from dfc.wire import OBJECTS_PATH

# --- The segments of which the log of a job consists: what is in them, and how they are written and read as objects.

_log: Final = logging.getLogger("dfc.proxy.jobs")
FORMAT: Final = 1
SHARDS_MAX: Final = 20_000  # in one segment
RETRY_FIRST_S: Final = 0.25
RETRY_MAX_S: Final = 5.0
PREFIX: Final = f"{HIDDEN_PREFIX}jobs/"
NAME: Final = re.compile(re.escape(PREFIX) + r"([0-9a-f]{22})/(\d{8})")  # ids begin with their time
_EXISTS: Final = 412
_REFUSED: Final = (413, 507)
T = TypeVar("T")


class LogRefused(DfcError):
    """A target does not take a segment, for the reason in `code`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]


class UnknownSegment(DfcError):
    """A segment that this version of DFC cannot read."""

    code = "job_interrupted"


def _passes(status: int) -> bool:
    """Whether a refusal may pass: a target is away, or is not the one to ask any more."""
    return status not in _REFUSED and (status >= 500 or status in (307, 408, 421, 429))


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


def segment_name(job_id: str, number: int) -> str:
    return f"{PREFIX}{job_id}/{number:08d}"


def first_segments(owner: str, record: JobRecord, spec: bytes, inputs: Sequence[Sequence[InputShard]]) -> list[LogSegment]:
    """The segments of a job that has just been accepted."""
    parts = [
        InputPart(number, list(shards[start : start + SHARDS_MAX]))
        for number, shards in enumerate(inputs)
        for start in range(0, len(shards), SHARDS_MAX)
    ]
    head = LogSegment(owner=owner, record=record, spec=spec, input_count=len(inputs), inputs=parts[:1])
    return [head, *(LogSegment(owner=owner, inputs=[part]) for part in parts[1:])]


def decoded(data: bytes, job_id: str, number: int) -> LogSegment:
    """Decode a segment. UnknownSegment."""
    try:
        segment = msgspec.msgpack.decode(data, type=LogSegment)
    except msgspec.MsgspecError as error:
        raise UnknownSegment(f"segment {number} of the log of job {job_id} cannot be read: {error}") from None
    if segment.format != FORMAT:
        raise UnknownSegment(
            f"another version of DFC has begun this job (its log has format {segment.format}, not {FORMAT}): submit it again"
        )
    return segment


class LogObjects:
    """The segments of a job as objects of the cluster. Whatever fails for a while is tried again, however long that takes;
    BucketDeleting when their bucket is gone, LogRefused when a target refuses for another reason, such as a full disk."""

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
                if isinstance(error, RemoteError) and not _passes(error.status):
                    raise LogRefused(error.code, f"the log of the job cannot be written: {error.message}") from error
                _log.info("the log of job %s: %s; trying again", self._job_id, error.message)
            await asyncio.sleep(wait_s)
            wait_s = min(RETRY_MAX_S, wait_s * 2)


class LogTaken(Exception):
    """Another coordinator goes on with the job: nothing more must be done for it here."""


class JobLogs(Protocol):
    """What the jobs of a proxy tell of themselves, for who comes after."""

    async def begin(self, record: JobRecord, pattern: str, spec: bytes, inputs: Sequence[Sequence[InputShard]]) -> None:
        """A job was accepted. LogRefused, BucketDeleting, Unavailable: it may be known all the same until `abandon`."""

    async def abandon(self, record: JobRecord) -> None:
        """A job was not accepted, although it was begun. Returns when nobody goes on with it."""

    def running(self, record: JobRecord) -> None:
        """A job runs. Told with what comes next."""

    async def results(self, job_id: str, entries: Sequence[TaskEntry]) -> None:
        """Tasks have ended. What is told last may be lost. LogTaken, LogRefused."""

    async def commit(self, record: JobRecord) -> None:
        """From now on the outputs of a job will be published, whatever happens; not if it raises LogTaken, LogRefused or
        BucketDeleting."""

    async def fail(self, record: JobRecord) -> None:
        """A job has failed, or was cancelled; what it has staged is to be discarded. LeaseLost."""

    async def end(self, record: JobRecord) -> None:
        """Nothing is left to be done for a job. LeaseLost."""

    async def tidy(self) -> None:
        """Forget what is old."""


class NoLogs:
    """For a proxy whose journal is all there is: nothing is told."""

    async def begin(self, record: JobRecord, pattern: str, spec: bytes, inputs: Sequence[Sequence[InputShard]]) -> None: ...
    async def abandon(self, record: JobRecord) -> None: ...
    def running(self, record: JobRecord) -> None: ...
    async def results(self, job_id: str, entries: Sequence[TaskEntry]) -> None: ...
    async def commit(self, record: JobRecord) -> None: ...
    async def fail(self, record: JobRecord) -> None: ...
    async def end(self, record: JobRecord) -> None: ...
    async def tidy(self) -> None: ...


# --- The logs of jobs, from which another proxy goes on with them when it becomes the coordinator.
#
# The log of a job is beside its outputs: hidden objects `.dfc/jobs/ID/NNNNNNNN` of their bucket, numbered from 1, each written
# only if there is none of that name. So two coordinators cannot both write number n, and the one that is late stops. A record
# in the registry says which jobs there are; it is written when the first segments are, when a job fails or is cancelled, for
# which there may be no room in the log, and when nothing is left to be done for it.

RESULTS_MAX: Final = 4096  # in one segment
FLUSH_S: Final = 1.0  # results wait so long for others: what a coordinator loses with them is done again
KEEP_RETRY_S: Final = 2.0
SWEEP_S: Final = 3600.0
ORPHAN_S: Final = 86_400.0
_encode_segment: Final = msgspec.msgpack.Encoder().encode
_encode_entry: Final = msgspec.json.Encoder().encode


class _OpenLog:
    """The log of a job that this proxy runs. `number`: of the last segment. `unsure`: a segment that may have been written: its
    writer was cut off. `record`: to be told with the next segment. `entry`: what the registry has of the job."""

    def __init__(self, objects: LogObjects, entry: JobEntry) -> None:
        self.objects = objects
        self.entry = entry
        self.number = 0
        self.unsure: bytes | None = None
        self.record: JobRecord | None = None
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
        """All jobs that the registry knows, in the order of their ids; without those that this version cannot read."""
        found, entries = self._registry.records(JOBS), list[JobEntry]()
        for name in sorted(found):
            try:
                entries.append(msgspec.json.decode(found[name], type=JobEntry))
            except msgspec.MsgspecError as error:
                _log.error("the record %s of a job cannot be read, and is left alone: %s", name, error)
        return entries

    async def begin(self, record: JobRecord, pattern: str, spec: bytes, inputs: Sequence[Sequence[InputShard]]) -> None:
        entry = JobEntry(record=short(record), pattern=pattern, spec=short_spec(spec))
        log = self._open[record.id] = _OpenLog(self._objects(record), entry)
        for segment in first_segments(self.owner, record, spec, inputs):
            await self._append(record.id, log, segment)
        await self._keep(entry)

    async def abandon(self, record: JobRecord) -> None:
        log = self._open.pop(record.id, None)
        await self._at_last(lambda: self._registry.keep(JOBS + record.id, None, self._leadership))
        if log is not None:
            await self._remove(log.objects, log.number + 1)

    def running(self, record: JobRecord) -> None:
        self._open[record.id].record = record

    async def results(self, job_id: str, entries: Sequence[TaskEntry]) -> None:
        log = self._open[job_id]
        log.results += entries
        now_s = asyncio.get_running_loop().time()
        if len(log.results) >= RESULTS_MAX or now_s - log.flushed_s > FLUSH_S:
            async with log.turn:
                await self._flush(job_id, log)

    async def commit(self, record: JobRecord) -> None:
        log = self._open[record.id]
        async with log.turn:
            log.record = record
            await self._flush(record.id, log)

    async def _flush(self, job_id: str, log: _OpenLog) -> None:
        """Write what was not written yet, results before the record."""
        log.flushed_s = asyncio.get_running_loop().time()
        while True:
            some = log.results[:RESULTS_MAX]
            is_last = len(some) == len(log.results)
            record = log.record if is_last else None
            await self._append(job_id, log, LogSegment(owner=self.owner, record=record, results=some))
            del log.results[: len(some)]
            if is_last:
                log.record = None
                return

    async def _append(self, job_id: str, log: _OpenLog, segment: LogSegment) -> None:
        """Write the next segment. LogTaken, LogRefused, BucketDeleting."""
        if log.unsure is not None:  # first, since it may be there: what it tells may come twice
            await self._write(job_id, log, log.unsure)
        log.unsure = _encode_segment(segment)
        await self._write(job_id, log, log.unsure)

    async def _write(self, job_id: str, log: _OpenLog, data: bytes) -> None:
        while True:
            self._check_held(job_id)
            is_ours = await log.objects.put(log.number + 1, data)
            self._check_held(job_id)  # else the next coordinator may have read and removed the log before
            log.number += 1
            if is_ours:
                log.unsure = None
                return
            _log.error("segment %d of the log of job %s was written by somebody else", log.number, job_id)

    def _check_held(self, job_id: str) -> None:
        if not self._leadership.is_held:
            raise LogTaken(f"this proxy is not the coordinator any more, which goes on with job {job_id}")

    async def fail(self, record: JobRecord) -> None:
        log = self._open[record.id]
        entry = msgspec.structs.replace(log.entry, record=short(record))
        await self._at_last(lambda: self._keep(entry))

    async def end(self, record: JobRecord) -> None:
        log = self._open.get(record.id)
        if log is None:
            return
        entry = msgspec.structs.replace(log.entry, record=short(record), is_over=True, segments=log.number + 1)
        await self._at_last(lambda: self._keep(entry))
        self._open.pop(record.id, None)
        await self.remove(entry)

    async def remove(self, entry: JobEntry) -> None:
        """Remove the log of a job that is over. LeaseLost."""
        await self._remove(self._objects(entry.record), entry.segments)
        await self._at_last(lambda: self._keep(msgspec.structs.replace(entry, segments=0)))

    async def _remove(self, objects: LogObjects, segments: int) -> None:
        try:
            for number in range(segments, 0, -1):
                await objects.delete(number)
        except BucketDeleting:
            pass
        except LogRefused as error:
            _log.warning("the log of a job that is over is left where it is: %s", error.message)

    async def tidy(self) -> None:
        over = [entry for entry in self.entries() if entry.is_over]
        for entry in over[: -JOBS_KEPT_MAX or None]:
            await self._registry.keep(JOBS + entry.record.id, None, self._leadership)

    async def _keep(self, entry: JobEntry) -> None:
        await self._registry.keep(JOBS + entry.record.id, _encode_entry(entry), self._leadership)

    async def _at_last(self, keep: Callable[[], Awaitable[None]]) -> None:
        """Write to the registry, however long that takes. LeaseLost."""
        while True:
            try:
                return await keep()
            except LeaseLost:
                raise
            except Unavailable as error:
                _log.warning("the registry cannot be told of a job yet: %s", error.message)
            await asyncio.sleep(KEEP_RETRY_S)

    # --- taking over

    async def take(self, entry: JobEntry) -> AsyncIterator[LogSegment]:
        """Yield all segments of a job, and make its log this proxy's: whoever had it before can add nothing more. LogRefused,
        BucketDeleting; UnknownSegment for what another version of DFC has written."""
        log = self._open[entry.record.id] = _OpenLog(self._objects(entry.record), entry)
        own = _encode_segment(LogSegment(owner=self.owner))
        while True:
            data = await log.objects.get(log.number + 1)
            if data is None:
                self._check_held(entry.record.id)
                if await log.objects.put(log.number + 1, own):
                    log.number += 1
                    return
                continue  # the one before has written it in between
            log.number += 1
            yield decoded(data, entry.record.id, log.number)

    async def measure(self, entry: JobEntry) -> None:
        """Find out how long the log of a job is, of which only the end is of interest."""
        log = self._open[entry.record.id] = _OpenLog(self._objects(entry.record), entry)
        try:
            while await log.objects.get(log.number + 1) is not None:
                log.number += 1
        except BucketDeleting:
            pass

    def _objects(self, record: JobRecord) -> LogObjects:
        return LogObjects(self._cluster, record.id, record.bucket, record.bucket_id)

    # --- what is left over

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

    async def sweep(self) -> None:
        """Remove segments of jobs that are not known: a coordinator ended while it accepted them, or while it removed a log.
        Only of jobs from long ago: this proxy may have been replaced by another one, and not know its jobs."""
        for bucket in self._cluster.map.buckets:
            left = dict[str, list[int]]()
            async for page in merged_pages(self._cluster, ListingQuery(bucket.id, prefix=PREFIX), LIST_PAGE_MAX):
                for name, *_ in page.rows:
                    found = NAME.fullmatch(name)
                    if found is not None:
                        left.setdefault(found[1], []).append(int(found[2]))
            known = {name.removeprefix(JOBS) for name in self._registry.records(JOBS)} | self._open.keys()
            for job_id in left.keys() - known:
                if not self._leadership.is_held or time.time() - int(job_id[:14], 16) / 1e6 < ORPHAN_S:
                    continue
                _log.warning("bucket %s has a log of job %s, which is not known: removing it", bucket.name, job_id)
                objects = LogObjects(self._cluster, job_id, bucket.name, bucket.id)
                for number in left[job_id]:
                    await objects.delete(number)
