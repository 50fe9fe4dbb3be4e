"""The map: who owns what, who must answer, failure domains, what a moved disk keeps."""

from typing import Any

import msgspec
import pytest
from placements import node_entry

from dfc.placement.map import BucketEntry, ClusterMap, Cover, DiskEntry, Labels, NodeEntry, usage_of

BUCKET = BucketEntry(id="0b1c", name="b")


def node(number: int, disks: int = 2, **changes: Any) -> NodeEntry:
    return node_entry(f"t{number}", *(f"t{number}d{disk}" for disk in range(disks)), **changes)


def cluster(*nodes: NodeEntry) -> ClusterMap:
    return ClusterMap(cluster_id="c", version=1, nodes=nodes, buckets=(BUCKET,))


def owners(cluster_map: ClusterMap) -> dict[str, tuple[str, str]]:
    found = ((str(n), cluster_map.owner(BUCKET, str(n))) for n in range(200))
    return {name: (owner.node.id, owner.disk.id) for name, owner in found if owner is not None}


def test_down_nodes_are_in_placement() -> None:
    found = owners(cluster(node(1, state="down"), node(2)))
    assert len(found) == 200
    assert {node_id for node_id, _ in found.values()} == {"t1", "t2"}
    assert ClusterMap(cluster_id="c", version=1).owner(BUCKET, "x") is None
    assert ClusterMap(cluster_id="c", version=1).owners(BUCKET, "x", 2) == []


def test_a_bucket_that_is_renamed_keeps_its_objects_where_they_are() -> None:
    found = cluster(node(0), node(1))
    renamed = msgspec.structs.replace(BUCKET, name="other")
    assert [found.owner(BUCKET, str(n)) for n in range(50)] == [found.owner(renamed, str(n)) for n in range(50)]


def test_disks_that_are_moved_to_another_node_keep_their_objects() -> None:
    """All of a node, one of several, and into a node that has disks of its own."""
    before = cluster(node(0), node(1), node(2))
    replicas = {name: disk for name, (_, disk) in owners(before).items()}
    first, second, third = before.nodes
    moved = second.disks[0]
    for after in (
        cluster(second, third, _with(node(9), first.disks)),
        cluster(first, _with(second, second.disks[1:]), _with(third, (*third.disks, moved))),
    ):
        assert {name: disk for name, (_, disk) in owners(after).items()} == replicas


def _with(entry: NodeEntry, disks: tuple[DiskEntry, ...]) -> NodeEntry:
    return msgspec.structs.replace(entry, disks=disks)


@pytest.mark.parametrize(
    ("labels", "domain"),
    [
        (Labels(), "node t1"),
        (Labels(host="h"), "host h"),
        (Labels(zone="z"), "zone z"),
        (Labels(zone="z", host="h"), "zone z"),
    ],
)
def test_failure_domains(labels: Labels, domain: str) -> None:
    assert node(1, labels=labels).domain == domain


def test_copies_lie_on_different_domains() -> None:
    """Four nodes on two machines: two copies are never on one machine, and there is no third domain."""
    machines = cluster(*(node(number, labels=Labels(host=f"h{number % 2}")) for number in range(4)))
    laptop = cluster(*(node(number) for number in range(3)))
    for number in range(100):
        two = machines.owners(BUCKET, str(number), 2)
        assert two[0] == machines.owner(BUCKET, str(number))
        assert {owner.node.labels.host for owner in two} == {"h0", "h1"}
        assert machines.owners(BUCKET, str(number), 3) == two
        assert len({owner.node.id for owner in laptop.owners(BUCKET, str(number), 3)}) == 3
        away = two[0].disk.id
        (left,) = machines.owners(BUCKET, str(number), 1, without={away})
        assert left.disk.id != away


def test_whom_to_ask_so_that_nothing_is_missing() -> None:
    proxy = node(7, disks=0, role="proxy")
    first, second, third = node(1), node(2, state="down"), node(3)
    assert cluster(third, first, proxy).cover() == Cover((first, third), ())
    assert cluster(third, second, first).cover() == Cover((first, third), (second,))
    assert cluster(proxy).cover() == Cover((), ())


def test_a_map_comes_back_as_it_was_sent() -> None:
    sent = cluster(node(1, labels=Labels(zone="z")), node(2))
    assert ClusterMap.decode(sent.encode()) == sent


def test_with_how_many_copies_a_write_counts() -> None:
    """Half of them unless the bucket says otherwise; never more than are written."""
    cases = {
        (1, 0, 0): 1,
        (2, 0, 0): 1,
        (3, 0, 0): 2,
        (8, 0, 0): 4,
        (3, 0, 1): 1,
        (3, 0, 3): 3,
        (1, 0, 3): 1,
        (1, 3, 3): 3,
        (1, 3, 0): 2,
    }
    for (copies, written, min_copies), least in cases.items():
        entry = BucketEntry(id="b", name="b", copies=copies, written=written, min_copies=min_copies)
        assert entry.least == least, (copies, written, min_copies)


def test_a_file_system_that_disks_share_counts_once() -> None:
    def target(number: int, *disks: tuple[int, str]) -> NodeEntry:
        entries = (
            DiskEntry(id=f"d{number}{at}", weight=1.0, capacity=100, used=used, file_system=file_system)
            for at, (used, file_system) in enumerate(disks)
        )
        return msgspec.structs.replace(node(number), disks=tuple(entries))

    assert usage_of([]) == (0, 0)
    assert usage_of([target(0, (10, "a"), (12, "a")), target(1, (11, "a"), (50, "b"))]) == (62, 200)
    # Of what older nodes report, nothing is known but that.
    assert usage_of([target(0, (10, ""), (10, "")), target(1, (10, ""))]) == (30, 300)
