"""What all running jobs share: cluster, journal, engine and threads, waiting for targets, retries and planning."""

from __future__ import annotations

import asyncio
import logging
import random
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from dfc.config import Settings
from dfc.database import is_full
from dfc.engine.base import Engine
from dfc.errors import DfcError, NoSpace, StorageFailed
from dfc.http.shutdown import end_threads, in_time
from dfc.jobs.journal import Journal
from dfc.jobs.operations import operation
from dfc.jobs.records import JobRecord
from dfc.jobs.spec import CheckedSpec
from dfc.jobs.tasks import JobInput, Stage
from dfc.proxy.cluster import Cluster
from dfc.proxy.jobs.log.base import JobLogs
from dfc.proxy.jobs.metrics import JobStats
from dfc.proxy.jobs.recordings import Recordings
from dfc.proxy.jobs.running.staged import Staged
from dfc.registry.leases import LeaseLost

_log: Final = logging.getLogger("dfc.proxy.jobs")
T = TypeVar("T")
TellWaiting = Callable[[Iterable[str] | None], None]
RETRIES: Final = 3
RETRY_DELAYS_S: Final = (0.5, 2.0, 8.0)  # together longer than a target needs to restart after a crash
TARGETS_WAIT_S: Final = 120.0  # how long a job waits for a target that is down before it goes on and fails
TARGETS_POLL_S: Final = 0.2
JOURNAL_RETRY_S: Final = 5.0


class JobFailure(DfcError):
    """The error with which a job fails, for its record."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]


class JobInterrupted(DfcError):
    """The job was started by another version of DFC, which may have planned other tasks."""

    code = "job_interrupted"


class EngineOnDemand:
    """The engine that runs tasks; the first job that needs it starts it."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        self._make = make
        self._engine: Engine | None = None
        self._starting = asyncio.Lock()

    async def get(self) -> Engine:
        """Return the engine, started."""
        if self._engine is None:
            async with self._starting:
                if self._engine is None:
                    engine = self._make()
                    await engine.start()
                    self._engine = engine
        return self._engine

    async def close(self) -> None:
        if self._engine is not None:
            await self._engine.close()


@dataclass(frozen=True)
class Means:
    """What all runners share. `threads` are for plans and long reads of the journal; only `writer` changes it."""

    cluster: Cluster
    journal: Journal
    staged: Staged
    stats: JobStats
    engine: Callable[[], Awaitable[Engine]]
    threads: ThreadPoolExecutor
    writer: ThreadPoolExecutor
    tasks_max: int
    logs: JobLogs
    settings: Settings
    recordings: Recordings

    async def plan(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.threads, call, *arguments)

    async def write(self, call: Callable[..., T], *arguments: Any) -> T:
        """Run a call on the journal. NoSpace or StorageFailed when the proxy's own disk is full or fails."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self.writer, lambda: call(*arguments))
        except sqlite3.OperationalError as error:
            kind = NoSpace if is_full(error) else StorageFailed
            raise kind(f"the proxy cannot write its job journal: {error}") from error

    async def write_at_last(
        self, call: Callable[..., T], *arguments: Any, refused: Callable[[Exception], None] | None = None
    ) -> T:
        """Make a change to the journal that must not be lost: retry until it succeeds. `refused` gets the error of each failed
        attempt."""
        while True:
            try:
                return await self.write(call, *arguments)
            except (NoSpace, StorageFailed) as error:
                _log.error("%s; trying again", error.message)
                if refused is not None:
                    refused(error)
            await asyncio.sleep(JOURNAL_RETRY_S)

    async def end_log(self, record: JobRecord) -> None:
        """Say that nothing is left to be done for a job."""
        with suppress(LeaseLost):  # the next coordinator finds out
            await self.logs.end(record)

    async def close(self) -> None:
        """End the threads, and close the journal if nothing uses it any more."""
        ended = await asyncio.gather(
            end_threads(self.threads, "the planning of jobs"), end_threads(self.writer, "the job journal")
        )
        if all(ended):
            await in_time(self.journal.close, "the job journal")

    async def wait_before_retry(self, attempt: int, tell: TellWaiting | None = None) -> None:
        """Wait with a growing delay, and then for targets that are down, up to TARGETS_WAIT_S."""
        await asyncio.sleep(RETRY_DELAYS_S[attempt] * (0.75 + random.random() / 2))
        await self.wait_for_targets(tell)

    async def wait_for_targets(self, tell: TellWaiting | None = None) -> None:
        """Wait while a target is down, up to TARGETS_WAIT_S: its objects cannot be read, and it is usually back in seconds.
        `tell` is called with the ids of those that are waited for, and with None when all are there."""
        deadline = time.monotonic() + TARGETS_WAIT_S
        while time.monotonic() < deadline:
            missing = self.cluster.map.cover().missing
            is_there = self.cluster.is_ready() and not missing
            if tell is not None:
                tell(None if is_there else [node.id for node in missing])
            if is_there:
                return
            await asyncio.sleep(TARGETS_POLL_S)

    async def retried(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `call`; retry it when a node cannot be reached."""
        for attempt in range(RETRIES):
            try:
                return await call()
            except DfcError as error:
                if error.status != 503:
                    raise
            await self.wait_before_retry(attempt)
        return await call()


def plan_stages(
    spec: CheckedSpec, inputs: tuple[Sequence[Any], ...], memory_bytes: int, cluster: Cluster
) -> tuple[Sequence[Stage], JobInput]:
    """Plan the stages of a job. Pure except for the map, which decides where tasks run, but not what they write."""
    bucket = spec.spec.output.bucket

    def node_of(name: str) -> str | None:
        entry = cluster.map.bucket(bucket)
        owner = None if entry is None else cluster.map.owner(entry, name)
        return None if owner is None else owner.node.id

    prefixes = tuple(source.prefix for source in spec.spec.inputs)
    job = JobInput(spec.options, inputs, bucket, spec.pattern, memory_bytes, node_of, prefixes)
    return operation(spec.spec.operation).plan(job), job
