"""Index files beside shards: written through the seam while an upload arrives, opened once and kept for readers.

An index is derived from its blob and checks itself, so it is never synced: one that is missing or torn is built again.
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
    """A new file for an index builder, whose changes go through the `FileSystem`. Writes are always whole."""

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

    def readinto(self, buffer: Buffer) -> int:  # type: ignore[override]  # the annotation of typeshed is not to be had at run time
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
    """An index that grows while its shard is read: a new file and the builder that fills it."""

    def __init__(self, filesystem: FileSystem, path: str, kind: str, temporary_directory: str) -> None:
        self._filesystem = filesystem
        self._path = path
        self._file = NewIndexFile(filesystem, path)
        self._builder = open_builder(kind, cast(BinaryIO, self._file), temporary_directory)
        self.feed = self._builder.feed

    def finish(self, version: str, size: int, checksum: str) -> IndexSummary | TarError:
        """Complete the file; or remove it and say what is wrong with the archive."""
        try:
            summary = self._builder.finish(version, size, checksum)
        except TarError as error:
            self._close()
            self._filesystem.unlink(self._path)
            return error
        self._close()
        return summary

    def abort(self) -> None:
        """Leave nothing behind, also after `finish`. Raises OSError when the file cannot be removed."""
        with suppress(OSError):
            self._close()
        with suppress(FileNotFoundError):
            self._filesystem.unlink(self._path)

    def _close(self) -> None:
        self._builder.close()
        self._file.close()


class OpenIndexes:
    """The indexes that were used last, by blob path. An index that falls out is closed when its last user lets go.

    They share a bounded cache of pages. An error of the disk under a read of any of them is counted, and raised as ours.
    """

    def __init__(self, count_max: int, health: DiskHealth) -> None:
        self._count_max = count_max
        self._health = health
        self._cache = PageCache(INDEX_CACHE_BYTES)
        self._lock = threading.Lock()
        self._open: OrderedDict[str, ShardIndex] = OrderedDict()

    def open(self, path: str) -> ShardIndex:
        """An index file, not remembered. Raises OSError when it cannot be opened, IndexCorrupt, StorageFailed."""
        return ShardIndex.open(path, self._cache, lambda error: self._health.translate(error, "reading an index"))

    def get(self, path: str) -> ShardIndex | None:
        with self._lock:
            index = self._open.get(path)
            if index is not None:
                self._open.move_to_end(path)
            return index

    def keep(self, path: str, index: ShardIndex) -> ShardIndex:
        """Remember an index; gives the one that is remembered, which may be another thread's."""
        dropped = None  # kept until the lock is given back: closing a file may free its blocks
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
