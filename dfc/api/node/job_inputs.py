"""`/v1/node/shards`, `/v1/node/locate` and `/v1/node/index` at a target: find the inputs of jobs."""

from __future__ import annotations

from typing import Final

from dfc.api.bodies import content_answer
from dfc.api.node.holdings import step_of
from dfc.api.node.staging import path_of
from dfc.http.answers import Answer, json_answer
from dfc.http.common import flag
from dfc.http.exchange import Exchange
from dfc.http.router import Endpoint, Handlers
from dfc.target.job_inputs import JobInputs
from dfc.target.staging import OutputName
from dfc.wire import MSGPACK, OCTETS

SHARDS_QUERY: Final = frozenset(("bucket", "shards", "any", "step"))
LOCATE_QUERY: Final = frozenset(("bucket", "object", "version", "job", "temporary"))
INDEX_QUERY: Final = frozenset(("bucket", "object", "version"))


class JobInputHandlers(Handlers):
    """Handlers for the plans and tasks of jobs, which ask about their inputs."""

    def __init__(self, inputs: JobInputs) -> None:
        self._inputs = inputs

    async def shards(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """List this target's shards that match a spec; with `any=1` also objects without an index."""
        query = exchange.query_parameters(SHARDS_QUERY)
        asked = query.get("bucket", ""), query.get("shards", "")
        content = await self._inputs.shards(*asked, anything=flag(query, "any"), step=step_of(query))
        return Answer(200, content, [("Content-Type", MSGPACK)])

    async def locate(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Return the paths of a blob for a worker on the same machine."""
        query = exchange.query_parameters(LOCATE_QUERY)
        path, version = path_of(query), query.get("version")
        what = OutputName(query["job"], path, flag(query, "temporary")) if "job" in query else path
        return json_answer(await self._inputs.locate(what, version))

    async def index(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Return the bytes of a shard's index."""
        query = exchange.query_parameters(INDEX_QUERY)
        found = await self._inputs.index(path_of(query), query.get("version"))
        return content_answer(200, found, found.size, f"Content-Type: {OCTETS}\r\n")

    ENDPOINTS = (
        Endpoint("/v1/node/shards", {"GET": shards}, SHARDS_QUERY),
        Endpoint("/v1/node/locate", {"GET": locate}, LOCATE_QUERY),
        Endpoint("/v1/node/index", {"GET": index}, INDEX_QUERY),
    )
