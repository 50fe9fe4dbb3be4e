"""What targets said last, and when: how full their disks are, and who is silent. In memory, of this proxy alone.

Most heartbeats change nothing of the cluster map. They come many times a second in a large cluster, so they neither write
anything nor have the map made anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from dfc.logs import timestamp
from dfc.placement.map import ClusterMap, NodeEntry
from dfc.registry.registration import Registration, with_use


class _Beat(msgspec.Struct, frozen=True):
    at_s: float  # on the clock of Heartbeats
    time: str  # RFC 3339, for people
    said: Registration


class Heartbeats:
    """The last of each node. `clock_s` counts seconds, `wall_s` those since 1970; tests bring their own."""

    def __init__(self, wall_s: Callable[[], float] = time.time, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._wall_s = wall_s
        self._clock_s = clock_s
        self._last: dict[str, _Beat] = {}

    def now_s(self) -> float:
        return self._clock_s()

    def take(self, said: Registration) -> None:
        self._last[said.node_id] = _Beat(self._clock_s(), timestamp(self._wall_s()), said)

    def forget(self, node_id: str) -> None:
        self._last.pop(node_id, None)

    def last(self, node_id: str) -> Registration | None:
        """What a node said last."""
        beat = self._last.get(node_id)
        return beat.said if beat is not None else None

    def is_silent(self, node_id: str, for_s: float, since_s: float) -> bool:
        """Whether a node has said nothing for so long; who has said nothing at all is counted from `since_s`, a reading of
        `now_s`, as are those who did before it."""
        beat = self._last.get(node_id)
        heard_s = since_s if beat is None else max(beat.at_s, since_s)
        return heard_s < self._clock_s() - for_s

    def refresh(self, node: NodeEntry) -> NodeEntry:
        """The node with the use of its disks by its last heartbeat."""
        beat = self._last.get(node.id)
        return node if beat is None else with_use(node, beat.said.disks, beat.time)

    def overlay(self, cluster_map: ClusterMap) -> ClusterMap:
        """The map with all that is known of use."""
        return cluster_map.with_use(*(self.refresh(node) for node in cluster_map.nodes if node.id in self._last))
