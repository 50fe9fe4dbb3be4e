"""A proxy that is stopped and started again goes on with its jobs."""

from __future__ import annotations

import asyncio
import sqlite3

from inprocess import Failing, Gate, stage, until

from dfc.errors import BadRequest
from dfc.jobs import operations
from dfc.proxy.jobs import runner
from dfc.proxy.jobs.context import Staged

MALFORMED = sqlite3.DatabaseError("database disk image is malformed")


async def test_a_restarted_proxy_goes_on(cluster):
    gate = cluster.engine.before = Gate(20)
    job = await cluster.submit(options={"tasks": 40, "second": 3})
    waiting = await cluster.submit("other-%02d")
    await gate.reached.wait()
    await cluster.until_done(job["id"], 20)
    await cluster.proxy.jobs._queue._active[job["id"]].runner._write()
    await cluster.stop_proxy()
    cluster.engine.before = None
    before = dict(cluster.engine.ran)
    await cluster.start_proxy()
    assert (await cluster.ask("GET", f"/v1/node/jobs/{job['id']}"))[0] == 200, "workers are not told that it has ended"
    ended = await cluster.until(job["id"])
    assert (ended["state"], ended["output"]["shards"]) == ("succeeded", 40)
    assert ended["progress"]["tasks"] == {"done": 43, "total": 43}
    for number in range(20):
        assert cluster.engine.ran[f"probe.first/{number}"] == 1 == before[f"probe.first/{number}"] or number < 3
    assert (await cluster.until(waiting["id"]))["state"] == "succeeded"
    assert len(await cluster.names(prefix="out-")) == 40


def publish_never(cluster, monkeypatch) -> asyncio.Event:
    """Set when it is to publish."""
    reached = asyncio.Event()

    async def never(*arguments) -> bool:
        reached.set()
        await asyncio.sleep(3600)
        return True

    monkeypatch.setattr(cluster.proxy.jobs._context.staged, "publish", never)
    return reached


async def test_a_proxy_that_ends_while_it_publishes_publishes_later(cluster, monkeypatch):
    reached = publish_never(cluster, monkeypatch)
    job = await cluster.submit()
    await reached.wait()
    assert await cluster.names() == []
    await cluster.restart_proxy()
    assert (await cluster.until(job["id"]))["output"]["shards"] == 3
    assert len(await cluster.names()) == 3
    assert await cluster.staged() == {}


async def test_a_proxy_starts_with_jobs_that_it_would_not_accept_any_more(cluster, monkeypatch):
    reached = publish_never(cluster, monkeypatch)
    publishing = await cluster.submit("published-%02d")
    await reached.wait()
    _, running = await cluster.submit_held(1)
    await cluster.stop_proxy()

    def refuse(options, pattern) -> None:
        raise BadRequest("this needs a library that has gone")

    monkeypatch.setattr(operations.operation("probe"), "check", refuse)
    await cluster.start_proxy()
    assert (await cluster.until(publishing["id"]))["state"] == "succeeded"
    ended = await cluster.until(running["id"])
    assert (ended["state"], ended["error"]["message"]) == ("failed", "this needs a library that has gone")
    await cluster.until_nothing_is_staged()
    assert len(await cluster.names()) == 3


async def test_discarding_waits_for_a_proxy_that_ends(make, monkeypatch):
    async def never(*arguments) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(Staged, "sweep", never)  # which would discard it, too
    cluster = await make()
    monkeypatch.setattr(cluster.proxy.jobs._context.staged, "discard", never)
    _, job = await cluster.submit_held(2)
    await until(cluster.staged)
    await cluster.ask("DELETE", f"/v1/jobs/{job['id']}")
    assert await cluster.staged() != {}
    await cluster.restart_proxy()
    await cluster.until_nothing_is_staged()
    await until(lambda: not cluster.proxy.jobs._context.journal.to_discard())


async def test_what_no_journal_knows_is_discarded_at_the_start(cluster):
    await cluster.ask("PUT", "/v1/buckets/out")
    await stage(cluster.url, "0123456789abcdef0123", "out", "stray", b"x")
    assert await cluster.staged() == {"0123456789abcdef0123": 1}
    await cluster.restart_proxy()
    await cluster.until_nothing_is_staged()


async def test_what_is_left_to_the_next_start_is_not_swept(cluster, monkeypatch):
    service = cluster.proxy.jobs
    real = service._context.staged.publish

    async def fail(*arguments) -> bool:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(service._context.staged, "publish", fail)
    job = await cluster.submit()
    await until(lambda: not service._queue._active)
    assert (await cluster.ask("GET", f"/v1/jobs/{job['id']}"))[1]["state"] == "publishing"
    assert await cluster.refused("DELETE", f"/v1/jobs/{job['id']}") == (409, "job_finished")
    monkeypatch.setattr(service._context.staged, "publish", real)
    await stage(cluster.url, "0123456789abcdef0123", "out", "stray", b"x")
    assert await service._context.staged.sweep(service._may_publish)
    assert await cluster.staged() == {job["id"]: 4}, "the outputs and their lineage"
    await cluster.restart_proxy()
    assert (await cluster.until(job["id"]))["state"] == "succeeded"
    assert await cluster.names() == ["out-0000", "out-0001", "out-0002"]


async def test_another_version_of_the_program_does_not_go_on(cluster, monkeypatch):
    _, job = await cluster.submit_held()
    await cluster.stop_proxy()
    monkeypatch.setattr(runner, "__version__", "0.0.0-other")
    await cluster.start_proxy()
    assert (await cluster.until(job["id"]))["error"]["code"] == "job_interrupted"


async def test_a_job_that_goes_on_at_the_next_start_is_not_called_cancelled(cluster, monkeypatch):
    gate, job = await cluster.submit_held()
    Failing(monkeypatch, cluster.proxy.jobs._context.journal, "cancel", MALFORMED, 1)
    assert (await cluster.ask("DELETE", f"/v1/jobs/{job['id']}"))[0] == 500
    await until(lambda: job["id"] in cluster.proxy.jobs._queue._left)
    status, said = await cluster.ask("DELETE", f"/v1/jobs/{job['id']}")
    assert (status, said.get("error", said)["code"]) == (503, "unavailable")
    gate.opened.set()
    await cluster.restart_proxy()
    assert (await cluster.until(job["id"]))["state"] == "succeeded"


async def test_a_job_whose_end_the_journal_does_not_take_goes_on_to_publish_at_the_next_start(make, monkeypatch, caplog):
    cluster = await make(jobs_running_max=1)
    Failing(monkeypatch, cluster.proxy.jobs._context.journal, "succeed", MALFORMED, 1)
    first = await cluster.submit("first-%04d")
    second = await cluster.submit("second-%04d")
    assert (await cluster.until(second["id"]))["state"] == "succeeded"
    assert f"job {first['id']}: the journal could not record its end" in caplog.text
    assert (await cluster.ask("GET", f"/v1/jobs/{first['id']}"))[1]["state"] == "publishing"
    rival = await cluster.submit("first-%04d", overwrite=True)
    assert rival[:2] == (409, "conflict"), "what is staged will be published under these names"
    await cluster.restart_proxy()
    assert (await cluster.until(first["id"]))["state"] == "succeeded"
    assert len(cluster.proxy.jobs._claims) == 0
    assert await cluster.names(prefix="first") == ["first-0000", "first-0001", "first-0002"]
