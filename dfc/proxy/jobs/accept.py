"""Accept a submitted job: examine it without storing anything, then take it in turn and write it down."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from dfc import __version__
from dfc.config import Settings
from dfc.errors import Unavailable
from dfc.jobs.operations import check_enabled
from dfc.jobs.records import JobRecord, NewJob, job_view
from dfc.jobs.request import parse_spec
from dfc.jobs.spec import CheckedSpec
from dfc.jobs.tasks import InputShard, Stage
from dfc.proxy.cluster import Cluster
from dfc.proxy.coordinator import Lead
from dfc.proxy.jobs.context import JobContext, plan_stages
from dfc.proxy.jobs.inputs import InputResolver, check_apart, check_free, input_warnings
from dfc.proxy.jobs.log import LogRefused
from dfc.proxy.jobs.queue import Background, Claims, Housekeeping, JobQueue
from dfc.registry.base import LeaseLost
from dfc.wire.jobs import Job

# --- Examine a submitted job before it is accepted: decode it, find its inputs, plan it, check its outputs. Stores nothing.

T = TypeVar("T")
PLANS: Final = 2  # jobs that are examined at the same time


@dataclass(frozen=True)
class Examined:
    """A job that passed all checks that are possible before it runs."""

    spec: CheckedSpec
    inputs: tuple[Sequence[InputShard], ...]
    stages: Sequence[Stage]
    warnings: tuple[str, ...]


class Examiner:
    """Examines submitted jobs in its own threads, so that a spec that takes long to plan does not delay running jobs."""

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._resolver = InputResolver(cluster)
        self._turns = asyncio.Semaphore(PLANS)
        self._threads = ThreadPoolExecutor(PLANS, thread_name_prefix="job-look")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)  # a plan may take long, and its result is not needed

    async def _look(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    async def examine(self, body: bytes) -> Examined:
        """Check a job. BadRequest, Forbidden, NoShards, ObjectNotFound, NotAShard, OutputExists, Unavailable."""
        async with self._turns:
            spec = await self._look(parse_spec, body)
            await self._look(check_enabled, spec.spec.operation, spec.options, self._settings)
            inputs = await self._resolver.resolve(spec)
            await self._look(check_apart, spec, inputs)
            stages, _ = await self._look(plan_stages, spec, inputs, self._settings.jobs_memory_bytes, self._cluster)
            if not spec.spec.overwrite:
                await check_free(self._cluster, spec.spec.output.bucket, spec.pattern)
            warnings = await self._look(input_warnings, spec, inputs)
            if spec.spec.dry_run:
                warnings += await self._resolver.skipped(spec)
            return Examined(spec, inputs, stages, warnings)

    async def plan(self, found: Examined) -> dict[str, Any]:
        """Return the answer to a dry run."""
        return await self._look(_plan_json, found.spec, found.inputs, found.stages, found.warnings)


def _plan_json(
    spec: CheckedSpec, inputs: Sequence[Sequence[InputShard]], stages: Sequence[Stage], warnings: Sequence[str]
) -> dict[str, Any]:
    """Make the answer to a dry run. Numbers that are only known while the job runs are null."""
    # The first stage depends on no results.
    counts = [stage.count_after({}) if not at or isinstance(stage.count, int) else None for at, stage in enumerate(stages)]
    outputs = [stage.outputs() if callable(stage.outputs) else stage.outputs for stage in stages if stage.outputs is not None]
    shards = [shard for each in inputs for shard in each]
    return {
        "operation": spec.spec.operation,
        "dry_run": True,
        "stages": [{"name": stage.name, "tasks": count} for stage, count in zip(stages, counts, strict=True)],
        "tasks": None if None in counts else sum(count or 0 for count in counts),
        "input": {
            "shards": len(shards),
            "samples": sum(max(0, shard.samples) for shard in shards),
            "bytes": sum(shard.size for shard in shards),
        },
        "output": {"shards": sum(outputs) if outputs else None},
        "warnings": list(warnings),
    }


# --- Accept submitted jobs: in turn, with claims of what they write, and a log from which another proxy can go on with them.

_log: Final = logging.getLogger("dfc.proxy.jobs")
RETRY_BUSY_S: Final = 30
ACCEPT_S: Final = 30.0  # to write the beginning of a job's log


class JobAcceptance:
    """Examines submitted jobs and gives them to the queue. It contains those that are in the journal, but not accepted yet."""

    def __init__(
        self,
        context: JobContext,
        lead: Lead,
        claims: Claims,
        queue: JobQueue,
        housekeeping: Housekeeping,
        background: Background,
    ) -> None:
        self._context = context
        self._lead = lead
        self._claims = claims
        self._queue = queue
        self._housekeeping = housekeeping
        self._background = background
        self._examiner = Examiner(context.cluster, context.settings)
        self._turn = asyncio.Lock()
        self._beginning: set[str] = set()
        self._last_id_us = 0

    def __len__(self) -> int:
        return len(self._beginning)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._beginning

    def close(self) -> None:
        self._examiner.close()

    async def submit(self, body: bytes) -> Job | dict[str, Any]:
        """Accept a job, or return the plan of a dry run. Raises any error that can be found."""
        self._context.cluster.check_ready()
        found = await self._examiner.examine(body)
        if found.spec.spec.dry_run:
            return await self._examiner.plan(found)
        # Shielded: a job that is in the journal but unknown to this service would wait until the next start.
        return await asyncio.shield(self._accept_in_turn(found, body))

    async def _accept_in_turn(self, found: Examined, body: bytes) -> Job:
        while True:
            leadership = await self._lead()  # before taking the lock: waiting for an election must not block others
            if self._queue.is_stopping:
                raise Unavailable("this proxy does not run jobs any more", retry_after_s=1)
            async with self._turn:
                if leadership.is_held:  # only the coordinator's claims keep jobs apart
                    record = await self._create(found, body)
                    break
        await self._begin_log(record, found, body)  # outside the lock: a target may take its time
        self._beginning.discard(record.id)
        self._queue.add(record)
        try:
            await self._housekeeping.count()
        except Exception:
            _log.exception("cannot count the jobs; job %s was accepted nevertheless", record.id)
        return job_view(record)

    async def _create(self, found: Examined, body: bytes) -> JobRecord:
        """Put a job into the journal, and claim what it writes."""
        settings, cluster, spec = self._context.settings, self._context.cluster, found.spec.spec
        waiting = len(self._beginning) + self._queue.waiting
        if waiting >= settings.jobs_queued_max:
            raise Unavailable(f"the job queue is full: {waiting} jobs are waiting", retry_after_s=RETRY_BUSY_S)
        self._claims.check(spec.output.bucket, found.spec.pattern)
        bucket = await cluster.bucket_for_write(spec.output.bucket)
        new = NewJob(
            id=self._new_id(), operation=spec.operation, spec=body, label=spec.label, bucket=bucket.name, bucket_id=bucket.id,
            memory_bytes=settings.jobs_memory_bytes, program=__version__, warnings=found.warnings,
        )  # fmt: skip
        record = await self._context.write(self._context.journal.create, new, found.inputs)
        self._claims.take(record.id, record.bucket, found.spec.pattern)
        self._beginning.add(record.id)
        return record

    async def _begin_log(self, record: JobRecord, found: Examined, body: bytes) -> None:
        """Have those who come after know the job. If that cannot be done soon, it is not accepted: nobody goes on with it, and
        until that is certain nobody else writes what it would have written."""
        try:
            async with asyncio.timeout(ACCEPT_S):
                await self._context.logs.begin(record, found.spec.pattern.text, body, found.inputs)
        except BaseException as error:
            if not self._queue.is_stopping:
                self._background.spawn(self._abandon(record))
            if isinstance(error, TimeoutError):
                raise Unavailable("the log of the job cannot be written at the moment") from None
            if isinstance(error, LogRefused):
                raise Unavailable(error.message) from error
            raise

    async def _abandon(self, record: JobRecord) -> None:
        with suppress(LeaseLost):  # who comes after knows it, or not
            await self._context.logs.abandon(record)
        await self._context.write(self._context.journal.drop, record.id)
        self._context.recordings.drop(record.id)
        self._claims.release(record.id)
        self._beginning.discard(record.id)

    def _new_id(self) -> str:
        """Make a job id. Ids sort by time, which is the order of listings, and cannot be guessed."""
        self._last_id_us = max(self._last_id_us + 1, time.time_ns() // 1000)
        return f"{self._last_id_us:014x}{secrets.token_hex(4)}"
