"""Disks that are put back to an earlier state, as by a snapshot of a machine or volume."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from failures import rollbacks
from failures.nodes import Nodes
from failures.rollbacks import NAMES, TOLD_S, go_back, problems, read, seen_meanwhile, write, wrong
from harness import run_dfc


@pytest.fixture
def nodes(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    with Nodes(tmp_path, targets=3, disks=1, down_after_s=3, default_copies=request.param) as found:
        yield found


@pytest.mark.parametrize("nodes", [2], indirect=True)
@pytest.mark.parametrize(
    ("ends_by", "runs"), [(signal.SIGTERM, False), (signal.SIGKILL, True)], ids=["of one that was stopped", "of one that ran"]
)
def test_a_disk_that_is_put_back_gets_from_others_what_it_lacks(nodes: Nodes, ends_by: int, runs: bool) -> None:
    wanted = go_back(nodes, ends_by=ends_by, runs=runs)
    answers = list[object]()
    assert "disk_rolled_back" in seen_meanwhile(nodes, lambda: answers.append(wrong(nodes, wanted)), 8)
    assert not any(answers)
    nodes.until_calm(60)
    assert not wrong(nodes, wanted)
    assert {name: read(nodes.url, name).body for name in wanted} == wanted
    checked = run_dfc(nodes.url, "cluster", "check")
    assert checked.returncode == 0, checked
    assert {name: read(nodes.url, name).body for name in wanted} == wanted
    nodes.until(lambda: not problems(nodes), "all to be well", 20)


@pytest.mark.parametrize("nodes", [1], indirect=True)
@pytest.mark.parametrize("then", ["accept", "put back the newest state"])
def test_what_only_that_disk_had_waits_until_somebody_accepts_the_loss(nodes: Nodes, then: str) -> None:
    wanted = go_back(nodes, ends_by=signal.SIGTERM, runs=False)
    nodes.until(lambda: "disk_rolled_back" in problems(nodes), "the problem", 20)
    until_s = time.monotonic() + 5
    while time.monotonic() < until_s:
        assert not wrong(nodes, wanted)
    nodes.until(lambda: nodes.is_serving(["target-0"]), "the target to be up", 20)
    statuses = Counter(write(nodes, f"new-{number}", b"more") for number in range(NAMES))
    assert set(statuses) == {200, 503}, "names of other targets are written"
    marked = [name for name in wanted if read(nodes.url, name).is_marked]
    assert marked, "what is there can still be read"
    nodes.kill("target-0", signal.SIGTERM)
    if then != "accept":
        shutil.rmtree(nodes.place_of("target-0"))
        (nodes.directory / "newest").rename(nodes.place_of("target-0"))
        nodes.start("target-0")
        nodes.until(lambda: nodes.is_serving(["target-0"]), "the target to be up", 20)
        kept = {name: body for name, body in wanted.items() if not name.startswith("new")}
        nodes.until(lambda: all(read(nodes.url, name).body == body for name, body in kept.items()), "all to be read", 20)
        nodes.kill("target-0", signal.SIGTERM)
    # Also for the newest state: nobody but an operator knows that it is that.
    command = [sys.executable, "-m", "dfc", "disk", "accept", str(nodes.disks_of("target-0")[0])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "accepted" in done.stdout
    nodes.start("target-0")
    nodes.until(lambda: not problems(nodes), "all to be well", 30)
    assert {write(nodes, f"new-{number}", b"more") for number in range(NAMES)} <= {200, 201}
    assert not any(read(nodes.url, name).is_marked for name in wanted)


@pytest.mark.parametrize("nodes", [2], indirect=True)
def test_a_whole_cluster_that_is_put_back_goes_on_from_there(nodes: Nodes) -> None:
    nodes.start_all()
    assert write(nodes, "over", b"old") == 201
    nodes.stop_all()
    names = [*nodes.targets, *nodes.proxies]
    for name in names:
        shutil.copytree(nodes.place_of(name), nodes.directory / f"kept-{name}")
    nodes.start_all()
    nodes.until_calm()
    assert (write(nodes, "over", b"new"), write(nodes, "new", b"new")) == (200, 201)
    time.sleep(TOLD_S)
    nodes.stop_all()
    for name in names:
        shutil.rmtree(nodes.place_of(name))
        (nodes.directory / f"kept-{name}").rename(nodes.place_of(name))
    nodes.start_all()
    nodes.until_calm()
    assert (read(nodes.url, "over").body, read(nodes.url, "new").status) == (b"old", 404)
    assert write(nodes, "over", b"newer") == 200
    nodes.until(lambda: not problems(nodes), "all to be well", 20)


@pytest.mark.parametrize("nodes", [1], indirect=True)
def test_a_target_that_is_killed_and_started_again_has_lost_nothing(nodes: Nodes) -> None:
    nodes.start_all()
    for turn in range(3):
        for number in range(NAMES):
            assert write(nodes, f"over-{number}", b"%d" % turn) in (200, 201)
        nodes.kill("target-0", signal.SIGKILL)
        nodes.start_all()
        nodes.until(lambda: not problems(nodes), "all to be well", 20)
    assert "put back" not in nodes.log_of("target-0").read_text()
    assert nodes.ask("/v1/cluster/status")["health"] == "ok"


@pytest.mark.parametrize(
    ("kind", "copies", "count"),
    [
        ("damaged log", 1, "bits of logs flipped"),
        ("damaged log", 2, "bits of logs flipped"),
        ("damaged schema", 2, "bits of schemas flipped, catalog.sqlite"),
        ("old registry", 1, "old registries after SIGTERM"),
    ],
)
def test_it_is_refused_and_nothing_is_lost_or_denied(tmp_path: Path, kind: str, copies: int, count: str) -> None:
    found = rollbacks.run(tmp_path, rollbacks.Plan(rounds=1, kinds=(kind,), copies=copies), seed=1)
    assert found.problems == [], str(found)
    assert found.counts[count] == 1
