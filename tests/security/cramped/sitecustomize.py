"""Gives the disks of nodes that are started with this directory in PYTHONPATH a limit, where nothing can be mounted.

CRAMPED_BYTES is what all files of a disk may take. It is kept at the seam through which the storage engine changes files.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from dfc.filesystem import FileSystem, FileSystemSpace

LIMIT_BYTES = int(os.environ["CRAMPED_BYTES"])


def _disk_of(path: str) -> str:
    """…/target-0/disk-0 of a path below it."""
    head, _, tail = path.partition("/disk-")
    return f"{head}/disk-{tail.partition('/')[0]}"


def _used(disk: str) -> int:
    total = 0
    for parent, _, names in os.walk(disk):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def _refuse(descriptor: int, size: int) -> None:
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    if "/disk-" in path and _used(_disk_of(path)) + size > LIMIT_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _write(self: FileSystem, fd: int, data: Any) -> int:
    _refuse(fd, len(data))
    return os.write(fd, data)


def _pwrite(self: FileSystem, fd: int, data: Any, offset: int) -> int:
    _refuse(fd, len(data))
    return os.pwrite(fd, data, offset)


def _allocate(self: FileSystem, fd: int, size: int) -> None:
    _refuse(fd, size)
    os.posix_fallocate(fd, 0, size)


def _space(self: FileSystem, path: str) -> FileSystemSpace:
    return FileSystemSpace(LIMIT_BYTES, max(0, LIMIT_BYTES - _used(_disk_of(path))))


FileSystem.write, FileSystem.pwrite, FileSystem.allocate, FileSystem.space = _write, _pwrite, _allocate, _space  # type: ignore[method-assign]
