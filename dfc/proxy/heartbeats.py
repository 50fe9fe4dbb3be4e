"""The last heartbeat of each target, and the maps that are sent to targets.

Heartbeats are kept in the memory of this proxy only. Most do not change the cluster map. In a large cluster they come many
times a second, so they neither write anything nor rebuild the map.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median_low
from typing import Any, NamedTuple

import msgspec

from dfc.http.peer import ControlClient
from dfc.logs import timestamp
from dfc.placement.map import EMPTY_MAP, ClusterMap, DiskEntry, NodeEntry
from dfc.registry.base import boot_s
from dfc.registry.messages import CoordinatorReport, MapTaken, Registration, with_use


class _Beat(msgspec.Struct, frozen=True):
    at_s: float  # on the clock of Heartbeats
    time: str  # RFC 3339, for people
    heartbeat: Registration
    ahead_us: int  # its wall clock, compared with ours at the receipt
    newer_since_s: float | None  # since when it has said that its map is newer than the registry's


class LastHeartbeat(NamedTuple):
    """What a node said last, how many seconds ago, how far its wall clock is ahead of most clocks, and for how many seconds it
    has said that it has a newer map than the registry."""

    heartbeat: Registration
    age_s: float
    clock_ahead_s: float = 0.0
    newer_s: float = 0.0


class Heartbeats:
    """The last heartbeat of each node. `clock_s` is a monotonic clock, `wall_s` counts since 1970; tests replace them."""

    def __init__(self, wall_s: Callable[[], float] = time.time, clock_s: Callable[[], float] = boot_s) -> None:
        self._wall_s = wall_s
        self._clock_s = clock_s
        self._last: dict[str, _Beat] = {}
        self._reported: dict[str, NodeEntry] = {}
        self.has_any = False  # whether any node has ever been heard here or by the coordinator; also one that knows no map
        self._newest_version = 0  # only rises: that somebody knew a version stays true, whoever is the coordinator

    def now_s(self) -> float:
        return self._clock_s()

    def take(self, heartbeat: Registration, version: int) -> None:
        """Take what a node says, while the map of the registry is known to have this version."""
        self.has_any = True
        wall_s = self._wall_s()
        last = self._last.get(heartbeat.node_id)
        if last is not None and (heartbeat.starting or heartbeat.leaving):
            # Its disks are not open: what it has said of them before is still the best that is known.
            disks = _with_use_of(heartbeat.disks, last.heartbeat.disks)
            heartbeat = msgspec.structs.replace(
                heartbeat, disks=disks, numbers=last.heartbeat.numbers, hints=last.heartbeat.hints
            )
        ahead_us = heartbeat.now_us - int(wall_s * 1e6) if heartbeat.now_us else 0
        now_s, newer_since_s = self._clock_s(), None
        self._newest_version = max(self._newest_version, heartbeat.map_version)
        if heartbeat.map_version > version:
            newer_since_s = now_s if last is None or last.newer_since_s is None else last.newer_since_s
        self._last[heartbeat.node_id] = _Beat(now_s, timestamp(wall_s), heartbeat, ahead_us, newer_since_s)

    def take_report(self, reported: CoordinatorReport) -> None:
        """Take what the coordinator has heard. What was heard here, when this proxy was the coordinator, is out of date."""
        self._last, self._reported = {}, {node.id: node for node in reported.map.nodes if node.last_heartbeat}
        self._newest_version = max(self._newest_version, reported.newest_version)
        self.has_any = self.has_any or bool(self._reported or self._newest_version)

    def begin(self) -> None:
        """Forget what was heard: others may have heard newer things meanwhile."""
        self._last = {}

    def forget(self, node_id: str) -> None:
        self._last.pop(node_id, None)

    def lately(self, node_id: str, within_s: float) -> Registration | None:
        """Return the last registration of a node if it came within so many seconds."""
        beat = self._last.get(node_id)
        return beat.heartbeat if beat is not None and self._clock_s() - beat.at_s <= within_s else None

    def has_all(self, node_ids: Iterable[str]) -> bool:
        """Whether each of these nodes has been heard, here or by the coordinator."""
        return all(node_id in self._last or node_id in self._reported for node_id in node_ids)

    def newest_version(self) -> int:
        """Return the highest version of the map that any node has ever said here, or to the coordinator; 0: none was heard."""
        return self._newest_version

    def clock_ahead_s(self, node_id: str) -> float:
        """How far a node's wall clock is ahead of the median of all nodes, this proxy included; negative if it is behind."""
        beat = self._last.get(node_id)
        all_us = [0, *(each.ahead_us for each in self._last.values())]
        return 0.0 if beat is None else (beat.ahead_us - median_low(all_us)) / 1e6

    def heard(self) -> dict[str, LastHeartbeat]:
        """Return what every node has said last."""
        now_s, median_us = self._clock_s(), median_low([0, *(each.ahead_us for each in self._last.values())])
        return {
            node_id: LastHeartbeat(
                beat.heartbeat,
                now_s - beat.at_s,
                (beat.ahead_us - median_us) / 1e6,
                0.0 if beat.newer_since_s is None else beat.at_s - beat.newer_since_s,
            )
            for node_id, beat in self._last.items()
        }

    def refresh(self, node: NodeEntry) -> NodeEntry:
        """Return the node with the disk usage of its last heartbeat. Without a time, if it has said only that it starts: then
        nobody knows how many objects it has."""
        beat = self._last.get(node.id)
        if beat is None:
            reported = self._reported.get(node.id)
            return node if reported is None else with_use(node, reported.disks, reported.last_heartbeat)
        return with_use(node, beat.heartbeat.disks, "" if beat.heartbeat.starting and not beat.heartbeat.numbers else beat.time)

    def overlay(self, cluster_map: ClusterMap) -> ClusterMap:
        """Return the map with the disk usage of all heartbeats."""
        return cluster_map.with_use(
            *(self.refresh(node) for node in cluster_map.nodes if node.id in self._last or node.id in self._reported)
        )


def _with_use_of(disks: tuple[DiskEntry, ...], before: tuple[DiskEntry, ...]) -> tuple[DiskEntry, ...]:
    """Return disks with how full they were before."""
    known = {disk.id: disk for disk in before}
    return tuple(
        msgspec.structs.replace(disk, used=known[disk.id].used, objects=known[disk.id].objects) if disk.id in known else disk
        for disk in disks
    )


# --- Send maps to targets. Callers that ask for the same push at the same time share one request.


@dataclass
class _Push:
    """A map on its way to a target, and how many wait for it."""

    version: int
    request: asyncio.Task[Any]
    waiting: int = 0


class Pushes:
    """Pushes under way, by the URL of the target. `acknowledged` is told of each that was answered."""

    def __init__(self, control: ControlClient, acknowledged: Callable[[str, int], None]) -> None:
        self._control = control
        self._acknowledged = acknowledged
        self._encoded = EMPTY_MAP, msgspec.Raw(EMPTY_MAP.encode())
        self._under_way: dict[str, _Push] = {}

    async def push(self, node: NodeEntry, cluster_map: ClusterMap) -> None:
        """Send a target the map; when this returns, the target uses it (or a newer one)."""
        push = self._under_way.get(node.url)
        if push is None or push.version < cluster_map.version:
            request = asyncio.create_task(self._send(node, cluster_map))
            push = self._under_way[node.url] = _Push(cluster_map.version, request)
        push.waiting += 1
        try:
            await asyncio.shield(push.request)  # a cancelled caller must not cancel it for the others
        finally:
            push.waiting -= 1
            if not push.waiting:
                push.request.cancel()
                if self._under_way.get(node.url) is push:
                    del self._under_way[node.url]

    async def _send(self, node: NodeEntry, cluster_map: ClusterMap) -> None:
        url, body = f"{node.url}/v1/node/map", self._encode(cluster_map)
        taken = await self._control.call("POST", url, MapTaken, body=body)
        self._acknowledged(node.id, taken.step)

    def _encode(self, cluster_map: ClusterMap) -> msgspec.Raw:
        """Encode a map once for all targets: a large one takes a millisecond."""
        if self._encoded[0] is not cluster_map:
            self._encoded = cluster_map, msgspec.Raw(cluster_map.encode())
        return self._encoded[1]
