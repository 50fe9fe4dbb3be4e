"""Copies compared with each other, cluster-wide: begun on all targets, and what they have found put together.

Nothing is kept here: each target remembers what it was asked for last, so any proxy can say how far that is.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from dfc.errors import DfcError, Unavailable
from dfc.logs import timestamp
from dfc.placement.map import NodeEntry
from dfc.proxy.cluster import Cluster
from dfc.replication.checked import CheckAsked, CheckState, DiskCheck, TargetCheck

ANSWER_S: Final = 5.0  # for a target; one that does not answer is told of, and holds up nobody
DOWN_ANSWER_S: Final = 1.0


class CheckTotals(msgspec.Struct, kw_only=True):
    """All pairs of disks together: see `dfc.replication.checked.PairCheck`."""

    pairs: int = 0
    pairs_compared: int = 0
    rows: int = 0
    differing: int = 0
    repaired: int = 0
    under_way: int = 0
    set_aside: int = 0
    alarms: int = 0


class ShownCheck(msgspec.Struct, frozen=True, kw_only=True):
    """How far the last comparison is, of all buckets or of those that are named, and what it has found."""

    check: str = ""
    state: CheckState = "none"
    began: str = ""
    buckets: Sequence[str] = ()
    totals: CheckTotals = msgspec.field(default_factory=CheckTotals)
    disks: Sequence[DiskCheck] = ()


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

    async def status(self) -> ShownCheck:
        """How far the newest one is that any target knows."""
        targets = self._cluster.map.targets()
        told = await asyncio.gather(*(self._ask("GET", node) for node in targets))
        newest = max((each for each in told if each is not None), key=lambda each: each.began_us, default=None)
        if newest is None or not newest.check:
            return ShownCheck()
        disks = [disk for node, each in zip(targets, told, strict=True) for disk in self._disks(newest.check, node, each)]
        is_running = any(disk.state in ("waiting", "running") for disk in disks)
        names = {bucket.id: bucket.name for bucket in self._cluster.map.buckets}
        return ShownCheck(
            check=newest.check,
            state="running" if is_running else "done",
            began=timestamp(newest.began_us / 1e6),
            buckets=[names.get(each, each) for each in newest.buckets],
            totals=_total(disks),
            disks=disks,
        )

    async def _ask(self, method: str, node: NodeEntry, asked: CheckAsked | None = None) -> TargetCheck | None:
        """None: it does not answer, or does not know what it is asked: a version of before."""
        try:
            # One that is down may run, and be about to come back: if what it has lost was found, it is down for a moment.
            async with asyncio.timeout(ANSWER_S if node.state == "up" else DOWN_ANSWER_S):
                return await self._cluster.control.call(method, f"{node.url}/v1/node/check", TargetCheck, body=asked)
        except (DfcError, TimeoutError):
            return None

    def _disks(self, check: str, node: NodeEntry, told: TargetCheck | None) -> list[DiskCheck]:
        if told is not None and told.check == check:
            return told.disks
        if node.state != "up":
            why = f"target {node.id} is down"
        elif told is None:
            why = f"target {node.id} does not answer"
        else:
            why = f"target {node.id} has not heard of this, or was started since"
        placed = self._cluster.map.placed()
        return [DiskCheck(disk=disk.id, node=node.id, state="unknown", why=why) for disk in node.disks if disk.id in placed]


def _total(disks: Sequence[DiskCheck]) -> CheckTotals:
    total = CheckTotals(pairs=sum(disk.pairs_total for disk in disks))
    for pair in (pair for disk in disks for pair in disk.pairs):
        total.pairs_compared += not pair.not_compared
        for each in ("rows", "differing", "repaired", "under_way", "set_aside", "alarms"):
            setattr(total, each, getattr(total, each) + getattr(pair, each))
    return total
