"""What users see of a cluster with copies when a target dies and comes back: the status, the command, the metrics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from failures.nodes import PROXY, Nodes
from prometheus_client.parser import text_string_to_metric_families

from dfc.client import Client

NAMES = [f"o{number:02}" for number in range(24)]
LIMIT_S = 120.0  # of each wait: the machine may be busy


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three targets with one disk each; buckets have two copies unless they say otherwise."""
    with Nodes(tmp_path_factory.mktemp("status"), 3, 1, down_after_s=4, default_copies=2, drain_timeout_s=5) as made:
        made.start_all()
        yield made
        made.stop_all()


def dfc(nodes: Nodes, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DFC_URL": nodes.url, "COLUMNS": "200"}
    command = [sys.executable, "-m", "dfc", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def status(nodes: Nodes) -> dict[str, Any]:
    found: dict[str, Any] = nodes.ask("/v1/cluster/status")
    return found


def becomes(nodes: Nodes, holds: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
    """Wait until the status is so, and return it."""
    found: list[dict[str, Any]] = []

    def look() -> bool:
        found[:] = [status(nodes)]
        return holds(found[0])

    try:
        nodes.until(look, what, LIMIT_S)
    except AssertionError as error:
        raise AssertionError(f"{error}: {found}") from None
    return found[0]


def codes(state: dict[str, Any]) -> list[str]:
    return [problem["code"] for problem in state["problems"]]


def metric(nodes: Nodes, node: str, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{nodes.port_of(node)}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    return sum(
        sample.value for family in text_string_to_metric_families(text) for sample in family.samples if sample.name == name
    )


def objects_in_map(nodes: Nodes) -> int:
    return sum(disk["objects"] for node in nodes.map()["nodes"] for disk in node["disks"])


def on_disk_of(nodes: Nodes, target: str) -> set[str]:
    return {row.name for row in nodes.rows() if Path(row.disk).parts[0] == target}


def test_a_target_dies_and_comes_back(nodes: Nodes) -> None:
    with Client(nodes.url) as client:
        client.create_bucket("b")
        assert (client.bucket("b").copies, client.bucket("b").min_copies) == (2, 1)
        for name in NAMES:
            client.put("b", name, name.encode() * 100)
        becomes(nodes, lambda state: state["health"] == "ok", "all to be well")
        nodes.until(nodes.is_calm, "all rows to be confirmed", LIMIT_S)
        lost = on_disk_of(nodes, "target-1")
        assert lost
        well = dfc(nodes, "cluster", "status")
        assert (well.returncode, "healthy" in well.stdout) == (0, True), well.stdout + well.stderr

        nodes.kill("target-1")
        state = becomes(
            nodes,
            lambda state: state["copies"]["one_left"] == len(lost) and not state["copies"]["estimated"],
            f"{len(lost)} objects to be counted",
        )
        assert (state["health"], codes(state)) == ("degraded", ["objects_one_replica_left", "target_down"])
        down = next(node["id"] for node in nodes.map()["nodes"] if node["state"] == "down")
        assert [problem["subject"] for problem in state["problems"]] == ["", down]
        assert state["copies"] == {"one_left": len(lost), "missing": len(lost), "unavailable": 0, "estimated": False}
        assert nodes.ask("/v1/cluster/problems")["problems"][1]["docs"] == "docs/operations.md#target_down"
        assert [problem.code for problem in client.cluster_problems()] == codes(state)
        shown = dfc(nodes, "cluster", "status")
        assert shown.returncode == 4, shown.stdout + shown.stderr
        for words in (
            f"{len(lost)} objects have one copy left",
            f"target {down}",
            "to do: start the target",
            "since 20",
            "degraded",
        ):
            assert words in shown.stdout, (words, shown.stdout)
        assert dfc(nodes, "ls", "-l", "b/o00").stdout.split()[2] == "2"
        nodes.until(
            lambda: metric(nodes, PROXY, "dfc_objects_one_replica_left") == len(lost), "the metric of the proxy", LIMIT_S
        )
        counted = [metric(nodes, each, "dfc_copies_one_left") for each in ("target-0", "target-2")]
        assert sum(counted) == len(lost)

        # What is written now has both copies again; the others still have one.
        again = sorted(lost)[: len(lost) // 2]
        for name in again:
            assert client.put("b", name, b"new").copies == 2
        left = len(lost) - len(again)
        becomes(nodes, lambda state: state["copies"]["one_left"] == left, f"{left} objects to be left")

        nodes.start("target-1")
        becomes(nodes, lambda state: state["health"] == "ok" and state["copies"]["missing"] == 0, "all to be well again")
        well = dfc(nodes, "cluster", "status", "--json")
        facts = json.loads(well.stdout)
        assert (well.returncode, facts["healthy"], facts["problems"], facts["out_of_sync"]) == (0, True, [], [])
        assert [client.get("b", name) for name in again] == [b"new"] * len(again)


def test_objects_with_one_copy_are_missed_exactly(nodes: Nodes) -> None:
    """And a target passes the question on to the proxy."""
    with Client(nodes.url) as client:
        client.create_bucket("alone", copies=1)
        for name in NAMES:
            client.put("alone", name, b"x")
    becomes(nodes, lambda state: state["health"] == "ok", "all to be well")
    nodes.until(nodes.is_calm, "all rows to be confirmed", LIMIT_S)
    alone = nodes.bucket_id("alone")
    lost = {row.name for row in nodes.rows() if row.bucket_id == alone and Path(row.disk).parts[0] == "target-2"}
    assert lost
    # What is known of a target that dies is what its last heartbeat said.
    nodes.until(lambda: objects_in_map(nodes) == len(nodes.rows()), "heartbeats with all objects", LIMIT_S)
    nodes.kill("target-2")
    state = becomes(nodes, lambda state: state["copies"]["unavailable"] > 0, "objects to be missed")
    assert state["copies"]["unavailable"] == len(lost)
    assert codes(state)[0] == "objects_unavailable"
    with urllib.request.urlopen(f"http://127.0.0.1:{nodes.port_of('target-0')}/v1/cluster/status", timeout=20) as answer:
        assert json.load(answer)["copies"]["unavailable"] == len(lost)
    nodes.start("target-2")
    becomes(nodes, lambda state: state["health"] == "ok", "all to be well again")
