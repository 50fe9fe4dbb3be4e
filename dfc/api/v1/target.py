"""The routes of `/v1` at a target: those it answers itself, and those it passes to a proxy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry

from dfc.api.stored import Elsewhere, StoredHandlers
from dfc.api.v1.batch_target import TargetBatchHandlers
from dfc.api.v1.cluster_target import TargetStateHandlers
from dfc.api.v1.objects_target import TargetObjectHandlers
from dfc.batch.answer import BATCH_QUERY
from dfc.http.common import BUCKET_QUERY, JOBS_QUERY, KEYS_QUERY, LISTING_QUERY, OBJECT_QUERY
from dfc.http.face import Authenticate, Face
from dfc.http.router import Route
from dfc.target.batch.opening import OwnBatches
from dfc.target.local import Local


def target_face(
    local: Local,
    stored: StoredHandlers,
    batches: OwnBatches,
    elsewhere: Elsewhere,
    metrics: Callable[[], Awaitable[CollectorRegistry]],
    may_use: Authenticate,
) -> Face:
    """Make the face, with the same paths as at a proxy. `metrics`: see `TargetStateHandlers`."""
    objects, state = TargetObjectHandlers(stored), TargetStateHandlers(local, elsewhere, metrics)
    here, away = dict.fromkeys(("GET", "PUT", "DELETE"), objects.object), elsewhere.answer
    named = dict.fromkeys(("GET", "PUT", "PATCH", "DELETE"), away)
    routes = [
        Route("/v1/objects/{bucket}/{object…}", here, query=OBJECT_QUERY, at_once=objects.at_once),
        Route("/v1/batch", {"POST": TargetBatchHandlers(batches).batch}, BATCH_QUERY, reads=True),
        Route("/v1/health", {"GET": state.health}),
        Route("/metrics", {"GET": state.prometheus}),
        Route("/v1/cluster", {"GET": state.cluster}),
        Route("/v1/cluster/scrub", {"GET": away, "POST": away}),
        Route("/v1/jobs", {"GET": away, "POST": away}, query=JOBS_QUERY),
        Route("/v1/jobs/{job}", {"GET": away, "DELETE": away}),
        Route("/v1/jobs/{job}/events", {"GET": away}),
        Route("/v1/buckets", {"GET": away}),
        Route("/v1/buckets/{bucket}/objects", {"GET": away}, query=LISTING_QUERY),
        Route("/v1/buckets/{bucket}/samples", {"GET": away}, query=KEYS_QUERY),
        Route("/v1/buckets/{bucket}", named, query=BUCKET_QUERY),
    ]
    return Face("v1", routes, may_use, segments=frozenset(("v1",)))
