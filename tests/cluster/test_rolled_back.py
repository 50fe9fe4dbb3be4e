"""Disks that are put back to an earlier state, as by a snapshot of a machine or volume."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from failures.nodes import Nodes

NAMES = 12  # of each kind: overwritten, deleted and new since the snapshot
TOLD_S = 1.5  # longer than between two heartbeats


class Read(NamedTuple):
    """The answer to a GET; `body` is None unless it is 200."""

    status: int
    body: bytes | None
    is_marked: bool


def read(url: str, name: str) -> Read:
    try:
        with urllib.request.urlopen(f"{url}/b/{name}", timeout=20) as answer:
            return Read(200, answer.read(), "X-DFC-Possibly-Stale" in answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return Read(error.code, None, is_marked=False)


def write(nodes: Nodes, name: str, body: bytes | None) -> int:
    method = "DELETE" if body is None else "PUT"
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{nodes.url}/b/{name}", body, method=method), timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.fixture
def nodes(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    found = Nodes(tmp_path, targets=3, disks=1, down_after_s=3, default_copies=request.param)
    try:
        yield found
    finally:
        found.kill_all()


def go_back(nodes: Nodes, *, ends_by: int, runs: bool) -> dict[str, bytes | None]:
    """Put a target's disk back to what it had before some writes, and start it: what each name has by now. `runs`: the snapshot
    is of a target that runs."""
    kept = nodes.directory / "snapshot"
    nodes.start_all()
    for number in range(NAMES):
        assert write(nodes, f"over-{number}", b"old") == 201
        assert write(nodes, f"gone-{number}", b"old") == 201
    time.sleep(TOLD_S)
    if not runs:
        nodes.kill("target-0", signal.SIGTERM)
    shutil.copytree(nodes.place_of("target-0"), kept)
    if not runs:
        nodes.start_all()
    nodes.until_calm()
    for number in range(NAMES):
        assert write(nodes, f"over-{number}", b"new") == 200
        assert write(nodes, f"gone-{number}", None) == 204
        assert write(nodes, f"new-{number}", b"new") == 201
    time.sleep(TOLD_S)
    nodes.kill("target-0", ends_by)
    nodes.place_of("target-0").rename(nodes.directory / "newest")
    shutil.copytree(kept, nodes.place_of("target-0"))
    nodes.start("target-0")
    wanted: dict[str, bytes | None] = {f"{kind}-{number}": b"new" for kind in ("over", "new") for number in range(NAMES)}
    return wanted | {f"gone-{number}": None for number in range(NAMES)}


def wrong(nodes: Nodes, wanted: dict[str, bytes | None]) -> Counter[str]:
    """What is answered wrong and unmarked, by the proxy and by each target that answers."""
    found = Counter[str]()
    for url in (nodes.url, *(nodes.url_of(name) for name in nodes.targets)):
        for name, body in wanted.items():
            try:
                answer = read(url, name)
            except OSError:
                continue
            if answer.status == (200 if body is not None else 404) and answer.body == body:
                continue
            if answer.status != 503 and not answer.is_marked:
                found[f"{name.partition('-')[0]}: {answer.status} {answer.body!r}"] += 1
    return found


def problems(nodes: Nodes) -> dict[str, str]:
    return {each["code"]: each["subject"] for each in nodes.ask("/v1/cluster/problems")["problems"]}


@pytest.mark.parametrize("nodes", [2], indirect=True)
@pytest.mark.parametrize(
    ("ends_by", "runs"), [(signal.SIGTERM, False), (signal.SIGKILL, True)], ids=["of one that was stopped", "of one that ran"]
)
def test_a_disk_that_is_put_back_gets_from_others_what_it_lacks(nodes: Nodes, ends_by: int, runs: bool) -> None:
    wanted = go_back(nodes, ends_by=ends_by, runs=runs)
    seen, until_s = dict[str, str](), time.monotonic() + 8
    while time.monotonic() < until_s:
        assert not wrong(nodes, wanted)
        seen |= problems(nodes)
    assert "disk_rolled_back" in seen
    nodes.until_calm(60)
    assert not wrong(nodes, wanted)
    assert {name: read(nodes.url, name).body for name in wanted} == wanted
    subprocess.run(
        [sys.executable, "-m", "dfc", "cluster", "check"], check=True, timeout=120, env={**os.environ, "DFC_URL": nodes.url}
    )
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
    if then == "accept":
        command = [sys.executable, "-m", "dfc", "disk", "accept", str(nodes.disks_of("target-0")[0])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert "accepted" in done.stdout
    else:
        shutil.rmtree(nodes.place_of("target-0"))
        (nodes.directory / "newest").rename(nodes.place_of("target-0"))
    nodes.start("target-0")
    nodes.until(lambda: not problems(nodes), "all to be well", 30)
    if then != "accept":
        kept = {name: body for name, body in wanted.items() if not name.startswith("new")}
        assert {name: read(nodes.url, name).body for name in kept} == kept
    assert {write(nodes, f"new-{number}", b"more") for number in range(NAMES)} <= {200, 201}
    assert not any(read(nodes.url, name).is_marked for name in wanted)


@pytest.mark.parametrize("nodes", [1, 2], indirect=True)
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
