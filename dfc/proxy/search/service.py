"""*Search samples*: find samples by their keys in many shards, at the targets that have them."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from dfc.addresses import Refusals
from dfc.errors import BucketNotFound, ObjectCorrupt, Unavailable
from dfc.keysearch import FoundSamples, KeyQuery, SamplePlace, found_samples
from dfc.limits import (
    SEARCH_BYTES,
    SEARCH_LINE_BYTES,
    SEARCH_LINES_DEFAULT,
    SEARCH_LINES_HELD,
    SEARCH_LOOKUP_S,
    SEARCH_SCAN_S,
    SEARCH_SHARD_BYTES,
)
from dfc.placement.map import BucketEntry
from dfc.proxy.cluster import Cluster
from dfc.proxy.search.asking import TargetQuestions
from dfc.proxy.search.names import chars_of, shard_names
from dfc.wire.objects import UnsearchedShard

LISTING_S: Final = 30.0  # to find out which shards there are


class SampleSearch:
    """*Search samples* of one cluster. `scan_s`: how long keys are looked through, unless one is looked up."""

    def __init__(self, cluster: Cluster, refusals: Refusals, scan_s: float = SEARCH_SCAN_S) -> None:
        self._cluster = cluster
        self._refusals = refusals
        self._scan_s = scan_s

    def room(self, limit: int) -> int:
        """How many bytes a search for so many lines may hold, before it is known which shards it goes through."""
        return SEARCH_BYTES + self._lines_bytes(limit)

    def _lines(self, limit: int) -> int:
        """How many each target is asked for: one more, to know whether there are more."""
        return min(limit, SEARCH_LINES_HELD // self._targets()) + 1

    def _lines_bytes(self, limit: int) -> int:
        return self._targets() * self._lines(limit) * SEARCH_LINE_BYTES

    def _targets(self) -> int:
        return len(self._cluster.map.targets()) or 1

    async def find(
        self,
        bucket: str,
        query: KeyQuery,
        shards: str | None = None,
        limit: int = SEARCH_LINES_DEFAULT,
        start: SamplePlace | None = None,
        holds: Callable[[int], None] | None = None,
    ) -> FoundSamples:
        """Return at most `limit` samples of the shards of a spec (all by default) with keys that a query asks for.

        `start` is where a search that stopped goes on: in that shard if it is there, else with the next one. What could not be
        searched is said; a key is looked up in all shards, or it is an error. `holds` is told how many bytes that takes, when
        it is known. BucketNotFound, BadShardSpec, TooLarge; Unavailable, ObjectCorrupt.
        """
        entry, loop = await self._bucket(bucket), asyncio.get_running_loop()
        try:
            async with asyncio.timeout(LISTING_S):
                names = await shard_names(self._cluster, entry, shards)
        except TimeoutError:
            raise Unavailable("the shards could not be listed in time") from None
        before = 0 if start is None else bisect_left(names, start[0])
        names = names[before:]
        if holds is not None:
            holds(2 * chars_of(names) + len(names) * SEARCH_SHARD_BYTES + self._lines_bytes(limit))
        until_s = loop.time() + (SEARCH_LOOKUP_S if query.is_exact else self._scan_s)
        questions = TargetQuestions(self._cluster, self._refusals, entry, query, self._lines(limit), start, until_s)
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
