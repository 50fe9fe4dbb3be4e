"""The coordinator: its election, which proxies there are, and what the others know from it.

It is the one proxy of a cluster that does what only one may do; the registry elects it. Its duties begin when it is elected and
end before it gives up the office; if it loses the office, they are cancelled immediately. A duty changes the registry only
under its lease, so a late one cannot change anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from dfc.errors import DfcError, ServerTrouble, Unavailable
from dfc.http.shutdown import Looping
from dfc.limits import STOP_CLOSE_S
from dfc.proxy.cluster import Cluster
from dfc.registry.base import Grant, Lease, Registry
from dfc.registry.messages import CoordinatorReport

_log: Final = logging.getLogger("dfc.proxy")
OFFICE: Final = "coordinator"
OFFICE_S: Final = 5.0  # writes continue without a coordinator for this long; if shorter, a busy machine loses it needlessly
RETRY_S: Final = 1.0  # after a failed election or duty
LOOK_S: Final = 0.02
ELECTION_WAIT_S: Final = 5.0  # how long a request waits for a coordinator; a lost office is free by then
Duty = Callable[[Lease], Awaitable[None]]
Lead = Callable[[], Awaitable[Lease]]
"""See `Coordinator.lead`."""


class Coordinator(Looping):
    """A candidate for coordinator from `start` to `stop`; while elected, it runs its duties and restarts those that fail.
    `url`: where other nodes reach this proxy."""

    def __init__(
        self,
        registry: Registry,
        node_id: str,
        duties: Mapping[str, Duty],
        *,
        url: Callable[[], str] = lambda: "",
        office_s: float = OFFICE_S,
        retry_s: float = RETRY_S,
    ) -> None:
        self._registry = registry
        self._node_id = node_id
        self._duties = dict(duties)
        self._url = url
        self._office_s = office_s
        self._retry_s = retry_s
        self._leadership: Lease | None = None
        self._elected = asyncio.Event()

    @property
    def leads(self) -> bool:
        return self._leadership is not None and self._leadership.is_held

    def elsewhere(self) -> str | None:
        """The URL of the coordinator if that is another proxy, as far as is known here; None: it is this one, or nobody."""
        found = self._registry.held(OFFICE)
        return found.url if found is not None and found.holder != self._node_id and found.url else None

    async def lead(self) -> Lease:
        """Return the lease under which this proxy acts as coordinator, waiting for an election. Unavailable when it is not
        elected."""
        try:
            async with asyncio.timeout(0 if self._task is None or self._task.done() else ELECTION_WAIT_S):
                while True:
                    await self._elected.wait()
                    if self._leadership is not None and self._leadership.is_held:
                        return self._leadership
                    await asyncio.sleep(LOOK_S)  # the lease has expired, which is about to be noticed
        except TimeoutError:
            raise Unavailable("this proxy is not the coordinator of its cluster at the moment", retry_after_s=1) from None

    async def _run(self) -> None:
        while True:
            try:
                async with self._registry.elect(OFFICE, self._node_id, self._office_s, self._url()) as leadership:
                    _log.info("this proxy is the coordinator of the cluster")
                    await self._lead(leadership)
                _log.warning("this proxy is no longer the coordinator: its lease was not renewed in time")
            except DfcError as error:
                _log.warning("cannot elect a coordinator: %s", error.message)
                await asyncio.sleep(self._retry_s)
            except Exception:
                _log.exception("electing a coordinator failed; trying again")
                await asyncio.sleep(self._retry_s)

    async def _lead(self, leadership: Lease) -> None:
        """Run the duties until the office is lost. All of them have ended when this returns."""
        self._leadership = leadership
        self._elected.set()
        tasks = [asyncio.create_task(self._keep(name, duty, leadership), name=name) for name, duty in self._duties.items()]
        try:
            await leadership.lost.wait()
            self._resign()
            await self._end(tasks)
            # Take part in no election while a duty is still running.
            await asyncio.wait(tasks)
        finally:
            self._resign()
            await self._end(tasks)  # `stop` may come while the office is being lost

    def _resign(self) -> None:
        self._leadership = None
        self._elected.clear()

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        """Cancel, and wait for a bounded time."""
        for task in tasks:
            if not task.cancelling():  # only once, so that its cleanup is not interrupted
                task.cancel()
        _, late = await asyncio.wait(tasks, timeout=STOP_CLOSE_S)
        if late:
            names = ", ".join(sorted(task.get_name() for task in late))
            _log.error("duties of the coordinator did not stop within %g s: %s", STOP_CLOSE_S, names)

    async def _keep(self, name: str, duty: Duty, leadership: Lease) -> None:
        """Run one duty, and restart it when it fails."""
        task = asyncio.current_task()
        assert task is not None
        logged = ""
        while True:
            try:
                await duty(leadership)
                return
            except ServerTrouble as error:  # the registry does not answer, cannot be written, or is an old copy
                if not leadership.is_held or task.cancelling():
                    return
                if error.message != logged:
                    _log.warning("the coordinator's duty %r has to wait: %s", name, error.message)
                logged = error.message
            except Exception:
                if not leadership.is_held:
                    return  # that is why it failed
                if task.cancelling():
                    _log.exception("the coordinator's duty %r failed while stopping", name)
                    return
                _log.exception("the coordinator's duty %r failed; restarting it", name)
            await asyncio.sleep(self._retry_s)


# --- Which proxies there are: each holds a lease with its id and its address for as long as it runs.

PREFIX: Final = "proxies/"
LEASE_S: Final = 10.0


class Presence(Looping):
    """Says that this proxy runs, from `start` to `stop`. `url`: where other nodes reach it."""

    def __init__(self, registry: Registry, node_id: str, url: Callable[[], str]) -> None:
        self._registry = registry
        self._node_id = node_id
        self._url = url

    async def _run(self) -> None:
        while True:
            try:
                name = PREFIX + self._node_id.lower()
                async with self._registry.elect(name, self._node_id, LEASE_S, self._url()) as lease:
                    await lease.lost.wait()
            except DfcError as error:
                _log.info("cannot tell the other proxies that this one runs: %s", error.message)
            except Exception:
                _log.exception("telling the other proxies that this one runs failed; trying again")
            await asyncio.sleep(RETRY_S)

    def proxies(self) -> list[Grant]:
        """The proxies that run, as far as is known here."""
        return sorted(self._registry.holders(PREFIX), key=lambda grant: grant.holder)


# --- What a proxy that is not the coordinator knows of targets, by what the coordinator has heard: how full their disks are,
# and whether they know a newer map than the registry.

FOLLOW_S: Final = 2.0
FIRST_LOOK_S: Final = 0.1  # at first, until it is known what targets know, since new buckets wait for that
FIRST_LOOKS_S: Final = 5.0  # for so long


class Following(Looping):
    """Asks the coordinator from `start` to `stop`, while that is another proxy, whose URL `elsewhere` returns."""

    def __init__(self, cluster: Cluster, elsewhere: Callable[[], str | None]) -> None:
        self._cluster = cluster
        self._elsewhere = elsewhere

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + FIRST_LOOKS_S
        while True:
            url = self._elsewhere()
            if url is not None:
                try:
                    found = await self._cluster.control.call("GET", f"{url}/v1/node/newest-map", CoordinatorReport)
                    if self._elsewhere() == url:  # otherwise this proxy may hear targets by now
                        self._cluster.take_report(found)
                except DfcError as error:
                    _log.info("cannot ask the coordinator what it has heard of targets: %s", error.message)
                except Exception:
                    _log.exception("asking the coordinator what it has heard of targets failed; trying again")
            is_soon = loop.time() < until_s and not self._cluster.has_reports()
            await asyncio.sleep(FIRST_LOOK_S if is_soon else FOLLOW_S)
