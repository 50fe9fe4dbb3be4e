"""Placement: committed vectors, balance, and what a fifth target would take over."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.placement import rendezvous
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


def by_score(disks: tuple[Candidate, ...], bucket: str, name: str) -> str:
    """The definition: the highest score, and of equal ones the first id."""
    return max(sorted(disks), key=lambda disk: score(disk.id, disk.weight, bucket, name)).id


IDS = st.lists(
    st.text(min_size=1, max_size=8).map(lambda text: text.encode("utf-8", "ignore").decode()),
    min_size=1,
    max_size=90,
    unique=True,
)
WEIGHTS = st.one_of(
    st.sampled_from((1.0, 2.0)), st.floats(1e-6, 1e9), st.floats(1.0, 1.0 + 1e-12), st.integers(1, 4).map(float)
)


@given(IDS, st.data())
def test_the_same_as_by_score(ids: list[str], data: st.DataObject) -> None:
    weights = data.draw(st.one_of(st.just([2.0] * len(ids)), st.lists(WEIGHTS, min_size=len(ids), max_size=len(ids))))
    disks = tuple(map(Candidate, ids, weights))
    found = Rendezvous(disks)
    for number in range(20):
        assert found.best("b", f"n{number}") == found.best("b", f"n{number}") == by_score(disks, "b", f"n{number}")


@pytest.mark.parametrize("seed", range(4))
def test_many_disks_of_many_weights(seed: int) -> None:
    draw = random.Random(seed)
    sizes = [lambda: draw.uniform(1, 20), lambda: draw.choice((4.0, 8.0, 16.0)), lambda: 10 ** draw.uniform(-6, 9), lambda: 1.0]
    disks = tuple(Candidate(f"{draw.randrange(1 << 64):016x}", sizes[seed]()) for _ in range(400))
    found = Rendezvous(disks)
    for number in range(500):
        assert found.best("b", f"n{number}") == by_score(disks, "b", f"n{number}")


@pytest.mark.parametrize(
    "digests", [(0,), (5 << 11, 5 << 11 | 7), ((1 << 64) - 1, (1 << 64) - 2048, (1 << 64) - 4096), (0, 1 << 63)]
)
@given(weights=st.lists(st.sampled_from((1.0, 1.0 + 2**-52, 3.0)), min_size=1, max_size=80))
def test_equal_scores_go_to_the_first_id(digests: tuple[int, ...], weights: list[float]) -> None:
    """With hashes that are equal, or differ in bits that do not count, or so little that their logarithms are equal."""
    real = rendezvous.xxhash.xxh3_64_intdigest
    disks = tuple(Candidate(f"d{number:03d}", weight) for number, weight in enumerate(weights))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendezvous.xxhash, "xxh3_64_intdigest", lambda data: digests[real(data) % len(digests)])
        equal = len(set(weights)) == 1
        for number in range(10):
            name = f"n{number}"
            hashes = {disk.id: digests[real(f"{disk.id}\0b\0{name}".encode()) % len(digests)] >> 11 for disk in disks}
            wanted = max(sorted(disks), key=lambda disk: hashes[disk.id]).id if equal else by_score(disks, "b", name)
            assert Rendezvous(disks).best("b", name) == wanted


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "PLACEMENT_NAMES_MAX", 10)
    asked = 0
    real = rendezvous.xxhash.xxh3_64_intdigest

    def counted(data: bytes) -> int:
        nonlocal asked
        asked += 1
        return real(data)

    monkeypatch.setattr(rendezvous.xxhash, "xxh3_64_intdigest", counted)
    found = Rendezvous((Candidate("a", 1.0), Candidate("b", 3.0)))
    for _ in range(3):
        for number in range(10):
            found.best("b", str(number))
    assert asked == 20
    for number in range(100):
        found.best("b", str(number))
    found.best("b", "0")
    assert asked == 20 + 2 * 90 + 2
    assert Rendezvous(()).best("b", "x") is None


def test_joining_nodes_are_outside_placement_and_down_nodes_inside() -> None:
    cluster = ClusterMap.decode(_map(3).encode())
    nodes = list(cluster.nodes)
    nodes[0] = NodeEntry(**{f: getattr(nodes[0], f) for f in nodes[0].__struct_fields__} | {"state": "joining"})
    nodes[1] = NodeEntry(**{f: getattr(nodes[1], f) for f in nodes[1].__struct_fields__} | {"state": "down"})
    changed = ClusterMap(cluster_id="c", version=2, nodes=tuple(nodes))
    owners = {changed.owner("b", str(i)).node.id for i in range(200)}  # type: ignore[union-attr]
    assert owners == {"t1", "t2"}
    assert ClusterMap(cluster_id="c", version=1).owner("b", "x") is None
