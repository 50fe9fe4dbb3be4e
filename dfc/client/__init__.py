"""The Python client: a blocking `Client`, and `AsyncClient` for asyncio. Both can talk to any node of a cluster.

    from dfc.client import Client

    with Client("http://127.0.0.1:8080") as client:
        client.put("imagenet", "train-000000.tar", "train-000000.tar")
        for sample in client.samples("imagenet", "train-000000.tar"):
            image = client.read_sample_member("imagenet", "train-000000.tar", sample.key, "jpg")

Errors are classes of `dfc.errors`; `Unreachable` means that no node answered.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dfc.batch.items import BatchItem
    from dfc.client.aio import AsyncClient, AsyncJobs, AsyncReader
    from dfc.client.client import Client
    from dfc.client.jobs import JobFailed, Jobs, job_spec
    from dfc.client.search import SearchReader, SearchResult
    from dfc.client.transfers import ObjectReader
    from dfc.http.retry import Cancellation, Cancelled, RetryPolicy
    from dfc.reach.reading import BatchReader
    from dfc.wire.jobs import Job, JobOutput, JobProgress
    from dfc.wire.objects import (
        BucketInfo,
        DatasetInfo,
        Extent,
        KeyInfo,
        ListPage,
        MemberInfo,
        ObjectInfo,
        OperationInfo,
        SampleInfo,
        SampleMatch,
        StoredObject,
        UnsearchedShard,
    )
    from dfc.wire.status import ClusterCheck, ClusterProblem, ClusterStats, ClusterStatus, NodeFigures, Rebalance

__all__ = [
    "AsyncClient",
    "AsyncJobs",
    "AsyncReader",
    "BatchItem",
    "BatchReader",
    "BucketInfo",
    "Cancellation",
    "Cancelled",
    "Client",
    "ClusterCheck",
    "ClusterProblem",
    "ClusterStats",
    "ClusterStatus",
    "DatasetInfo",
    "Extent",
    "Job",
    "JobFailed",
    "JobOutput",
    "JobProgress",
    "Jobs",
    "KeyInfo",
    "ListPage",
    "MemberInfo",
    "NodeFigures",
    "ObjectInfo",
    "ObjectReader",
    "OperationInfo",
    "Rebalance",
    "RetryPolicy",
    "SampleInfo",
    "SampleMatch",
    "SearchReader",
    "SearchResult",
    "StoredObject",
    "UnsearchedShard",
    "job_spec",
]

# Modules are imported lazily: readers of shards need neither httpx nor asyncio, and start 0.2 s sooner without them.
_MODULES = {
    "AsyncClient": "dfc.client.aio",
    "AsyncJobs": "dfc.client.aio",
    "AsyncReader": "dfc.client.aio",
    "BatchItem": "dfc.batch.items",
    "BatchReader": "dfc.reach.reading",
    "BucketInfo": "dfc.wire.objects",
    "Cancellation": "dfc.http.retry",
    "Cancelled": "dfc.http.retry",
    "Client": "dfc.client.client",
    "ClusterCheck": "dfc.wire.status",
    "ClusterProblem": "dfc.wire.status",
    "ClusterStats": "dfc.wire.status",
    "ClusterStatus": "dfc.wire.status",
    "Extent": "dfc.wire.objects",
    "Job": "dfc.wire.jobs",
    "JobFailed": "dfc.client.jobs",
    "JobOutput": "dfc.wire.jobs",
    "JobProgress": "dfc.wire.jobs",
    "Jobs": "dfc.client.jobs",
    "DatasetInfo": "dfc.wire.objects",
    "KeyInfo": "dfc.wire.objects",
    "ListPage": "dfc.wire.objects",
    "MemberInfo": "dfc.wire.objects",
    "NodeFigures": "dfc.wire.status",
    "ObjectInfo": "dfc.wire.objects",
    "ObjectReader": "dfc.client.transfers",
    "OperationInfo": "dfc.wire.objects",
    "Rebalance": "dfc.wire.status",
    "RetryPolicy": "dfc.http.retry",
    "SampleInfo": "dfc.wire.objects",
    "SampleMatch": "dfc.wire.objects",
    "SearchReader": "dfc.client.search",
    "SearchResult": "dfc.client.search",
    "StoredObject": "dfc.wire.objects",
    "UnsearchedShard": "dfc.wire.objects",
    "job_spec": "dfc.client.jobs",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
