"""A job as the journal keeps it, the digest of its outputs, and what its reports have found. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar, get_args

import msgspec
import xxhash

from dfc.jobs.tasks import OutputRecord
from dfc.limits import JOB_SPEC_SHARED_BYTES, format_size
from dfc.listing.pages import rfc3339
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


# --- The digest of a job: one checksum over all outputs, which does not depend on their compression.


def digest_in_order(outputs: Iterable[OutputRecord]) -> str:
    """Return the xxh3-128, in hex, over `name \\0 size \\0 checksum` of the outputs, which are in byte order of their names.

    Size (in decimal digits) and checksum (xxh3-128, in hex) are of the uncompressed bytes. There is no separator between
    outputs, because a checksum always has 32 characters.
    """
    total = xxhash.xxh3_128()
    for output in outputs:
        total.update(f"{output.name}\0{output.content_size}\0{output.content_checksum}".encode())
    return total.hexdigest()


# --- Read what the operations `stats` and `validate` found, from the objects that they write, or their beginnings. No I/O.
#
# Anybody who may write can store such an object: nothing in it is believed, and what it says is text.

T = TypeVar("T")
REPORTING: Final = ("stats", "validate")
REPAIRED_NAME: Final = "report.json"  # of the report beside repaired shards, below their prefix
_END: Final = b',"by_shard":['  # of the totals in a report; in a text its quotes would be escaped
_PROBLEMS: Final = b',\n "problems": {'  # as above: in a text there is no line end
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]  # a report may be forged, with numbers of thousands of digits


class FieldTotals(msgspec.Struct, frozen=True):
    """Of a field in a report. `sizes`: how many members have from so many bytes to less than twice as many."""

    members: Count
    bytes: Count
    smallest: Count
    largest: Count
    sizes: list[tuple[Count, Count]] = []


class ClassTotals(msgspec.Struct, frozen=True):
    """Of a class in a report."""

    samples: Count
    bytes: Count


class StatsReport(msgspec.Struct, frozen=True):
    """The totals in a report of the operation `stats`."""

    shards: Count
    samples: Count
    stored_bytes: Count
    extensions: dict[str, FieldTotals]
    by: str | None = None
    without_class: Count = 0
    classes: dict[str, ClassTotals] | None = None


class ReportedProblem(msgspec.Struct, frozen=True):
    """A problem in a report of the operation `validate`."""

    shard: str
    key: str | None = None
    fields: list[str] = []
    message: str = ""
    first: str | None = None


class ValidateReport(msgspec.Struct, frozen=True):
    """A report of the operation `validate`. `counts` by kind; `problems` has the first of each kind, or nothing if only the
    beginning was read."""

    shards: Count
    other_objects: Count
    samples: Count
    counts: dict[str, Count]
    problems: dict[str, list[ReportedProblem]] = {}


def report_name(operation: str, pattern: str, options: Mapping[str, Any]) -> str:
    """The name of the report of a job with this output pattern. Empty if it writes none."""
    if operation not in REPORTING:
        return ""
    return pattern + REPAIRED_NAME if operation == "validate" and options.get("repair") is True else pattern


def is_of_job(output: JobOutput, name: str, size: int, checksum: str) -> bool:
    """Whether an object is what a job with this output has written, and not what a later one has put in its
    place. If it has written several, that is not known: yes."""
    record = OutputRecord(name, size, checksum, size, checksum, 0)
    return output.shards != 1 or output.digest == digest_in_order([record])


def report_of(content: bytes) -> StatsReport | None:
    """Read the beginning of a report of `stats`. None if it is none, or its totals do not end in it."""
    head, end, _ = content.partition(_END)
    return _decoded(head + b"}", StatsReport) if end else None


def validation_of(content: bytes) -> ValidateReport | None:
    """Read a report of `validate`, or its beginning. None if it is none, or its counts do not end in it."""
    whole = _decoded(content, ValidateReport)
    if whole is not None:
        return whole
    head, end, _ = content.partition(_PROBLEMS)
    return _decoded(head + b"}", ValidateReport) if end else None


def _decoded(content: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def found_in(operation: str, content: bytes) -> str:
    """Say in a line what a report found. Empty if it cannot be read."""
    if operation == "stats":
        counted = report_of(content)
        return "" if counted is None else counted_words(counted)
    checked = validation_of(content)
    return "" if checked is None else checked_words(checked)


def checked_words(report: ValidateReport) -> str:
    """`600 problems (600 duplicate) in 2 shards with 900 samples`."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in report.counts.items() if count)
    found = f"{_many(sum(report.counts.values()), 'problem')} ({kinds})" if kinds else "no problems"
    others = f"; {_many(report.other_objects, 'object')} not named like a shard" if report.other_objects else ""
    where = f"{_many(report.shards, 'shard')} with {_many(report.samples, 'sample')}"
    return f"{found} in {where}{others}"


def counted_words(report: StatsReport) -> str:
    """`3 shards, 270 samples, 1.2 MB; 10 classes by cls`."""
    found = f"{_many(report.shards, 'shard')}, {_many(report.samples, 'sample')}, {format_size(report.stored_bytes)}"
    if report.by is None or report.classes is None:
        return found
    without = f", {_many(report.without_class, 'sample')} without" if report.without_class else ""
    classes = "1 class" if len(report.classes) == 1 else f"{len(report.classes)} classes"
    return f"{found}; {classes} by {report.by}{without}"


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
