"""Batch reads at a proxy: ask the owners of the items for their parts and merge them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from dfc.batch.gathering import GatheredBatch, Part, gather_batch
from dfc.batch.items import BatchItem, BatchRequest, OnMissing
from dfc.batch.parts import PeerParts
from dfc.http.budget import BudgetPlace
from dfc.http.calls.peer import PeerPool
from dfc.placement.readers import in_order, reader_ids
from dfc.proxy.cluster import Cluster


class ProxyBatches:
    """Batch reads of items from anywhere."""

    def __init__(self, cluster: Cluster, pool: PeerPool, token: str) -> None:
        self._cluster = cluster
        self._refusals = pool.refusals
        self._peers = PeerParts(pool, token, lambda node: self._cluster.map.url_of(node), self._readers_of)

    async def gather(
        self, request: BatchRequest, place: BudgetPlace, threads: ThreadPoolExecutor, *, with_lengths: bool
    ) -> GatheredBatch:
        """Find the items and return the batch, ready to be sent by `threads`. Any error of an item; Unavailable."""
        self._cluster.check_ready()
        return await gather_batch(request, self._owner_of, self._open, place, threads, with_lengths=with_lengths)

    def _owner_of(self, bucket: str, name: str) -> str:
        entry = self._cluster.map.bucket(bucket)
        if entry is None:
            return self._cluster.any_target().id  # where the item is found to be missing
        return in_order(self._cluster.readers(entry, name), self._refusals)[0].id

    def _readers_of(self, bucket: str, name: str) -> list[str]:
        return reader_ids(self._cluster.map, bucket, name, self._refusals)

    async def _open(self, owner: str, items: list[BatchItem], on_missing: OnMissing) -> Part:
        return await self._peers.open(owner, items, on_missing)
