"""The jobs of a proxy: accepted, queued, run, cancelled and listed, whichever proxy runs them."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace
from prometheus_client.core import Metric

from dfc.config import Settings
from dfc.engine.base import Engine
from dfc.errors import JobSpecGone, Unavailable
from dfc.filesystem import FileSystem
from dfc.http.peer import SharedCall
from dfc.http.shutdown import end
from dfc.jobs.journal import Journal
from dfc.jobs.recording import Recorder, TaskQuery, history_view, log_view, tasks_view
from dfc.jobs.records import job_view
from dfc.jobs.request import all_operations
from dfc.limits import JOB_LIST_MAX
from dfc.names import object_path
from dfc.proxy.cluster import Cluster
from dfc.proxy.coordinator import Duty, Lead
from dfc.proxy.jobs.accept import JobAcceptance
from dfc.proxy.jobs.context import EngineOnDemand, JobContext, JobStats, Recordings, Staged
from dfc.proxy.jobs.log import JobLogs, NoLogs, SharedLogs
from dfc.proxy.jobs.queue import Background, Claims, Housekeeping, JobQueue, Recovery, Watchers
from dfc.proxy.jobs.runner import JobRunner, lineage_name
from dfc.registry.base import Lease, SharedRegistry
from dfc.wire.jobs import Job, JobHistory, JobLog, JobPage, JobState, JobTasks
from dfc.wire.objects import OperationInfo


class JobReader:
    """Answers what is asked about jobs: of those under way from the queue, of others from the journal and the recordings."""

    def __init__(self, context: JobContext, queue: JobQueue, recovery: Recovery) -> None:
        self._context = context
        self._queue = queue
        self._recovery = recovery

    async def show(self, job_id: str) -> Job:
        """JobNotFound."""
        runner = self._queue.running(job_id)
        if runner is not None:
            return _live_view(runner)
        return job_view(await self._context.write(self._context.journal.get, job_id))

    async def page(self, states: Sequence[JobState], before: str | None, limit: int) -> JobPage:
        """List jobs, newest first, at most JOB_LIST_MAX, with the token of the next page."""
        limit = min(limit, JOB_LIST_MAX)
        records = await self._context.write(self._context.journal.page, states, before, limit + 1)
        shown = []
        for record in records[:limit]:
            runner = self._queue.running(record.id)
            if runner is None or runner.record.state != record.state:
                shown.append(job_view(record))
            else:
                shown.append(_live_view(runner))
        return JobPage(jobs=tuple(shown), next_token=records[limit - 1].id if len(records) > limit else None)

    async def spec(self, job_id: str) -> bytes:
        """Return the body with which a job was submitted. JobNotFound; JobSpecGone for a long one when the job has ended."""
        spec = await self._context.write(self._context.journal.spec, job_id)
        if spec:
            return spec
        self._recovery.check_here(job_id, "its spec will be known in a moment")
        record = await self._context.write(self._context.journal.get, job_id)
        where = f"; its lineage has it: {object_path(record.bucket, lineage_name(job_id))}"
        raise JobSpecGone(f"the spec of this job is too long to be kept{where if record.state == 'succeeded' else ''}")

    async def tasks(self, job_id: str, query: TaskQuery) -> JobTasks:
        """Return the stages of a job, and tasks that are known. JobNotFound, BadRequest."""
        return tasks_view(await self._recorder(job_id), query)

    async def history(self, job_id: str) -> JobHistory:
        """Return the figures of a job over time. JobNotFound."""
        return history_view(await self._recorder(job_id))

    async def log(self, job_id: str) -> JobLog:
        """Return the last lines of the log of a job. JobNotFound."""
        return log_view(await self._recorder(job_id))

    async def _recorder(self, job_id: str) -> Recorder:
        """What is known of a job, under way or ended; an empty one if nothing is."""
        context = self._context
        recorder = context.recordings.live(job_id)
        if recorder is None:
            await context.write(context.journal.get, job_id)  # raises 404
            recorder = await context.plan(context.recordings.read_blocking, job_id)
        if recorder is None:
            recorder = Recorder()
            recorder.is_complete = False
        return recorder


def _live_view(runner: JobRunner) -> Job:
    """Describe a job under way; its own state is newer than the journal's."""
    return replace(job_view(runner.record, runner.progress, runner.eta_s), warnings=tuple(runner.warnings))


class JobService(JobReader):
    """All jobs of a cluster: accepts, queues, runs, cancels and lists them, resumes them after a restart, expires old ones.

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
        self._engine = EngineOnDemand(make_engine)
        context = JobContext(
            cluster, Journal(directory, filesystem=filesystem), Staged(cluster), JobStats(), self._engine.get,
            ThreadPoolExecutor(max(4, 2 * settings.jobs_running_max), thread_name_prefix="job-plan"),
            ThreadPoolExecutor(1, thread_name_prefix="job-journal"), settings.jobs_tasks_max,
            logs or NoLogs(), settings, Recordings(directory, filesystem),
        )  # fmt: skip
        self._background = Background()
        self._claims = Claims()
        self._watchers = Watchers()
        self._housekeeping = Housekeeping(context, self._background)
        queue = JobQueue(context, self._claims, self._watchers, self._housekeeping, self._background)
        super().__init__(context, queue, Recovery(context, self._claims, queue, self._background))
        self._acceptance = JobAcceptance(context, lead, self._claims, queue, self._housekeeping, self._background)

    # --- life

    async def open(self) -> None:
        """Load the unfinished jobs, so that workers that still run are not told that their job has ended."""
        await self._recovery.open()
        await self._housekeeping.count()

    def start(self) -> None:
        """Resume unfinished jobs, and clean up finished ones."""
        self._recovery.start()
        self._housekeeping.start()
        self._queue.schedule()

    async def take_over(self, logs: SharedLogs) -> None:
        """Go on with the jobs that the registry knows, instead of `open` and `start`."""
        await self._recovery.take_over(logs)
        await self._housekeeping.count()
        self._housekeeping.start()

    async def stop(self) -> None:
        """Abandon running jobs where they are, and end event streams."""
        self._queue.stop()
        self._watchers.stop()
        await end(*self._queue.activities, *self._background.tasks)
        await self._housekeeping.stop()
        await self._engine.close()

    async def close(self) -> None:
        """Close the journal; call it after `stop`, when no request is running."""
        self._acceptance.close()
        await self._context.close()

    @property
    def is_stopping(self) -> bool:
        return self._queue.is_stopping

    @property
    def has_active(self) -> bool:
        """Whether any job is queued or running."""
        return any(len(some) for some in (self._queue, self._recovery, self._acceptance))

    def families(self) -> Iterable[Metric]:
        return self._housekeeping.families()

    @property
    def duties(self) -> Mapping[str, Duty]:
        """What the coordinator does for jobs."""
        return {"sweep of staged objects": self.sweep}

    async def sweep(self, leadership: Lease) -> None:
        """Discard staged objects that belong to no job: a duty of the coordinator, which alone runs jobs. After `open`."""

        def may_be_needed(job_id: str) -> bool:
            # Who has been replaced by another coordinator does not know the jobs of that, nor who stops those it leaves behind.
            return not leadership.is_held or self.is_stopping or self._may_publish(job_id)

        await self._context.staged.keep_swept(may_be_needed)

    def _may_publish(self, job_id: str) -> bool:
        """Whether the staged outputs of a job may still be published, now or after the next start."""
        return any(job_id in some for some in (self._queue, self._recovery, self._acceptance))

    # --- use cases, as those say who are asked

    async def submit(self, body: bytes) -> Job | dict[str, Any]:
        return await self._acceptance.submit(body)

    async def cancel(self, job_id: str) -> Job:
        self._recovery.check_here(job_id, "cancel it in a moment")
        return await self._queue.cancel(job_id)

    def check_running(self, job_id: str) -> None:
        if job_id not in self._recovery:
            self._queue.check_running(job_id)

    def watch(self, job_id: str) -> AsyncIterator[Job | None]:
        return self._watchers.watch(job_id, self.show)


# --- Jobs in a cluster with several proxies: the coordinator runs them, and goes on with those of the one before.

_log: Final = logging.getLogger("dfc.proxy.jobs")
P = ParamSpec("P")
T = TypeVar("T")
TURN_S: Final = 5.0  # how long a request waits for the jobs to have been taken over


def _asked(
    call: Callable[Concatenate[JobService, P], Awaitable[T]],
) -> Callable[Concatenate[LeaderJobs, P], Coroutine[Any, Any, T]]:
    """The same call: it waits for the service of now, and asks that."""

    @wraps(call)
    async def ask(self: LeaderJobs, /, *args: P.args, **kwargs: P.kwargs) -> T:
        service = await self._soon()
        try:
            return await call(service, *args, **kwargs)
        except (RuntimeError, sqlite3.Error):
            if not service.is_stopping:
                raise
            # Its threads and its journal were closed in the middle of the call.
            raise Unavailable("another proxy has become the coordinator", retry_after_s=1) from None

    return ask


class LeaderJobs:
    """A service of jobs for as long as this proxy is the coordinator, made by `make` with the logs of that time."""

    def __init__(self, cluster: Cluster, registry: SharedRegistry, make: Callable[[JobLogs], JobService]) -> None:
        self._cluster = cluster
        self._registry = registry
        self._make = make
        self._service: JobService | None = None
        self._ready = asyncio.Event()

    @property
    def duties(self) -> Mapping[str, Duty]:
        """What the coordinator does for jobs."""
        return {"jobs": self._reign}

    async def _reign(self, leadership: Lease) -> None:
        logs = SharedLogs(self._cluster, self._registry, leadership)
        service = self._make(logs)
        sweeping: asyncio.Task[None] | None = None
        try:
            await service.take_over(logs)
            self._service = service
            self._ready.set()
            sweeping = asyncio.create_task(logs.keep_swept())
            await service.sweep(leadership)
        finally:
            if sweeping is not None:
                sweeping.cancel()
            self._service = None
            self._ready.clear()
            await service.stop()
            await service.close()

    async def open(self) -> None:
        """Nothing: the jobs are opened when this proxy becomes the coordinator."""

    def start(self) -> None:
        """Nothing, as for `open`."""

    async def stop(self) -> None:
        """Stop the jobs of a proxy that keeps its office for a while; otherwise that of `JobService` comes with its end."""
        if self._service is not None:
            await self._service.stop()

    async def close(self) -> None:
        """Nothing: that comes with the end of the office."""

    @property
    def has_active(self) -> bool:
        """Whether any job is queued or running, or may be: that is not known before all were taken over."""
        return self._service is None or self._service.has_active

    def families(self) -> Iterable[Metric]:
        return () if self._service is None else self._service.families()

    def _now(self) -> JobService:
        if self._service is None:
            raise Unavailable("jobs are being taken over by another proxy, or none is the coordinator", retry_after_s=1)
        return self._service

    async def _soon(self) -> JobService:
        with suppress(TimeoutError):
            async with asyncio.timeout(TURN_S):
                await self._ready.wait()
        return self._now()

    submit = _asked(JobService.submit)
    cancel = _asked(JobService.cancel)
    show = _asked(JobService.show)
    spec = _asked(JobService.spec)
    page = _asked(JobService.page)
    tasks = _asked(JobService.tasks)
    history = _asked(JobService.history)
    log = _asked(JobService.log)

    def check_running(self, job_id: str) -> None:
        self._now().check_running(job_id)

    def watch(self, job_id: str) -> AsyncIterator[Job | None]:
        return self._now().watch(job_id)


AnyJobs: TypeAlias = JobService | LeaderJobs  # what a proxy does with jobs


@dataclass(frozen=True)
class DescribedOperations:
    """All operations, and the same as JSON."""

    operations: Sequence[OperationInfo]
    encoded: bytes


class Operations:
    """The operations that jobs can have. Their modules are slow to import, so they are described when somebody asks, once."""

    def __init__(self, settings: Settings) -> None:
        self._described = SharedCall(lambda: asyncio.to_thread(described, settings))

    async def all(self) -> DescribedOperations:
        """Describe all operations."""
        return await self._described.get()


def described(settings: Settings) -> DescribedOperations:
    """Import and describe all operations. Blocking."""
    found = all_operations(settings)
    return DescribedOperations(found, msgspec.json.encode({"operations": found}))
