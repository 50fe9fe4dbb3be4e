"""A job's life from beginning to end, at a proxy whose disk may be full, and asked of any node; what operations there are."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import msgspec
import pytest
from inprocess import content_of

from dfc.config import Settings
from dfc.errors import NoRegistry
from dfc.jobs.operations import OPERATIONS
from dfc.jobs.records import digest_in_order
from dfc.jobs.request import all_operations
from dfc.jobs.tasks import OutputRecord
from dfc.proxy import status as watch
from dfc.proxy.jobs import context
from dfc.proxy.jobs import service as operations_module
from dfc.proxy.jobs.service import Operations
from dfc.wire.objects import OperationInfo


async def test_a_job_from_submitting_to_its_lineage(cluster):
    job = await cluster.submit(options={"tasks": 30, "second": 2}, label="mine")
    assert job.keys() == {
        "id", "operation", "label", "bucket", "state", "created", "started", "finished", "progress", "warnings", "error",
        "output",
    }  # fmt: skip
    assert (job["state"], job["label"], job["output"]) == ("queued", "mine", None)
    ended = await cluster.until(job["id"])
    assert ended["state"] == "succeeded", ended
    assert ended["progress"] == {
        "tasks": {"done": 32, "total": 32}, "samples": 30, "bytes_in": 0, "bytes_out": 300, "eta_s": None,
    }  # fmt: skip
    names = [f"out-{number:04}" for number in range(30)]
    assert await cluster.names() == names
    assert await cluster.ask("GET", "/out/out-0007") == (200, content_of("out-0007", 10).decode())
    assert cluster.engine.most_running <= 8, "a window of 4 a worker"
    assert set(cluster.engine.ran.values()) == {1}
    lineage_name = f".dfc/jobs/{job['id']}.json"
    assert await cluster.names(prefix=".dfc/") == [lineage_name]
    _, lineage = await cluster.ask("GET", f"/out/{lineage_name}")
    assert lineage["spec"]["options"] == {"tasks": 30, "second": 2}
    assert [shard["name"] for shard in lineage["inputs"][0]] == ["s-0.tar", "s-1.tar", "s-2.tar"]
    assert lineage["output"] == ended["output"]
    records = [OutputRecord(o["name"], o["size"], o["checksum"], o["size"], o["checksum"], 1) for o in lineage["outputs"]]
    assert [record.name for record in records] == names
    digest = digest_in_order(sorted(records, key=lambda record: record.name.encode()))
    assert ended["output"] == {"shards": 30, "samples": 30, "digest": digest}
    assert await cluster.staged() == {}


async def test_a_full_disk_of_the_proxy(make, monkeypatch):
    monkeypatch.setattr(context, "JOURNAL_RETRY_S", 0.02)
    cluster = await make()
    gate, job = await cluster.submit_held(5, options={"tasks": 400})
    database = cluster.proxy.jobs._context.journal._database
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count={pages}")
    spec = {"operation": "probe", "input": {"bucket": "in"}, "output": {"bucket": "out", "pattern": "x-%02d"}}
    body = json.dumps(spec).encode() + b" " * 100_000
    assert await cluster.refused("POST", "/v1/jobs", body) == (507, "no_space")
    gate.opened.set()
    ended = await cluster.until(job["id"])
    assert (ended["state"], ended["error"]["code"]) == ("failed", "no_space")
    assert "journal" in ended["error"]["message"]
    database.execute("PRAGMA max_page_count=1000000")
    assert (await cluster.until((await cluster.submit("x-%02d"))["id"]))["state"] == "succeeded"
    await cluster.until_nothing_is_staged()


async def test_every_target_passes_jobs_on(cluster):
    target = cluster.targets[0]._url
    spec = {"operation": "probe", "input": {"bucket": "in"}, "output": {"bucket": "out", "pattern": "%02d"}}
    async with cluster.session.post(f"{target}/v1/jobs", json=spec) as answer:
        assert answer.status == 202
        job = await answer.json()
        assert answer.headers["Location"] == f"/v1/jobs/{job['id']}"
    async with cluster.session.get(f"{target}/v1/jobs/{job['id']}/events") as answer:
        assert (await answer.text()).rpartition("data: ")[2].strip().endswith("}")
    async with cluster.session.get(f"{target}/v1/jobs/{job['id']}") as answer:
        assert (await answer.json())["state"] == "succeeded"
    async with cluster.session.delete(f"{target}/v1/jobs/{job['id']}") as answer:
        assert answer.status == 409


async def test_a_registry_that_cannot_be_written(cluster, monkeypatch, caplog):
    """It is no bug, and not for ever: what wants a change is told why, reads go on, and the state has the cause."""
    database = cluster.proxy.registry._file._database
    database.execute(f"PRAGMA max_page_count={database.execute('PRAGMA page_count').fetchone()[0]}")
    spec = {"operation": "probe", "input": {"bucket": "in"}, "output": {"bucket": "new", "pattern": "x-%02d"}}
    labels = json.dumps({"copies": 1}).encode()
    refused = None
    for number in range(200):  # until the last page is full
        status, answer = await cluster.ask("PUT", f"/v1/buckets/b-{'x' * 50}-{number}", labels)
        if status >= 400:
            refused = status, answer["error"]["code"]
            break
    assert refused == (507, "no_space")
    for method, path, body in (("PUT", "/auto/x", b"1"), ("POST", "/v1/jobs", json.dumps(spec).encode())):
        status, answer = await cluster.ask(method, path, body)
        assert (status, answer["error"]["code"]) == (507, "no_space"), answer
        assert "the registry's file cannot be written: database or disk is full" in answer["error"]["message"]
    assert (await cluster.ask("GET", "/in/s-0.tar"))[0] == 200
    said = msgspec.structs.replace(
        next(iter(cluster.proxy.cluster.heard().values())).heartbeat, url="http://127.0.0.1:9" * 1000
    )
    with pytest.raises(NoRegistry, match="disk is full"):  # and not that the target is refused: it would give up
        await cluster.proxy.cluster.hear(said)
    monkeypatch.setattr(watch, "FRESH_S", 0.0)
    state = await cluster.proxy.state.look()
    [problem] = [each for each in state.problems if each.code == "registry_silent"]
    assert (problem.severity, state.health) == ("critical", "degraded")
    assert "database or disk is full" in problem.message
    database.execute("PRAGMA max_page_count=1000000")
    assert (await cluster.ask("PUT", "/auto/x", b"1"))[0] == 201
    assert "registry_silent" not in [each.code for each in (await cluster.proxy.state.look()).problems]
    assert "Traceback" not in caplog.text


async def test_nothing_is_swept_by_who_stops(cluster, monkeypatch):
    """It may still be the coordinator, and does not take in jobs any more that others know of."""
    gate, job = await cluster.submit_held(5, options={"tasks": 20})
    jobs, asked = cluster.proxy.jobs, []

    async def keep_swept(is_known):
        asked.append(is_known)

    monkeypatch.setattr(jobs._context.staged, "keep_swept", keep_swept)
    await jobs.sweep(await cluster.proxy.coordinator.lead())
    [may_be_needed] = asked
    assert (may_be_needed(job["id"]), may_be_needed("another")) == (True, False)
    gate.opened.set()
    await jobs.stop()
    assert (may_be_needed(job["id"]), may_be_needed("another")) == (True, True)


async def test_operations_are_described_once_whoever_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, held = list[int](), threading.Event()

    def slow(settings: object) -> list[OperationInfo]:
        calls.append(1)
        assert threading.current_thread() is not threading.main_thread(), "imports are slow"
        held.wait(60)
        return all_operations(settings)

    monkeypatch.setattr(operations_module, "all_operations", slow)
    operations = Operations(Settings())
    asking = [asyncio.create_task(operations.all()) for _ in range(3)]
    await asyncio.sleep(0)
    asking[0].cancel()
    held.set()
    gone, *found = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(gone, asyncio.CancelledError)
    assert found[0] is found[1] is await operations.all()
    assert len(calls) == 1
    described: Any = found[0]
    assert tuple(each.name for each in described.operations) == OPERATIONS
    assert [each["name"] for each in msgspec.json.decode(described.encoded)["operations"]] == [*OPERATIONS]


async def test_what_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(settings: object) -> list[OperationInfo]:
        raise ImportError("a library is broken")

    operations = Operations(Settings())
    with monkeypatch.context() as patched:
        patched.setattr(operations_module, "all_operations", broken)
        for _ in range(2):
            with pytest.raises(ImportError):
                await operations.all()
    assert (await operations.all()).operations
