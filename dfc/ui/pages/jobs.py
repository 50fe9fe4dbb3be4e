"""`/ui/jobs`: the jobs, and one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import urlencode

from dfc.errors import DfcError, JobFinished
from dfc.http.answers import Answer
from dfc.http.budget import PAGES
from dfc.http.exchange import Exchange
from dfc.http.router import ALL_METHODS, Endpoint, Handlers
from dfc.jobs.recording.views import TaskQuery
from dfc.jobs.reports import is_of_job
from dfc.limits import REPORT_BYTES_MAX
from dfc.names import object_path
from dfc.proxy.uses import ProxyUses
from dfc.ui import words
from dfc.ui.addresses import datasets_url
from dfc.ui.datasets.traces import Linked
from dfc.ui.jobs.asked import AskedJob, asked_of, made_by
from dfc.ui.jobs.found import ReportView, view_of
from dfc.ui.live import Figures, LiveFeed
from dfc.ui.pages.jobfigures import elapsed_s, rate_of, rates_plot, worker_rows
from dfc.ui.rendering import Rendering, see_other
from dfc.units import format_size
from dfc.wire.jobs import Job, JobState

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

    def __init__(self, uses: ProxyUses, rendering: Rendering, feed: LiveFeed) -> None:
        self._jobs, self._shards = uses.jobs, uses.shards
        self._asked: dict[str, AskedJob | None] = {}
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
        asked = None if spec is None else await asyncio.to_thread(asked_of, spec)
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

    async def _all_asked(self, ids: Sequence[str]) -> dict[str, AskedJob]:
        """What jobs were asked to do; those whose specs are not to be had now are left out. One after the other: each may be
        long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SPECS_S):
                for job_id in ids:
                    if job_id not in self._asked and (spec := await self._spec(job_id)) is not None:
                        is_long = len(spec) > SPEC_BYTES_LOOP_MAX
                        self._asked[job_id] = await asyncio.to_thread(asked_of, spec) if is_long else asked_of(spec)
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

    async def _found(self, asked: AskedJob | None, job: Job) -> ReportView | None:
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
