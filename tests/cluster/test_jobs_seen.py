"""What can be seen of jobs in a real cluster: from Python and the command line, with a worker and a proxy that are killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import pytest
from cluster.test_jobs import SHARDS, SLOW, begun, into, pids_of, shard
from harness import Cluster, command_line, run_dfc, wait_for

from dfc.client import AsyncClient, Client
from dfc.errors import BadRequest, JobNotFound
from loadtest.processes import descendants


@pytest.fixture(scope="module")
def slow(start_cluster: Callable[..., Cluster]) -> Cluster:
    """Where jobs take so long that something can be done to them."""
    cluster = start_cluster(targets=2, environment={"DFC_JOBS_WORKERS": "2", **SLOW})
    with Client(cluster.url) as client:
        for number in range(SHARDS):
            client.put("in", f"s-{number:03}.tar", shard(number))
    return cluster


def test_a_job_whose_worker_and_proxy_are_killed(slow: Cluster) -> None:
    with Client(slow.url) as client:
        job = begun(client, into("seen"))
        found = client.jobs.tasks(job.id)
        assert found.complete
        (stage,) = found.stages
        assert (stage.total, stage.done + stage.running + (stage.waiting or 0)) == (30, 30)
        done = [task for task in found.tasks if task.state == "done"]
        assert {task.worker for task in done} <= {"0", "1"}
        assert all(task.seconds > 0 and task.bytes_in > 0 and task.samples == 10 for task in done)
        assert [task.state for task in client.jobs.tasks(job.id, state="running", limit=1).tasks] == ["running"]
        os.kill(pids_of(slow, "worker")[0], signal.SIGKILL)
        wait_for(lambda: client.jobs.get(job.id).progress.tasks.done >= 8, "tasks after the kill", 60)
        os.kill(slow.children()["proxy"], signal.SIGKILL)
        ended = client.jobs.wait(job.id, timeout_s=180)
        assert ended.bucket == "seen"
        found = client.jobs.tasks(job.id, limit=1000)
        assert (found.stages[0].done, found.stages[0].waiting, found.stages[0].running) == (30, 0, 0)
        history = client.jobs.history(job.id)
        assert sum(history.tasks) + history.missed["tasks"] == 30
        assert sum(history.bytes_in) + history.missed["bytes_in"] == ended.progress.bytes_in
        assert not history.complete
        assert {worker.worker for worker in history.workers.busy} <= {"0", "1"}
        said = client.jobs.log(job.id)
        assert said.lines[-1].message == "the job has succeeded"
        assert any(line.message.startswith("the proxy was started again") for line in said.lines)
        with pytest.raises(JobNotFound):
            client.jobs.log("0" * 22)
        with pytest.raises(BadRequest):
            client.jobs.tasks(job.id, state="odd")
    wait_for(lambda: len(slow.children()) == 3 and slow.is_healthy(), "the cluster to be back", 60)


def test_tasks_that_are_tried_again_are_in_the_log(slow: Cluster) -> None:
    """The engine, and so all of its workers, is killed."""
    with Client(slow.url) as client:
        job = begun(client, into("killed"), tasks=1)
        (engine, *_) = [pid for pid in descendants(slow.children()["proxy"]) if "dfc.engine.host" in command_line(pid)]
        os.kill(engine, signal.SIGKILL)
        assert client.jobs.wait(job.id, timeout_s=180).output is not None
        found, lines = client.jobs.tasks(job.id, slowest=True), client.jobs.log(job.id).lines
        assert found.stages[0].retries > 0
        tries = [line for line in lines if line.code == "engine_lost"]
        assert len(tries) == found.stages[0].retries
        assert all("; trying again (try 2 of 4)" in line.message and line.level == "warning" for line in tries)
        assert {task.tries for task in found.tasks} == {1, 2}


async def test_from_asyncio(slow: Cluster) -> None:
    async with AsyncClient(slow.url) as client:
        jobs = [job async for job in client.jobs.list()]
        job = jobs[-1].id
        assert (await client.jobs.tasks(job, slowest=True, limit=5)).tasks[0].seconds > 0
        assert (await client.jobs.history(job)).step_s > 0
        assert (await client.jobs.log(job)).lines[-1].message == "the job has succeeded"


def test_from_the_command_line(slow: Cluster) -> None:
    with Client(slow.url) as client:
        job = client.jobs.wait(client.jobs.submit({**into("cli"), "label": "mine"}).id, timeout_s=180).id
    shown = run_dfc(slow.url, "job", "tasks", job, "--slowest", "--limit", "3")
    assert (shown.returncode, shown.stderr) == (0, ""), shown
    table = shown.stdout.splitlines()
    assert table[0].split() == [
        "stage", "tasks", "waiting", "running", "done", "failed", "retries", "samples", "read", "written",
    ]  # fmt: skip
    assert table[1].split()[1:6] == ["30", "0", "0", "30", "0"]
    assert len(table) == 7
    assert table[4].split()[2] == "done"
    one = json.loads(run_dfc(slow.url, "job", "tasks", job, "--json", "--limit", "2").stdout)
    assert [task["number"] for task in one["tasks"]] == [0, 1]
    more = run_dfc(slow.url, "job", "tasks", job, "--limit", "2")
    assert "there are more" in more.stderr
    log = run_dfc(slow.url, "job", "log", job)
    assert log.returncode == 0
    assert log.stdout.splitlines()[-1].endswith("  info     the job has succeeded")
    assert json.loads(run_dfc(slow.url, "job", "log", job, "--json").stdout)["lines"][-1]["message"] == "the job has succeeded"
    assert run_dfc(slow.url, "job", "log", "0" * 22).returncode == 3
    assert run_dfc(slow.url, "job", "tasks", job, "--state", "odd").returncode != 0
