"""The client for asyncio: runs the calls of `Client` in threads, because only blocking reads are as fast as the disks.

Cancelling a task closes the sockets of its call, so the thread ends too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from inspect import signature
from itertools import islice
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from dfc.batch.items import BatchItem, OnMissing
from dfc.checksum import Buffer
from dfc.client.client import Client
from dfc.client.jobs import Jobs
from dfc.client.search import Items, SearchReader, SearchResult, portions
from dfc.client.transfers import Body, ObjectReader
from dfc.http.retry import Cancellation, Cancelled, cancelled_by, current_cancellation
from dfc.reach.reading import BatchReader
from dfc.wire import DEFAULT_URL
from dfc.wire.objects import ObjectInfo, SampleMatch, StoredObject

THREADS: Final = 32  # calls that run at once; more wait
CANCEL_WAIT_S: Final = 1.0
_BATCH: Final = 256  # items taken from an iterator per call to a thread
P = ParamSpec("P")
R = TypeVar("R", bound=ObjectReader | BatchReader)
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
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


class _Reading(Generic[R]):
    """Base of what reads in threads."""

    def __init__(self, threads: _Threads, reader: R) -> None:
        self._threads = threads
        self._reader = reader

    async def readinto(self, buffer: bytearray | memoryview) -> int:
        """Fill the buffer and return the number of bytes: fewer at the end, then 0. An object's ChecksumMismatch comes with
        its last bytes."""
        return await self._threads.run(self._reader.readinto, buffer)

    async def close(self) -> None:
        await self._threads.run(self._reader.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncReader(_Reading[ObjectReader]):
    """An asynchronous reader of one object; for speed, `readinto` a large buffer. See `ObjectReader`."""

    @property
    def info(self) -> ObjectInfo:
        return self._reader.info

    async def read(self, size: int = -1) -> bytes:
        data = await self._threads.run(self._reader.read, size)
        return data or b""

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._reader.seek(offset, whence)

    def tell(self) -> int:
        return self._reader.tell()


class AsyncBatchReader(_Reading[BatchReader]):
    """An asynchronous reader of the tar of a batch read; see `BatchReader`."""

    def __init__(self, threads: _Threads, reader: BatchReader) -> None:
        super().__init__(threads, reader)
        self.size = reader.size
        self.lengths = reader.lengths


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


class _Threaded(Generic[S_co]):
    """Base of what calls an object of the blocking client in threads."""

    def __init__(self, blocking: S_co, threads: _Threads) -> None:
        self._blocking = blocking
        self._threads = threads


def _threaded(call: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[_Threaded[S], P], Coroutine[Any, Any, T]]:
    """The same call as a coroutine."""

    @wraps(call)
    async def run(self: _Threaded[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._threads.run(call, self._blocking, *args, **kwargs)

    return run


def _opened(
    call: Callable[Concatenate[S, P], ObjectReader],
) -> Callable[Concatenate[_Threaded[S], P], Coroutine[Any, Any, AsyncReader]]:
    """The same call as a coroutine, with an asynchronous reader."""

    @wraps(call)
    async def run(self: _Threaded[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncReader:
        return AsyncReader(self._threads, await self._threads.run(call, self._blocking, *args, **kwargs))

    run.__signature__ = signature(call).replace(return_annotation="AsyncReader")  # type: ignore[attr-defined]
    return run


def _iterated(
    call: Callable[Concatenate[S, P], Iterator[T]], batch: int = _BATCH
) -> Callable[Concatenate[_Threaded[S], P], AsyncIterator[T]]:
    """The same call with an asynchronous iterator, for which so many items at a time are taken from the other one."""

    @wraps(call)
    def run(self: _Threaded[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return _iterate(self._threads, lambda: call(self._blocking, *args, **kwargs), batch)

    known = signature(call)
    run.__signature__ = known.replace(return_annotation=f"Async{known.return_annotation}")  # type: ignore[attr-defined]
    return run


class AsyncJobs(_Threaded[Jobs]):
    """`Jobs` for asyncio: the same methods as coroutines, with asynchronous iterators instead of iterators."""

    submit = _threaded(Jobs.submit)
    plan = _threaded(Jobs.plan)
    get = _threaded(Jobs.get)
    spec = _threaded(Jobs.spec)
    list = _iterated(Jobs.list)
    cancel = _threaded(Jobs.cancel)
    events = _iterated(Jobs.events, 1)  # each is passed on as it arrives
    tasks = _threaded(Jobs.tasks)
    history = _threaded(Jobs.history)
    log = _threaded(Jobs.log)
    wait = _threaded(Jobs.wait)


class AsyncClient(_Threaded[Client]):
    """`Client` for asyncio: the same methods as coroutines, with asynchronous iterators instead of iterators."""

    def __init__(
        self, url: str = DEFAULT_URL, token: str | None = None, *, retries: int | None = None, threads: int = THREADS
    ) -> None:
        super().__init__(Client(url, token, retries=retries), _Threads(threads))
        self.jobs = AsyncJobs(self._blocking.jobs, self._threads)

    @property
    def url(self) -> str:
        return self._blocking.url

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._threads.run(self._blocking.close)
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
        given: Any = _from_loop(body, asyncio.get_running_loop()) if isinstance(body, AsyncIterable) else body
        return await self._threads.run(
            self._blocking.put,
            bucket,
            name,
            given,
            checksum=checksum,
            if_match=if_match,
            if_none_match=if_none_match,
            progress=progress,
        )

    get = _threaded(Client.get)
    open = _opened(Client.open)
    get_to_file = _threaded(Client.get_to_file)
    stat = _threaded(Client.stat)
    head = stat
    delete = _threaded(Client.delete)
    list_page = _threaded(Client.list_page)
    list = _iterated(Client.list)
    datasets = _threaded(Client.datasets)
    members = _iterated(Client.members)
    unsampled = _iterated(Client.unsampled)
    samples = _iterated(Client.samples)
    keys = _iterated(Client.keys)
    find_samples = _threaded(Client.find_samples)

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
        reader = self._blocking.open_search(bucket, shards=shards, limit=limit, **given)
        return AsyncSearchReader(reader, _iterate(self._threads, lambda: reader))

    sample_offsets = _threaded(Client.sample_offsets)
    read_member = _threaded(Client.read_member)
    open_member = _opened(Client.open_member)
    read_sample = _threaded(Client.read_sample)
    read_sample_tar = _threaded(Client.read_sample_tar)
    read_sample_member = _threaded(Client.read_sample_member)
    open_sample = _opened(Client.open_sample)

    async def batch(self, items: Items, *, on_missing: OnMissing = "fail") -> AsyncIterator[tuple[str, bytes]]:
        """Like `Client.batch`."""
        async for portion in _iterate(self._threads, lambda: portions(self._blocking.batch(items, on_missing=on_missing)), 1):
            for member in portion:
                yield member

    async def open_batch(
        self, items: Sequence[BatchItem | Mapping[str, Any]], *, on_missing: OnMissing = "fail", lengths: bool = False
    ) -> AsyncBatchReader:
        """Like `Client.open_batch`."""
        reader = await self._threads.run(self._blocking.open_batch, items, on_missing=on_missing, lengths=lengths)
        return AsyncBatchReader(self._threads, reader)

    list_buckets = _threaded(Client.list_buckets)
    bucket = _threaded(Client.bucket)
    create_bucket = _threaded(Client.create_bucket)
    change_bucket = _threaded(Client.change_bucket)
    delete_bucket = _threaded(Client.delete_bucket)
    cluster_map = _threaded(Client.cluster_map)
    own_map = _threaded(Client.own_map)
    operations = _threaded(Client.operations)
    cluster_status = _threaded(Client.cluster_status)
    cluster_problems = _threaded(Client.cluster_problems)
    cluster_stats = _threaded(Client.cluster_stats)
    node_info = _threaded(Client.node_info)
    health = _threaded(Client.health)
    drain = _threaded(Client.drain)
    activate = _threaded(Client.activate)
    set_weight = _threaded(Client.set_weight)
    check_stop = _threaded(Client.check_stop)
    expect_down = _threaded(Client.expect_down)
    rebalance = _threaded(Client.rebalance)
    remove_from_cluster = _threaded(Client.remove_from_cluster)
    start_check = _threaded(Client.start_check)
    check_status = _threaded(Client.check_status)
    start_scrub = _threaded(Client.start_scrub)
    scrub_status = _threaded(Client.scrub_status)


async def _iterate(threads: _Threads, begin: Callable[[], Iterator[T]], batch: int = _BATCH) -> AsyncIterator[T]:
    iterator = await threads.run(begin)
    try:
        while items := await threads.run(lambda: list(islice(iterator, batch))):
            for item in items:
                yield item
    finally:
        # Closing a generator that was not exhausted frees its connection.
        close = getattr(iterator, "close", None)
        if close is not None:
            await threads.run(close)


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
