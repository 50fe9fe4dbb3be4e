"""Copies compared with each other, cluster-wide: begun on all targets, and what they have found put together.

Nothing is kept here: each target remembers what it was asked for last, so any proxy can say how far that is.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import Final

from dfc.errors import DfcError, Unavailable
from dfc.logs import timestamp
from dfc.placement.map import NodeEntry
from dfc.proxy.cluster import Cluster
from dfc.replication.checked import CheckAsked, TargetCheck
from dfc.wire.status import CheckedDisk, CheckedTotals, ClusterCheck

ANSWER_S: Final = 5.0  # for a target; one that does not answer is told of, and holds up nobody
DOWN_ANSWER_S: Final = 1.0


class ClusterChecks:
    """Begins comparisons, and says what they have found."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def begin(self, buckets: Sequence[str]) -> str:
        """Begin to compare what all disks have of these buckets, or of all if none is named, in place of what was begun before.
        Returns by what it is known. BucketNotFound; Unavailable if no target answers."""
        ids = tuple(self._cluster.bucket(name).id for name in dict.fromkeys(buckets))
        asked = CheckAsked(secrets.token_hex(8), time.time_ns() // 1000, ids)
        targets = [node for node in self._cluster.map.targets() if node.state == "up"]
        told = await asyncio.gather(*(self._ask("POST", node, asked) for node in targets))
        if not any(each is not None for each in told):
            raise Unavailable("no target answers: nothing can be compared")
        return asked.check

    async def status(self) -> ClusterCheck:
        """How far the newest one is that any target knows."""
        targets = self._cluster.map.targets()
        told = await asyncio.gather(*(self._ask("GET", node) for node in targets))
        newest = max((each for each in told if each is not None), key=lambda each: each.began_us, default=None)
        if newest is None or not newest.check:
            return ClusterCheck()
        disks = [disk for node, each in zip(targets, told, strict=True) for disk in self._disks(newest.check, node, each)]
        is_running = any(disk.state in ("waiting", "running") for disk in disks)
        names = {bucket.id: bucket.name for bucket in self._cluster.map.buckets}
        return ClusterCheck(
            check=newest.check,
            state="running" if is_running else "done",
            began=timestamp(newest.began_us / 1e6),
            buckets=tuple(names.get(each, each) for each in newest.buckets),
            totals=_total(disks),
            disks=tuple(disks),
        )

    async def _ask(self, method: str, node: NodeEntry, asked: CheckAsked | None = None) -> TargetCheck | None:
        """None: it does not answer."""
        try:
            # One that is down may run, and be about to come back: if what it has lost was found, it is down for a moment.
            async with asyncio.timeout(ANSWER_S if node.state == "up" else DOWN_ANSWER_S):
                return await self._cluster.control.call(method, f"{node.url}/v1/node/check", TargetCheck, body=asked)
        except (DfcError, TimeoutError):
            return None

    def _disks(self, check: str, node: NodeEntry, told: TargetCheck | None) -> list[CheckedDisk]:
        if told is not None and told.check == check:
            return told.disks
        if node.state != "up":
            why = f"target {node.id} is down"
        elif told is None:
            why = f"target {node.id} does not answer"
        else:
            why = f"target {node.id} has not heard of this, or was started since"
        placed = self._cluster.map.placed()
        return [CheckedDisk(disk=disk.id, node=node.id, state="unknown", why=why) for disk in node.disks if disk.id in placed]


def _total(disks: Sequence[CheckedDisk]) -> CheckedTotals:
    total = CheckedTotals(pairs=sum(disk.pairs_total for disk in disks))
    for pair in (pair for disk in disks for pair in disk.pairs):
        total.pairs_compared += not pair.not_compared
        for each in ("rows", "differing", "repaired", "under_way", "set_aside", "alarms"):
            setattr(total, each, getattr(total, each) + getattr(pair, each))
    return total
