"""Send maps to targets. Callers that ask for the same push at the same time share one request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from dfc.http.calls.peer import ControlClient
from dfc.placement.map import EMPTY_MAP, ClusterMap, NodeEntry
from dfc.registry.registration import MapTaken


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
