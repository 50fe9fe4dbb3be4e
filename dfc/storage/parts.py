"""The parts of an open disk: directories, index files, the removal of blobs, and the struct that has all."""

from __future__ import annotations

import io
import os
import queue
import threading
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, Final, cast

from dfc.checksum import Buffer
from dfc.clock import HybridClock
from dfc.filesystem import FileSystem, pwrite_all
from dfc.limits import INDEX_CACHE_BYTES, MIB
from dfc.storage import layout
from dfc.storage.catalog.cache import RowCache
from dfc.storage.catalog.catalog import Catalog
from dfc.storage.catalog.commit import GroupCommitter
from dfc.storage.health import DiskHealth, DiskStats, SpaceKeeper
from dfc.storage.layout import INDEX_SUFFIX, OBJECTS, bucket_directory, fan_directory, row_path
from dfc.storage.rows import DiskOptions, ObjectRow
from dfc.tar.header import TarError
from dfc.tar.index.builder import IndexSummary, open_builder
from dfc.tar.index.format import PageCache
from dfc.tar.index.reader import ShardIndex

# --- Directories of blobs: created on demand, and synced once for all threads that wait for the same one.
#
# A name in a directory is durable after an fsync of the directory that began after the name was created. Threads that ask while
# an fsync is running share the next one.

_KNOWN_MAX: Final = 65_536  # directories, 256 per bucket: 20 MiB; forgotten ones are created and synced again


class _Sync:
    """One fsync of one directory, pending or running."""

    __slots__ = ("done", "error")

    def __init__(self) -> None:
        self.done = threading.Lock()  # held until the fsync is over; much cheaper than an Event
        self.done.acquire()
        self.error: OSError | None = None

    def wait(self) -> None:
        with self.done:
            pass


class Directories:
    """Creates and syncs the blob directories of a disk. Thread-safe."""

    def __init__(self, root: str, filesystem: FileSystem) -> None:
        self._root = root
        self._filesystem = filesystem
        self._lock = threading.Lock()
        self._made: set[str] = set()
        self._durable: set[str] = set()
        self._running: dict[str, _Sync] = {}
        self._next: dict[str, _Sync] = {}

    def make(self, bucket_id: str, name: str) -> str:
        """Create the directory for the blobs of an object, if needed, and return its path."""
        bucket = bucket_directory(self._root, bucket_id)
        path = f"{bucket}/{fan_directory(name)}"
        if path not in self._made:
            for each in (bucket, path):
                with suppress(FileExistsError):
                    self._filesystem.make_directory(each)
            with self._lock:
                if len(self._made) >= _KNOWN_MAX:
                    self._made.clear()
                    self._durable.clear()
                self._made.add(path)
        return path

    def forget(self, bucket_id: str) -> None:
        """Forget the bucket's directories, which may be gone: create and sync them again when they are needed."""
        prefix = bucket_directory(self._root, bucket_id)
        with self._lock:
            for known in (self._made, self._durable):
                known.difference_update([path for path in known if path == prefix or path.startswith(prefix + "/")])

    def sync_chain(self, directory: str) -> None:
        """Make the names in a blob directory durable, and also, once per process, the directory itself and its parent."""
        self.sync(directory)
        if directory in self._durable:
            return
        bucket = directory.rpartition("/")[0]
        self.sync(bucket)
        if bucket not in self._durable:
            self.sync(f"{self._root}/{OBJECTS}")
        with self._lock:
            self._durable.update((directory, bucket))

    def sync(self, path: str) -> None:
        """Wait for an fsync of the directory that began after this call. Raises the OSError of that fsync."""
        with self._lock:
            running = self._running.get(path)
            mine = self._next.get(path) if running is not None else None
            leader = mine is None
            if mine is None:
                mine = _Sync()
                (self._running if running is None else self._next)[path] = mine
        if running is not None and leader:
            running.wait()
        if leader:
            self._lead(path, mine)
        else:
            mine.wait()
        if mine.error is not None:
            raise mine.error

    def _lead(self, path: str, sync: _Sync) -> None:
        with self._lock:
            # From here on, new callers must wait for the next one.
            if self._next.get(path) is sync:
                del self._next[path]
            self._running[path] = sync
        try:
            self._filesystem.sync_directory(path)
        except OSError as error:
            sync.error = error
        finally:
            with self._lock:
                if self._running.get(path) is sync:
                    del self._running[path]
            sync.done.release()


# --- Index files beside shards: written through `FileSystem` while an upload arrives, opened once and kept for readers.
#
# An index is derived from its blob and has its own checksums, so it is never synced: a missing or torn one is rebuilt.


class NewIndexFile(io.RawIOBase):
    """A new file for an index builder, written through `FileSystem`. Writes are never partial."""

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        super().__init__()
        self._filesystem = filesystem
        self._position = 0
        self._fd = filesystem.create(path)

    def fileno(self) -> int:
        return self._fd

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:  # type: ignore[override]  # typeshed's annotation does not exist at run time
        count = self._filesystem.read_into(self._fd, memoryview(buffer), self._position)
        self._position += count
        return count

    def write(self, data: Buffer) -> int:  # type: ignore[override]
        size = memoryview(data).nbytes
        pwrite_all(self._filesystem, self._fd, data, self._position)
        self._position += size
        return size

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}.get(whence)
        if base is None:
            base = os.fstat(self._fd).st_size
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def truncate(self, size: int | None = None) -> int:
        size = self._position if size is None else size
        self._filesystem.truncate(self._fd, size)
        return size

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._filesystem.close(self._fd)


class IndexWriter:
    """Builds an index while its shard arrives: a new file and the builder that fills it."""

    def __init__(self, filesystem: FileSystem, path: str, kind: str, temporary_directory: str) -> None:
        self._filesystem = filesystem
        self._path = path
        self._file = NewIndexFile(filesystem, path)
        self._builder = open_builder(kind, cast(BinaryIO, self._file), temporary_directory)
        self.feed = self._builder.feed

    def finish(self, version: str, size: int, checksum: str) -> IndexSummary | TarError:
        """Complete the file and return its summary; or remove the file and return what is wrong with the archive."""
        try:
            summary = self._builder.finish(version, size, checksum)
        except TarError as error:
            self._close()
            self._filesystem.unlink(self._path)
            return error
        self._close()
        return summary

    def abort(self) -> None:
        """Remove the file, even after `finish`. Raises OSError if that fails."""
        with suppress(OSError):
            self._close()
        with suppress(FileNotFoundError):
            self._filesystem.unlink(self._path)

    def _close(self) -> None:
        self._builder.close()
        self._file.close()


class OpenIndexes:
    """A cache of the most recently used indexes, by blob path. An evicted index is closed when its last user drops it.

    They share a bounded page cache. Disk errors while reading any of them are counted and raised as errors of `dfc.errors`.
    """

    def __init__(self, count_max: int, health: DiskHealth) -> None:
        self._count_max = count_max
        self._health = health
        self._cache = PageCache(INDEX_CACHE_BYTES)
        self._lock = threading.Lock()
        self._open: OrderedDict[str, ShardIndex] = OrderedDict()

    def open(self, path: str) -> ShardIndex:
        """Open an index file without caching it. Raises OSError when it cannot be opened, IndexCorrupt, StorageFailed."""
        return ShardIndex.open(path, self._cache, lambda error: self._health.translate(error, "reading an index"))

    def get(self, path: str) -> ShardIndex | None:
        with self._lock:
            index = self._open.get(path)
            if index is not None:
                self._open.move_to_end(path)
            return index

    def keep(self, path: str, index: ShardIndex) -> ShardIndex:
        """Cache an index; returns the cached one, which may be another thread's."""
        dropped = None  # referenced until the lock is released: closing a file may free its blocks
        with self._lock:
            known = self._open.setdefault(path, index)
            self._open.move_to_end(path)
            if len(self._open) > self._count_max:
                dropped = self._open.popitem(last=False)
        del dropped
        if known is not index:
            index.close()
        return known

    def forget(self, path: str) -> None:
        with self._lock:
            dropped = self._open.pop(path, None)
        del dropped

    def close(self) -> None:
        with self._lock:
            indexes = list(self._open.values())
            self._open.clear()
        for index in indexes:
            index.close()


# --- Unlink blobs that a commit has made garbage: small ones immediately, large ones in a separate thread.
#
# Freeing the blocks of a large file takes a good part of a second, which no answer should wait for. The sweep removes what a
# crash leaves behind.

_AT_ONCE_BYTES: Final = 4 * MIB  # measured: unlinking that much takes 0.2 ms on tmpfs and less on ext4


class Discarder:
    """Unlinks garbage blobs. Thread-safe. The thread starts with the first large blob."""

    def __init__(self, root: str, filesystem: FileSystem, health: DiskHealth, indexes: OpenIndexes) -> None:
        self._root = root
        self._filesystem = filesystem
        self._health = health
        self._indexes = indexes
        self._lock = threading.Lock()
        self._queue: queue.Queue[ObjectRow | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    def discard(self, rows: Iterable[ObjectRow]) -> None:
        """Unlink the blobs and indexes of rows that nothing refers to any more. Never raises for an I/O error."""
        for row in rows:
            if row.size <= _AT_ONCE_BYTES:
                self._unlink(row)
            else:
                self._start()
                self._queue.put(row)

    def wait(self) -> None:
        """Wait until everything handed over before is unlinked and its space is free."""
        self._queue.join()

    def close(self) -> None:
        """Finish what was handed over and end the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dfc-discard", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            row = self._queue.get()
            try:
                if row is None:
                    return
                self._unlink(row)
            finally:
                self._queue.task_done()

    def _unlink(self, row: ObjectRow) -> None:
        path = row_path(self._root, row)
        self._indexes.forget(path)
        for file in (path,) if row.samples is None else (path, path + INDEX_SUFFIX):
            try:
                self._filesystem.unlink(file)
            except FileNotFoundError:
                pass
            except OSError as error:
                self._health.count(error, "unlinking a replaced blob")


# --- The parts of an open disk, shared by its writer, reader and background threads. `dfc.storage.disk` makes and closes them.


@dataclass(frozen=True, slots=True)
class DiskParts:
    """The parts of an open disk. `root` is the disk's directory, `boot` the machine's boot id."""

    disk_id: str
    root: str
    boot: str
    options: DiskOptions
    filesystem: FileSystem
    clock: HybridClock
    health: DiskHealth
    stats: DiskStats
    space: SpaceKeeper
    cache: RowCache
    catalog: Catalog
    committer: GroupCommitter
    directories: Directories
    indexes: OpenIndexes
    discarder: Discarder

    def path(self, row: ObjectRow) -> str:
        return layout.row_path(self.root, row)

    def discard(self, rows: Iterable[ObjectRow]) -> None:
        """Unlink the blobs of rows that a commit has made garbage."""
        self.discarder.discard(rows)
