"""stats, validate, map, join and merge through real nodes: the bytes that one process makes, and user code shut in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from folder_store import run_job
from harness import Cluster, is_running, parent, wait_for
from job_shards import members_of, put, samples

from dfc.client import Client, JobFailed
from dfc.errors import BadRequest, DfcError, Forbidden

KEYS = [f"d/{number:04d}" for number in range(120)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The datasets, as files."""
    folder = tmp_path_factory.mktemp("transforms")
    for number in range(4):
        name = f"s-{number}.tgz" if number == 3 else f"s-{number}.tar"
        put(folder, name, samples(KEYS[number * 30 : number * 30 + 30], json='{{"n": {number}}}', cls="{number}"))
    table = "__key__,note\n" + "".join(f"{key},of {key}\n" for key in KEYS[::3])
    put(folder, "m.csv", table.encode(), "tables")
    whole = put(folder, "whole.tar", samples(KEYS[:20], json="{{}}"), "bad").read_bytes()
    put(folder, "cut.tar", whole[:9000], "bad")
    put(folder, "read.me", b"no archive", "bad")
    return folder


@pytest.fixture(scope="module")
def open_cluster(start_cluster: Callable[..., Cluster], folder: Path) -> Iterator[Callable[..., Cluster]]:
    def begin(**environment: str) -> Cluster:
        cluster = start_cluster(targets=3, environment={"DFC_JOBS_WORKERS": "2", **environment})
        with Client(cluster.url) as client:
            for path in folder.rglob("*"):
                if path.is_file():
                    client.put(path.relative_to(folder).parts[0], path.name, path.read_bytes())
        return cluster

    return begin


@pytest.fixture(scope="module")
def cluster(open_cluster: Callable[..., Cluster]) -> Cluster:
    return open_cluster(DFC_JOBS_USER_COMMANDS="1", DFC_JOBS_USER_FUNCTIONS="1")


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.url) as found:
        yield found


def spec_of(operation: str, source: Any, pattern: str, **options: Any) -> dict[str, Any]:
    output = {"bucket": f"out-{operation}", "pattern": pattern}
    return {"operation": operation, "input": source, "output": output, "options": options}


EVERYTHING = {"bucket": "in", "shards": "**"}
COMMAND = ["sh", "-c", "tr n m <sample.json >out/sample.json; echo {key} {seed} >out/sample-x.txt"]
JOBS = [
    spec_of("stats", EVERYTHING, "stats.json", by="json:n"),
    spec_of("validate", {"bucket": "bad", "shards": "**"}, "report.json", require=["cls"]),
    spec_of("validate", {"bucket": "bad", "shards": ["cut.tar", "whole.tar"]}, "clean/", repair=True),
    spec_of("map", EVERYTHING, "drop-%03d.tgz", function="drop", args={"fields": ["cls"]}),
    spec_of("map", EVERYTHING, "run-%03d.tar", command=COMMAND, samples_per_shard=50, seed=3),
    spec_of("join", EVERYTHING, "inner-%03d.tar", **{"with": {"bucket": "tables", "shards": "*.csv"}}),
    spec_of(
        "join", EVERYTHING, "left-%03d.tar", how="left", shard_size="50kB",
        **{"with": {"bucket": "tables", "shards": ["m.csv"]}},
    ),
    spec_of("merge", [EVERYTHING, EVERYTHING], "m-%03d.tar", weights=[2, 1], prefix=["a-", "b-"], samples_per_shard=70),
]  # fmt: skip


@pytest.mark.parametrize("spec", JOBS, ids=lambda spec: spec["output"]["pattern"])
def test_the_same_bytes_as_in_one_process(client, folder, spec):
    expected = run_job(folder, spec)
    done = client.jobs.wait(client.jobs.submit(spec).id, timeout_s=90)
    assert done.output is not None
    assert done.output.digest == expected.digest
    for name, content in expected.outputs.items():
        assert client.get(spec["output"]["bucket"], name) == content


def test_what_a_table_is_missing(client):
    spec = spec_of("join", EVERYTHING, "none-%03d.tar", **{"with": {"bucket": "tables", "shards": "none-*.csv"}})
    with pytest.raises(DfcError, match="none-"):
        client.jobs.submit(spec)
    spec = spec_of("join", EVERYTHING, "none-%03d.tar", **{"with": {"bucket": "bad", "shards": "read.me"}})
    with pytest.raises(BadRequest, match=r"read.me is neither"):
        client.jobs.submit(spec)


def test_a_report_that_is_there_is_not_overwritten(client):
    client.put("out-map", "taken-errors.ndjson", b"mine")
    spec = spec_of("map", EVERYTHING, "taken-%03d.tar", function="decode-check", on_error="report")
    with pytest.raises(DfcError, match="taken-errors"):
        client.jobs.submit(spec)
    assert client.get("out-map", "taken-errors.ndjson") == b"mine"


def test_user_code_finds_no_store(client, cluster):
    """It looks for the blobs of the targets, asks the proxy, and for the environment of the node."""
    port = cluster.url.rpartition(":")[2]
    script = (
        f"exec 2>/dev/null >out/sample.txt; cat {cluster.directory}/*/*; find {cluster.directory} -name '*.tar@*';"
        f"curl -s -m 2  http://127.0.0.1:{port}/; env | grep DFC; cat /proc/*/environ | grep -a DFC; true"
    )
    spec = spec_of("map", {"bucket": "in", "shards": "s-0.tar"}, "look-%03d.tar", command=["sh", "-c", script])
    client.jobs.wait(client.jobs.submit(spec).id, timeout_s=90)
    found = members_of(client.get("out-map", "look-000.tar"))
    assert len(found) == 30
    assert {data for _, data in found} == {b""}


def sandboxes(cluster: Cluster) -> list[int]:
    """Processes of user code below this cluster."""
    listing = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listing.splitlines()]
    family = {cluster.process.pid}
    for _ in range(8):
        family |= {int(pid) for pid, parent, _ in rows if int(parent) in family}
    return [int(pid) for pid, _, args in rows if int(pid) in family and "sandbox.child" in args]


@contextmanager
def in_user_code(client: Client, cluster: Cluster, **spec: Any) -> Iterator[tuple[str, list[int]]]:
    """A job whose user code runs, and its processes. Whatever comes of it, nothing of it is left for the next test."""
    wait_for(lambda: not sandboxes(cluster), "user code of other jobs to be gone", 120)
    job = client.jobs.submit(spec)
    try:

        def begun() -> list[int]:
            now = client.jobs.get(job.id)
            assert not now.has_ended, f"the job has ended before its code ran: {now}"
            return sandboxes(cluster)

        yield job.id, wait_for(begun, f"user code to run; {client.jobs.log(job.id)}", 120)
    finally:
        client.jobs.cancel(job.id)
        wait_for(lambda: not sandboxes(cluster), "user code to be gone", 120)


def test_cancelling_ends_user_code(client, cluster):
    spec = spec_of("map", EVERYTHING, "slow-%03d.tar", command=["sleep", "1000"], timeout=600)
    with in_user_code(client, cluster, **spec) as (job, running):
        client.jobs.cancel(job)
        wait_for(lambda: not any(map(is_running, running)), "user code to be gone", 120)


def test_a_worker_that_is_killed_takes_its_user_code_with_it(client, cluster):
    spec = spec_of("map", {"bucket": "in", "shards": "s-0.tar"}, "k-%03d.tar", command=["sleep", "1000"], timeout=600)
    with in_user_code(client, cluster, **spec) as (_, running):
        # One is the child of the worker, and in namespaces of its own that has a child; their numbers tell nothing.
        (worker,) = {parent(pid) for pid in running} - set(running)
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: not any(map(is_running, running)), "user code to be gone", 120)


def test_failing_commands_name_sample_and_reason(client):
    spec = spec_of("map", EVERYTHING, "f-%03d.tar", command=["sh", "-c", "echo no luck >&2; exit 4"])
    job = client.jobs.submit(spec)
    with pytest.raises(JobFailed, match=r"sample 'd/\d{4}': the command exited with 4: no luck"):
        client.jobs.wait(job.id, timeout_s=60)


def test_user_code_is_off_by_default(open_cluster):
    closed = open_cluster()
    with Client(closed.url) as client:
        for options, setting in (({"command": ["true"]}, "jobs_user_commands"), ({"function": "x"}, "jobs_user_functions")):
            with pytest.raises(Forbidden, match=setting):
                client.jobs.submit(spec_of("map", EVERYTHING, "o-%03d.tar", **options))
        body = json.dumps(spec_of("map", EVERYTHING, "o-%03d.tar", command=["true"])).encode()
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(urllib.request.Request(f"{closed.url}/v1/jobs", body, method="POST"))
