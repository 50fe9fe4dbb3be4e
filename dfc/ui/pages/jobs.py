"""`/ui/jobs`: the jobs, and one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from dfc.errors import BadRequest, JobFinished, JobSpecGone, Unavailable
from dfc.http.answers import Answer
from dfc.http.exchange import Exchange
from dfc.http.router import ALL_METHODS, Endpoint, Handlers
from dfc.jobs.pattern import OutputPattern
from dfc.jobs.recording.views import TaskQuery
from dfc.jobs.request import parse_spec
from dfc.proxy.uses import ProxyUses
from dfc.shards import is_plain
from dfc.ui import words
from dfc.ui.addresses import dataset_url, datasets_url
from dfc.ui.live import Figures, LiveFeed
from dfc.ui.pages.jobfigures import elapsed_s, rate_of, rates_plot, worker_rows
from dfc.ui.rendering import Rendering, see_other
from dfc.units import format_size

JOBS_MAX: Final = 100  # on a page
FOLLOWED_MAX: Final = 20  # jobs in the figures, the newest that go on
LINES_MAX: Final = 100  # of the log, unless all are wanted
SLOWEST_MAX: Final = 20
QUERY: Final = frozenset(("token",))
ONE_QUERY: Final = frozenset(("log",))
GOING_ON: Final = ("queued", "running", "publishing")


class JobPages(Handlers):
    """Handlers of the pages about jobs. `feed` has the figures of those that run."""

    def __init__(self, uses: ProxyUses, rendering: Rendering, feed: LiveFeed) -> None:
        self._jobs = uses.jobs
        self._rendering = rendering
        self._feed = feed

    async def all(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Show the jobs, the newest first."""
        token = exchange.query_parameters(QUERY).get("token")
        found = await self._jobs.page([], token or None, JOBS_MAX)
        following = found["next_token"]
        return await self._rendering.page(
            exchange,
            "jobs.html",
            jobs=found["jobs"],
            values={key: text for job in found["jobs"] for key, text in progress_of(job).items()},
            next_page=f"/ui/jobs?{urlencode({'token': following})}" if following else "",
            first_page="/ui/jobs" if token else "",
            shape=shape_with(found["jobs"], await self._feed.figures()),
        )

    async def one(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Show a job. JobNotFound."""
        return await self._one(exchange, parameters[0])

    async def _one(self, exchange: Exchange, job_id: str, status: int = 200, wrong: str = "") -> Answer:
        job = await self._jobs.show(job_id)
        tasks = await self._jobs.tasks(job_id, TaskQuery(limit=SLOWEST_MAX, slowest=True))
        history, lines = await self._jobs.history(job_id), (await self._jobs.log(job_id))["lines"]
        shown = lines if exchange.query_parameters(ONE_QUERY).get("log") == "all" else lines[-LINES_MAX:]
        output, long_s = job["output"], elapsed_s(job)
        return await self._rendering.page(
            exchange,
            "job.html",
            status,
            job=job,
            values=progress_of(job),
            output=sorted(output.items()) if output else [],
            samples_page=await self._samples_page(job) if output else "",
            goes_on=job["state"] in GOING_ON,
            stages=tasks["stages"],
            slowest=tasks["tasks"],
            rates=rates_plot(history, long_s),
            workers=worker_rows(history, long_s),
            lines=shown,
            lines_left_out=len(lines) - len(shown),
            complete=history["complete"],
            shape=shape_with([job], await self._feed.figures()),
            wrong=wrong,
        )

    async def _samples_page(self, job: Mapping[str, Any]) -> str:
        """The page of what a job has made: of its shards if they are one sequence, else of all datasets where they are."""
        try:
            pattern = parse_spec(await self._jobs.spec(job["id"])).pattern
        except (JobSpecGone, BadRequest, Unavailable):  # it was long, is of another version, or will be known in a moment
            return datasets_url(job["bucket"], "")
        shards = shards_of(pattern, job["output"]["shards"])
        folder = pattern.literal[: pattern.literal.rfind("/") + 1]
        return dataset_url(job["bucket"], shards) if shards else datasets_url(job["bucket"], folder)

    async def cancel(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Cancel a job. JobNotFound."""
        try:
            await self._jobs.cancel(parameters[0])
        except JobFinished as error:
            return await self._one(exchange, parameters[0], error.status, error.message)
        return see_other(f"/ui/jobs/{parameters[0]}")

    ENDPOINTS = (
        Endpoint("/ui/jobs", {"GET": all}, QUERY, by_coordinator=ALL_METHODS),
        Endpoint("/ui/jobs/{job}", {"GET": one}, ONE_QUERY, by_coordinator=ALL_METHODS),
        Endpoint("/ui/jobs/{job}/cancel", {"POST": cancel}, by_coordinator=ALL_METHODS),
    )


def shards_of(pattern: OutputPattern, shards: int) -> str:
    """The pattern of so many shards, numbered from 0 on. Empty if they are not one sequence, or a pattern could mean others."""
    plain = pattern.is_numbered and is_plain(pattern.text)
    if not plain or pattern.has_part or pattern.is_prefix or pattern.others or not shards:
        return ""
    head, tail = pattern.text[: pattern.text.index("%")], pattern.text[pattern.text.index("d", pattern.text.index("%")) + 1 :]
    first, last = (pattern.name(number)[len(head) :].removesuffix(tail) for number in (0, shards - 1))
    if 1 < len(first) < len(last):  # a pattern has one width
        return ""
    return f"{head}{{{first}..{last}}}{tail}"


def shape_with(jobs: Sequence[Mapping[str, Any]], figures: Figures) -> str:
    """The shape of a page with these jobs. Empty, so that it is rendered anew soon, if one of them goes on but is not in the
    figures: it has begun since, and may have ended before there are newer ones."""
    going = [job["id"] for job in jobs if job["state"] in GOING_ON][:FOLLOWED_MAX]
    return figures.shape if all(f"job.{job_id}.done" in figures.values for job_id in going) else ""


def progress_of(job: Mapping[str, Any]) -> dict[str, str]:
    """How far a job is, as texts by the names of their places on pages."""
    made, place = job["progress"], f"job.{job['id']}"
    tasks, eta_s = made["tasks"], made["eta_s"]
    return {
        f"{place}.done": words.percent(tasks["done"], tasks["total"] or 0) or "…",
        f"{place}.tasks": words.count(tasks["done"]) + (f" of {words.count(tasks['total'])}" if tasks["total"] else ""),
        f"{place}.samples": words.count(made["samples"]),
        f"{place}.in": format_size(made["bytes_in"]),
        f"{place}.out": format_size(made["bytes_out"]),
        f"{place}.rate": rate_of(job),
        f"{place}.eta": "" if eta_s is None else words.seconds(eta_s),
    }
