"""A job's life, with tasks that fail, wait or are lost at the moment that a test wants."""

from __future__ import annotations

import asyncio
import io
import json
import sqlite3
import tarfile
import threading

import aiohttp
import msgspec
import pytest
from inprocess import InProcess, content_of, install_probe, stage, until

from dfc.engine.base import EngineLost, TaskFailed
from dfc.errors import BadRequest, JobNotFound, Unavailable
from dfc.jobs import operations
from dfc.jobs.shards.digest import digest_in_order
from dfc.jobs.tasks import OutputRecord
from dfc.limits import JOB_SPEC_KEPT_BYTES
from dfc.proxy import coordinator
from dfc.proxy.jobs import context, runner
from dfc.proxy.jobs import service as job_service
from dfc.proxy.jobs.staged import Staged


def tar(*names: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    return buffer.getvalue()


@pytest.fixture
async def make(tmp_path, monkeypatch):
    install_probe(monkeypatch)
    monkeypatch.setattr(context, "RETRY_DELAYS_S", (0.01, 0.01, 0.01))
    monkeypatch.setattr(job_service, "EVENT_INTERVAL_S", 0.01)
    made = []

    async def build(targets: int = 2, **settings) -> InProcess:
        made.append(await InProcess(tmp_path, **settings).start(targets))
        for number in range(3):
            assert (await made[-1].ask("PUT", f"/in/s-{number}.tar", tar("a.jpg", "a.cls", "b.jpg")))[0] == 201
        return made[-1]

    yield build
    for cluster in made:
        await cluster.stop()


class Gate:
    """Holds tasks back from a number on until it is opened."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.opened = asyncio.Event()
        self.reached = asyncio.Event()

    async def __call__(self, task) -> None:
        if task.number >= self.number:
            self.reached.set()
            await self.opened.wait()


async def test_a_job_from_submitting_to_its_lineage(make):
    cluster = await make()
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
    assert ended["output"] == {
        "shards": 30,
        "samples": 30,
        "digest": digest_in_order(sorted(records, key=lambda record: record.name.encode())),
    }
    assert await cluster.staged() == {}


async def test_the_spec_of_a_job_is_there_after_its_end_and_a_restart(make):
    """As it was sent, to the byte. What is too long is dropped when the job has ended; its lineage has it."""
    cluster = await make()
    body = b'{"operation":  "probe", "input": {"bucket": "in"},\n "output": {"bucket": "out", "pattern": "s-%04d"},'
    body += b'"options": {}, "label": "<b>"}'
    status, job = await cluster.ask("POST", "/v1/jobs", body)
    assert status == 202, job
    path = f"/v1/jobs/{job['id']}/spec"
    async with cluster.session.get(cluster.url + path) as answer:
        assert (answer.status, await answer.read()) == (200, body)
        assert (answer.headers["Content-Type"], answer.headers["X-Content-Type-Options"]) == ("application/json", "nosniff")
    await cluster.until(job["id"])
    padded = {}
    for name, options in ((b"good", b"{}"), (b"bad", b'{"mistake": "tasks"}')):
        long = body.replace(b"s-%04d", name + b"-%04d").replace(b'"options": {}', b'"options": ' + options)
        status, accepted = await cluster.ask("POST", "/v1/jobs", long + b" " * JOB_SPEC_KEPT_BYTES)
        assert status == 202, accepted
        padded[name.decode()] = accepted["id"]
        await cluster.until(accepted["id"])
    await cluster.stop_proxy()
    await cluster.start_proxy()
    assert await cluster.ask("GET", path) == (200, msgspec.json.decode(body))

    async def is_gone() -> bool:
        return {(await cluster.ask("GET", f"/v1/jobs/{each}/spec"))[0] for each in padded.values()} == {410}

    await until(is_gone)
    for name, lineage in (("good", f"/out/.dfc/jobs/{padded['good']}.json"), ("bad", "")):
        _, said = await cluster.ask("GET", f"/v1/jobs/{padded[name]}/spec")
        assert said["error"]["code"] == "job_spec_gone"
        assert said["error"]["message"].endswith(f"its lineage has it: {lineage}" if lineage else "too long to be kept")
    assert (await cluster.ask("GET", f"/out/.dfc/jobs/{padded['good']}.json"))[1]["spec"]["label"] == "<b>"
    assert (await cluster.ask("GET", "/v1/jobs/00/spec"))[1]["error"]["code"] == "job_not_found"


async def test_hidden_objects_are_no_shards_and_keep_no_bucket(make):
    cluster = await make()
    await cluster.until((await cluster.submit("x", options={"tasks": 1}))["id"])
    assert (await cluster.ask("PUT", "/in/.dfc/own.tar", tar("z.jpg")))[0] == 201
    assert (await cluster.submit("y", dry_run=True))["input"]["shards"] == 3
    assert (await cluster.ask("DELETE", "/out/x"))[0] == 204
    assert (await cluster.ask("DELETE", "/v1/buckets/out"))[0] == 204
    assert (await cluster.ask("DELETE", "/v1/buckets/in"))[0] == 409


async def test_what_passes_is_tried_again(make):
    cluster = await make()

    async def fail(task) -> None:
        if task.number == 1 and cluster.engine.ran["probe.first/1"] == 1:
            raise EngineLost("the worker died")
        if task.number == 2 and cluster.engine.ran["probe.first/2"] < 4:
            raise TaskFailed("unavailable", "a target restarts", True)

    cluster.engine.before = fail
    ended = await cluster.until((await cluster.submit(options={"tasks": 5}))["id"])
    assert ended["state"] == "succeeded"
    assert cluster.engine.ran == {
        "probe.first/0": 1, "probe.first/1": 2, "probe.first/2": 4, "probe.first/3": 1, "probe.first/4": 1,
    }  # fmt: skip

    async def is_counted() -> bool:
        return 'dfc_jobs{state="succeeded"} 1.0' in (await cluster.ask("GET", "/metrics"))[1]

    await until(is_counted)
    _, text = await cluster.ask("GET", "/metrics")
    assert "dfc_job_task_retries_total 4.0" in text
    assert 'dfc_jobs_finished_total{operation="probe",state="succeeded"} 1.0' in text


@pytest.mark.parametrize(
    ("error", "tries", "code"),
    [
        (TaskFailed("bad_archive", "broken at 512", False), 1, "bad_archive"),
        (TaskFailed("unavailable", "never comes back", True), 4, "unavailable"),
        (EngineLost("killed by the kernel"), 4, "engine_lost"),
    ],
)
async def test_what_does_not_pass_fails_the_job_and_leaves_nothing(make, error, tries, code):
    cluster = await make()

    async def fail(task) -> None:
        if task.number == 4:
            raise error

    cluster.engine.before = fail
    job = await cluster.submit(options={"tasks": 6})
    ended = await cluster.until(job["id"])
    assert (ended["state"], ended["error"]["code"]) == ("failed", code)
    assert ended["error"]["message"].startswith("label-4: ")
    assert str(error) in ended["error"]["message"]
    assert ended["output"] is None
    assert cluster.engine.ran["probe.first/4"] == tries
    await cluster.until_nothing_is_staged()
    assert await cluster.names() == []
    assert await cluster.names(prefix=".dfc/") == []
    assert (await cluster.ask("DELETE", f"/v1/jobs/{job['id']}"))[1]["state"] == "failed"


async def test_cancelling(make):
    cluster = await make()
    gate = cluster.engine.before = Gate(3)
    job = await cluster.submit(options={"tasks": 100})
    await gate.reached.wait()
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
    status, error = await cluster.ask("DELETE", f"/v1/jobs/{again['id']}")
    assert (status, error["error"]["code"]) == (409, "job_finished")
    assert (await cluster.ask("DELETE", "/v1/jobs/nonsense"))[0] == 404


async def test_a_job_is_cancelled_although_the_journal_has_no_room_to_say_so(make, monkeypatch):
    cluster = await make()
    monkeypatch.setattr(context, "JOURNAL_RETRY_S", 0.05)
    gate = cluster.engine.before = Gate(1)
    job = await cluster.submit()
    await gate.reached.wait()
    journal = cluster.proxy.jobs._journal
    cancel, tries = journal.cancel, []

    def full(job_id: str):
        tries.append(job_id)
        if len(tries) < 4:
            raise sqlite3.OperationalError("database or disk is full")
        return cancel(job_id)

    monkeypatch.setattr(journal, "cancel", full)
    status, error = await cluster.ask("DELETE", f"/v1/jobs/{job['id']}")
    assert (status, error["error"]["code"]) == (507, "no_space")
    assert (await cluster.until(job["id"]))["state"] == "cancelled"
    await cluster.until_nothing_is_staged()
    assert await cluster.names() == []


async def test_a_job_whose_submitter_is_cancelled_while_the_journal_takes_it_runs(make, monkeypatch):
    cluster = await make()
    service, taking, taken = cluster.proxy.jobs, asyncio.Event(), threading.Event()
    loop, real = asyncio.get_running_loop(), service._journal.create

    def create(*arguments):
        loop.call_soon_threadsafe(taking.set)
        assert taken.wait(20)
        return real(*arguments)

    monkeypatch.setattr(service._journal, "create", create)
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


async def test_a_job_that_publishes_is_not_cancelled(make, monkeypatch):
    cluster = await make()
    publish, reached, opened = cluster.proxy.jobs._means.staged.publish, asyncio.Event(), asyncio.Event()

    async def held(*arguments) -> bool:
        reached.set()
        await opened.wait()
        return await publish(*arguments)

    monkeypatch.setattr(cluster.proxy.jobs._means.staged, "publish", held)
    job = await cluster.submit()
    await reached.wait()
    status, error = await cluster.ask("DELETE", f"/v1/jobs/{job['id']}")
    assert (status, error["error"]["code"]) == (409, "job_finished")
    assert (await cluster.until(job["id"], "publishing"))["finished"] is None
    assert (await cluster.ask("GET", f"/v1/node/jobs/{job['id']}"))[0] == 404
    opened.set()
    assert (await cluster.until(job["id"]))["state"] == "succeeded"


async def test_a_restarted_proxy_goes_on(make):
    cluster = await make()
    gate = cluster.engine.before = Gate(20)
    job = await cluster.submit(options={"tasks": 40, "second": 3})
    waiting = await cluster.submit("other-%02d")
    await gate.reached.wait()

    async def has_done_twenty() -> bool:
        return (await cluster.ask("GET", f"/v1/jobs/{job['id']}"))[1]["progress"]["tasks"]["done"] >= 20

    await until(has_done_twenty)
    await cluster.proxy.jobs._active[job["id"]].runner._write()
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


async def test_a_proxy_that_ends_while_it_publishes_publishes_later(make, monkeypatch):
    cluster = await make()
    reached = asyncio.Event()

    async def never(*arguments) -> bool:
        reached.set()
        await asyncio.sleep(3600)
        return True

    monkeypatch.setattr(cluster.proxy.jobs._means.staged, "publish", never)
    job = await cluster.submit()
    await reached.wait()
    assert await cluster.names() == []
    await cluster.stop_proxy()
    await cluster.start_proxy()
    assert (await cluster.until(job["id"]))["output"]["shards"] == 3
    assert len(await cluster.names()) == 3
    assert await cluster.staged() == {}


async def test_a_proxy_starts_with_jobs_that_it_would_not_accept_any_more(make, monkeypatch):
    cluster = await make()
    reached = asyncio.Event()

    async def never(*arguments) -> bool:
        reached.set()
        await asyncio.sleep(3600)
        return True

    monkeypatch.setattr(cluster.proxy.jobs._means.staged, "publish", never)
    publishing = await cluster.submit("published-%02d")
    await reached.wait()
    gate = cluster.engine.before = Gate(1)
    running = await cluster.submit()
    await gate.reached.wait()
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
    monkeypatch.setattr(cluster.proxy.jobs._means.staged, "discard", never)
    gate = cluster.engine.before = Gate(2)
    job = await cluster.submit()
    await gate.reached.wait()
    await until(cluster.staged)
    await cluster.ask("DELETE", f"/v1/jobs/{job['id']}")
    assert await cluster.staged() != {}
    await cluster.stop_proxy()
    await cluster.start_proxy()
    await cluster.until_nothing_is_staged()

    async def is_told() -> bool:
        return not cluster.proxy.jobs._journal.to_discard()

    await until(is_told)


async def test_who_waits_for_a_job_to_be_cancelled_does_not_hold_up_a_proxy_that_ends(make, monkeypatch):
    cluster = await make()
    gate = cluster.engine.before = Gate()
    job = await cluster.submit()
    await gate.reached.wait()
    service, asked, may_write = cluster.proxy.jobs, threading.Event(), threading.Event()

    def cancel(job_id: str, real=service._journal.cancel):
        asked.set()
        assert may_write.wait(20)
        return real(job_id)

    monkeypatch.setattr(service._journal, "cancel", cancel)
    asking = asyncio.create_task(service.cancel(job["id"]))
    await asyncio.to_thread(asked.wait, 20)
    await service.stop()
    try:
        with pytest.raises(Unavailable, match="this proxy is shutting down"):
            await asyncio.wait_for(asking, 20)
    finally:
        may_write.set()


async def test_what_no_journal_knows_is_discarded_at_the_start(make):
    cluster = await make()
    await cluster.ask("PUT", "/v1/buckets/out")
    await stage(cluster.url, "0123456789abcdef0123", "out", "stray", b"x")
    assert await cluster.staged() == {"0123456789abcdef0123": 1}
    await cluster.stop_proxy()
    await cluster.start_proxy()
    await cluster.until_nothing_is_staged()


async def test_what_is_left_to_the_next_start_is_not_swept(make, monkeypatch):
    cluster = await make()
    service = cluster.proxy.jobs
    real = service._means.staged.publish

    async def fail(*arguments) -> bool:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(service._means.staged, "publish", fail)
    job = await cluster.submit()

    async def is_left() -> bool:
        return not service._active

    await until(is_left)
    assert (await cluster.ask("GET", f"/v1/jobs/{job['id']}"))[1]["state"] == "publishing"
    status, error = await cluster.ask("DELETE", f"/v1/jobs/{job['id']}")
    assert (status, error["error"]["code"]) == (409, "job_finished")
    monkeypatch.setattr(service._means.staged, "publish", real)
    await stage(cluster.url, "0123456789abcdef0123", "out", "stray", b"x")
    assert await service._means.staged.sweep(service._may_publish)
    assert await cluster.staged() == {job["id"]: 4}, "the outputs and their lineage"
    await cluster.stop_proxy()
    await cluster.start_proxy()
    assert (await cluster.until(job["id"]))["state"] == "succeeded"
    assert await cluster.names() == ["out-0000", "out-0001", "out-0002"]


async def test_a_job_is_cancelled_while_it_waits(make, monkeypatch):
    """Also if the journal is full when that is asked for; what comes behind it begins."""
    monkeypatch.setattr(context, "JOURNAL_RETRY_S", 0.01)
    cluster = await make(jobs_running_max=1)
    gate = cluster.engine.before = Gate()
    first, second, third = [await cluster.submit(f"{number}-%02d") for number in range(3)]
    await gate.reached.wait()
    journal = cluster.proxy.jobs._journal
    failing = Failing(journal.cancel, sqlite3.OperationalError("database or disk is full"), 2)
    failing.begun = True
    monkeypatch.setattr(journal, "cancel", failing)
    status, error = await cluster.ask("DELETE", f"/v1/jobs/{second['id']}")
    assert (status, error["error"]["code"]) == (507, "no_space")
    assert (await cluster.until(second["id"]))["state"] == "cancelled"
    gate.opened.set()
    assert [(await cluster.until(job["id"]))["state"] for job in (first, third)] == ["succeeded", "succeeded"]
    assert await cluster.names(prefix="1-") == []


async def test_nothing_is_kept_of_those_who_looked_on_at_a_job_that_has_ended(make):
    cluster = await make()
    job = await cluster.submit()
    await cluster.until(job["id"])
    service = cluster.proxy.jobs
    looking = service.watch(job["id"])
    assert (await anext(looking))["state"] == "succeeded"
    await looking.aclose()
    with pytest.raises(JobNotFound):
        await anext(service.watch("none"))
    assert service._pulses == {}


async def test_queue_and_rivals(make):
    cluster = await make(jobs_running_max=1, jobs_queued_max=2)
    gate = cluster.engine.before = Gate()
    first = await cluster.submit("a-%02d")
    await gate.reached.wait()
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


async def test_listings(make):
    cluster = await make()
    ids = [(await cluster.submit(f"{number}-%02d"))["id"] for number in range(5)]
    for job_id in ids:
        await cluster.until(job_id)
    _, page = await cluster.ask("GET", "/v1/jobs?limit=2")
    assert ([job["id"] for job in page["jobs"]], page["next_token"]) == (ids[:2:-1], ids[3])
    _, rest = await cluster.ask("GET", f"/v1/jobs?limit=3&token={page['next_token']}")
    assert ([job["id"] for job in rest["jobs"]], rest["next_token"]) == (ids[2::-1], None)
    _, none = await cluster.ask("GET", "/v1/jobs?state=failed,cancelled")
    assert none == {"jobs": [], "next_token": None}
    assert (await cluster.ask("GET", "/v1/jobs?state=nonsense"))[0] == 400
    assert (await cluster.ask("GET", "/v1/jobs?limit=0"))[0] == 400
    assert (await cluster.ask("GET", "/v1/jobs?what=1"))[0] == 400


async def test_a_dry_run_stores_nothing(make):
    cluster = await make()
    plan = await cluster.submit(options={"tasks": 7, "second": 1}, dry_run=True)
    assert plan == {
        "operation": "probe", "dry_run": True, "stages": [{"name": "first", "tasks": 7}, {"name": "second", "tasks": None}],
        "tasks": None, "input": {"shards": 3, "samples": 6, "bytes": 30720}, "output": {"shards": 7}, "warnings": [],
    }  # fmt: skip
    assert (await cluster.ask("GET", "/v1/jobs"))[1]["jobs"] == []
    assert (await cluster.ask("GET", "/v1/buckets/out"))[0] == 404


async def test_what_is_refused(make):
    cluster = await make()
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


@pytest.mark.parametrize(
    ("mistake", "code"),
    [("tasks", "internal_error"), ("count", "internal_error"), ("same name", "output_written_twice")],
)
async def test_mistakes_end_one_job_only(make, mistake, code):
    cluster = await make()
    good = await cluster.submit("good-%02d", options={"tasks": 50})
    ended = await cluster.until((await cluster.submit(options={"tasks": 5, "mistake": mistake}))["id"])
    assert (ended["state"], ended["error"]["code"]) == ("failed", code)
    assert (await cluster.until(good["id"]))["state"] == "succeeded"
    await cluster.until_nothing_is_staged()


async def test_overwriting_leaves_others_with_a_warning(make):
    cluster = await make()
    for number in (1, 7, 8):
        await cluster.ask("PUT", f"/out/out-{number:04}", b"old")
    ended = await cluster.until((await cluster.submit(overwrite=True))["id"])
    assert ended["warnings"] == [
        "existing objects that match the output pattern were left unchanged: 'out-0007' and 1 more",
    ]  # fmt: skip
    assert await cluster.ask("GET", "/out/out-0001") == (200, content_of("out-0001", 10).decode())
    assert await cluster.ask("GET", "/out/out-0007") == (200, "old")


async def test_an_object_that_appears_meanwhile(make):
    cluster = await make()
    gate = cluster.engine.before = Gate()
    job = await cluster.submit()
    await gate.reached.wait()
    await cluster.ask("PUT", "/out/out-0002", b"mine")
    gate.opened.set()
    ended = await cluster.until(job["id"])
    assert (ended["state"], ended["error"]["code"]) == ("failed", "output_exists")
    assert await cluster.ask("GET", "/out/out-0002") == (200, "mine")
    assert await cluster.names() == ["out-0002"]


async def test_a_bucket_that_is_deleted_meanwhile(make):
    cluster = await make()
    gate = cluster.engine.before = Gate()
    job = await cluster.submit()
    await gate.reached.wait()
    assert (await cluster.ask("DELETE", "/v1/buckets/out"))[0] == 204
    gate.opened.set()
    ended = await cluster.until(job["id"])
    assert ended["state"] == "failed", ended
    await cluster.until_nothing_is_staged()
    assert (await cluster.ask("GET", "/v1/buckets/out"))[0] == 404, "no task has made it anew"


async def test_staged_objects_that_are_not_what_was_written(make):
    cluster = await make()
    gate = cluster.engine.before = Gate(2)
    job = await cluster.submit()
    await gate.reached.wait()

    async def has_two() -> bool:
        return sum((await cluster.staged()).values()) == 2

    await until(has_two)
    await stage(cluster.url, job["id"], "out", "out-0001", b"other")
    gate.opened.set()
    ended = await cluster.until(job["id"])
    assert (ended["state"], ended["error"]["code"]) == ("failed", "output_lost")
    assert await cluster.names() == []


async def test_warnings_are_bounded(make):
    cluster = await make()
    cluster.engine.warn = lambda task: (f"{task.label} is odd",)
    assert (await cluster.ask("PUT", "/in/dropped.tar", tar("a.jpg", "README", ".hidden")))[0] == 201
    ended = await cluster.until((await cluster.submit(options={"tasks": 150}))["id"])
    assert ended["warnings"][0] == "2 members belong to no sample and will be left out: in in/dropped.tar"
    assert len(ended["warnings"]) == 101
    assert ended["warnings"][-1] == "and 51 more warnings"


async def test_another_version_of_the_program_does_not_go_on(make, monkeypatch):
    cluster = await make()
    gate = cluster.engine.before = Gate()
    job = await cluster.submit()
    await gate.reached.wait()
    await cluster.stop_proxy()
    monkeypatch.setattr(runner, "__version__", "0.0.0-other")
    await cluster.start_proxy()
    assert (await cluster.until(job["id"]))["error"]["code"] == "job_interrupted"


async def test_a_full_disk_of_the_proxy(make, monkeypatch):
    monkeypatch.setattr(context, "JOURNAL_RETRY_S", 0.02)
    cluster = await make()
    gate = cluster.engine.before = Gate(5)
    job = await cluster.submit(options={"tasks": 400})
    await gate.reached.wait()
    database = cluster.proxy.jobs._journal._database
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count={pages}")
    spec = {"operation": "probe", "input": {"bucket": "in"}, "output": {"bucket": "out", "pattern": "x-%02d"}}
    status, error = await cluster.ask("POST", "/v1/jobs", json.dumps(spec).encode() + b" " * 100_000)
    assert (status, error["error"]["code"]) == (507, "no_space")
    gate.opened.set()
    ended = await cluster.until(job["id"])
    assert (ended["state"], ended["error"]["code"]) == ("failed", "no_space")
    assert "journal" in ended["error"]["message"]
    database.execute("PRAGMA max_page_count=1000000")
    assert (await cluster.until((await cluster.submit("x-%02d"))["id"]))["state"] == "succeeded"
    await cluster.until_nothing_is_staged()


class Failing:
    """A call of the journal that fails so many times, once it is told to."""

    def __init__(self, real, error: Exception, times: int) -> None:
        self.real, self.error, self.times = real, error, times
        self.failed = 0
        self.begun = False

    def __call__(self, *arguments):
        if self.begun and self.failed < self.times:
            self.failed += 1
            raise self.error
        return self.real(*arguments)


async def test_a_journal_that_cannot_be_read_for_a_while_costs_no_place_to_run(make, monkeypatch, caplog):
    monkeypatch.setattr(context, "JOURNAL_RETRY_S", 0.01)
    cluster = await make(jobs_running_max=1)
    journal = cluster.proxy.jobs._journal
    failing = Failing(journal.get, sqlite3.OperationalError("disk I/O error"), 2)
    monkeypatch.setattr(journal, "get", failing)
    monkeypatch.setattr(
        journal, "succeed", lambda job_id, real=journal.succeed: (setattr(failing, "begun", True), real(job_id))[1]
    )
    first = await cluster.submit("first-%04d")
    second = await cluster.submit("second-%04d")
    assert (await cluster.until(second["id"]))["state"] == "succeeded"
    assert (await cluster.until(first["id"]))["state"] == "succeeded"
    assert failing.failed == 2
    assert "the proxy cannot write its job journal: disk I/O error; trying again" in caplog.text


@pytest.mark.parametrize(("name", "is_accepted"), [("counts", True), ("get", False)])
async def test_a_job_is_accepted_or_not_when_the_journal_cannot_be_read_for_a_moment(make, monkeypatch, name, is_accepted):
    cluster = await make()
    journal = cluster.proxy.jobs._journal
    failing = Failing(getattr(journal, name), sqlite3.OperationalError("disk I/O error"), 1)
    failing.begun = True
    monkeypatch.setattr(journal, name, failing)
    said = await cluster.submit("x-%04d")
    assert failing.failed == 1
    if is_accepted:
        assert (await cluster.until(said["id"], timeout_s=10))["state"] == "succeeded"
    else:
        assert said[0] == 500
        assert (await cluster.ask("GET", "/v1/jobs"))[1]["jobs"] == []


async def test_a_journal_that_is_damaged_costs_no_place_to_run(make, monkeypatch, caplog):
    cluster = await make(jobs_running_max=1)
    journal = cluster.proxy.jobs._journal
    failing = Failing(journal.get, sqlite3.DatabaseError("database disk image is malformed"), 2)
    monkeypatch.setattr(journal, "get", failing)
    monkeypatch.setattr(
        journal, "succeed", lambda job_id, real=journal.succeed: (setattr(failing, "begun", True), real(job_id))[1]
    )
    first = await cluster.submit("first-%04d")
    second = await cluster.submit("second-%04d")
    assert (await cluster.until(second["id"]))["state"] == "succeeded"
    assert f"job {first['id']} ended, but the journal has no record of how" in caplog.text

    async def all_places_are_free() -> bool:
        return not cluster.proxy.jobs._active

    await until(all_places_are_free)  # the journal says that a job has succeeded a moment before its place is free


async def test_a_job_that_goes_on_at_the_next_start_is_not_called_cancelled(make, monkeypatch):
    cluster = await make()
    gate = cluster.engine.before = Gate()
    job = await cluster.submit()
    await gate.reached.wait()
    journal = cluster.proxy.jobs._journal
    failing = Failing(journal.cancel, sqlite3.DatabaseError("database disk image is malformed"), 1)
    failing.begun = True
    monkeypatch.setattr(journal, "cancel", failing)
    assert (await cluster.ask("DELETE", f"/v1/jobs/{job['id']}"))[0] == 500

    async def is_left() -> bool:
        return job["id"] in cluster.proxy.jobs._left

    await until(is_left)
    status, said = await cluster.ask("DELETE", f"/v1/jobs/{job['id']}")
    assert (status, said.get("error", said)["code"]) == (503, "unavailable")
    gate.opened.set()
    await cluster.stop_proxy()
    await cluster.start_proxy()
    assert (await cluster.until(job["id"]))["state"] == "succeeded"


async def test_a_job_whose_end_the_journal_does_not_take_goes_on_to_publish_at_the_next_start(make, monkeypatch, caplog):
    cluster = await make(jobs_running_max=1)
    journal = cluster.proxy.jobs._journal
    failing = Failing(journal.succeed, sqlite3.DatabaseError("database disk image is malformed"), 1)
    failing.begun = True
    monkeypatch.setattr(journal, "succeed", failing)
    first = await cluster.submit("first-%04d")
    second = await cluster.submit("second-%04d")
    assert (await cluster.until(second["id"]))["state"] == "succeeded"
    assert f"job {first['id']}: the journal could not record its end" in caplog.text
    assert (await cluster.ask("GET", f"/v1/jobs/{first['id']}"))[1]["state"] == "publishing"
    rival = await cluster.submit("first-%04d", overwrite=True)
    assert rival[:2] == (409, "conflict"), "what is staged will be published under these names"
    await cluster.stop_proxy()
    await cluster.start_proxy()
    assert (await cluster.until(first["id"]))["state"] == "succeeded"
    assert len(cluster.proxy.jobs._claims) == 0
    assert await cluster.names(prefix="first") == ["first-0000", "first-0001", "first-0002"]


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


async def test_events(make):
    cluster = await make()
    gate = cluster.engine.before = Gate(1)
    job = await cluster.submit()
    url = f"{cluster.url}/v1/jobs/{job['id']}/events"
    async with cluster.session.get(url, headers={"Last-Event-ID": "17"}) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        seen, lines = [], []
        async for line in answer.content:
            lines.append(line.decode())
            if line.startswith(b"data: "):
                seen.append(json.loads(line[6:]))
                if seen[-1]["progress"]["tasks"]["done"] == 1:
                    gate.opened.set()
    assert lines[0] == "id: 1\n"
    assert lines[1] == "event: job\n"
    assert seen[-1] == await cluster.until(job["id"])
    order = ["queued", "running", "publishing", "succeeded"]
    states = [order.index(each["state"]) for each in seen]
    assert states == sorted(states)
    assert len(seen) >= 3
    status, text = await cluster.ask("GET", f"/v1/jobs/{job['id']}/events")
    assert (status, text.count("event: job")) == (200, 1)
    assert (await cluster.ask("GET", "/v1/jobs/nonsense/events"))[0] == 404


async def test_a_stream_has_heartbeats_and_breaks_when_the_proxy_ends(make, monkeypatch):
    monkeypatch.setattr(job_service, "HEARTBEAT_S", 0.05)
    cluster = await make()
    gate = cluster.engine.before = Gate()
    job = await cluster.submit()
    await gate.reached.wait()
    async with cluster.session.get(f"{cluster.url}/v1/jobs/{job['id']}/events") as answer:
        while not (await answer.content.readline()).startswith(b": "):
            pass
        await cluster.stop_proxy()
        with pytest.raises(aiohttp.ClientError):
            await answer.read()


async def test_every_target_passes_jobs_on(make):
    cluster = await make()
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


async def test_space_for_temporary_objects_is_looked_for_before_they_are_written(make):
    cluster = await make()
    fits = await cluster.submit(options={"second": 1, "temporary": 1000})
    assert (await cluster.until(fits["id"]))["state"] == "succeeded"
    cluster.engine.ran.clear()
    job = await cluster.submit(pattern="b-%04d", options={"second": 1, "temporary": 1 << 60})
    ended = await cluster.until(job["id"])
    assert (ended["state"], ended["error"]["code"]) == ("failed", "no_space")
    assert "1152921504606846976 bytes" in ended["error"]["message"]
    assert len(cluster.engine.ran) == 3, "the stage before has run, this one has not begun"
