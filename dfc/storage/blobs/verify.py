"""Verify one blob against its row: every byte of the body and of the footer."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import xxhash

from dfc.filesystem import FileSystem
from dfc.limits import MIB
from dfc.storage import layout
from dfc.storage.rows import ObjectRow
from dfc.tar.header import TarError
from dfc.tar.index.reader import ShardIndex

_BUFFER_BYTES: Final = MIB


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
    buffer = memoryview(bytearray(min(_BUFFER_BYTES, max(row.size, 1))))
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
