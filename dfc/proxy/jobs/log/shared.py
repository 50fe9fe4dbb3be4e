"""The logs of jobs, from which another proxy goes on with them when it becomes the coordinator.

The log of a job is beside its outputs: hidden objects `.dfc/jobs/ID/NNNNNNNN` of their bucket, numbered from 1, each written
only if there is none of that name. So two coordinators cannot both write number n, and the one that is late stops. A record in
the registry says which jobs there are; it is written when the first segments are, when a job fails or is cancelled, for which
there may be no room in the log, and when nothing is left to be done for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

import msgspec

from dfc.errors import BucketDeleting, DfcError, Unavailable
from dfc.jobs.journal import TaskEntry
from dfc.jobs.records import JobEntry, JobRecord, short, short_spec
from dfc.jobs.tasks import InputShard
from dfc.limits import LIST_PAGE_MAX
from dfc.pages import ListingQuery
from dfc.proxy.cluster import Cluster
from dfc.proxy.jobs.log.base import LogTaken
from dfc.proxy.jobs.log.segments import NAME, PREFIX, LogObjects, LogRefused, LogSegment, decoded, first_segments
from dfc.proxy.listing import merged_pages
from dfc.registry.base import JOBS, JOBS_KEPT_MAX, SharedRegistry
from dfc.registry.leases import Lease, LeaseLost

_log: Final = logging.getLogger("dfc.proxy.jobs")
RESULTS_MAX: Final = 4096  # in one segment
FLUSH_S: Final = 1.0  # results wait so long for others: what a coordinator loses with them is done again
KEEP_RETRY_S: Final = 2.0
SWEEP_S: Final = 3600.0
ORPHAN_S: Final = 86_400.0
_encode_segment: Final = msgspec.msgpack.Encoder().encode
_encode_entry: Final = msgspec.json.Encoder().encode


class _OpenLog:
    """The log of a job that this proxy runs. `number`: of the last segment. `unsure`: a segment that may have been written: its
    writer was cut off. `record`: to be told with the next segment. `entry`: what the registry
    has of the job."""

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
