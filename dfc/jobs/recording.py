"""What is recorded of a job: figures over time while it runs, the summary that is kept, and how clients are told."""

from __future__ import annotations

import heapq
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, get_args

import msgspec

from dfc.checksum import checksum_of
from dfc.errors import BadRequest
from dfc.jobs.records import JobRecord, StageTotals
from dfc.jobs.tasks import TaskResult, TaskRun
from dfc.limits import (
    JOB_BUSY_STEPS_MAX,
    JOB_HISTORY_POINTS_MAX,
    JOB_LIST_MAX,
    JOB_LOG_LINE_CHARS_MAX,
    JOB_LOG_LINES_MAX,
    JOB_SPANS_MAX,
    JOB_SUMMARY_BYTES_MAX,
    JOB_TASKS_RECENT_MAX,
    JOB_TASKS_SLOWEST_MAX,
    JOB_WORKERS_SHOWN_MAX,
)
from dfc.listing.pages import rfc3339
from dfc.wire.jobs import JobHistory, JobLog, JobLogLine, JobStage, JobTask, JobTasks, JobWorkers, WorkerBusy

# --- Sums over time in a bounded number of steps, which are joined two by two when there would be more of them. Pure.

STEP_S: Final = 0.25  # at first


class TimeSteps:
    """Columns of sums; each step has `step_s` seconds, and there are at most `size` of them. Adding takes constant time."""

    def __init__(self, size: int, columns: int, step_s: float = STEP_S) -> None:
        self.size = size
        self.step_s = step_s
        self.columns: list[list[int]] = [[] for _ in range(columns)]
        self._count = 0

    @classmethod
    def of(cls, size: int, step_s: float, columns: Sequence[Sequence[int]]) -> TimeSteps:
        """Make them from what was kept; columns that are too long are cut, short ones filled up."""
        made = cls(size, 0, step_s if 0 < step_s < float("inf") else STEP_S)
        made._count = min(size, max(map(len, columns), default=0))
        made.columns = [[*column[: made._count], *[0] * (made._count - len(column))] for column in columns]
        return made

    def add(self, at_s: float, amounts: Sequence[int]) -> None:
        """Add to each column, `at_s` seconds after the beginning."""
        place = self._place(at_s)
        for column, amount in zip(self.columns, amounts, strict=True):
            column[place] += amount

    def add_column(self) -> int:
        """Add a column of zeros; return its number."""
        self.columns.append([0] * self._count)
        return len(self.columns) - 1

    def spread(self, number: int, begin_s: float, end_s: float) -> None:
        """Add the milliseconds of a time to the steps of one column in which they lie."""
        last = self._place(end_s)
        column, step_s = self.columns[number], self.step_s
        first = min(last, int(max(0.0, begin_s) / step_s))
        for place in range(first, last + 1):
            part_s = min(end_s, (place + 1) * step_s) - max(begin_s, place * step_s)
            column[place] += max(0, round(1000 * part_s))

    def _place(self, at_s: float) -> int:
        at_s = max(0.0, at_s)
        while (place := int(at_s / self.step_s)) >= self.size:
            self.step_s *= 2
            self._count = (self._count + 1) // 2
            for column in self.columns:
                column[:] = map(sum, zip(column[::2], [*column[1::2], 0], strict=False))
        if place >= self._count:
            for column in self.columns:
                column.extend([0] * (place + 1 - self._count))
            self._count = place + 1
        return place


# --- Records what a job does while it runs, in constant time and memory a task. Not thread-safe; knows no files.

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


# --- The summary that is kept of a job after its end: at most JOB_SUMMARY_BYTES_MAX, as msgpack after a checksum. Pure.

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
    slowest = [(seen.seconds, -number, seen) for number, seen in enumerate(summary.slowest[:JOB_TASKS_SLOWEST_MAX])]
    recorder.slowest = sorted(slowest, key=lambda entry: entry[:2])  # a sorted list is a heap
    recorder.recent.extend(summary.slowest)
    recorder.history = TimeSteps.of(JOB_HISTORY_POINTS_MAX, summary.history.step_s, summary.history.columns)
    recorder.workers = summary.workers[: min(JOB_WORKERS_SHOWN_MAX, len(summary.busy.columns))]
    recorder.busy = TimeSteps.of(JOB_BUSY_STEPS_MAX, summary.busy.step_s, summary.busy.columns[: len(recorder.workers)])
    recorder.spans = None if summary.spans is None else summary.spans[: JOB_SPANS_MAX + 1]
    recorder.lines.extend(summary.lines)
    recorder.restore()
    return recorder


# --- What is recorded of a job, as clients are told of it.

_TOKEN: Final = re.compile(r"([0-9]{1,4})\.([0-9]{1,9})")


class TaskQuery(NamedTuple):
    """Which tasks are wanted: of this stage, in this state (empty: any); after those of the page before, or the slowest."""

    stage: str = ""
    state: str = ""
    limit: int = JOB_LIST_MAX
    token: str = ""
    slowest: bool = False


def tasks_view(recorder: Recorder, query: TaskQuery) -> JobTasks:
    """The stages with their counts, and a page of the tasks that are known. BadRequest."""
    if query.state and query.state not in get_args(SeenState):
        raise BadRequest(f"unknown state {query.state[:40]!r}; the states of tasks are {', '.join(get_args(SeenState))}")
    after = _position(query.token)
    numbers = {number for number, stage in enumerate(recorder.stages) if stage.name == query.stage}
    if query.stage and recorder.stages and not numbers:
        raise BadRequest(f"the job has no stage {query.stage[:80]!r}")
    found: Iterable[TaskSeen] = recorder.slowest_first if query.slowest else _all(recorder)
    chosen = [
        seen
        for seen in found
        if (not query.stage or seen.stage in numbers)
        and (not query.state or seen.state == query.state)
        and (query.slowest or (seen.stage, seen.number) > after)
    ]
    limit = min(query.limit, JOB_LIST_MAX)
    page, more = chosen[:limit], len(chosen) > limit and not query.slowest
    return JobTasks(
        complete=recorder.is_complete,
        stages=tuple(_stages(recorder)),
        tasks=tuple(_task(recorder, seen) for seen in page),
        next_token=f"{page[-1].stage}.{page[-1].number}" if more else None,
    )


def _position(token: str) -> tuple[int, int]:
    if not token:
        return -1, -1
    found = _TOKEN.fullmatch(token)
    if found is None:
        raise BadRequest("token is not one that an earlier page has given")
    return int(found[1]), int(found[2])


def _all(recorder: Recorder) -> list[TaskSeen]:
    """All tasks that are known, each once, by stage and number."""
    known = {(seen.stage, seen.number): seen for _, _, seen in recorder.slowest}
    known.update({(seen.stage, seen.number): seen for seen in recorder.recent})
    known.update(recorder.running)
    return [known[place] for place in sorted(known)]


def _stages(recorder: Recorder) -> Iterator[JobStage]:
    running = Counter(at for at, _ in recorder.running)
    for number, stage in enumerate(recorder.stages):
        total = recorder.totals.get(number, StageTotals())
        yield JobStage(
            stage=stage.name,
            total=stage.tasks,
            waiting=None if stage.tasks is None else max(0, stage.tasks - total.tasks - running[number] - stage.failed),
            running=running[number],
            done=total.tasks,
            failed=stage.failed,
            retries=stage.retries,
            samples=total.samples,
            bytes_in=total.bytes_in,
            bytes_out=total.bytes_out,
        )


def _task(recorder: Recorder, seen: TaskSeen) -> JobTask:
    seconds = max(0, recorder.now_us() - seen.started_us) / 1e6 if seen.state == "running" else seen.seconds
    return JobTask(
        stage=recorder.stages[seen.stage].name if seen.stage < len(recorder.stages) else "",
        number=seen.number,
        label=seen.label,
        state=seen.state,
        node=_node(seen.worker) or seen.near or None,
        worker=seen.worker or None,
        tries=seen.tries,
        started=rfc3339(seen.started_us),
        seconds=round(seconds, 3),
        samples=seen.samples,
        bytes_in=seen.bytes_in,
        bytes_out=seen.bytes_out,
        error=seen.error or None,
    )


def _node(worker: str) -> str:
    """The target beside which a worker runs; empty for those of the proxy itself."""
    return worker.rpartition("/")[0]


def history_view(recorder: Recorder) -> JobHistory:
    """The figures over time, in steps of equal length, and when which worker was busy."""
    tasks, samples, bytes_in, bytes_out = map(tuple, recorder.history.columns)
    totals = recorder.totals.values()
    sums = [sum(column) for column in recorder.history.columns]
    wanted = [sum(each) for each in zip(*((t.tasks, t.samples, t.bytes_in, t.bytes_out) for t in totals), strict=True)]
    missed = [max(0, want - have) for want, have in zip(wanted or [0] * HISTORY_COLUMNS, sums, strict=True)]
    busy = (
        WorkerBusy(
            worker=worker.name,
            node=_node(worker.name) or None,
            tasks=worker.tasks,
            busy_s=round(worker.busy_ms / 1000, 3),
            steps=tuple(round(ms / 1000, 3) for ms in column),
        )
        for worker, column in zip(recorder.workers, recorder.busy.columns, strict=True)
    )
    spans = None if recorder.spans is None else tuple((number, at / 1000, took / 1000) for number, at, took in recorder.spans)
    return JobHistory(
        complete=recorder.is_complete,
        begun=rfc3339(recorder.begun_us) if recorder.begun_us else None,
        step_s=recorder.history.step_s,
        tasks=tasks,
        samples=samples,
        bytes_in=bytes_in,
        bytes_out=bytes_out,
        missed=dict(zip(("tasks", "samples", "bytes_in", "bytes_out"), missed, strict=True)),
        workers=JobWorkers(step_s=recorder.busy.step_s, busy=tuple(busy), spans=spans),
    )


def end_line(record: JobRecord) -> tuple[Level, str, str]:
    """The last line of the log of a job: its level, what it says, and the code of an error."""
    if record.error is not None:
        return "error", f"the job has failed: {record.error.message}", record.error.code
    said = {"cancelled": "the job was cancelled", "succeeded": "the job has succeeded"}
    return "info", said.get(record.state, "how the job ended is not known before the next start of the proxy"), ""


def log_view(recorder: Recorder) -> JobLog:
    """The lines of the log, the oldest first."""
    lines = (
        JobLogLine(time=rfc3339(line.at_us), level=line.level, code=line.code or None, message=line.text)
        for line in recorder.lines
    )
    return JobLog(complete=recorder.is_complete, lines=tuple(lines))
