"""The queue of jobs: those that run, those that wait for a place, and those whose end nobody could record."""

from __future__ import annotations

import asyncio

from dfc.errors import JobNotFound, Unavailable
from dfc.jobs.lifecycle import Event, JobAccepted, ProxyRestarted, TurnCame
from dfc.jobs.records import JobRecord, job_view
from dfc.proxy.jobs.background import Background
from dfc.proxy.jobs.claims import Claims
from dfc.proxy.jobs.context import Means
from dfc.proxy.jobs.housekeeping import Housekeeping
from dfc.proxy.jobs.running.active import Active, check_cancel, left_unfinished
from dfc.proxy.jobs.running.runner import JobRunner
from dfc.proxy.jobs.watching import Watchers
from dfc.wire.jobs import Job


class JobQueue:
    """The jobs under way, in their order. It contains also those that are left to the next start."""

    def __init__(
        self, means: Means, claims: Claims, watchers: Watchers, housekeeping: Housekeeping, background: Background
    ) -> None:
        self._means = means
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
        active = self._active[record.id] = Active(self._means, self, record)
        active.happen(JobAccepted())
        self.schedule()

    def go_on(self, record: JobRecord, *, discard: bool = False) -> None:
        """Go on with a job from before this start, as its record says. One that has ended takes no place: with `discard`,
        objects of it may still be staged."""
        active = Active(self._means, self, record)
        if record.finished_us is None:
            self._active[record.id] = active
        active.happen(ProxyRestarted(record.state, discard))

    def schedule(self) -> None:
        """Start waiting jobs while there are free places; those from before a restart come first, being older."""
        waiting = [active for active in self._active.values() if active.life.is_waiting]
        places = self._means.settings.jobs_running_max - (len(self._active) - len(waiting))
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
            self._means.stats.count_job(record)
            if record.state == "succeeded":
                self._background.spawn(self._means.end_log(record))
        else:
            self._left.add(job.id)
        self._background.spawn(self._housekeeping.forget())

    async def cancel(self, job_id: str) -> Job:
        """Cancel a job; one that has failed or was cancelled before stays as it is. JobFinished once it is publishing."""
        active = self._active.get(job_id)
        if active is None:
            record = await self._means.write(self._means.journal.get, job_id)
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
