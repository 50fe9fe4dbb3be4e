"""Digests of copies, and what is done with an object of which two disks do not have the same."""

from __future__ import annotations

import msgspec
import pytest
from placements import BUCKET, placement, with_disk, with_slices

from dfc.placement.roles import Copies, LayoutSpec, SliceState, roles, slice_number
from dfc.replication.compare import (
    BothSeen,
    Pair,
    Remedy,
    Seen,
    SliceDigests,
    compared_buckets,
    differing_names,
    fold,
    pairs_of,
    remedy,
    row_digest,
    shared,
    why_not_compared,
)

DISKS = ("n1a", "n2a", "n3a")
V1, V2 = "0600000000000100ff", "0600000000000200ff"
FORGOTTEN = "07"  # tombstones of both may be forgotten
ROWS = [(BUCKET, f"o{number}", V1, "sum") for number in range(300)]
ALL = range(256)


def folded(state, disk, rows=ROWS) -> dict[Pair, SliceDigests]:
    found: dict[Pair, SliceDigests] = {}
    here = [row for row in rows if disk in roles(state, row[0], row[1]).replicas]
    fold(state, disk, here, compared_buckets(state, ()), found)
    return found


def test_both_disks_of_a_pair_have_the_same_digests():
    state = placement(*DISKS)
    tables = {disk: folded(state, disk) for disk in DISKS}
    pairs = [(one, other) for one in DISKS for other in DISKS if one != other]
    for primary, replica in pairs:
        mine, theirs = tables[primary][primary, replica], tables[replica][primary, replica]
        assert mine.differing(theirs) == []
        assert mine.rows == theirs.rows > 10
        assert mine.differing(SliceDigests(theirs.folds.tobytes(), theirs.counts.tobytes())) == [], "as they travel"
    assert sum(tables[primary][primary, replica].rows for primary, replica in pairs) == len(ROWS)


@pytest.mark.parametrize("change", ["gone", "older", "other bytes", "twice"])
def test_one_object_that_differs_shows_in_its_slice(change):
    state = placement(*DISKS)
    name = next(row[1] for row in ROWS if roles(state, BUCKET, row[1]).replicas == ("n1a", "n2a"))
    rows = {row[1]: row for row in ROWS}
    if change == "gone":
        del rows[name]
    elif change == "older":
        rows[name] = (BUCKET, name, "05" + V1[2:], "sum")
    elif change == "other bytes":
        rows[name] = (BUCKET, name, V1, "mus")
    else:  # two changes that cancel each other out in the fold, but not in the count
        found = folded(state, "n2a")["n1a", "n2a"]
        digest = row_digest(BUCKET, name, V1, "sum")
        before = SliceDigests(found.folds.tobytes(), found.counts.tobytes())
        for _ in range(2):
            found.add(slice_number(BUCKET, name), digest)
        assert before.differing(found) == [slice_number(BUCKET, name)]
        return
    mine, theirs = folded(state, "n1a"), folded(state, "n2a", list(rows.values()))
    assert mine["n1a", "n2a"].differing(theirs["n1a", "n2a"]) == [slice_number(BUCKET, name)]
    pair = ("n1a", "n2a")
    own, other = shared(state, pair, ROWS, ALL), shared(state, pair, rows.values(), ALL)
    assert list(differing_names(own, other)) == [name]


def test_names_are_compared_in_byte_order():
    found = differing_names({"\U0001f600": 1, "a": 1, "same": 2}, {"\uffff": 1, "a": 2, "same": 2})
    assert list(found) == ["a", "\uffff", "\U0001f600"]


def test_whoever_decides_now_is_the_primary():
    """The second replica takes the place of one that is not up."""
    state = with_disk(placement(*DISKS), "n1a", status="down")
    mine, theirs = folded(state, "n2a"), folded(state, "n3a")
    assert set(mine) == {("n2a", "n1a"), ("n2a", "n3a"), ("n3a", "n2a")}
    assert mine["n2a", "n3a"].differing(theirs["n2a", "n3a"]) == []


def test_what_is_not_shared_is_in_no_digest():
    state = placement(*DISKS, copies=1)
    assert (compared_buckets(state, ()), folded(state, "n1a"), pairs_of(state, "n1a")) == (frozenset(), {}, [])
    state, found = placement(*DISKS), dict[Pair, SliceDigests]()
    fold(state, "n1a", ROWS, (BUCKET,), found)  # rows of which it is no replica among them
    assert found.keys() == folded(state, "n1a").keys()
    assert all(found[pair].differing(each) == [] for pair, each in folded(state, "n1a").items())
    assert compared_buckets(state, ("other",)) == frozenset()


def test_digests_of_another_size_are_refused():
    with pytest.raises(ValueError, match="no digests"):
        SliceDigests(b"12345678")


def test_who_is_compared_with_whom():
    state = placement("n1a", "n1b", "n2a", "n3a")
    assert pairs_of(state, "n1a") == ["n2a", "n3a"], "two copies are never in one domain"
    gone = msgspec.structs.replace(state, layouts={1: LayoutSpec(frozenset(state.disks), frozenset(("n3a",)))})
    assert (pairs_of(gone, "n1a"), pairs_of(gone, "n3a")) == (["n2a"], [])


def test_when_disks_are_compared():
    state = placement(*DISKS)
    assert why_not_compared(state, "n1a", "n2a") == ""
    assert why_not_compared(with_disk(state, "n3a", status="down"), "n1a", "n2a") == "", "another one is away"
    for disk in ("n1a", "n2a"):
        assert why_not_compared(with_disk(state, disk, status="down"), "n1a", "n2a") == f"disk {disk} is down"
        lagging = with_disk(state, disk, out_of_sync_with=frozenset(("n3a",)))
        assert "catching up" in why_not_compared(lagging, "n1a", "n2a")
    moving = with_slices(state, SliceState(1, 2, "copying"), to=frozenset(("n1a", "n2a")))
    assert "moved" in why_not_compared(moving, "n1a", "n2a")
    raised = msgspec.structs.replace(state, copies={BUCKET: Copies(1, 2, 2)})
    assert "copies" in why_not_compared(raised, "n1a", "n2a")
    assert "not in the cluster map" in why_not_compared(state, "n1a", "n9a")


ONE, TWO, OTHER = Seen(V1, "one"), Seen(V2, "two"), Seen(V1, "other")
GONE1, GONE2, NOTHING = Seen(V1), Seen(V2), Seen(None)


@pytest.mark.parametrize(
    ("primary", "replica", "wanted"),
    [
        (ONE, ONE, Remedy.NONE),
        (ONE, NOTHING, Remedy.MISSING),
        (TWO, ONE, Remedy.MISSING),
        (TWO, GONE1, Remedy.MISSING),
        (GONE2, ONE, Remedy.MISSING),
        (ONE, TWO, Remedy.ALARM),
        (ONE, GONE2, Remedy.ALARM),
        (GONE1, TWO, Remedy.ALARM),
        (ONE, OTHER, Remedy.ALARM),
        (ONE, GONE1, Remedy.ALARM),
        (GONE1, ONE, Remedy.ALARM),
        (NOTHING, ONE, Remedy.SET_ASIDE),
        (GONE1, NOTHING, Remedy.NONE),
        (NOTHING, GONE1, Remedy.NONE),
        (GONE1, GONE2, Remedy.NONE),
        (NOTHING, NOTHING, Remedy.NONE),
    ],
)
def test_what_is_done_with_a_difference(primary, replica, wanted):
    both = BothSeen(primary, replica)
    assert remedy(both, both, FORGOTTEN) is wanted


def test_what_cannot_have_been_deleted_without_a_trace_was_lost_by_its_primary():
    """Since its tombstone would still be there."""
    young = BothSeen(NOTHING, ONE)
    assert remedy(young, young, V1) is Remedy.SET_ASIDE
    assert remedy(young, young, V1[:-1]) is Remedy.LOST
    pending = young._replace(replica=ONE._replace(is_sure=False))
    assert remedy(pending, pending, V1[:-1]) is Remedy.WAIT


@pytest.mark.parametrize("replica", [NOTHING, ONE, TWO, OTHER])
def test_nothing_is_concluded_from_what_is_on_its_way(replica):
    primary = TWO if replica is not TWO else ONE
    both = BothSeen(primary, replica)
    for change in ({"primary": primary._replace(is_sure=False)}, {"replica": replica._replace(is_sure=False)}):
        unsure = both._replace(**change)
        assert remedy(unsure, unsure, FORGOTTEN) is Remedy.WAIT
    before = BothSeen(ONE, NOTHING)
    assert remedy(before, both, FORGOTTEN) is (Remedy.WAIT if both != before else Remedy.MISSING)
    assert remedy(both, both._replace(is_hinted=True), FORGOTTEN) is Remedy.NONE, "it gets that"
