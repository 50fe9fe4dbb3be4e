"""Disks that are away for too long are given up: objects with several copies get other homes. A duty of the coordinator.

Which may be given up, and what follows, is in `dfc.replication.lost`. The map says which are, so a restart changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from dfc.errors import NotFound, Unavailable
from dfc.placement.map import NodeEntry
from dfc.placement.mapped import placement_of
from dfc.proxy.cluster import Cluster
from dfc.registry.changes import give_up
from dfc.registry.leases import Lease
from dfc.registry.removing import forget_removed, forgettable
from dfc.registry.reports import ClearedReport
from dfc.replication.lost import is_given_up, next_to_give_up

_log: Final = logging.getLogger("dfc.proxy")
LOOK_S: Final = 0.5


class LostDisks:
    """Gives up disks that are away for `out_after_s`; 0: none. For how long they are is counted from when this coordinator
    began at the earliest. None of a target that somebody expects to be back."""

    def __init__(self, cluster: Cluster, out_after_s: float, wall_s: Callable[[], float] = time.time) -> None:
        self._cluster = cluster
        self._out_after_s = out_after_s
        self._wall_s = wall_s
        self._away: dict[str, float] = {}  # since when, by the clock of the cluster

    async def run(self, leadership: Lease) -> None:
        """Look for them until cancelled."""
        self._away = {}
        while True:
            await asyncio.sleep(LOOK_S)
            if forgettable(self._cluster.map):
                removed = ", ".join(sorted(forgettable(self._cluster.map)))
                await self._cluster.change(forget_removed, fence=leadership)
                _log.info("removed for good, since lost: disk %s", removed)
            early = self._back_early()
            if early:
                await self._cluster.change(give_up(early, given_up=False), fence=leadership)
            lost = self._lost()
            if lost:
                await self._cluster.change(give_up(lost, given_up=True), fence=leadership)
                _log.warning("given up, since away for %.0f s: disk %s", self._out_after_s, ", ".join(lost))

    def _back_early(self) -> list[str]:
        """Disks that are back before anything came of it."""
        placement, placed = placement_of(self._cluster.map), self._cluster.map.placed()
        found = [disk for disk, owner in placed.items() if owner.disk.given_up and disk in placement.up]
        return [disk for disk in found if not is_given_up(placement, disk)]

    def _lost(self) -> list[str]:
        """Disks that are to be given up now: of one failure domain."""
        cluster_map, now_s, wall_s = self._cluster.map, self._cluster.now_s(), self._wall_s()
        placement = placement_of(cluster_map)
        away = sorted(placement.disks.keys() - placement.up)
        placed = cluster_map.placed()
        self._away = {disk: now_s if _is_expected(placed[disk].node, wall_s) else self._away.get(disk, now_s) for disk in away}
        if not self._out_after_s or all(bucket.copies == 1 for bucket in cluster_map.buckets):
            return []
        due = [disk for disk, since_s in self._away.items() if now_s - since_s > self._out_after_s]
        return sorted(next_to_give_up(placement, [disk for disk in due if not placed[disk].disk.given_up]))

    async def report_cleared(self, said: ClearedReport) -> None:
        """A disk that was given up is back, and by this step it has nothing that does not belong there: it gets objects again.
        NotFound; Unavailable when the step is out of date."""
        placement = placement_of(self._cluster.map)
        if said.disk not in placement.disks:
            raise NotFound(f"disk {said.disk} is not in placement")
        if said.step != placement.step:
            raise Unavailable(f"step {said.step} is out of date: the cluster is at step {placement.step}")
        if is_given_up(placement, said.disk):
            await self._cluster.change(give_up([said.disk], given_up=False, step=said.step))
            _log.info("disk %s, which was given up, is back and gets objects again", said.disk)


def _is_expected(node: NodeEntry, wall_s: float) -> bool:
    """Whether a target is down that somebody expects to be back. A disk that fails while its target runs is another matter."""
    return node.state == "down" and node.expected_by > wall_s
