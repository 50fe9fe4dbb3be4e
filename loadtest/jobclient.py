"""Run a job for a benchmark: POST it, poll it, and raise the error of the job if it fails."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from loadtest.connection import Connection, HttpFailure
from loadtest.scenarios import expect

POLL_S = 0.02
TIMEOUT_S = 900.0
ENDED = frozenset(("succeeded", "failed", "cancelled"))


def run_job(connection: Connection, spec: Mapping[str, Any], *, timeout_s: float = TIMEOUT_S) -> tuple[dict[str, Any], float]:
    """Run a job until it succeeds. Returns the job and the seconds since its submission. HttpFailure if it fails."""
    begin = time.monotonic()
    body = msgspec.json.encode(spec)
    answer = expect(connection.request("POST", "/v1/jobs", body=body, headers={"Content-Type": "application/json"}), 202)
    path = answer.headers["location"]
    while True:
        job: Any = expect(connection.request("GET", path), 200).json()
        seconds = time.monotonic() - begin
        if job["state"] in ENDED:
            break
        if seconds > timeout_s:
            raise HttpFailure("job_timeout", f"{path} is {job['state']} after {seconds:.0f} s: {job['progress']}")
        time.sleep(POLL_S)
    if job["state"] != "succeeded":
        raise HttpFailure(f"job_{job['state']}", str(job["error"]))
    return job, seconds
