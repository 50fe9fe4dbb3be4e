"""Weights of disks are changed in a running cluster: real processes."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from failures.fixed import check_fixed, fill, stored_bytes, under_load
from failures.found import Found
from failures.kills import check_replicas
from failures.moves import SURPLUS_BYTES
from failures.nodes import Nodes
from failures.writers import Writer, final_check
from harness import run_dfc

OBJECTS = 600
SIZE = 5_000
COPIES = {"one": 1, "two": 2}
MOVE_S = 90.0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with Nodes(tmp_path, 3, 1, down_after_s=4, hold_s=15, drain_timeout_s=2) as found:
        found.start_all()
        yield found


def run(nodes: Nodes, *arguments: str) -> str:
    """`dfc cluster` with these arguments."""
    done = run_dfc(nodes.url, "cluster", *arguments, timeout_s=MOVE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def disk_of(nodes: Nodes, target: str) -> tuple[str, float]:
    """The id of its only disk, and the weight with which that has joined."""
    node = next(each for each in nodes.map()["nodes"] if each["advertise_url"] == nodes.url_of(target))
    return node["disks"][0]["id"], node["disks"][0]["weight"]


def until_settled(nodes: Nodes) -> None:
    nodes.until(lambda: not any("to" in each for each in nodes.map()["slices"]), "the move to end", MOVE_S)
    nodes.until_calm(60.0)
    for bucket in nodes.map()["buckets"]:
        replicas = (nodes, COPIES[bucket["name"]], bucket["id"])
        nodes.until(lambda: not check_replicas(*replicas), "all objects to be at their replicas and nowhere else")  # noqa: B023


def shares(nodes: Nodes, bucket: str) -> Counter[str]:
    """How many of the objects that nobody changes each target has."""
    bucket_id = nodes.bucket_id(bucket)
    return Counter(
        row.disk.partition("/")[0] for row in nodes.rows() if row.bucket_id == bucket_id and row.name.startswith("f")
    )


def test_a_target_gets_half_of_its_weight_and_then_all_of_it_again(nodes: Nodes) -> None:
    disk, joined = disk_of(nodes, "target-2")
    fixed, writers = {}, []
    for seed, (bucket, copies) in enumerate(COPIES.items()):
        nodes.ask(f"/v1/buckets/{bucket}", "PUT", b'{"copies": %d}' % copies)
        fixed[bucket] = fill(nodes, bucket, OBJECTS, SIZE, seed)
        writers.append(Writer(nodes.url, bucket, 0, seed, (1_000, 100_000)))
    found = Found()
    with under_load(nodes, "two", sorted(fixed["two"]), writers, found):
        told = run(nodes, "weight", disk, f"{joined / 2}", "--wait")
    assert f"disk {disk} gets the weight {joined / 2:g}" in told
    assert f"moving objects by the new weight of {disk}" in told
    until_settled(nodes)
    assert found.problems == []
    assert found.counts["put"] > 10
    assert found.counts["listings"] > 2
    for writer, bucket in zip(writers, COPIES, strict=True):
        assert final_check(nodes.url, bucket, [writer]) == []
        assert check_fixed(nodes, bucket, fixed[bucket]) == []

    # With one copy: 1 of 5. With two, it is the first replica of 1 of 5, and the second of 2 × 2/5 × (1/5)/(3/5).
    assert shares(nodes, "one")["target-2"] / OBJECTS == pytest.approx(1 / 5, abs=0.07)
    assert shares(nodes, "two")["target-2"] / OBJECTS == pytest.approx(7 / 15, abs=0.08)
    assert re.search(rf"{disk} +{joined / 2:g} ", run(nodes, "status"))

    # In peace, what is stored for a move is what belongs elsewhere afterwards.
    before, bytes_before = set(nodes.sizes()), stored_bytes(nodes)
    node_id = next(each["id"] for each in nodes.map()["nodes"] if each["advertise_url"] == nodes.url_of("target-2"))
    assert json.loads(run(nodes, "weight", node_id, f"{joined}", "--wait", "--json"))["weights"] == {disk: joined}
    until_settled(nodes)
    due = {row: size for row, size in nodes.sizes().items() if row not in before}
    moved = stored_bytes(nodes) - bytes_before
    assert sum(due.values()) <= moved <= SURPLUS_BYTES * sum(due.values())
    assert {row[0] for row in due} == {str(nodes.disks_of("target-2")[0])}, "nothing moves between the others"
    assert shares(nodes, "one")["target-2"] / OBJECTS == pytest.approx(1 / 3, abs=0.08)
    assert shares(nodes, "two")["target-2"] / OBJECTS == pytest.approx(2 / 3, abs=0.08)
    for bucket, bodies in fixed.items():
        assert check_fixed(nodes, bucket, bodies) == []
    facts = json.loads(run(nodes, "status", "--json"))
    told_disks = {each["id"]: each for node in facts["nodes"] for each in node["disks"]}
    assert (told_disks[disk]["present_weight"], told_disks[disk]["wanted_weight"]) == (joined, joined)
