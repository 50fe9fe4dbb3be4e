"""Objects with copies in real clusters: on as many disks as they should be, read and written while one is away, and healed."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from failures.kills import check_replicas
from failures.nodes import Nodes
from failures.web import NAMES, Web, content
from failures.writers import Writer, final_check
from harness import Cluster, run_dfc, running, wait_for
from job_shards import tar_of

from dfc.client import Client, job_spec

DOWN_AFTER_S = 3.0
LARGE = random.Random(1).randbytes(1_500_000)


def code(answer: httpx.Response) -> str:
    """The status, or the code of the error."""
    return str(answer.json()["error"]["code"]) if answer.status_code >= 400 else str(answer.status_code)


def rows_of(nodes: Nodes, bucket_id: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in nodes.rows():
        if row.bucket_id == bucket_id:
            found.setdefault(row.name, []).append(row)
    return found


def is_down(nodes: Nodes, name: str) -> bool:
    return not nodes.is_serving([name])


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three targets with one disk each."""
    with Nodes(tmp_path_factory.mktemp("copies"), 3, 1, down_after_s=DOWN_AFTER_S, hold_s=15, drain_timeout_s=5) as made:
        made.start_all()
        yield made
        made.stop_all()


@pytest.fixture
def web(nodes: Nodes) -> Iterator[Web]:
    """All nodes are up and calm when a test begins; what it has killed it starts again here."""
    nodes.start_all()
    nodes.until_calm(40)
    made = Web(nodes)
    yield made
    made.close()


def healed(nodes: Nodes, bucket_id: str, copies: int = 2) -> None:
    """Wait until nothing is left to be done, and look at all disks."""
    nodes.start_all()
    nodes.until_calm(40)
    nodes.until(lambda: not nodes.handoffs(), "rows of handoff replicas to go", 20)
    assert check_replicas(nodes, copies, bucket_id) == []


def test_an_object_is_on_two_disks_and_shown_once(nodes: Nodes, web: Web) -> None:
    bucket_id = web.create("twice")
    bodies: dict[str, bytes] = {"large": LARGE, **web.fill("twice")}
    answer = web.put("twice/large", LARGE)
    assert answer.status_code == 201
    assert answer.json()["copies"] >= 2
    web.check("twice", dict(bodies))
    rows = rows_of(nodes, bucket_id)
    assert rows.keys() == bodies.keys()
    for name, found in rows.items():
        assert sorted(row.rank for row in found) == [0, 1], name
        assert len({row.disk for row in found}) == 2, name
        assert len({(row.version, row.checksum) for row in found}) == 1, name
    assert web.names("twice") == sorted(bodies)
    assert web.names("twice", prefix="o0") == [f"o0{number}" for number in range(10)]
    assert web.ask("GET", "/twice/").text.split() == sorted(bodies)
    described = web.bucket("twice")
    size = sum(map(len, bodies.values()))
    assert (described["objects"], described["bytes"], described["copies"]) == (len(bodies), size, 2)
    assert web.put("twice/o00", b"new").status_code == 200
    assert (web.get("twice/o00"), web.bucket("twice")["objects"]) == (b"new", len(bodies))
    nodes.until(lambda: not any(nodes.count("pending")), "marks to be dropped", 10)
    assert check_replicas(nodes, 2, bucket_id) == []


def shard_of(count: int) -> bytes:
    return tar_of([(f"{number:03}.bin", bytes([number]) * 2000) for number in range(count)])


def test_members_of_shards_and_batches(nodes: Nodes, web: Web) -> None:
    web.create("shards")
    for number in range(4):
        assert web.put(f"shards/s{number}.tar", shard_of(100)).json()["copies"] >= 2
    for number in range(4):
        assert web.ask("GET", f"/v1/objects/shards/s{number}.tar?relay=1&member=007.bin").content == b"\x07" * 2000
    keys = web.ask("GET", "/v1/buckets/shards/samples?fields=key").text.splitlines()
    assert len(keys) == 400, "each shard once"
    items = [{"bucket": "shards", "object": f"s{number}.tar", "sample": "042"} for number in range(4)]
    batch = web.ask("POST", "/v1/batch", json.dumps({"items": items}).encode())
    assert batch.status_code == 200, batch.text
    with tarfile.open(fileobj=io.BytesIO(batch.content)) as archive:
        assert archive.getnames() == ["042.bin"] * 4


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_travels_to_the_other_disk_while_it_is_received(nodes: Nodes, web: Web, *, chunked: bool) -> None:
    """The log of the target that gets the copy shows the body once, before its row."""
    bucket = f"large-{chunked}".lower()
    bucket_id = web.create(bucket)
    body: Any = iter([LARGE[:1000], LARGE[1000:]]) if chunked else LARGE
    assert web.put(f"{bucket}/object", body).json()["copies"] == 2
    assert web.get(f"{bucket}/object") == LARGE
    assert len(rows_of(nodes, bucket_id)["object"]) == 2

    def requests() -> list[str]:
        """Which bodies have come to targets, with their sizes."""
        lines = [json.loads(line) for name in nodes.targets for line in nodes.log_of(name).read_text().splitlines()
                 if bucket_id in line and '"access"' in line]  # fmt: skip
        return [f"{line['access'].split('/')[3]} {line['received']}" for line in lines]

    assert wait_for(requests, "the log") == [f"bodies {len(LARGE)}"]
    assert code(web.put(f"{bucket}/object", LARGE, If_None_Match="*")) == "precondition_failed"
    nodes.until(lambda: len(blobs_of(nodes, bucket_id)) == 2, "the refused body to be dropped everywhere", 10)


def test_too_many_copies_are_refused(nodes: Nodes, web: Web) -> None:
    assert code(web.ask("PUT", "/v1/buckets/four", b'{"copies": 4}')) == "too_few_domains"
    assert web.ask("PUT", "/v1/buckets/four", b'{"copies": 4}').status_code == 409
    for count in (b"9", b"0", b"-1", b'"2"', b"1e9"):
        assert web.ask("PUT", "/v1/buckets/nine", b'{"copies": %b}' % count).status_code == 400, count
    web.create("three", copies=3)
    assert code(web.ask("PATCH", "/v1/buckets/three", b'{"copies": 4}')) == "too_few_domains"
    assert web.ask("PATCH", "/v1/buckets/three", b'{"copies": 9}').status_code == 400
    answer = web.put("three/x", b"x")
    assert (answer.json()["copies"], len(rows_of(nodes, nodes.bucket_id("three"))["x"])) == (3, 3)
    assert code(web.ask("PUT", "/v1/buckets/three", b'{"copies": 2}')) == "bucket_conflict"


def test_conditional_writes_and_deletes(nodes: Nodes, web: Web) -> None:
    bucket_id = web.create("conditions")
    for size in (10, 1_000_000):
        first, second = b"1" * size, b"2" * size
        answer = web.put(f"conditions/{size}", first, If_None_Match="*")
        assert answer.status_code == 201
        assert answer.json()["copies"] >= 2
        assert web.put(f"conditions/{size}", second, If_None_Match="*").status_code == 412
        tag = web.object("HEAD", f"conditions/{size}").headers["ETag"]
        assert web.put(f"conditions/{size}", second, If_Match='"' + "0" * 32 + '"').status_code == 412
        assert web.put(f"conditions/{size}", second, If_Match=tag).status_code == 200
        assert web.put(f"conditions/{size}", first, If_Match=tag).status_code == 412
        assert web.get(f"conditions/{size}") == second
        assert web.object("DELETE", f"conditions/{size}", If_Match=tag).status_code == 412
        assert web.object("DELETE", f"conditions/{size}").status_code == 204
        assert web.object("DELETE", f"conditions/{size}").status_code == 404
        assert web.get(f"conditions/{size}") is None
        assert web.put(f"conditions/{size}", first, If_Match="*").status_code == 412
    with ThreadPoolExecutor(8) as threads:  # exactly one of those who create it does
        told = list(threads.map(lambda each: web.put("conditions/race", b"%d" % each, If_None_Match="*").status_code, range(8)))
        assert sorted(told) == [201] + [412] * 7
        tag = web.object("HEAD", "conditions/race").headers["ETag"]
        told = list(threads.map(lambda each: web.put("conditions/race", b"m%d" % each, If_Match=tag).status_code, range(8)))
        assert sorted(told) == [200] + [412] * 7
    assert rows_of(nodes, bucket_id).keys() == {"race"}


def test_one_target_of_three_dies_and_comes_back(nodes: Nodes, web: Web) -> None:
    bucket_id = web.create("dies")
    bodies: dict[str, bytes | None] = dict(web.fill("dies"))
    more: dict[str, bytes | None] = dict(web.fill("dies", [f"gone{number}" for number in range(6)]))
    nodes.kill("target-1")
    killed_s = time.monotonic()
    with ThreadPoolExecutor(4) as threads:  # also to names of which it was the primary
        writes = list(threads.map(lambda name: web.put(f"dies/{name}", content(name, "new")), NAMES[:8]))
    took_s = time.monotonic() - killed_s
    assert [answer.status_code for answer in writes] == [200] * 8, [answer.text for answer in writes]
    assert took_s <= 2 * DOWN_AFTER_S + 2, took_s
    bodies.update({name: content(name, "new") for name in NAMES[:8]})
    wait_for(lambda: is_down(nodes, "target-1"), "it to be marked down")
    web.check("dies", {**bodies, **more})
    assert web.names("dies") == sorted((*bodies, *more))
    for name in more:
        assert web.object("DELETE", f"dies/{name}").status_code == 204, name
    assert web.object("DELETE", f"dies/{NAMES[15]}").status_code == 204
    assert web.object("DELETE", f"dies/{NAMES[15]}").status_code == 404
    assert web.put(f"dies/{NAMES[14]}", b"", If_None_Match="*").status_code == 412
    bodies.update(dict.fromkeys((*more, NAMES[15])))
    late: dict[str, bytes | None] = dict(web.fill("dies", ["late0", "late1", "late2"]))
    bodies.update(late)
    web.check("dies", bodies)
    there = sorted(name for name, body in bodies.items() if body is not None)
    assert web.names("dies") == there
    healed(nodes, bucket_id)
    web.check("dies", bodies)
    assert web.names("dies") == there
    assert web.bucket("dies")["objects"] == len(there)
    assert rows_of(nodes, bucket_id).keys() == set(there), "what was deleted is nowhere"


def test_writers_go_on_while_a_target_is_gone_and_when_it_is_back(nodes: Nodes, web: Web) -> None:
    """Four writers never stop, each with names of its own, which it also reads."""
    bucket_id = web.create("gone")
    writers = [Writer(nodes.url, "gone", number, 1, (100, 200_000), 15) for number in range(4)]
    bodies: dict[str, bytes | None] = dict(web.fill("gone"))

    def acknowledged() -> int:
        return sum(writer.counts["put"] + writer.counts["delete"] for writer in writers)

    def until_written() -> None:
        before = acknowledged()
        nodes.until(lambda: acknowledged() >= before + 40 or any(writer.problems for writer in writers), "40 writes", 40)

    for writer in writers:
        writer.start()
    try:
        until_written()
        nodes.kill("target-1")
        wait_for(lambda: is_down(nodes, "target-1"), "it to be marked down")
        until_written()
        for _ in range(3):
            web.check("gone", bodies)
            assert web.names("gone", prefix="o") == NAMES
        for name in NAMES[:4]:
            assert web.put(f"gone/{name}", content(name, "new")).json()["copies"] == 2
            bodies[name] = content(name, "new")
        for name in NAMES[4:8]:
            assert web.object("DELETE", f"gone/{name}").status_code == 204
            bodies[name] = None
        there = sorted(name for name, body in bodies.items() if body is not None)
        until_written()
        nodes.start("target-1")
        nodes.until(lambda: nodes.is_serving(["target-1"]), "it to be back")
        for _ in range(10):
            web.check("gone", bodies)
            assert web.names("gone", prefix="o") == there
        until_written()
    finally:
        for writer in writers:
            writer.stopping.set()
        for writer in writers:
            writer.join(60)
    assert [problem for writer in writers for problem in writer.problems] == []
    assert sum(writer.counts["copies 1"] for writer in writers) == 0, "two targets were always there"
    healed(nodes, bucket_id)
    assert final_check(nodes.url, "gone", writers) == []
    web.check("gone", bodies)
    own = {name for writer in writers for name, known in writer.known.items() if known.certain is not None}
    assert web.names("gone") == sorted((*there, *own))
    assert rows_of(nodes, bucket_id).keys() == {*there, *own}, "what was deleted is nowhere"


def test_two_targets_of_three_die_at_once(nodes: Nodes, web: Web) -> None:
    """What was on both is unavailable, and never missing. It is there again with the one that was marked down last."""
    bucket_id = web.create("both")
    bodies: dict[str, bytes | None] = dict(web.fill("both", [f"n{number:02}" for number in range(60)]))
    nodes.until_calm(40)
    places = {name: {row.disk.partition("/")[0] for row in rows} for name, rows in rows_of(nodes, bucket_id).items()}
    dead = ("target-0", "target-1")
    lost = [name for name in bodies if places[name] == set(dead)]
    kept = {name: body for name, body in bodies.items() if name not in lost}
    assert len(lost) >= 4, places
    assert len(kept) >= 4, places
    for name in dead:
        nodes.signal(name, signal.SIGKILL)
    for name in dead:
        nodes.kill(name)

    def answers(name: str) -> set[int]:
        told = (web.object("GET", f"both/{name}"), web.put(f"both/{name}", b"new"), web.object("DELETE", f"both/{name}"))
        return {answer.status_code for answer in (*told, web.object("HEAD", f"both/{name}"))}

    with ThreadPoolExecutor(4) as threads:  # also before they are marked down
        assert set().union(*threads.map(answers, lost[:4])) == {503}
    wait_for(lambda: is_down(nodes, dead[0]) and is_down(nodes, dead[1]), "both to be marked down")
    assert [answers(name) for name in lost] == [{503}] * len(lost)
    assert web.ask("GET", "/v1/buckets/both/objects").status_code == 503, "a listing would not be complete"
    web.check("both", kept)
    changed = next(iter(kept))
    assert web.put(f"both/{changed}", b"new").json()["copies"] == 1
    bodies[changed] = b"new"
    down = {nodes.port_of(name): name for name in dead}
    steps = {down[port]: node["disks"][0]["down_step"] for node in nodes.map()["nodes"]
             if (port := int(node["url"].rpartition(":")[2])) in down}  # fmt: skip
    last = max(dead, key=lambda name: steps[name])
    nodes.start(last)
    for name in lost:
        nodes.until(lambda name=name: web.object("GET", f"both/{name}").status_code != 503, f"{name} to be there", 30)  # type: ignore[misc]
    web.check("both", bodies)
    assert web.names("both") == sorted(bodies)
    for name in lost[:3]:
        bodies[name] = content(name, "newer")
        assert web.put(f"both/{name}", bodies[name] or b"").json()["copies"] == 2
    healed(nodes, bucket_id)
    web.check("both", bodies)
    assert web.names("both") == sorted(bodies)


def test_a_write_has_two_copies_although_its_replica_has_just_died(nodes: Nodes, web: Web) -> None:
    """There is a third target that can stand in."""
    bucket_id = web.create("dying")
    bodies = web.fill("dying")
    nodes.kill("target-1")
    with ThreadPoolExecutor(8) as threads:
        writes = list(threads.map(lambda name: web.put(f"dying/{name}", content(name, "new")), bodies))
    assert {name: len(rows) for name, rows in rows_of(nodes, bucket_id).items() if len(on_running(nodes, rows)) < 2} == {}
    assert [answer.json()["copies"] for answer in writes] == [2] * len(bodies)


def on_running(nodes: Nodes, rows: list[Any]) -> list[Any]:
    """Of rows in the newest version, those on disks of targets that run."""
    newest = max(row.version for row in rows)
    return [row for row in rows if row.version == newest and row.disk.partition("/")[0] in nodes.processes]


def test_counts_are_estimates_while_a_replica_is_away(nodes: Nodes, web: Web) -> None:
    web.create("counted")
    bodies = web.fill("counted")
    expected = (len(bodies), sum(map(len, bodies.values())))
    described = web.bucket("counted")
    assert (described["objects"], described["bytes"], described["exact"]) == (*expected, True)
    nodes.kill("target-1")
    wait_for(lambda: is_down(nodes, "target-1"), "it to be marked down")
    described = web.bucket("counted")
    assert not described["exact"]
    assert 0 < described["objects"] <= 1.5 * expected[0]  # 3/2 of those whose first replica is up
    assert [bucket["exact"] for bucket in nodes.ask("/v1/buckets")["buckets"] if bucket["name"] == "counted"] == [False]


def test_reads_go_on_at_the_other_copy_at_once(nodes: Nodes, web: Web) -> None:
    """Before the dead target is marked down."""
    web.create("reads")
    bodies = web.fill("reads")
    nodes.until(nodes.is_calm, "the second replicas to know that their rows count", 5)
    nodes.kill("target-2")
    took_s = {}
    for name, body in bodies.items():
        begun_s = time.monotonic()
        assert web.get(f"reads/{name}") == body, name
        took_s[name] = time.monotonic() - begun_s
    assert sorted(took_s.values())[len(took_s) // 2] <= 1.0, took_s
    assert max(took_s.values()) < DOWN_AFTER_S, "none of them waited until it was marked down"


def put_if_served(web: Web, path: str, body: bytes) -> httpx.Response | None:
    """The answer to a PUT; None for a 503, after which clients try again."""
    answer = web.put(path, body)
    assert answer.status_code in (200, 503), answer.text
    return answer if answer.status_code == 200 else None


def test_what_a_stopped_target_has_is_not_served_when_it_goes_on(nodes: Nodes, web: Web) -> None:
    bucket_id = web.create("stopped")
    bodies: dict[str, bytes | None] = dict(web.fill("stopped"))
    url = next(node["advertise_url"] for node in nodes.map()["nodes"] if node["url"].endswith(f":{nodes.port_of('target-0')}"))
    nodes.signal("target-0", signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        early = threads.submit(web.put, f"stopped/{NAMES[9]}", b"on its way when it stopped")
        try:
            wait_for(lambda: is_down(nodes, "target-0"), "it to be marked down")
            new: dict[str, bytes | None] = {name: content(name, "new") + b"new" for name in NAMES[:8]}
            for name, body in new.items():
                answer = wait_for(partial(put_if_served, web, f"stopped/{name}", body or b""), f"{name} to be stored", 45)
                assert answer.json()["copies"] == 2
            bodies.update(new)
            assert web.object("DELETE", f"stopped/{NAMES[8]}").status_code == 204
            bodies[NAMES[8]] = None
        finally:
            nodes.signal("target-0", signal.SIGCONT)
        check_direct(url, bodies, NAMES[9])
        answer = early.result()
        assert answer.status_code in (200, 503), answer.text
        if answer.status_code == 200 or web.get(f"stopped/{NAMES[9]}") != bodies[NAMES[9]]:
            bodies[NAMES[9]] = b"on its way when it stopped"
    web.check("stopped", bodies)
    healed(nodes, bucket_id)
    web.check("stopped", bodies)


def check_direct(url: str, bodies: dict[str, bytes | None], without: str) -> None:
    """Nothing old comes from the target itself, unless it is marked."""
    with httpx.Client(base_url=url, timeout=30) as direct:
        for _ in range(3):
            for name, body in bodies.items():
                answer = direct.get(f"/v1/objects/stopped/{name}", params={"relay": "1"})
                if answer.status_code == 404:
                    assert body is None, name
                elif answer.status_code == 200 and "X-DFC-Possibly-Stale" not in answer.headers:
                    assert answer.content == body or name == without, name
                else:
                    assert answer.status_code in (200, 503), (name, answer.status_code, answer.text[:200])


def test_what_is_deleted_while_a_replica_is_away_stays_deleted(nodes: Nodes, web: Web) -> None:
    bucket_id = web.create("buried")
    bodies = dict(web.fill("buried"))
    nodes.kill("target-0")
    for name in bodies:
        assert web.object("DELETE", f"buried/{name}").status_code == 204
    assert web.names("buried") == []
    nodes.start("target-0")
    nodes.until(lambda: nodes.is_serving(["target-0"]), "it to be back")
    end = time.monotonic() + 2
    while time.monotonic() < end:
        assert web.names("buried") == []
        assert [name for name in bodies if web.get(f"buried/{name}", patience_s=60) is not None] == []
    healed(nodes, bucket_id)
    assert (rows_of(nodes, bucket_id), web.bucket("buried")["objects"]) == ({}, 0)
    web.fill("buried", NAMES[:4], "again")
    assert web.names("buried") == NAMES[:4]


def test_a_disk_is_replaced_under_its_id(nodes: Nodes, web: Web, tmp_path: Path) -> None:
    """A new one gets what the old one had, and nothing else is moved. Refused while that would cost objects."""
    bucket_id, node = web.create("replaced"), "target-1"
    bodies: dict[str, bytes | None] = dict(web.fill("replaced"))
    old = nodes.disks_of(node)[0]
    disk_id = json.loads((old / "dfc-disk.json").read_text())["disk_id"]

    def replace(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_dfc(nodes.url, "disk", "replace", tmp_path / "new", disk_id, *arguments, timeout_s=60)

    refused = replace()
    assert (refused.returncode, "is in use by target" in refused.stderr) == (1, True), refused.stderr
    nodes.ask("/v1/buckets/alone", "PUT", b'{"copies": 1}')
    nodes.kill(node)
    wait_for(lambda: is_down(nodes, node), "it to be marked down")
    refused = replace()
    assert (refused.returncode, "bucket alone has one copy" in refused.stderr) == (1, True), refused.stderr
    assert not (tmp_path / "new").exists()
    before = {row for row in nodes.rows() if row.bucket_id == bucket_id and not row.disk.startswith(f"{node}/")}
    with read_again_and_again(nodes, "replaced", bodies) as problems:
        done = replace("--accept-loss")
        assert done.returncode == 0, done.stderr
        shutil.rmtree(old)
        (tmp_path / "new").rename(old)
        nodes.start(node)
        healed(nodes, bucket_id)
    assert problems == []
    rows = {row for row in nodes.rows() if row.bucket_id == bucket_id}
    assert {row for row in rows if not row.disk.startswith(f"{node}/")} == before
    assert any(row.disk.startswith(f"{node}/{old.name}") for row in rows)
    web.check("replaced", bodies)


def test_a_disk_that_comes_back_empty_gets_everything_back(nodes: Nodes, web: Web) -> None:
    """All its blobs are gone, and its catalog is made anew."""
    bucket_id = web.create("empty")
    bodies: dict[str, bytes | None] = dict(web.fill("empty"))
    web.fill("empty", ["gone"])
    assert web.object("DELETE", "empty/gone").status_code == 204
    bodies["gone"] = None
    with read_again_and_again(nodes, "empty", bodies) as problems:
        nodes.kill("target-1", signal.SIGTERM)
        wait_for(lambda: is_down(nodes, "target-1"), "it to be marked down")
        disk = nodes.disks_of("target-1")[0]
        shutil.rmtree(disk / "objects")
        (disk / "objects").mkdir()
        subprocess.run([sys.executable, "-m", "dfc", "disk", "rebuild", str(disk)], check=True, timeout=60)
        assert [row for row in nodes.rows() if row.disk.startswith("target-1/")] == []
        nodes.start("target-1")
        healed(nodes, bucket_id)
    assert problems == []
    assert any(row.disk.startswith("target-1/") for row in nodes.rows() if row.bucket_id == bucket_id)
    web.check("empty", bodies)
    assert web.names("empty") == sorted(name for name, body in bodies.items() if body is not None)


@contextmanager
def read_again_and_again(nodes: Nodes, bucket: str, bodies: dict[str, bytes | None]) -> Iterator[list[str]]:
    """Read all objects all the time; gives the mistakes."""
    stopping, problems = threading.Event(), list[str]()

    def read() -> None:
        own = Web(nodes)
        try:
            while not stopping.is_set():
                for name, body in bodies.items():
                    if own.get(f"{bucket}/{name}") != body:
                        problems.append(f"{name} is not what was stored")
        except Exception as error:
            problems.append(repr(error))
        finally:
            own.close()

    with running([threading.Thread(target=read)], stopping):
        yield problems


def test_relaxed_durability(nodes: Nodes, web: Web) -> None:
    bucket_id = web.create("relaxed", durability="relaxed")
    bodies: dict[str, bytes | None] = dict(web.fill("relaxed"))
    nodes.kill("target-1")
    web.check("relaxed", bodies)
    nodes.start("target-1")
    bodies.update(web.fill("relaxed", NAMES[:4], "new"))
    healed(nodes, bucket_id)
    web.check("relaxed", bodies)


def test_a_machine_that_loses_power_gets_back_what_it_had_not_synced(nodes: Nodes, web: Web) -> None:
    """Its disk finds that the machine has been started anew, and that bytes are missing."""
    bucket_id = web.create("power", durability="relaxed")
    bodies: dict[str, bytes | None] = dict(web.fill("power"))
    bodies.update(web.fill("power", NAMES[:8], "new"))
    nodes.kill("target-1")
    disk = nodes.disks_of("target-1")[0]
    with closing(sqlite3.connect(disk / "catalog.sqlite")) as catalog:
        unsynced = catalog.execute("SELECT CAST(name AS TEXT), us, node FROM unsynced").fetchall()
        assert catalog.execute("UPDATE meta SET value = 'before' WHERE key = 'relaxed_boot'").rowcount == 1
        catalog.execute("UPDATE unsynced SET boot = 'before'")
        catalog.commit()
    assert unsynced
    blobs = {f"{name}@{us:014x}{node:04x}" for name, us, node in unsynced}
    lost = [path for path in (disk / "objects" / bucket_id).rglob("*") if path.name in blobs]
    assert lost, "some are not in the catalog"
    for path in lost:
        os.truncate(path, 0)
    web.check("power", bodies)
    healed(nodes, bucket_id)
    nodes.until(lambda: not any(nodes.count("quarantine")), "what is damaged to be stored again", 20)
    web.check("power", bodies)
    nodes.kill("target-0")
    wait_for(lambda: is_down(nodes, "target-0"), "it to be marked down")
    web.check("power", bodies, patience_s=20)  # one that is busy for as long as the other was silent is behind for a moment


def test_more_copies_and_fewer_under_writes(nodes: Nodes, web: Web) -> None:
    """Writers and readers go on through both changes, and no request fails."""
    bucket_id = web.create("changes", copies=1)
    old: dict[str, bytes | None] = {f"old{number:02}": content(f"old{number}") for number in range(40)}
    with ThreadPoolExecutor(4) as threads:
        for answer in threads.map(lambda name: web.put(f"changes/{name}", old[name] or b""), old):
            assert answer.json()["copies"] == 1
    known = dict(old)
    stopping, problems, writes, reads = threading.Event(), list[str](), list[str](), list[str]()

    def write(worker: int) -> None:
        own, draw = Web(nodes), random.Random(worker)
        try:
            while not stopping.is_set():
                name, body = f"w{worker}-{draw.randrange(12)}", draw.randbytes(draw.choice((10, 3000, 100_000)))
                if draw.random() < 0.8:
                    answer = own.put(f"changes/{name}", body)
                    if answer.status_code not in (200, 201):
                        problems.append(f"{name}: {answer.text}")
                    known[name] = body
                else:
                    answer = own.object("DELETE", f"changes/{name}")
                    if answer.status_code not in (204, 404):
                        problems.append(f"{name}: {answer.text}")
                    known[name] = None
                if own.get(f"changes/{name}") != known[name]:
                    problems.append(f"{name} is not what was just written")
                writes.append(name)
        except Exception as error:
            problems.append(repr(error))
        finally:
            own.close()

    def read(worker: int) -> None:
        own, draw = Web(nodes), random.Random(worker)
        try:
            while not stopping.is_set():
                name = draw.choice(list(old))
                if own.get(f"changes/{name}") != old[name]:
                    problems.append(f"{name} is not what it has always been")
                if own.names("changes", prefix="old") != list(old):
                    problems.append("a listing is not complete")
                reads.append(name)
        except Exception as error:
            problems.append(repr(error))
        finally:
            own.close()

    def until_busy() -> None:
        """Some more requests come after a change than were on their way."""
        written, found = len(writes), len(reads)
        nodes.until(lambda: problems != [] or (len(writes) > written + 20 and len(reads) > found + 20), "writes and reads", 30)

    def change(copies: int, seconds: float) -> None:
        answer = web.ask("PATCH", "/v1/buckets/changes", b'{"copies": %d}' % copies)
        assert (answer.status_code, answer.json()["copies_wanted"]) == (200, copies), answer.text
        nodes.until(lambda: web.bucket("changes")["copies"] == copies, f"copies to be {copies}", seconds)
        until_busy()

    threads_of_both = [threading.Thread(target=each, args=(number,)) for each in (write, read) for number in range(2)]
    with running(threads_of_both, stopping):
        until_busy()
        change(2, 20)
        assert old_rows(nodes, bucket_id) == {2}
        assert web.put("changes/two", b"2").json()["copies"] == 2
        change(1, 20)
        nodes.until(lambda: old_rows(nodes, bucket_id) == {1}, "the second copies to go while there are writes", 20)
    assert problems == []
    known["two"] = b"2"
    there = sorted(name for name, body in known.items() if body is not None)
    assert web.names("changes") == there
    web.check("changes", known)
    assert web.bucket("changes")["objects"] == len(there)
    nodes.until(lambda: not check_replicas(nodes, 1, bucket_id), "the second copies to go", 20)
    web.check("changes", known)
    assert web.names("changes") == there
    assert web.put("changes/one", b"1").json()["copies"] == 1


def old_rows(nodes: Nodes, bucket_id: str) -> set[int]:
    """On how many disks objects are that were there before."""
    return {len(rows) for name, rows in rows_of(nodes, bucket_id).items() if name.startswith("old")}


def test_a_bucket_is_deleted_with_all_copies(nodes: Nodes, web: Web) -> None:
    bucket_id = web.create("leaving")
    web.fill("leaving")
    web.object("DELETE", f"leaving/{NAMES[0]}")
    assert web.ask("DELETE", "/v1/buckets/leaving").status_code == 409
    assert web.ask("DELETE", "/v1/buckets/leaving?force=1").status_code == 204
    assert rows_of(nodes, bucket_id) == {}
    nodes.until(lambda: not blobs_of(nodes, bucket_id), "the files to go", 10)
    assert nodes.count_of("objects", bucket_id) == nodes.count_of("tombstones", bucket_id) == 0
    assert code(web.object("GET", f"leaving/{NAMES[1]}")) == "bucket_not_found"
    web.create("leaving")
    assert (web.names("leaving"), web.get(f"leaving/{NAMES[1]}")) == ([], None)


def blobs_of(nodes: Nodes, bucket_id: str) -> list[Path]:
    return [path for name in nodes.targets for disk in nodes.disks_of(name) for path in disk.rglob(f"*{bucket_id}*/**/*")
            if path.is_file()]  # fmt: skip


def test_everything_is_killed_in_the_middle_of_writes(nodes: Nodes, web: Web) -> None:
    bucket_id = web.create("killed")
    stopping, known, unknown = threading.Event(), dict[str, list[bytes]](), dict[str, list[bytes]]()

    def write(worker: int) -> None:
        own, draw = Web(nodes), random.Random(worker)
        while not stopping.is_set():
            name = f"w{worker}-{draw.randrange(10)}"
            body = draw.randbytes(draw.choice((10, 3000, 30_000, 200_000)))
            try:
                answer = own.put(f"killed/{name}", body)
            except httpx.HTTPError:
                unknown.setdefault(name, []).append(body)
                break
            if answer.status_code in (200, 201):
                known[name], unknown[name] = [body], []
            else:
                unknown.setdefault(name, []).append(body)
        own.close()

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    nodes.until(lambda: len(known) > 25, "names to be written, however busy the machine is")
    for name in list(nodes.processes):
        nodes.signal(name, signal.SIGKILL)
    stopping.set()
    for writer in writers:
        writer.join()
    nodes.kill_all()
    nodes.start_all()
    assert len(known) > 20
    for name, bodies in known.items():  # one that nobody knows yet to be up to date is asked for again
        assert web.get(f"killed/{name}", patience_s=60) in (*bodies, *unknown.get(name, ())), name
    healed(nodes, bucket_id)
    for name, bodies in known.items():
        assert web.get(f"killed/{name}") in (*bodies, *unknown.get(name, ())), name
    assert set(web.names("killed")) >= known.keys()


def test_outputs_of_a_job_have_copies(start_cluster: Callable[..., Cluster]) -> None:
    cluster: Cluster = start_cluster(targets=3, environment={"DFC_JOBS_WORKERS": "2"})
    with Client(cluster.url) as client, httpx.Client(base_url=cluster.url, timeout=30) as http:
        for number in range(3):
            client.put("in", f"s-{number}.tar", shard_of(60))
        assert http.put("/v1/buckets/two", json={"copies": 2}).status_code == 201
        digests = []
        for bucket in ("one", "two"):
            spec = job_spec("reshuffle", "in/s-*.tar", f"{bucket}/r-%04d.tar", seed=7, samples_per_shard=10)
            output = client.jobs.wait(client.jobs.submit(spec).id, timeout_s=60).output
            assert output is not None
            digests.append(output.digest)
        assert digests[0] == digests[1]
        names = [info.name for info in client.list("two")]
        assert len(list(client.list("two", prefix=".dfc/"))) == 1
        assert len(names) == 18
        assert [client.get("two", name) for name in names] == [client.get("one", name) for name in names]
        found = {path: path.stat().st_size for path in cluster.directory.glob("target-*/disk-*/catalog.sqlite")}
        assert len(found) == 3
        reading = Nodes(cluster.directory, 3, 1)
        rows = rows_of(reading, cluster.bucket_id("two"))
        lineage = [name for name in rows if name.startswith(".dfc/")]
        assert rows.keys() == {*names, *lineage}
        for name in rows:
            assert sorted(row.rank for row in rows[name]) == [0, 1], name
            assert len({(row.version, row.checksum) for row in rows[name]}) == 1, name
        assert {len(each) for each in rows_of(reading, cluster.bucket_id("one")).values()} == {1}
        wait_for(lambda: not any(reading.count("pending")), "the marks to go", 10)
