"""`/v1` at a target: objects, batch reads, health, metrics; the rest it passes to a proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from prometheus_client import CollectorRegistry

from dfc.api.objects import Elsewhere, StoredHandlers
from dfc.api.shared import msgpack_answer
from dfc.api.v1.buckets import BucketHandlers
from dfc.api.v1.cluster import ClusterHandlers
from dfc.api.v1.jobs import JobHandlers, OperationHandlers
from dfc.batch.gather import BATCH_QUERY, batch_answer, read_request, wants_lengths
from dfc.errors import Unavailable
from dfc.http.answers import OBJECT_QUERY, Answer, flag, health_answer, json_answer, metrics_answer
from dfc.http.budget import BATCHES
from dfc.http.exchange import Exchange
from dfc.http.faces import Authenticate, Endpoint, Face, Handlers, Route, routes_of
from dfc.names import parse_object_path
from dfc.target.batch import OwnBatches
from dfc.target.local import TargetState
from dfc.wire import MSGPACK


class TargetObjectHandlers:
    """Handlers of `/v1/objects/{bucket}/{object…}`."""

    def __init__(self, stored: StoredHandlers) -> None:
        self._stored = stored

    async def object(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Answer a request for an object; if it belongs to another target, pass it to a proxy."""
        path = parse_object_path(f"/{parameters[0]}/{parameters[1]}")
        return await self._stored.answer(exchange, path, exchange.query_parameters(OBJECT_QUERY) if exchange.raw_query else {})

    def at_once(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer | None:
        """`object` for what is in memory; else None."""
        return self._stored.at_once(exchange, parse_object_path(f"/{parameters[0]}/{parameters[1]}"))


class TargetBatchHandlers(Handlers):
    """The handler of `/v1/batch`."""

    def __init__(self, batches: OwnBatches) -> None:
        self._batches = batches

    async def batch(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Answer a list of items from anywhere in the cluster."""
        with_lengths = wants_lengths(exchange)
        request, place = await read_request(exchange, BATCHES)
        return batch_answer(await self._batches.gather(request, place, with_lengths=with_lengths), with_lengths=with_lengths)

    ENDPOINTS = (Endpoint("/v1/batch", {"POST": batch}, BATCH_QUERY, reads=True),)


MAP_QUERY: Final = frozenset({"own", "newest"})


class TargetStateHandlers(Handlers):
    """Handlers of `/v1/health`, `/v1/cluster` and `/metrics`; `metrics` collects the current metrics."""

    def __init__(self, local: TargetState, elsewhere: Elsewhere, metrics: Callable[[], Awaitable[CollectorRegistry]]) -> None:
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
        render = msgpack_answer if MSGPACK in exchange.headers.get("Accept", "") else json_answer
        return render(self._local.map)

    async def prometheus(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Return the metrics in the Prometheus text format."""
        return await asyncio.to_thread(metrics_answer, await self._metrics())

    ENDPOINTS = (
        Endpoint("/v1/cluster", {"GET": cluster}, MAP_QUERY),
        Endpoint("/v1/health", {"GET": health}),
        Endpoint("/metrics", {"GET": prometheus}),
    )


# --- The routes of `/v1` at a target: those it answers itself, and those it passes to a proxy.

PROXY_ENDPOINTS: Final = (
    *BucketHandlers.ENDPOINTS,
    *JobHandlers.ENDPOINTS,
    *OperationHandlers.ENDPOINTS,
    *ClusterHandlers.ENDPOINTS,
)


def target_face(
    local: TargetState,
    stored: StoredHandlers,
    batches: OwnBatches,
    elsewhere: Elsewhere,
    metrics: Callable[[], Awaitable[CollectorRegistry]],
    may_use: Authenticate,
) -> Face:
    """Make the face, with the same paths as at a proxy. `metrics`: see `TargetStateHandlers`."""
    objects = TargetObjectHandlers(stored)
    here = dict.fromkeys(("GET", "PUT", "DELETE"), objects.object)
    large = Route("/v1/objects/{bucket}/{object…}", here, query=OBJECT_QUERY, at_once=objects.at_once)
    own = [large, *routes_of(TargetBatchHandlers(batches), TargetStateHandlers(local, elsewhere, metrics))]
    known = {route.pattern for route in own}
    away = [each.route_to(elsewhere.answer) for each in PROXY_ENDPOINTS if each.pattern not in known]
    return Face("v1", [*own, *away], may_use, segments=frozenset(("v1",)))
