"""The summary that is kept of a job after its end: at most JOB_SUMMARY_BYTES_MAX, as msgpack after a checksum. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from dfc.checksum import checksum_of
from dfc.jobs.recording.recorder import HISTORY_COLUMNS, LogLine, Recorder, Span, StageSeen, TaskSeen, WorkerSeen, steady_clock
from dfc.jobs.recording.steps import TimeSteps
from dfc.jobs.records import StageTotals
from dfc.limits import (
    JOB_BUSY_STEPS_MAX,
    JOB_HISTORY_POINTS_MAX,
    JOB_SPANS_MAX,
    JOB_SUMMARY_BYTES_MAX,
    JOB_TASKS_SLOWEST_MAX,
    JOB_WORKERS_SHOWN_MAX,
)

FORMAT: Final = 1
CHECKSUM_CHARS: Final = 32
LIST_HEAD_BYTES: Final = 5  # of the longest array in msgpack, before its items


class KeptSteps(msgspec.Struct, frozen=True, array_like=True):
    step_s: float
    columns: list[list[int]]

    @classmethod
    def of(cls, steps: TimeSteps) -> KeptSteps:
        return cls(steps.step_s, [column.copy() for column in steps.columns])


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a Recorder. `is_closed`: nothing happened after it, until its job went on."""

    format: int = FORMAT
    begun_us: int
    is_complete: bool
    is_closed: bool
    stages: list[StageSeen]
    totals: dict[int, StageTotals]
    slowest: list[TaskSeen]
    history: KeptSteps
    workers: list[WorkerSeen]
    busy: KeptSteps
    spans: list[Span] | None
    lines: list[LogLine]


class SummaryDamaged(Exception):
    """A summary that cannot be read."""


def summary_of(recorder: Recorder) -> JobSummary:
    """Copy what is kept, so that it can be encoded in a thread while the job goes on."""
    return JobSummary(
        begun_us=recorder.begun_us,
        is_complete=recorder.is_complete,
        is_closed=recorder.is_closed,
        stages=[msgspec.structs.replace(stage) for stage in recorder.stages],
        totals=dict(recorder.totals),
        slowest=recorder.slowest_first,
        history=KeptSteps.of(recorder.history),
        workers=[msgspec.structs.replace(worker) for worker in recorder.workers],
        busy=KeptSteps.of(recorder.busy),
        spans=None if recorder.spans is None else recorder.spans.copy(),
        lines=list(recorder.lines),
    )


def encode_summary(summary: JobSummary, bytes_max: int = JOB_SUMMARY_BYTES_MAX) -> bytes:
    """Encode a summary in at most so many bytes, without the oldest lines of the log where they do not fit; if the rest is too
    long, without that of the tasks."""
    encode = msgspec.msgpack.Encoder().encode
    room = bytes_max - CHECKSUM_CHARS - LIST_HEAD_BYTES - len(encode(msgspec.structs.replace(summary, lines=[])))
    if room < 0:
        summary = msgspec.structs.replace(summary, slowest=[], workers=[], busy=KeptSteps(1.0, []), spans=None)
        room = bytes_max - CHECKSUM_CHARS - LIST_HEAD_BYTES - len(encode(msgspec.structs.replace(summary, lines=[])))
    first = len(summary.lines)
    for line in reversed(summary.lines):
        room -= len(encode(line))
        if room < 0:
            break
        first -= 1
    data = encode(msgspec.structs.replace(summary, lines=summary.lines[first:]))
    return checksum_of(data).encode() + data


def decode_summary(data: bytes) -> JobSummary:
    """SummaryDamaged for anything that is not a summary of this format."""
    head, body = data[:CHECKSUM_CHARS], data[CHECKSUM_CHARS:]
    if checksum_of(body).encode() != head:
        raise SummaryDamaged("its checksum is wrong")
    try:
        summary = msgspec.msgpack.decode(body, type=JobSummary)
    except msgspec.MsgspecError as error:
        raise SummaryDamaged(str(error)) from None
    if summary.format != FORMAT:
        raise SummaryDamaged(f"it has format {summary.format}, not {FORMAT}")
    if len(summary.history.columns) != HISTORY_COLUMNS:
        raise SummaryDamaged(f"its history has {len(summary.history.columns)} columns")
    return summary


def recorder_of(summary: JobSummary) -> Recorder:
    """Make a recorder that goes on where the summary ends. Its clock is never before the last line of the log."""
    recorder = Recorder(steady_clock(summary.lines[-1].at_us if summary.lines else 0))
    recorder.begun_us, recorder.is_complete, recorder.is_closed = summary.begun_us, summary.is_complete, summary.is_closed
    recorder.stages, recorder.totals = summary.stages, summary.totals
    for number, seen in enumerate(summary.slowest[:JOB_TASKS_SLOWEST_MAX]):
        recorder.slowest.append((seen.seconds, -number, seen))
    recorder.slowest.sort(key=lambda entry: entry[:2])  # a sorted list is a heap
    recorder.recent.extend(summary.slowest)
    recorder.history = TimeSteps.of(JOB_HISTORY_POINTS_MAX, summary.history.step_s, summary.history.columns)
    workers = summary.workers[: min(JOB_WORKERS_SHOWN_MAX, len(summary.busy.columns))]
    recorder.workers = workers
    recorder.busy = TimeSteps.of(JOB_BUSY_STEPS_MAX, summary.busy.step_s, summary.busy.columns[: len(workers)])
    recorder.spans = None if summary.spans is None else summary.spans[: JOB_SPANS_MAX + 1]
    recorder.lines.extend(summary.lines)
    recorder.restore()
    return recorder
