"""Which jobs are accepted, who is told that they are not, and what is left of those."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading

import pytest
from inprocess import Failing, tar_of_names, until

from dfc.proxy import coordinator


async def test_a_dry_run_stores_nothing(cluster):
    plan = await cluster.submit(options={"tasks": 7, "second": 1}, dry_run=True)
    assert plan == {
        "operation": "probe", "dry_run": True, "stages": [{"name": "first", "tasks": 7}, {"name": "second", "tasks": None}],
        "tasks": None, "input": {"shards": 3, "samples": 6, "bytes": 30720}, "output": {"shards": 7}, "warnings": [],
    }  # fmt: skip
    assert (await cluster.ask("GET", "/v1/jobs"))[1]["jobs"] == []
    assert (await cluster.ask("GET", "/v1/buckets/out"))[0] == 404


async def test_what_is_refused(cluster):
    await cluster.ask("PUT", "/out/out-0001", b"there")
    await cluster.ask("PUT", "/in/plain.txt", b"no shard")
    refused = {
        (409, "output_exists"): {},
        (400, "bad_request"): {"bucket": "in", "pattern": "s-%d.tar".replace("%d", "%01d")},
        (404, "no_shards"): {"input": {"bucket": "in", "shards": "none-*.tar"}},
        (404, "object_not_found"): {"input": {"bucket": "in", "shards": ["s-0.tar", "s-9.tar"]}},
        (409, "not_a_shard"): {"input": {"bucket": "in", "shards": ["s-0.tar", "plain.txt"]}},
        (404, "bucket_not_found"): {"input": {"bucket": "nowhere", "shards": "**"}},
        (400, "bad_shard_spec"): {"input": {"bucket": "in", "shards": "s-{0..9999999}.tar"}},
        (400, "bad_name"): {"bucket": "not a bucket"},
        (500, "internal_error"): {"options": {"mistake": "plan"}, "pattern": "fine-%02d"},
    }
    for (status, code), changes in refused.items():
        found = await cluster.submit(**changes)
        assert found[:2] == (status, code), found
    for changes in ({"operation": "nonsense"}, {"options": {"x": 1}}, {"pattern": "%d"}, {"what": 1}, {"pattern": ".dfc/x"}):
        assert (await cluster.submit(**changes))[:2] == (400, "bad_request"), changes
    assert (await cluster.submit(input={"bucket": "in", "shards": ["s-0.tar", "s-0.tar"]}))[:2] == (400, "bad_request")
    assert (await cluster.ask("POST", "/v1/jobs", b"[" * 100_000))[0] == 400
    assert (await cluster.ask("POST", "/v1/jobs", b""))[0] == 400
    assert (await cluster.ask("GET", "/v1/jobs"))[1]["jobs"] == []
    assert (await cluster.until((await cluster.submit("fine-%02d"))["id"]))["state"] == "succeeded"


async def test_a_job_whose_submitter_is_cancelled_while_the_journal_takes_it_runs(cluster, monkeypatch):
    service, taking, taken = cluster.proxy.jobs, asyncio.Event(), threading.Event()
    loop, real = asyncio.get_running_loop(), service._context.journal.create

    def create(*arguments):
        loop.call_soon_threadsafe(taking.set)
        assert taken.wait(20)
        return real(*arguments)

    monkeypatch.setattr(service._context.journal, "create", create)
    spec = {"operation": "probe", "input": {"bucket": "in", "shards": "**"}, "output": {"bucket": "out", "pattern": "o-%04d"}}
    submitting = asyncio.create_task(service.submit(json.dumps(spec).encode()))
    await taking.wait()
    submitting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await submitting
    taken.set()

    async def listed():
        return (await cluster.ask("GET", "/v1/jobs"))[1]["jobs"]

    await until(listed)
    assert (await cluster.until((await listed())[0]["id"]))["state"] == "succeeded"


@pytest.mark.parametrize(("name", "is_accepted"), [("counts", True), ("get", False)])
async def test_a_job_is_accepted_or_not_when_the_journal_cannot_be_read_for_a_moment(cluster, monkeypatch, name, is_accepted):
    failing = Failing(monkeypatch, cluster.proxy.jobs._context.journal, name, sqlite3.OperationalError("disk I/O error"), 1)
    said = await cluster.submit("x-%04d")
    assert failing.failed == 1
    if is_accepted:
        assert (await cluster.until(said["id"], timeout_s=10))["state"] == "succeeded"
    else:
        assert said[0] == 500
        assert (await cluster.ask("GET", "/v1/jobs"))[1]["jobs"] == []


async def test_who_waits_for_an_election_holds_up_nobody(make, monkeypatch):
    """Each is told in its own time that there is no coordinator here, and not after all who came before."""
    monkeypatch.setattr(coordinator, "ELECTION_WAIT_S", 0.5)
    cluster = await make()
    await cluster.proxy.coordinator.stop()
    await cluster.proxy.cluster._registry.grant_lease(coordinator.OFFICE, "another", 60.0)
    cluster.proxy.coordinator.start()
    async with asyncio.timeout(2.0):
        refused = await asyncio.gather(*(cluster.submit(f"out-{number}-%04d") for number in range(8)))
    assert {answer[:2] for answer in refused} == {(503, "unavailable")}


async def test_only_the_coordinator_accepts_jobs_and_deletes_buckets(make, monkeypatch):
    """Another proxy would not know what they may meet."""
    monkeypatch.setattr(coordinator, "ELECTION_WAIT_S", 0.2)
    cluster = await make()
    assert (await cluster.ask("PUT", "/v1/buckets/out", {}))[0] == 201
    await cluster.proxy.coordinator.stop()
    status, code, message = await cluster.submit()
    assert (status, code) == (503, "unavailable")
    assert "not the coordinator" in message
    assert (await cluster.ask("DELETE", "/v1/buckets/out"))[0] == 503
    assert (await cluster.ask("GET", "/v1/buckets/out"))[0] == 200
    assert (await cluster.ask("GET", "/v1/jobs"))[1]["jobs"] == []
    cluster.proxy.coordinator.start()
    assert (await cluster.until((await cluster.submit())["id"]))["state"] == "succeeded", "an election is waited for"


async def test_hidden_objects_are_no_shards_and_keep_no_bucket(cluster):
    await cluster.until((await cluster.submit("x", options={"tasks": 1}))["id"])
    assert (await cluster.ask("PUT", "/in/.dfc/own.tar", tar_of_names("z.jpg")))[0] == 201
    assert (await cluster.submit("y", dry_run=True))["input"]["shards"] == 3
    assert (await cluster.ask("DELETE", "/out/x"))[0] == 204
    assert (await cluster.ask("DELETE", "/v1/buckets/out"))[0] == 204
    assert (await cluster.ask("DELETE", "/v1/buckets/in"))[0] == 409
