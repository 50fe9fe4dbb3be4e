"""The placement that a map describes, and the map after a step: each gives the other back."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from placements import node_entry

from dfc.placement.map import BucketEntry, ClusterMap, DiskEntry, Labels, LayoutEntry, NodeEntry, RebalanceEntry, SliceRun
from dfc.placement.mapped import is_paused, is_waiting, layouts_after, nodes_after, placement_of, readers_of, wanted_layout
from dfc.placement.roles import SLICES, Copies, LayoutSpec, Placement, roles
from dfc.replication import transitions


def node(number: int, disks: int = 2, **changes: object) -> NodeEntry:
    name = f"t{number}"
    entries = (DiskEntry(id=f"{name}d{disk}", weight=1.0, group=name, incarnation="first") for disk in range(disks))
    return node_entry(name, *entries, **changes)


def cluster(*nodes: NodeEntry, step: int = 7) -> ClusterMap:
    buckets = (BucketEntry(id="one", name="a"), BucketEntry(id="two", name="b", copies=2))
    return ClusterMap(cluster_id="c", version=40, step=step, nodes=nodes, buckets=buckets)


def after(cluster_map: ClusterMap, new: Placement) -> ClusterMap:
    changed = {each.id: each for each in nodes_after(cluster_map, new)}
    nodes = tuple(changed.get(each.id, each) for each in cluster_map.nodes)
    layouts, slices = layouts_after(new)
    version = cluster_map.version + 1
    return replace(cluster_map, version=version, step=new.step, nodes=nodes, layouts=layouts, slices=slices)


def with_disks(cluster_map: ClusterMap, change: Callable[[DiskEntry], dict[str, Any]]) -> ClusterMap:
    """The same, with what is to be otherwise about each disk."""
    disks = {each.id: tuple(replace(disk, **change(disk)) for disk in each.disks) for each in cluster_map.nodes}
    return replace(cluster_map, nodes=tuple(replace(each, disks=disks[each.id]) for each in cluster_map.nodes))


def taking_step(cluster_map: ClusterMap, change: transitions.Change) -> ClusterMap:
    before = placement_of(cluster_map)
    return after(cluster_map, replace(change(before), step=before.step + 1))


def test_what_a_map_says_of_placement() -> None:
    zoned = node(1, labels=Labels(zone="z"))
    found = placement_of(cluster(node(0), zoned, replace(node(3), role="proxy")))
    assert sorted(found.disks) == ["t0d0", "t0d1", "t1d0", "t1d1"]
    assert (found.step, found.disks["t1d0"].domain, found.disks["t0d0"].domain) == (7, "zone z", "node t0")
    assert found.copies == {"one": Copies.of(1), "two": Copies.of(2)}
    assert {disk.status for disk in found.disks.values()} == {"up"}


def test_it_is_made_once_for_each_map_and_shared_by_maps_with_other_usage() -> None:
    first = cluster(node(0))
    found = placement_of(first)
    assert placement_of(first) is found
    assert placement_of(first.with_use(first.nodes[0])) is found


def test_one_copy_is_where_the_map_says() -> None:
    known = cluster(*(node(number) for number in range(4)))
    bucket = known.bucket("a")
    for name in map(str, range(100)):
        assert roles(placement_of(known), bucket.id, name).primary == known.owner(bucket, name).disk.id


def test_every_chain_of_three_changes_survives_the_map() -> None:
    every = (
        transitions.declare_down({"t0"}),
        transitions.declare_down({"t1", "t2"}),
        transitions.put_failed("t0d0"),
        transitions.put_failed("t1d1"),
        transitions.bring_up("t0", {"t0d0": "first"}),
        transitions.bring_up("t0", {"t0d0": "second", "t0d1": "first"}),
        transitions.bring_up("t1", {"t1d0": "first", "t1d1": "first"}),
        transitions.mark_out_of_sync("t1d0", "t0d0"),
        transitions.put_clean("t0d0", "t1d0"),
    )
    seen = set()
    for chain in itertools.product(every, repeat=3):
        known = cluster(node(0), node(1), node(2))
        for change in chain:
            before = placement_of(known)
            new = replace(change(before), step=before.step + 1)
            known = after(known, new)
            assert placement_of(known) == new
            assert placement_of(ClusterMap.decode(known.encode())) == new
            seen.add(tuple((each.state, tuple(disk.state for disk in each.disks)) for each in known.nodes))
    assert len(seen) > 20


def test_a_node_is_down_when_all_its_disks_are() -> None:
    failed = taking_step(cluster(node(0), node(1)), transitions.put_failed("t0d0"))
    assert [each.state for each in failed.nodes] == ["up", "up"]
    down = taking_step(failed, transitions.declare_down({"t0"}))
    assert [each.state for each in down.nodes] == ["down", "up"]
    assert [(disk.state, disk.down_step) for disk in down.nodes[0].disks] == [("failed", 8), ("up", 9)]
    back = taking_step(down, transitions.bring_up("t0", {"t0d1": "first"}))
    assert [each.state for each in back.nodes] == ["up", "up"]
    assert [(disk.state, disk.down_step) for disk in back.nodes[0].disks] == [("failed", 8), ("up", 0)]


def joined() -> ClusterMap:
    """Two targets with objects, and a third one that has joined."""
    before = with_disks(cluster(node(0), node(1), node(2)), lambda disk: {"use": "new"} if disk.group == "t2" else {})
    layouts = (LayoutEntry(number=1, disks=("t0d0", "t0d1", "t1d0", "t1d1")),)
    return replace(before, layouts=layouts, slices=(SliceRun(first=0, at=1),))


def test_a_disk_outside_the_layout_holds_nothing() -> None:
    known = joined()
    without = cluster(*known.nodes[:2])
    bucket = known.buckets[0]
    for name in map(str, range(50)):
        owner, before = known.owner(bucket, name), without.owner(bucket, name)
        assert owner.disk.id == before.disk.id == roles(placement_of(known), bucket.id, name).primary
    assert [each.id for each in known.cover().ask] == [each.id for each in known.holders()] == ["t0", "t1"]
    assert [each.id for each in known.targets()] == ["t0", "t1", "t2"]
    assert (known.in_use(), sorted(known.placed())[-1]) == ({"t0d0", "t0d1", "t1d0", "t1d1"}, "t2d1")
    assert replace(known, nodes=(*known.nodes[:2], replace(known.nodes[2], state="down"))).cover().missing == ()


def test_what_is_wanted_follows_from_what_disks_are_for() -> None:
    known = joined()
    assert wanted_layout(known) is None, "new ones wait"
    assert wanted_layout(cluster(node(0), node(1))) is None

    def used(*uses: str) -> ClusterMap:
        return with_disks(known, lambda disk: {"use": uses[int(disk.group[1:])]})

    assert wanted_layout(used("in", "in", "in")) == LayoutSpec(frozenset(known.placed()))
    assert wanted_layout(used("out", "in", "in")) == LayoutSpec(frozenset({"t1d0", "t1d1", "t2d0", "t2d1"}))
    assert wanted_layout(used("out", "out", "new")) is None, "objects have to be somewhere"


def with_lost(*evicted: str, buckets: tuple[BucketEntry, ...] = (), gone: tuple[str, ...] = ()) -> ClusterMap:
    """The same, and these disks are to be given up, or are."""
    known = with_disks(joined(), lambda disk: {"evicted": disk.id in evicted, "use": "in"})
    return replace(known, layouts=(replace(known.layouts[0], gone=gone),), buckets=buckets)


TWO = BucketEntry(id="two", name="two", copies=2)
ONE = BucketEntry(id="one", name="one", copies=1)


def test_disks_that_are_evicted_stay_in_the_layout() -> None:
    everything = frozenset(joined().placed())
    before = everything - {"t2d0", "t2d1"}
    assert wanted_layout(with_lost("t0d0", buckets=(TWO,))) == LayoutSpec(everything, frozenset({"t0d0"}))
    assert wanted_layout(with_lost("t0d0", buckets=(ONE, TWO))) == LayoutSpec(before, frozenset({"t0d0"})), "nobody joins"
    assert wanted_layout(with_lost("t0d0", buckets=(ONE, TWO), gone=("t0d0",))) is None
    assert wanted_layout(with_lost(buckets=(ONE, TWO), gone=("t0d0",))) == LayoutSpec(everything), "it is back"
    assert wanted_layout(with_lost("t0d0", "t0d1", "t1d0", "t1d1", buckets=(ONE,))) is None, "objects have to be somewhere"


def test_moves_are_paused_unless_copies_are_lost() -> None:
    everything = tuple(sorted(joined().placed()))

    def paused(cluster_map: ClusterMap, *gone: tuple[str, ...]) -> bool:
        layouts = tuple(LayoutEntry(number=at, disks=everything, gone=each) for at, each in enumerate(gone, 1))
        return is_paused(replace(cluster_map, layouts=layouts, rebalance=RebalanceEntry(paused=True)))

    assert not is_paused(joined())
    assert paused(with_lost(), ())
    assert not paused(with_lost("t0d0"), ()), "others are to get its objects"
    assert not paused(with_lost("t0d0"), (), ("t0d0",)), "they are getting them"
    assert paused(with_lost("t0d0"), ("t0d0",)), "they have them, and it stays away"


def test_while_moves_are_paused_only_lost_disks_change_what_is_wanted() -> None:
    everything = frozenset(joined().placed())
    before = everything - {"t2d0", "t2d1"}

    def wanted(cluster_map: ClusterMap) -> LayoutSpec | None:
        return wanted_layout(replace(cluster_map, rebalance=RebalanceEntry(paused=True)))

    assert wanted_layout(with_lost(buckets=(TWO,))) == LayoutSpec(everything)
    assert wanted(with_lost(buckets=(TWO,))) is None
    assert is_waiting(replace(with_lost(buckets=(TWO,)), rebalance=RebalanceEntry(paused=True)))
    assert wanted(with_lost("t0d0", buckets=(TWO,))) == LayoutSpec(before, frozenset({"t0d0"}))
    assert wanted(with_lost("t1d0", buckets=(TWO,), gone=("t0d0",))) == LayoutSpec(before, frozenset({"t0d0", "t1d0"})), (
        "one is back"
    )


def test_a_move_waits_also_for_disks_that_were_evicted() -> None:
    assert is_waiting(with_lost("t0d0", buckets=(ONE, TWO), gone=("t0d0",))), "t2 is to join"
    assert not is_waiting(moved := replace(with_lost(), layouts=()))
    assert not moved.layouts
    everything = tuple(sorted(joined().placed()))
    arrived = replace(with_lost("t0d0"), layouts=(LayoutEntry(number=1, disks=everything, gone=("t0d0",)),))
    assert not is_waiting(arrived)


def test_nobody_waits_for_a_disk_that_is_lost_while_it_is_drained() -> None:
    """It is in the layout from which objects move, and gets into the newest one as a disk that is given up."""
    lost = with_lost("t0d0", buckets=(TWO,))
    layouts = (*lost.layouts, LayoutEntry(number=2, disks=("t0d1", "t1d0", "t1d1")))
    moving = replace(lost, layouts=layouts, slices=(SliceRun(first=0, at=1, to=2, phase="copying"),))
    drained = with_disks(moving, lambda disk: {"use": "out" if disk.evicted else "in"})
    wanted = wanted_layout(drained)
    assert ("t0d0" in wanted.disks, wanted.gone) == (True, {"t0d0"})
    assert wanted_layout(replace(drained, buckets=(ONE, TWO))) is None, "it may have the only copy"


def test_only_objects_with_one_copy_may_be_on_a_disk_that_is_gone() -> None:
    one, two = with_lost(buckets=(ONE, TWO), gone=("t0d0",)), with_lost(buckets=(TWO,), gone=("t0d0",))
    assert set(one.in_use()) == {"t0d0", "t0d1", "t1d0", "t1d1"}
    assert set(two.in_use()) == set(one.may_hold_copies()) == set(two.may_hold_copies()) == {"t0d1", "t1d0", "t1d1"}
    assert set(joined().may_hold_copies()) == set(joined().in_use())


@pytest.mark.parametrize("weights", [{}, {"t0d1": 0.25, "t2d0": 3.0}])
def test_every_step_of_a_move_survives_the_map(weights: dict[str, float]) -> None:
    """And who decides, reads and takes part by the map is who does by the placement."""
    known = joined()
    wanted = LayoutSpec(frozenset(known.placed()), weights=weights)
    steps = [transitions.start_move(wanted)]
    for first in range(0, SLICES, 100):
        numbers = list(range(first, min(first + 100, SLICES)))
        steps += [transitions.hand_over(numbers)] * 3
    for at, change in enumerate(steps):
        before = placement_of(known)
        new = replace(change(before), step=before.step + 1)
        known = after(known, new)
        assert placement_of(known) == new
        known = ClusterMap.decode(known.encode())
        assert placement_of(known) == new
        assert known.is_moving == (at < len(steps) - 1)
        assert len(known.slices) <= 3
        for name in map(str, range(60)):
            found = roles(new, "one", name)
            owner = known.owner_in("one", name)
            assert owner.disk.id == found.primary
            assert [each.id for each in readers_of(known, "one", name)] == [owner.node.id]
            assert set(found.everywhere) <= set(known.in_use())
    assert [each.number for each in known.layouts] == [2]
    assert (known.slices, [each.id for each in known.holders()]) == ((SliceRun(first=0, at=2),), ["t0", "t1", "t2"])
