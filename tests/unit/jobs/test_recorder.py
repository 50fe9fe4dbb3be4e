"""What is recorded of a job: bounded whatever happens, and the same after it was kept and read."""

from __future__ import annotations

import sys
from itertools import count
from typing import Any

import pytest

from dfc.errors import BadRequest
from dfc.jobs.recording import (
    LABEL_CHARS_MAX,
    Recorder,
    SummaryDamaged,
    TaskQuery,
    decode_summary,
    encode_summary,
    history_view,
    log_view,
    recorder_of,
    summary_of,
    tasks_view,
)
from dfc.jobs.records import StageTotals
from dfc.jobs.tasks import TaskResult, TaskRun
from dfc.limits import (
    JOB_HISTORY_POINTS_MAX,
    JOB_LOG_LINE_CHARS_MAX,
    JOB_LOG_LINES_MAX,
    JOB_SUMMARY_BYTES_MAX,
    JOB_TASKS_RECENT_MAX,
    JOB_TASKS_SLOWEST_MAX,
    JOB_WORKERS_SHOWN_MAX,
)
from dfc.wire.jobs import JobStage

BEGUN_US = 1_700_000_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now_us = BEGUN_US

    def __call__(self) -> int:
        return self.now_us


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recorder(clock: Clock) -> Recorder:
    made = Recorder(clock)
    made.begin(BEGUN_US)
    made.plan([("gather", 1000), ("merge", None)])
    made.begin_stage(0, 1000)
    return made


def run(recorder: Recorder, clock: Clock, number: int, seconds: float = 1.0, **more: Any) -> None:
    """One task, from its beginning to its end."""
    worker = more.pop("worker", "t-1/0")
    seen = recorder.give(more.pop("stage", 0), number, more.pop("label", f"label-{number}"), "t-1")
    recorder.attempt(seen)
    clock.now_us += int(1e6 * seconds)
    recorder.finish(seen, TaskResult(samples=10, bytes_in=100, bytes_out=50, run=TaskRun(worker, seconds)))


def weight(recorder: Recorder) -> int:
    """About how many bytes it takes."""
    some = [recorder.lines, recorder.recent, [seen for *_, seen in recorder.slowest], recorder.workers]
    size = sum(sys.getsizeof(each) for group in some for each in group)
    size += sum(sys.getsizeof(column) for column in (*recorder.history.columns, *recorder.busy.columns))
    return size + sys.getsizeof(recorder.spans) + sys.getsizeof(recorder.running)


def test_a_million_tasks_take_no_more_memory_than_ten_thousand(recorder, clock):
    totals = {0: StageTotals()}
    recorder.totals = totals
    for number in range(1_000_000):
        run(recorder, clock, number, 0.001, worker=f"t-{number % 100}/0", label="label")
        if number == 10_000:
            early = weight(recorder)
    assert weight(recorder) < 1.5 * early
    assert len(recorder.recent) == JOB_TASKS_RECENT_MAX
    assert len(recorder.slowest) == JOB_TASKS_SLOWEST_MAX
    assert len(recorder.workers) == JOB_WORKERS_SHOWN_MAX
    assert recorder.running == {}
    assert recorder.spans is None
    assert [len(column) <= JOB_HISTORY_POINTS_MAX for column in recorder.history.columns] == [True] * 4
    assert [sum(column) for column in recorder.history.columns] == [10**6, 10**7, 10**8, 5 * 10**7]
    assert len(encode_summary(summary_of(recorder))) <= JOB_SUMMARY_BYTES_MAX


def test_the_slowest_are_those_that_took_longest(recorder, clock):
    seconds = [(number * 7919) % 1009 / 100 for number in range(1009)]
    for number, each in enumerate(seconds):
        run(recorder, clock, number, each)
    wanted = sorted(seconds, reverse=True)[:JOB_TASKS_SLOWEST_MAX]
    found = tasks_view(recorder, TaskQuery(slowest=True)).tasks
    assert [task.seconds for task in found] == pytest.approx(wanted, abs=0.001)
    assert len(tasks_view(recorder, TaskQuery(slowest=True, limit=3)).tasks) == 3


def test_equal_times_are_no_trouble(recorder, clock):
    for number in range(3 * JOB_TASKS_SLOWEST_MAX):
        run(recorder, clock, number, 1.0)
    again = recorder_of(decode_summary(encode_summary(summary_of(recorder))))
    again.begin(BEGUN_US)
    for number in range(3 * JOB_TASKS_SLOWEST_MAX):
        seen = again.give(0, number, "again", None)
        again.attempt(seen)
        again.finish(seen, TaskResult())
    assert len(again.slowest) == JOB_TASKS_SLOWEST_MAX


def test_tasks_by_stage_state_and_page(recorder, clock):
    totals = {0: StageTotals(5, 50, 500, 250)}
    recorder.totals = totals
    for number in (4, 2, 0, 1, 3):
        run(recorder, clock, number)
    waiting = recorder.give(0, 5, "label-5", None)
    recorder.attempt(waiting)
    bad = recorder.give(0, 6, "label-6", "t-2")
    for message in ("no answer", "again no answer"):
        recorder.attempt(bad)
        recorder.retry(bad, "unavailable", message, 4)
    recorder.attempt(bad)
    recorder.fail(bad, "bad_archive")
    clock.now_us += 2_500_000
    found = tasks_view(recorder, TaskQuery())
    assert [task.number for task in found.tasks] == [0, 1, 2, 3, 4, 5, 6]
    assert found.stages[0] == JobStage(
        stage="gather", total=1000, waiting=993, running=1, done=5, failed=1, retries=2, samples=50, bytes_in=500, bytes_out=250
    )  # fmt: skip
    assert (found.stages[1].total, found.stages[1].waiting) == (None, None)
    assert found.complete is True
    (running,) = tasks_view(recorder, TaskQuery(state="running")).tasks
    assert (running.number, running.worker, running.node, running.seconds) == (5, None, None, 2.5)
    (failed,) = tasks_view(recorder, TaskQuery(state="failed")).tasks
    assert (failed.error, failed.tries, failed.node) == ("bad_archive", 3, "t-2")
    done = tasks_view(recorder, TaskQuery(state="done", limit=2))
    assert (done.tasks[0].worker, done.tasks[0].node) == ("t-1/0", "t-1")
    numbers, token = [], ""
    while token is not None:
        page = tasks_view(recorder, TaskQuery(state="done", limit=2, token=token))
        numbers += [task.number for task in page.tasks]
        token = page.next_token
    assert numbers == [0, 1, 2, 3, 4]
    assert tasks_view(recorder, TaskQuery(stage="merge")).tasks == ()
    for query in (TaskQuery(stage="x"), TaskQuery(state="odd"), TaskQuery(token="x"), TaskQuery(token="1.2.3")):
        with pytest.raises(BadRequest):
            tasks_view(recorder, query)


def test_a_task_that_is_taken_back_runs_no_more(recorder):
    seen = recorder.give(0, 1, "label", None)
    recorder.attempt(seen)
    recorder.withdraw(seen)
    assert tasks_view(recorder, TaskQuery()).tasks == ()


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -5.0, 1e30])
def test_a_worker_that_tells_nonsense_is_not_believed(recorder, clock, seconds):
    seen = recorder.give(0, 1, "label", None)
    recorder.attempt(seen)
    clock.now_us += 1_000_000
    recorder.finish(seen, TaskResult(run=TaskRun("w" * 1000, seconds)))
    assert 0 <= seen.seconds <= 1
    assert len(seen.worker) <= 80
    assert sum(recorder.busy.columns[0]) <= 1000
    encode_summary(summary_of(recorder))


def test_figures_over_time(recorder, clock):
    recorder.totals = {0: StageTotals(5, 50, 500, 250), 1: StageTotals(1, 10, 100, 50)}
    for number in range(3):
        run(recorder, clock, number, 1.0, worker=f"t-{number % 2}/0")
    run(recorder, clock, 0, 0.5, stage=1, worker="7")
    found = history_view(recorder)
    assert (found.begun, found.step_s) == ("2023-11-14T22:13:20.000Z", 0.25)
    assert found.tasks == (0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1)
    assert (sum(found.samples), sum(found.bytes_in), sum(found.bytes_out)) == (40, 400, 200)
    assert found.missed == {"tasks": 2, "samples": 20, "bytes_in": 200, "bytes_out": 100}
    workers = found.workers
    assert [(each.worker, each.node, each.tasks) for each in workers.busy] == [
        ("t-0/0", "t-0", 2), ("t-1/0", "t-1", 1), ("7", None, 1),
    ]  # fmt: skip
    assert [each.busy_s for each in workers.busy] == [2.0, 1.0, 0.5]
    assert sum(workers.busy[0].steps) == pytest.approx(2.0)
    assert workers.spans == ((0, 0.0, 1.0), (1, 1.0, 1.0), (0, 2.0, 1.0), (2, 3.0, 0.5))


def test_waiting_is_said_once(recorder):
    before = len(recorder.lines)
    recorder.wait_for(None)
    for _ in range(5):
        recorder.wait_for(["t-1", "t-2"])
    recorder.wait_for(None)
    recorder.wait_for(None)
    said = [line.text for line in recorder.lines][before:]
    assert said == ["waiting for what is down: t-1, t-2", "nothing is down any more"]


def test_the_log_is_bounded_and_its_text_has_an_encoding(recorder):
    for number in range(3 * JOB_LOG_LINES_MAX):
        recorder.say("warning", f"{number} " + "\ud800\u202e\x1b<b>" * 1000)
    lines = log_view(recorder).lines
    assert len(lines) == JOB_LOG_LINES_MAX
    assert {len(line.message) for line in lines} == {JOB_LOG_LINE_CHARS_MAX}
    assert lines[-1].message.startswith(f"{3 * JOB_LOG_LINES_MAX - 1} ?\u202e\x1b<b>")
    seen = recorder.give(0, 1, "\ud800" * 10_000, None)
    assert seen.label == "?" * LABEL_CHARS_MAX


def filled(clock: Clock) -> Recorder:
    """With the longest of everything."""
    made, numbers = Recorder(clock), count()
    made.begin(BEGUN_US)
    made.plan([(f"stage-{number}", 10**7) for number in range(8)])
    for number in range(2000):
        run(made, clock, 10**7 + next(numbers), 10.0, worker=f"{'ü' * 70}-{number}", label="\U0001f642" * 1000)
    for _ in range(JOB_LOG_LINES_MAX):
        made.say("error", "\U0001f642" * 5000, "code" * 100)
    made.totals = {0: StageTotals(2**62, 2**62, 2**62, 2**62)}
    return made


def test_a_summary_is_bounded_and_the_newest_lines_are_in_it(clock):
    made = filled(clock)
    made.say("info", "the last")
    data = encode_summary(summary_of(made))
    assert len(data) <= JOB_SUMMARY_BYTES_MAX
    again = decode_summary(data)
    assert again.lines[-1].text == "the last"
    assert 0 < len(again.lines) < JOB_LOG_LINES_MAX
    assert len(again.slowest) == JOB_TASKS_SLOWEST_MAX
    small = encode_summary(summary_of(made), 20_000)
    assert len(small) <= 20_000
    assert decode_summary(small).lines[-1].text == "the last"
    assert decode_summary(small).slowest == []


def test_a_job_that_goes_on_does_so_where_its_summary_ends(recorder, clock):
    recorder.totals = {0: StageTotals(3, 30, 300, 150)}
    for number in range(3):
        run(recorder, clock, number, 1.0 + number)
    again = recorder_of(decode_summary(encode_summary(summary_of(recorder))))
    assert history_view(again) == history_view(recorder)
    assert log_view(again) == log_view(recorder)
    assert tasks_view(again, TaskQuery()) == tasks_view(recorder, TaskQuery())
    again.begin(None)
    again.plan([("gather", 1000), ("merge", None)])
    seen = again.give(0, 3, "next", None)
    again.attempt(seen)
    again.finish(seen, TaskResult(samples=1, run=TaskRun("t-1/0", 0.0)))
    assert sum(again.history.columns[0]) == 4
    assert again.workers[0].tasks == 4
    assert again.lines[-1].at_us >= recorder.lines[-1].at_us


def test_a_damaged_summary_is_none(recorder, clock):
    for number in range(3):
        run(recorder, clock, number)
    data = encode_summary(summary_of(recorder))
    damaged = [data[:size] for size in (0, 1, 31, 32, 40, len(data) - 1)]
    damaged += [data[:place] + bytes((data[place] ^ 1,)) + data[place + 1 :] for place in range(0, len(data), 7)]
    damaged.append(data + b"x")
    for each in damaged:
        with pytest.raises(SummaryDamaged):
            decode_summary(each)
