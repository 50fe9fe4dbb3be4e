"""The cluster as its operators see it: map, health, metrics, scrubbing; and the registration of nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric

from dfc.http.answers import Answer, json_answer
from dfc.http.common import health_answer, metrics_answer
from dfc.http.exchange import Exchange
from dfc.placement.map import NodeEntry
from dfc.proxy.cluster import Cluster
from dfc.proxy.web import wants
from dfc.registry.registration import Registration
from dfc.wire import MSGPACK


class AdminRoutes:
    """Handlers of `/v1/cluster…`, `/v1/nodes`, `/v1/health` and `/metrics`."""

    def __init__(self, cluster: Cluster, node_id: str) -> None:
        self._cluster = cluster
        self._node_id = node_id
        self.metrics: CollectorRegistry | None = None

    async def health(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        states = Counter(node.state for node in self._cluster.map.nodes if node.role == "target")
        return health_answer(
            self._cluster.is_ready(),
            role="proxy",
            id=self._node_id,
            map_version=self._cluster.map.version,
            targets=dict(states),
        )

    async def cluster_map(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        if wants(exchange) == "msgpack":
            return Answer(200, msgspec.msgpack.encode(self._cluster.map), [("Content-Type", MSGPACK)])
        return json_answer(self._cluster.map)

    async def register(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """A node's registration, which is its heartbeat too."""
        said: Registration = await exchange.json(Registration)
        return json_answer(await self._cluster.register(said))

    async def prometheus(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        assert self.metrics is not None
        return metrics_answer(self.metrics)

    async def start_scrub(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        async def ask(node: NodeEntry) -> Any:
            return await self._cluster.control.call("POST", f"{node.url}/v1/node/scrub", dict)

        await self._cluster.ask_all(ask)
        return json_answer({"started": True}, 202)

    async def scrub_status(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        async def ask(node: NodeEntry) -> Any:
            return (await self._cluster.control.call("GET", f"{node.url}/v1/node/scrub", dict))["disks"]

        return json_answer({"disks": [disk for disks in await self._cluster.ask_all(ask) for disk in disks]})

    def families(self) -> Iterable[Metric]:
        """The cluster's metrics."""
        cluster_map = self._cluster.map
        yield GaugeMetricFamily("dfc_map_version", "Version of the cluster map", cluster_map.version)
        nodes = GaugeMetricFamily("dfc_nodes", "Targets by state", labels=("state",))
        counts = Counter(node.state for node in cluster_map.nodes if node.role == "target")
        for state in ("up", "down", "joining"):
            nodes.add_metric((state,), counts[state])
        yield nodes
        yield GaugeMetricFamily("dfc_buckets", "Buckets", len(cluster_map.buckets))
