"""Caches the open shards and indexes of a worker between tasks: a job that gathers reads each shard many times."""

from __future__ import annotations

import os
import resource
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from dfc.engine.worker.nodes import Nodes, query
from dfc.errors import NotFound, PreconditionFailed, Unavailable
from dfc.jobs.store import InputChanged
from dfc.jobs.tasks import InputShard, Task
from dfc.limits import GIB, INDEX_CACHE_BYTES, MIB
from dfc.placement.map import NodeEntry
from dfc.storage.layout import FOOTER_BYTES_MAX, Footer, FooterDamaged, decode_footer
from dfc.tar.header import TarError
from dfc.tar.index.file import PageCache
from dfc.tar.index.reader import ShardIndex

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
        if (footer.name, footer.version, footer.size, footer.checksum) != (
            shard.name,
            shard.version,
            shard.size,
            shard.checksum,
        ):
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
