"""Weights of disks: what is wanted, what is in force, and who has which share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec
import pytest
from placements import one_disk_each

from dfc.placement.map import BucketEntry, ClusterMap, LayoutEntry, RebalanceEntry, SliceRun
from dfc.placement.mapped import is_waiting, placement_of, present_weights, share_out, wanted_layout, wanted_weights
from dfc.placement.roles import LayoutSpec, roles

DISKS = ("d0", "d1", "d2", "d3")
ONE, TWO = BucketEntry(id="one", name="one"), BucketEntry(id="two", name="two", copies=2)
NAMES = [f"name-{number}" for number in range(3000)]


def cluster(
    wanted: Mapping[str, float],
    *layouts: LayoutEntry,
    evicted: tuple[str, ...] = (),
    out: tuple[str, ...] = (),
    buckets: tuple[BucketEntry, ...] = (TWO,),
    paused: bool = False,
) -> ClusterMap:
    """Four targets with a disk each, which are to have these weights. Objects are where the first of the layouts says."""
    more = {disk: {"evicted": disk in evicted, "wanted_weight": wanted.get(disk, 0.0)} for disk in DISKS}
    nodes = one_disk_each(DISKS, dict.fromkeys(out, "out"), more)
    slices = (SliceRun(first=0, at=layouts[0].number),) if layouts else ()
    known = ClusterMap(cluster_id="c", version=5, step=3, nodes=nodes, buckets=buckets, layouts=layouts, slices=slices)
    return msgspec.structs.replace(known, rebalance=RebalanceEntry(paused=paused))


def layout(number: int = 1, gone: tuple[str, ...] = (), **weights: float) -> LayoutEntry:
    return LayoutEntry(number=number, disks=DISKS, gone=gone, weights=weights)


ALL = frozenset(DISKS)


def test_a_weight_that_is_wanted_makes_another_layout() -> None:
    assert wanted_layout(cluster({}, layout())) is None
    assert wanted_layout(cluster({"d1": 1.0}, layout())) is None, "it has it already"
    assert wanted_layout(cluster({"d1": 0.5}, layout())) == LayoutSpec(ALL, weights={"d1": 0.5})
    assert wanted_layout(cluster({"d1": 0.5}, layout(d1=0.5))) is None
    assert wanted_layout(cluster({"d1": 0.5}, layout(d1=0.5, d2=3.0))) == LayoutSpec(ALL, weights={"d1": 0.5})
    assert wanted_layout(cluster({}, layout(d1=0.5))) == LayoutSpec(ALL), "that with which it joined"
    drained = cluster({"d1": 0.5, "d2": 2.0}, layout(), out=("d1",))
    assert wanted_layout(drained) == LayoutSpec(ALL - {"d1"}, weights={"d2": 2.0})


def test_weights_wait_while_moves_are_paused_or_only_a_lost_disk_may_have_an_object() -> None:
    paused = cluster({"d1": 0.5}, layout(), paused=True)
    assert (wanted_layout(paused), is_waiting(paused)) == (None, True)
    going = cluster({"d1": 0.5, "d2": 2.0}, layout(d1=0.5), paused=True, evicted=("d0",))
    assert wanted_layout(going) == LayoutSpec(ALL, frozenset(("d0",)), {"d1": 0.5})
    lost = cluster({"d1": 0.5}, layout(gone=("d0",)), evicted=("d0",), buckets=(ONE, TWO))
    assert (wanted_layout(lost), is_waiting(lost)) == (None, True)
    copied = cluster({"d1": 0.5}, layout(gone=("d0",)), evicted=("d0",))
    assert wanted_layout(copied) == LayoutSpec(ALL, frozenset(("d0",)), {"d1": 0.5})
    assert not is_waiting(cluster({"d1": 0.5}, layout(d1=0.5)))
    back = cluster({"d1": 0.5, "d0": 2.0}, layout(gone=("d0",), d1=0.5), evicted=("d0",), buckets=(ONE, TWO))
    assert not is_waiting(back), "what is not there waits for itself"


def test_which_weights_are_wanted_and_in_force() -> None:
    known = cluster({"d1": 0.5, "d2": 1.0}, layout(d3=2.0))
    assert wanted_weights(known) == {"d1": 0.5}
    assert present_weights(known) == {"d0": 1.0, "d1": 1.0, "d2": 1.0, "d3": 2.0}
    moving = cluster({"d1": 0.5}, layout(), layout(2, d1=0.5))
    assert present_weights(moving) == dict.fromkeys(DISKS, 1.0), "until all is moved"
    assert present_weights(cluster({}))["d1"] == 1.0
    outside = LayoutEntry(number=1, disks=("d0", "d1"))
    assert present_weights(cluster({"d3": 7.0}, outside)) == {"d0": 1.0, "d1": 1.0, "d2": 1.0, "d3": 7.0}


def test_the_map_and_its_placement_agree_about_weights() -> None:
    known = ClusterMap.decode(cluster({}, layout(d0=4.0, d3=0.25), buckets=(ONE,)).encode())
    for name in NAMES[:300]:
        assert known.owner(ONE, name).disk.id == roles(placement_of(known), "one", name).primary


@pytest.mark.parametrize("copies", [1, 2])
def test_only_names_of_the_disk_with_another_weight_move(copies: int) -> None:
    bucket = BucketEntry(id="b", name="b", copies=copies)
    before, after = (placement_of(cluster({}, each, buckets=(bucket,))) for each in (layout(), layout(d1=0.5)))
    share = Counter[str]()
    for name in NAMES:
        old, new = set(roles(before, "b", name).replicas), set(roles(after, "b", name).replicas)
        assert old == new or old - new == {"d1"}, "from it, to others"
        share.update(new)
    if copies == 1:
        assert share["d1"] / len(NAMES) == pytest.approx(0.5 / 3.5, abs=0.02)


def test_shares_of_a_total() -> None:
    assert share_out(3.0, {"a": 1.0}) == {"a": 3.0}
    assert share_out(3.0, {"a": 7.3, "b": 7.3}) == {"a": 1.5, "b": 1.5}
    assert share_out(1.0, {"a": 3.0, "b": 1.0}) == {"a": 0.75, "b": 0.25}


def test_an_older_map_means_what_it_meant() -> None:
    known = cluster({}, layout())
    found = msgspec.json.decode(known.encode())
    assert "weights" not in found["layouts"][0]
    for node in found["nodes"]:
        for disk in node["disks"]:
            del disk["wanted_weight"]
    assert ClusterMap.decode(msgspec.json.encode(found)) == known
