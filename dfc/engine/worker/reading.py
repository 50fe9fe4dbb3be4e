"""How a worker reads: from files on this machine or over HTTP, within its speed limit, with what it keeps between tasks.

It keeps open shards and indexes: a job that gathers reads each shard many times."""

from __future__ import annotations

import io
import os
import resource
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Generic, TypeVar, cast

import msgspec

from dfc.addresses import Origins
from dfc.batch.items import BatchItem, BatchRequest
from dfc.engine.worker.nodes import Nodes, query
from dfc.errors import DfcError, NotFound, ObjectCorrupt, PreconditionFailed, Unavailable
from dfc.http.blocking import Broken, Response
from dfc.http.retry import Retries
from dfc.jobs.store import InputChanged
from dfc.jobs.tasks import InputShard, Task
from dfc.limits import GIB, INDEX_CACHE_BYTES, MIB
from dfc.placement.map import NodeEntry
from dfc.reach.objects import etag_in
from dfc.reach.reading import BatchReader, CopyReader, read_preamble
from dfc.storage.layout import FOOTER_BYTES_MAX, Footer, FooterDamaged, decode_footer
from dfc.tar.header import TarError
from dfc.tar.index.format import PageCache
from dfc.tar.index.reader import ShardIndex

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

T = TypeVar("T")
OPEN_FILES_MAX: Final = 512  # below the default limit of 1,024 descriptors per process
OPEN_INDEXES_MAX: Final = 4096  # of this machine, and as many copies; fewer if the limit of descriptors is low
FETCHED_BYTES_MAX: Final = 1 * GIB  # copies of indexes from other machines, in the scratch directory
COPY_BYTES: Final = 1 * MIB


class Located(msgspec.Struct, frozen=True):
    """Where a target on this machine stores an object. `node` is the target's id."""

    path: str
    size: int
    version: str
    index_path: str | None = None
    node: str = ""


class Kept(Generic[T]):
    """A cache of the most recently used values, with a total weight of at most `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: OrderedDict[Any, tuple[T, int]] = OrderedDict()
        self._weight = 0

    def get(self, key: Any) -> T | None:
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def put(self, key: Any, value: T, weight: int = 1) -> T:
        self._values[key] = (value, weight)
        self._weight += weight
        while self._weight > self._limit and len(self._values) > 1:
            self._weight -= self._values.popitem(last=False)[1][1]
        return value

    def clear(self) -> None:
        self._values.clear()
        self._weight = 0


@dataclass(slots=True)
class OpenFile:
    """A descriptor of a blob; closed once neither the cache nor a source refers to it."""

    descriptor: int
    size: int

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self.descriptor)


def open_indexes_max() -> int:
    """How many indexes may be open: indexes and blobs share three quarters of the process's descriptors."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(32, min(OPEN_INDEXES_MAX, (descriptors * 3 // 4 - OPEN_FILES_MAX) // 2))


class OpenShards:
    """The cache. Values that it drops stay usable for a task that has them: a descriptor closes with its last reference."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._located: Kept[Located] = Kept(OPEN_INDEXES_MAX)
        self._files: Kept[OpenFile] = Kept(OPEN_FILES_MAX)
        indexes = open_indexes_max()
        self._pages = PageCache(INDEX_CACHE_BYTES)
        self._indexes: Kept[ShardIndex] = Kept(indexes)
        self._fetched: Kept[ShardIndex] = Kept(FETCHED_BYTES_MAX)
        self._fetched_weight_min = FETCHED_BYTES_MAX // indexes  # which limits the number of copies
        self._far: set[str] = set()  # ids of targets whose files cannot be opened here

    def close(self) -> None:
        for kept in (self._located, self._files, self._indexes, self._fetched):
            kept.clear()

    def file(self, shard: InputShard) -> OpenFile | None:
        """Return the blob of a shard if it is on this machine, else None. InputChanged."""
        key = (shard.bucket, shard.name, shard.version)
        found = self._files.get(key)
        if found is not None:
            return found
        located = self._locate(shard)
        if located is None:
            return None
        opened = open_blob(located.path)
        if opened is None:
            self._far.add(located.node)
            return None
        descriptor, footer = opened
        file = OpenFile(descriptor, footer.size)
        told = shard.name, shard.version, shard.size, shard.checksum
        if (footer.name, footer.version, footer.size, footer.checksum) != told:
            return None  # not what the target described: ask it for the object with a GET
        return self._files.put(key, file)

    def temporary(self, task: Task, name: str) -> tuple[OpenFile | None, int]:
        """Return a temporary object of the task's job, if it is on this machine, and its size. It is not cached, because it is
        read only once or twice."""
        path = "/v1/node/locate?" + query(bucket=task.output_bucket, object=name, job=task.job, temporary="1")
        found = self._nodes.ask(lambda: self._nodes.output_owner(task, name).url + path)
        located = msgspec.convert(found, Located)
        opened = open_blob(located.path)
        if opened is None:
            return None, located.size
        file = OpenFile(opened[0], opened[1].size)
        return file if (opened[1].version, file.size) == (located.version, located.size) else None, located.size

    def index(self, shard: InputShard) -> ShardIndex:
        """Return the index of a shard: the target's own file, or a copy."""
        key = (shard.bucket, shard.name, shard.version)
        found = self._indexes.get(key) or self._fetched.get(key)
        if found is not None:
            return found
        located = self._locate(shard)
        if located is not None and located.index_path:
            try:
                index = ShardIndex.open(located.index_path, self._pages)
            except (OSError, TarError):
                pass  # on another machine, or being rebuilt: the target sends it
            else:
                if (index.version, index.checksum) == (shard.version, shard.checksum):
                    return self._indexes.put(key, index)
        index, size = self._fetch_index(shard)
        if (index.version, index.checksum) != (shard.version, shard.checksum):
            raise InputChanged(f"{shard.label} was replaced while the job ran")
        return self._fetched.put(key, index, max(size, self._fetched_weight_min))

    def _fetch_index(self, shard: InputShard) -> tuple[ShardIndex, int]:
        path = "/v1/node/index?" + query(bucket=shard.bucket, object=shard.name, version=shard.version)

        def attempt(node: NodeEntry) -> tuple[ShardIndex, int]:
            with tempfile.TemporaryFile() as file, self._nodes.get(node.url + path) as answer:
                buffer = memoryview(bytearray(COPY_BYTES))
                while count := answer.readinto(buffer):
                    file.write(buffer[:count])
                file.flush()
                try:
                    return ShardIndex.open(file.fileno(), self._pages), file.tell()
                except TarError as error:
                    raise Unavailable(f"the index of {shard.label} arrived damaged: {error}") from None

        return self._at_sources(shard, attempt)

    def _locate(self, shard: InputShard) -> Located | None:
        """Ask a target that has the shard where it stores it; None if it is known to be on another machine."""
        if shard.node in self._far:
            return None
        key = (shard.bucket, shard.name, shard.version)
        found = self._located.get(key)
        if found is not None:
            return found
        path = "/v1/node/locate?" + query(bucket=shard.bucket, object=shard.name, version=shard.version)

        def attempt(node: NodeEntry) -> Located | None:
            if node.id in self._far:
                return None
            with self._nodes.get(node.url + path) as answer:
                located = msgspec.json.decode(answer.read_all(COPY_BYTES), type=Located)
            return msgspec.structs.replace(located, node=node.id)

        located = self._at_sources(shard, attempt)
        return None if located is None else self._located.put(key, located)

    def _at_sources(self, shard: InputShard, attempt: Callable[[NodeEntry], T]) -> T:
        """Call `attempt` for the targets that have a shard until one serves it, with retries. InputChanged."""
        nodes = self._nodes
        try:
            return nodes.retrying(lambda: nodes.first_to_serve(nodes.sources(shard.bucket, shard.name), attempt))
        except (PreconditionFailed, NotFound) as error:
            raise InputChanged(f"{shard.label} was replaced or deleted while the job ran: {error.message}") from None


def open_blob(path: str) -> tuple[int, Footer] | None:
    """Open a blob and return its descriptor, which the caller closes, and its footer; None if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        length = os.fstat(descriptor).st_size
        start = max(0, length - FOOTER_BYTES_MAX)
        footer = decode_footer(os.pread(descriptor, length - start, start))
        if footer.size + footer.footer_bytes <= length:
            return descriptor, footer
    except (OSError, FooterDamaged, UnicodeDecodeError):
        pass
    os.close(descriptor)
    return None


BURST_S: Final = 0.25  # how much unused time can be saved up


class Throttle:
    """Limits the rate to `bytes_per_s`; 0: no limit."""

    def __init__(
        self, bytes_per_s: int, now_s: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._rate = bytes_per_s
        self._now_s = now_s
        self._sleep = sleep
        self._free_s = 0.0  # when the bytes taken so far are within the limit

    def take(self, count: int) -> None:
        """Wait until `count` bytes may be moved."""
        if self._rate == 0:
            return
        now = self._now_s()
        begin = max(self._free_s, now - BURST_S)
        self._free_s = begin + count / self._rate
        if self._free_s > now:
            self._sleep(self._free_s - now)


# --- Reads objects from files on this machine.

STREAM_BYTES: Final = 1 * MIB
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", None)
AHEAD_BYTES: Final = 16 * MIB  # how far ahead ranges are announced to the kernel (WILLNEED)


class BlobSource:
    """A blob on this machine: its first `size` bytes, which a footer follows. The descriptor belongs to the cache."""

    def __init__(self, descriptor: int, size: int, label: str, throttle: Throttle) -> None:
        self.size = size
        self._descriptor = descriptor
        self._label = label
        self._throttle = throttle

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self._throttle.take(len(buffer))
        self._fill(offset, buffer)

    def _fill(self, offset: int, buffer: memoryview) -> None:
        if offset < 0 or offset + len(buffer) > self.size:
            raise ObjectCorrupt(f"{self._label} has only {self.size} bytes; {offset + len(buffer)} are needed")
        while buffer:
            count = os.preadv(self._descriptor, [buffer], offset)
            if count == 0:
                raise ObjectCorrupt(f"{self._label} ends early, at byte {offset}")
            offset, buffer = offset + count, buffer[count:]

    def read_ranges(self, ranges: Sequence[tuple[int, int]], buffer: memoryview) -> None:
        whole = list(joined(ranges))
        at = announced = ahead = 0
        for offset, size in whole:
            while len(whole) > 1 and announced < len(whole) and ahead <= at + AHEAD_BYTES:
                start, count = whole[announced]
                os.posix_fadvise(self._descriptor, start, count, os.POSIX_FADV_WILLNEED)
                announced, ahead = announced + 1, ahead + count
            self.read_into(offset, buffer[at : at + size])
            at += size
        check_filled(at, buffer)

    def read_scattered(self, offsets: Sequence[int], sizes: Sequence[int], places: Sequence[int], buffer: memoryview) -> None:
        self._throttle.take(sum(sizes))
        at = self._read_at_hand(offsets, sizes, places, buffer)
        if at < len(sizes) - 1:  # flash reads many ranges in parallel
            for offset, size in zip(offsets[at:], sizes[at:], strict=True):
                os.posix_fadvise(self._descriptor, offset, size, os.POSIX_FADV_WILLNEED)
        for offset, size, place in zip(offsets[at:], sizes[at:], places[at:], strict=True):
            self._fill(offset, buffer[place : place + size])

    def _read_at_hand(self, offsets: Sequence[int], sizes: Sequence[int], places: Sequence[int], buffer: memoryview) -> int:
        """Read what is in the page cache; return the number of the first range that would block."""
        if _NOWAIT is None or min(offsets, default=0) < 0:  # for this call -1 means the file's position
            return 0
        descriptor, preadv, end = self._descriptor, os.preadv, self.size
        try:
            for number, (offset, size, place) in enumerate(zip(offsets, sizes, places, strict=True)):
                if offset + size > end or preadv(descriptor, [buffer[place : place + size]], offset, _NOWAIT) != size:
                    return number
        except OSError:  # not cached, or not supported by the file system; a real error will occur again
            return number
        return len(sizes)

    def open(self) -> BinaryIO:
        os.posix_fadvise(self._descriptor, 0, self.size, os.POSIX_FADV_SEQUENTIAL)
        return cast(BinaryIO, io.BufferedReader(_FileStream(self), STREAM_BYTES))

    def file(self) -> int | None:
        return self._descriptor

    def close(self) -> None:
        """Do nothing: the descriptor stays open for the next task."""


class _FileStream(io.RawIOBase):
    def __init__(self, source: BlobSource) -> None:
        super().__init__()
        self._source = source
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")[: self._source.size - self._position]
        self._source.read_into(self._position, view)
        self._position += len(view)
        return len(view)


def joined(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Merge adjacent (offset, size) pairs."""
    start = stop = -1
    for offset, size in ranges:
        if offset == stop:
            stop += size
            continue
        if start >= 0:
            yield start, stop - start
        start, stop = offset, offset + size
    if start >= 0:
        yield start, stop - start


def check_filled(count: int, buffer: memoryview) -> None:
    if count != len(buffer):
        raise ValueError(f"the buffer has {len(buffer)} bytes, but the ranges have {count}")


# --- Reads objects on other machines over HTTP: single ranges, many ranges at once, or one long stream.
#
# If several targets have an object, the next one is asked when one does not serve it or breaks off.

BATCH_RANGES_MIN: Final = 3  # fewer are requested one by one
BATCH_RANGES_MAX: Final = 10_000  # some megabytes of request
BATCH_BYTES: Final = 16 * MIB  # of one request, whose answer is held in memory
AROUND_ITEM_BYTES: Final = 8192  # more than the header of an item takes


@dataclass(frozen=True, slots=True)
class Origin:
    """Where to get the bytes over HTTP: a path at the targets that `sources` finds in the current map, those of the given URLs
    last. `etag` empty: any version. `batched`: bucket and name, if many ranges can be requested at once."""

    label: str
    sources: Callable[[Collection[str]], list[NodeEntry]]
    path: str
    etag: str
    batched: tuple[str, str] | None = None


class RemoteSource:
    """An object on another machine, or one that this process cannot read as a file."""

    def __init__(self, nodes: Nodes, origin: Origin, size: int, throttle: Throttle) -> None:
        self.size = size
        self._nodes = nodes
        self._origin = origin
        self._throttle = throttle

    def read_into(self, offset: int, buffer: memoryview) -> None:
        if offset < 0 or offset + len(buffer) > self.size:
            raise ObjectCorrupt(f"{self._origin.label} has only {self.size} bytes; {offset + len(buffer)} are needed")
        with self._stream(offset, offset + len(buffer)) as stream:
            for at in range(0, len(buffer), STREAM_BYTES):
                stream.readinto(buffer[at : at + STREAM_BYTES])

    def read_ranges(self, ranges: Sequence[tuple[int, int]], buffer: memoryview) -> None:
        whole = list(joined(ranges))
        check_filled(sum(size for _, size in whole), buffer)
        at = 0
        if self._origin.batched is None or len(whole) < BATCH_RANGES_MIN:
            for offset, size in whole:
                self.read_into(offset, buffer[at : at + size])
                at += size
            return
        for part in _batches(whole):
            size = sum(size for _, size in part)
            view = buffer[at : at + size]
            if len(part) == 1:
                self.read_into(part[0][0], view)
            else:
                self._throttle.take(size)
                self._read_batch(part, view)
            at += size

    def read_scattered(self, offsets: Sequence[int], sizes: Sequence[int], places: Sequence[int], buffer: memoryview) -> None:
        if len(offsets) == 1:
            self.read_into(offsets[0], buffer[places[0] : places[0] + sizes[0]])
            return
        together = memoryview(bytearray(sum(sizes)))
        self.read_ranges(list(zip(offsets, sizes, strict=True)), together)
        at = 0
        for size, place in zip(sizes, places, strict=True):
            buffer[place : place + size] = together[at : at + size]
            at += size

    def _read_batch(self, ranges: Sequence[tuple[int, int]], buffer: memoryview) -> None:
        """Request many ranges at once. The owner answers with their lengths, then the ranges as members of a tar."""
        bucket, name = self._origin.batched or ("", "")
        items = [BatchItem(bucket, name, start=offset, length=size, if_match=self._origin.etag) for offset, size in ranges]
        body = msgspec.msgpack.encode(BatchRequest(items))

        def attempt(node: NodeEntry) -> None:
            answer = self._nodes.post_batch(node.url, body)
            try:
                with read_preamble(answer, len(items)) as reader:
                    _unpack(reader, ranges, buffer)
            except ObjectCorrupt as problem:  # damaged on the way, not on the disk: a retry may succeed
                raise Broken(f"{self._origin.label}: {problem.message}") from None

        self._nodes.retrying(lambda: self._at_sources(attempt))

    def _at_sources(self, attempt: Callable[[NodeEntry], T], last: Collection[str] = ()) -> T:
        """Call `attempt` for the targets that have the object until one serves it. InputChanged if it has been replaced."""
        try:
            return self._nodes.first_to_serve(self._origin.sources(last), attempt)
        except (PreconditionFailed, NotFound) as error:
            if not self._origin.etag:
                raise
            raise InputChanged(f"{self._origin.label} was replaced or deleted while the job ran: {error.message}") from None

    def request(self, start: int, stop: int, last: Collection[str] = ()) -> Response:
        """GET these bytes, without retries, from the targets of the URLs in `last` after others. InputChanged if the object has
        been replaced."""
        origin = self._origin
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        if origin.etag:
            headers["If-Match"] = f'"{origin.etag}"'

        def attempt(node: NodeEntry) -> Response:
            answer = self._nodes.get(node.url + origin.path, headers)
            if origin.etag and etag_in(answer.headers) != origin.etag:
                answer.close()
                raise InputChanged(f"{origin.label} was replaced while the job ran")
            if answer.status != 206 or answer.length != stop - start:
                answer.close()
                raise Broken(f"{origin.label}: the node answered with a different range than requested")
            return answer

        return self._at_sources(attempt, last)

    def has_other(self, tried: Collection[str]) -> bool:
        """Whether a target has the object that none of these URLs belongs to."""
        nodes = Origins(tried)
        try:
            return any(node.url not in nodes for node in self._origin.sources(()))
        except DfcError:  # nobody is known to have it now
            return False

    def open(self) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(self._stream(0, self.size), STREAM_BYTES))

    def _stream(self, start: int, stop: int) -> _RemoteStream:
        return _RemoteStream(self, self._nodes, self._throttle, start, stop)

    def file(self) -> int | None:
        return None

    def close(self) -> None:
        """Do nothing: the connections belong to the worker."""


class _RemoteStream(CopyReader, io.RawIOBase):
    """A long GET that is resumed where it breaks off."""

    def __init__(self, source: RemoteSource, nodes: Nodes, throttle: Throttle, start: int, stop: int) -> None:
        super().__init__(start, stop)
        self._size = source.size
        self._stop = stop
        self._source = source
        self._nodes = nodes
        self._throttle = throttle
        self._retries = Retries(nodes.policy)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")[: self._stop - self._position]
        self._throttle.take(len(view))
        return self._fill(view)

    def close(self) -> None:
        self._drop()
        super().close()

    def _connect(self) -> Response:
        return self._nodes.retrying(lambda: self._source.request(self._position, self._stop, self._passed))

    def _has_other(self, passed: Collection[str]) -> bool:
        return self._source.has_other(passed)

    def _broke(self, problem: Broken, gained: int) -> bool:
        return self._retries.again(problem, self._nodes.wait, useful=gained > 0)


def _batches(ranges: Sequence[tuple[int, int]]) -> Iterator[Sequence[tuple[int, int]]]:
    """Split the ranges into parts for one request each; a very large range is a part by itself."""
    part: list[tuple[int, int]] = []
    left = BATCH_BYTES
    for entry in ranges:
        if part and (entry[1] > left or len(part) == BATCH_RANGES_MAX):
            yield part
            part, left = [], BATCH_BYTES
        part.append(entry)
        left -= entry[1]
    if part:
        yield part


def _unpack(reader: BatchReader, ranges: Sequence[tuple[int, int]], buffer: memoryview) -> None:
    """Copy the data of the members to the buffer, one after the other. ObjectCorrupt if they do not match the ranges."""
    before = [length - (size + 511 & -512) for length, (_, size) in zip(reader.lengths, ranges, strict=True)]
    if not all(0 <= header <= AROUND_ITEM_BYTES for header in before):
        raise ObjectCorrupt("the node answered with different ranges than requested")
    content = memoryview(bytearray(reader.size))  # all at once: each read is a system call
    reader.fill(content)
    begin = at = 0
    for length, header, (_, size) in zip(reader.lengths, before, ranges, strict=True):
        buffer[at : at + size] = content[begin + header : begin + header + size]
        begin, at = begin + length, at + size
