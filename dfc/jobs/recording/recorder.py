"""Records what a job does while it runs, in constant time and memory a task. Not thread-safe; knows no files."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

import msgspec

from dfc.jobs.recording.steps import TimeSteps
from dfc.jobs.records import StageTotals
from dfc.jobs.tasks import TaskResult, TaskRun
from dfc.limits import (
    JOB_BUSY_STEPS_MAX,
    JOB_HISTORY_POINTS_MAX,
    JOB_LOG_LINE_CHARS_MAX,
    JOB_LOG_LINES_MAX,
    JOB_SPANS_MAX,
    JOB_TASKS_RECENT_MAX,
    JOB_TASKS_SLOWEST_MAX,
    JOB_WORKERS_SHOWN_MAX,
)

Level = Literal["info", "warning", "error"]
SeenState = Literal["running", "done", "failed"]
LABEL_CHARS_MAX: Final = 256
NAME_CHARS_MAX: Final = 80
HISTORY_COLUMNS: Final = 4  # tasks, samples, bytes read, bytes written


class TaskSeen(msgspec.Struct):
    """A task, as the proxy sees it. `worker` (empty: not known) is where it ran, else `near` may name the target beside which
    it is to run. `started_us`: when it was given to the engine, where it may wait, and once it has ended, when it began to run;
    `seconds`: for how long it ran."""

    stage: int
    number: int
    label: str
    near: str = ""
    worker: str = ""
    state: SeenState = "running"
    tries: int = 0
    started_us: int = 0
    seconds: float = 0.0
    samples: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    error: str = ""


class LogLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One line of the log of a job; `code` is that of an error, or empty."""

    at_us: int
    level: Level
    code: str
    text: str


class StageSeen(msgspec.Struct):
    """A stage; `tasks` is the number of its tasks, if that is known."""

    name: str
    tasks: int | None = None
    retries: int = 0
    failed: int = 0


class WorkerSeen(msgspec.Struct):
    """A worker that ran tasks; the name of a worker beside a target begins with that: `ID/NUMBER`."""

    name: str
    tasks: int = 0
    busy_ms: int = 0


Span = tuple[int, int, int]
"""When a task ran: the number of its worker, and milliseconds: from the beginning of the job to its own, and how long."""


def steady_clock(after_us: int = 0) -> Callable[[], int]:
    """Return a clock in µs since 1970 that never goes back, and begins after `after_us`."""
    ahead_us = max(time.time_ns() // 1000, after_us) - time.monotonic_ns() // 1000
    return lambda: ahead_us + time.monotonic_ns() // 1000


class Recorder:
    """What is recorded of a job. `totals` are those of its stages by number, which its runner counts; `is_complete`: nothing
    that happened before is missing; `is_closed`: nothing more will happen before it is saved for the last time."""

    def __init__(self, now_us: Callable[[], int] | None = None) -> None:
        self.now_us = now_us or steady_clock()
        self.begun_us = 0
        self.is_complete = True
        self.is_closed = False
        self.stages: list[StageSeen] = []
        self.totals: Mapping[int, StageTotals] = {}
        self.running: dict[tuple[int, int], TaskSeen] = {}
        self.recent: deque[TaskSeen] = deque(maxlen=JOB_TASKS_RECENT_MAX)
        self.slowest: list[tuple[float, int, TaskSeen]] = []  # a heap
        self.lines: deque[LogLine] = deque(maxlen=JOB_LOG_LINES_MAX)
        self.history = TimeSteps(JOB_HISTORY_POINTS_MAX, HISTORY_COLUMNS)
        self.workers: list[WorkerSeen] = []
        self.busy = TimeSteps(JOB_BUSY_STEPS_MAX, 0)  # a column of ms for each worker
        self.spans: list[Span] | None = []  # None: there were too many
        self.is_changed = False
        self._numbers: dict[str, int] = {}  # of workers, by name
        self._ended = 0
        self._waits = False

    # --- the log

    def say(self, level: Level, text: str, code: str = "") -> None:
        """Add a line to the log."""
        self.lines.append(LogLine(self.now_us(), level, _short(code, NAME_CHARS_MAX), _short(text, JOB_LOG_LINE_CHARS_MAX)))
        self.is_changed = True

    def wait_for(self, targets: Iterable[str] | None) -> None:
        """The job waits for these targets; None: they are there. Said once."""
        if targets is not None and not self._waits:
            names = ", ".join(targets)
            self.say("warning", f"waiting for what is down: {names}" if names else "waiting for the cluster")
        elif targets is None and self._waits:
            self.say("info", "nothing is down any more")
        self._waits = targets is not None

    # --- stages and tasks

    def begin(self, started_us: int | None) -> None:
        """The job begins to run, or goes on."""
        self.begun_us = self.begun_us or started_us or self.now_us()
        self.is_changed = True

    def plan(self, stages: Iterable[tuple[str, int | None]]) -> None:
        """These are the stages, with the numbers of their tasks as far as they are known."""
        before = self.stages
        self.stages = [StageSeen(_short(name, NAME_CHARS_MAX), count) for name, count in stages]
        for was, now in zip(before, self.stages, strict=False):
            now.retries, now.failed = was.retries, was.failed

    def begin_stage(self, number: int, tasks: int | None) -> None:
        """The tasks of a stage are run from now on."""
        stage = self.stages[number]
        stage.tasks = tasks
        before = self.totals.get(number, StageTotals()).tasks
        of = "tasks" if tasks is None else "1 task" if tasks == 1 else f"{tasks} tasks"
        self.say("info", f"stage {stage.name} begins: {of}" + (f", of which {before} are done" if before else ""))

    def end_stage(self, number: int, tasks: int | None) -> None:
        """All tasks of a stage have ended well."""
        self.stages[number].tasks = tasks
        self.say("info", f"stage {self.stages[number].name} has ended")

    def give(self, stage: int, number: int, label: str, near: str | None) -> TaskSeen:
        """A task is given to the engine for the first time."""
        seen = TaskSeen(stage, number, _short(label, LABEL_CHARS_MAX), _short(near or "", NAME_CHARS_MAX))
        self.running[stage, number] = seen
        return seen

    def attempt(self, seen: TaskSeen) -> None:
        """The task is tried, perhaps again."""
        seen.tries += 1
        seen.started_us = self.now_us()

    def retry(self, seen: TaskSeen, code: str, message: str, tries_max: int) -> None:
        """The task failed, and will be tried again."""
        self.stages[seen.stage].retries += 1
        self.say("warning", f"{message}; trying again (try {seen.tries + 1} of {tries_max})", code)

    def fail(self, seen: TaskSeen, code: str) -> None:
        """The task failed for good; what the job says of it comes with its end."""
        self.stages[seen.stage].failed += 1
        seen.error = _short(code, NAME_CHARS_MAX)
        self._end(seen, "failed", None)

    def finish(self, seen: TaskSeen, result: TaskResult) -> None:
        """The task has ended well."""
        seen.samples, seen.bytes_in, seen.bytes_out = result.samples, result.bytes_in, result.bytes_out
        ended_s = self._end(seen, "done", result.run)
        self.history.add(ended_s, (1, result.samples, result.bytes_in, result.bytes_out))

    def withdraw(self, seen: TaskSeen) -> None:
        """The task is not run any more, if it still was."""
        self.running.pop((seen.stage, seen.number), None)

    def _end(self, seen: TaskSeen, state: SeenState, run: TaskRun | None) -> float:
        """Put a task among those that have ended; return when that was, in seconds after the beginning of the job."""
        now_us = self.now_us()
        given_s = (now_us - seen.started_us) / 1e6
        # By this clock: that of the worker's machine may be wrong.
        seen.seconds = given_s if run is None else min(max(0.0, run.seconds), given_s)
        seen.started_us = now_us - int(1e6 * seen.seconds)
        seen.state = state
        self.running.pop((seen.stage, seen.number), None)
        self.recent.append(seen)
        self._ended += 1
        entry = (seen.seconds, -self._ended, seen)
        if len(self.slowest) < JOB_TASKS_SLOWEST_MAX:
            heapq.heappush(self.slowest, entry)
        elif seen.seconds > self.slowest[0][0]:
            heapq.heapreplace(self.slowest, entry)
        ended_s = (now_us - self.begun_us) / 1e6
        if run is not None and run.worker:
            seen.worker = _short(run.worker, NAME_CHARS_MAX)
            self._count_worker(seen, ended_s)
        self.is_changed = True
        return ended_s

    def _count_worker(self, seen: TaskSeen, ended_s: float) -> None:
        number = self._numbers.get(seen.worker)
        if number is None:
            if len(self.workers) >= JOB_WORKERS_SHOWN_MAX:
                return
            number = self._numbers[seen.worker] = self.busy.add_column()
            self.workers.append(WorkerSeen(seen.worker))
        worker, took_ms = self.workers[number], round(1000 * seen.seconds)
        worker.tasks += 1
        worker.busy_ms += took_ms
        self.busy.spread(number, max(0.0, ended_s - seen.seconds), ended_s)
        if self.spans is not None:
            self.spans.append((number, max(0, round(1000 * (ended_s - seen.seconds))), took_ms))
            if len(self.spans) > JOB_SPANS_MAX:
                self.spans = None

    def restore(self) -> None:
        """Go on with `slowest` and `workers` as they were put here."""
        self._numbers = {worker.name: number for number, worker in enumerate(self.workers)}
        self._ended = len(self.slowest)

    @property
    def slowest_first(self) -> list[TaskSeen]:
        return [entry[2] for entry in sorted(self.slowest, reverse=True, key=lambda entry: entry[:2])]


def _short(text: str, chars_max: int) -> str:
    """Cut a text; what has no encoding becomes a question mark."""
    text = text[:chars_max]
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
