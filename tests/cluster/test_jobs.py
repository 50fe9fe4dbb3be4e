"""Jobs in real clusters: by curl, from the command line, from Python; cancelled, failing, and with nodes killed under them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Cluster, command_line, parent, run_dfc, wait_for, was_interrupted
from job_shards import tar_of

from dfc.client import AsyncClient, Client, Job, JobFailed, job_spec
from dfc.errors import BadRequest, JobFinished, JobNotFound, NoShards, OutputExists
from loadtest.processes import descendants

SHARDS, SAMPLES, SAMPLE_BYTES = 6, 50, 20_000
SLOW = {"DFC_JOBS_IO_BYTES_PER_S": "1500000"}  # a reshuffle of all then takes some seconds
RESHUFFLE = job_spec("reshuffle", "in/s-*.tar", "out/r-%04d.tar", seed=7, samples_per_shard=10)


def shard(number: int) -> bytes:
    draw, members = random.Random(number), []
    for sample in range(SAMPLES):
        key = f"{number:02}/{sample:04}"
        members += [(f"{key}.bin", draw.randbytes(SAMPLE_BYTES)), (f"{key}.cls", b"%d" % (sample % 3))]
    return tar_of(members)


@pytest.fixture(scope="module")
def bodies() -> list[bytes]:
    return [shard(number) for number in range(SHARDS)]


@pytest.fixture(scope="module")
def start(start_cluster: Callable[..., Cluster], bodies: list[bytes]) -> Callable[..., Cluster]:
    """A cluster with the dataset in the bucket `in`."""

    def begin(targets: int = 2, environment: dict[str, str] | None = None) -> Cluster:
        cluster = start_cluster(targets=targets, environment={"DFC_JOBS_WORKERS": "2", **(environment or {})})
        with Client(cluster.url) as client:
            for number, body in enumerate(bodies):
                client.put("in", f"s-{number:03}.tar", body)
        return cluster

    return begin


@pytest.fixture(scope="module")
def fast(start: Callable[..., Cluster]) -> Cluster:
    """For tests that only look on or write buckets of their own."""
    return start(targets=4)


@pytest.fixture(scope="module")
def slow(start: Callable[..., Cluster]) -> Cluster:
    """Where jobs take so long that something can be done to them."""
    return start(environment=SLOW)


@pytest.fixture(scope="module")
def digest(fast: Cluster) -> str:
    """That of RESHUFFLE where nothing disturbs it."""
    with Client(fast.url) as client:
        output = client.jobs.wait(client.jobs.submit(into("undisturbed")).id, timeout_s=180).output
        assert output is not None
        return output.digest


@pytest.fixture
def client(fast: Cluster) -> Iterator[Client]:
    with Client(fast.url) as found:
        yield found


def into(bucket: str, spec: dict[str, Any] = RESHUFFLE) -> dict[str, Any]:
    return {**spec, "output": {**spec["output"], "bucket": bucket}}


def curl(*arguments: str) -> bytes:
    done = subprocess.run(["curl", "-sS", "--fail-with-body", *arguments], capture_output=True, timeout=90)
    assert done.returncode == 0, done
    return done.stdout


def staged(cluster: Cluster) -> dict[str, Any]:
    """What all targets hold of jobs; not nothing while one of them does not answer."""
    found: dict[str, Any] = {}
    for url in cluster.target_urls():
        try:
            with urllib.request.urlopen(f"{url}/v1/node/staged", timeout=10) as answer:
                found.update(json.load(answer))
        except OSError as error:
            found[url] = str(error)
    return found


def keys_of(client: Client, bucket: str) -> list[str]:
    return [key.key for info in client.list(bucket) for key in client.samples(bucket, info.name)]


def test_a_reshuffle_by_curl(fast: Cluster, client: Client, digest: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(into("by-curl")))
    answer = curl("-i", "-d", f"@{path}", f"{fast.url}/v1/jobs").decode()
    assert answer.startswith("HTTP/1.1 202 ")
    job = json.loads(answer.rpartition("\r\n\r\n")[2])
    assert f"Location: /v1/jobs/{job['id']}\r\n" in answer
    events = curl("-N", f"{fast.target_urls()[0]}/v1/jobs/{job['id']}/events").decode()
    last = json.loads(events.rpartition("data: ")[2])
    assert (last["state"], last["output"]) == ("succeeded", {"shards": 30, "samples": 300, "digest": digest})
    assert json.loads(curl(f"{fast.url}/v1/jobs/{job['id']}")) == last
    names = curl(f"{fast.url}/by-curl/").decode().split()
    assert names == [f"r-{number:04}.tar" for number in range(30)]
    for name in names:
        body = tmp_path / name
        body.write_bytes(curl(f"{fast.url}/by-curl/{name}"))
        listed = subprocess.run(["tar", "-tf", body], capture_output=True, check=True, text=True)
        assert (len(listed.stdout.split()), listed.stderr) == (20, "")
    found = keys_of(client, "by-curl")
    assert sorted(found) == sorted(f"{number:02}/{sample:04}" for number in range(SHARDS) for sample in range(SAMPLES))
    assert found != sorted(found)
    lineage = json.loads(curl(f"{fast.url}/by-curl/.dfc/jobs/{job['id']}.json"))
    assert lineage["spec"] == into("by-curl")
    assert lineage["output"]["digest"] == digest
    refused = subprocess.run(["curl", "-s", "-d", f"@{path}", f"{fast.url}/v1/jobs"], capture_output=True, check=True)
    assert json.loads(refused.stdout)["error"]["code"] == "output_exists"


def test_from_python(client: Client, digest: str) -> None:
    plan = client.jobs.plan(into("planned"))
    assert (plan["tasks"], plan["output"], plan["input"]["samples"]) == (30, {"shards": 30}, 300)
    job = client.jobs.submit(into("from-python"))
    seen = list(client.jobs.events(job.id))
    assert (seen[-1].state, seen[-1].has_ended, seen[-1].progress.tasks.done) == ("succeeded", True, 30)
    assert client.jobs.wait(job.id).output == seen[-1].output
    assert client.jobs.get(job.id).output.digest == digest  # type: ignore[union-attr]
    assert job.id in [each.id for each in client.jobs.list(states=["succeeded"], page=2)]
    with pytest.raises(OutputExists):
        client.jobs.submit(into("from-python"))
    with pytest.raises(NoShards):
        client.jobs.submit(job_spec("reshuffle", "in/none-*.tar", "x/%06d.tar"))
    with pytest.raises(BadRequest, match="seeds"):
        client.jobs.submit(job_spec("reshuffle", "in/", "x/%06d.tar", seeds=1))
    with pytest.raises(JobFinished):
        client.jobs.cancel(job.id)
    with pytest.raises(JobNotFound):
        client.jobs.get("0" * 20)


async def test_from_asyncio(fast: Cluster, digest: str) -> None:
    async with AsyncClient(fast.url) as client:
        job = await client.jobs.submit(into("from-asyncio"))
        states = [each.state async for each in client.jobs.events(job.id)]
        assert states[-1] == "succeeded"
        ended = await client.jobs.wait(job.id, timeout_s=180)
        assert ended.output is not None
        assert ended.output.digest == digest
        assert job.id in [each.id async for each in client.jobs.list()]
        assert (await client.jobs.plan(into("x")))["dry_run"]


def test_from_the_command_line(fast: Cluster, digest: str, tmp_path: Path) -> None:
    plan = run_dfc(fast.url, "reshuffle", "in/", "cli/r-%04d.tar", "--samples-per-shard", "10", "--dry-run")
    assert (plan.returncode, plan.stdout.splitlines()[0]) == (0, "reshuffle: reads 6 shards, 300 samples, 6.64 MB"), plan
    ran = run_dfc(fast.url, "reshuffle", "in/s-*.tar", "cli/r-%04d.tar", "--seed", "7", "--samples-per-shard", "10")
    assert ran.returncode == 0, ran
    assert ran.stdout.startswith("reshuffle: 30 objects, 300 samples, ")
    assert ran.stdout.endswith(f" digest {digest}\n")
    again = run_dfc(fast.url, "reshuffle", "in/s-*.tar", "cli/r-%04d.tar")
    assert (again.returncode, again.stdout) == (1, "")
    assert "overwrite" in again.stderr
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(into("cli-2")))
    with spec.open() as stdin:
        run = run_dfc(fast.url, "job", "run", "-", "--json", "--label", "mine", stdin=stdin)
    assert run.returncode == 0, run
    job = json.loads(run.stdout)
    assert (job["state"], job["label"], job["output"]["digest"]) == ("succeeded", "mine", digest)
    flags = ("--operation", "reshuffle", "-i", "in/s-*.tar", "--output", "cli-3/r-%04d.tar", "-o", "seed=7")
    job_id = run_dfc(fast.url, "job", "submit", *flags, "-o", "samples_per_shard=10").stdout.strip()
    watched = run_dfc(fast.url, "job", "watch", job_id, "--json")
    assert watched.returncode == 0
    assert json.loads(watched.stdout.splitlines()[-1])["output"]["digest"] == digest
    assert f"  digest    {digest}\n" in run_dfc(fast.url, "job", "show", job_id).stdout
    listed = run_dfc(fast.url, "job", "ls", "--limit", "2").stdout.splitlines()
    assert [line.split()[0] for line in listed] == [job_id, job["id"]]
    assert listed[1].endswith("reshuffle   mine")
    assert run_dfc(fast.url, "job", "cancel", job_id).returncode == 1
    assert run_dfc(fast.url, "job", "show", "0" * 20).returncode == 3
    assert run_dfc(fast.url, "reshuffle", "in/none-*.tar", "x/%06d.tar").returncode == 3
    assert run_dfc(fast.url, "reshuffle", "in/", "x/%06d.tar", "--nonsense", "1").returncode == 2
    assert run_dfc(fast.url, "reshuffle", "in/", "in/", "x/%06d.tar").returncode == 2


def test_keys_are_listed_or_written(fast: Cluster, client: Client) -> None:
    listed = run_dfc(fast.url, "keys", "in/s-000.tar", "in/s-001.tar")
    assert len(listed.stdout.splitlines()) == 2 * SAMPLES
    written = run_dfc(fast.url, "keys", "in/s-*.tar", "manifest/keys.txt", "--json")
    assert written.returncode == 0, written
    assert client.get("manifest", "keys.txt").decode().split() == [
        f"{number:02}/{sample:04}" for number in range(SHARDS) for sample in range(SAMPLES)
    ]
    assert run_dfc(fast.url, "keys", "in/s-*.tar", "--overwrite").returncode == 2


def begun(client: Client, spec: dict[str, Any], tasks: int = 3) -> Job:
    """A job of which some tasks are done and some are not."""
    job = client.jobs.submit(spec)
    return wait_for(
        lambda: (now := client.jobs.get(job.id)).progress.tasks.done >= tasks and now, f"{tasks} tasks of {job.id}", 60
    )


def test_cancelling(slow: Cluster) -> None:
    with Client(slow.url) as client:
        job = begun(client, into("cancelled"))
        assert job.state == "running"
        assert job.progress.eta_s is not None
        assert client.jobs.cancel(job.id).state == "cancelled"
        wait_for(lambda: not staged(slow), "nothing to be staged")
        assert list(client.list("cancelled", prefix=".dfc/")) + list(client.list("cancelled")) == []
        with pytest.raises(JobFailed, match="cancelled"):
            client.jobs.wait(job.id)


def test_ctrl_c_cancels_what_runs_in_the_foreground(slow: Cluster) -> None:
    command = [sys.executable, "-m", "dfc", "reshuffle", "in/s-*.tar", "interrupted/%04d.tar", "--samples-per-shard", "10"]
    environment = {**os.environ, "DFC_URL": slow.url}
    with Client(slow.url) as client:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        def found() -> Job | None:
            running = [job for job in client.jobs.list(states=["running"]) if job.progress.tasks.done]
            return running[0] if running else None

        job = wait_for(found, "the job", 60)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
        assert (was_interrupted(process.returncode), errors) == (
            True,
            f"dfc: the job {job.id} is cancelled; its outputs are discarded\n",
        )
        assert client.jobs.get(job.id).state == "cancelled"
        wait_for(lambda: not staged(slow), "nothing to be staged")


def test_an_input_that_changes_fails_the_job_and_leaves_nothing(slow: Cluster, bodies: list[bytes]) -> None:
    with Client(slow.url) as client:
        for number, body in enumerate(bodies):
            client.put("unsteady", f"s-{number:03}.tar", body)
        job = client.jobs.submit(job_spec("reshard", "unsteady/s-*.tar", "changed/%04d.tar", samples_per_shard=10))
        client.put("unsteady", "s-005.tar", bodies[0])  # before a worker has opened it: what is open is read to its end
        ended = client.jobs.wait(job.id, timeout_s=180, check=False)
        assert ended.error is not None, ended
        assert (ended.state, ended.error.code) == ("failed", "input_changed")
        assert "unsteady/s-005.tar" in ended.error.message
        assert ended.progress.tasks.done > 0
        wait_for(lambda: not staged(slow), "nothing to be staged")
        assert list(client.list("changed")) == []


@pytest.mark.parametrize("victim", ["proxy", "target-0"])
def test_a_node_that_is_killed_costs_time_only(slow: Cluster, digest: str, victim: str) -> None:
    with Client(slow.url) as client:
        job = begun(client, into(f"killed-{victim}"), tasks=6)
        os.kill(slow.children()[victim], signal.SIGKILL)
        ended = client.jobs.wait(job.id, timeout_s=180)
        assert ended.output is not None
        assert ended.output.digest == digest
        assert len(list(client.list(f"killed-{victim}"))) == 30
        wait_for(lambda: not staged(slow), "nothing to be staged")


def pids_of(cluster: Cluster, victim: str) -> list[int]:
    """Processes of this kind that are alive: proxy, targets, or the workers that run tasks."""
    children = cluster.children()
    if victim != "worker":
        return [pid for name, pid in children.items() if name.startswith(victim)]
    return [
        pid
        for pid in descendants(children.get("proxy", 0))
        if "forkserver" in command_line(pid) and "forkserver" in command_line(parent(pid))
    ]


@pytest.mark.parametrize("kills_max", [4, pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
@pytest.mark.parametrize("victim", ["proxy", "target", "worker"])
def test_killed_again_and_again(slow: Cluster, digest: str, victim: str, kills_max: int) -> None:
    """At random moments, from the first task to publishing: the same digest, or a clean failure where a task has
    met its fourth kill, and nothing beside it. Left alone, the next job succeeds."""
    draw, pause, kills = random.Random(5), threading.Event(), 0
    states: list[str] = []
    with Client(slow.url) as client:
        while kills < kills_max:
            bucket = f"often-{victim}-{len(states)}"
            job = client.jobs.submit(into(bucket))
            while kills < kills_max and client.jobs.get(job.id).finished is None:
                pause.wait(draw.uniform(0.1, 0.8))
                alive = pids_of(slow, victim)
                if alive:
                    os.kill(draw.choice(alive), signal.SIGKILL)
                    kills += 1
                wait_for(lambda: len(slow.children()) == 3 and slow.is_healthy(), "the cluster to be back", 60)
            ended = client.jobs.wait(job.id, timeout_s=120, check=False)
            states.append(ended.state)
            wait_for(lambda: not staged(slow), "nothing to be staged", 60)
            if ended.output is not None:
                assert (ended.state, ended.output.digest, len(list(client.list(bucket)))) == ("succeeded", digest, 30)
            else:
                assert ended.error is not None, ended
                assert list(client.list(bucket)) + list(client.list(bucket, prefix=".dfc/")) == [], ended
        left_alone = client.jobs.wait(client.jobs.submit(into(f"often-{victim}-after")).id, timeout_s=120)
        assert left_alone.output is not None
        assert left_alone.output.digest == digest


def test_what_is_running_does_not_stop_others(fast: Cluster, client: Client) -> None:
    """A flood of jobs, good and bad ones: the limits hold, every good one succeeds."""
    specs = [into(f"flood-{number}") for number in range(5)]
    bad = [{**RESHUFFLE, "operation": "nonsense"}, {**RESHUFFLE, "options": {"seed": -1}}, {"input": 1}]
    for spec in bad:
        with pytest.raises(BadRequest):
            client.jobs.submit(spec)
    jobs = [client.jobs.submit(spec) for spec in specs]
    assert len(list(client.jobs.list(states=["running"]))) <= 2
    digests = {client.jobs.wait(job.id, timeout_s=180).output.digest for job in jobs}  # type: ignore[union-attr]
    assert len(digests) == 1


def test_jobs_and_moves_at_once(start: Callable[..., Cluster], tmp_path: Path, digest: str) -> None:
    """A move waits for jobs, also in its middle; both come to what they would alone."""
    cluster = start(environment={**SLOW, "DFC_REBALANCE": "manual"})

    def is_moving() -> bool:
        return any(run.get("to") for run in cluster.map()["slices"])

    def in_use() -> int:
        return len({disk for layout in cluster.map()["layouts"] for disk in layout["disks"]})

    with Client(cluster.url) as client:
        command = [sys.executable, "-m", "dfc", "target", "--port", "0", "--dir", str(tmp_path)]
        command += ["--disks", str(tmp_path / "disk"), "--proxy-url", cluster.url]
        node = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            wait_for(lambda: len(disks_of(cluster)) == 3, "the disk to join")
            new = next(disk["id"] for disk in disks_of(cluster) if disk["id"] not in disks_before(cluster))
            first = client.jobs.submit(into("first"))
            client.activate(new)
            assert disks_of(cluster)[2]["use"] == "in"
            is_held = not is_moving()
            assert is_held or client.jobs.get(first.id).has_ended
            output = client.jobs.wait(first.id, timeout_s=180).output
            assert output is not None
            assert output.digest == digest
            wait_for(lambda: in_use() == 3 and not is_moving(), "objects to be moved")
            client.drain(new)
            wait_for(lambda: is_moving() or in_use() == 2, "a move to begin")
            output = client.jobs.wait(client.jobs.submit(into("second")).id, timeout_s=180).output
            assert output is not None
            assert output.digest == digest
            wait_for(lambda: in_use() == 2 and not is_moving(), "objects to be moved away")
            for bucket in ("first", "second"):
                names = [each.name for each in client.list(bucket)]
                assert len(names) == SHARDS * SAMPLES // 10
                assert {len(client.get(bucket, name)) for name in names if name.endswith(".tar")} != set()
        finally:
            node.terminate()
            node.communicate(timeout=30)


def disks_of(cluster: Cluster) -> list[dict[str, Any]]:
    """The disks of all targets; those that have joined late are the last."""
    found = [disk for node in cluster.map()["nodes"] for disk in node["disks"]]
    return sorted(found, key=lambda disk: disk["id"] not in disks_before(cluster))


def disks_before(cluster: Cluster) -> set[str]:
    """The ids of the disks with which the cluster was started."""
    return {json.loads(path.read_text())["disk_id"] for path in cluster.directory.glob("target-*/disk-*/dfc-disk.json")}
