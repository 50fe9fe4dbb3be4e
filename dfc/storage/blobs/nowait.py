"""Reads for the event loop that never wait for a disk: what is not in the kernel's caches is returned as None.

`openat2` with RESOLVE_CACHED (Linux 5.12) fails where looking up a path would need the disk, `preadv2` with RWF_NOWAIT
(Linux 4.14) where the bytes would. On kernels without them every call returns None, and a thread reads instead.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Final

import xxhash

from dfc.storage import layout
from dfc.storage.rows import ObjectRow

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
