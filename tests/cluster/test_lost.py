"""A target is away until its disk is given up, and comes back with what it had: real processes."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from failures.kills import check_replicas
from failures.losses import disks_of, is_back, is_healed
from failures.nodes import Nodes
from harness import run_dfc

from dfc.logs import timestamp

COUNT = 60
WRITTEN_S = 60.0
LOST = "target-1"


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with Nodes(tmp_path, 3, 1, down_after_s=2, out_after_s=1, hold_s=3, drain_timeout_s=2) as found:
        found.start_all()
        yield found


@pytest.fixture
def http(nodes: Nodes) -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60, follow_redirects=True) as found:
        yield found


class Bucket:
    """Small objects, and what each of them is to be: None if it was deleted."""

    def __init__(self, nodes: Nodes, http: httpx.Client, name: str, copies: int) -> None:
        self.url, self.http, self.name = nodes.url, http, name
        nodes.ask(f"/v1/buckets/{name}", "PUT", b'{"copies": %d}' % copies)
        self.wanted: dict[str, bytes | None] = {}

    def put(self, name: str, body: bytes) -> None:
        status, _ = self._write("PUT", name, body)
        assert status in (200, 201)
        self.wanted[name] = body

    def delete(self, name: str) -> None:
        status, tries = self._write("DELETE", name)
        assert status == 204 or (status == 404 and tries > 1), status  # one that was answered 503 may have taken place
        self.wanted[name] = None

    def _write(self, method: str, name: str, body: bytes | None = None) -> tuple[int, int]:
        """The status of a write, which is repeated while it is answered 503, and the number of tries: where a node is down
        after seconds, it may be so on a busy machine without having been killed."""
        url, until_s = f"{self.url}/v1/objects/{self.name}/{name}?relay=1", time.monotonic() + WRITTEN_S
        tries = 0
        while True:
            answer = self.http.request(method, url, content=body)
            tries += 1
            if answer.status_code != 503 or time.monotonic() > until_s:
                return answer.status_code, tries
            time.sleep(0.2)

    def read(self) -> Counter[int]:
        """Read all of it; how many answers there are of each status. None may be wrong."""
        found = Counter[int]()
        for name, body in self.wanted.items():
            answer = self.http.get(f"{self.url}/v1/objects/{self.name}/{name}?relay=1")
            found[answer.status_code] += 1
            if answer.status_code == 200:
                assert answer.content == body, name
            elif body is not None:
                assert answer.status_code == 503, f"{name}: {answer.text}"
        return found

    def list(self) -> list[str] | int:
        """The names listed, or the status that the listing is refused with."""
        answer = self.http.get(f"{self.url}/v1/buckets/{self.name}/objects")
        return sorted(each["name"] for each in answer.json()["objects"]) if answer.status_code == 200 else answer.status_code


def purge_tombstones(nodes: Nodes) -> int:
    """What disks do with those that are older than a week; how many are left, since somebody lacks them."""
    left = 0
    for name in nodes.targets:
        for disk in nodes.disks_of(name):
            if name != LOST:
                with closing(sqlite3.connect(disk / "catalog.sqlite", timeout=30)) as catalog, catalog:
                    catalog.execute("DELETE FROM tombstones WHERE (bucket, name) NOT IN (SELECT bucket, name FROM hints)")
                    left += catalog.execute("SELECT count(*) FROM tombstones").fetchone()[0]
    return left


@pytest.mark.timeout(240)
def test_what_a_lost_disk_brings_back_is_never_seen(nodes: Nodes, http: httpx.Client) -> None:
    one, two = Bucket(nodes, http, "one", 1), Bucket(nodes, http, "two", 2)
    for number in range(COUNT):
        for bucket in (one, two):
            bucket.put(f"o{number:02}", b"old %d" % number)
    nodes.kill(LOST)
    nodes.until(lambda: is_healed(nodes, LOST), "objects to get other replicas")
    assert two.read() == {200: COUNT}
    assert two.list() == sorted(two.wanted)
    assert set(one.read()) == {200, 503}, "never 404"
    assert one.list() == 503
    for number in range(0, COUNT, 3):
        two.delete(f"o{number:02}")
        two.put(f"o{number + 1:02}", b"new %d" % number)
    nodes.until(lambda: purge_tombstones(nodes) == 0, "notes for the lost disk to be dropped")

    nodes.start(LOST)
    nodes.until(lambda: is_back(nodes), "it to get objects again")
    nodes.until_calm()
    assert two.read() == {200: COUNT * 2 // 3, 404: COUNT // 3}
    assert one.read() == {200: COUNT}
    assert one.list() == sorted(one.wanted)
    assert two.list() == sorted(name for name, body in two.wanted.items() if body is not None)
    two_id = nodes.bucket_id("two")
    nodes.until(lambda: check_replicas(nodes, 2, two_id) == [], "all objects to be at their replicas and nowhere else")
    held = {row.name for row in nodes.rows() if row.bucket_id == two_id and row.disk.startswith(LOST)}
    assert held, "it has its share again"
    assert held <= {name for name, body in two.wanted.items() if body is not None}
    assert not any(disk["evicted"] for disk in disks_of(nodes, LOST))


@pytest.mark.timeout(120)
def test_two_targets_that_are_away_are_not_evicted(nodes: Nodes, http: httpx.Client) -> None:
    two = Bucket(nodes, http, "two", 2)
    for number in range(COUNT):
        two.put(f"o{number:02}", b"%d" % number)
    for name in (LOST, "target-2"):
        nodes.kill(name)
    nodes.until(lambda: _down(nodes) == 2, "both to be down")
    found = two.read()
    assert set(found) == {200, 503}, "both copies of some are there, and those are not denied"
    assert not any(disk["evicted"] for name in nodes.targets for disk in disks_of(nodes, name))
    # Whichever was declared down last may come back without waiting for the other: it has heard of all that counts.
    steps = {name: disks_of(nodes, name)[0]["down_step"] for name in (LOST, "target-2")}
    back, lost = (LOST, "target-2") if steps[LOST] > steps["target-2"] else ("target-2", LOST)
    nodes.start(back)
    nodes.until(lambda: is_healed(nodes, lost), "the other one to be given up", 60)
    assert two.read() == {200: COUNT}


def run(nodes: Nodes, *arguments: str, code: int = 0) -> str:
    """What `dfc` with these arguments prints or complains about."""
    done = run_dfc(nodes.url, *arguments, timeout_s=100)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.mark.timeout(240)
def test_a_lost_target_is_removed_for_good(nodes: Nodes, http: httpx.Client, tmp_path: Path) -> None:
    one, two = Bucket(nodes, http, "one", 1), Bucket(nodes, http, "two", 2)
    for number in range(COUNT):
        for bucket in (one, two):
            bucket.put(f"o{number:02}", b"old %d" % number)
    one_id = nodes.bucket_id("one")
    lost_names = {row.name for row in nodes.rows() if row.bucket_id == one_id and row.disk.startswith(LOST)}
    (lost,) = (node["id"] for node in nodes.map()["nodes"] if node["advertise_url"] == nodes.url_of(LOST))
    (disk,) = (each["id"] for each in disks_of(nodes, LOST))
    assert "is up" in run(nodes, "cluster", "remove", lost, code=1)
    assert lost_names
    written = timestamp(time.time() + 1)
    heard = lambda: next(node["last_heartbeat"] for node in nodes.map()["nodes"] if node["id"] == lost)  # noqa: E731
    nodes.until(lambda: heard() > written, "a heartbeat that says what is there")
    nodes.kill(LOST)
    nodes.until(lambda: is_healed(nodes, LOST), "objects to get other replicas")
    told = run(nodes, "cluster", "remove", lost, code=1)
    assert f"{len(lost_names)} objects in buckets with one copy are on disk {disk} and nowhere else" in told
    answer = http.delete(f"{nodes.url}/v1/cluster/nodes/{lost}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "would_lose_objects")
    assert http.delete(f"{nodes.url}/v1/cluster/disks/{disk}?accept_loss=2").status_code == 400
    assert set(one.read()) == {200, 503}

    told = run(nodes, "cluster", "remove", lost, "--accept-loss", "--wait")
    assert f"objects are moved to a layout without {disk}" in told
    known = nodes.map()
    assert lost not in {node["id"] for node in known["nodes"]}
    assert (known["removed_disks"], known["layouts"][0].get("gone")) == ([disk], None)
    assert len(known["layouts"]) == 1
    nodes.targets.remove(LOST)
    nodes.until_calm()
    assert json.loads(run(nodes, "cluster", "status", "--json"))["health"] == "ok"
    assert two.read() == {200: COUNT}
    for name in lost_names:
        assert http.get(f"{nodes.url}/v1/objects/one/{name}?relay=1").status_code == 404
        one.wanted[name] = None
    assert one.read() == {200: COUNT - len(lost_names), 404: len(lost_names)}
    assert one.list() == sorted(name for name, body in one.wanted.items() if body is not None)
    for name in sorted(lost_names)[:5]:
        one.put(name, b"new")
    for number in range(0, COUNT, 3):
        two.delete(f"o{number:02}")

    # What was there never comes back, whatever has been deleted since.
    nodes.start(LOST)
    assert nodes.processes.pop(LOST).wait(60) == 2
    assert f"disk {disk} was removed from this cluster for good" in nodes.log_of(LOST).read_text()
    assert "there is no disk" in run(nodes, "disk", "replace", str(tmp_path / "new"), disk, code=3)
    assert one.read() == {200: COUNT - len(lost_names) + 5, 404: len(lost_names) - 5}
    assert two.read() == {200: COUNT * 2 // 3, 404: COUNT // 3}


class NodesOfWhichOneLosesADisk(Nodes):
    """Disks in `broken` are not in the settings of their targets any more."""

    broken: tuple[Path, ...] = ()

    def disks_of(self, name: str) -> list[Path]:
        return [disk for disk in super().disks_of(name) if disk not in self.broken]


@pytest.mark.timeout(240)
def test_one_of_two_disks_is_removed_for_good(tmp_path: Path, http: httpx.Client) -> None:
    """All buckets have one copy, so nothing is given up by itself. Objects of the other disk of its target move, too."""
    nodes = NodesOfWhichOneLosesADisk(tmp_path / "nodes", 3, 2, down_after_s=2, out_after_s=1, hold_s=3, drain_timeout_s=2)
    try:
        nodes.start_all()
        one = Bucket(nodes, http, "one", 1)
        for number in range(2 * COUNT):
            one.put(f"o{number:03}", b"old %d" % number)
        broken = nodes.disks_of(LOST)[1]
        disk = json.loads((broken / "dfc-disk.json").read_text())["disk_id"]
        lost_names = {row.name for row in nodes.rows() if row.disk == f"{LOST}/{broken.name}"}
        sisters = {row.name for row in nodes.rows() if row.disk == f"{LOST}/{nodes.disks_of(LOST)[0].name}"}
        assert len(lost_names) > 5
        assert len(sisters) > 5
        nodes.kill(LOST)
        nodes.broken = (broken,)
        nodes.start(LOST)
        nodes.until(lambda: state_of(nodes, LOST, disk) == "failed", "it to be failed")
        assert set(one.read()) == {200, 503}
        assert "has not been evicted" in run(nodes, "cluster", "remove", disk, code=1)
        assert f"a layout without {disk}" in run(nodes, "cluster", "remove", disk, "--accept-loss", "--wait")
        nodes.until_calm()
        for name in lost_names:
            one.wanted[name] = None
        assert one.read() == {200: 2 * COUNT - len(lost_names), 404: len(lost_names)}, "those of the other disk are there"
        assert one.list() == sorted(name for name, body in one.wanted.items() if body is not None)
        nodes.until(lambda: not check_replicas(nodes, 1), "all objects to be at their replicas and nowhere else")
        left = {row.name for row in nodes.rows() if row.disk.startswith(LOST)}
        assert left < sisters, "the target has a smaller share than before"
        for name in lost_names:
            one.put(name, b"new")
        assert one.read() == {200: 2 * COUNT}
    finally:
        nodes.kill_all()


def state_of(nodes: Nodes, name: str, disk: str) -> str:
    return next(str(each["state"]) for each in disks_of(nodes, name) if each["id"] == disk)


def _down(nodes: Nodes) -> int:
    return sum(node["state"] == "down" for node in nodes.map()["nodes"])
