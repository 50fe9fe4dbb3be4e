"""Go on with the jobs from before: those of the journal here after a restart, or those of another coordinator."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Final

import msgspec

from dfc.errors import BucketDeleting, DfcError, Unavailable
from dfc.jobs.journal import Journal
from dfc.jobs.pattern import OutputPattern
from dfc.jobs.records import JobEntry, JobRecord
from dfc.jobs.request import parse_spec
from dfc.jobs.spec import OutputSpec
from dfc.proxy.jobs.background import Background
from dfc.proxy.jobs.claims import Claims
from dfc.proxy.jobs.context import Means
from dfc.proxy.jobs.log.base import LogTaken
from dfc.proxy.jobs.log.segments import LogRefused, LogSegment, UnknownSegment
from dfc.proxy.jobs.log.shared import SharedLogs
from dfc.proxy.jobs.queue import JobQueue
from dfc.registry.base import JOBS_KEPT_MAX
from dfc.registry.leases import LeaseLost
from dfc.wire.jobs import JobError

_log: Final = logging.getLogger("dfc.proxy.jobs")
_LOG_LOST: Final = JobError("coordinator_lost", "the proxy that ran the job is gone, and its log too: submit it again")


class Recovery:
    """Gives jobs from before to the queue. It contains those of another coordinator whose logs are being read."""

    def __init__(self, means: Means, claims: Claims, queue: JobQueue, background: Background) -> None:
        self._means = means
        self._claims = claims
        self._queue = queue
        self._background = background
        self._restoring: dict[str, JobEntry] = {}

    def __len__(self) -> int:
        return len(self._restoring)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._restoring

    def check_here(self, job_id: str, what: str) -> None:
        """Raise Unavailable for a job that is being taken over, with `what` can be done about it."""
        if job_id in self._restoring:
            raise Unavailable(f"job {job_id} is being taken over from another proxy: {what}")

    # --- from the journal here

    async def open(self) -> None:
        """Load the unfinished jobs."""
        means = self._means
        for record in await means.write(means.journal.active):
            found = await means.plan(means.recordings.read_blocking, record.id)
            means.recordings.resume(record, found, "the proxy was started again")
            self._claims.take(record.id, record.bucket, _pattern_of(means.journal.spec(record.id)))
            self._queue.go_on(record)

    def start(self) -> None:
        """Discard what jobs that have ended may have left staged."""
        for job_id in self._means.journal.to_discard():
            self._background.spawn(self._go_on_discarding(job_id))

    async def _go_on_discarding(self, job_id: str) -> None:
        record = await self._means.write(self._means.journal.get, job_id)
        self._queue.go_on(record, discard=record.discard)

    # --- from another coordinator

    async def take_over(self, logs: SharedLogs) -> None:
        """Go on with the jobs that the registry knows. What the journal here has is at best a copy."""
        entries = logs.entries()
        over = [entry for entry in entries if entry.is_over][-JOBS_KEPT_MAX:]
        going = [entry for entry in entries if not entry.is_over]
        await self._means.write_at_last(self._means.journal.take_over, (*over, *going))
        for entry in going:
            self._claims.take(entry.record.id, entry.record.bucket, OutputPattern(entry.pattern))
            self._restoring[entry.record.id] = entry
        for entry in going:
            self._background.spawn(self._restore(entry, logs))
        for entry in over:
            if entry.segments:
                self._background.spawn(self._remove_log(entry, logs))

    async def _remove_log(self, entry: JobEntry, logs: SharedLogs) -> None:
        with suppress(LeaseLost):  # the next coordinator does it
            await logs.remove(entry)

    async def _restore(self, entry: JobEntry, logs: SharedLogs) -> None:
        """Go on with a job of another coordinator."""
        recordings = self._means.recordings
        record = await self._restored(entry, logs)
        _log.info("job %s goes on here: it is %s", record.id, record.state)
        is_over = record.finished_us is not None
        if is_over:
            self._claims.release(record.id)
        else:
            found = await self._means.plan(recordings.read_blocking, record.id)
            recordings.resume(record, found, f"taken over by {logs.owner.partition('/')[0]}")
            # Of what others did in between, nothing is known.
            recordings.of(record).is_complete = record.started_us is None
        del self._restoring[record.id]
        # What may still be staged by one that has failed is discarded, perhaps once more.
        self._queue.go_on(record, discard=is_over)
        if record.state == "succeeded":
            self._background.spawn(self._means.end_log(record))
        self._queue.changed(record.id)
        self._queue.schedule()

    async def _restored(self, entry: JobEntry, logs: SharedLogs) -> JobRecord:
        """Read the log of a job into the journal; its record as it is there. One whose log cannot be used has failed."""
        means, job_id, has_spec = self._means, entry.record.id, False
        try:
            if entry.record.finished_us is not None:  # of that the log need not know
                await logs.measure(entry)
                return entry.record
            async for segment in logs.take(entry):
                has_spec = has_spec or segment.spec is not None
                await means.write_at_last(add_segment, means.journal, job_id, segment)
            if has_spec:
                return await means.write(means.journal.get, job_id)
            error = _LOG_LOST
        except (BucketDeleting, LogRefused, UnknownSegment) as problem:
            error = JobError(problem.code, problem.message)
        except LogTaken:
            await asyncio.Event().wait()  # until this service stops: another coordinator does this
            raise
        record = msgspec.structs.replace(
            entry.record, state="failed", error=error, finished_us=time.time_ns() // 1000, discard=True
        )
        await means.write_at_last(means.journal.adopt, record)
        with suppress(LeaseLost):
            await logs.fail(record)
        return record


def add_segment(journal: Journal, job_id: str, segment: LogSegment) -> None:
    """Add a segment of a log to the journal. Blocking."""
    record = segment.record
    if record is not None and segment.spec is not None:
        journal.adopt(record, segment.spec, segment.input_count)
    for part in segment.inputs:
        journal.add_inputs(job_id, part.number, part.shards)
    if segment.results:
        journal.record(job_id, segment.results)
    if record is not None and segment.spec is None:
        journal.put(record)


def _pattern_of(spec: bytes) -> OutputPattern:
    """Return the output pattern of a job from before this start. If the spec is now invalid, because of another version or a
    missing library, the job itself fails with that error later."""
    try:
        return parse_spec(spec).pattern
    except DfcError as error:
        _log.warning("the spec of a job that was accepted earlier is no longer valid: %s", error.message)
        return OutputPattern(msgspec.json.decode(spec, type=_Accepted).output.pattern)


class _Accepted(msgspec.Struct):
    """The part of a spec that all versions have."""

    output: OutputSpec
