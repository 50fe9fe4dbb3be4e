"""Which layout is wanted when lost disks are removed for good."""

from __future__ import annotations

import msgspec
from placements import one_disk_each

from dfc.placement.map import BucketEntry, ClusterMap, LayoutEntry, RebalanceEntry, SliceRun
from dfc.placement.mapped import is_waiting, wanted_layout
from dfc.placement.roles import LayoutSpec

DISKS = ("d0", "d1", "d2", "d3")
ALL = frozenset(DISKS)
ONE, TWO = BucketEntry(id="one", name="one"), BucketEntry(id="two", name="two", copies=2)


def cluster(
    *layouts: LayoutEntry,
    removing: tuple[str, ...] = (),
    evicted: tuple[str, ...] = (),
    new: tuple[str, ...] = (),
    buckets: tuple[BucketEntry, ...] = (ONE, TWO),
    paused: bool = False,
) -> ClusterMap:
    """Four targets with a disk each; objects are where the first of the layouts says, and go to the last one."""
    uses = {**dict.fromkeys(new, "new"), **dict.fromkeys(removing, "out")}
    more = {disk: {"evicted": disk in (*evicted, *removing), "removing": disk in removing} for disk in DISKS}
    nodes = one_disk_each(DISKS, uses, more)
    to = layouts[-1].number if len(layouts) > 1 else None
    slices = (SliceRun(first=0, at=layouts[0].number, to=to, phase="done" if to is None else "copying"),)
    known = ClusterMap(cluster_id="c", version=5, step=3, nodes=nodes, buckets=buckets, layouts=layouts, slices=slices)
    return msgspec.structs.replace(known, rebalance=RebalanceEntry(paused=paused))


def layout(number: int = 1, without: tuple[str, ...] = (), gone: tuple[str, ...] = ()) -> LayoutEntry:
    return LayoutEntry(number=number, disks=tuple(disk for disk in DISKS if disk not in without), gone=gone)


def test_it_is_given_up_first_and_then_leaves() -> None:
    assert wanted_layout(cluster(layout(), removing=("d0",))) == LayoutSpec(ALL, frozenset(("d0",)))
    assert wanted_layout(cluster(layout(), layout(2, gone=("d0",)), removing=("d0",))) is None, "copies are being made"
    lost = cluster(layout(2, gone=("d0",)), removing=("d0",))
    assert wanted_layout(lost) == LayoutSpec(ALL - {"d0"}), "also with buckets that have one copy"
    assert is_waiting(lost)
    leaving = cluster(layout(2, gone=("d0",)), layout(3, without=("d0",)), removing=("d0",))
    assert (wanted_layout(leaving), is_waiting(leaving)) == (None, False)
    gone = cluster(layout(3, without=("d0",)), removing=("d0",))
    assert (wanted_layout(gone), is_waiting(gone)) == (None, False)


def test_it_waits_for_another_one_that_may_have_the_only_copy() -> None:
    both = layout(2, gone=("d0", "d1"))
    waiting = cluster(both, removing=("d0",), evicted=("d1",))
    assert (wanted_layout(waiting), is_waiting(waiting)) == (None, True)
    several = cluster(both, removing=("d0",), evicted=("d1",), buckets=(TWO,))
    assert wanted_layout(several) == LayoutSpec(ALL - {"d0"}, frozenset(("d1",)))
    assert wanted_layout(cluster(both, removing=("d0", "d1"))) == LayoutSpec(ALL - {"d0", "d1"})


def test_one_that_is_lost_meanwhile() -> None:
    leaving = (layout(2, gone=("d0",)), layout(3, without=("d0",)))
    for buckets in ((ONE, TWO), (TWO,)):
        found = wanted_layout(cluster(*leaving, removing=("d0",), evicted=("d1",), buckets=buckets))
        assert found == LayoutSpec(ALL - {"d0"}, frozenset(("d1",)))


def test_nobody_leaves_while_moves_are_paused() -> None:
    paused = cluster(layout(2, gone=("d0",)), removing=("d0",), paused=True)
    assert (wanted_layout(paused), is_waiting(paused)) == (None, True)
    leaving = cluster(layout(2, gone=("d0",)), layout(3, without=("d0",)), removing=("d0",), paused=True)
    assert wanted_layout(leaving) is None, "it does not come back into a layout"
