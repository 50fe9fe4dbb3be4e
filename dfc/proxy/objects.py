"""Objects at a proxy: who has one, batch reads, listings and keys."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from operator import itemgetter
from typing import Final, TypeVar
from urllib.parse import urlencode

import aiohttp

from dfc.addresses import Refusals
from dfc.batch.gather import GatheredBatch, gather_batch
from dfc.batch.items import BatchRequest
from dfc.batch.peers import PeerParts
from dfc.errors import BadRequest, MapChanging, Unavailable
from dfc.http.budget import BudgetPlace
from dfc.http.peer import PeerPool
from dfc.http.retry import RemoteError
from dfc.http.shutdown import end
from dfc.limits import LIST_PAGE_MAX, LIST_ROW_BYTES_MAX, NODE_ANSWER_BYTES_MAX, NODE_LIST_STALL_S
from dfc.listing.datasets import DatasetTally
from dfc.listing.pages import ListingQuery, Page, merge_pages
from dfc.listing.specs import check
from dfc.placement.map import ClusterMap, NodeEntry
from dfc.placement.mapped import in_order, reader_ids
from dfc.proxy.cluster import Cluster
from dfc.wire.objects import DatasetInfo


class Objects:
    """Gives faces access to the owners of objects, only through `when_ready`, so that none can forget the check."""

    def __init__(self, cluster: Cluster, refusals: Refusals | None = None) -> None:
        self._cluster = cluster
        self._owners = ObjectOwners(cluster, refusals or Refusals())

    def when_ready(self) -> ObjectOwners:
        """Return the owners; Unavailable until the expected targets have joined, since objects would be placed on too few."""
        self._cluster.check_ready()
        return self._owners


class ObjectOwners:
    """Finds the nodes of objects. Unavailable, with Retry-After, when they are down. `refusals` are asked last."""

    def __init__(self, cluster: Cluster, refusals: Refusals) -> None:
        self._cluster = cluster
        self._refusals = refusals

    def readers(self, bucket: str, name: str) -> list[NodeEntry]:
        """Return the nodes to read an object from, in the order to ask them. BucketNotFound."""
        return in_order(self._cluster.readers(self._cluster.bucket(bucket), name), self._refusals)

    def of(self, bucket: str, name: str) -> NodeEntry:
        """Return the node that decides about an object, to delete it at. BucketNotFound."""
        return self._cluster.primary(self._cluster.bucket(bucket), name)

    async def for_write(self, bucket: str, name: str) -> NodeEntry:
        """Return the node to store an object at, creating its bucket if allowed. BucketNotFound, BucketDeleting."""
        return self._cluster.primary(await self._cluster.bucket_for_write(bucket), name)


# --- Batch reads at a proxy: ask the owners of the items for their parts and merge them.


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
        return await gather_batch(request, self._owner_of, self._peers.open, place, threads, with_lengths=with_lengths)

    def _owner_of(self, bucket: str, name: str) -> str:
        entry = self._cluster.map.bucket(bucket)
        if entry is None:
            return self._cluster.any_target().id  # where the item is found to be missing
        return in_order(self._cluster.readers(entry, name), self._refusals)[0].id

    def _readers_of(self, bucket: str, name: str) -> list[str]:
        return reader_ids(self._cluster.map, bucket, name, self._refusals)


# --- List buckets across the cluster: merge the pages of all targets in byte order, complete or Unavailable.
#
# Each target is asked for its share of a page and a little more; a target that turns out to have more of the names is asked
# again. The proxy holds one page of each target in memory, whatever the size of the bucket.

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


# --- Stream the keys of samples from all targets in parallel, one line per sample, with the shards in no order.

STREAM_QUEUE: Final = 8  # pieces of about 64 KiB that wait for a slow reader
ALL_SHARDS: Final = "**"


class KeyLines:
    """An open stream of lines from all targets. Close it even if nothing was read; an error of one target ends all."""

    def __init__(self, streams: Sequence[aiohttp.ClientResponse]) -> None:
        self._streams = streams

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield complete lines, some at a time. Unavailable when a target breaks off, so that a short result is noticed."""
        queue: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue(STREAM_QUEUE)
        tasks = [asyncio.create_task(_pump(stream, queue)) for stream in self._streams]
        try:
            left = len(tasks)
            while left:
                item = await queue.get()
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    left -= 1
                else:
                    yield item
        finally:
            with suppress(asyncio.CancelledError):
                await end(*tasks)

    def close(self) -> None:
        for stream in self._streams:
            stream.close()


class SampleKeys:
    """*List keys* of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def open(self, bucket: str, shards: str | None = None, fields: str = "") -> KeyLines:
        """Open the stream of the samples of a spec, all shards by default, with all fields or, if `fields` is "key", only keys.
        BucketNotFound, BadShardSpec, BadRequest, and any error of a target before its first line."""
        bucket_id = self._cluster.bucket(bucket).id
        shards = ALL_SHARDS if shards is None else shards
        check(shards)
        if fields not in ("", "key"):
            raise BadRequest("fields must be 'key' or left out")

        async def ask(cluster_map: ClusterMap) -> KeyLines:
            streams: list[aiohttp.ClientResponse] = []

            async def begin(node: NodeEntry) -> None:
                asked = {"bucket": bucket, "shards": shards, "fields": fields, "step": cluster_map.step}
                url = f"{node.url}/v1/node/samples?{urlencode(asked)}"
                streams.append(await self._cluster.control.open_stream(url, stall_s=NODE_LIST_STALL_S))

            try:
                nodes = self._cluster.targets_of(bucket_id, cluster_map)
                for failure in await asyncio.gather(*map(begin, nodes), return_exceptions=True):
                    if failure is not None:
                        raise failure
            except BaseException:
                KeyLines(streams).close()
                raise
            return KeyLines(streams)

        return await by_one_step(self._cluster, ask)


def _without_signs(lines: bytes) -> bytes:
    """Whole lines without the empty ones, by which a target says that it is still looking."""
    if b"\n\n" not in lines and not lines.startswith(b"\n"):
        return lines
    return b"".join(line + b"\n" for line in lines.split(b"\n") if line)


async def _pump(stream: aiohttp.ClientResponse, queue: asyncio.Queue[bytes | BaseException | None]) -> None:
    """Put the lines of a stream into a queue, and at its end None or an error."""
    begun = b""
    try:
        async for piece in stream.content.iter_any():
            lines, newline, rest = (begun + piece).rpartition(b"\n")
            if lines.strip(b"\n"):
                await queue.put(_without_signs(lines + newline))
            begun = rest
            if len(begun) > NODE_ANSWER_BYTES_MAX:
                raise TimeoutError("a line without an end")
        await queue.put(Unavailable("a target broke off its answer in the middle of a line") if begun else None)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        await queue.put(Unavailable(f"a target broke off its answer: {error}"))
