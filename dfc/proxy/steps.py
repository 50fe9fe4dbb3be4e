"""The steps of placement: which targets and disks may read and write. A duty of the coordinator, around the planner of
`dfc.replication.steps`, which decides; here the registry is changed and targets are heard.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from dfc.placement.mapped import placement_of
from dfc.placement.state import Placement
from dfc.proxy.cluster import Cluster
from dfc.registry.changes import StepOvertaken, take_step
from dfc.registry.leases import Lease
from dfc.registry.registration import Registration
from dfc.replication.steps import StepPlanner

_log: Final = logging.getLogger("dfc.proxy")
LOOK_S: Final = 0.5  # between two looks at who is silent; targets that have not acknowledged the last step get it again
UP_WAIT_S: Final = 1.0  # how long the answer to a target that is back waits for the step that takes it in


class Steps:
    """The planner of this proxy while it is the coordinator."""

    def __init__(self, cluster: Cluster, down_after_s: float) -> None:
        self._cluster = cluster
        self._down_after_s = down_after_s
        self._planner: StepPlanner | None = None
        self._leadership: Lease | None = None
        self._going: frozenset[str] = frozenset()  # targets that are being declared down
        self._changed = asyncio.Event()
        self._stepped = asyncio.Event()  # set, and replaced, with each step

    @property
    def leads(self) -> bool:
        """Whether this proxy is the coordinator now."""
        return self._leadership is not None and self._leadership.is_held

    def heard(self, said: Registration) -> bool:
        """Take a heartbeat; whether the target may act now. False unless this proxy is the coordinator."""
        planner = self._planner
        if planner is None or not self.leads or said.starting or said.node_id in self._going:
            return False
        planner.refresh(placement_of(self._cluster.map))
        incarnations = {disk.id: disk.incarnation for disk in said.disks if disk.state == "up"}
        may_act = planner.heartbeat(said.node_id, said.step, incarnations, self._cluster.now_s())
        if planner.is_busy:
            self._changed.set()
        return may_act

    def acknowledged(self, node_id: str, step: int) -> None:
        """A target has answered a push: it decides by this step, and by no older one any more."""
        if self._planner is not None:
            self._planner.acknowledged(node_id, step)
            self._changed.set()

    async def until_up(self, node_id: str) -> None:
        """Wait a moment for the step that takes in a target which is back."""
        with suppress(TimeoutError):
            async with asyncio.timeout(UP_WAIT_S):
                while self._planner is not None and not self._planner.is_up(node_id):
                    await self._stepped.wait()

    async def run(self, leadership: Lease) -> None:
        """Take one step after the other. Silence of targets counts from now at the earliest, since the previous coordinator may
        have heard them."""
        placement = placement_of(self._cluster.map)
        self._planner = planner = StepPlanner(placement, self._down_after_s, self._cluster.now_s())
        self._leadership = leadership
        try:
            while True:
                self._changed.clear()
                if not await self._take_one(planner, leadership):
                    await self._wait(planner)
        finally:
            self._planner = self._leadership = None

    async def _take_one(self, planner: StepPlanner, leadership: Lease) -> bool:
        """Take the next step, if there is one that may be taken."""
        planner.refresh(placement_of(self._cluster.map))
        before, new = planner.placement, planner.next_step(self._cluster.now_s())
        if new is None:
            return False
        self._going = frozenset(_down(new) - _down(before))
        seen = [node for node in self._cluster.map.nodes if node.id in self._going]
        try:
            await self._cluster.change(take_step(before, new, seen), fence=leadership)
        except StepOvertaken:
            return True
        finally:
            self._going = frozenset()
        planner.published(new)
        stepped, self._stepped = self._stepped, asyncio.Event()
        stepped.set()
        _log_step(before, new)
        return True

    async def _wait(self, planner: StepPlanner) -> None:
        try:
            async with asyncio.timeout(LOOK_S):
                await self._changed.wait()
        except TimeoutError:
            self._cluster.push_again(planner.waits_for())


def _down(placement: Placement) -> set[str]:
    return {disk.node for disk in placement.disks.values() if disk.status == "down"}


def _log_step(before: Placement, new: Placement) -> None:
    for node in sorted(_down(new) - _down(before)):
        _log.warning("no heartbeat from target %s: marked down; its objects are answered 503", node)
    for node in sorted(_down(before) - _down(new)):
        _log.info("target %s is back", node)
    for disk in new.disks.values():
        if disk.status == "failed" and before.disks[disk.id].status == "up":
            _log.warning("disk %s of target %s cannot be written any more: it is marked failed", disk.id, disk.node)
