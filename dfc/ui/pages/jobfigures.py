"""What the page of a job draws, from what is known of it: rates over time, and when which worker was busy. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from dfc.ui import words
from dfc.ui.plots import boxes, polyline, rounded_top, steps_joined
from dfc.units import format_size
from dfc.wire.jobs import Job, JobHistory

WIDTH: Final = 600
HEIGHT: Final = 140
ROW: Final = 16  # the height of a worker's row
POINTS_MAX: Final = 120  # of a line


class RatesPlot(NamedTuple):
    """Bytes read and written a second over the time of a job."""

    read: str
    written: str
    top: str
    long: str
    about: str


class WorkerRow(NamedTuple):
    """When a worker was busy."""

    name: str
    tasks: str
    busy: str
    path: str


def elapsed_s(job: Job) -> float:
    """For how many seconds a job has run."""
    if not job.started:
        return 0.0
    end = datetime.fromisoformat(job.finished) if job.finished else datetime.now(UTC)
    return max(0.0, (end - datetime.fromisoformat(job.started)).total_seconds())


def rate_of(job: Job) -> str:
    """How much a job reads a second, since its start; empty while that is not known."""
    long_s, size = elapsed_s(job), job.progress.bytes_in
    return f"{format_size(size / long_s)}/s" if long_s > 0 and size else ""


def rates_plot(history: JobHistory, long_s: float) -> RatesPlot | None:
    """Draw the rates; None if there are none."""
    step_s = history.step_s
    lines = []
    for column in (history.bytes_in, history.bytes_out):
        sums, each = steps_joined(column, POINTS_MAX)
        lines.append([(step_s * each * (at + 0.5), size / (step_s * each)) for at, size in enumerate(sums)])
    most = [max((rate for _, rate in line), default=0.0) for line in lines]
    right = max(long_s, step_s * len(history.tasks))
    if not any(most):
        return None
    top = rounded_top(max(most))
    read, written = (polyline(line, WIDTH, HEIGHT, right, top) for line in lines)
    about = f"read at most {format_size(most[0])}/s, written at most {format_size(most[1])}/s, within {words.seconds(right)}"
    return RatesPlot(read, written, f"{format_size(top)}/s", words.seconds(right), about)


def worker_rows(history: JobHistory, long_s: float) -> list[WorkerRow]:
    """Draw the tasks of each worker, one by one if they are few, else how busy it was in each step."""
    workers = history.workers
    step_s = workers.step_s
    ends = [step_s * len(each.steps) for each in workers.busy]
    right = max([long_s, *ends])
    spans: list[list[tuple[float, float, float]]] | None = None
    if workers.spans is not None:
        spans = [[] for _ in workers.busy]
        for number, begin, length in workers.spans:
            spans[number].append((begin, length, 1.0))
    rows = []
    for number, each in enumerate(workers.busy):
        drawn: Sequence[tuple[float, float, float]] = (
            spans[number] if spans is not None else [(step_s * at, step_s, busy / step_s) for at, busy in enumerate(each.steps)]
        )
        path = boxes(drawn, WIDTH, ROW, right, 0.0 if spans is None else 0.6)
        rows.append(WorkerRow(each.worker, words.count(each.tasks), words.percent(each.busy_s, long_s or right), path))
    return sorted(rows)
