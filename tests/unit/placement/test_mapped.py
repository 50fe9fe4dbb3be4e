"""The placement that a map describes, and the map after a step: each gives the other back."""

from __future__ import annotations

import itertools

import msgspec

from dfc.placement.map import BucketEntry, ClusterMap, DiskEntry, Labels, NodeEntry
from dfc.placement.mapped import nodes_after, placement_of
from dfc.placement.roles import roles
from dfc.placement.state import Copies, Placement
from dfc.replication import transitions


def node(number: int, disks: int = 2, **changes: object) -> NodeEntry:
    name = f"t{number}"
    entries = tuple(DiskEntry(id=f"{name}d{disk}", weight=1.0, group=name, incarnation="first") for disk in range(disks))
    values = {"id": name, "number": number, "role": "target", "url": "http://t:1", "advertise_url": "http://t:1", "state": "up"}
    return NodeEntry(**{**values, "disks": entries, **changes})


def cluster(*nodes: NodeEntry, step: int = 7) -> ClusterMap:
    buckets = (BucketEntry(id="one", name="a"), BucketEntry(id="two", name="b", copies=2))
    return ClusterMap(cluster_id="c", version=40, step=step, nodes=nodes, buckets=buckets)


def after(cluster_map: ClusterMap, new: Placement) -> ClusterMap:
    changed = {each.id: each for each in nodes_after(cluster_map, new)}
    nodes = tuple(changed.get(each.id, each) for each in cluster_map.nodes)
    return msgspec.structs.replace(cluster_map, version=cluster_map.version + 1, step=new.step, nodes=nodes)


def test_what_a_map_says_of_placement() -> None:
    zoned = node(1, labels=Labels(zone="z"))
    found = placement_of(cluster(node(0), zoned, node(2, state="joining"), msgspec.structs.replace(node(3), role="proxy")))
    assert sorted(found.disks) == ["t0d0", "t0d1", "t1d0", "t1d1"]
    assert (found.step, found.disks["t1d0"].domain, found.disks["t0d0"].domain) == (7, "zone z", "node t0")
    assert found.copies == {"two": Copies.of(2)}
    assert {disk.status for disk in found.disks.values()} == {"up"}


def test_it_is_made_once_for_each_map_and_shared_by_maps_with_other_usage() -> None:
    first = cluster(node(0))
    found = placement_of(first)
    assert placement_of(first) is found
    assert placement_of(first.with_use(first.nodes[0])) is found


def test_one_copy_is_where_the_map_says() -> None:
    known = cluster(*(node(number) for number in range(4)))
    bucket = known.bucket("a")
    assert bucket is not None
    for name in map(str, range(100)):
        owner = known.owner(bucket, name)
        assert owner is not None
        assert roles(placement_of(known), bucket.id, name).primary == owner.disk.id


def test_every_chain_of_three_changes_survives_the_map() -> None:
    every = (
        transitions.declare_down({"t0"}),
        transitions.declare_down({"t1", "t2"}),
        transitions.put_failed("t0d0"),
        transitions.put_failed("t1d1"),
        transitions.bring_up("t0", {"t0d0": "first"}),
        transitions.bring_up("t0", {"t0d0": "second", "t0d1": "first"}),
        transitions.bring_up("t1", {"t1d0": "first", "t1d1": "first"}),
        transitions.put_behind("t1d0", "t0d0"),
        transitions.put_clean("t0d0", "t1d0"),
    )
    seen = set()
    for chain in itertools.product(every, repeat=3):
        known = cluster(node(0), node(1), node(2))
        for change in chain:
            before = placement_of(known)
            new = msgspec.structs.replace(change(before), step=before.step + 1)
            known = after(known, new)
            assert placement_of(known) == new
            assert placement_of(ClusterMap.decode(known.encode())) == new
            states = tuple((each.state, tuple(disk.state for disk in each.disks)) for each in known.nodes)
            seen.add(states)
    assert len(seen) > 20


def test_a_node_is_down_when_all_its_disks_are() -> None:
    known = cluster(node(0), node(1))
    failed = after(known, msgspec.structs.replace(transitions.put_failed("t0d0")(placement_of(known)), step=8))
    assert [each.state for each in failed.nodes] == ["up", "up"]
    down = after(failed, msgspec.structs.replace(transitions.declare_down({"t0"})(placement_of(failed)), step=9))
    assert [each.state for each in down.nodes] == ["down", "up"]
    assert [(disk.state, disk.down_step) for disk in down.nodes[0].disks] == [("failed", 8), ("up", 9)]
    back = after(down, msgspec.structs.replace(transitions.bring_up("t0", {"t0d1": "first"})(placement_of(down)), step=10))
    assert [each.state for each in back.nodes] == ["up", "up"]
    assert [(disk.state, disk.down_step) for disk in back.nodes[0].disks] == [("failed", 8), ("up", 0)]
