"""Jobs in a cluster with several proxies: the coordinator runs them, and goes on with those of the one before."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar

from prometheus_client.core import Metric

from dfc.errors import Unavailable
from dfc.proxy.cluster import Cluster
from dfc.proxy.coordinator import Duty
from dfc.proxy.jobs.log.base import JobLogs
from dfc.proxy.jobs.log.shared import SharedLogs
from dfc.proxy.jobs.service import JobService
from dfc.registry.base import SharedRegistry
from dfc.registry.leases import Lease
from dfc.wire.jobs import Job

_log: Final = logging.getLogger("dfc.proxy.jobs")
P = ParamSpec("P")
T = TypeVar("T")
TURN_S: Final = 5.0  # how long a request waits for the jobs to have been taken over


def _asked(
    call: Callable[Concatenate[JobService, P], Awaitable[T]],
) -> Callable[Concatenate[ReigningJobs, P], Coroutine[Any, Any, T]]:
    """The same call: it waits for the service of now, and asks that."""

    @wraps(call)
    async def ask(self: ReigningJobs, /, *args: P.args, **kwargs: P.kwargs) -> T:
        service = await self._soon()
        try:
            return await call(service, *args, **kwargs)
        except (RuntimeError, sqlite3.Error):
            if not service.is_stopping:
                raise
            # Its threads and its journal were closed in the middle of the call.
            raise Unavailable("another proxy has become the coordinator", retry_after_s=1) from None

    return ask


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

    submit = _asked(JobService.submit)
    cancel = _asked(JobService.cancel)
    show = _asked(JobService.show)
    spec = _asked(JobService.spec)
    page = _asked(JobService.page)
    tasks = _asked(JobService.tasks)
    history = _asked(JobService.history)
    log = _asked(JobService.log)

    def check_running(self, job_id: str) -> None:
        self._now().check_running(job_id)

    def watch(self, job_id: str) -> AsyncIterator[Job | None]:
        return self._now().watch(job_id)


JobUses: TypeAlias = JobService | ReigningJobs  # what a proxy does with jobs
