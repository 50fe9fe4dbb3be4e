"""Index files beside shards: written through `FileSystem` while an upload arrives, opened once and kept for readers.

An index is derived from its blob and has its own checksums, so it is never synced: a missing or torn one is rebuilt.
"""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict
from contextlib import suppress
from typing import BinaryIO, cast

from dfc.checksum import Buffer
from dfc.filesystem import FileSystem, pwrite_all
from dfc.limits import INDEX_CACHE_BYTES
from dfc.storage.health import DiskHealth
from dfc.tar.header import TarError
from dfc.tar.index.builder import IndexSummary
from dfc.tar.index.file import PageCache
from dfc.tar.index.opening import open_builder
from dfc.tar.index.reader import ShardIndex


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
