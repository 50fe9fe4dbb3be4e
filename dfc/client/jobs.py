"""Submit, follow and cancel jobs. `Client.jobs` blocks, `AsyncClient.jobs` is for asyncio.

job = client.jobs.submit(job_spec("reshuffle", "imagenet/train-*.tar", "shuffled/train-%06d.tar", seed=42))
print(client.jobs.wait(job.id).output.digest)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dfc.client.control import Control, decode
from dfc.errors import BadRequest, DfcError, Unavailable, Unreachable
from dfc.names import DEFAULT_BUCKET
from dfc.wire.jobs import Job, JobHistory, JobLog, JobPage, JobState, JobTasks

RECONNECT_S: Final = 1.0
PAGE: Final = 100


class JobFailed(DfcError):
    """The job failed or was cancelled; `job` has the details."""

    code = "job_failed"

    def __init__(self, job: Job) -> None:
        reason = f": {job.error.message}" if job.error else ""
        super().__init__(f"the job {job.id} {'failed' if job.error else 'was cancelled'}{reason}")
        self.job = job


def job_spec(
    operation: str,
    source: str | Sequence[str],
    destination: str,
    *,
    overwrite: bool = False,
    label: str = "",
    **options: Any,
) -> dict[str, Any]:
    """Build the body of `POST /v1/jobs` from `BUCKET/SHARDS` (for `merge`, a list of them) and `BUCKET/PATTERN`."""
    sources = [_source(source)] if isinstance(source, str) else [_source(each) for each in source]
    bucket, name = split_address(destination)
    spec: dict[str, Any] = {
        "operation": operation,
        "input": sources[0] if isinstance(source, str) else sources,
        "output": {"bucket": bucket, "pattern": name},
        "options": options,
    }
    if overwrite:
        spec["overwrite"] = True
    if label:
        spec["label"] = label
    return spec


def _source(address: str) -> dict[str, Any]:
    bucket, shards = split_address(address)
    return {"bucket": bucket, "shards": shards or "**"}


def split_address(address: str) -> tuple[str, str]:
    """Split `BUCKET/NAME` into bucket and name; a name without a slash is in the bucket `default`."""
    bucket, slash, rest = address.partition("/")
    return (bucket, rest) if slash else (DEFAULT_BUCKET, address)


class Jobs:
    """The jobs of one cluster. Errors are classes of `dfc.errors`: BadRequest, NoShards, OutputExists, JobNotFound, …"""

    def __init__(self, control: Control) -> None:
        self._control = control

    def submit(self, spec: Mapping[str, Any]) -> Job:
        """Submit a job. There is no retry if the answer is lost: look for the job with `list` then."""
        return decode(self._control.call("POST", "/v1/jobs", body=dict(spec), patient=False), Job)

    def plan(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a job would do: stages, tasks, inputs and outputs. Nothing is stored."""
        return decode(self._control.call("POST", "/v1/jobs", body={**spec, "dry_run": True}), dict[str, Any])

    def get(self, job_id: str) -> Job:
        """Return a job. JobNotFound."""
        return decode(self._control.call("GET", f"/v1/jobs/{_checked(job_id)}"), Job)

    def spec(self, job_id: str) -> dict[str, Any]:
        """Return the spec with which a job was submitted. JobNotFound; JobSpecGone if it was too long to be kept."""
        return decode(self._control.call("GET", f"/v1/jobs/{_checked(job_id)}/spec"), dict[str, Any])

    def list(self, *, states: Sequence[JobState] = (), page: int = PAGE) -> Iterator[Job]:
        """Yield jobs, newest first, in requests of `page` jobs."""
        params: dict[str, str | int] = {"limit": page}
        if states:
            params["state"] = ",".join(states)
        while True:
            found = decode(self._control.call("GET", "/v1/jobs", params=params), JobPage)
            yield from found.jobs
            if found.next_token is None:
                return
            params["token"] = found.next_token

    def cancel(self, job_id: str) -> Job:
        """Cancel a job and discard its outputs. JobFinished once it publishes them."""
        return decode(self._control.call("DELETE", f"/v1/jobs/{_checked(job_id)}"), Job)

    def events(self, job_id: str, *, patient: bool = True) -> Iterator[Job]:
        """Yield the job now and on each change until it ends. If `patient`, a broken connection is reopened."""
        path = f"/v1/jobs/{_checked(job_id)}/events"
        while True:
            try:
                for line in self._control.lines(path):
                    if line.startswith("data: "):
                        job = decode(line[6:].encode(), Job)
                        yield job
                        if job.has_ended:
                            return
            except (Unreachable, Unavailable):
                if not patient:
                    raise
            self._control.pause(RECONNECT_S)
            job = self.get(job_id)  # raises if no node answers for long
            if job.has_ended:
                yield job
                return

    def tasks(
        self,
        job_id: str,
        *,
        stage: str = "",
        state: str = "",
        slowest: bool = False,
        limit: int = PAGE,
        token: str | None = None,
    ) -> JobTasks:
        """Return the stages of a job, and tasks that are known, by stage and number: those that run, the last that have ended,
        and the slowest, which come first and without pages if `slowest`. Pass on `next_token` for more. JobNotFound."""
        params: dict[str, str | int] = {"limit": limit, "slowest": int(slowest)}
        params |= {name: value for name, value in (("stage", stage), ("state", state), ("token", token)) if value}
        return decode(self._control.call("GET", f"/v1/jobs/{_checked(job_id)}/tasks", params=params), JobTasks)

    def history(self, job_id: str) -> JobHistory:
        """Return the figures of a job over time. JobNotFound."""
        return decode(self._control.call("GET", f"/v1/jobs/{_checked(job_id)}/history"), JobHistory)

    def log(self, job_id: str) -> JobLog:
        """Return the last lines of a job's log. JobNotFound."""
        return decode(self._control.call("GET", f"/v1/jobs/{_checked(job_id)}/log"), JobLog)

    def wait(self, job_id: str, *, timeout_s: float | None = None, check: bool = True) -> Job:
        """Wait until the job ends, and return it. If `check`, JobFailed unless it succeeded. TimeoutError leaves it running."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s = 0.05
        while not (job := self.get(job_id)).has_ended:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"the job {job_id} is still running after {timeout_s} s")
            self._control.pause(pause_s)
            pause_s = min(1.0, pause_s * 1.5)
        if check and job.state != "succeeded":
            raise JobFailed(job)
        return job


def _checked(job_id: str) -> str:
    if not job_id.isalnum() or not job_id.isascii():
        raise BadRequest(f"invalid job id: {job_id[:80]!r}")
    return job_id
