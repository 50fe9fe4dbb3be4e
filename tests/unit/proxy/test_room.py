"""What listings and searches hold at a time is within the room that they ask for: their budgets are true."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from registering import target_entry

from dfc.addresses import Refusals
from dfc.api.shared import as_json, as_msgpack, room_of
from dfc.api.v1.buckets import found_lines
from dfc.http.budget import SEARCHES, Budget
from dfc.limits import LIST_PAGE_MAX, SEARCH_LINES_DEFAULT, SEARCH_SHARDS_MAX
from dfc.listing.pages import ListingQuery, Page
from dfc.listing.search import KeyQuery, SampleHit, SearchPart, SearchRequest
from dfc.placement.map import BucketEntry, ClusterMap, DiskEntry, NodeEntry
from dfc.proxy.objects import MARGIN, MARGIN_OF_ALL, Listings, _share
from dfc.proxy.samples import SampleSearch
from dfc.wire import PROTOCOL


@contextmanager
def tracked() -> Iterator[Callable[[], int]]:
    """How many bytes were taken at most since it began."""
    tracemalloc.start()
    try:
        begun, _ = tracemalloc.get_traced_memory()
        yield lambda: tracemalloc.get_traced_memory()[1] - begun
    finally:
        tracemalloc.stop()


class Targets:
    """Some targets, each with its share of so many shards, which answer as if their bytes had come by the network."""

    def __init__(self, shards: int, name_chars: int, targets: int) -> None:
        self.names = [f"{number:07d}".rjust(name_chars, "x") for number in range(shards)]
        self.nodes = [
            target_entry(f"t{at}", at + 1, protocol=PROTOCOL, disks=(DiskEntry(id=f"d{at}", weight=1.0),))
            for at in range(targets)
        ]
        self.map = ClusterMap(cluster_id="c", version=1, nodes=tuple(self.nodes))
        self.control = self
        self.answers: dict[tuple[str, str, int], bytes] = {}

    def bucket(self, name: str) -> BucketEntry:
        return BucketEntry(id="id", name=name)

    def targets_of(self, bucket_id: str, by: ClusterMap) -> list[NodeEntry]:
        return self.nodes

    def readers(self, bucket: BucketEntry, name: str) -> list[NodeEntry]:
        return [self.nodes[int(name[-7:].removesuffix(".tar")[-3:]) % len(self.nodes)]]

    async def ask_all(self, ask: Any, nodes: Any) -> list[Any]:
        return [await ask(node) for node in nodes]

    def made(self, target: str, after: str, limit: int) -> bytes:
        at, count = int(target[1:]), len(self.nodes)
        own = [name for name in self.names[at::count] if name > after]
        rows = [(name, 123456, "0" * 32, 1_700_000_000_000_000, 1000, 2000) for name in own[:limit]]
        return msgspec.msgpack.encode(Page(rows, [], len(own) > limit))

    async def call(self, method: str, url: str, kind: type[Page], *, bytes_max: int) -> Page:
        query = {key: values[0] for key, values in parse_qs(urlsplit(url).query).items()}
        asked = urlsplit(url).netloc, query.get("start_after", ""), int(query["limit"])
        if asked not in self.answers:
            self.answers[asked] = self.made(*asked)
        return msgspec.msgpack.decode(bytes(bytearray(self.answers[asked])), type=kind)

    async def fetch(self, method: str, url: str, body: bytes, headers: Any, **_: Any) -> tuple[int, str, bytes]:
        asked = msgspec.msgpack.decode(body, type=SearchRequest)
        hits = [SampleHit(shard, 1, "k" * 100, {"jpg": (512, 9), "cls": (1024, 1)}) for shard in asked.shards[: asked.limit]]
        return 200, "", msgspec.msgpack.encode(SearchPart(hits, len(asked.shards), None, [], []))


@pytest.mark.parametrize("render", [as_json, as_msgpack])
@pytest.mark.parametrize(("name_chars", "targets"), [(20, 2), (800, 2), (800, 20)])
async def test_a_page_of_a_listing(render: Callable[[Page], object], name_chars: int, targets: int) -> None:
    cluster: Any = Targets(LIST_PAGE_MAX * 2, name_chars, targets)
    listings = Listings(cluster)
    await listings.page(ListingQuery("id"), LIST_PAGE_MAX)  # what targets answer is made now
    with tracked() as most:
        answer = render(await listings.page(ListingQuery("id"), LIST_PAGE_MAX))
        assert most() <= room_of(listings, ListingQuery("id"), LIST_PAGE_MAX)
    assert answer is not None


@pytest.mark.parametrize("name_chars", [20, 160])
async def test_a_search(name_chars: int) -> None:
    cluster: Any = Targets(SEARCH_SHARDS_MAX // 5, name_chars, 2)
    for name in range(len(cluster.names)):
        cluster.names[name] = cluster.names[name][4:] + ".tar"
    search = SampleSearch(cluster, Refusals())
    told = list[int]()
    for _ in range(2):
        told.clear()
        with tracked() as most:
            found = await search.find("b", KeyQuery("contains", "k"), "**", 10_000, holds=told.append)
            assert len(found_lines(found)) > 10_000
            peak = most()
    assert peak <= told[0] <= search.room(10_000)


async def test_one_address_can_search_several_times_at_once() -> None:
    """Browsers behind a proxy that terminates TLS have one."""
    cluster: Any = Targets(10, 20, 2)
    room, budget = SampleSearch(cluster, Refusals()).room(SEARCH_LINES_DEFAULT), Budget(SEARCHES)
    places = [await asyncio.wait_for(budget.enter(room, "a"), 1) for _ in range(3)]
    places.append(await asyncio.wait_for(budget.enter(room, "b"), 1))
    for place in places:
        place.leave()


@pytest.mark.parametrize("targets", [1, 10, 200, 3000])
def test_a_small_page_of_a_large_cluster_takes_little_room(targets: int) -> None:
    assert _share(1, targets) * targets <= max(MARGIN + 2, MARGIN_OF_ALL + targets)
