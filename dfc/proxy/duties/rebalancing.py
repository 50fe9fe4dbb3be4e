"""Which disks objects are to be placed among: new ones are taken in. A duty of the coordinator; `Steps` moves the objects."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from dfc.proxy.cluster import Cluster
from dfc.registry.changes import use_disks
from dfc.registry.leases import Lease

_log: Final = logging.getLogger("dfc.proxy")
LOOK_S: Final = 0.5


class Rebalancing:
    """Takes in new disks: `join_wait_s` after the first of them has joined, so that objects are moved once for all that join
    together; None: somebody has to say so."""

    def __init__(self, cluster: Cluster, join_wait_s: float | None) -> None:
        self._cluster = cluster
        self._join_wait_s = join_wait_s

    async def run(self, leadership: Lease) -> None:
        """Look for them until cancelled."""
        since_s: float | None = None
        while True:
            await asyncio.sleep(LOOK_S)
            new = self._new_disks()
            if not new or self._join_wait_s is None:
                since_s = None
                continue
            since_s = self._cluster.now_s() if since_s is None else since_s
            if self._cluster.now_s() >= since_s + self._join_wait_s:
                await self._cluster.change(use_disks(new, "in"), fence=leadership)
                _log.info("objects are moved to %d new %s: %s", len(new), "disk" if len(new) == 1 else "disks", ", ".join(new))
                since_s = None

    def _new_disks(self) -> list[str]:
        """Those that can be used."""
        placed = self._cluster.map.placed().items()
        return [
            disk
            for disk, owner in placed
            if owner.disk.use == "new" and (owner.node.state, owner.disk.state, owner.disk.down_step) == ("up", "up", 0)
        ]
