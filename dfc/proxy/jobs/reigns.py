"""JobUses in a cluster with several proxies: the coordinator runs them, and goes on with those of the one before."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from prometheus_client.core import Metric

from dfc.errors import Unavailable
from dfc.jobs.recording.views import TaskQuery
from dfc.jobs.records import JobState
from dfc.proxy.cluster import Cluster
from dfc.proxy.coordinator import Duty
from dfc.proxy.jobs.log.base import JobLogs
from dfc.proxy.jobs.log.shared import SharedLogs
from dfc.proxy.jobs.service import JobService
from dfc.registry.base import SharedRegistry
from dfc.registry.leases import Lease

_log: Final = logging.getLogger("dfc.proxy.jobs")
T = TypeVar("T")
TURN_S: Final = 5.0  # how long a request waits for the jobs to have been taken over


class JobUses(Protocol):
    """What a proxy does with jobs."""

    @property
    def has_active(self) -> bool: ...
    @property
    def duties(self) -> Mapping[str, Duty]: ...
    async def open(self) -> None: ...
    def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def close(self) -> None: ...
    def families(self) -> Iterable[Metric]: ...
    async def submit(self, body: bytes) -> dict[str, Any]: ...
    async def cancel(self, job_id: str) -> dict[str, Any]: ...
    def check_running(self, job_id: str) -> None: ...
    async def show(self, job_id: str) -> dict[str, Any]: ...
    async def spec(self, job_id: str) -> bytes: ...
    async def page(self, states: Sequence[JobState], before: str | None, limit: int) -> dict[str, Any]: ...
    def watch(self, job_id: str) -> AsyncIterator[dict[str, Any] | None]: ...
    async def tasks(self, job_id: str, query: TaskQuery) -> dict[str, Any]: ...
    async def history(self, job_id: str) -> dict[str, Any]: ...
    async def log(self, job_id: str) -> dict[str, Any]: ...


class ReigningJobs:
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
        try:
            async with asyncio.timeout(TURN_S):
                await self._ready.wait()
        except TimeoutError:
            pass
        return self._now()

    async def _ask(self, call: Callable[[JobService], Awaitable[T]]) -> T:
        service = await self._soon()
        try:
            return await call(service)
        except (RuntimeError, sqlite3.Error):
            if not service.is_stopping:
                raise
            # Its threads and its journal were closed in the middle of the call.
            raise Unavailable("another proxy has become the coordinator", retry_after_s=1) from None

    async def submit(self, body: bytes) -> dict[str, Any]:
        return await self._ask(lambda service: service.submit(body))

    async def cancel(self, job_id: str) -> dict[str, Any]:
        return await self._ask(lambda service: service.cancel(job_id))

    def check_running(self, job_id: str) -> None:
        self._now().check_running(job_id)

    async def show(self, job_id: str) -> dict[str, Any]:
        return await self._ask(lambda service: service.show(job_id))

    async def spec(self, job_id: str) -> bytes:
        return await self._ask(lambda service: service.spec(job_id))

    async def page(self, states: Sequence[JobState], before: str | None, limit: int) -> dict[str, Any]:
        return await self._ask(lambda service: service.page(states, before, limit))

    def watch(self, job_id: str) -> AsyncIterator[dict[str, Any] | None]:
        return self._now().watch(job_id)

    async def tasks(self, job_id: str, query: TaskQuery) -> dict[str, Any]:
        return await self._ask(lambda service: service.tasks(job_id, query))

    async def history(self, job_id: str) -> dict[str, Any]:
        return await self._ask(lambda service: service.history(job_id))

    async def log(self, job_id: str) -> dict[str, Any]:
        return await self._ask(lambda service: service.log(job_id))
