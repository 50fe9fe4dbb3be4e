"""Jobs as nodes tell of them (docs/http.md) and clients read them: how they are, their tasks, figures over time, and logs."""

from __future__ import annotations

from typing import Literal

import msgspec

JobState = Literal["queued", "running", "publishing", "succeeded", "failed", "cancelled"]


class TaskCount(msgspec.Struct, frozen=True, kw_only=True):
    """Number of tasks done and in total. `total` is None while the tasks of a later stage are not known yet."""

    done: int = 0
    total: int | None = None


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a job; `eta_s` is the estimated time until its last task ends, at the pace so far."""

    tasks: TaskCount = TaskCount()
    samples: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    eta_s: float | None = None


class JobError(msgspec.Struct, frozen=True):
    """Why a job failed, as code and message like all errors."""

    code: str
    message: str


class JobOutput(msgspec.Struct, frozen=True):
    """The output of a job. `digest` is equal for equal outputs (docs/jobs.md)."""

    shards: int
    samples: int
    digest: str


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job with its state and progress; `bucket` is where its output goes. Times are RFC 3339 UTC."""

    id: str
    operation: str
    state: JobState
    label: str = ""
    bucket: str = ""
    created: str = ""
    started: str | None = None
    finished: str | None = None
    progress: JobProgress = JobProgress()
    warnings: tuple[str, ...] = ()
    error: JobError | None = None
    output: JobOutput | None = None

    @property
    def has_ended(self) -> bool:
        return self.finished is not None


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of jobs, newest first; `next_token` is None on the last page."""

    jobs: tuple[Job, ...] = ()
    next_token: str | None = None


class JobStage(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of a job, with the numbers of its tasks by state. `total` and `waiting` are None until they are known."""

    stage: str
    total: int | None = None
    waiting: int | None = None
    running: int = 0
    done: int = 0
    failed: int = 0
    retries: int = 0
    samples: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class JobTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task. `state` is "running", "done" or "failed". `node` is the target beside which it ran or is to run, `worker` where
    it ran, None if that is not known. `started` is RFC 3339 UTC."""

    stage: str
    number: int
    label: str
    state: str
    node: str | None = None
    worker: str | None = None
    tries: int = 0
    started: str = ""
    seconds: float = 0.0
    samples: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    error: str | None = None


class JobTasks(msgspec.Struct, frozen=True, kw_only=True):
    """The stages of a job, and a page of the tasks that are known; `complete`: nothing of it was lost with a proxy."""

    complete: bool
    stages: tuple[JobStage, ...] = ()
    tasks: tuple[JobTask, ...] = ()
    next_token: str | None = None


class WorkerBusy(msgspec.Struct, frozen=True, kw_only=True):
    """A worker; `steps` says for how many seconds of each step it was busy."""

    worker: str
    node: str | None = None
    tasks: int = 0
    busy_s: float = 0.0
    steps: tuple[float, ...] = ()


class JobWorkers(msgspec.Struct, frozen=True, kw_only=True):
    """Who was busy when, in steps of `step_s`. `spans` are (number of the worker in `busy`, begin, length), in seconds from the
    beginning of the job, of each task; None if there were too many."""

    step_s: float
    busy: tuple[WorkerBusy, ...] = ()
    spans: tuple[tuple[int, float, float], ...] | None = None


class JobHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a job over time: sums of what ended in each step of `step_s` seconds from `begun` on. `missed` is what the
    steps do not have, since it was lost with a proxy."""

    complete: bool
    begun: str | None
    step_s: float
    tasks: tuple[int, ...] = ()
    samples: tuple[int, ...] = ()
    bytes_in: tuple[int, ...] = ()
    bytes_out: tuple[int, ...] = ()
    missed: dict[str, int] = {}
    workers: JobWorkers


class JobLogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a job's log; `level` is "info", "warning" or "error", `code` that of an error. `time` is RFC 3339 UTC."""

    time: str
    level: str
    code: str | None = None
    message: str = ""


class JobLog(msgspec.Struct, frozen=True, kw_only=True):
    """The last lines of a job's log, the oldest first."""

    complete: bool
    lines: tuple[JobLogLine, ...] = ()
