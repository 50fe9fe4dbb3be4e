"""The journal's record of a job, as values: state, progress, result. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, get_args

import msgspec

from dfc.limits import JOB_SPEC_SHARED_BYTES
from dfc.pages import rfc3339
from dfc.wire.jobs import Job, JobError, JobOutput, JobProgress, JobState, TaskCount

_WARNINGS_BYTES: Final = 32_768  # of a JobEntry; together with the rest it is smaller than what a registry takes
_ERROR_CHARS: Final = 2000
STATES: Final[tuple[JobState, ...]] = get_args(JobState)


class OutputSummary(JobOutput, frozen=True, omit_defaults=True):
    """The output of a job; for its publication, the oldest of its versions, which is another one each time."""

    oldest_version: str = ""

    def shown(self) -> JobOutput:
        """What follows from the job."""
        return JobOutput(self.shards, self.samples, self.digest)


class RecordedProgress(msgspec.Struct, frozen=True):
    """The progress of a job. `total` counts the tasks of all stages known so far; None if none is known."""

    done: int = 0
    total: int | None = None
    samples: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class StageTotals(msgspec.Struct, frozen=True):
    """The totals of the finished tasks of one stage."""

    tasks: int = 0
    samples: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job when it is accepted. `spec` is the client's JSON. `memory_bytes` and `program`, the version of DFC, are kept
    because the plan depends on them."""

    id: str
    operation: str
    spec: bytes
    label: str
    bucket: str
    bucket_id: str
    memory_bytes: int
    program: str
    warnings: tuple[str, ...] = ()


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A job in the journal, without its spec, which may be long. Times are in µs since 1970. `discard`: its staged objects
    may still be on targets."""

    id: str
    operation: str
    state: JobState
    label: str
    bucket: str
    bucket_id: str
    memory_bytes: int
    program: str
    created_us: int
    started_us: int | None = None
    finished_us: int | None = None
    error: JobError | None = None
    warnings: tuple[str, ...] = ()
    output: OutputSummary | None = None
    progress: RecordedProgress = RecordedProgress()
    discard: bool = False


class JobEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A job in the registry: its record as it was accepted, or with `is_over` as it ended, and its output pattern. `segments`:
    when it is over, so many may be left of its log. `spec`: as it was sent, unless it is long."""

    record: JobRecord
    pattern: str
    is_over: bool = False
    segments: int = 0
    spec: bytes = b""


def short_spec(spec: bytes) -> bytes:
    """The spec as it goes into a JobEntry: empty if it is long."""
    return spec if len(spec) <= JOB_SPEC_SHARED_BYTES else b""


def short(record: JobRecord) -> JobRecord:
    """The record with as many of its warnings, and as much of its error, as go into a JobEntry."""
    error = record.error
    if error is not None:
        error = msgspec.structs.replace(error, message=error.message[:_ERROR_CHARS])
    kept, size = list[str](), 0
    for text in record.warnings:
        size += len(msgspec.json.encode(text)) + 1
        if size > _WARNINGS_BYTES:
            break
        kept.append(text)
    return msgspec.structs.replace(record, warnings=tuple(kept), error=error)


def job_view(job: JobRecord, progress: RecordedProgress | None = None, eta_s: float | None = None) -> Job:
    """A job as clients are told of it. While it runs, `progress` is newer than the journal's."""
    now = job.progress if progress is None else progress
    return Job(
        id=job.id,
        operation=job.operation,
        state=job.state,
        label=job.label,
        bucket=job.bucket,
        created=rfc3339(job.created_us),
        started=None if job.started_us is None else rfc3339(job.started_us),
        finished=None if job.finished_us is None else rfc3339(job.finished_us),
        progress=JobProgress(
            tasks=TaskCount(done=now.done, total=now.total),
            samples=now.samples,
            bytes_in=now.bytes_in,
            bytes_out=now.bytes_out,
            eta_s=None if eta_s is None else round(eta_s, 1),
        ),
        warnings=job.warnings,
        error=job.error,
        output=None if job.output is None or job.state != "succeeded" else job.output.shown(),
    )


def total_progress(stages: Mapping[int, StageTotals], total: int | None) -> RecordedProgress:
    """Add up the stages. A sample that passes through two stages counts once, but its bytes are read twice."""
    each: Sequence[StageTotals] = list(stages.values())
    return RecordedProgress(
        done=sum(stage.tasks for stage in each),
        total=total,
        samples=max((stage.samples for stage in each), default=0),
        bytes_in=sum(stage.bytes_in for stage in each),
        bytes_out=sum(stage.bytes_out for stage in each),
    )
