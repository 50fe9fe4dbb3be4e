"""`/ui/jobs`: the jobs, one of them with its plots, and the form for a new one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from dfc.api.shared import datasets_of, listing_query
from dfc.errors import BadRequest, DfcError, JobFinished, NotFound, OutputExists
from dfc.http.answers import Answer
from dfc.http.budget import PAGES
from dfc.http.exchange import Exchange
from dfc.http.faces import ALL_METHODS, Endpoint, Handlers
from dfc.jobs.recording import TaskQuery
from dfc.jobs.records import is_of_job
from dfc.limits import JOB_LABEL_CHARS_MAX, REPORT_BYTES_MAX, format_size
from dfc.names import check_bucket_name, object_path
from dfc.proxy.admin import ProxyServices
from dfc.ui import words
from dfc.ui.jobfacts import (
    JobDescription,
    ReportView,
    described,
    field_of,
    job_entered,
    made_by,
    operation_of,
    option_fields,
    values_of,
    view_of,
)
from dfc.ui.plots import Figures, LiveFeed, boxes, polyline, rounded_top, steps_joined
from dfc.ui.rendering import Rendering, form_of, see_other
from dfc.ui.snippets import SameJob, same_job
from dfc.ui.traces import Linked
from dfc.ui.words import datasets_url
from dfc.wire.jobs import Job, JobHistory, JobState
from dfc.wire.objects import DatasetInfo, OperationInfo

# --- `/ui/jobs/new`: the operations, and a form for a job of one of them.

FILLED: Final = ("bucket", "shards", "output_bucket", "pattern", "overwrite", "option.by")
NEW_JOB_QUERY: Final = frozenset(("operation", "again", *FILLED))
OWN_FIELDS: Final = frozenset(("bucket", "shards", "more", "output_bucket", "pattern", "overwrite", "label"))
CHOICES_MAX: Final = 200  # buckets and datasets that are proposed
OVERWRITE_HERE: Final = "tick “Replace objects with these names” to allow this"
TITLES: Final = {
    "bucket": "Bucket to read", "shards": "Shards to read", "more": "More inputs", "output_bucket": "Bucket to write",
    "pattern": "Names of the outputs", "overwrite": "Replace objects with these names", "label": "Label",
}  # fmt: skip
DATASETS_S: Final = 2.0  # to find those of a bucket: they are a help, and the form is there without


@dataclass
class Shown:
    """What the form shows besides its fields. `problems` are by field, `wrong` is about the whole."""

    values: Mapping[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    wrong: str = ""
    status: int = 200
    plan: Mapping[str, Any] | None = None
    same: SameJob | None = None


class NewJobPages(Handlers):
    """Handlers of the form for jobs."""

    def __init__(self, uses: ProxyServices, rendering: Rendering) -> None:
        self._jobs, self._operations = uses.jobs, uses.operations
        self._admin, self._listings = uses.admin, uses.listings
        self._rendering = rendering

    async def form(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Show the operations, or the form for one. With `again`: filled as for that job. JobNotFound, JobSpecGone."""
        query = exchange.query_parameters(NEW_JOB_QUERY)
        if query.get("again"):
            spec = await self._jobs.spec(query["again"])
            info = await self._info(operation_of(spec))
            return await self._shown(exchange, info, Shown(values_of(spec, info)))
        given = {name: query[name] for name in FILLED if query.get(name)}
        if not query.get("operation"):
            return await self._list(exchange, given)
        return await self._shown(exchange, await self._info(query["operation"]), Shown(given))

    async def _list(self, exchange: Exchange, given: Mapping[str, str]) -> Answer:
        found = (await self._operations.all()).operations
        operations = [(each, f"/ui/jobs/new?{urlencode({'operation': each.name, **given})}") for each in found]
        return await self._rendering.page(exchange, "operations.html", operations=operations)

    async def _info(self, name: str) -> OperationInfo:
        for each in (await self._operations.all()).operations:
            if each.name == name:
                return each
        raise NotFound(f"there is no operation {name[:80]!r}")

    async def entered(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Check the job that was entered, run it, or look for the datasets of its bucket."""
        exchange.query_parameters(frozenset())
        fields = await form_of(exchange)
        info, step = await self._info(fields.pop("operation", "")), fields.pop("do", "check")
        unknown = fields.keys() - OWN_FIELDS - {each.name for each in option_fields(info.options)}
        if unknown or step not in ("look", "check", "run"):
            raise BadRequest(f"this form has no field {min(unknown)[:80]!r}" if unknown else "a form is checked or run")
        if step == "look":
            return await self._shown(exchange, info, Shown(fields))
        job = job_entered(info, fields, dry_run=step == "check")
        shown = Shown(fields, job.problems, status=400 if job.problems else 200)
        if not job.problems:
            try:
                said = await self._jobs.submit(job.spec)
            except DfcError as error:
                _note(shown, error, info)
            else:
                if isinstance(said, Job):
                    return see_other(f"/ui/jobs/{said.id}")
                shown.plan, shown.same = said, same_job(job_entered(info, fields).spec)
        return await self._shown(exchange, info, shown)

    async def _shown(self, exchange: Exchange, info: OperationInfo, shown: Shown) -> Answer:
        datasets, why_none = await self._datasets(exchange, shown.values.get("bucket", ""))
        shards = shown.values.get("shards", "") or "**"
        return await self._rendering.page(
            exchange,
            "newjob.html",
            shown.status,
            info=info,
            fields=option_fields(info.options),
            shown=shown,
            titles=TITLES,
            buckets=[each.name for each in self._admin.cluster_map().buckets][:CHOICES_MAX],
            datasets=datasets[:CHOICES_MAX],
            chosen=[each for each in datasets if shards in ("**", each.pattern)],
            why_none=why_none,
            label_max=JOB_LABEL_CHARS_MAX,
        )

    async def _datasets(self, exchange: Exchange, bucket: str) -> tuple[Sequence[DatasetInfo], str]:
        """The datasets of a bucket, or why they cannot be proposed."""
        if not bucket:
            return [], ""
        try:
            async with asyncio.timeout(DATASETS_S):
                bucket_id = self._listings.bucket_id(check_bucket_name(bucket))
                return await datasets_of(exchange, self._listings, listing_query(bucket_id, {})), ""
        except TimeoutError:
            return [], "the bucket has many objects: its datasets are not looked for here"
        except DfcError as error:
            return [], error.message

    ENDPOINTS = (Endpoint("/ui/jobs/new", {"GET": form, "POST": entered}, NEW_JOB_QUERY, by_coordinator=ALL_METHODS),)


def _note(shown: Shown, error: DfcError, info: OperationInfo) -> None:
    """Note what the server says where it belongs."""
    shown.status, place = error.status, field_of(error, info)
    message = error.message.replace(OutputExists.ADVICE, OVERWRITE_HERE)
    if place:
        shown.problems[place] = message
    else:
        shown.wrong = message


# --- What the page of a job draws, from what is known of it: rates over time, and when which worker was busy. Pure.

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


# --- `/ui/jobs`: the jobs, and one of them.

JOBS_MAX: Final = 100  # on a page
FOLLOWED_MAX: Final = 20  # jobs in the figures, the newest that go on
LINES_MAX: Final = 100  # of the log, unless all are wanted
SLOWEST_MAX: Final = 20
QUERY: Final = frozenset(("token",))
ONE_QUERY: Final = frozenset(("log",))
REPORT_S: Final = 3.0  # to read a report
SPECS_S: Final = 2.0  # to read what jobs were asked to do: the list is there without
SPECS_KEPT_MAX: Final = 1000
SPEC_BYTES_LOOP_MAX: Final = 65_536  # of a spec that is decoded where others wait
GOING_ON: Final[tuple[JobState, ...]] = ("queued", "running", "publishing")


class JobPages(Handlers):
    """Handlers of the pages about jobs. `feed` has the figures of those that run."""

    def __init__(self, uses: ProxyServices, rendering: Rendering, feed: LiveFeed) -> None:
        self._jobs, self._shards = uses.jobs, uses.shards
        self._asked: dict[str, JobDescription | None] = {}
        self._rendering = rendering
        self._feed = feed

    async def all(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Show the jobs, the newest first."""
        token = exchange.query_parameters(QUERY).get("token")
        found = await self._jobs.page([], token or None, JOBS_MAX)
        following = found.next_token
        return await self._rendering.page(
            exchange,
            "jobs.html",
            jobs=found.jobs,
            asked=await self._all_asked([job.id for job in found.jobs]),
            took={job.id: took(job) for job in found.jobs},
            values={key: text for job in found.jobs for key, text in progress_of(job).items()},
            next_page=f"/ui/jobs?{urlencode({'token': following})}" if following else "",
            first_page="/ui/jobs" if token else "",
            shape=shape_with(found.jobs, await self._feed.figures()),
        )

    async def one(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Show a job. JobNotFound."""
        return await self._one(exchange, parameters[0])

    async def _one(self, exchange: Exchange, job_id: str, status: int = 200, wrong: str = "") -> Answer:
        job = await self._jobs.show(job_id)
        tasks = await self._jobs.tasks(job_id, TaskQuery(limit=SLOWEST_MAX, slowest=True))
        history, lines = await self._jobs.history(job_id), (await self._jobs.log(job_id)).lines
        shown = lines if exchange.query_parameters(ONE_QUERY).get("log") == "all" else lines[-LINES_MAX:]
        long_s, spec = elapsed_s(job), await self._spec(job_id)
        asked = None if spec is None else await asyncio.to_thread(described, spec)
        return await self._rendering.page(
            exchange,
            "job.html",
            status,
            job=job,
            values=progress_of(job),
            asked=asked,
            took=took(job),
            made=await self._made(spec, job),
            report_path=object_path(job.bucket, asked.report) if asked and asked.report else "",
            found=await self._found(asked, job),
            goes_on=job.state in GOING_ON,
            stages=tasks.stages,
            slowest=tasks.tasks,
            rates=rates_plot(history, long_s),
            workers=worker_rows(history, long_s),
            lines=shown,
            lines_left_out=len(lines) - len(shown),
            complete=history.complete,
            shape=shape_with([job], await self._feed.figures()),
            wrong=wrong,
        )

    async def _spec(self, job_id: str) -> bytes | None:
        """What a job was asked to do. None if it was long, or will be known in a moment."""
        with suppress(DfcError):
            return await self._jobs.spec(job_id)
        return None

    async def _all_asked(self, ids: Sequence[str]) -> dict[str, JobDescription]:
        """What jobs were asked to do; those whose specs are not to be had now are left out. One after the other: each may be
        long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SPECS_S):
                for job_id in ids:
                    if job_id not in self._asked and (spec := await self._spec(job_id)) is not None:
                        is_long = len(spec) > SPEC_BYTES_LOOP_MAX
                        self._asked[job_id] = await asyncio.to_thread(described, spec) if is_long else described(spec)
        found = {job_id: asked for job_id in ids if (asked := self._asked.get(job_id)) is not None}
        while len(self._asked) > SPECS_KEPT_MAX:
            del self._asked[next(iter(self._asked))]
        return found

    async def _made(self, spec: bytes | None, job: Job) -> Linked | None:
        """The page of what a job has made. None if it has made nothing."""
        if job.output is None:
            return None
        with suppress(DfcError):  # its spec is of another version
            if spec is not None:
                return await asyncio.to_thread(made_by, spec, job)
        return Linked(job.bucket, datasets_url(job.bucket, ""))

    async def _found(self, asked: JobDescription | None, job: Job) -> ReportView | None:
        """What the report of a job says. None if there is none, it cannot be read, or a later job has replaced it."""
        if asked is None or not asked.report or job.output is None:
            return None
        with suppress(DfcError, TimeoutError):
            async with asyncio.timeout(REPORT_S):
                head = await self._shards.head(job.bucket, asked.report, REPORT_BYTES_MAX)
                if is_of_job(job.output, asked.report, head.size, head.checksum):
                    return await asyncio.to_thread(view_of, job.operation, head.content)
        return None

    async def cancel(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Cancel a job. JobNotFound."""
        try:
            await self._jobs.cancel(parameters[0])
        except JobFinished as error:
            return await self._one(exchange, parameters[0], error.status, error.message)
        return see_other(f"/ui/jobs/{parameters[0]}")

    ENDPOINTS = (
        Endpoint("/ui/jobs", {"GET": all}, QUERY, by_coordinator=ALL_METHODS, budget=PAGES),
        Endpoint("/ui/jobs/{job}", {"GET": one}, ONE_QUERY, by_coordinator=ALL_METHODS, budget=PAGES),
        Endpoint("/ui/jobs/{job}/cancel", {"POST": cancel}, by_coordinator=ALL_METHODS),
    )


def took(job: Job) -> str:
    """For how long a job has run; empty if it has not begun."""
    return words.seconds(elapsed_s(job)) if job.started else ""


def shape_with(jobs: Sequence[Job], figures: Figures) -> str:
    """The shape of a page with these jobs. Empty, so that it is rendered anew soon, if one of them goes on but is not in the
    figures: it has begun since, and may have ended before there are newer ones."""
    going = [job.id for job in jobs if job.state in GOING_ON][:FOLLOWED_MAX]
    return figures.shape if all(f"job.{job_id}.done" in figures.values for job_id in going) else ""


def progress_of(job: Job) -> dict[str, str]:
    """How far a job is, as texts by the names of their places on pages."""
    made, place = job.progress, f"job.{job.id}"
    tasks, eta_s = made.tasks, made.eta_s
    return {
        f"{place}.done": words.percent(tasks.done, tasks.total or 0) or "…",
        f"{place}.tasks": words.count(tasks.done) + (f" of {words.count(tasks.total)}" if tasks.total else ""),
        f"{place}.samples": words.count(made.samples),
        f"{place}.in": format_size(made.bytes_in),
        f"{place}.out": format_size(made.bytes_out),
        f"{place}.rate": rate_of(job),
        f"{place}.eta": "" if eta_s is None else words.seconds(eta_s),
    }
