"""Which rows of a disk are listed, so that each object is shown once."""

from __future__ import annotations

from typing import Any

import pytest
from calls import after, before
from copied import BUCKET, V1, Target, map_of
from copying import adopt_one

from dfc.checksum import ExpectedChecksums
from dfc.errors import MapChanging, NoLease
from dfc.placement.mapped import placement_of
from dfc.placement.roles import roles
from dfc.storage.catalog.copies import AdoptVerdict
from dfc.storage.copies import SmallCopy
from dfc.storage.rows import NO_REPLICA, Standing, Supplied
from dfc.target.copies import ledger
from dfc.target.copies.ledger import FIRST, ListedRows, rank_of
from dfc.target.listing import OwnListings
from dfc.wire import UNRANKED

NAMES = [f"o{number:03}" for number in range(120)]
DISKS = ("d1", "d2", "d3")
NO_CHECKSUMS = ExpectedChecksums()


@pytest.fixture
def rows(target: Target) -> ListedRows:
    """The disk has all objects, whatever it is to them; the ranks are those of the first map."""
    placement = placement_of(map_of())
    for name in NAMES:
        standing = Standing(rank_of(roles(placement, BUCKET, name), "d1"))
        verdict = AdoptVerdict(taken=True, commits=True, standing=standing)
        adopt_one(target.disk, SmallCopy(BUCKET, name, b"x", NO_CHECKSUMS, Supplied(V1), lambda _, it=verdict: it), "relaxed")
    return ListedRows(target.local, target.ledger)


def primaries(cluster_map: Any, disk: str = "d1") -> list[str]:
    placement = placement_of(cluster_map)
    return [name for name in NAMES if roles(placement, BUCKET, name).primary == disk]


def names(target: Target, rows: ListedRows, limit: int = 1000, **given: Any) -> list[str]:
    query = {"prefix": "", "start_after": "", "after_prefix": False, **given}
    found = rows.of(target.disk, BUCKET).tuples(target.disk, BUCKET, limit=limit, **query)
    return [row[0] for row in found]


CALM = map_of()
OTHERS = {
    "a target is down": map_of(2, 2, down=("d2",)),
    "a disk is out of sync": map_of(2, 2, out_of_sync_with={"d2": ("d3",)}),
    "this disk is out of sync": map_of(2, 2, out_of_sync_with={"d1": ("d2",)}),
    "both others are down": map_of(2, 2, down=("d2", "d3")),
    "getting more copies": map_of(2, 2, copies=1, written=2, wanted=2),
    "getting fewer copies": map_of(2, 2, copies=1, written=2, wanted=1),
    "three copies": map_of(2, 2, copies=3),
    "one copy": map_of(2, 2, copies=1),
}


def test_where_all_is_calm_the_rank_tells(target: Target, rows: ListedRows) -> None:
    assert rows.of(target.disk, BUCKET) is FIRST
    assert names(target, rows) == primaries(CALM)
    assert 0 < len(primaries(CALM)) < len(NAMES)


@pytest.mark.parametrize("cluster_map", OTHERS.values(), ids=OTHERS)
def test_otherwise_the_primary_of_each_name(target: Target, rows: ListedRows, cluster_map: Any) -> None:
    target.take_map(cluster_map)
    assert names(target, rows) == primaries(cluster_map)
    assert sum(len(primaries(cluster_map, disk)) for disk in DISKS) <= len(NAMES)


@pytest.mark.parametrize("cluster_map", [CALM, OTHERS["a target is down"]], ids=["calm", "down"])
@pytest.mark.parametrize("scanned", [1, 7, 1000])
def test_pages(target: Target, rows: ListedRows, monkeypatch: pytest.MonkeyPatch, cluster_map: Any, scanned: int) -> None:
    monkeypatch.setattr(ledger, "SCAN_ROWS", scanned)
    target.take_map(cluster_map)
    expected, found, after = primaries(cluster_map), list[str](), ""
    while page := names(target, rows, limit=5, start_after=after):
        assert len(page) == 5 or page[-1] == expected[-1], "shorter only at the end"
        found += page
        after = page[-1]
    assert found == expected
    assert names(target, rows, limit=1) == expected[:1]
    assert names(target, rows, prefix="o01") == [name for name in expected if name.startswith("o01")]
    assert names(target, rows, prefix="none") == []
    assert names(target, rows, start_after="o05", after_prefix=True) == [name for name in expected if name >= "o06"]
    assert names(target, rows, start_after=NAMES[-1]) == []


def test_a_rebuilt_catalog_has_no_ranks_yet(target: Target, rows: ListedRows) -> None:
    target.disk.copies.set_ranks([(BUCKET, name, 0) for name in NAMES])
    target.ledger.ranked["d1"] = 0
    assert names(target, rows) == primaries(CALM)
    target.disk.copies.set_ranks([(BUCKET, name, NO_REPLICA) for name in NAMES])
    assert names(target, rows) == primaries(CALM)
    target.ledger.ranked["d1"] = 1
    assert names(target, rows) == []


async def test_counts_by_the_replicas_of_before_a_move_say_so(target: Target, rows: ListedRows) -> None:
    listings = OwnListings(target.local, rows)
    assert (await listings.counts()).get(UNRANKED) is None
    target.ledger.ranked["d1"] = 0
    assert (await listings.counts())[UNRANKED] == (1, 0)


def test_nothing_is_listed_twice_whoever_is_down(target: Target, rows: ListedRows) -> None:
    for number, down in enumerate(((), ("d1",), ("d2",), ("d3",), ("d2", "d3"))):
        cluster_map = map_of(2 + number, 2 + number, down=down)
        target.take_map(cluster_map)
        assert names(target, rows) == primaries(cluster_map)
        shown = [name for disk in DISKS for name in primaries(cluster_map, disk)]
        assert len(shown) == len(set(shown))
        assert len(down) > 1 or sorted(shown) == NAMES, "and nothing is missing while one is down"


async def test_a_page_is_of_one_step(target: Target, rows: ListedRows) -> None:
    """By another one, an object may be listed by two targets, or by none."""
    listings, asked = OwnListings(target.local, rows), (BUCKET, "", "", "", 1000)
    target.control.maps["http://proxy"] = map_of()
    assert [row[0] for row in (await listings.page(*asked, step=1)).rows] == primaries(CALM)
    for step in (0, 2):
        with pytest.raises(MapChanging):
            await listings.page(*asked, step=step)
    after(target.disk, "list_tuples", lambda *_, **__: target.take_map(map_of(2, 2, down=("d2",))))
    with pytest.raises(MapChanging):
        await listings.page(*asked, step=1)


async def test_what_is_listed_and_counted_without_a_lease_is_not_told(target: Target, rows: ListedRows) -> None:
    """What is not in it would be taken for something that does not exist."""
    listings = OwnListings(target.local, rows)
    assert await listings.counts() == {BUCKET: target.disk.counts(BUCKET)}
    before(target.disk, "list_tuples", lambda *_, **__: target.local.lease.end())
    with pytest.raises(NoLease):
        await listings.page(BUCKET, "", "", "", 1000, step=1)
    with pytest.raises(NoLease):
        await listings.counts()
