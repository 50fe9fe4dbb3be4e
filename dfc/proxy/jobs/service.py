"""The job service of the proxy: accept, queue, run, cancel and list jobs, resume them after a restart, expire old ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from prometheus_client.core import Metric

from dfc.config import Settings
from dfc.engine.base import Engine
from dfc.filesystem import FileSystem
from dfc.http.shutdown import end
from dfc.jobs.journal import Journal
from dfc.jobs.recording.views import TaskQuery
from dfc.proxy.cluster import Cluster
from dfc.proxy.coordinator import Duty, Lead
from dfc.proxy.jobs.accepting.acceptance import JobAcceptance
from dfc.proxy.jobs.background import Background
from dfc.proxy.jobs.claims import Claims
from dfc.proxy.jobs.context import EngineOnDemand, Means
from dfc.proxy.jobs.housekeeping import Housekeeping
from dfc.proxy.jobs.log.base import JobLogs, NoLogs
from dfc.proxy.jobs.log.shared import SharedLogs
from dfc.proxy.jobs.metrics import JobStats
from dfc.proxy.jobs.queue import JobQueue
from dfc.proxy.jobs.reading import JobReader
from dfc.proxy.jobs.recordings import Recordings
from dfc.proxy.jobs.recovery import Recovery
from dfc.proxy.jobs.running.staged import Staged
from dfc.proxy.jobs.watching import Watchers
from dfc.registry.leases import Lease
from dfc.wire.jobs import Job, JobHistory, JobLog, JobPage, JobState, JobTasks


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
        self._engine = EngineOnDemand(make_engine)
        self._means = Means(
            cluster, Journal(directory, filesystem=filesystem), Staged(cluster), JobStats(), self._engine.get,
            ThreadPoolExecutor(max(4, 2 * settings.jobs_running_max), thread_name_prefix="job-plan"),
            ThreadPoolExecutor(1, thread_name_prefix="job-journal"), settings.jobs_tasks_max,
            logs or NoLogs(), settings, Recordings(directory, filesystem),
        )  # fmt: skip
        self._background = Background()
        self._claims = Claims()
        self._watchers = Watchers()
        self._housekeeping = Housekeeping(self._means, self._background)
        self._queue = JobQueue(self._means, self._claims, self._watchers, self._housekeeping, self._background)
        self._recovery = Recovery(self._means, self._claims, self._queue, self._background)
        self._acceptance = JobAcceptance(self._means, lead, self._claims, self._queue, self._housekeeping, self._background)
        self._reader = JobReader(self._means, self._queue, self._recovery)

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
        await self._means.close()

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

        await self._means.staged.keep_swept(may_be_needed)

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

    async def show(self, job_id: str) -> Job:
        return await self._reader.show(job_id)

    async def spec(self, job_id: str) -> bytes:
        return await self._reader.spec(job_id)

    async def tasks(self, job_id: str, query: TaskQuery) -> JobTasks:
        return await self._reader.tasks(job_id, query)

    async def history(self, job_id: str) -> JobHistory:
        return await self._reader.history(job_id)

    async def log(self, job_id: str) -> JobLog:
        return await self._reader.log(job_id)

    async def page(self, states: Sequence[JobState], before: str | None, limit: int) -> JobPage:
        return await self._reader.page(states, before, limit)

    def watch(self, job_id: str) -> AsyncIterator[Job | None]:
        return self._watchers.watch(job_id, self._reader.show)
