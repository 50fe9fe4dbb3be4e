"""What the nodes of the cluster are, one by one: each is asked itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from dfc.errors import Unavailable
from dfc.http.rates.about import NodeAbout
from dfc.proxy.cluster import Cluster
from dfc.proxy.others.rates import ClusterRates

ANSWER_S: Final = 5.0  # a target waits for disks that do not answer, but not for so long


class NodeDetails:
    """Asks nodes what they are. `own` tells it of this one, which has the id `node_id`."""

    def __init__(self, cluster: Cluster, rates: ClusterRates, own: Callable[[], Awaitable[NodeAbout]], node_id: str) -> None:
        self._cluster = cluster
        self._rates = rates
        self._own = own
        self._node_id = node_id

    async def about(self, node_id: str) -> NodeAbout:
        """Return what a target or a proxy is. NotFound; Unavailable if it does not answer, with the time of its last heartbeat
        if it is a target."""
        if node_id == self._node_id:
            return await self._own()
        url = self._rates.url_of(node_id)
        try:
            async with asyncio.timeout(ANSWER_S):
                found = await self._cluster.control.call("GET", f"{url}/v1/node/about", NodeAbout)
        except (Unavailable, TimeoutError):
            raise Unavailable(f"{node_id} does not answer{self._heard(node_id)}", retry_after_s=1) from None
        if found.id != node_id:
            raise Unavailable(f"another node answers at {url}: {found.id[:80]}")
        return found

    def _heard(self, node_id: str) -> str:
        """When a target was heard last, as far as it is known here."""
        node = next((node for node in self._cluster.map.targets() if node.id == node_id), None)
        return f"; its last heartbeat was at {node.last_heartbeat}" if node is not None and node.last_heartbeat else ""
