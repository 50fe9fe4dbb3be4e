"""`/v1/health`, `/v1/cluster` and `/metrics` at a target."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry

from dfc.api.stored import Elsewhere
from dfc.errors import Unavailable
from dfc.http.answers import Answer, json_answer
from dfc.http.common import flag, health_answer, metrics_answer
from dfc.http.exchange import Exchange
from dfc.http.router import Endpoint, Handlers
from dfc.target.local import Local
from dfc.wire import MSGPACK

MAP_QUERY: Final = frozenset({"own", "newest"})


class TargetStateHandlers(Handlers):
    """Handlers of these paths; `metrics` collects the current metrics."""

    def __init__(self, local: Local, elsewhere: Elsewhere, metrics: Callable[[], Awaitable[CollectorRegistry]]) -> None:
        self._local = local
        self._elsewhere = elsewhere
        self._metrics = metrics

    async def health(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Report health: the target is ready once it has its disks."""
        local = self._local
        version, state = local.map.version, local.standing()
        facts = {"id": local.node_id, "map_version": version, "state": state, "leased": local.is_leased}
        return health_answer(bool(local.disks), role="target", **facts)

    async def cluster(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Return the registry's map, with the use of all disks; if no proxy can be reached or `own` is asked for, this
        target's own map."""
        if not flag(exchange.query_parameters(MAP_QUERY), "own"):
            with suppress(Unavailable):
                return await self._elsewhere.answer(exchange)
        if MSGPACK in exchange.headers.get("Accept", ""):
            return Answer(200, msgspec.msgpack.encode(self._local.map), [("Content-Type", MSGPACK)])
        return json_answer(self._local.map)

    async def prometheus(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Return the metrics in the Prometheus text format."""
        return await asyncio.to_thread(metrics_answer, await self._metrics())

    ENDPOINTS = (
        Endpoint("/v1/cluster", {"GET": cluster}, MAP_QUERY),
        Endpoint("/v1/health", {"GET": health}),
        Endpoint("/metrics", {"GET": prometheus}),
    )
