"""Blobs opened, read and verified; damaged objects are quarantined."""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

import xxhash

from dfc.errors import NotAShard, ObjectCorrupt, ObjectNotFound, ServerTrouble, StorageFailed
from dfc.filesystem import FileSystem, remove_if_there
from dfc.limits import MIB
from dfc.storage import layout
from dfc.storage.catalog.changes import Quarantine
from dfc.storage.health import UNREADABLE
from dfc.storage.parts import DiskParts, IndexWriter
from dfc.storage.rows import ObjectRow, RowChanged
from dfc.tar.header import TarError
from dfc.tar.index.format import index_kind
from dfc.tar.index.reader import ShardIndex

_log = logging.getLogger(__name__)
_BUFFER_BYTES: Final = 1 << 18
_VERIFY_BYTES: Final = 32 * MIB  # indexes up to this are verified when opened, in 5 ms; larger ones as they are read


class BlobReader:
    """Reads the blobs and indexes of a disk. Thread-safe."""

    def __init__(self, parts: DiskParts) -> None:
        self._parts = parts
        self._lock = threading.Lock()
        self._building: dict[str, Future[ShardIndex]] = {}
        self._temporaries = itertools.count(1)

    def open_blob(self, row: ObjectRow) -> int:
        """See `Disk.open_blob`."""
        fd = self._open(row)
        size = os.fstat(fd).st_size
        if size == layout.blob_bytes(row):
            return fd
        self._parts.filesystem.close(fd)
        quarantine(self._parts, row, f"its blob has {size} bytes instead of {layout.blob_bytes(row)}")
        raise ObjectCorrupt(f"the stored bytes of {row.name!r} have the wrong length")

    def read_small(self, row: ObjectRow) -> bytes:
        """See `Disk.read_small`."""
        parts = self._parts
        fd = self._open(row)
        footer = layout.row_footer(row)
        try:
            data = parts.filesystem.pread(fd, row.size + len(footer) + 1, 0)
        except OSError as error:
            raise self.read_failed(row, 0, error) from error
        finally:
            parts.filesystem.close(fd)
        body = data[: row.size]
        if len(data) != row.size + len(footer) or xxhash.xxh3_128_hexdigest(body) != row.checksum or data[row.size :] != footer:
            quarantine(parts, row, "its bytes fail their checksum")
            raise ObjectCorrupt(f"the stored bytes of {row.name!r} fail their checksum")
        return body

    def read_failed(self, row: ObjectRow, offset: int, error: OSError) -> ServerTrouble:
        """See `Disk.read_failed`."""
        answer = self._parts.health.translate(error, "reading a blob")
        if error.errno not in UNREADABLE or not self._is_unreadable(row, offset):
            return answer
        quarantine(self._parts, row, f"it cannot be read at byte {offset}: {error.strerror}")
        return ObjectCorrupt(f"the stored bytes of {row.name!r} cannot be read")

    def _is_unreadable(self, row: ObjectRow, offset: int) -> bool:
        """Read again, from the medium: a transient error, such as a loose cable, is no reason to stop serving an object."""
        filesystem = self._parts.filesystem
        try:
            fd = filesystem.open(self._parts.path(row))
        except OSError:
            return False  # replaced meanwhile; if it is really gone, the next caller that opens it finds out
        try:
            os.posix_fadvise(fd, offset, _BUFFER_BYTES, os.POSIX_FADV_DONTNEED)
            wanted = min(_BUFFER_BYTES, layout.blob_bytes(row) - offset)
            return len(filesystem.pread(fd, wanted, offset)) != wanted
        except OSError as error:
            return error.errno in UNREADABLE
        finally:
            filesystem.close(fd)

    def open_index(self, row: ObjectRow) -> ShardIndex:
        """See `Disk.open_index`."""
        if row.samples is None:
            raise NotAShard(f"{row.name!r} has no tar index: {'; '.join(row.warnings) or 'it is not an archive'}")
        path = self._parts.path(row)
        return self._parts.indexes.get(path) or self._load(row, path) or self._build(row, path)

    def rebuild_index(self, row: ObjectRow, damaged: ShardIndex | None) -> ShardIndex:
        """See `Disk.rebuild_index`."""
        return self._build(row, self._parts.path(row), damaged, again=True)

    def _load(self, row: ObjectRow, path: str) -> ShardIndex | None:
        """The index beside the blob; None when it is missing, damaged or belongs to another blob."""
        try:
            index = self._parts.indexes.open(path + layout.INDEX_SUFFIX)
            if os.path.getsize(path + layout.INDEX_SUFFIX) <= _VERIFY_BYTES:
                index.verify()
        except FileNotFoundError:
            return None
        except TarError as error:
            _log.warning("the index of %r is damaged and will be rebuilt: %s", row.name, error)
            return None
        except OSError as error:
            raise self._parts.health.translate(error, "opening an index") from error
        if (index.version, index.size, index.checksum) != (row.version, row.size, row.checksum):
            index.close()
            return None
        return self._parts.indexes.keep(path, index)

    def _build(self, row: ObjectRow, path: str, damaged: ShardIndex | None = None, *, again: bool = False) -> ShardIndex:
        """Build the index, once for all threads that want it at the same time: they share the outcome.

        `again`: the existing index is damaged. `damaged` is the index that the caller has found damaged, if known.
        """
        with self._lock:
            shared = self._building.get(path)
            if shared is None:
                mine = self._building[path] = Future[ShardIndex]()
        if shared is not None:
            return shared.result()
        try:
            mine.set_result(self._build_alone(row, path, damaged, again))
        except BaseException as error:
            mine.set_exception(error)
        finally:
            with self._lock:
                del self._building[path]
        return mine.result()

    def _build_alone(self, row: ObjectRow, path: str, damaged: ShardIndex | None, again: bool) -> ShardIndex:
        indexes = self._parts.indexes
        # Another thread may have finished just before this one.
        index = None if again and damaged is None else indexes.get(path)
        if index is None and not again:
            index = self._load(row, path)
        if index is None or index is damaged:
            indexes.forget(path)
            self._write_index(row, path)
            index = self._load(row, path)
        if index is None:
            raise StorageFailed(f"the index of {row.name!r} could not be built")
        return index

    def _write_index(self, row: ObjectRow, path: str) -> None:
        parts = self._parts
        fd = self.open_blob(row)
        # A unique name, since the scrubber and readers may build at the same time.
        temporary = f"{parts.root}/{layout.TEMPORARY}/{row.version}-{next(self._temporaries)}{layout.INDEX_SUFFIX}"
        try:
            damage = write_index(parts, fd, row, temporary)
            if damage is None:
                parts.filesystem.rename(temporary, path + layout.INDEX_SUFFIX)
                parts.stats.indexes_rebuilt += 1
                if not os.path.exists(path):  # replaced meanwhile: leave no index without a blob
                    remove_if_there(parts.filesystem, (path + layout.INDEX_SUFFIX,))
                return
        except OSError as error:
            raise parts.health.translate(error, "building an index") from error
        finally:
            parts.filesystem.close(fd)
        quarantine(parts, row, damage)
        raise ObjectCorrupt(f"the stored bytes of {row.name!r} fail their checksum")

    def _open(self, row: ObjectRow) -> int:
        parts = self._parts
        try:
            return parts.filesystem.open(parts.path(row))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise parts.health.translate(error, "opening a blob") from error
        current = parts.catalog.find(row.bucket_id, row.name)
        if current is None:
            raise ObjectNotFound(f"object {row.name!r} does not exist")
        if current.blob_id != row.blob_id:
            raise RowChanged(current)
        quarantine(parts, row, "its blob is gone")
        raise ObjectCorrupt(f"the stored bytes of {row.name!r} are gone")


def quarantine(parts: DiskParts, row: ObjectRow, reason: str, *, restore: bool = False) -> str:
    """Stop serving a row if it is still current. Returns "quarantined", "restored", "changed", or "failed" (cannot write).

    Both readers and the scrubber call this when they find a damaged blob.
    """
    try:
        outcome, garbage = parts.committer.submit(Quarantine(row, reason, parts.clock, restore=restore))
    except StorageFailed as error:
        _log.error(
            "disk %s: %s/%r is corrupt (%s) and cannot be quarantined: %s",
            parts.disk_id,
            row.bucket_id,
            row.name,
            reason,
            error,
        )
        return "failed"
    if outcome != "changed":
        _log.error("disk %s: %s/%r version %s %s: %s", parts.disk_id, row.bucket_id, row.name, row.version, outcome, reason)
    parts.discard(garbage)
    return outcome


def write_index(parts: DiskParts, fd: int, row: ObjectRow, destination: str) -> str | None:
    """Index the blob open at `fd` into a new file; returns what is wrong with the blob, or None."""
    kind = index_kind(row.name)
    if kind is None:
        raise NotAShard(f"{row.name!r} is not named like an archive")
    index = IndexWriter(parts.filesystem, destination, kind, f"{parts.root}/{layout.TEMPORARY}")
    finished = False
    try:
        damage = _feed(parts, fd, row, index)
        if damage is None:
            found = index.finish(row.version, row.size, row.checksum)
            if isinstance(found, TarError):
                raise NotAShard(f"{row.name!r} no longer has a tar index: {found}")
            finished = True
        return damage
    finally:
        if not finished:
            index.abort()


def _feed(parts: DiskParts, fd: int, row: ObjectRow, index: IndexWriter) -> str | None:
    hasher = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    offset = 0
    while offset < row.size:
        count = parts.filesystem.read_into(fd, buffer[: row.size - offset], offset)
        if count == 0:
            return f"its blob ends at byte {offset}"
        hasher.update(buffer[:count])
        index.feed(buffer[:count])
        offset += count
    return None if hasher.hexdigest() == row.checksum else "its bytes fail their checksum"


# --- Reads for the event loop that never wait for a disk: what is not in the kernel's caches is returned as None.
#
# `openat2` with RESOLVE_CACHED (Linux 5.12) fails where looking up a path would need the disk, `preadv2` with RWF_NOWAIT (Linux
# 4.14) where the bytes would. On kernels without them every call returns None, and a thread reads instead.

_SYS_OPENAT2: Final = 437  # the same number on every architecture
_AT_FDCWD: Final = -100
_RESOLVE_CACHED: Final = 0x20
# struct open_how: flags, mode, resolve
_OPEN_HOW: Final = ctypes.create_string_buffer(
    struct.pack("=QQQ", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0, _RESOLVE_CACHED), 24
)
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", None)
# PyDLL keeps the GIL: the call never blocks, and releasing the GIL would cost more than the call.
_syscall = ctypes.PyDLL(None).syscall
_syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
_syscall.restype = ctypes.c_long


def open_cached(path: str) -> int:
    """Open a file for reading; -1 when opening might block, or fails."""
    return int(_syscall(_SYS_OPENAT2, _AT_FDCWD, os.fsencode(path), ctypes.addressof(_OPEN_HOW), 24))


def read_object(path: str, row: ObjectRow) -> bytes | None:
    """The whole body of an object, verified as in `Disk.read_small`; None when a thread has to read it or report an error."""
    footer = layout.row_footer(row)
    data = read_range(path, 0, row.size + len(footer) + 1)
    if data is None or len(data) != row.size + len(footer) or not data.endswith(footer):
        return None
    body = data[: row.size]
    return body if xxhash.xxh3_128_hexdigest(body) == row.checksum else None


def read_range(path: str, offset: int, size: int) -> bytes | None:
    """Up to `size` bytes of a file; None when they are not all cached."""
    if _NOWAIT is None:
        return None
    descriptor = open_cached(path)
    if descriptor < 0:
        return None
    buffer = bytearray(size)
    try:
        got = os.preadv(descriptor, (buffer,), offset, _NOWAIT)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return bytes(memoryview(buffer)[:got])


_WHOLE_BYTES: Final = MIB


def find_damage(
    filesystem: FileSystem,
    path: str,
    row: ObjectRow,
    pace: Callable[[int], None] | None = None,
    *,
    from_medium: bool = False,
    footer: bytes | None = None,
    longer: bool = False,
) -> str | None:
    """Read the blob and return what is wrong with it, or None.

    `pace` is called with the number of bytes read since its last call, and may wait or raise. `from_medium`: first drop the
    kernel's cached pages, so that the medium is read. `footer`: expected instead of that of an object; `longer`: other bytes
    may follow. Raises OSError when reading itself fails.
    """
    footer = layout.row_footer(row) if footer is None else footer
    try:
        fd = filesystem.open(path)
    except FileNotFoundError:
        return "its blob is gone"
    try:
        size = os.fstat(fd).st_size
        if size < row.size + len(footer) or (size > row.size + len(footer) and not longer):
            return f"its blob has {size} bytes instead of {row.size + len(footer)}"
        if from_medium:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return _read(filesystem, fd, row, footer, pace, from_medium, longer)
    finally:
        filesystem.close(fd)


def _read(
    filesystem: FileSystem,
    fd: int,
    row: ObjectRow,
    footer: bytes,
    pace: Callable[[int], None] | None,
    drop: bool,
    longer: bool,
) -> str | None:
    hasher = xxhash.xxh3_128()
    buffer = memoryview(bytearray(min(_WHOLE_BYTES, max(row.size, 1))))
    offset = 0
    while offset < row.size:
        count = filesystem.read_into(fd, buffer[: row.size - offset], offset)
        if count == 0:
            return f"its blob ends at byte {offset}"
        hasher.update(buffer[:count])
        if drop:
            os.posix_fadvise(fd, offset, count, os.POSIX_FADV_DONTNEED)
        offset += count
        if pace is not None:
            pace(count)
    if hasher.hexdigest() != row.checksum:
        return f"its bytes have the checksum {hasher.hexdigest()} instead of {row.checksum}"
    if not longer and filesystem.pread(fd, len(footer) + 1, row.size) != footer:
        return "its footer is not the one that was written"
    return None


def find_index_damage(path: str, row: ObjectRow) -> str | None:
    """Return what is wrong with the index of the shard at `path`, or None. Raises OSError when it cannot be read."""
    try:
        index = ShardIndex.open(path + layout.INDEX_SUFFIX)
    except FileNotFoundError:
        return "it is missing"
    except TarError as error:
        return str(error)
    try:
        if (index.version, index.size, index.checksum) != (row.version, row.size, row.checksum):
            return "it belongs to another blob"
        index.verify()
    except TarError as error:
        return str(error)
    finally:
        index.close()
    return None
