"""The jobs of a cluster: accepted, queued, run a few at a time, cancelled, resumed after a restart, forgotten in time."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
from prometheus_client.core import Metric

from dfc import __version__
from dfc.config import Settings
from dfc.engine.base import Engine
from dfc.errors import Conflict, DfcError, JobFinished, Unavailable
from dfc.filesystem import FileSystem
from dfc.http.answers import AnswerCut
from dfc.http.shutdown import end_threads, in_time
from dfc.jobs.journal import Journal
from dfc.jobs.pattern import OutputPattern
from dfc.jobs.records import JobError, JobRecord, JobState, NewJob, job_json
from dfc.jobs.spec import CheckedSpec, OutputSpec, parse_spec
from dfc.proxy.cluster import Cluster
from dfc.proxy.jobmetrics import JobStats
from dfc.proxy.means import Means
from dfc.proxy.runner import JobRunner
from dfc.proxy.staged import Staged
from dfc.proxy.submitting import Examined, Examiner, may_meet
from dfc.registry.leases import Lease

_log: Final = logging.getLogger("dfc.proxy.jobs")
T = TypeVar("T")
HOUSEKEEPING_S: Final = 3600.0
HEARTBEAT_S: Final = 10.0  # of event streams; below what proxies between us and a browser wait for
EVENT_INTERVAL_S: Final = 0.2  # a stream has at most so many events, whatever happens
RETRY_BUSY_S: Final = 30


class Active:
    """A job that is queued or under way. The spec, which may be long, stays in the journal."""

    def __init__(self, record: JobRecord, pattern: OutputPattern, runner: JobRunner) -> None:
        self.pattern = pattern
        self.bucket = record.bucket
        self.runner = runner
        self.task: asyncio.Task[None] | None = None


class JobService:
    """`open` before the node serves, `start` after; `stop`, then `close`, leave running jobs to the next start."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        directory: str,
        make_engine: Callable[[], Engine],
        filesystem: FileSystem | None = None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._make_engine = make_engine
        self._engine: Engine | None = None
        self._starting = asyncio.Lock()
        self._accepting = asyncio.Lock()
        self._examiner = Examiner(cluster, settings)
        self.stats = JobStats()
        self._journal = Journal(directory, filesystem=filesystem)
        self._means = Means(
            cluster, self._journal, Staged(cluster), self.stats, self._started_engine,
            ThreadPoolExecutor(max(4, 2 * settings.jobs_running_max), thread_name_prefix="job-plan"),
            ThreadPoolExecutor(1, thread_name_prefix="job-journal"), settings.jobs_tasks_max,
        )  # fmt: skip
        self._active: dict[str, Active] = {}
        self._pulses: dict[str, asyncio.Event] = {}
        self._counts: dict[str, int] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._last_id_us = 0

    # --- life

    async def open(self) -> None:
        """Know what was under way, so that workers that still run are not told that their job has ended."""
        for record in await self._write(self._journal.active):
            self._add(record)
        await self._refresh_counts()

    def start(self) -> None:
        """Go on with what was under way, and look after what has ended."""
        for job_id in self._journal.to_discard():
            self._spawn(self._discard(job_id))
        self._spawn(self._housekeeping())
        self._schedule()

    async def stop(self) -> None:
        """Leave all where it is. Event streams end."""
        self._stopping = True
        for pulse in self._pulses.values():
            pulse.set()
        tasks = [active.task for active in self._active.values() if active.task is not None] + list(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._engine is not None:
            await self._engine.close()

    async def close(self) -> None:
        """After `stop`, when no request is at work any more."""
        self._examiner.close()
        ended = await asyncio.gather(
            end_threads(self._means.threads, "the plan of a job"), end_threads(self._means.writer, "the journal of jobs")
        )
        if all(ended):
            await in_time(self._journal.close, "the journal of jobs")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_ended)

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("looking after ended jobs failed: it is done again at the next start", exc_info=error)

    async def _write(self, call: Callable[..., T], *arguments: Any) -> T:
        return await self._means.write(call, *arguments)

    async def _started_engine(self) -> Engine:
        """The engine, begun with the first job that needs it."""
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
        """Accept a job (then it has a `state`), or give the plan of a dry run. Raises all that can be known to be wrong."""
        self._cluster.check_ready()
        found = await self._examiner.examine(body)
        if found.spec.spec.dry_run:
            return await self._examiner.plan(found)
        # To its end, once begun: a job that the journal has and this service does not know would wait for the next start.
        return await asyncio.shield(self._accept_in_turn(found, body))

    async def _accept_in_turn(self, found: Examined, body: bytes) -> dict[str, Any]:
        async with self._accepting:
            return await self._accept(found, body)

    async def _accept(self, found: Examined, body: bytes) -> dict[str, Any]:
        waiting = sum(active.task is None for active in self._active.values())
        if waiting >= self._settings.jobs_queued_max:
            raise Unavailable(f"{waiting} jobs are queued already", retry_after_s=RETRY_BUSY_S)
        self._check_no_rival(found.spec)
        spec = found.spec.spec
        bucket = await self._cluster.bucket_for_write(spec.output.bucket)
        new = NewJob(
            id=self._new_id(), operation=spec.operation, spec=body, label=spec.label, bucket=bucket.name, bucket_id=bucket.id,
            memory_bytes=self._settings.jobs_memory_bytes, program=__version__, warnings=found.warnings,
        )  # fmt: skip
        record = await self._write(self._journal.create, new, found.inputs)
        self._add(record, found.spec.pattern)
        await self._refresh_counts()
        self._schedule()
        return job_json(record)

    def _check_no_rival(self, spec: CheckedSpec) -> None:
        """Two jobs at a time never write the same names: what stayed would be some of each."""
        pattern, bucket = spec.pattern, spec.spec.output.bucket
        for job_id, active in self._active.items():
            if active.bucket == bucket and may_meet(pattern, active.pattern):
                raise Conflict(f"the job {job_id} is writing {active.pattern.text!r} in the same bucket")

    def _new_id(self) -> str:
        """In order of time, which is the order of listings; nobody can guess one."""
        self._last_id_us = max(self._last_id_us + 1, time.time_ns() // 1000)
        return f"{self._last_id_us:014x}{secrets.token_hex(4)}"

    def _add(self, record: JobRecord, pattern: OutputPattern | None = None) -> None:
        chosen = pattern or _pattern_of(self._journal.spec(record.id))
        runner = JobRunner(self._means, record, lambda: self._notify(record.id))
        self._active[record.id] = Active(record, chosen, runner)

    # --- running

    def _schedule(self) -> None:
        """Begin what may run; what ran before a restart comes first, since it was accepted first."""
        running = sum(active.task is not None for active in self._active.values())
        for active in self._active.values():
            if running >= self._settings.jobs_running_max or self._stopping:
                return
            if active.task is None:
                active.task = asyncio.create_task(self._run(active))
                running += 1

    async def _run(self, active: Active) -> None:
        runner, error = active.runner, None
        try:
            with suppress(JobFinished):  # it was cancelled while it was about to fail
                await runner.run()
        except asyncio.CancelledError:
            if self._stopping:
                raise
        except Exception:
            _log.exception("job %s: the journal did not take its end", runner.id)
            error = JobError("internal_error", "the journal of jobs failed; the log of the proxy has it under the job's id")
        finally:
            if not self._stopping:
                await asyncio.shield(self._ended(runner.id, error))

    async def _ended(self, job_id: str, error: JobError | None = None) -> None:
        """Let the next one run. Whatever the journal says, or fails to say, the job's place is free after this."""
        record = None
        try:
            record = await self._final(job_id, error)
        except Exception:
            _log.exception("job %s has ended, but the journal cannot tell how; the next start of the proxy looks at it", job_id)
        finally:
            self._active.pop(job_id, None)
            self._notify(job_id)
            self._schedule()
        if record is not None:
            self.stats.count_job(record)
            if record.discard:
                self._spawn(self._discard(job_id))
        self._spawn(self._forget())

    async def _final(self, job_id: str, error: JobError | None) -> JobRecord:
        """The record of a job that has ended: it says so by then, if need be when the journal's disk is well again. A job that
        publishes is left to the next start, since it goes only forward."""
        journal, write = self._journal, self._means.write_at_last
        record = await write(journal.get, job_id)
        if record.state == "publishing":
            raise RuntimeError("it has not published everything")
        if record.is_active:  # it was cancelled while the journal had no room to say so
            with suppress(JobFinished):
                if error is None:
                    await write(journal.cancel, job_id)
                else:
                    await write(journal.fail, job_id, error, record.progress, list(record.warnings))
            record = await write(journal.get, job_id)
        return record

    async def _discard(self, job_id: str) -> None:
        await self._means.staged.discard(job_id)
        await self._means.write_at_last(self._journal.discarded, job_id)

    async def _forget(self) -> None:
        while await self._write(self._journal.forget_details):
            pass
        await self._write(self._journal.expire, self._settings.jobs_keep_s, self._settings.jobs_keep_max)
        await self._refresh_counts()

    async def _housekeeping(self) -> None:
        """At the start and every hour: jobs that are old."""
        while True:
            try:
                await self._forget()
            except Exception:
                _log.exception("looking after ended jobs failed; it goes on")
            await asyncio.sleep(HOUSEKEEPING_S)

    async def sweep(self, _leadership: Lease) -> None:
        """A duty of the coordinator, which alone runs jobs: what is staged for none of them is of nobody. After `open`."""
        await self._means.staged.keep_swept(self._active.__contains__)

    async def cancel(self, job_id: str) -> dict[str, Any]:
        """End a job for good; one that has failed or was cancelled before stays as it is. JobFinished once it is publishing."""
        active = self._active.get(job_id)
        if active is None:
            record = await self._write(self._journal.get, job_id)
            if record.state == "succeeded":
                raise JobFinished("the job has succeeded")
            return job_json(record)
        if active.runner.is_committing:
            raise JobFinished("the job is publishing its outputs; it will succeed")
        if active.task is not None:
            active.task.cancel()  # first, so that it cannot reach its commit point meanwhile
        try:
            record = await self._write(self._journal.cancel, job_id)
        except JobFinished:
            record = await self._write(self._journal.get, job_id)
        if active.task is None:
            await self._ended(job_id)
        else:
            await asyncio.wait([active.task])
        return job_json(record, active.runner.progress)

    # --- looking on

    def is_running(self, job_id: str) -> bool:
        """Whether tasks of this job are of any use."""
        active = self._active.get(job_id)
        return active is not None and not active.runner.is_committing and not _is_cancelled(active)

    async def show(self, job_id: str) -> dict[str, Any]:
        """JobNotFound."""
        active = self._active.get(job_id)
        if active is not None:
            return _live_json(active.runner)
        return job_json(await self._write(self._journal.get, job_id))

    async def page(self, states: Sequence[JobState], before: str | None, limit: int) -> dict[str, Any]:
        """Newest first, with the token of the following page."""
        records = await self._write(self._journal.page, states, before, limit + 1)
        shown = []
        for record in records[:limit]:
            active = self._active.get(record.id)
            if active is None or active.runner.record.state != record.state:
                shown.append(job_json(record))
            else:
                shown.append(_live_json(active.runner))
        return {"jobs": shown, "next_token": records[limit - 1].id if len(records) > limit else None}

    def _notify(self, job_id: str) -> None:
        pulse = self._pulses.pop(job_id, None)
        if pulse is not None:
            pulse.set()

    async def watch(self, job_id: str) -> AsyncIterator[dict[str, Any] | None]:
        """The job now and whenever it changes, to its end; None when nothing has happened for a while."""
        while True:
            pulse = self._pulses.setdefault(job_id, asyncio.Event())
            shown = await self.show(job_id)
            yield shown
            if shown["finished"] is not None:
                self._notify(job_id)
                return
            while not self._stopping:
                try:
                    await asyncio.wait_for(pulse.wait(), HEARTBEAT_S)
                    break
                except TimeoutError:
                    yield None
            if self._stopping:
                raise AnswerCut("this proxy ends")
            await asyncio.sleep(EVENT_INTERVAL_S)


def _pattern_of(spec: bytes) -> OutputPattern:
    """Of a job that was accepted before this start. Another version, or a library that has gone, may refuse it by now: that
    is for the job to fail with."""
    try:
        return parse_spec(spec).pattern
    except DfcError as error:
        _log.warning("a job that was accepted before is refused now: %s", error.message)
        return OutputPattern(msgspec.json.decode(spec, type=_Accepted).output.pattern)


class _Accepted(msgspec.Struct):
    """What any version has in a spec."""

    output: OutputSpec


def _live_json(runner: JobRunner) -> dict[str, Any]:
    """A job under way: what it knows itself is newer than the journal."""
    return {**job_json(runner.record, runner.progress, runner.eta_s), "warnings": runner.warnings}


def _is_cancelled(active: Active) -> bool:
    return active.task is not None and (active.task.done() or active.task.cancelling() > 0)
