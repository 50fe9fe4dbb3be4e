"""The routes of `/v1` at a proxy."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from dfc.api.v1.batch import ProxyBatchHandlers
from dfc.api.v1.buckets import BucketHandlers
from dfc.api.v1.cluster import ClusterHandlers
from dfc.api.v1.jobs import JobHandlers
from dfc.api.v1.objects import ProxyObjectHandlers
from dfc.batch.answer import BATCH_QUERY
from dfc.http.common import BUCKET_QUERY, JOBS_QUERY, KEYS_QUERY, LISTING_QUERY, OBJECT_QUERY
from dfc.http.face import Authenticate, Face
from dfc.http.relay import Relay
from dfc.http.router import Route
from dfc.proxy.uses import ProxyUses


def proxy_face(uses: ProxyUses, relay: Relay, metrics: Callable[[], CollectorRegistry], may_use: Authenticate) -> Face:
    """Make the face for all paths under `/v1`, and `/metrics`."""
    objects, buckets, jobs = ProxyObjectHandlers(uses.objects, relay), BucketHandlers(uses), JobHandlers(uses.jobs)
    cluster, batches = ClusterHandlers(uses.admin, metrics), ProxyBatchHandlers(uses.batches)
    named = {"GET": buckets.get, "PUT": buckets.put, "PATCH": buckets.patch, "DELETE": buckets.delete}
    routes = [
        Route(
            "/v1/objects/{bucket}/{object…}",
            dict.fromkeys(("GET", "PUT", "DELETE"), objects.object),
            query=OBJECT_QUERY,
            at_once=objects.object_at_once,
        ),
        Route("/v1/buckets", {"GET": buckets.list}),
        Route("/v1/buckets/{bucket}/objects", {"GET": buckets.objects}, query=LISTING_QUERY),
        Route("/v1/buckets/{bucket}/samples", {"GET": buckets.samples}, query=KEYS_QUERY),
        Route("/v1/buckets/{bucket}", named, query=BUCKET_QUERY),
        Route("/v1/jobs", {"GET": jobs.list, "POST": jobs.submit}, query=JOBS_QUERY),
        Route("/v1/jobs/{job}", {"GET": jobs.show, "DELETE": jobs.cancel}),
        Route("/v1/jobs/{job}/events", {"GET": jobs.events}),
        Route("/v1/batch", {"POST": batches.batch}, BATCH_QUERY, reads=True),
        Route("/v1/cluster", {"GET": cluster.cluster_map}),
        Route("/v1/cluster/scrub", {"GET": cluster.scrub_status, "POST": cluster.start_scrub}),
        Route("/v1/health", {"GET": cluster.health}),
        Route("/metrics", {"GET": cluster.prometheus}),
    ]
    return Face("v1", routes, may_use, segments=frozenset(("v1",)))
