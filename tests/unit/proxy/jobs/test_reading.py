"""Listings of jobs, and the specs with which they were submitted."""

from __future__ import annotations

import msgspec
from inprocess import until

from dfc.limits import JOB_SPEC_KEPT_BYTES


async def test_listings(cluster):
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


async def test_the_spec_of_a_job_is_there_after_its_end_and_a_restart(cluster):
    """As it was sent, to the byte. What is too long is dropped when the job has ended; its lineage has it."""
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
    await cluster.restart_proxy()
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
