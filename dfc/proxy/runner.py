"""One job's life after it was accepted: its stages, a window of tasks at a time, then the commit point, then publishing.

A runner that is begun again after a restart of the proxy goes on where the journal ends: finished tasks are not run again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from dfc import __version__
from dfc.engine.base import Engine, EngineLost, TaskFailed
from dfc.errors import BucketDeleting, DfcError
from dfc.jobs.digest import digest_in_order
from dfc.jobs.journal import Journal, TaskEntry
from dfc.jobs.operations import operation
from dfc.jobs.records import JobError, JobRecord, OutputSummary, StageTotals, total_progress
from dfc.jobs.spec import CheckedSpec, parse_spec
from dfc.jobs.tasks import JobInput, Results, Stage, Task, TaskDraft, TaskResult
from dfc.limits import JOB_TASKS_MAX, JOB_WARNING_CHARS_MAX, JOB_WARNINGS_MAX
from dfc.proxy.cluster import Cluster
from dfc.proxy.jobinputs import check_free, existing_outputs
from dfc.proxy.jobmetrics import JobStats
from dfc.proxy.lineage import lineage_name, lineage_pieces
from dfc.proxy.staged import Staged, StagedObject

_log: Final = logging.getLogger("dfc.proxy.jobs")
T = TypeVar("T")
RETRIES: Final = 3
RETRY_DELAYS_S: Final = (0.5, 2.0, 8.0)  # together longer than a target needs to be back after a crash
WINDOW_PER_WORKER: Final = 4
DRAFTS: Final = 64  # taken from a plan on one trip to a thread
UNWRITTEN_MAX: Final = 4096  # results that wait for the journal
TARGETS_WAIT_S: Final = 120.0  # a job waits so long for a target that is down, then it fails by itself
TARGETS_POLL_S: Final = 0.2
JOURNAL_RETRY_S: Final = 5.0


class JobFailed(DfcError):
    """What ends a job, for its record."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]


class JobInterrupted(DfcError):
    """The job began under another version of DFC, which may have planned other tasks."""

    code = "job_interrupted"


@dataclass(frozen=True)
class Means:
    """What all runners share. `threads` are for plans and long reads of the journal, `writer` is the one that changes it."""

    cluster: Cluster
    journal: Journal
    staged: Staged
    stats: JobStats
    engine: Callable[[], Awaitable[Engine]]
    threads: ThreadPoolExecutor
    writer: ThreadPoolExecutor
    tasks_max: int

    async def plan(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.threads, call, *arguments)

    async def write(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.writer, lambda: call(*arguments))

    async def write_at_last(self, call: Callable[..., T], *arguments: Any) -> T:
        """A change without which a job would be neither here nor there: tried until there is room for it again."""
        while True:
            try:
                return await self.write(call, *arguments)
            except sqlite3.OperationalError as error:
                _log.error("the journal of jobs cannot be written: %s; trying again", error)
            await asyncio.sleep(JOURNAL_RETRY_S)


def plan_stages(
    spec: CheckedSpec, inputs: tuple[Sequence[Any], ...], memory_bytes: int, cluster: Cluster
) -> tuple[Sequence[Stage], JobInput]:
    """What an operation makes of a job. Pure but for the map, from which `near` follows and nothing that is written."""
    bucket = spec.spec.output.bucket

    def node_of(name: str) -> str | None:
        owner = cluster.map.owner(bucket, name)
        return None if owner is None else owner.node.id

    prefixes = tuple(source.prefix for source in spec.spec.inputs)
    job = JobInput(spec.options, inputs, bucket, spec.pattern, memory_bytes, node_of, prefixes)
    return operation(spec.spec.operation).plan(job), job


class JobRunner:
    """`record`, `progress` and `eta_s` are for those who look on; `notify` is called when they change."""

    def __init__(self, means: Means, record: JobRecord, notify: Callable[[], None]) -> None:
        self._means = means
        self.record = record
        self._notify = notify
        self.is_committing = record.state == "publishing"
        self.progress = record.progress
        self._totals: dict[int, StageTotals] = {}
        self._task_count: int | None = None
        self._unwritten: list[TaskEntry] = []
        self._writing = asyncio.Lock()
        self._warnings = list(record.warnings)
        self._warnings_left_out = 0
        self._begun_s = time.monotonic()
        self._done_before = 0

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def eta_s(self) -> float | None:
        """Seconds until the last task ends at the pace of this run; None while there is no pace."""
        done, total = self.progress.done - self._done_before, self.progress.total
        if self.record.state != "running" or not done or total is None:
            return None
        return (total - self.progress.done) * (time.monotonic() - self._begun_s) / done

    async def run(self) -> None:
        """To the end. What stops the job ends in its record; only cancellation of the coroutine comes out."""
        try:
            if self.record.state == "queued":
                self._take(await self._means.write(self._means.journal.start, self.id))
            if self.record.state == "running":
                await self._work()
            await self._publish()
        except DfcError as error:
            await self._fail(JobError(error.code, error.message))
        except Exception:
            _log.exception("job %s failed by a mistake of ours", self.id)
            await self._fail(JobError("internal_error", "an internal error; the log of the proxy has it under the job's id"))

    def _take(self, record: JobRecord) -> None:
        self.record = record
        self._notify()

    async def _fail(self, error: JobError) -> None:
        _log.warning("job %s failed: %s: %s", self.id, error.code, error.message)
        fail = self._means.journal.fail
        self._take(await self._means.write_at_last(fail, self.id, error, self.progress, self.warnings))

    # --- stages

    async def _work(self) -> None:
        means = self._means
        if self.record.program != __version__:
            raise JobInterrupted(f"DFC was changed from {self.record.program} to {__version__} meanwhile; submit the job again")
        spec, inputs = await means.plan(self._load)
        stages, _ = await means.plan(plan_stages, spec, inputs, self.record.memory_bytes, means.cluster)
        await means.plan(self._restore)
        counts = [stage.count if isinstance(stage.count, int) else None for stage in stages]
        self._begun_s, self._done_before = time.monotonic(), sum(total.tasks for total in self._totals.values())
        results: dict[str, Sequence[TaskResult]] = {}
        await self._wait_for_targets()
        for at, stage in enumerate(stages):
            counts[at] = await means.plan(stage.count_after, results)
            self._set_task_count(counts)
            counts[at] = await self._run_stage(at, stage, counts[at], results, spec)
            results[stage.name] = await means.plan(means.journal.results, self.id, at)
        self._set_task_count(counts)
        await self._commit(spec, inputs)

    def _load(self) -> tuple[CheckedSpec, tuple[Sequence[Any], ...]]:
        return parse_spec(self._means.journal.spec(self.id)), self._means.journal.inputs(self.id)

    def _restore(self) -> None:
        self._totals = self._means.journal.stage_totals(self.id)
        if self._totals:
            for text in self._means.journal.task_warnings(self.id):
                self._warn(text)

    def _set_task_count(self, counts: Sequence[int | None]) -> None:
        known = [count for count in counts if count is not None]
        self._task_count = sum(known) if len(known) == len(counts) else None
        self.progress = total_progress(self._totals, self._task_count)
        self._notify()

    def _warn(self, text: str) -> None:
        if len(self._warnings) < JOB_WARNINGS_MAX:
            self._warnings.append(text[:JOB_WARNING_CHARS_MAX])
        else:
            self._warnings_left_out += 1

    @property
    def warnings(self) -> list[str]:
        """What there has been to say so far."""
        more = self._warnings_left_out
        return [*self._warnings, f"and {more} more warnings"] if more else list(self._warnings)

    async def _run_stage(self, at: int, stage: Stage, count: int | None, results: Results, spec: CheckedSpec) -> int:
        """All tasks of a stage that are not done yet; how many it has."""
        drafts = _Undone(self._means.journal.done_numbers(self.id, at), stage, results)
        running: set[asyncio.Task[TaskEntry]] = set()
        try:
            while batch := await self._means.plan(drafts.take):
                for number, draft in batch:
                    while len(running) >= await self._window():
                        running = await self._reap(running)
                    running.add(asyncio.create_task(self._run_task(at, f"{spec.spec.operation}.{stage.name}", number, draft)))
            while running:
                running = await self._reap(running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        await self._write()
        if count not in (None, drafts.count) or self._totals.get(at, StageTotals()).tasks != drafts.count:
            raise RuntimeError(f"stage {stage.name} of job {self.id}: {drafts.count} tasks, not what it said or what was done")
        return drafts.count

    async def _window(self) -> int:
        engine = await self._means.engine()
        return max(1, min(WINDOW_PER_WORKER * engine.slots, self._means.tasks_max))

    async def _reap(self, running: set[asyncio.Task[TaskEntry]]) -> set[asyncio.Task[TaskEntry]]:
        """Take at least one result; raises what a task has failed with."""
        done, left = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            entry = task.result()
            self._unwritten.append(entry)
            self._count(entry[0], entry[2])
        self._notify()
        if not self._writing.locked() or len(self._unwritten) > UNWRITTEN_MAX:
            await self._write()
        return left

    def _count(self, stage: int, result: TaskResult) -> None:
        was = self._totals.get(stage, StageTotals())
        self._totals[stage] = StageTotals(
            was.tasks + 1, was.samples + result.samples, was.bytes_in + result.bytes_in, was.bytes_out + result.bytes_out
        )
        self.progress = total_progress(self._totals, self._task_count)
        self._means.stats.count_task(self.record.operation, result)
        for text in result.warnings:
            self._warn(text)

    async def _write(self) -> None:
        """Give the journal what has come in; many small tasks share a transaction."""
        async with self._writing:
            entries, self._unwritten = self._unwritten, []
            if entries:
                await self._means.write(self._means.journal.record, self.id, entries)

    # --- a task

    async def _run_task(self, stage: int, function: str, number: int, draft: TaskDraft) -> TaskEntry:
        task = Task(self.id, function, number, draft.label, draft.payload, self.record.bucket)
        data = msgspec.msgpack.encode(task)
        for attempt in range(RETRIES + 1):
            try:
                engine = await self._means.engine()
                answer = await engine.run(data, draft.near)
                return stage, number, msgspec.msgpack.decode(answer, type=TaskResult)
            except (TaskFailed, EngineLost) as error:
                final = isinstance(error, TaskFailed) and not error.retryable
                if final or attempt == RETRIES:
                    tries = "" if final else f" ({RETRIES + 1} tries)"
                    raise JobFailed(error.code, _said_of(draft.label, error.message) + tries) from None
                _log.warning("job %s, %s: %s; trying again", self.id, draft.label, error.message)
            self._means.stats.retries += 1
            await asyncio.sleep(RETRY_DELAYS_S[attempt] * (0.75 + random.random() / 2))
            await self._wait_for_targets()
        raise AssertionError("unreachable")

    async def _wait_for_targets(self) -> None:
        """Tasks cannot read what a target that is down holds; it is as a rule back in seconds."""
        deadline = time.monotonic() + TARGETS_WAIT_S
        while time.monotonic() < deadline:
            targets = self._means.cluster.map.targets()
            if self._means.cluster.is_ready() and all(node.state == "up" for node in targets):
                return
            await asyncio.sleep(TARGETS_POLL_S)

    # --- the end

    async def _commit(self, spec: CheckedSpec, inputs: Sequence[Sequence[Any]]) -> None:
        means = self._means
        if self._is_bucket_gone():
            raise BucketDeleting(f"the bucket {self.record.bucket!r} was deleted while the job ran")
        if spec.spec.overwrite:
            await self._warn_of_leftovers(spec)
        else:
            await check_free(means.cluster, self.record.bucket, spec.pattern)
        summary: OutputSummary = await means.plan(self._summarise)
        pieces = lineage_pieces(self.record, means.journal, inputs, summary, __version__)
        await means.staged.put(self.id, self.record.bucket, lineage_name(self.id), _from_thread(means, pieces))
        await self._check_staged()
        self.is_committing = True
        self._take(await means.write(means.journal.commit, self.id, summary, self.progress, self.warnings))

    async def _check_staged(self) -> None:
        """Every output lies on its target, whole and as its task has written it: publishing cannot fail for its sake."""
        found = 0
        for node in self._means.cluster.map.targets():
            for attempt in range(RETRIES + 1):
                try:
                    prepared = await self._means.staged.prepare(self.id, node)
                    break
                except DfcError as error:
                    if attempt == RETRIES or error.status != 503:
                        raise
                await asyncio.sleep(RETRY_DELAYS_S[attempt])
                await self._wait_for_targets()
            found += await self._means.plan(self._compare, prepared)
        wanted, _ = await self._means.plan(self._means.journal.output_counts, self.id)
        if found != wanted:
            raise JobFailed("output_lost", f"{wanted} outputs were written, {found} of them are staged")

    def _compare(self, prepared: Sequence[StagedObject]) -> int:
        """How many of the objects are outputs that the journal knows; JobFailed when one is another than it should be."""
        names = [each.object for each in prepared if each.object != lineage_name(self.id)]
        known = self._means.journal.find_outputs(self.id, names)
        for each in prepared:
            record = known.get(each.object)
            if record is None and each.object != lineage_name(self.id):
                raise JobFailed("internal_error", f"{each.object!r} was written by no task that is known")
            if record is not None and (record.size, record.checksum) != (each.size, each.checksum):
                raise JobFailed("output_lost", f"{each.object!r} is not staged as it was written")
        return len(known)

    async def _warn_of_leftovers(self, spec: CheckedSpec) -> None:
        means, first, count = self._means, "", 0
        async for name in existing_outputs(means.cluster, self.record.bucket, spec.pattern):
            if not await means.plan(means.journal.writes, self.id, name):
                first, count = first or name, count + 1
        if count:
            more = f" and {count - 1} more" if count > 1 else ""
            self._warn(f"older objects that match the output pattern are left as they were: {first!r}{more}")

    def _summarise(self) -> OutputSummary:
        objects, samples = self._means.journal.output_counts(self.id)
        return OutputSummary(objects, samples, digest_in_order(self._means.journal.outputs(self.id)))

    def _is_bucket_gone(self) -> bool:
        bucket = self._means.cluster.map.bucket(self.record.bucket)
        return bucket is None or bucket.id != self.record.bucket_id or bucket.state != "active"

    async def _publish(self) -> None:
        means = self._means
        if not await means.staged.publish(self.id, self._is_bucket_gone):
            raise BucketDeleting(f"the bucket {self.record.bucket!r} was deleted while its new objects were published")
        self._take(await means.write_at_last(means.journal.succeed, self.id))


class _Undone:
    """The drafts of a stage that have no result yet, taken in a thread; `count` is how many there were in all."""

    def __init__(self, done: Iterator[int], stage: Stage, results: Results) -> None:
        self.count = 0
        self._drafts = self._iterate(done, stage, results)

    def take(self) -> list[tuple[int, TaskDraft]]:
        """Some of them; none at the end."""
        return list(islice(self._drafts, DRAFTS))

    def _iterate(self, done: Iterator[int], stage: Stage, results: Results) -> Iterator[tuple[int, TaskDraft]]:
        following = next(done, -1)
        for number, draft in enumerate(stage.tasks(results)):
            self.count += 1
            if self.count > JOB_TASKS_MAX:
                raise JobFailed("too_many_tasks", f"a stage of a job has at most {JOB_TASKS_MAX} tasks")
            if number == following:
                following = next(done, -1)
            else:
                yield number, draft


def _said_of(label: str, message: str) -> str:
    return message if message.startswith(label) else f"{label}: {message}"


async def _from_thread(means: Means, pieces: Iterator[bytes]) -> Any:
    while (piece := await means.plan(next, pieces, None)) is not None:
        yield piece
