"""What is asked about jobs: how they are, what they did, and what they were asked to do."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dfc.errors import JobSpecGone
from dfc.jobs.recording.recorder import Recorder
from dfc.jobs.recording.views import TaskQuery, history_view, log_view, tasks_view
from dfc.jobs.records import job_view
from dfc.limits import JOB_LIST_MAX
from dfc.names import object_path
from dfc.proxy.jobs.context import Means
from dfc.proxy.jobs.queue import JobQueue
from dfc.proxy.jobs.recovery import Recovery
from dfc.proxy.jobs.running.lineage import lineage_name
from dfc.proxy.jobs.running.runner import JobRunner
from dfc.wire.jobs import Job, JobHistory, JobLog, JobPage, JobState, JobTasks


class JobReader:
    """Answers from the queue what is under way, and from the journal and the recordings what is not."""

    def __init__(self, means: Means, queue: JobQueue, recovery: Recovery) -> None:
        self._means = means
        self._queue = queue
        self._recovery = recovery

    async def show(self, job_id: str) -> Job:
        """JobNotFound."""
        runner = self._queue.running(job_id)
        if runner is not None:
            return _live_view(runner)
        return job_view(await self._means.write(self._means.journal.get, job_id))

    async def page(self, states: Sequence[JobState], before: str | None, limit: int) -> JobPage:
        """List jobs, newest first, at most JOB_LIST_MAX, with the token of the next page."""
        limit = min(limit, JOB_LIST_MAX)
        records = await self._means.write(self._means.journal.page, states, before, limit + 1)
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
        spec = await self._means.write(self._means.journal.spec, job_id)
        if spec:
            return spec
        self._recovery.check_here(job_id, "its spec will be known in a moment")
        record = await self._means.write(self._means.journal.get, job_id)
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
        means = self._means
        recorder = means.recordings.live(job_id)
        if recorder is None:
            await means.write(means.journal.get, job_id)  # raises 404
            recorder = await means.plan(means.recordings.read_blocking, job_id)
        if recorder is None:
            recorder = Recorder()
            recorder.is_complete = False
        return recorder


def _live_view(runner: JobRunner) -> Job:
    """Describe a job under way; its own state is newer than the journal's."""
    return replace(job_view(runner.record, runner.progress, runner.eta_s), warnings=tuple(runner.warnings))
