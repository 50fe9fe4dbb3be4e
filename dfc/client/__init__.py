"""The Python client: `Client` blocks, `AsyncClient` is for asyncio; both speak to any node of a cluster.

    from dfc.client import Client

    with Client("http://127.0.0.1:8080") as client:
        client.put("imagenet", "train-000000.tar", "train-000000.tar")
        for sample in client.samples("imagenet", "train-000000.tar"):
            image = client.read_sample_member("imagenet", "train-000000.tar", sample.key, "jpg")

Errors are the classes of `dfc.errors`; `Unreachable` when no node answers.
"""

from dfc.client.aio import AsyncClient, AsyncReader
from dfc.client.batch import BatchReader
from dfc.client.client import Client
from dfc.client.jobs import AsyncJobs, Job, JobFailed, JobOutput, JobProgress, Jobs, job_spec
from dfc.client.models import (
    BucketInfo,
    Extent,
    KeyInfo,
    ListPage,
    MemberInfo,
    ObjectInfo,
    SampleInfo,
    StoredObject,
)
from dfc.client.reader import ObjectReader
from dfc.http.batch_items import BatchItem
from dfc.http.retry import Cancellation, Cancelled, RetryPolicy

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
    "Extent",
    "Job",
    "JobFailed",
    "JobOutput",
    "JobProgress",
    "Jobs",
    "KeyInfo",
    "ListPage",
    "MemberInfo",
    "ObjectInfo",
    "ObjectReader",
    "RetryPolicy",
    "SampleInfo",
    "StoredObject",
    "job_spec",
]
