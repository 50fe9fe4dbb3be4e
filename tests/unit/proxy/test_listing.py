"""Listings over all targets: complete, in order and in bounded pages, with targets that hold very different shares."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from registering import target_entry

from dfc.errors import BadRequest, Unavailable
from dfc.listing.pages import ListingQuery, Page
from dfc.placement.map import ClusterMap
from dfc.proxy import objects
from dfc.proxy.objects import merged_pages, one_page

NAMES = st.text(alphabet="ab/é", min_size=1, max_size=5)


def in_bytes(names):
    return sorted(names, key=str.encode)


def entry_of(name, prefix, delimiter):
    at = name.find(delimiter, len(prefix)) if delimiter else -1
    return name if at < 0 else name[: at + 1]


class FakeCluster:
    """Targets that answer `/v1/node/objects` from sets of names. `asked` has the limits of all calls."""

    def __init__(self, parts):
        self.parts = {f"t{number}": names for number, names in enumerate(parts)}
        self.control = self
        self.asked = []
        self.down = False

    map = ClusterMap(cluster_id="c", version=1)

    def targets_of(self, bucket_id, cluster_map):
        assert cluster_map is self.map
        assert bucket_id == "id"
        if self.down:
            raise Unavailable("a target is down")
        return [target_entry(name) for name in self.parts]

    async def ask_all(self, ask, nodes):
        return [await ask(node) for node in nodes]

    async def call(self, method, url, kind, *, bytes_max):
        assert (method, kind) == ("GET", Page)
        parts = urlsplit(url)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        prefix, delimiter, limit = query.get("prefix", ""), query.get("delimiter", ""), int(query["limit"])
        after = query.get("start_after", "").encode()
        assert (query["bucket_id"], query["step"]) == ("id", "0")
        self.asked.append(limit)
        names = {entry_of(n, prefix, delimiter) for n in self.parts[parts.netloc] if n.startswith(prefix)}
        entries = in_bytes(entry for entry in names if entry.encode() > after)
        shown = entries[:limit]
        rows = [(e, 1, "0" * 32, 0, None, None) for e in shown if not delimiter or not e.endswith(delimiter)]
        return Page(rows, [e for e in shown if delimiter and e.endswith(delimiter)], len(entries) > limit)


def entries_of(page):
    return in_bytes([row[0] for row in page.rows] + page.prefixes)


@pytest.fixture
def small_shares(monkeypatch):
    """Targets are asked for so little that they have to be asked often."""
    monkeypatch.setattr(objects, "MARGIN", 1)


@given(
    st.sets(NAMES, max_size=25),
    st.integers(1, 4),
    st.text(alphabet="ab/", max_size=2),
    st.text(alphabet="ab/é", max_size=3),
    st.sampled_from(["", "/"]),
    st.integers(1, 8),
    st.randoms(),
)
def test_pages_against_the_model(names, count, prefix, start_after, delimiter, limit, random):
    parts = [set() for _ in range(count)]
    for name in names:
        random.choice(parts).add(name)
    wanted = in_bytes(
        entry
        for entry in {entry_of(name, prefix, delimiter) for name in names if name.startswith(prefix)}
        if entry.encode() > start_after.encode()
    )
    before, objects.MARGIN = objects.MARGIN, 1
    try:
        asyncio.run(follow_all(FakeCluster(parts), ListingQuery("id", prefix, start_after, delimiter), limit, wanted))
    finally:
        objects.MARGIN = before


async def follow_all(cluster, query, limit, wanted):
    pieces = [entries_of(piece) async for piece in merged_pages(cluster, query, limit)]
    assert [entry for piece in pieces for entry in piece] == wanted
    found, position = [], query.start_after
    for _ in range(len(wanted) + 2):
        page = await one_page(cluster, ListingQuery(query.bucket_id, query.prefix, position, query.delimiter), limit)
        assert len(page.rows) + len(page.prefixes) <= limit
        found += entries_of(page)
        if not page.more:
            break
        position = page.last
    assert found == wanted


async def test_one_target_with_all_the_names(small_shares):
    names = {f"{number:05d}" for number in range(1000)}
    cluster = FakeCluster([names, set(), set(), set()])
    found = []
    async for piece in merged_pages(cluster, ListingQuery("id"), 100):
        found += [row[0] for row in piece.rows]
    assert found == sorted(names)
    page = await one_page(FakeCluster([names, set(), set(), set()]), ListingQuery("id"), 100)
    assert ([row[0] for row in page.rows], page.more) == (sorted(names)[:100], True)


async def test_a_page_asks_each_target_for_its_share_only():
    cluster = FakeCluster([{f"{t}{number:05d}" for number in range(5000)} for t in range(4)])
    await one_page(cluster, ListingQuery("id"), 100)
    assert max(cluster.asked) < 100
    cluster.asked.clear()
    await one_page(cluster, ListingQuery("id"), 10_000)
    assert max(cluster.asked) <= 10_000


async def test_a_listing_without_all_targets_is_refused():
    cluster = FakeCluster([{"a"}])
    cluster.down = True
    with pytest.raises(Unavailable):
        await one_page(cluster, ListingQuery("id"), 10)


def test_a_delimiter_is_one_character():
    assert ListingQuery("id", delimiter="/").delimiter == "/"
    with pytest.raises(BadRequest, match="single character"):
        ListingQuery("id", delimiter="//")
