"""The routes of `/v1` at a target: those it answers itself, and those it passes to a proxy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from prometheus_client import CollectorRegistry

from dfc.api.stored import Elsewhere, StoredHandlers
from dfc.api.v1.batch_target import TargetBatchHandlers
from dfc.api.v1.buckets import BucketHandlers
from dfc.api.v1.cluster import ClusterHandlers
from dfc.api.v1.cluster_target import TargetStateHandlers
from dfc.api.v1.jobs import JobHandlers, OperationHandlers
from dfc.api.v1.objects_target import TargetObjectHandlers
from dfc.http.common import OBJECT_QUERY
from dfc.http.router import Authenticate, Face, Route, routes_of
from dfc.target.batch.opening import OwnBatches
from dfc.target.local import Local

PROXY_ENDPOINTS: Final = (
    *BucketHandlers.ENDPOINTS,
    *JobHandlers.ENDPOINTS,
    *OperationHandlers.ENDPOINTS,
    *ClusterHandlers.ENDPOINTS,
)


def target_face(
    local: Local,
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
