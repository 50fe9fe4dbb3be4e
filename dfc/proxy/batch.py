"""Batch reads at a proxy: the parts of all owners, merged."""

from __future__ import annotations

from dfc.batch.answer import BatchGate, Part, answer_batch, read_request
from dfc.batch.items import BatchItem, OnMissing
from dfc.batch.parts import PeerParts
from dfc.http.answers import Answer
from dfc.http.calls.peer import PeerPool
from dfc.http.exchange import Exchange
from dfc.proxy.cluster import Cluster


class BatchRoutes:
    """The handler of `/v1/batch`."""

    def __init__(self, cluster: Cluster, pool: PeerPool, token: str) -> None:
        self._cluster = cluster
        self._peers = PeerParts(pool, token, self._url_of)
        self._gate = BatchGate()

    def _url_of(self, node_id: str) -> str | None:
        node = self._cluster.map.node(node_id)
        return None if node is None else node.url

    async def batch(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """A list of items from anywhere."""
        request = await read_request(exchange)
        self._cluster.check_ready()
        return await answer_batch(exchange, request, self._owner_of, self._open, self._gate, exchange.bulk.threads)

    def _owner_of(self, bucket: str, name: str) -> str:
        entry = self._cluster.map.bucket(bucket)
        if entry is None:
            return self._cluster.any_target().id  # where the item is found to be missing
        return self._cluster.owner(entry, name).node.id

    async def _open(self, owner: str, items: list[BatchItem], on_missing: OnMissing) -> Part:
        return await self._peers.open(owner, items, on_missing)
