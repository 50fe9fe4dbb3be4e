"""The client for asyncio: runs the calls of `Client` in threads, because only blocking reads are as fast as the disks.

Cancelling a task closes the sockets of its call, so the thread ends too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from dfc.batch.items import BatchItem, OnMissing
from dfc.checksum import Buffer
from dfc.client.batch import Items, portions
from dfc.client.client import Client
from dfc.client.jobs import AsyncJobs
from dfc.client.models import (
    BucketInfo,
    DatasetInfo,
    KeyInfo,
    ListPage,
    MemberInfo,
    ObjectInfo,
    OperationInfo,
    SampleInfo,
    StoredObject,
)
from dfc.client.reader import ObjectReader
from dfc.client.searching import SampleMatch, SearchReader, SearchResult
from dfc.client.source import Body
from dfc.client.status import ClusterCheck, ClusterProblem, ClusterStats, ClusterStatus, Rebalance
from dfc.http.calls.retry import Cancellation, Cancelled, cancelled_by, current_cancellation
from dfc.limits import LIST_PAGE_MAX
from dfc.placement.map import ClusterMap
from dfc.reach.batch import BatchReader
from dfc.wire import DEFAULT_URL

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

THREADS: Final = 32  # calls that run at once; more wait
CANCEL_WAIT_S: Final = 1.0
_BATCH: Final = 256  # items taken from an iterator per call to a thread
P = ParamSpec("P")
T = TypeVar("T")


class _Threads:
    """Runs blocking calls in threads; each can be cancelled on its own."""

    def __init__(self, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="dfc-client")

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        cancellation = Cancellation()

        def work() -> T:
            with cancelled_by(cancellation):
                return call(*args, **kwargs)

        future = asyncio.get_running_loop().run_in_executor(self._executor, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            cancellation.cancel()
            # A transfer ends at once; until then the caller must not reuse its buffers. A call that takes longer to end
            # (it waits for a connection, or for the answer to a control call) does not touch any buffer.
            await asyncio.wait([future], timeout=CANCEL_WAIT_S)
            future.add_done_callback(_take_exception)
            raise

    def close(self) -> None:
        self._executor.shutdown(wait=False)


def _take_exception(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


class AsyncReader:
    """An asynchronous reader of one object; for speed, `readinto` a large buffer. See `ObjectReader`."""

    def __init__(self, threads: _Threads, reader: ObjectReader) -> None:
        self._threads = threads
        self._reader = reader

    @property
    def info(self) -> ObjectInfo:
        return self._reader.info

    async def readinto(self, buffer: bytearray | memoryview) -> int:
        """Fill the buffer and return the number of bytes: fewer at the end, then 0. ChecksumMismatch with the last bytes."""
        return await self._threads.run(self._reader.readinto, buffer)

    async def read(self, size: int = -1) -> bytes:
        data = await self._threads.run(self._reader.read, size)
        return data or b""

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._reader.seek(offset, whence)

    def tell(self) -> int:
        return self._reader.tell()

    async def close(self) -> None:
        await self._threads.run(self._reader.close)

    async def __aenter__(self) -> AsyncReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncBatchReader:
    """An asynchronous reader of the tar of a batch read; see `BatchReader`."""

    def __init__(self, threads: _Threads, reader: BatchReader) -> None:
        self._threads = threads
        self._reader = reader
        self.size = reader.size
        self.lengths = reader.lengths

    async def readinto(self, buffer: bytearray | memoryview) -> int:
        """Fill the buffer and return the number of bytes: fewer at the end, then 0."""
        return await self._threads.run(self._reader.readinto, buffer)

    async def close(self) -> None:
        await self._threads.run(self._reader.close)

    async def __aenter__(self) -> AsyncBatchReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncSearchReader:
    """An asynchronous iterator over the samples that a search finds; see `SearchReader`."""

    def __init__(self, reader: SearchReader, samples: AsyncIterator[SampleMatch]) -> None:
        self._reader = reader
        self._samples = samples

    @property
    def result(self) -> SearchResult:
        """What there is to say of the search until now: all but the samples."""
        return self._reader.result

    def __aiter__(self) -> AsyncIterator[SampleMatch]:
        return self._samples


class AsyncClient:
    """`Client` for asyncio: the same methods as coroutines, with asynchronous iterators instead of iterators."""

    def __init__(
        self, url: str = DEFAULT_URL, token: str | None = None, *, retries: int | None = None, threads: int = THREADS
    ) -> None:
        self._client = Client(url, token, retries=retries)
        self._threads = _Threads(threads)
        self.jobs = AsyncJobs(self._client.jobs, self._threads.run, self._iterate)

    @property
    def url(self) -> str:
        return self._client.url

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._threads.run(self._client.close)
        self._threads.close()

    async def put(
        self,
        bucket: str,
        name: str,
        body: Body | AsyncIterable[bytes],
        *,
        checksum: str | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> StoredObject:
        """Like `Client.put`; the body can also be an asynchronous iterable. `progress` is called in a thread."""
        given: Any = body
        if isinstance(body, AsyncIterable):
            given = _from_loop(body, asyncio.get_running_loop())
        return await self._threads.run(
            self._client.put,
            bucket,
            name,
            given,
            checksum=checksum,
            if_match=if_match,
            if_none_match=if_none_match,
            progress=progress,
        )

    async def get(self, bucket: str, name: str, *, start: int = 0, length: int | None = None) -> bytes:
        return await self._threads.run(self._client.get, bucket, name, start=start, length=length)

    async def open(self, bucket: str, name: str, *, start: int = 0, length: int | None = None) -> AsyncReader:
        reader = await self._threads.run(self._client.open, bucket, name, start=start, length=length)
        return AsyncReader(self._threads, reader)

    async def get_to_file(
        self,
        bucket: str,
        name: str,
        path: str | os.PathLike[str],
        *,
        resume: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> ObjectInfo:
        return await self._threads.run(self._client.get_to_file, bucket, name, path, resume=resume, progress=progress)

    async def stat(self, bucket: str, name: str) -> ObjectInfo:
        return await self._threads.run(self._client.stat, bucket, name)

    head = stat

    async def delete(self, bucket: str, name: str, *, if_match: str | None = None) -> None:
        await self._threads.run(self._client.delete, bucket, name, if_match=if_match)

    async def list_page(
        self,
        bucket: str,
        *,
        prefix: str = "",
        start_after: str = "",
        delimiter: str = "",
        limit: int = LIST_PAGE_MAX,
        token: str | None = None,
    ) -> ListPage:
        return await self._threads.run(
            self._client.list_page,
            bucket,
            prefix=prefix,
            start_after=start_after,
            delimiter=delimiter,
            limit=limit,
            token=token,
        )

    def list(self, bucket: str, *, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectInfo]:
        return self._iterate(lambda: self._client.list(bucket, prefix=prefix, start_after=start_after))

    async def datasets(self, bucket: str, *, prefix: str = "") -> Sequence[DatasetInfo]:
        return await self._threads.run(self._client.datasets, bucket, prefix=prefix)

    def members(self, bucket: str, shard: str, *, start: int = 0, limit: int | None = None) -> AsyncIterator[MemberInfo]:
        return self._iterate(lambda: self._client.members(bucket, shard, start=start, limit=limit))

    def unsampled(self, bucket: str, shard: str, *, start: int = 0, limit: int | None = None) -> AsyncIterator[MemberInfo]:
        return self._iterate(lambda: self._client.unsampled(bucket, shard, start=start, limit=limit))

    def samples(self, bucket: str, shard: str, *, start: int = 0, limit: int | None = None) -> AsyncIterator[SampleInfo]:
        return self._iterate(lambda: self._client.samples(bucket, shard, start=start, limit=limit))

    def keys(self, bucket: str, shards: str | Sequence[str], *, fields: str = "all") -> AsyncIterator[KeyInfo]:
        return self._iterate(lambda: self._client.keys(bucket, shards, fields=fields))

    async def find_samples(
        self,
        bucket: str,
        *,
        key: str | None = None,
        prefix: str | None = None,
        contains: str | None = None,
        shards: str | Sequence[str] | None = None,
        limit: int | None = None,
        token: str | None = None,
    ) -> SearchResult:
        """Like `Client.find_samples`."""
        given = {"key": key, "prefix": prefix, "contains": contains, "token": token}
        return await self._threads.run(self._client.find_samples, bucket, shards=shards, limit=limit, **given)

    def open_search(
        self,
        bucket: str,
        *,
        key: str | None = None,
        prefix: str | None = None,
        contains: str | None = None,
        shards: str | Sequence[str] | None = None,
        limit: int | None = None,
        token: str | None = None,
    ) -> AsyncSearchReader:
        """Like `Client.open_search`."""
        given = {"key": key, "prefix": prefix, "contains": contains, "token": token}
        reader = self._client.open_search(bucket, shards=shards, limit=limit, **given)
        return AsyncSearchReader(reader, self._iterate(lambda: reader))

    async def sample_offsets(self, bucket: str, shard: str, *, etag: str | None = None) -> NDArray[np.uint64]:
        """Like `Client.sample_offsets`."""
        return await self._threads.run(self._client.sample_offsets, bucket, shard, etag=etag)

    async def read_member(self, bucket: str, shard: str, member: str, *, start: int = 0, length: int | None = None) -> bytes:
        return await self._threads.run(self._client.read_member, bucket, shard, member, start=start, length=length)

    async def open_member(
        self, bucket: str, shard: str, member: str, *, start: int = 0, length: int | None = None
    ) -> AsyncReader:
        reader = await self._threads.run(self._client.open_member, bucket, shard, member, start=start, length=length)
        return AsyncReader(self._threads, reader)

    async def read_sample(self, bucket: str, shard: str, key: str) -> dict[str, bytes]:
        return await self._threads.run(self._client.read_sample, bucket, shard, key)

    async def read_sample_tar(self, bucket: str, shard: str, key: str) -> bytes:
        return await self._threads.run(self._client.read_sample_tar, bucket, shard, key)

    async def read_sample_member(self, bucket: str, shard: str, key: str, ext: str) -> bytes:
        return await self._threads.run(self._client.read_sample_member, bucket, shard, key, ext)

    async def open_sample(self, bucket: str, shard: str, key: str, ext: str | None = None) -> AsyncReader:
        return AsyncReader(self._threads, await self._threads.run(self._client.open_sample, bucket, shard, key, ext))

    async def batch(self, items: Items, *, on_missing: OnMissing = "fail") -> AsyncIterator[tuple[str, bytes]]:
        """Like `Client.batch`."""
        async for portion in self._iterate(lambda: portions(self._client.batch(items, on_missing=on_missing)), 1):
            for member in portion:
                yield member

    async def open_batch(
        self, items: Sequence[BatchItem | Mapping[str, Any]], *, on_missing: OnMissing = "fail", lengths: bool = False
    ) -> AsyncBatchReader:
        reader = await self._threads.run(self._client.open_batch, items, on_missing=on_missing, lengths=lengths)
        return AsyncBatchReader(self._threads, reader)

    async def list_buckets(self) -> tuple[BucketInfo, ...]:
        return await self._threads.run(self._client.list_buckets)

    async def bucket(self, name: str) -> BucketInfo:
        return await self._threads.run(self._client.bucket, name)

    async def create_bucket(
        self, name: str, *, durability: str = "fsync", copies: int | None = None, min_copies: int | None = None
    ) -> None:
        await self._threads.run(self._client.create_bucket, name, durability=durability, copies=copies, min_copies=min_copies)

    async def change_bucket(
        self, name: str, *, durability: str | None = None, copies: int | None = None, min_copies: int | None = None
    ) -> BucketInfo:
        return await self._threads.run(
            self._client.change_bucket, name, durability=durability, copies=copies, min_copies=min_copies
        )

    async def delete_bucket(self, name: str, *, force: bool = False) -> None:
        await self._threads.run(self._client.delete_bucket, name, force=force)

    async def cluster_map(self) -> ClusterMap:
        return await self._threads.run(self._client.cluster_map)

    async def own_map(self) -> ClusterMap:
        return await self._threads.run(self._client.own_map)

    async def operations(self) -> tuple[OperationInfo, ...]:
        return await self._threads.run(self._client.operations)

    async def cluster_status(self) -> ClusterStatus:
        return await self._threads.run(self._client.cluster_status)

    async def cluster_problems(self) -> tuple[ClusterProblem, ...]:
        return await self._threads.run(self._client.cluster_problems)

    async def cluster_stats(self, seconds: int = 60) -> ClusterStats:
        return await self._threads.run(self._client.cluster_stats, seconds)

    async def about_node(self, node: str) -> dict[str, Any]:
        return await self._threads.run(self._client.about_node, node)

    async def health(self, *, patient: bool = True) -> dict[str, Any]:
        return await self._threads.run(self._client.health, patient=patient)

    async def drain(self, subject: str) -> tuple[str, ...]:
        return await self._threads.run(self._client.drain, subject)

    async def activate(self, subject: str) -> tuple[str, ...]:
        return await self._threads.run(self._client.activate, subject)

    async def set_weight(self, subject: str, weight: float) -> dict[str, float]:
        return await self._threads.run(self._client.set_weight, subject, weight)

    async def check_stop(self, node: str) -> None:
        await self._threads.run(self._client.check_stop, node)

    async def expect_down(self, target: str, seconds: int) -> str:
        return await self._threads.run(self._client.expect_down, target, seconds)

    async def rebalance(self, *, paused: bool | None = None, rate_bytes_per_s: int | None = None) -> Rebalance:
        return await self._threads.run(self._client.rebalance, paused=paused, rate_bytes_per_s=rate_bytes_per_s)

    async def remove_from_cluster(self, subject: str, *, accept_loss: bool = False) -> tuple[str, ...]:
        return await self._threads.run(self._client.remove_from_cluster, subject, accept_loss=accept_loss)

    async def start_check(self, buckets: Sequence[str] = ()) -> str:
        return await self._threads.run(self._client.start_check, buckets)

    async def check_status(self) -> ClusterCheck:
        return await self._threads.run(self._client.check_status)

    async def start_scrub(self) -> None:
        await self._threads.run(self._client.start_scrub)

    async def scrub_status(self) -> dict[str, Any]:
        return await self._threads.run(self._client.scrub_status)

    async def _iterate(self, begin: Callable[[], Iterator[T]], batch: int = _BATCH) -> AsyncIterator[T]:
        iterator = await self._threads.run(begin)
        try:
            while items := await self._threads.run(_take, iterator, batch):
                for item in items:
                    yield item
        finally:
            # Closing a generator that was not exhausted frees its connection.
            close = getattr(iterator, "close", None)
            if close is not None:
                await self._threads.run(close)


def _take(iterator: Iterator[T], batch: int) -> Sequence[T]:
    return list(islice(iterator, batch))


def _from_loop(pieces: AsyncIterable[bytes], loop: asyncio.AbstractEventLoop) -> Iterator[Buffer]:
    """Iterate over an asynchronous iterable in a thread: each piece is awaited on the loop."""
    iterator = aiter(pieces)

    async def following() -> bytes | None:
        return await anext(iterator, None)

    while (piece := _await_on(loop, following())) is not None:
        yield piece


def _await_on(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, bytes | None]) -> bytes | None:
    cancellation = current_cancellation(Cancellation())
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    while True:
        try:
            return future.result(timeout=CANCEL_WAIT_S / 4)
        except TimeoutError:
            if future.done():
                raise  # the iterable itself raised it
            if cancellation.is_set:
                future.cancel()
                raise Cancelled from None
