"""What jobs can do and what one was asked to do, by every way to ask for it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

from dfc.client import AsyncClient, Client, job_spec
from dfc.errors import JobNotFound
from dfc.jobs.operations import OPERATIONS


@pytest.fixture(scope="module")
def job(http, make_tar):
    """A job that has ended."""
    for number in range(2):
        assert http.put(f"/operations-b/s-{number}.tar", content=make_tar([("a.txt", b"1")])).status_code == 201
    spec = job_spec("keys", "operations-b/s-*.tar", "operations-b/keys.txt", label="<i>\u202e", on_split="keep")
    with Client(str(http.base_url)) as client:
        return client.jobs.wait(client.jobs.submit(spec).id, timeout_s=120).id, spec


def test_operations_at_any_node(http, nodes, error_of):
    answers = [http.get(f"{url}/v1/operations") for url in (nodes.proxy, nodes.map.targets()[0].url)]
    assert {answer.status_code for answer in answers} == {200}
    assert answers[0].content == answers[1].content
    assert answers[0].headers["content-type"] == "application/json"
    found = {each["name"]: each for each in answers[0].json()["operations"]}
    assert tuple(found) == OPERATIONS
    assert found["reshuffle"]["summary"] == "Shuffle all samples globally, by a seed, into new shards."
    assert found["reshuffle"]["options"]["properties"]["seed"] == {
        "type": "integer", "minimum": 0, "maximum": 2**63 - 1, "default": 0, "examples": [42],
        "description": "Determines the order, together with the input.",
    }  # fmt: skip
    assert [(each["name"], each["on"]) for each in found["map"]["settings"]] == [
        ("jobs_user_functions", False), ("jobs_user_commands", False),
    ]  # fmt: skip
    error_of(http.get("/v1/operations?name=keys"), 400, "bad_request")
    error_of(http.post("/v1/operations"), 405, "method_not_allowed")


def test_the_spec_of_a_job(http, nodes, job, error_of):
    job_id, spec = job
    for url in (nodes.proxy, nodes.map.targets()[0].url):
        answer = http.get(f"{url}/v1/jobs/{job_id}/spec")
        assert answer.status_code == 200
        assert answer.json() == spec
    error_of(http.get("/v1/jobs/0000/spec"), 404, "job_not_found")


def test_by_the_client_and_the_command(nodes, job):
    job_id, spec = job
    with Client(nodes.proxy) as client:
        found = {each.name: each for each in client.operations()}
        assert found["merge"].takes_many
        assert found["join"].options["required"] == ["with"]
        assert client.jobs.spec(job_id) == spec
        with pytest.raises(JobNotFound):
            client.jobs.spec("00")

    async def ask():
        async with AsyncClient(nodes.proxy) as client:
            return [each.name for each in await client.operations()], await client.jobs.spec(job_id)

    assert asyncio.run(ask()) == ([*OPERATIONS], spec)

    def run(*arguments, status=0):
        command = [sys.executable, "-m", "dfc", "job", *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, env={"DFC_URL": nodes.proxy}, check=False)
        assert ran.returncode == status, ran.stderr
        return ran.stdout

    assert json.loads(run("spec", job_id)) == spec
    assert [line.split()[0] for line in run("operations").splitlines()] == [*OPERATIONS]
    assert [json.loads(line)["name"] for line in run("operations", "--json").splitlines()] == [*OPERATIONS]
    shown = run("operations", "map")
    assert "For a command it needs the setting jobs_user_commands, which is off." in shown
    assert "timeout  (number; default 60.0)\n    Timeout of user code for one sample, in seconds.\n    Example: 10.0" in shown
    assert run("operations", "no-such", status=2) == ""
