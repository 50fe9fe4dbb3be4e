"""Examine a submitted job before it is accepted: decode it, find its inputs, plan it, check its outputs. Stores nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from dfc.config import Settings
from dfc.jobs.operations import check_enabled
from dfc.jobs.request import parse_spec
from dfc.jobs.spec import CheckedSpec
from dfc.jobs.tasks import InputShard, Stage
from dfc.proxy.cluster import Cluster
from dfc.proxy.jobs.accepting.inputs import InputResolver, check_apart, check_free, input_warnings
from dfc.proxy.jobs.context import plan_stages

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
