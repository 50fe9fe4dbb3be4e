"""From which nodes an object is read: with one copy the owner while it is up, with more all that are complete, in order."""

from __future__ import annotations

import msgspec
from placements import node_entry

from dfc.placement.map import BucketEntry, ClusterMap, NodeEntry
from dfc.placement.mapped import placement_of, readers_of, replica_of
from dfc.placement.roles import roles

NAMES = [str(number) for number in range(60)]


def node(number: int, **changes: object) -> NodeEntry:
    return node_entry(f"t{number}", f"t{number}a", f"t{number}b", **changes)


def cluster(*nodes: NodeEntry) -> ClusterMap:
    buckets = (BucketEntry(id="one", name="a"), BucketEntry(id="two", name="b", copies=2))
    return ClusterMap(cluster_id="c", version=4, nodes=nodes, buckets=buckets)


def with_disk(entry: NodeEntry, **changes: object) -> NodeEntry:
    first, *others = entry.disks
    return msgspec.structs.replace(entry, disks=(msgspec.structs.replace(first, **changes), *others))


def test_one_copy_is_read_from_its_owner_while_that_is_up_and_needs_no_placement() -> None:
    known = cluster(node(0), node(1), node(2, state="down"))
    bucket = known.bucket("a")
    for name in NAMES:
        owner = known.owner(bucket, name)
        assert readers_of(known, "one", name) == ([] if owner.node.id == "t2" else [owner.node])
        assert readers_of(known, "younger than the map", name) in ([], [known.nodes[0]], [known.nodes[1]])
    assert "_placement" not in known.__dict__
    assert readers_of(cluster(), "one", "x") == []


def test_two_copies_are_read_on_two_nodes_in_the_order_of_their_roles() -> None:
    known = cluster(*map(node, range(3)))
    seen = set()
    for name in NAMES:
        found = readers_of(known, "two", name)
        placed = known.placed()
        assert [each.id for each in found] == [placed[disk].node.id for disk in roles(placement_of(known), "two", name).readers]
        assert len(found) == 2
        seen.add(tuple(each.id for each in found))
    assert len(seen) == 6


def test_the_first_replica_is_the_same_whoever_is_down() -> None:
    calm, down = cluster(*map(node, range(3))), cluster(node(0), node(1, state="down"), node(2))
    for bucket in ("one", "two", "younger than the map"):
        for name in NAMES:
            replica = replica_of(calm, bucket, name)
            assert replica == readers_of(calm, bucket, name)[0]
            assert replica_of(down, bucket, name).id == replica.id
    assert replica_of(cluster(), "one", "x") is None


def test_who_is_down_failed_or_behind_is_not_read() -> None:
    calm = cluster(*map(node, range(3)))
    for away in (
        node(1, state="down"),
        with_disk(node(1), state="failed"),
        with_disk(node(1), out_of_sync_with=("t0a",)),
    ):
        known = cluster(node(0), away, node(2))
        for name in NAMES:
            before = roles(placement_of(calm), "two", name).readers
            gone = {"t1a", "t1b"} if away.state == "down" else {"t1a"}
            wanted = [disk[:2] for disk in before if disk not in gone]
            assert [each.id for each in readers_of(known, "two", name)] == wanted


def test_nobody_is_left() -> None:
    known = cluster(node(0, state="down"), node(1, state="down"))
    assert [readers_of(known, "two", name) for name in NAMES] == [[]] * len(NAMES)
