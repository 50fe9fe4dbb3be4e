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
    "AsyncClient", "AsyncJobs", "AsyncReader", "BatchItem", "BatchReader", "BucketInfo", "Cancellation", "Cancelled", "Client",
    "ClusterCheck", "ClusterProblem", "ClusterStats", "ClusterStatus", "DatasetInfo", "Extent", "Job", "JobFailed", "JobOutput",
    "JobProgress", "Jobs", "KeyInfo", "ListPage", "MemberInfo", "NodeFigures", "ObjectInfo", "ObjectReader", "OperationInfo",
    "Rebalance", "RetryPolicy", "SampleInfo", "SampleMatch", "SearchReader", "SearchResult", "StoredObject", "UnsearchedShard",
    "job_spec",
]  # fmt: skip

# Modules are imported lazily: readers of shards need neither httpx nor asyncio, and start 0.2 s sooner without them.
_NAMES = {
    "dfc.batch.items": ("BatchItem",),
    "dfc.client.aio": ("AsyncClient", "AsyncJobs", "AsyncReader"),
    "dfc.client.client": ("Client",),
    "dfc.client.jobs": ("JobFailed", "Jobs", "job_spec"),
    "dfc.client.search": ("SearchReader", "SearchResult"),
    "dfc.client.transfers": ("ObjectReader",),
    "dfc.http.retry": ("Cancellation", "Cancelled", "RetryPolicy"),
    "dfc.reach.reading": ("BatchReader",),
    "dfc.wire.jobs": ("Job", "JobOutput", "JobProgress"),
    "dfc.wire.objects": (
        "BucketInfo", "DatasetInfo", "Extent", "KeyInfo", "ListPage", "MemberInfo", "ObjectInfo", "OperationInfo", "SampleInfo",
        "SampleMatch", "StoredObject", "UnsearchedShard",
    ),
    "dfc.wire.status": ("ClusterCheck", "ClusterProblem", "ClusterStats", "ClusterStatus", "NodeFigures", "Rebalance"),
}  # fmt: skip
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
