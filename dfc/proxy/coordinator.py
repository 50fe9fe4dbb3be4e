"""The coordinator: the one proxy of a cluster that does what must not be done by two. The registry elects it.

Its duties begin when it is elected and end before it gives the office back; when it has lost it, they are cancelled at once.
What a duty changes in the registry it changes under its lease, so one that is late changes nothing any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from dfc.errors import DfcError, Unavailable
from dfc.limits import STOP_CLOSE_S
from dfc.registry.base import Registry
from dfc.registry.leases import Lease

_log: Final = logging.getLogger("dfc.proxy")
OFFICE: Final = "coordinator"
OFFICE_S: Final = 5.0  # a cluster without a coordinator for so long writes on; shorter, and a busy machine loses it for nothing
RETRY_S: Final = 1.0  # after a failure: of an election, of a duty
LOOK_S: Final = 0.02
ELECTION_WAIT_S: Final = 5.0  # what only the coordinator decides waits so long for one; an office that is lost is free by then
Duty = Callable[[Lease], Awaitable[None]]
Lead = Callable[[], Awaitable[Lease]]
"""See `Coordinator.lead`."""


class Coordinator:
    """A candidate from `start` to `stop`. Of each duty, by its name, one run at a time; one that fails is begun anew."""

    def __init__(
        self,
        registry: Registry,
        node_id: str,
        duties: Mapping[str, Duty],
        *,
        office_s: float = OFFICE_S,
        retry_s: float = RETRY_S,
    ) -> None:
        self._registry = registry
        self._node_id = node_id
        self._duties = dict(duties)
        self._office_s = office_s
        self._retry_s = retry_s
        self._leadership: Lease | None = None
        self._elected = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def leads(self) -> bool:
        return self._leadership is not None and self._leadership.is_held

    async def lead(self) -> Lease:
        """The lease under which this proxy decides what is the coordinator's to decide; an election is waited for. Unavailable
        when it has none."""
        try:
            async with asyncio.timeout(0 if self._task is None or self._task.done() else ELECTION_WAIT_S):
                while True:
                    await self._elected.wait()
                    if self._leadership is not None and self._leadership.is_held:
                        return self._leadership
                    await asyncio.sleep(LOOK_S)  # its lease is over, which is about to be noticed
        except TimeoutError:
            raise Unavailable("this proxy is not the coordinator of its cluster at the moment", retry_after_s=1) from None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End the duties, then let another proxy have the office. Safe before `start`, and bounded in time."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        while True:
            try:
                async with self._registry.elect(OFFICE, self._node_id, self._office_s) as leadership:
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
        """Do the duties until the office is lost. None of them runs any more when this returns."""
        self._leadership = leadership
        self._elected.set()
        tasks = [asyncio.create_task(self._keep(name, duty, leadership), name=name) for name, duty in self._duties.items()]
        try:
            await leadership.lost.wait()
            self._resign()
            await self._end(tasks)
            # It takes part in no election while something is left that would not end.
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
            if not task.cancelling():  # once: what it does to end is not broken off
                task.cancel()
        _, late = await asyncio.wait(tasks, timeout=STOP_CLOSE_S)
        if late:
            names = ", ".join(sorted(task.get_name() for task in late))
            _log.error("duties of the coordinator did not stop within %g s: %s", STOP_CLOSE_S, names)

    async def _keep(self, name: str, duty: Duty, leadership: Lease) -> None:
        """Do one duty, again when it has failed."""
        task = asyncio.current_task()
        assert task is not None
        while True:
            try:
                await duty(leadership)
                return
            except Exception:
                if not leadership.is_held:
                    return  # that is why it failed
                if task.cancelling():
                    _log.exception("the coordinator's duty %r failed while stopping", name)
                    return
                _log.exception("the coordinator's duty %r failed; restarting it", name)
            await asyncio.sleep(self._retry_s)
