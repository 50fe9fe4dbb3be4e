"""Copies that differ although no hint says so are found by `dfc cluster check` and repaired: real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from copying import adopt_one
from failures.nodes import CatalogRow, Nodes
from harness import QUICK, running

from dfc.checksum import ExpectedChecksums, checksum_of
from dfc.clock import HybridClock
from dfc.storage import Disk, DiskOptions
from dfc.storage.catalog.copies import AdoptVerdict
from dfc.storage.catalog.schema import version_text
from dfc.storage.copies import SmallCopy
from dfc.storage.layout import IDENTITY_FILE, ORPHANS
from dfc.storage.rows import Standing, Supplied

COUNT = 200
BUCKET = "compared"
EDITED = "target-1"
OPTIONS = DiskOptions(reserve_bytes=0, ballast_bytes=0, maintenance=False)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with Nodes(tmp_path, 3, 1, down_after_s=120, hold_s=3, drain_timeout_s=2, scrub_interval_s=0) as found:
        found.start_all()
        found.ask(f"/v1/buckets/{BUCKET}", "PUT", b'{"copies": 2}')
        found.ask("/v1/buckets/other", "PUT", b'{"copies": 2}')
        with httpx.Client(timeout=60) as http:
            for number in range(COUNT):
                for bucket in (BUCKET, "other"):
                    answer = http.put(f"{found.url}/v1/objects/{bucket}/o{number:03}?relay=1", content=body_of(f"o{number:03}"))
                    assert (answer.status_code, answer.json()["copies"]) == (201, 2), answer.text
        found.until_calm(60)
        yield found


def body_of(name: str) -> bytes:
    return name.encode() * 100


def rows_of(nodes: Nodes, rank: int, target: str = EDITED, bucket: str = BUCKET) -> list[CatalogRow]:
    """What a target has as a replica of this rank."""
    wanted = nodes.bucket_id(bucket)
    return [row for row in nodes.rows() if (row.disk, row.rank, row.bucket_id) == (f"{target}/disk-0", rank, wanted)]


@contextmanager
def edited(nodes: Nodes, target: str = EDITED) -> Iterator[Disk]:
    """A target's disk while that is stopped: whatever is done to it, no note says so, and it is the disk of before."""
    nodes.kill(target, signal.SIGTERM)
    [directory] = nodes.disks_of(target)
    cluster_id = json.loads((directory / IDENTITY_FILE).read_text())["cluster_id"]
    disk = Disk.open(str(directory), cluster_id, HybridClock(9), OPTIONS)
    try:
        yield disk
    finally:
        disk.close()
    nodes.start(target)
    nodes.until(lambda: nodes.is_ready(target), "the target to have started")
    nodes.until_calm(60)


def remove(disk: Disk, row: CatalogRow) -> None:
    assert disk.copies.remove_excess([(row.bucket_id, row.name, version_text(*row.version))]) == 1


def put(disk: Disk, row: CatalogRow, version: str, body: bytes) -> None:
    """Have another version instead of what is there."""
    remove(disk, row)
    verdict = AdoptVerdict(taken=True, commits=True, standing=Standing(row.rank))
    expected = ExpectedChecksums(xxh3_128=checksum_of(body))
    adopt_one(disk, SmallCopy(row.bucket_id, row.name, body, expected, Supplied(version), lambda present: verdict))


def shifted(row: CatalogRow, us: int) -> str:
    return version_text(row.version[0] + us, row.version[1])


def check(nodes: Nodes, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the command; its exit code, and what it prints."""
    environment = {**os.environ, **QUICK, "DFC_URL": nodes.url}
    command = [sys.executable, "-m", "dfc", "cluster", "check", "--json", *arguments]
    ran = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False)
    assert ran.stdout, ran.stderr
    return ran.returncode, json.loads(ran.stdout)


def interrupted(nodes: Nodes) -> tuple[int, bytes]:
    """Press Ctrl-C while it waits; the exit code, and what it prints of errors."""
    environment = {**os.environ, **QUICK, "DFC_URL": nodes.url}
    running = subprocess.Popen(
        [sys.executable, "-m", "dfc", "cluster", "check"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    nodes.until(lambda: nodes.ask("/v1/cluster/check", timeout_s=30)["state"] == "running", "the comparison to begin")
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    return running.returncode, errors


def told(found: dict[str, Any]) -> set[tuple[str, str]]:
    """Which objects were found, and what was done."""
    return {(each["object"], each["what"]) for disk in found["disks"] for each in disk["found"]}


def assert_replicas_are_right(nodes: Nodes) -> None:
    """Every object is on two disks, each of which gives the right bytes of it."""
    disks = {node["disks"][0]["id"]: node["url"] for node in nodes.map()["nodes"] if node["disks"]}
    labels = {
        f"{target}/disk-0": json.loads((nodes.disks_of(target)[0] / IDENTITY_FILE).read_text())["disk_id"]
        for target in nodes.targets
    }
    rows = nodes.rows()
    with httpx.Client(timeout=60) as http:
        for row in rows:
            disk = labels[row.disk]
            url = f"{disks[disk]}/v1/node/copies/{disk}/{row.bucket_id}/{row.name}"
            answer = http.get(url, params={"version": version_text(*row.version)})
            assert (answer.status_code, answer.content) == (200, body_of(row.name)), row
    assert len(rows) == 4 * COUNT
    assert len({row[:3] for row in rows}) == 4 * COUNT
    assert len({(row.bucket_id, row.name, row.version) for row in rows}) == 2 * COUNT


def test_what_a_replica_lacks_or_has_older_is_found_and_repaired(nodes: Nodes) -> None:
    seconds = rows_of(nodes, 1)
    removed, older, elsewhere = seconds[:3], seconds[3:6], rows_of(nodes, 1, bucket="other")[0]
    with edited(nodes) as disk:
        for row in [*removed, elsewhere]:
            remove(disk, row)
        for row in older:
            put(disk, row, shifted(row, -1_000_000), b"older")
    code, found = check(nodes, BUCKET)
    assert told(found) == {(row.name, "missing") for row in [*removed, *older]}
    assert (found["totals"]["differing"], found["totals"]["repaired"], found["not_compared"]) == (6, 6, [])
    assert found["totals"]["rows"] == COUNT
    assert code == 0
    assert elsewhere not in nodes.rows(), "it is in the bucket that was not named"
    nodes.ask("/v1/cluster/scrub", "POST", b"")
    nodes.until(lambda: elsewhere in nodes.rows(), "what is compared after a pass of the scrubber to be repaired")
    code, found = check(nodes)
    assert (code, found["totals"]["differing"], found["totals"]["rows"]) == (0, 0, 2 * COUNT)
    assert found["totals"]["pairs_compared"] == found["totals"]["pairs"] == 6
    nodes.until_calm(30)
    assert_replicas_are_right(nodes)
    assert nodes.ask("/v1/cluster/problems")["problems"] == []


def problems(nodes: Nodes) -> set[str]:
    return {each["code"] for each in nodes.ask("/v1/cluster/problems")["problems"]}


def test_a_primary_that_has_lost_rows_gets_them_back(nodes: Nodes) -> None:
    """Nobody has deleted these objects, since no tombstone says so: the copies of the other replicas are not touched."""
    lost = rows_of(nodes, 0)[:3]
    with edited(nodes) as disk:
        for row in lost:
            remove(disk, row)
    code, found = check(nodes)
    assert {(row.name, "lost") for row in lost} >= told(found) > set(), json.dumps(found)
    assert code == 5
    names = {row.name for row in lost}
    nodes.until(lambda: names <= {row.name for row in rows_of(nodes, 0)}, "the disk to have them again", 60)
    nodes.until(lambda: not problems(nodes), "all to be well", 60)
    assert check(nodes)[0] == 0
    assert_replicas_are_right(nodes)


def test_what_contradicts_the_primary_is_left_and_what_it_does_not_know_is_set_aside(nodes: Nodes) -> None:
    newer, [unknown] = rows_of(nodes, 1)[0], rows_of(nodes, 0)[:1]
    with edited(nodes) as disk:
        put(disk, newer, shifted(newer, 1_000_000), b"newer")
        remove(disk, unknown)  # this disk is its primary
    for target in {"target-0", "target-2"}:
        for row in [row for row in rows_of(nodes, 1, target) if row.name == unknown.name]:
            with edited(nodes, target) as disk:  # so old that its delete may be forgotten
                put(disk, row, shifted(row, -8 * 86_400_000_000), body_of(row.name))
    code, found = check(nodes)
    assert told(found) == {(newer.name, "alarm"), (unknown.name, "set aside")}
    assert (code, found["totals"]["alarms"], found["totals"]["set_aside"]) == (5, 1, 1)
    [left] = [row for row in rows_of(nodes, 1) if row.name == newer.name]
    assert version_text(*left.version) == shifted(newer, 1_000_000)
    assert unknown.name not in {row.name for row in nodes.rows() if row.bucket_id == nodes.bucket_id(BUCKET)}
    [kept] = [path for target in nodes.targets for path in nodes.disks_of(target)[0].glob(f"{ORPHANS}/*/{unknown.name}@*")]
    assert kept.read_bytes().startswith(body_of(unknown.name))

    nodes.until(lambda: problems(nodes) == {"copies_contradict"}, "the problem to be shown", 30)
    with httpx.Client(timeout=60) as http:
        for name in (newer.name, unknown.name):
            url = f"{nodes.url}/v1/objects/{BUCKET}/{name}?relay=1"
            assert http.get(url).status_code == (200 if name == newer.name else 404)
            assert http.put(url, content=body_of(name)).status_code in (200, 201)
    assert check(nodes)[0] == 0
    nodes.until(lambda: not problems(nodes), "the problem to be over", 30)
    assert_replicas_are_right(nodes)


def test_a_disk_that_does_not_answer_is_not_compared(nodes: Nodes) -> None:
    nodes.signal("target-2", signal.SIGSTOP)
    silent = json.loads((nodes.disks_of("target-2")[0] / IDENTITY_FILE).read_text())["disk_id"]
    try:
        assert interrupted(nodes) == (130, b"dfc: interrupted\n")
        code, found = check(nodes)
    finally:
        nodes.signal("target-2", signal.SIGCONT)
    assert code == 4
    whys = sorted(each for each in found["not_compared"])
    assert sum(f"with {silent}: the target of disk {silent} does not answer" in why for why in whys) == 2, whys
    assert any(why.startswith(f"disk {silent}: target ") for why in whys), whys
    assert (found["totals"]["pairs_compared"], found["totals"]["differing"]) == (2, 0)
    nodes.until_calm(60)
    assert check(nodes)[0] == 0


def test_objects_that_are_written_meanwhile_are_no_differences(nodes: Nodes) -> None:
    stopping = threading.Event()
    problems = list[str]()

    def write(worker: int, change: Callable[[httpx.Client, str, int], httpx.Response]) -> None:
        with httpx.Client(timeout=60) as http:
            number = 0
            while not stopping.is_set():
                answer = change(http, f"{nodes.url}/v1/objects/{BUCKET}/o{worker}{number % 50:02}?relay=1", number)
                number += 1
                if answer.status_code not in (200, 201, 204, 404):
                    problems.append(answer.text)

    def put_or_delete(http: httpx.Client, url: str, number: int) -> httpx.Response:
        return http.delete(url) if number % 3 == 2 else http.put(url, content=b"%d" % number)

    with running([threading.Thread(target=write, args=(worker, put_or_delete)) for worker in range(2)], stopping):
        outcomes = [check(nodes) for _ in range(3)]
    assert problems == []
    assert [(code, found["totals"]["differing"], found["not_compared"]) for code, found in outcomes] == [(0, 0, [])] * 3
