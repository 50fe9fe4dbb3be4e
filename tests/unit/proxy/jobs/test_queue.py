"""Places to run, those who wait for them, jobs that are cancelled in any state, and what is done while nobody waits for it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading

import pytest
from faulty_filesystem import sqlite_error
from inprocess import Failing, Gate, until

from dfc.errors import Unavailable
from dfc.proxy.jobs import context
from dfc.proxy.jobs.queue import Background


async def test_queue_and_rivals(make):
    cluster = await make(jobs_running_max=1, jobs_queued_max=2)
    gate, first = await cluster.submit_held(0, "a-%02d")
    assert (await cluster.submit("a-%02d"))[:2] == (409, "conflict")
    assert (await cluster.submit("a-%03d"))[:2] == (409, "conflict")
    second = await cluster.submit("b-%02d")
    third = await cluster.submit("a-%02d", bucket="elsewhere")
    assert (await cluster.submit("c-%02d"))[:2] == (503, "unavailable")
    _, listed = await cluster.ask("GET", "/v1/jobs?state=queued")
    assert [job["id"] for job in listed["jobs"]] == [third["id"], second["id"]]
    assert (await cluster.ask("DELETE", f"/v1/jobs/{second['id']}"))[1]["state"] == "cancelled"
    gate.opened.set()
    assert [(await cluster.until(job["id"]))["state"] for job in (first, third)] == ["succeeded", "succeeded"]


async def test_cancelling(cluster):
    gate, job = await cluster.submit_held(3, options={"tasks": 100})
    status, running = await cluster.ask("GET", f"/v1/node/jobs/{job['id']}")
    assert (status, running) == (200, {"running": True})
    status, cancelled = await cluster.ask("DELETE", f"/v1/jobs/{job['id']}")
    assert (status, cancelled["state"]) == (200, "cancelled")
    assert cluster.engine.running == 0
    assert (await cluster.ask("GET", f"/v1/node/jobs/{job['id']}"))[0] == 404
    await cluster.until_nothing_is_staged()
    assert await cluster.names() == []
    assert (await cluster.ask("DELETE", f"/v1/jobs/{job['id']}"))[1]["state"] == "cancelled"
    gate.opened.set()
    again = await cluster.until((await cluster.submit(options={"tasks": 4}))["id"])
    assert again["state"] == "succeeded"
    assert await cluster.refused("DELETE", f"/v1/jobs/{again['id']}") == (409, "job_finished")
    assert (await cluster.ask("DELETE", "/v1/jobs/nonsense"))[0] == 404


async def test_a_job_is_cancelled_while_it_waits(make, monkeypatch):
    """Also if the journal is full when that is asked for; what comes behind it begins."""
    monkeypatch.setattr(context, "JOURNAL_RETRY_S", 0.01)
    cluster = await make(jobs_running_max=1)
    gate = cluster.engine.before = Gate()
    first, second, third = [await cluster.submit(f"{number}-%02d") for number in range(3)]
    await gate.reached.wait()
    Failing(monkeypatch, cluster.proxy.jobs._context.journal, "cancel", sqlite_error(), 2)
    assert await cluster.refused("DELETE", f"/v1/jobs/{second['id']}") == (507, "no_space")
    assert (await cluster.until(second["id"]))["state"] == "cancelled"
    gate.opened.set()
    assert [(await cluster.until(job["id"]))["state"] for job in (first, third)] == ["succeeded", "succeeded"]
    assert await cluster.names(prefix="1-") == []


async def test_a_job_is_cancelled_although_the_journal_has_no_room_to_say_so(cluster, monkeypatch):
    monkeypatch.setattr(context, "JOURNAL_RETRY_S", 0.05)
    _, job = await cluster.submit_held(1)
    Failing(monkeypatch, cluster.proxy.jobs._context.journal, "cancel", sqlite_error(), 3)
    assert await cluster.refused("DELETE", f"/v1/jobs/{job['id']}") == (507, "no_space")
    assert (await cluster.until(job["id"]))["state"] == "cancelled"
    await cluster.until_nothing_is_staged()
    assert await cluster.names() == []


async def test_a_job_that_publishes_is_not_cancelled(cluster, monkeypatch):
    publish, reached, opened = cluster.proxy.jobs._context.staged.publish, asyncio.Event(), asyncio.Event()

    async def held(*arguments) -> bool:
        reached.set()
        await opened.wait()
        return await publish(*arguments)

    monkeypatch.setattr(cluster.proxy.jobs._context.staged, "publish", held)
    job = await cluster.submit()
    await reached.wait()
    assert await cluster.refused("DELETE", f"/v1/jobs/{job['id']}") == (409, "job_finished")
    assert (await cluster.until(job["id"], "publishing"))["finished"] is None
    assert (await cluster.ask("GET", f"/v1/node/jobs/{job['id']}"))[0] == 404
    opened.set()
    assert (await cluster.until(job["id"]))["state"] == "succeeded"


async def test_who_waits_for_a_job_to_be_cancelled_does_not_hold_up_a_proxy_that_ends(cluster, monkeypatch):
    _, job = await cluster.submit_held()
    service, asked, may_write = cluster.proxy.jobs, threading.Event(), threading.Event()

    def cancel(job_id: str, real=service._context.journal.cancel):
        asked.set()
        assert may_write.wait(20)
        return real(job_id)

    monkeypatch.setattr(service._context.journal, "cancel", cancel)
    asking = asyncio.create_task(service.cancel(job["id"]))
    await asyncio.to_thread(asked.wait, 20)
    await service.stop()
    try:
        with pytest.raises(Unavailable, match="this proxy is shutting down"):
            await asyncio.wait_for(asking, 20)
    finally:
        may_write.set()


def reading_fails_after_an_end(monkeypatch, journal, error: Exception) -> Failing:
    """Twice, once the end of a job has been written."""
    failing, succeed = Failing(monkeypatch, journal, "get", error, 2, begun=False), journal.succeed

    def succeed_then_fail(job_id: str):
        failing.begun = True
        return succeed(job_id)

    monkeypatch.setattr(journal, "succeed", succeed_then_fail)
    return failing


async def test_a_journal_that_cannot_be_read_for_a_while_costs_no_place_to_run(make, monkeypatch, caplog):
    monkeypatch.setattr(context, "JOURNAL_RETRY_S", 0.01)
    cluster = await make(jobs_running_max=1)
    error = sqlite3.OperationalError("disk I/O error")
    failing = reading_fails_after_an_end(monkeypatch, cluster.proxy.jobs._context.journal, error)
    first = await cluster.submit("first-%04d")
    second = await cluster.submit("second-%04d")
    assert (await cluster.until(second["id"]))["state"] == "succeeded"
    assert (await cluster.until(first["id"]))["state"] == "succeeded"
    assert failing.failed == 2
    assert "the proxy cannot write its job journal: disk I/O error; trying again" in caplog.text


async def test_a_journal_that_is_damaged_costs_no_place_to_run(make, monkeypatch, caplog):
    cluster = await make(jobs_running_max=1)
    error = sqlite3.DatabaseError("database disk image is malformed")
    reading_fails_after_an_end(monkeypatch, cluster.proxy.jobs._context.journal, error)
    first = await cluster.submit("first-%04d")
    second = await cluster.submit("second-%04d")
    assert (await cluster.until(second["id"]))["state"] == "succeeded"
    assert f"job {first['id']} ended, but the journal has no record of how" in caplog.text
    # The journal says that a job has succeeded a moment before its place is free.
    await until(lambda: not cluster.proxy.jobs._queue._active)


async def test_an_error_is_logged_and_the_task_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    background, going_on = Background(), asyncio.Event()

    async def fail() -> None:
        await going_on.wait()
        raise RuntimeError("a mistake")

    background.spawn(fail())
    (task,) = background.tasks
    going_on.set()
    await asyncio.wait((task,))
    await asyncio.sleep(0)
    assert background.tasks == set()
    assert "the next start of the proxy tries again" in caplog.text
    assert "a mistake" in caplog.text


async def test_what_is_cancelled_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    background = Background()
    background.spawn(asyncio.sleep(3600))
    (task,) = background.tasks
    task.cancel()
    await asyncio.wait((task,))
    await asyncio.sleep(0)
    assert (background.tasks, caplog.text) == (set(), "")
