"""What can be seen of a job while it runs, after its end, and after the proxy was started again."""

from __future__ import annotations

import os

import pytest
from inprocess import Gate, InProcess, install_probe, until

from dfc.engine.base import EngineLost, TaskFailed
from dfc.proxy.jobs.context import FOLDER, Recordings


async def said(cluster: InProcess, job_id: str) -> list[tuple[str, str | None, str]]:
    status, log = await cluster.ask("GET", f"/v1/jobs/{job_id}/log")
    assert status == 200
    return [(line["level"], line["code"], line["message"]) for line in log["lines"]]


async def until_kept(cluster: InProcess, job_id: str) -> None:
    """Its file is written, and it is in memory no more."""
    await until(lambda: cluster.proxy.jobs._context.recordings.live(job_id) is None)


async def test_while_it_runs_and_after_its_end(cluster):
    gate = cluster.engine.before = Gate(5)
    cluster.engine.warn = lambda task: ("an odd \u202ename\x1b[31m",) if task.number == 3 else ()
    job = (await cluster.submit(options={"tasks": 20, "second": 2}))["id"]
    await cluster.until_done(job, 5)
    status, shown = await cluster.ask("GET", f"/v1/jobs/{job}/tasks")
    assert status == 200
    first, second = shown["stages"]
    assert (first["stage"], first["total"], first["done"], first["samples"], first["bytes_out"]) == ("first", 20, 5, 5, 50)
    assert first["running"] >= 1
    assert first["waiting"] == 15 - first["running"]
    assert (second["stage"], second["total"], second["waiting"], second["done"]) == ("second", None, None, 0)
    states = {task["number"]: task["state"] for task in shown["tasks"]}
    assert [states[number] for number in range(6)] == ["done"] * 5 + ["running"]
    assert shown["tasks"][0]["label"] == "label-0"
    assert shown["tasks"][0]["node"] in {target.id for target in cluster.targets}
    _, history = await cluster.ask("GET", f"/v1/jobs/{job}/history")
    assert (sum(history["tasks"]), sum(history["samples"]), sum(history["bytes_out"])) == (5, 5, 50)
    assert history["complete"] is True
    assert [text for _, _, text in await said(cluster, job)] == [
        "probe runs", "stage first begins: 20 tasks", "an odd \u202ename\x1b[31m",
    ]  # fmt: skip
    gate.opened.set()
    assert (await cluster.until(job))["state"] == "succeeded"
    await until_kept(cluster, job)
    _, shown = await cluster.ask("GET", f"/v1/jobs/{job}/tasks")
    assert [(stage["total"], stage["done"], stage["running"], stage["waiting"]) for stage in shown["stages"]] == [
        (20, 20, 0, 0), (2, 2, 0, 0),
    ]  # fmt: skip
    assert [(task["stage"], task["number"]) for task in shown["tasks"]] == [
        *(("first", number) for number in range(20)), ("second", 0), ("second", 1),
    ]  # fmt: skip
    _, slowest = await cluster.ask("GET", f"/v1/jobs/{job}/tasks?slowest=1&limit=3&stage=first")
    seconds = [task["seconds"] for task in slowest["tasks"]]
    assert (len(seconds), seconds) == (3, sorted(seconds, reverse=True))
    _, history = await cluster.ask("GET", f"/v1/jobs/{job}/history")
    assert (sum(history["tasks"]), sum(history["bytes_out"])) == (22, 200)
    assert [text for _, _, text in await said(cluster, job)][3:] == [
        "stage first has ended", "stage second begins: tasks", "stage second has ended",
        "all tasks have ended; the outputs are checked", "publishing the outputs", "the job has succeeded",
    ]  # fmt: skip


async def test_what_is_asked_wrongly(cluster):
    job = (await cluster.submit(options={"tasks": 1}))["id"]
    await cluster.until(job)
    for what in ("tasks", "history", "log"):
        for unknown in ("0" * 22, "..", "%2e%2e%2fjobs.sqlite"):
            assert (await cluster.ask("GET", f"/v1/jobs/{unknown}/{what}"))[0] == 404
        assert (await cluster.ask("DELETE", f"/v1/jobs/{job}/{what}"))[0] == 405
        assert (await cluster.ask("GET", f"/v1/jobs/{job}/{what}?nonsense=1"))[0] == 400
    for query in ("state=queued", "limit=0", "limit=x", "token=x", "slowest=2", "stage=third"):
        assert (await cluster.ask("GET", f"/v1/jobs/{job}/tasks?{query}"))[0] == 400


async def test_a_task_that_is_tried_again_is_in_the_log(cluster):

    async def fail(task) -> None:
        if task.number == 1 and cluster.engine.ran["probe.first/1"] == 1:
            raise EngineLost("the worker process died while it ran the task")
        if task.number == 2:
            raise TaskFailed("bad_archive", "broken at <b>512</b>", False)

    cluster.engine.before = fail
    job = (await cluster.submit(options={"tasks": 3}))["id"]
    assert (await cluster.until(job))["state"] == "failed"
    await until_kept(cluster, job)
    log = await said(cluster, job)
    assert log[-1] == ("error", "bad_archive", "the job has failed: label-2: broken at <b>512</b>")
    if len(log) > 3:  # unless the other task failed first
        assert ("warning", "engine_lost") in [line[:2] for line in log]
        assert "label-1: the worker process died while it ran the task; trying again (try 2 of 4)" in [line[2] for line in log]
    _, shown = await cluster.ask("GET", f"/v1/jobs/{job}/tasks?state=failed")
    assert [(task["number"], task["error"]) for task in shown["tasks"]] == [(2, "bad_archive")]
    assert shown["stages"][0]["failed"] == 1


async def test_a_cancelled_job_says_so(cluster):
    cluster.engine.before = Gate(1)
    job = (await cluster.submit(options={"tasks": 9}))["id"]
    await cluster.until_done(job, 1)
    assert (await cluster.ask("DELETE", f"/v1/jobs/{job}"))[0] == 200
    await until_kept(cluster, job)
    assert (await said(cluster, job))[-1] == ("info", None, "the job was cancelled")
    _, shown = await cluster.ask("GET", f"/v1/jobs/{job}/tasks")
    assert [task["state"] for task in shown["tasks"]] == ["done"]
    assert shown["stages"][0]["running"] == 0


async def test_a_target_that_is_waited_for(cluster, monkeypatch):
    context = cluster.proxy.jobs._context
    answers = [False, False]

    def is_ready() -> bool:
        return answers.pop() if answers else True

    async def fail(task) -> None:
        if cluster.engine.ran["probe.first/0"] == 1:
            monkeypatch.setattr(context.cluster, "is_ready", is_ready)
            raise TaskFailed("unavailable", "no answer", True)

    cluster.engine.before = fail
    job = (await cluster.submit(options={"tasks": 1}))["id"]
    assert (await cluster.until(job))["state"] == "succeeded"
    assert ("warning", None, "waiting for the cluster") in await said(cluster, job)
    assert ("info", None, "nothing is down any more") in await said(cluster, job)


@pytest.mark.parametrize("how", ["stopped", "killed", "damaged"])
async def test_a_proxy_that_is_started_again_knows_what_was_before(cluster, tmp_path, monkeypatch, how):
    ended = (await cluster.submit("ended-%02d", options={"tasks": 2}))["id"]
    await cluster.until(ended)
    await until_kept(cluster, ended)
    before = await said(cluster, ended)
    gate = cluster.engine.before = Gate(5)
    job = (await cluster.submit(options={"tasks": 8}))["id"]
    await cluster.until_done(job, 5)
    await cluster.proxy.jobs._queue._active[job].runner._write()
    if how == "killed":
        recordings = cluster.proxy.jobs._context.recordings
        recordings.save_blocking(recordings.changed())
        monkeypatch.setattr(Recordings, "closed", lambda self, job_id="": [])
    await cluster.stop_proxy()
    monkeypatch.undo()
    install_probe(monkeypatch)
    if how == "damaged":
        for path in (tmp_path / "proxy" / FOLDER).iterdir():
            path.write_bytes(path.read_bytes()[:-1])
    gate.opened.set()
    await cluster.start_proxy()
    assert (await cluster.until(job))["state"] == "succeeded"
    log = [text for _, _, text in await said(cluster, job)]
    _, history = await cluster.ask("GET", f"/v1/jobs/{job}/history")
    _, shown = await cluster.ask("GET", f"/v1/jobs/{job}/tasks")
    assert shown["stages"][0]["done"] == 8
    assert shown["complete"] == history["complete"] == (how == "stopped")
    assert "stage first begins: 8 tasks, of which 5 are done" in log
    _, kept = await cluster.ask("GET", f"/v1/jobs/{ended}/log")
    if how == "damaged":
        assert log[0] == "the proxy was started again; what was before is not known"
        assert (sum(history["tasks"]), history["missed"]["tasks"]) == (3, 5)
        assert kept == {"complete": False, "lines": []}
        _, nothing = await cluster.ask("GET", f"/v1/jobs/{ended}/tasks")
        assert nothing == {"complete": False, "stages": [], "tasks": [], "next_token": None}
        _, nothing = await cluster.ask("GET", f"/v1/jobs/{ended}/history")
        assert (nothing["begun"], nothing["tasks"]) == (None, [])
    else:
        more = "" if how == "stopped" else "; of the last 15 s before, not everything is known"
        assert log[:2] == ["probe runs", "stage first begins: 8 tasks"]
        assert f"the proxy was started again{more}" in log
        assert (sum(history["tasks"]), history["missed"]["tasks"]) == (8, 0)
        assert await said(cluster, ended) == before


async def test_it_goes_when_the_job_leaves_the_list(make, tmp_path):
    cluster = await make(jobs_keep_max=2)
    jobs = []
    for number in range(4):
        jobs.append((await cluster.submit(f"o{number}-%02d", options={"tasks": 1}))["id"])
        await cluster.until(jobs[-1])

    async def are_two_left() -> bool:
        await cluster.proxy.jobs._housekeeping.forget()
        return sorted(os.listdir(tmp_path / "proxy" / FOLDER)) == sorted(jobs[-2:])

    await until(are_two_left)
    assert (await cluster.ask("GET", f"/v1/jobs/{jobs[0]}/log"))[0] == 404
    assert (await cluster.ask("GET", f"/v1/jobs/{jobs[-1]}/log"))[0] == 200


async def test_a_disk_that_takes_no_summaries_fails_no_job(cluster, monkeypatch, tmp_path):
    (tmp_path / "proxy" / FOLDER).write_bytes(b"in the way")
    job = (await cluster.submit(options={"tasks": 3}))["id"]
    assert (await cluster.until(job))["state"] == "succeeded"
    await until_kept(cluster, job)
    assert await said(cluster, job) == []
