"""The queue of jobs, the names that they claim, who watches them, and what is done when they are over."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Final

import msgspec
from prometheus_client.core import Metric

from dfc.errors import BucketDeleting, Conflict, DfcError, JobNotFound, Unavailable
from dfc.http.shutdown import in_time
from dfc.jobs.journal import Journal
from dfc.jobs.lifecycle import Event, JobAccepted, ProxyRestarted, TurnCame
from dfc.jobs.recording import end_line
from dfc.jobs.records import JobEntry, JobRecord, job_view
from dfc.jobs.request import parse_spec
from dfc.jobs.spec import OutputSpec
from dfc.listing.specs import OutputPattern, may_meet
from dfc.proxy.jobs.active import Active, check_cancel, left_unfinished
from dfc.proxy.jobs.context import SAVE_S, JobContext
from dfc.proxy.jobs.log import LogRefused, LogSegment, LogTaken, SharedLogs, UnknownSegment
from dfc.proxy.jobs.runner import JobRunner
from dfc.registry.base import JOBS_KEPT_MAX, LeaseLost
from dfc.wire.jobs import Job, JobError

# --- Claims of output names, so that two jobs never write the same names at the same time and mix their outputs.
#
# Only the coordinator accepts jobs, and it keeps the claims in memory. They follow from the journal, so a coordinator that
# starts has the claims of all unfinished jobs.


class Claims:
    """The output patterns of unfinished jobs, by job."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, OutputPattern]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def check(self, bucket: str, pattern: OutputPattern) -> None:
        """Raise Conflict when another job could write one of these names."""
        for job_id, (other_bucket, other) in self._held.items():
            if other_bucket == bucket and may_meet(pattern, other):
                raise Conflict(f"job {job_id} is already writing {other.text!r} in the same bucket")

    def take(self, job_id: str, bucket: str, pattern: OutputPattern) -> None:
        """Claim the names for a job that is in the journal."""
        self._held[job_id] = (bucket, pattern)

    def release(self, job_id: str) -> None:
        """Release the claim of a job whose end is in the journal. A job that is left to the next start keeps its claim until
        then, because what it has staged may still be published."""
        self._held.pop(job_id, None)


# --- What is done for jobs while nobody waits for it.

_log: Final = logging.getLogger("dfc.proxy.jobs")


class Background:
    """Tasks that end by themselves, or are cancelled when the service of jobs stops."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin something. Its error is logged: the next start does what is left to be done."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("cleaning up finished jobs failed; the next start of the proxy tries again", exc_info=error)


# --- Watch jobs: whoever does is told of each change until a job ends.

HEARTBEAT_S: Final = 10.0  # of event streams; below the timeouts of proxies between us and a browser
EVENT_INTERVAL_S: Final = 0.2  # the minimum time between two events of a stream


class Watchers:
    """Those who watch jobs, by job."""

    def __init__(self) -> None:
        self._pulses: dict[str, asyncio.Event] = {}
        self._is_stopping = False

    def changed(self, job_id: str) -> None:
        """Wake the watchers of a job."""
        pulse = self._pulses.pop(job_id, None)
        if pulse is not None:
            pulse.set()

    def stop(self) -> None:
        """End all event streams."""
        self._is_stopping = True
        for pulse in self._pulses.values():
            pulse.set()

    async def watch(self, job_id: str, show: Callable[[str], Awaitable[Job]]) -> AsyncIterator[Job | None]:
        """Yield what `show` returns of a job, now and whenever it changes, until it ends; None as a heartbeat when nothing
        changes. Raises what `show` does; Unavailable when this proxy stops first."""
        while True:
            pulse = self._pulses.setdefault(job_id, asyncio.Event())
            ended = True
            try:
                shown = await show(job_id)
                ended = shown.has_ended
            finally:
                if ended:  # before yielding: the watcher may go away then
                    self.changed(job_id)
            yield shown
            if ended:
                return
            while not self._is_stopping:
                try:
                    await asyncio.wait_for(pulse.wait(), HEARTBEAT_S)
                    break
                except TimeoutError:
                    yield None
            if self._is_stopping:
                raise Unavailable("this proxy is shutting down")
            await asyncio.sleep(EVENT_INTERVAL_S)


# --- Housekeeping of jobs: keep what is recorded of them, forget old ones, and count all by state.

HOUSEKEEPING_S: Final = 3600.0


class Housekeeping:
    """What is done beside the jobs, and after their end. Knows how many are in which state, as of their last change."""

    def __init__(self, context: JobContext, background: Background) -> None:
        self._context = context
        self._background = background
        self._saving = asyncio.Lock()
        self._counts: dict[str, int] = {}

    def start(self) -> None:
        """Begin what is done now and then."""
        self._background.spawn(self._keep_tidy())
        self._background.spawn(self._keep_saved())

    async def stop(self) -> None:
        """Save what is recorded of all jobs; call it when nothing else is done for them any more."""
        recordings = self._context.recordings
        left = recordings.closed()
        await in_time(lambda: recordings.save_blocking(left), "what was recorded of jobs")

    def ended(self, record: JobRecord) -> None:
        """Keep what was recorded of a job that has ended."""
        recorder = self._context.recordings.live(record.id)
        if recorder is not None:
            recorder.say(*end_line(record))
            self._background.spawn(self._close_recording(record.id))

    async def _close_recording(self, job_id: str) -> None:
        context = self._context
        async with self._saving:
            await context.plan(context.recordings.save_blocking, context.recordings.closed(job_id))
        context.recordings.drop(job_id)

    async def _keep_saved(self) -> None:
        """Save now and then what is recorded of jobs, for the next start if this proxy is killed."""
        context = self._context
        while True:
            await asyncio.sleep(SAVE_S)
            async with self._saving:
                await context.plan(context.recordings.save_blocking, context.recordings.changed())

    async def _keep_tidy(self) -> None:
        """Expire old jobs, at the start and every hour."""
        while True:
            try:
                await self.forget()
                await self._context.logs.tidy()
            except Exception:
                _log.exception("cleaning up finished jobs failed; trying again later")
            await asyncio.sleep(HOUSEKEEPING_S)

    async def forget(self) -> None:
        """Forget the details of jobs that have ended, and old jobs."""
        context = self._context
        while await context.write(context.journal.forget_details):
            pass
        await context.write(context.journal.expire, context.settings.jobs_keep_s, context.settings.jobs_keep_max)
        await context.plan(context.recordings.prune_blocking, context.journal.known)
        await self.count()

    async def count(self) -> None:
        """Count the jobs of the journal."""
        self._counts = await self._context.write(self._context.journal.counts)

    def families(self) -> Iterable[Metric]:
        return self._context.stats.families(self._counts)


class JobQueue:
    """The jobs that run or wait for a place, in their order. It contains also those that are left to the next start, since
    nobody could record their end."""

    def __init__(
        self, context: JobContext, claims: Claims, watchers: Watchers, housekeeping: Housekeeping, background: Background
    ) -> None:
        self._context = context
        self._claims = claims
        self._watchers = watchers
        self._housekeeping = housekeeping
        self._background = background
        self._active: dict[str, Active] = {}
        self._left: set[str] = set()  # jobs left to the next start
        self.activities: set[asyncio.Task[Event]] = set()
        self.is_stopping = False

    def __len__(self) -> int:
        return len(self._active) + len(self._left)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._active or job_id in self._left

    @property
    def waiting(self) -> int:
        """How many jobs wait for a place."""
        return sum(active.life.is_waiting for active in self._active.values())

    def stop(self) -> None:
        """Abandon running jobs where they are. Their `activities` are left to be cancelled."""
        self.is_stopping = True
        for active in self._active.values():
            active.tell(Unavailable("this proxy is shutting down"))

    # --- in

    def add(self, record: JobRecord) -> None:
        """Put a new job at the end. It is in the journal, and has its claim."""
        active = self._active[record.id] = Active(self._context, self, record)
        active.happen(JobAccepted())
        self.schedule()

    def go_on(self, record: JobRecord, *, discard: bool = False) -> None:
        """Go on with a job from before this start, as its record says. One that has ended takes no place: with `discard`,
        objects of it may still be staged."""
        active = Active(self._context, self, record)
        if record.finished_us is None:
            self._active[record.id] = active
        active.happen(ProxyRestarted(record.state, discard))

    def schedule(self) -> None:
        """Start waiting jobs while there are free places; those from before a restart come first, being older."""
        waiting = [active for active in self._active.values() if active.life.is_waiting]
        places = self._context.settings.jobs_running_max - (len(self._active) - len(waiting))
        for active in waiting[: max(0, places)]:
            if not self.is_stopping:
                active.happen(TurnCame())

    # --- out

    def changed(self, job_id: str) -> None:
        """Wake the watchers of a job."""
        self._watchers.changed(job_id)

    def freed(self, job: Active, is_known: bool) -> None:
        """Remove a job that has ended, and let the next one run."""
        self._active.pop(job.id, None)
        if is_known:
            self._claims.release(job.id)
        self.changed(job.id)
        self.schedule()
        record = job.runner.record
        self._housekeeping.ended(record)
        if is_known:
            self._context.stats.count_job(record)
            if record.state == "succeeded":
                self._background.spawn(self._context.end_log(record))
        else:
            self._left.add(job.id)
        self._background.spawn(self._housekeeping.forget())

    async def cancel(self, job_id: str) -> Job:
        """Cancel a job; one that has failed or was cancelled before stays as it is. JobFinished once it is publishing."""
        active = self._active.get(job_id)
        if active is None:
            record = await self._context.write(self._context.journal.get, job_id)
            check_cancel(record.state)
            if job_id in self._left and record.finished_us is None:
                raise left_unfinished(job_id)
            return job_view(record)
        await active.cancel()
        return job_view(active.runner.record, active.runner.progress)

    # --- looked at

    def running(self, job_id: str) -> JobRunner | None:
        """What runs a job that is under way, if it is: its own state is newer than the journal's."""
        active = self._active.get(job_id)
        return None if active is None else active.runner

    def check_running(self, job_id: str) -> None:
        """Raise JobNotFound when the tasks of this job are no longer needed."""
        active = self._active.get(job_id)
        if active is None or not active.life.wants_tasks:
            raise JobNotFound(f"job {job_id[:80]!r} is not running")


# --- Go on with the jobs from before: those of the journal here after a restart, or those of another coordinator.

_LOG_LOST: Final = JobError("coordinator_lost", "the proxy that ran the job is gone, and its log too: submit it again")


class Recovery:
    """Gives jobs from before to the queue. It contains those of another coordinator whose logs are being read."""

    def __init__(self, context: JobContext, claims: Claims, queue: JobQueue, background: Background) -> None:
        self._context = context
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
        context = self._context
        for record in await context.write(context.journal.active):
            found = await context.plan(context.recordings.read_blocking, record.id)
            context.recordings.resume(record, found, "the proxy was started again")
            self._claims.take(record.id, record.bucket, _pattern_of(context.journal.spec(record.id)))
            self._queue.go_on(record)

    def start(self) -> None:
        """Discard what jobs that have ended may have left staged."""
        for job_id in self._context.journal.to_discard():
            self._background.spawn(self._go_on_discarding(job_id))

    async def _go_on_discarding(self, job_id: str) -> None:
        record = await self._context.write(self._context.journal.get, job_id)
        self._queue.go_on(record, discard=record.discard)

    # --- from another coordinator

    async def take_over(self, logs: SharedLogs) -> None:
        """Go on with the jobs that the registry knows. What the journal here has is at best a copy."""
        entries = logs.entries()
        over = [entry for entry in entries if entry.is_over][-JOBS_KEPT_MAX:]
        going = [entry for entry in entries if not entry.is_over]
        await self._context.write_at_last(self._context.journal.take_over, (*over, *going))
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
        recordings = self._context.recordings
        record = await self._restored(entry, logs)
        _log.info("job %s goes on here: it is %s", record.id, record.state)
        is_over = record.finished_us is not None
        if is_over:
            self._claims.release(record.id)
        else:
            found = await self._context.plan(recordings.read_blocking, record.id)
            recordings.resume(record, found, f"taken over by {logs.owner.partition('/')[0]}")
            # Of what others did in between, nothing is known.
            recordings.of(record).is_complete = record.started_us is None
        del self._restoring[record.id]
        # What may still be staged by one that has failed is discarded, perhaps once more.
        self._queue.go_on(record, discard=is_over)
        if record.state == "succeeded":
            self._background.spawn(self._context.end_log(record))
        self._queue.changed(record.id)
        self._queue.schedule()

    async def _restored(self, entry: JobEntry, logs: SharedLogs) -> JobRecord:
        """Read the log of a job into the journal; its record as it is there. One whose log cannot be used has failed."""
        context, job_id, has_spec = self._context, entry.record.id, False
        try:
            if entry.record.finished_us is not None:  # of that the log need not know
                await logs.measure(entry)
                return entry.record
            async for segment in logs.take(entry):
                has_spec = has_spec or segment.spec is not None
                await context.write_at_last(add_segment, context.journal, job_id, segment)
            if has_spec:
                return await context.write(context.journal.get, job_id)
            error = _LOG_LOST
        except (BucketDeleting, LogRefused, UnknownSegment) as problem:
            error = JobError(problem.code, problem.message)
        except LogTaken:
            await asyncio.Event().wait()  # until this service stops: another coordinator does this
            raise
        record = msgspec.structs.replace(
            entry.record, state="failed", error=error, finished_us=time.time_ns() // 1000, discard=True
        )
        await context.write_at_last(context.journal.adopt, record)
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
