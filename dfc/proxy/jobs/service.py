"""The job service of the proxy: accept, queue, run, cancel and list jobs, resume them after a restart, expire old ones."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
from prometheus_client.core import Metric

from dfc import __version__
from dfc.config import Settings
from dfc.engine.base import Engine
from dfc.errors import BucketDeleting, DfcError, JobNotFound, JobSpecGone, Unavailable
from dfc.filesystem import FileSystem
from dfc.http.shutdown import end_threads, in_time
from dfc.jobs.journal import Journal
from dfc.jobs.lifecycle import Event, JobAccepted, ProxyRestarted, TurnCame
from dfc.jobs.pattern import OutputPattern
from dfc.jobs.recording.recorder import Recorder
from dfc.jobs.recording.views import TaskQuery, end_line, history_json, log_json, tasks_json
from dfc.jobs.records import JobEntry, JobError, JobRecord, JobState, NewJob, job_json
from dfc.jobs.request import parse_spec
from dfc.jobs.spec import OutputSpec
from dfc.limits import JOB_LIST_MAX
from dfc.names import object_path
from dfc.proxy.cluster import Cluster
from dfc.proxy.coordinator import Duty, Lead
from dfc.proxy.jobs.active import Active, check_cancel, left_unfinished
from dfc.proxy.jobs.claims import Claims
from dfc.proxy.jobs.context import Means
from dfc.proxy.jobs.lineage import lineage_name
from dfc.proxy.jobs.log import JobLogs, LogTaken, NoLogs, SharedLogs, UnknownSegment
from dfc.proxy.jobs.metrics import JobStats
from dfc.proxy.jobs.recordings import SAVE_S, Recordings
from dfc.proxy.jobs.runner import JobRunner
from dfc.proxy.jobs.segments import LogRefused, LogSegment
from dfc.proxy.jobs.staged import Staged
from dfc.proxy.jobs.submitting import Examined, Examiner
from dfc.registry.base import JOBS_KEPT_MAX
from dfc.registry.leases import Lease, LeaseLost

_log: Final = logging.getLogger("dfc.proxy.jobs")
T = TypeVar("T")
HOUSEKEEPING_S: Final = 3600.0
HEARTBEAT_S: Final = 10.0  # of event streams; below the timeouts of proxies between us and a browser
EVENT_INTERVAL_S: Final = 0.2  # the minimum time between two events of a stream
RETRY_BUSY_S: Final = 30
ACCEPT_S: Final = 30.0  # to write the beginning of a job's log
_LOG_LOST: Final = JobError("coordinator_lost", "the proxy that ran the job is gone, and its log too: submit it again")


class JobService:
    """All jobs of a cluster.

    Call `open` before the node serves and `start` after; `stop`, then `close`, leave running jobs to the next start."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        directory: str,
        make_engine: Callable[[], Engine],
        lead: Lead,
        filesystem: FileSystem | None = None,
        logs: JobLogs | None = None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._make_engine = make_engine
        self._lead = lead
        self._engine: Engine | None = None
        self._starting = asyncio.Lock()
        self._accepting = asyncio.Lock()
        self._saving = asyncio.Lock()
        self._examiner = Examiner(cluster, settings)
        self.stats = JobStats()
        self._journal = Journal(directory, filesystem=filesystem)
        self._recordings = Recordings(directory, filesystem)
        self._means = Means(
            cluster, self._journal, Staged(cluster), self.stats, self._started_engine,
            ThreadPoolExecutor(max(4, 2 * settings.jobs_running_max), thread_name_prefix="job-plan"),
            ThreadPoolExecutor(1, thread_name_prefix="job-journal"), settings.jobs_tasks_max,
            logs or NoLogs(), settings, self._recordings,
        )  # fmt: skip
        self._active: dict[str, Active] = {}
        self._claims = Claims()
        self._left: set[str] = set()  # jobs left to the next start
        self._beginning: set[str] = set()  # jobs that are in the journal, but not accepted yet
        self._restoring: dict[str, JobEntry] = {}  # jobs of another coordinator whose logs are being read
        self._pulses: dict[str, asyncio.Event] = {}
        self._counts: dict[str, int] = {}
        self._background: set[asyncio.Task[None]] = set()
        self.activities: set[asyncio.Task[Event]] = set()
        self.is_stopping = False
        self._last_id_us = 0

    # --- life

    async def open(self) -> None:
        """Load the unfinished jobs, so that workers that still run are not told that their job has ended."""
        for record in await self._write(self._journal.active):
            found = await self._means.plan(self._recordings.read_blocking, record.id)
            self._recordings.resume(record, found, "the proxy was started again")
            self._add(record, _pattern_of(self._journal.spec(record.id)), ProxyRestarted(record.state))
        await self._refresh_counts()

    def start(self) -> None:
        """Resume unfinished jobs, and clean up finished ones."""
        for job_id in self._journal.to_discard():
            self._spawn(self._go_on_discarding(job_id))
        self._spawn(self._housekeeping())
        self._spawn(self._keep_saved())
        self._schedule()

    async def take_over(self, logs: SharedLogs) -> None:
        """Go on with the jobs that the registry knows, instead of `open` and `start`. What the journal here has is at best a
        copy."""
        entries = logs.entries()
        over = [entry for entry in entries if entry.is_over][-JOBS_KEPT_MAX:]
        going = [entry for entry in entries if not entry.is_over]
        await self._write_at_last(self._journal.take_over, (*over, *going))
        for entry in going:
            self._claims.take(entry.record.id, entry.record.bucket, OutputPattern(entry.pattern))
            self._restoring[entry.record.id] = entry
        for entry in going:
            self._spawn(self._restore(entry, logs))
        for entry in over:
            if entry.segments:
                self._spawn(self._remove_log(entry, logs))
        await self._refresh_counts()
        self._spawn(self._housekeeping())
        self._spawn(self._keep_saved())

    async def _remove_log(self, entry: JobEntry, logs: SharedLogs) -> None:
        with suppress(LeaseLost):  # the next coordinator does it
            await logs.remove(entry)

    async def _restore(self, entry: JobEntry, logs: SharedLogs) -> None:
        """Go on with a job of another coordinator."""
        record = await self._restored(entry, logs)
        _log.info("job %s goes on here: it is %s", record.id, record.state)
        if record.finished_us is None:
            found = await self._means.plan(self._recordings.read_blocking, record.id)
            self._recordings.resume(record, found, f"taken over by {logs.owner.partition('/')[0]}")
            # Of what others did in between, nothing is known.
            self._recordings.of(record).is_complete = record.started_us is None
        del self._restoring[record.id]
        active = Active(self._means, self, record)
        if record.finished_us is None:
            self._active[record.id] = active
        else:
            self._claims.release(record.id)
        # What may still be staged by one that has failed is discarded, perhaps once more.
        active.happen(ProxyRestarted(record.state, record.finished_us is not None))
        if record.state == "succeeded":
            self._spawn(self._end_log(record))
        self.changed(record.id)
        self._schedule()

    async def _restored(self, entry: JobEntry, logs: SharedLogs) -> JobRecord:
        """Read the log of a job into the journal; its record as it is there. One whose log cannot be used has failed."""
        job_id, has_spec = entry.record.id, False
        try:
            if entry.record.finished_us is not None:  # of that the log need not know
                await logs.measure(entry)
                return entry.record
            async for segment in logs.take(entry):
                has_spec = has_spec or segment.spec is not None
                await self._write_at_last(self._take_segment, job_id, segment)
            if has_spec:
                return await self._write(self._journal.get, job_id)
            error = _LOG_LOST
        except (BucketDeleting, LogRefused, UnknownSegment) as problem:
            error = JobError(problem.code, problem.message)
        except LogTaken:
            await asyncio.Event().wait()  # until this service stops: another coordinator does this
            raise
        record = msgspec.structs.replace(
            entry.record, state="failed", error=error, finished_us=time.time_ns() // 1000, discard=True
        )
        await self._write_at_last(self._journal.adopt, record)
        with suppress(LeaseLost):
            await logs.fail(record)
        return record

    def _take_segment(self, job_id: str, segment: LogSegment) -> None:
        """Add a segment of a log to the journal. Blocking."""
        journal, record = self._journal, segment.record
        if record is not None and segment.spec is not None:
            journal.adopt(record, segment.spec, segment.input_count)
        for part in segment.inputs:
            journal.add_inputs(job_id, part.number, part.shards)
        if segment.results:
            journal.record(job_id, segment.results)
        if record is not None and segment.spec is None:
            journal.put(record)

    async def _end_log(self, record: JobRecord) -> None:
        with suppress(LeaseLost):  # the next coordinator finds out
            await self._means.logs.end(record)

    async def stop(self) -> None:
        """Abandon running jobs where they are, and end event streams."""
        self.is_stopping = True
        for pulse in self._pulses.values():
            pulse.set()
        for active in self._active.values():
            active.tell(Unavailable("this proxy is shutting down"))
        tasks: list[asyncio.Task[Any]] = [*self.activities, *self._background]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        left = self._recordings.closed()
        await in_time(lambda: self._recordings.save_blocking(left), "what was recorded of jobs")
        if self._engine is not None:
            await self._engine.close()

    async def close(self) -> None:
        """Close the journal; call it after `stop`, when no request is running."""
        self._examiner.close()
        ended = await asyncio.gather(
            end_threads(self._means.threads, "the planning of jobs"), end_threads(self._means.writer, "the job journal")
        )
        if all(ended):
            await in_time(self._journal.close, "the job journal")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_ended)

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("cleaning up finished jobs failed; the next start of the proxy tries again", exc_info=error)

    async def _write(self, call: Callable[..., T], *arguments: Any) -> T:
        return await self._means.write(call, *arguments)

    async def _write_at_last(self, call: Callable[..., T], *arguments: Any) -> T:
        return await self._means.write_at_last(call, *arguments)

    async def _started_engine(self) -> Engine:
        """Return the engine; the first job that needs it starts it."""
        if self._engine is None:
            async with self._starting:
                if self._engine is None:
                    engine = self._make_engine()
                    await engine.start()
                    self._engine = engine
        return self._engine

    async def _refresh_counts(self) -> None:
        self._counts = await self._write(self._journal.counts)

    def families(self) -> Iterable[Metric]:
        return self.stats.families(self._counts)

    # --- submitting

    async def submit(self, body: bytes) -> dict[str, Any]:
        """Accept a job (the result then has a `state`), or return the plan of a dry run. Raises any error that can be found."""
        self._cluster.check_ready()
        found = await self._examiner.examine(body)
        if found.spec.spec.dry_run:
            return await self._examiner.plan(found)
        # Shielded: a job that is in the journal but unknown to this service would wait until the next start.
        return await asyncio.shield(self._accept_in_turn(found, body))

    async def _accept_in_turn(self, found: Examined, body: bytes) -> dict[str, Any]:
        while True:
            leadership = await self._lead()  # before taking the lock: waiting for an election must not block others
            if self.is_stopping:
                raise Unavailable("this proxy does not run jobs any more", retry_after_s=1)
            async with self._accepting:
                if leadership.is_held:  # only the coordinator's claims keep jobs apart
                    record = await self._create(found, body)
                    break
        await self._begin_log(record, found, body)  # outside the lock: a target may take its time
        self._beginning.discard(record.id)
        active = self._active[record.id] = Active(self._means, self, record)
        active.happen(JobAccepted())
        self._schedule()
        try:
            await self._refresh_counts()
        except Exception:
            _log.exception("cannot count the jobs; job %s was accepted nevertheless", record.id)
        return job_json(record)

    async def _create(self, found: Examined, body: bytes) -> JobRecord:
        """Put a job into the journal, and claim what it writes."""
        waiting = len(self._beginning) + sum(active.life.is_waiting for active in self._active.values())
        if waiting >= self._settings.jobs_queued_max:
            raise Unavailable(f"the job queue is full: {waiting} jobs are waiting", retry_after_s=RETRY_BUSY_S)
        spec = found.spec.spec
        self._claims.check(spec.output.bucket, found.spec.pattern)
        bucket = await self._cluster.bucket_for_write(spec.output.bucket)
        new = NewJob(
            id=self._new_id(), operation=spec.operation, spec=body, label=spec.label, bucket=bucket.name, bucket_id=bucket.id,
            memory_bytes=self._settings.jobs_memory_bytes, program=__version__, warnings=found.warnings,
        )  # fmt: skip
        record = await self._write(self._journal.create, new, found.inputs)
        self._claims.take(record.id, record.bucket, found.spec.pattern)
        self._beginning.add(record.id)
        return record

    async def _begin_log(self, record: JobRecord, found: Examined, body: bytes) -> None:
        """Have those who come after know the job. If that cannot be done soon, it is not accepted: nobody goes on with it, and
        until that is certain nobody else writes what it would have written."""
        try:
            async with asyncio.timeout(ACCEPT_S):
                await self._means.logs.begin(record, found.spec.pattern.text, body, found.inputs)
        except BaseException as error:
            if not self.is_stopping:
                self._spawn(self._abandon(record))
            if isinstance(error, TimeoutError):
                raise Unavailable("the log of the job cannot be written at the moment") from None
            if isinstance(error, LogRefused):
                raise Unavailable(error.message) from error
            raise

    async def _abandon(self, record: JobRecord) -> None:
        with suppress(LeaseLost):  # who comes after knows it, or not
            await self._means.logs.abandon(record)
        await self._write(self._journal.drop, record.id)
        self._recordings.drop(record.id)
        self._claims.release(record.id)
        self._beginning.discard(record.id)

    @property
    def has_active(self) -> bool:
        """Whether any job is queued or running."""
        return bool(self._active or self._left or self._restoring or self._beginning)

    def _new_id(self) -> str:
        """Make a job id. Ids sort by time, which is the order of listings, and cannot be guessed."""
        self._last_id_us = max(self._last_id_us + 1, time.time_ns() // 1000)
        return f"{self._last_id_us:014x}{secrets.token_hex(4)}"

    def _add(self, record: JobRecord, pattern: OutputPattern, event: Event) -> None:
        """Make a job active. Its spec, which may be long, stays in the journal."""
        self._claims.take(record.id, record.bucket, pattern)
        active = self._active[record.id] = Active(self._means, self, record)
        active.happen(event)

    # --- running

    def _schedule(self) -> None:
        """Start waiting jobs while there are free places; those from before a restart come first, being older."""
        waiting = [active for active in self._active.values() if active.life.is_waiting]
        places = self._settings.jobs_running_max - (len(self._active) - len(waiting))
        for active in waiting[: max(0, places)]:
            if not self.is_stopping:
                active.happen(TurnCame())

    def changed(self, job_id: str) -> None:
        """Wake the watchers of a job."""
        pulse = self._pulses.pop(job_id, None)
        if pulse is not None:
            pulse.set()

    def freed(self, job: Active, is_known: bool) -> None:
        """Remove a job that has ended, and let the next one run."""
        self._active.pop(job.id, None)
        if is_known:
            self._claims.release(job.id)
        self.changed(job.id)
        self._schedule()
        self._end_recording(job.runner.record)
        if is_known:
            self.stats.count_job(job.runner.record)
            if job.runner.record.state == "succeeded":
                self._spawn(self._end_log(job.runner.record))
        else:
            self._left.add(job.id)
        self._spawn(self._forget())

    async def _go_on_discarding(self, job_id: str) -> None:
        record = await self._write(self._journal.get, job_id)
        Active(self._means, self, record).happen(ProxyRestarted(record.state, record.discard))

    async def _forget(self) -> None:
        while await self._write(self._journal.forget_details):
            pass
        await self._write(self._journal.expire, self._settings.jobs_keep_s, self._settings.jobs_keep_max)
        await self._means.plan(self._recordings.prune_blocking, self._journal.known)
        await self._refresh_counts()

    async def _housekeeping(self) -> None:
        """Expire old jobs, at the start and every hour."""
        while True:
            try:
                await self._forget()
                await self._means.logs.tidy()
            except Exception:
                _log.exception("cleaning up finished jobs failed; trying again later")
            await asyncio.sleep(HOUSEKEEPING_S)

    async def _keep_saved(self) -> None:
        """Save now and then what is recorded of jobs, for the next start if this proxy is killed."""
        while True:
            await asyncio.sleep(SAVE_S)
            async with self._saving:
                await self._means.plan(self._recordings.save_blocking, self._recordings.changed())

    def _end_recording(self, record: JobRecord) -> None:
        """Keep what was recorded of a job that has ended."""
        recorder = self._recordings.live(record.id)
        if recorder is not None:
            recorder.say(*end_line(record))
            self._spawn(self._close_recording(record.id))

    async def _close_recording(self, job_id: str) -> None:
        async with self._saving:
            await self._means.plan(self._recordings.save_blocking, self._recordings.closed(job_id))
        self._recordings.drop(job_id)

    @property
    def duties(self) -> Mapping[str, Duty]:
        """What the coordinator does for jobs."""
        return {"sweep of staged objects": self.sweep}

    async def sweep(self, leadership: Lease) -> None:
        """Discard staged objects that belong to no job: a duty of the coordinator, which alone runs jobs. After `open`."""

        def may_be_needed(job_id: str) -> bool:
            # Who has been replaced by another coordinator does not know the jobs of that.
            return not leadership.is_held or self._may_publish(job_id)

        await self._means.staged.keep_swept(may_be_needed)

    def _may_publish(self, job_id: str) -> bool:
        """Whether the staged outputs of a job may still be published, now or after the next start."""
        return any(job_id in some for some in (self._active, self._left, self._restoring, self._beginning))

    async def cancel(self, job_id: str) -> dict[str, Any]:
        """Cancel a job; one that has failed or was cancelled before stays as it is. JobFinished once it is publishing."""
        active = self._active.get(job_id)
        if job_id in self._restoring:
            raise Unavailable(f"job {job_id} is being taken over from another proxy: cancel it in a moment")
        if active is None:
            record = await self._write(self._journal.get, job_id)
            check_cancel(record.state)
            if job_id in self._left and record.finished_us is None:
                raise left_unfinished(job_id)
            return job_json(record)
        await active.cancel()
        return job_json(active.runner.record, active.runner.progress)

    # --- watching

    def check_running(self, job_id: str) -> None:
        """Raise JobNotFound when the tasks of this job are no longer needed."""
        active = self._active.get(job_id)
        if job_id not in self._restoring and (active is None or not active.life.wants_tasks):
            raise JobNotFound(f"job {job_id[:80]!r} is not running")

    async def show(self, job_id: str) -> dict[str, Any]:
        """Return a job as JSON. JobNotFound."""
        active = self._active.get(job_id)
        if active is not None:
            return _live_json(active.runner)
        return job_json(await self._write(self._journal.get, job_id))

    async def spec(self, job_id: str) -> bytes:
        """Return the body with which a job was submitted. JobNotFound; JobSpecGone for a long one when the job has ended."""
        spec = await self._write(self._journal.spec, job_id)
        if spec:
            return spec
        if job_id in self._restoring:
            raise Unavailable(f"job {job_id} is being taken over from another proxy: its spec will be known in a moment")
        record = await self._write(self._journal.get, job_id)
        where = f"; its lineage has it: {object_path(record.bucket, lineage_name(job_id))}"
        raise JobSpecGone(f"the spec of this job is too long to be kept{where if record.state == 'succeeded' else ''}")

    async def tasks(self, job_id: str, query: TaskQuery) -> dict[str, Any]:
        """Return the stages of a job, and tasks that are known. JobNotFound, BadRequest."""
        return tasks_json(await self._recorder(job_id), query)

    async def history(self, job_id: str) -> dict[str, Any]:
        """Return the figures of a job over time. JobNotFound."""
        return history_json(await self._recorder(job_id))

    async def log(self, job_id: str) -> dict[str, Any]:
        """Return the last lines of the log of a job. JobNotFound."""
        return log_json(await self._recorder(job_id))

    async def _recorder(self, job_id: str) -> Recorder:
        """What is known of a job, under way or ended; an empty one if nothing is."""
        recorder = self._recordings.live(job_id)
        if recorder is None:
            await self._write(self._journal.get, job_id)  # raises 404
            recorder = await self._means.plan(self._recordings.read_blocking, job_id)
        if recorder is None:
            recorder = Recorder()
            recorder.is_complete = False
        return recorder

    async def page(self, states: Sequence[JobState], before: str | None, limit: int) -> dict[str, Any]:
        """List jobs, newest first, at most JOB_LIST_MAX, with the token of the next page."""
        limit = min(limit, JOB_LIST_MAX)
        records = await self._write(self._journal.page, states, before, limit + 1)
        shown = []
        for record in records[:limit]:
            active = self._active.get(record.id)
            if active is None or active.runner.record.state != record.state:
                shown.append(job_json(record))
            else:
                shown.append(_live_json(active.runner))
        return {"jobs": shown, "next_token": records[limit - 1].id if len(records) > limit else None}

    async def watch(self, job_id: str) -> AsyncIterator[dict[str, Any] | None]:
        """Yield the job now and whenever it changes, until it ends; None as a heartbeat when nothing changes. JobNotFound;
        Unavailable when this proxy stops first."""
        while True:
            pulse = self._pulses.setdefault(job_id, asyncio.Event())
            ended = True
            try:
                shown = await self.show(job_id)
                ended = shown["finished"] is not None
            finally:
                if ended:  # before yielding: the watcher may go away then
                    self.changed(job_id)
            yield shown
            if ended:
                return
            while not self.is_stopping:
                try:
                    await asyncio.wait_for(pulse.wait(), HEARTBEAT_S)
                    break
                except TimeoutError:
                    yield None
            if self.is_stopping:
                raise Unavailable("this proxy is shutting down")
            await asyncio.sleep(EVENT_INTERVAL_S)


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


def _live_json(runner: JobRunner) -> dict[str, Any]:
    """Describe a job under way; its own state is newer than the journal's."""
    return {**job_json(runner.record, runner.progress, runner.eta_s), "warnings": runner.warnings}
