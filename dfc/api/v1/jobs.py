"""`/v1/jobs`: submit, list, show, follow, cancel; `/v1/operations`: what jobs can do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final, get_args

import msgspec

from dfc.errors import BadRequest
from dfc.http.answers import Answer, StreamAnswer, flag, json_answer, page_limit
from dfc.http.budget import STREAMS
from dfc.http.exchange import Exchange
from dfc.http.faces import ALL_METHODS, Endpoint, Handlers
from dfc.jobs.recording import TaskQuery
from dfc.limits import JOB_SPEC_BYTES_MAX
from dfc.wire import JSON
from dfc.wire.jobs import Job, JobState

if TYPE_CHECKING:
    from dfc.proxy.admin import ProxyServices
    from dfc.proxy.jobs.service import AnyJobs

PAGE_DEFAULT: Final = 100
JOBS_QUERY: Final = frozenset(("state", "limit", "token"))
TASKS_QUERY: Final = frozenset(("stage", "state", "limit", "token", "slowest"))
_STATES: Final = frozenset(get_args(JobState))
_JSON: Final = (("Content-Type", JSON),)
_HEADERS: Final = (("Content-Type", "text/event-stream"), ("Cache-Control", "no-store"), ("X-Accel-Buffering", "no"))


class JobHandlers(Handlers):
    """Handlers of the paths under `/v1/jobs`."""

    def __init__(self, jobs: AnyJobs) -> None:
        self._jobs = jobs

    async def submit(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Submit a job: 202 with the job, or 200 with the plan of a dry run."""
        said = await self._jobs.submit(await exchange.read_small(JOB_SPEC_BYTES_MAX))
        if not isinstance(said, Job):
            return json_answer(said)
        return json_answer(said, 202, [("Location", f"/v1/jobs/{said.id}")])

    async def list(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        query = exchange.query_parameters(JOBS_QUERY)
        states = [state for state in query.get("state", "").split(",") if state]
        unknown = next((state for state in states if state not in _STATES), None)
        if unknown is not None:
            raise BadRequest(f"unknown state {unknown[:40]!r}; the states are {', '.join(get_args(JobState))}")
        limit = page_limit(query, PAGE_DEFAULT)
        return json_answer(await self._jobs.page(states, query.get("token") or None, limit))  # type: ignore[arg-type]

    async def show(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        return json_answer(await self._jobs.show(parameters[0]))

    async def spec(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """The body with which a job was submitted, unchanged."""
        return Answer(200, await self._jobs.spec(parameters[0]), [*_JSON, ("X-Content-Type-Options", "nosniff")])

    async def cancel(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        return json_answer(await self._jobs.cancel(parameters[0]))

    async def events(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Stream a job as server-sent events. Each has the whole job, so a client that reconnects has missed nothing."""
        await self._jobs.show(parameters[0])  # raises 404 before the answer begins
        await exchange.enter(STREAMS)
        return StreamAnswer(200, _events(self._jobs.watch(parameters[0])), _HEADERS)

    async def tasks(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        query = exchange.query_parameters(TASKS_QUERY)
        wanted = TaskQuery(
            query.get("stage", ""),
            query.get("state", ""),
            page_limit(query, PAGE_DEFAULT),
            query.get("token", ""),
            flag(query, "slowest"),
        )
        return json_answer(await self._jobs.tasks(parameters[0], wanted))

    async def history(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        return json_answer(await self._jobs.history(parameters[0]))

    async def log(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        return json_answer(await self._jobs.log(parameters[0]))

    ENDPOINTS = (
        Endpoint("/v1/jobs", {"GET": list, "POST": submit}, JOBS_QUERY, by_coordinator=ALL_METHODS),
        Endpoint("/v1/jobs/{job}", {"GET": show, "DELETE": cancel}, by_coordinator=ALL_METHODS),
        Endpoint("/v1/jobs/{job}/events", {"GET": events}, by_coordinator=ALL_METHODS),
        Endpoint("/v1/jobs/{job}/spec", {"GET": spec}, by_coordinator=ALL_METHODS),
        Endpoint("/v1/jobs/{job}/tasks", {"GET": tasks}, TASKS_QUERY, by_coordinator=ALL_METHODS),
        Endpoint("/v1/jobs/{job}/history", {"GET": history}, by_coordinator=ALL_METHODS),
        Endpoint("/v1/jobs/{job}/log", {"GET": log}, by_coordinator=ALL_METHODS),
    )


class OperationHandlers(Handlers):
    """The handler of `/v1/operations`."""

    def __init__(self, uses: ProxyServices) -> None:
        self._operations = uses.operations

    async def all(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Describe all operations, with their options."""
        return Answer(200, (await self._operations.all()).encoded, _JSON)

    ENDPOINTS = (Endpoint("/v1/operations", {"GET": all}),)


async def _events(changes: AsyncIterator[Job | None]) -> AsyncIterator[bytes]:
    number = 0
    async for job in changes:
        if job is None:
            yield b": nothing new\n\n"
            continue
        number += 1
        yield b"id: %d\nevent: job\ndata: %b\n\n" % (number, msgspec.json.encode(job))
