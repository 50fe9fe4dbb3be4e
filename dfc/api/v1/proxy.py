"""The routes of `/v1` at a proxy: those of objects, and those that the classes of handlers declare."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from dfc.api.peers import ProxyPeers
from dfc.api.v1.batch import ProxyBatchHandlers
from dfc.api.v1.buckets import BucketHandlers
from dfc.api.v1.cluster import ClusterHandlers
from dfc.api.v1.jobs import JobHandlers, OperationHandlers
from dfc.api.v1.objects import ProxyObjectHandlers
from dfc.http.common import OBJECT_QUERY
from dfc.http.relay import Relay
from dfc.http.router import Authenticate, Face, Route
from dfc.proxy.uses import ProxyUses


def proxy_face(
    uses: ProxyUses, relay: Relay, peers: ProxyPeers, metrics: Callable[[], CollectorRegistry], may_use: Authenticate
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
