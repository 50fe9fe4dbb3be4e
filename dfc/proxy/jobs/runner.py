"""Run one job: its stages, its commit, its outputs and its lineage."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from dfc import __version__
from dfc.engine.base import EngineLost, TaskFailed
from dfc.errors import BucketDeleting, BucketNotFound
from dfc.http.shutdown import end
from dfc.jobs.journal import Journal, TaskEntry
from dfc.jobs.operations import check_enabled
from dfc.jobs.recording import TaskSeen
from dfc.jobs.records import JobRecord, OutputSummary, StageTotals, digest_in_order, total_progress
from dfc.jobs.request import parse_spec
from dfc.jobs.spec import CheckedSpec
from dfc.jobs.tasks import InputShard, Results, Stage, Task, TaskDraft, TaskResult
from dfc.limits import JOB_TASKS_MAX, JOB_WARNING_CHARS_MAX, JOB_WARNINGS_MAX
from dfc.listing.pages import rfc3339
from dfc.names import HIDDEN_PREFIX
from dfc.placement.map import NodeEntry
from dfc.placement.mapped import decider_of
from dfc.proxy.jobs.context import RETRIES, JobContext, JobFailure, JobInterrupted, StagedObject, plan_stages
from dfc.proxy.jobs.inputs import all_or_none, check_free, existing_outputs

# --- Write the lineage object of a job, `.dfc/jobs/ID.json`: its spec, what it read and what it wrote, piece by piece.

GROUP: Final = 512  # entries per piece
_encode: Final = msgspec.json.encode


def lineage_name(job_id: str) -> str:
    return f"{HIDDEN_PREFIX}jobs/{job_id}.json"


def lineage_pieces(
    job: JobRecord, journal: Journal, inputs: Sequence[Sequence[InputShard]], summary: OutputSummary, program: str
) -> Iterator[bytes]:
    """Yield the JSON of a lineage in pieces. Blocking. `inputs` has one list for each input of the job."""
    started = None if job.started_us is None else rfc3339(job.started_us)
    head: dict[str, Any] = {
        "id": job.id, "operation": job.operation, "label": job.label, "program": f"dfc {program}",
        "created": rfc3339(job.created_us), "started": started, "spec": msgspec.Raw(journal.spec(job.id)),
        "output": summary,
    }  # fmt: skip
    yield _encode(head)[:-1] + b',\n"inputs": ['
    for number, shards in enumerate(inputs):
        yield b",\n[" if number else b"\n["
        yield from _entries(
            {name: getattr(shard, name) for name in ("bucket", "name", "version", "checksum", "size", "samples")}
            for shard in shards
        )
        yield b"]"
    yield b'],\n"outputs": ['
    yield from _entries(
        {"name": o.name, "checksum": o.checksum, "size": o.size, "samples": o.samples} for o in journal.outputs(job.id)
    )
    yield b"]}\n"


def _entries(values: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    rest, first = iter(values), True
    while group := list(islice(rest, GROUP)):
        yield (b"\n" if first else b",\n") + b",\n".join(map(_encode, group))
        first = False


# --- Prepare a job's commit after its last task: check that no object is in the way and all outputs are staged as they were
# written, and stage the lineage.


def is_bucket_gone(context: JobContext, record: JobRecord) -> bool:
    """Whether the job's output bucket was deleted since the job was accepted, even if it was created again."""
    bucket = context.cluster.map.bucket(record.bucket)
    return bucket is None or bucket.id != record.bucket_id or bucket.state == "deleting"


class Commit:
    """The commit of one job."""

    def __init__(
        self, context: JobContext, record: JobRecord, spec: CheckedSpec, inputs: Sequence[Sequence[InputShard]]
    ) -> None:
        self._context = context
        self._record = record
        self._spec = spec
        self._inputs = inputs

    async def prepare(self) -> tuple[OutputSummary, str]:
        """Check everything that could keep the outputs from being published; return a summary of them and a warning, or "".

        Raises BucketDeleting, OutputExists, JobFailure; Unavailable when a target stays down.
        """
        context, record = self._context, self._record
        if is_bucket_gone(context, record):
            raise self._bucket_gone()
        warning = ""
        if self._spec.spec.overwrite:
            warning = await context.retried(self._leftovers)
        else:
            await context.retried(lambda: check_free(context.cluster, record.bucket, self._spec.pattern))
        summary = await context.plan(self._summarise)
        await context.retried(lambda: self._stage_lineage(summary))
        found, versions = 0, list[str]()
        nodes = context.cluster.map.holders()
        for node, prepared in zip(nodes, await self._prepared(nodes), strict=True):
            found += await context.plan(self._compare, node.id, prepared)
            versions += [each.version for each in prepared]
        if found != summary.shards:
            raise JobFailure("output_lost", f"{summary.shards} outputs were written, but {found} are staged")
        return msgspec.structs.replace(summary, oldest_version=min(versions)), warning

    async def _prepared(self, nodes: Sequence[NodeEntry]) -> list[list[StagedObject]]:
        """Have all targets prepare at the same time, since they send each other copies; what each has. Raises the first error,
        and nothing goes on then."""
        context, job = self._context, self._record.id
        return await all_or_none(context.retried(partial(context.staged.prepare, job, node)) for node in nodes)

    def _bucket_gone(self) -> BucketDeleting:
        return BucketDeleting(f"the bucket {self._record.bucket!r} was deleted while the job was running")

    async def _leftovers(self) -> str:
        context, first, count = self._context, "", 0
        async for name in existing_outputs(context.cluster, self._record.bucket, self._spec.pattern):
            if not await context.plan(context.journal.writes, self._record.id, name):
                first, count = first or name, count + 1
        more = f" and {count - 1} more" if count > 1 else ""
        return f"existing objects that match the output pattern were left unchanged: {first!r}{more}" if count else ""

    def _summarise(self) -> OutputSummary:
        journal, job_id = self._context.journal, self._record.id
        return OutputSummary(*journal.output_counts(job_id), digest_in_order(journal.outputs(job_id)))

    async def _stage_lineage(self, summary: OutputSummary) -> None:
        record = self._record
        pieces = lineage_pieces(record, self._context.journal, self._inputs, summary, __version__)
        await self._context.staged.put(record.id, record.bucket, lineage_name(record.id), self._from_thread(pieces))

    async def _from_thread(self, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        while (piece := await self._context.plan(next, pieces, None)) is not None:
            yield piece

    def _compare(self, node_id: str, prepared: Sequence[StagedObject]) -> int:
        """Check that a target's staged outputs are as their tasks wrote them; return their number."""
        cluster_map = self._context.cluster.map
        bucket = cluster_map.bucket(self._record.bucket)
        if bucket is None:
            raise self._bucket_gone()
        lineage = lineage_name(self._record.id)
        found = [each for each in prepared if each.object != lineage]
        known = self._context.journal.find_outputs(self._record.id, [each.object for each in found])
        for each in found:
            record = known.get(each.object)
            if record is None:
                raise JobFailure("internal_error", f"{each.object!r} is staged, but no known task wrote it")
            if (record.size, record.checksum) != (each.size, each.checksum):
                raise JobFailure("output_lost", f"the staged bytes of {each.object!r} differ from what its task wrote")
            # With copies, whoever has an output offers it to the primary.
            decider = None if bucket.has_several else decider_of(cluster_map, bucket, each.object)
            if not bucket.has_several and (decider is None or decider.id != node_id):
                raise JobFailure("map_changed", "targets joined or left while the job was running; submit it again")
        return len(known)


# --- Run one job: its stages, a window of tasks at a time, up to its commit point; after that, publish its outputs.
#
# After a restart of the proxy a runner continues where the journal ends: finished tasks are not run again.

_log: Final = logging.getLogger("dfc.proxy.jobs")
T = TypeVar("T")
WINDOW_PER_WORKER: Final = 4
DRAFTS: Final = 64  # tasks taken from a plan per call in a thread
NAMES: Final = 500  # of outputs that targets are asked about at a time
NAMES_SAID: Final = 10  # of outputs that are lost
DOWN_LOOK_S: Final = 2.0  # until outputs are looked for again that a target may have which is down
UNWRITTEN_MAX: Final = 4096  # results that are waiting for the journal


class JobRunner:
    """Runs one job.

    `record`, `progress` and `eta_s` are for those who watch the job; `notify` is called when they change. `summary` is set when
    the work is done."""

    def __init__(self, context: JobContext, record: JobRecord, notify: Callable[[], None]) -> None:
        self._context = context
        self.id = record.id
        self.record = record
        self._notify = notify
        self.summary: OutputSummary | None = None
        self.progress = record.progress
        self._totals: dict[int, StageTotals] = {}
        self._task_count: int | None = None
        self._unwritten: list[TaskEntry] = []
        self._writing = asyncio.Lock()
        self._warnings = list(record.warnings)
        self._warnings_left_out = 0
        self._begun_s = time.monotonic()
        self._done_before = 0
        self._recorder = context.recordings.of(record)

    @property
    def eta_s(self) -> float | None:
        """The estimated seconds until the last task ends, at the pace of this run; None while it is unknown."""
        done, total = self.progress.done - self._done_before, self.progress.total
        if self.record.state != "running" or not done or total is None:
            return None
        return (total - self.progress.done) * (time.monotonic() - self._begun_s) / done

    def take(self, record: JobRecord) -> None:
        """Take over the job's new record from the journal."""
        self.record = record
        self._notify()

    # --- stages

    async def work(self) -> None:
        """Run the job up to its commit point, where nothing is in the way of publishing. DfcError: the job fails with it."""
        context = self._context
        if self.record.program != __version__:
            raise JobInterrupted(f"DFC was updated from {self.record.program} to {__version__}; submit the job again")
        self._recorder.begin(self.record.started_us)
        self._recorder.say("info", f"{self.record.operation} runs")
        spec, inputs = await context.plan(self._load)
        stages, _ = await context.plan(plan_stages, spec, inputs, self.record.memory_bytes, context.cluster)
        await context.plan(self._restore)
        self._recorder.totals = self._totals
        counts = [stage.count if isinstance(stage.count, int) else None for stage in stages]
        self._recorder.plan(zip((stage.name for stage in stages), counts, strict=True))
        self._begun_s, self._done_before = time.monotonic(), sum(total.tasks for total in self._totals.values())
        results: dict[str, Sequence[TaskResult]] = {}
        await self._context.wait_for_targets(self._recorder.wait_for)
        for at, stage in enumerate(stages):
            counts[at] = await context.plan(stage.count_after, results)
            self._set_task_count(counts)
            self._recorder.begin_stage(at, counts[at])
            if at not in self._totals:
                context.cluster.check_free(stage.temporary_bytes, f"the temporary objects of {stage.name!r}")
            counts[at] = await self._run_stage(at, stage, counts[at], results, spec)
            self._recorder.end_stage(at, counts[at])
            results[stage.name] = await context.plan(context.journal.results, self.id, at)
        self._set_task_count(counts)
        self._recorder.say("info", "all tasks have ended; the outputs are checked")
        self.summary, warning = await Commit(context, self.record, spec, inputs).prepare()
        if warning:
            self._warn(warning)
            self._recorder.say("warning", warning)

    def _load(self) -> tuple[CheckedSpec, tuple[Sequence[Any], ...]]:
        spec = parse_spec(self._context.journal.spec(self.id))
        check_enabled(spec.spec.operation, spec.options, self._context.settings)  # that may have changed, or be another proxy's
        return spec, self._context.journal.inputs(self.id)

    def _restore(self) -> None:
        self._totals = self._context.journal.stage_totals(self.id)
        if self._totals:
            for text in self._context.journal.task_warnings(self.id):
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
        """The warnings so far."""
        more = self._warnings_left_out
        return [*self._warnings, f"and {more} more warnings"] if more else list(self._warnings)

    async def _run_stage(self, at: int, stage: Stage, count: int | None, results: Results, spec: CheckedSpec) -> int:
        """Run the tasks of a stage that are not done yet; return how many tasks it has in all."""
        drafts = _Undone(self._context.journal.done_numbers(self.id, at), stage, results)
        running: set[asyncio.Task[TaskEntry]] = set()
        try:
            while batch := await self._context.plan(drafts.take):
                for number, draft in batch:
                    while len(running) >= await self._window():
                        running = await self._reap(running)
                    running.add(asyncio.create_task(self._run_task(at, f"{spec.spec.operation}.{stage.name}", number, draft)))
            while running:
                running = await self._reap(running)
        finally:
            await end(*running)
        await self._write()
        if count not in (None, drafts.count) or self._totals.get(at, StageTotals()).tasks != drafts.count:
            raise RuntimeError(
                f"stage {stage.name} of job {self.id}: {drafts.count} tasks, which is not what was planned or done"
            )
        return drafts.count

    async def _window(self) -> int:
        engine = await self._context.engine()
        return max(1, min(WINDOW_PER_WORKER * engine.slots, self._context.tasks_max))

    async def _reap(self, running: set[asyncio.Task[TaskEntry]]) -> set[asyncio.Task[TaskEntry]]:
        """Wait for at least one task and take the results; raises the error of a task that failed."""
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
        self._context.stats.count_task(self.record.operation, result)
        for text in result.warnings:
            self._warn(text)
            self._recorder.say("warning", text)

    async def _write(self) -> None:
        """Write the collected results to the journal; many small tasks share a transaction."""
        async with self._writing:
            entries, self._unwritten = self._unwritten, []
            if entries:
                await self._context.write(self._context.journal.record, self.id, entries)
                await self._context.logs.results(self.id, entries)

    # --- a task

    async def _run_task(self, stage: int, function: str, number: int, draft: TaskDraft) -> TaskEntry:
        seen = self._recorder.give(stage, number, draft.label, draft.near)
        try:
            for attempt in range(RETRIES + 1):
                try:
                    return stage, number, await self._tried(seen, function, draft)
                except (TaskFailed, EngineLost) as error:
                    final = isinstance(error, TaskFailed) and not error.retryable
                    said = error.message if error.message.startswith(draft.label) else f"{draft.label}: {error.message}"
                    if final or attempt == RETRIES:
                        self._recorder.fail(seen, error.code)
                        tries = "" if final else f" (after {RETRIES + 1} tries)"
                        raise JobFailure(error.code, said + tries) from None
                    _log.warning("job %s, %s: %s; trying again", self.id, draft.label, error.message)
                    self._recorder.retry(seen, error.code, said, RETRIES + 1)
                self._context.stats.retries += 1
                await self._context.wait_before_retry(attempt, self._recorder.wait_for)
        finally:
            self._recorder.withdraw(seen)
        raise AssertionError("unreachable")

    async def _tried(self, seen: TaskSeen, function: str, draft: TaskDraft) -> TaskResult:
        """Run a task once. TaskFailed, EngineLost."""
        record, version = self.record, self._context.cluster.map.version
        task = Task(self.id, function, seen.number, draft.label, draft.payload, record.bucket, record.bucket_id, version)
        data = msgspec.msgpack.encode(task)
        self._recorder.attempt(seen)
        engine = await self._context.engine()
        result = msgspec.msgpack.decode(await engine.run(data, draft.near), type=TaskResult)
        self._recorder.finish(seen, result)
        return result if result.run is None else msgspec.structs.replace(result, run=None)

    # --- the end

    async def publish(self) -> None:
        """Publish the staged outputs; returns when all are on every disk that must have them.

        BucketDeleting when their bucket is gone; JobFailure when outputs were lost with a disk."""
        self._recorder.say("info", "publishing the outputs")
        await self._publish()
        lost, is_last = await self._missing(self._names()), False
        while lost and not is_last:
            # Where they were may have been on its way out, or is away.
            is_last = not self._context.staged.has_down()
            if not is_last:
                await asyncio.sleep(DOWN_LOOK_S)
            await self._publish()
            lost = await self._missing(_chunks(lost))
        if lost:
            more = f" and {len(lost) - NAMES_SAID} more" if len(lost) > NAMES_SAID else ""
            names = ", ".join(map(repr, lost[:NAMES_SAID]))
            raise JobFailure("output_lost", f"outputs were lost with a disk before others had them: {names}{more}")

    async def _publish(self) -> None:
        context = self._context
        if not await context.staged.publish(self.id, self.record.bucket, lambda: is_bucket_gone(context, self.record)):
            raise self._bucket_gone()

    def _bucket_gone(self) -> BucketDeleting:
        return BucketDeleting(f"the bucket {self.record.bucket!r} was deleted while the outputs were published")

    def _names(self) -> Iterator[list[str]]:
        """The names of all outputs, some at a time; blocking."""
        yield [lineage_name(self.id)]
        yield from _chunks(each.name for each in self._context.journal.outputs(self.id))

    async def _missing(self, chunks: Iterator[list[str]]) -> list[str]:
        """Those of the names that no object, or delete, of this job or newer has."""
        context, missing = self._context, list[str]()
        version = self.record.output.oldest_version if self.record.output else ""
        while version and (names := await context.plan(next, chunks, None)):
            if is_bucket_gone(context, self.record):
                raise self._bucket_gone()
            try:
                missing += await context.staged.missing(self.id, self.record.bucket, names, version)
            except BucketNotFound:
                raise self._bucket_gone() from None
        return missing


def _chunks(names: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(names)
    while some := list(islice(rest, NAMES)):
        yield some


class _Undone:
    """Iterates over the tasks of a stage that have no result yet, in a thread; `count` is the number of all tasks so far."""

    def __init__(self, done: Iterator[int], stage: Stage, results: Results) -> None:
        self.count = 0
        self._drafts = self._iterate(done, stage, results)

    def take(self) -> list[tuple[int, TaskDraft]]:
        """Return the next few; none at the end."""
        return list(islice(self._drafts, DRAFTS))

    def _iterate(self, done: Iterator[int], stage: Stage, results: Results) -> Iterator[tuple[int, TaskDraft]]:
        following = next(done, -1)
        for number, draft in enumerate(stage.tasks(results)):
            self.count += 1
            if self.count > JOB_TASKS_MAX:
                raise JobFailure("too_many_tasks", f"a stage of a job may have at most {JOB_TASKS_MAX} tasks")
            if number == following:
                following = next(done, -1)
            else:
                yield number, draft
