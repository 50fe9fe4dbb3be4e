"""Placement: committed vectors, balance, and what a fifth target would take over."""

import json
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dfc.placement.map import ClusterMap, DiskEntry, NodeEntry
from dfc.placement.rendezvous import Candidate, Rendezvous, score

VECTORS = json.loads((Path(__file__).parents[2] / "data" / "placement.json").read_text())


def test_committed_vectors() -> None:
    for vector in VECTORS["vectors"]:
        disks = tuple(Candidate(d["id"], d["weight"]) for d in vector["disks"])
        assert Rendezvous(disks).best(vector["bucket"], vector["name"]) == vector["best"]
        for disk in vector["disks"]:
            assert abs(score(disk["id"], disk["weight"], vector["bucket"], vector["name"]) - disk["score"]) < 1e-9


def _map(targets: int, disks: int = 2) -> ClusterMap:
    nodes = tuple(
        NodeEntry(
            id=f"t{t}", number=t, role="target", url="http://x", advertise_url="http://x", state="up",
            disks=tuple(DiskEntry(id=f"t{t}d{d}", weight=1.0) for d in range(disks)),
        )
        for t in range(targets)
    )  # fmt: skip
    return ClusterMap(cluster_id="c", version=1, nodes=nodes)


def test_four_targets_share_within_ten_per_cent_and_a_fifth_takes_a_fifth() -> None:
    four, five = _map(4), _map(5)
    names = [f"train-{i:06d}.tar" for i in range(40_000)]
    before = {name: four.owner("b", name) for name in names}
    after = {name: five.owner("b", name) for name in names}
    counts = Counter(owner.node.id for owner in before.values() if owner)
    assert all(abs(count - 10_000) < 1_000 for count in counts.values())
    moved = [name for name in names if before[name] != after[name]]
    assert abs(len(moved) / len(names) - 0.2) < 0.02
    assert all(after[name].node.id == "t4" for name in moved)  # type: ignore[union-attr]


def test_weights_share_in_proportion() -> None:
    disks = Rendezvous((Candidate("a", 1.0), Candidate("b", 3.0)))
    share = Counter(disks.best("b", str(i)) for i in range(20_000))["b"] / 20_000
    assert abs(share - 0.75) < 0.02


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=6, unique=True), st.text(max_size=20))
def test_fast_path_equals_the_ranking_by_score(ids: list[str], name: str) -> None:
    ids = [i.encode("utf-8", "ignore").decode() or "x" for i in ids]
    name = name.encode("utf-8", "ignore").decode()
    disks = Rendezvous(tuple(Candidate(i, 2.0) for i in dict.fromkeys(ids)))
    assert disks.best("b", name) == disks.ranking("b", name)[0]


def test_joining_nodes_are_outside_placement_and_down_nodes_inside() -> None:
    cluster = ClusterMap.decode(_map(3).encode())
    nodes = list(cluster.nodes)
    nodes[0] = NodeEntry(**{f: getattr(nodes[0], f) for f in nodes[0].__struct_fields__} | {"state": "joining"})
    nodes[1] = NodeEntry(**{f: getattr(nodes[1], f) for f in nodes[1].__struct_fields__} | {"state": "down"})
    changed = ClusterMap(cluster_id="c", version=2, nodes=tuple(nodes))
    owners = {changed.owner("b", str(i)).node.id for i in range(200)}  # type: ignore[union-attr]
    assert owners == {"t1", "t2"}
    assert ClusterMap(cluster_id="c", version=1).owner("b", "x") is None
