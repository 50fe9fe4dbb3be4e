"""Placement in two levels: committed vectors, shares, what moves when a disk or node comes or goes, failure domains."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.placement import rendezvous
from dfc.placement import rendezvous as layout_module
from dfc.placement.rendezvous import Layout, LayoutDisk

VECTORS = json.loads((Path(__file__).parents[2] / "data" / "placement.json").read_text())["layouts"]
NAMES = [f"train-{number:06d}.tar" for number in range(20_000)]


def disks_of(nodes: int, disks: int, weight: float = 1.0) -> tuple[LayoutDisk, ...]:
    return tuple(LayoutDisk(f"t{t}d{d}", weight, f"t{t}", f"t{t}") for t in range(nodes) for d in range(disks))


@pytest.mark.parametrize("vector", VECTORS)
def test_committed_vectors(vector) -> None:
    layout = Layout(tuple(LayoutDisk(**disk) for disk in vector["disks"]))
    for wanted in vector["objects"]:
        bucket_id, name = wanted["bucket_id"], wanted["name"]
        assert layout.best(bucket_id, name) == wanted["ranking"][0]
        assert list(layout.ranking(bucket_id, name)) == wanted["ranking"]
        for count in range(len(vector["disks"]) + 1):
            assert layout.owners(bucket_id, name, count) == wanted["owners"][:count]


def test_four_nodes_share_within_a_few_per_cent_and_a_fifth_takes_a_fifth() -> None:
    four, five = Layout(disks_of(4, 2)), Layout(disks_of(5, 2))
    before, after = ([layout.best("b", name) for name in NAMES] for layout in (four, five))
    counts = Counter(before)
    assert len(counts) == 8
    assert all(abs(count - 2_500) < 250 for count in counts.values())
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert abs(len(moved) / len(NAMES) - 0.2) < 0.02
    assert all(str(new).startswith("t4") for _, new in moved)


def test_names_share_in_proportion_to_weights_over_both_levels() -> None:
    weights = {"a": 1.0, "b": 3.0, "c": 4.0, "d": 2.0}
    layout = Layout(tuple(LayoutDisk(disk, weight, "n" + "xxyz"["abcd".index(disk)], "") for disk, weight in weights.items()))
    counts = Counter(layout.best("b", name) for name in NAMES)
    for disk, weight in weights.items():
        assert abs(counts[disk] / len(NAMES) - weight / 10) < 0.01


DISKS = st.lists(
    st.builds(
        LayoutDisk,
        id=st.integers(0, 999).map(str),
        weight=st.one_of(st.just(1.0), st.floats(1e-6, 1e9), st.integers(1, 4).map(float)),
        group=st.sampled_from("pqrst"),
        domain=st.sampled_from("vwxyz"),
    ),
    min_size=1,
    max_size=40,
    unique_by=lambda disk: disk.id,
).map(tuple)


@given(DISKS, st.data())
def test_leaving_a_disk_out_moves_its_names_and_no_others(disks: tuple[LayoutDisk, ...], data: st.DataObject) -> None:
    layout = Layout(disks)
    gone = data.draw(st.sampled_from([disk.id for disk in disks]))
    for number in range(10):
        name = f"n{number}"
        ranking = list(layout.ranking("b", name))
        assert sorted(ranking) == sorted(disk.id for disk in disks)
        assert ranking[0] == layout.best("b", name)
        (first,) = layout.owners("b", name, 1)
        assert layout.owners("b", name, 1, {gone}) == ([first] if gone != first else ranking[1:2])


@given(DISKS, st.integers(0, 6), st.sets(st.integers(0, 999).map(str)))
def test_owners_are_in_different_domains_and_as_early_as_can_be(
    disks: tuple[LayoutDisk, ...], count: int, without: set[str]
) -> None:
    layout = Layout(disks)
    domain = {disk.id: disk.domain for disk in disks}
    there = [disk for disk in layout.ranking("b", "n") if disk not in without]
    owners = layout.owners("b", "n", count, without)
    domains = [domain[disk] for disk in owners]
    assert len(owners) == len(set(domains)) == min(count, len({domain[disk] for disk in there}))
    firsts = list(dict.fromkeys(domain[disk] for disk in there))
    assert domains == firsts[:count]
    assert all(disk == next(each for each in there if domain[each] == domain[disk]) for disk in owners)


def test_a_name_lies_elsewhere_in_another_bucket() -> None:
    layout = Layout(disks_of(4, 4))
    same = sum(layout.best("b", name) == layout.best("c", name) for name in NAMES[:5_000])
    assert abs(same / 5_000 - 1 / 16) < 0.02


def test_disks_of_the_ids_of_nodes_are_spread_like_others() -> None:
    """The two levels ask with different keys: else a disk with its node's id would be the best wherever its node is."""
    disks = tuple(LayoutDisk(f"t{t}" if d == 0 else f"t{t}d{d}", 1.0, f"t{t}", f"t{t}") for t in range(4) for d in range(2))
    counts = Counter(Layout(disks).best("b", name) for name in NAMES)
    assert all(abs(count - 2_500) < 250 for count in counts.values())


def test_a_thousand_disks_on_32_nodes_take_64_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(1)
    layout = Layout(tuple(LayoutDisk(f"{n:04x}", draw.uniform(1, 20), f"t{n % 32}", "") for n in range(1000)))
    real, asked = rendezvous.xxhash.xxh3_64_intdigest, 0

    def counted(data: bytes) -> int:
        nonlocal asked
        asked += 1
        return real(data)

    monkeypatch.setattr(rendezvous.xxhash, "xxh3_64_intdigest", counted)
    layout.best("b", "n")
    assert 62 <= asked <= 64


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_module, "PLACEMENT_NAMES_MAX", 10)
    layout = Layout(disks_of(2, 1))
    for number in range(100):
        layout.best("b", str(number))
    kept = layout.best.cache_info()
    assert (kept.maxsize, kept.currsize) == (10, 10)


def test_without_disks_there_is_no_owner() -> None:
    layout = Layout(())
    assert layout.best("b", "n") is None
    assert list(layout.ranking("b", "n")) == layout.owners("b", "n", 1) == layout.owners("b", "n", 3) == []
