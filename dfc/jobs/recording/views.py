"""What is recorded of a job, as clients are told of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, get_args

from dfc.errors import BadRequest
from dfc.jobs.recording.recorder import HISTORY_COLUMNS, Level, Recorder, SeenState, TaskSeen
from dfc.jobs.records import JobRecord, StageTotals
from dfc.limits import JOB_LIST_MAX
from dfc.pages import rfc3339
from dfc.wire.jobs import JobHistory, JobLog, JobLogLine, JobStage, JobTask, JobTasks, JobWorkers, WorkerBusy

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
    seconds = seen.seconds
    if seen.state == "running":
        seconds = max(0, recorder.now_us() - seen.started_us) / 1e6
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
