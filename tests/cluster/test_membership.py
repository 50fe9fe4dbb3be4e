"""Nodes that come, stay away and come late."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from failures.nodes import Nodes
from harness import IMPATIENT, Cluster, run_dfc, wait_for

from dfc.proxy.coordinator import OFFICE_S


def status_of(url: str, method: str = "GET", body: bytes | None = None) -> tuple[int, dict[str, str]]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=body, method=method), timeout=30) as answer:
            return answer.status, dict(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers)


@pytest.fixture(scope="module")
def own_cluster(start_cluster) -> Cluster:
    """For tests after which its two targets are up again."""
    found: Cluster = start_cluster(targets=2, environment=IMPATIENT)
    return found


def states(cluster: Cluster) -> list[str]:
    return sorted(node["state"] for node in cluster.map()["nodes"])


def test_a_target_that_is_away_makes_its_objects_503_never_404(own_cluster: Cluster) -> None:
    names = [f"away/{number}.bin" for number in range(20)]
    for name in names:
        assert status_of(f"{own_cluster.url}/{name}", "PUT", b"x")[0] == 201
    pid = own_cluster.children()["target-0"]
    os.kill(pid, signal.SIGSTOP)  # alive for the supervisor, silent for the registry
    try:
        wait_for(lambda: "down" in states(own_cluster), "the silent target to be marked down")
        answers = [status_of(f"{own_cluster.url}/{name}") for name in names]
        assert {status for status, _ in answers} == {200, 503}
        assert all("Retry-After" in headers for status, headers in answers if status == 503)
        assert status_of(f"{own_cluster.url}/away/")[0] == 503
        assert status_of(f"{own_cluster.url}/v1/buckets/away")[0] == 503
        assert status_of(f"{own_cluster.url}/v1/buckets/away", "PATCH", b'{"durability": "relaxed"}')[0] == 503
        missing = {status_of(f"{own_cluster.url}/away/missing-{number}")[0] for number in range(20)}
        assert missing == {404, 503}
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: states(own_cluster) == ["up", "up"], "the target to be up again")
    assert {status_of(f"{own_cluster.url}/{name}")[0] for name in names} == {200}
    with urllib.request.urlopen(f"{own_cluster.url}/v1/buckets/away", timeout=30) as answer:
        assert json.load(answer)["durability"] == "fsync", "what was answered 503 was not done either"


def test_one_that_joins_holds_nothing_until_it_is_told(start_cluster, tmp_path: Path) -> None:
    # Its end is waited for below; until then no node may be silent for so long, however busy the machine is.
    own_cluster: Cluster = start_cluster(targets=2, environment={"DFC_REBALANCE": "manual", "DFC_DOWN_AFTER_S": "8"})
    names = [f"join/{number}.bin" for number in range(30)]
    for name in names:
        assert status_of(f"{own_cluster.url}/{name}", "PUT", b"x")[0] == 201
    command = [sys.executable, "-m", "dfc", "target", "--port", "0", "--dir", str(tmp_path), "--disks", str(tmp_path / "disk")]
    node = subprocess.Popen([*command, "--proxy-url", own_cluster.url], stdout=subprocess.PIPE, text=True)

    def run(*arguments: str) -> str:
        done = run_dfc(own_cluster.url, "cluster", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        assert node.stdout is not None
        said = json.loads(node.stdout.readline())
        wait_for(lambda: states(own_cluster) == ["up", "up", "up"], "it to join")
        disk = next(disk for each in own_cluster.map()["nodes"] for disk in each["disks"] if disk["use"] == "new")["id"]
        assert f"disk_new {disk}" in run("status")  # which is no reason for another exit code
        for number in range(30):
            assert status_of(f"{own_cluster.url}/join/new-{number}.bin", "PUT", b"y")[0] == 201
        assert not list((tmp_path / "disk" / "objects").rglob("*.bin*"))
        # It answers every path all the same: what it does not hold it hands to the proxy.
        assert status_of(f"{said['url']}/{names[0]}")[0] == 200
        assert "are not paused; at most 67.1 MB a second" in run("rebalance")
        assert "are paused; at most 1 GB a second" in run("rebalance", "pause", "--rate", "1G")
        activate = [sys.executable, "-m", "dfc", "cluster", "activate", disk, "--wait"]
        environment = {**os.environ, "DFC_URL": own_cluster.url}
        waiting = subprocess.Popen(activate, stdout=subprocess.PIPE, text=True, env=environment)
        wait_for(lambda: "rebalance_paused" in run("status"), "the wish to show")
        time.sleep(6.0)
        assert waiting.poll() is None, "nothing has been moved"
        assert [layout["number"] for layout in own_cluster.map()["layouts"]] == [1]
        assert not list((tmp_path / "disk" / "objects").rglob("*.bin*")), "moves are paused"
        assert "are paused" in run("rebalance")
        assert json.loads(run("rebalance", "resume", "--rate", "0", "--json")) == {"paused": False, "rate_bytes_per_s": 0}
        told, _ = waiting.communicate(timeout=120)
        assert waiting.returncode == 0
        assert f"objects are moved to {disk}" in told
        assert "a move waits: moves are paused" in told
        assert {status_of(f"{own_cluster.url}/{name}")[0] for name in names} == {200}
        assert list((tmp_path / "disk" / "objects").rglob("*.bin*"))
        assert f"moving objects away from {disk}" in run("drain", disk, "--wait")
        wait_for(lambda: not list((tmp_path / "disk" / "objects").rglob("*.bin*")), "what was moved away to go")
        refused = run_dfc(own_cluster.url, "cluster", "remove", disk)
        assert refused.returncode != 0
        assert "in use" in refused.stderr
    finally:
        node.terminate()
        node.communicate(timeout=30)
    wait_for(lambda: "down" in states(own_cluster), "it to be down")
    run("remove", disk)
    assert disk not in json.dumps(own_cluster.map())
    assert {status_of(f"{own_cluster.url}/{name}")[0] for name in names} == {200}


def refused_target(cluster: Cluster, directory: Path, disk: Path) -> str:
    """What a target says that cannot start with this disk."""
    command = [sys.executable, "-m", "dfc", "target", "--port", "0", "--dir", str(directory), "--disks", str(disk)]
    done = subprocess.run([*command, "--proxy-url", cluster.url], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    return done.stderr


def test_disks_of_another_cluster_are_refused(own_cluster: Cluster, start_cluster, tmp_path: Path) -> None:
    other: Cluster = start_cluster(targets=1)
    assert other.stop() == 0
    assert "belongs to cluster" in refused_target(own_cluster, tmp_path, other.directory / "target-0" / "disk-0")


def test_a_second_proxy_is_refused_and_told_who_is_there(own_cluster: Cluster, tmp_path: Path) -> None:
    directory, running = own_cluster.directory / "proxy", own_cluster.children()["proxy"]
    (tmp_path / "link").symlink_to(directory)
    version = own_cluster.map()["version"]
    for path in (directory, tmp_path / "link"):
        command = [sys.executable, "-m", "dfc", "proxy", "--port", "0", "--dir", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 2
        assert f"the registry in {path} is in use by another proxy: process {running} on" in done.stderr
        assert "stop that one first" in done.stderr
        assert "Traceback" not in done.stderr
    assert own_cluster.is_healthy()
    assert own_cluster.children()["proxy"] == running
    assert own_cluster.map()["version"] == version


def test_a_second_proxy_cannot_register_at_the_first(own_cluster: Cluster) -> None:
    cluster_map = own_cluster.map()
    said = {"node_id": "proxy-2", "role": "proxy", "url": "http://127.0.0.1:1", "advertise_url": "http://127.0.0.1:1"}
    body = json.dumps({**said, "cluster_id": cluster_map["cluster_id"]}).encode()
    assert status_of(f"{own_cluster.url}/v1/node/registration", "POST", body)[0] == 409
    assert {node["id"] for node in own_cluster.map()["nodes"]} == {node["id"] for node in cluster_map["nodes"]}


def test_a_proxy_that_was_stopped_calls_nobody_silent(own_cluster: Cluster) -> None:
    """It has heard nothing for longer than any target may be silent, but who was silent was the proxy itself."""
    wait_for(lambda: states(own_cluster) == ["up", "up"], "both targets to be up")
    version = own_cluster.map()["version"]
    proxy = own_cluster.children()["proxy"]
    os.kill(proxy, signal.SIGSTOP)
    try:
        time.sleep(OFFICE_S + 1)
    finally:
        os.kill(proxy, signal.SIGCONT)
    log = own_cluster.directory / "logs" / "proxy.log"
    lost = "this proxy is no longer the coordinator"
    wait_for(lambda: log.read_text().partition(lost)[2].count("this proxy is the coordinator"), "another election")
    assert own_cluster.map()["version"] == version
    assert "no heartbeat from" not in log.read_text().partition(lost)[2]


def test_two_processes_never_share_a_disk(own_cluster: Cluster, tmp_path: Path) -> None:
    said = refused_target(own_cluster, tmp_path, own_cluster.directory / "target-0" / "disk-0")
    assert "lock" in said or "another process" in said


def test_a_copy_of_a_target_is_refused_while_it_runs(tmp_path: Path) -> None:
    """A cloned machine: the same ids on the same disks, at another address."""
    copy = tmp_path / "copy"
    command = [sys.executable, "-m", "dfc", "target", "--dir", str(copy), "--disks", str(copy / "disk-0"), "--port", "0"]
    with Nodes(tmp_path, 2, 1, down_after_s=90, default_copies=1) as nodes:
        command += ["--proxy-url", nodes.url]
        nodes.start_all()
        for number in range(10):
            assert status_of(f"{nodes.url}/b/{number}", "PUT", b"x")[0] == 201
        time.sleep(1.5)  # so that the files of the node are written
        shutil.copytree(nodes.place_of("target-0"), copy)
        refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert refused.returncode == 2, refused.stderr
        assert f"runs at {nodes.url_of('target-0')} already: this is a copy of it" in refused.stderr
        nodes.until(
            lambda: "id_in_use" in [each["code"] for each in nodes.ask("/v1/cluster/problems")["problems"]], "the problem", 10
        )
        assert {status_of(f"{nodes.url}/b/{number}", "PUT", b"y")[0] for number in range(10)} == {200}
        nodes.kill("target-0")
        killed_s = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as taken:
            try:
                assert taken.stdout is not None
                url = json.loads(taken.stdout.readline())["url"]
                nodes.until(lambda: url in {each["advertise_url"] for each in nodes.map()["nodes"]}, "the copy to be taken")
                assert time.monotonic() - killed_s < 60  # nothing waits until the other one is down
            finally:
                taken.kill()
