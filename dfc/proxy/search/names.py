"""Which shards a search goes through: those of a spec, by name or by the listing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from dfc.errors import TooLarge
from dfc.limits import SEARCH_NAMES_CHARS_MAX, SEARCH_SHARDS_MAX
from dfc.pages import ListingQuery, Row
from dfc.placement.map import BucketEntry
from dfc.proxy.cluster import Cluster
from dfc.proxy.listing import ROWS_HELD, merged_pages
from dfc.shards import check, expand
from dfc.tar.index.format import index_kind

ALL_SHARDS = "**"


async def shard_names(cluster: Cluster, bucket: BucketEntry, shards: str | None) -> list[str]:
    """Return the names of a spec, sorted, each once: those that are given, whether they exist or not; of patterns and prefixes,
    those of shards that do. BadShardSpec, TooLarge, Unavailable."""
    spec = ALL_SHARDS if shards is None else shards
    check(spec)
    selection = await asyncio.to_thread(expand, spec)
    if isinstance(selection, list):
        names = await asyncio.to_thread(_sorted, selection)
        _check(len(names), chars_of(names))
        return names
    found, chars = list[str](), 0
    async for page in merged_pages(cluster, ListingQuery(bucket.id, selection.prefix), ROWS_HELD):
        more = await asyncio.to_thread(_matching, page.rows, selection.matches)
        found += more
        chars += chars_of(more)
        _check(len(found), chars)
    return found


def chars_of(names: Sequence[str]) -> int:
    """How long all of them are together."""
    return sum(map(len, names))


def _sorted(names: Sequence[str]) -> list[str]:
    return sorted(set(names))


def _matching(rows: Sequence[Row], matches: Callable[[str], bool]) -> list[str]:
    return [row[0] for row in rows if row[4] is not None and index_kind(row[0]) is not None and matches(row[0])]


def _check(count: int, chars: int) -> None:
    if count > SEARCH_SHARDS_MAX:
        raise TooLarge(f"one search goes through at most {SEARCH_SHARDS_MAX:,} shards: say which with shards=")
    if chars > SEARCH_NAMES_CHARS_MAX:
        raise TooLarge(
            f"the names of these shards have more than {SEARCH_NAMES_CHARS_MAX:,} characters: say fewer with shards="
        )
