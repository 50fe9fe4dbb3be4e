"""List buckets across the cluster: merge the pages of all targets in byte order, complete or Unavailable.

Each target is asked for its share of a page and a little more; a target that turns out to have more of the names is asked
again. The proxy holds one page of each target in memory, whatever the size of the bucket.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from operator import itemgetter
from typing import Final, TypeVar
from urllib.parse import urlencode

from dfc.datasets import DatasetTally
from dfc.errors import MapChanging
from dfc.http.calls.problems import RemoteError
from dfc.limits import LIST_PAGE_MAX, LIST_ROW_BYTES_MAX
from dfc.pages import ListingQuery, Page, merge_pages
from dfc.placement.map import ClusterMap, NodeEntry
from dfc.proxy.cluster import Cluster
from dfc.wire.catalogue import DatasetInfo

T = TypeVar("T")
ROWS_HELD: Final = 5000  # at a time by what looks at all names, and shows none or few
MARGIN: Final = 64  # names asked for beyond a target's share of a small page,
MARGIN_OF_ALL: Final = 2000  # of all targets together; each row takes room
STEPS_MAX: Final = 20  # during one listing, after which it fails
MERGED_AT_ONCE: Final = 2000  # rows, on the event loop: 2 ms
STEP_S: Final = 0.02  # times the number of steps so far


class Listings:
    """Listings of the buckets of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def bucket_id(self, bucket: str) -> str:
        """Return the id of a bucket, for a query. BucketNotFound."""
        return self._cluster.bucket(bucket).id

    async def page(self, query: ListingQuery, limit: int) -> Page:
        """Return at most `limit` rows and prefixes. Unavailable while a target is down."""
        return await one_page(self._cluster, query, limit)

    def rows_held(self, query: ListingQuery, limit: int) -> int:
        """How many rows are in memory at a time for a page of so many: each target gives a little more than its share."""
        targets = len(self._cluster.targets_of(query.bucket_id, self._cluster.map))
        return _share(limit, targets) * targets

    async def datasets(self, query: ListingQuery) -> list[DatasetInfo]:
        """Return the shards of a listing grouped by their names. Unavailable; TooLarge."""
        tally = DatasetTally()
        async for page in self.pages(query):
            await asyncio.to_thread(tally.add, page.rows)
        return await asyncio.to_thread(tally.datasets)

    def pages(self, query: ListingQuery, rows: int = ROWS_HELD) -> AsyncIterator[Page]:
        """Yield the whole listing, piece by piece, each with about so many rows. Unavailable, at the first piece or in the
        middle."""
        return merged_pages(self._cluster, query, rows)


async def by_one_step(cluster: Cluster, ask: Callable[[ClusterMap], Awaitable[T]]) -> T:
    """Ask targets for parts of one answer by the map, and anew by a newer one if one of them is at another step: each part is
    what a target decides about, so that parts of two steps may lack objects. MapChanging if steps follow each other fast."""
    for changes in count(1):
        try:
            return await ask(cluster.map)
        except RemoteError as error:
            if error.code != MapChanging.code:
                raise
            if changes > STEPS_MAX:
                raise MapChanging(error.message) from error
            await asyncio.sleep(STEP_S * changes)
    raise AssertionError("unreachable")


async def _ask(cluster: Cluster, wanted: Mapping[str, ListingQuery], limit: int, step: int, node: NodeEntry) -> Page:
    query = wanted[node.id]
    parameters = urlencode(
        {
            "bucket_id": query.bucket_id,
            "prefix": query.prefix,
            "start_after": query.start_after,
            "delimiter": query.delimiter,
            "limit": limit,
            "step": step,
        }
    )
    most = (limit + 1) * LIST_ROW_BYTES_MAX
    return await cluster.control.call("GET", f"{node.url}/v1/node/objects?{parameters}", Page, bytes_max=most)


async def merged_pages(cluster: Cluster, query: ListingQuery, first_limit: int) -> AsyncIterator[Page]:
    """Yield the listing in pieces: the first is sized for `first_limit` names, all have at most LIST_PAGE_MAX per target."""
    shown, more, changes = query.start_after, True, 0
    while more:
        # Each object is listed by its primary, so all pages must be of one step.
        cluster_map = cluster.map  # read once: another thread may replace it
        step, targets = cluster_map.step, cluster.targets_of(query.bucket_id, cluster_map)
        share = _share(first_limit, len(targets))
        held: dict[str, Page] = {}
        positions = {node.id: shown for node in targets}
        try:
            while more:
                hungry = [node for node in targets if node.id not in held]

                wanted = {node.id: replace(query, start_after=positions[node.id]) for node in hungry}
                ask = partial(_ask, cluster, wanted, share, step)
                for node, page in zip(hungry, await cluster.ask_all(ask, hungry), strict=True):
                    held[node.id] = page
                    positions[node.id] = page.last or positions[node.id]
                merged = await _merged(list(held.values()), LIST_PAGE_MAX * len(targets))
                yield merged
                more, shown = merged.more, merged.last or shown
                for node_id, page in list(held.items()):
                    rest = _after(page, merged.last)
                    if rest is None:
                        del held[node_id]
                    else:
                        held[node_id] = rest
        except RemoteError as error:
            if error.code != MapChanging.code or changes == STEPS_MAX:
                raise
            changes += 1
            await asyncio.sleep(STEP_S * changes)


def _share(limit: int, targets: int) -> int:
    """How many rows each target is asked for."""
    return min(LIST_PAGE_MAX, limit // targets + limit // (8 * targets) + max(1, min(MARGIN, MARGIN_OF_ALL // targets)))


async def _merged(pages: list[Page], limit: int) -> Page:
    """Merge pages; in a thread when that takes long."""
    if sum(len(page.rows) + len(page.prefixes) for page in pages) <= MERGED_AT_ONCE:
        return merge_pages(pages, limit)
    return await asyncio.to_thread(merge_pages, pages, limit)


def _after(page: Page, last: str) -> Page | None:
    """Return the part of a target's page that is not shown yet; None when it is used up and the target has more."""
    rows = page.rows[bisect_right(page.rows, last, key=itemgetter(0)) :]
    prefixes = page.prefixes[bisect_right(page.prefixes, last) :]
    if not rows and not prefixes and page.more:
        return None
    return Page(rows, prefixes, page.more)


async def one_page(cluster: Cluster, query: ListingQuery, limit: int) -> Page:
    """Return one page of at most `limit` rows and prefixes."""
    collected = Page([], [], True)
    async for piece in merged_pages(cluster, query, limit):
        collected = Page(collected.rows + piece.rows, collected.prefixes + piece.prefixes, piece.more)
        if len(collected.rows) + len(collected.prefixes) >= limit:
            break
    # The last piece may end exactly at the limit although there is more.
    merged = await _merged([Page(collected.rows, collected.prefixes, False)], limit)
    return Page(merged.rows, merged.prefixes, merged.more or collected.more)
