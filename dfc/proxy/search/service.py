"""*Search samples*: find samples by their keys in many shards, at the targets that have them."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from typing import Final

from dfc.addresses import Refusals
from dfc.errors import BucketNotFound, ObjectCorrupt, Unavailable
from dfc.keysearch import FoundSamples, KeyQuery, SamplePlace, found_samples
from dfc.limits import SEARCH_LINES_DEFAULT, SEARCH_LOOKUP_S, SEARCH_SCAN_S
from dfc.placement.map import BucketEntry
from dfc.proxy.cluster import Cluster
from dfc.proxy.search.asking import TargetQuestions
from dfc.proxy.search.names import shard_names
from dfc.wire.objects import UnsearchedShard

LISTING_S: Final = 30.0  # to find out which shards there are


class SampleSearch:
    """*Search samples* of one cluster. `scan_s`: how long keys are looked through, unless one is looked up."""

    def __init__(self, cluster: Cluster, refusals: Refusals, scan_s: float = SEARCH_SCAN_S) -> None:
        self._cluster = cluster
        self._refusals = refusals
        self._scan_s = scan_s

    async def find(
        self,
        bucket: str,
        query: KeyQuery,
        shards: str | None = None,
        limit: int = SEARCH_LINES_DEFAULT,
        start: SamplePlace | None = None,
    ) -> FoundSamples:
        """Return at most `limit` samples of the shards of a spec (all by default) with keys that a query asks for.

        `start` is where a search that stopped goes on: in that shard if it is there, else with the next one. What could not be
        searched is said; a key is looked up in all shards, or it is an error. BucketNotFound, BadShardSpec, TooLarge;
        Unavailable, ObjectCorrupt.
        """
        entry, loop = await self._bucket(bucket), asyncio.get_running_loop()
        try:
            async with asyncio.timeout(LISTING_S):
                names = await shard_names(self._cluster, entry, shards)
        except TimeoutError:
            raise Unavailable("the shards could not be listed in time") from None
        before = 0 if start is None else bisect_left(names, start[0])
        names = names[before:]
        until_s = loop.time() + (SEARCH_LOOKUP_S if query.is_exact else self._scan_s)
        # One more than is wanted, to know whether there are more.
        questions = TargetQuestions(self._cluster, self._refusals, entry, query, limit + 1, start, until_s)
        parts, unsearched = await questions.ask(names)
        if query.is_exact and unsearched:
            raise _problem(unsearched[0])
        return await asyncio.to_thread(found_samples, parts, names, limit, unsearched, before)

    async def _bucket(self, name: str) -> BucketEntry:
        try:
            return self._cluster.bucket(name)
        except BucketNotFound:
            await self._cluster.newest()  # it may have been made at another proxy a moment ago
            return self._cluster.bucket(name)


def _problem(first: UnsearchedShard) -> Exception:
    kind = ObjectCorrupt if first.code == ObjectCorrupt.code else Unavailable
    return kind(f"{first.shard!r} cannot be searched: {first.message}")
