"""`/v1/objects` and `/v1/batch` at a proxy, and all its routes of `/v1`."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from dfc.api.owners import ProxyPeers, nodes_for, redirect_to, relay_to
from dfc.api.v1.buckets import BucketHandlers
from dfc.api.v1.cluster import ClusterHandlers
from dfc.api.v1.jobs import JobHandlers, OperationHandlers
from dfc.batch.gather import BATCH_QUERY, batch_answer, read_request, wants_lengths
from dfc.http.answers import OBJECT_QUERY, Answer, flag
from dfc.http.budget import BATCHES
from dfc.http.exchange import Exchange
from dfc.http.faces import Authenticate, Endpoint, Face, Handlers, Route
from dfc.http.relay import Relay
from dfc.names import parse_object_path
from dfc.proxy.admin import ProxyServices
from dfc.proxy.objects import Objects, ProxyBatches


class ProxyObjectHandlers:
    """Handlers of `/v1/objects/{bucket}/{object…}`."""

    def __init__(self, objects: Objects, relay: Relay) -> None:
        self._when_ready = objects.when_ready
        self._relay = relay

    async def object(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Redirect to the owner with 307, before reading any of the body; with `?relay=1`, relay the request."""
        owners = self._when_ready()
        path = parse_object_path(f"/{parameters[0]}/{parameters[1]}")
        relays = exchange.raw_query and flag(exchange.query_parameters(OBJECT_QUERY), "relay")
        nodes = await nodes_for(exchange, owners, path)
        return await relay_to(nodes, exchange, self._relay, owners, path) if relays else redirect_to(nodes[0], exchange)

    def object_at_once(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer | None:
        """`object` for a read that is simply redirected; else None."""
        if exchange.raw_query:
            return None
        owners = self._when_ready()
        path = parse_object_path(f"/{parameters[0]}/{parameters[1]}")
        return redirect_to(owners.readers(path.bucket, path.name)[0], exchange)


class ProxyBatchHandlers(Handlers):
    """The handler of `/v1/batch`."""

    def __init__(self, batches: ProxyBatches) -> None:
        self._batches = batches

    async def batch(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Answer a list of items from anywhere in the cluster."""
        with_lengths = wants_lengths(exchange)
        request, place = await read_request(exchange, BATCHES)
        batch = await self._batches.gather(request, place, exchange.bulk.threads, with_lengths=with_lengths)
        return batch_answer(batch, with_lengths=with_lengths)

    ENDPOINTS = (Endpoint("/v1/batch", {"POST": batch}, BATCH_QUERY, reads=True),)


def proxy_face(
    uses: ProxyServices, relay: Relay, peers: ProxyPeers, metrics: Callable[[], CollectorRegistry], may_use: Authenticate
) -> Face:
    """Make the face for all paths under `/v1`, and `/metrics`."""
    objects = ProxyObjectHandlers(uses.objects, relay)
    subjects = (
        BucketHandlers(uses),
        JobHandlers(uses.jobs),
        OperationHandlers(uses),
        ProxyBatchHandlers(uses.batches),
        ClusterHandlers(uses.admin, uses.checks, uses.rates, uses.nodes, metrics),
    )
    here = dict.fromkeys(("GET", "PUT", "DELETE"), objects.object)
    large = Route("/v1/objects/{bucket}/{object…}", here, query=OBJECT_QUERY, at_once=objects.object_at_once)
    return Face("v1", [peers.route(large), *peers.routes(*subjects)], may_use, segments=frozenset(("v1",)))
