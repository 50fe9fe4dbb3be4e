"""What the page of a job draws of what is known of it."""

from __future__ import annotations

import pytest

from dfc.jobs.recording import Recorder, history_view
from dfc.jobs.tasks import TaskResult, TaskRun
from dfc.limits import JOB_SPANS_MAX
from dfc.ui.pages.jobs import elapsed_s, rate_of, rates_plot, worker_rows
from dfc.wire.jobs import Job, JobHistory, JobProgress


def history_of(tasks: int, seconds: float = 1.0) -> JobHistory:
    """Of a job whose tasks ran one after the other on two workers."""
    now = [1_700_000_000_000_000]
    recorder = Recorder(lambda: now[0])
    recorder.begin(now[0])
    recorder.plan([("gather", tasks)])
    for number in range(tasks):
        seen = recorder.give(0, number, "label", None)
        recorder.attempt(seen)
        now[0] += int(1e6 * seconds)
        recorder.finish(seen, TaskResult(bytes_in=1000, bytes_out=500, run=TaskRun(f"t/{number % 2}", seconds)))
    return history_view(recorder)


def job(started: str | None, finished: str | None, size: int = 5000) -> Job:
    progress = JobProgress(bytes_in=size)
    return Job(id="1", operation="map", state="running", started=started, finished=finished, progress=progress)


def test_the_rate_is_that_since_the_start():
    begun, ended = "2026-01-01T12:00:00.000Z", "2026-01-01T12:00:02.500Z"
    assert elapsed_s(job(begun, ended)) == 2.5
    assert rate_of(job(begun, ended)) == "2 kB/s"
    assert rate_of(job(begun, ended, 0)) == rate_of(job(None, None)) == rate_of(job(begun, begun)) == ""
    assert elapsed_s(job(begun, None)) > 0


def test_rates():
    plot = rates_plot(history_of(10), 10.0)
    assert plot is not None
    assert plot.about == "read at most 4 kB/s, written at most 2 kB/s, within 10 s"
    assert (plot.top, plot.long) == ("5 kB/s", "10 s")
    assert len(plot.read.split()) == len(plot.written.split()) == 41
    long = rates_plot(history_of(10_000), 10_000.0)
    assert long is not None
    assert len(long.read.split()) <= 120
    assert rates_plot(history_of(0), 3.0) is None


@pytest.mark.parametrize("tasks", [4, JOB_SPANS_MAX, JOB_SPANS_MAX + 2])
def test_tasks_are_drawn_one_by_one_until_there_are_many(tasks):
    rows = worker_rows(history_of(tasks), float(tasks))
    assert [(row.name, row.busy) for row in rows] == [("t/0", "50 %"), ("t/1", "50 %")]
    drawn = [row.path.count("M") for row in rows]
    assert drawn == [tasks // 2] * 2 if tasks <= JOB_SPANS_MAX else max(drawn) <= 120


def test_no_workers_are_no_rows():
    assert worker_rows(history_of(0), 1.0) == []
