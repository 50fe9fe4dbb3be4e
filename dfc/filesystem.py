"""The one module that asks the operating system to change or sync what a node keeps: the seam for simulated crashes.

Everything that a node does to its files goes through a `FileSystem`, one method a system call. Tests pass one that kills
the process, fails or writes short at the n-th call. Errors come out as OSError, untouched; callers decide what they mean.
SQLite does its own I/O; of it only the COMMIT passes here, so that a test can stop on either side of it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sqlite3
from collections.abc import Iterable
from typing import Final, NamedTuple

from dfc.checksum import Buffer

_SYNC_FILE_RANGE_WAIT_BEFORE: Final = 1
_SYNC_FILE_RANGE_WRITE: Final = 2
_SYNC_FILE_RANGE_WAIT_AFTER: Final = 4
# What file systems and kernels without these calls answer: the later fdatasync does all the work then.
_UNSUPPORTED: Final = frozenset((errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP))


class FileSystemSpace(NamedTuple):
    """Bytes of the file system that a path is on; `free` is what an unprivileged process may still write."""

    capacity: int
    free: int


class FileSystem:
    """System calls by name. Stateless; thread-safe; every method may raise OSError."""

    # The calls that change or sync something, in one place for tests that stop at each of them.
    CHANGES: Final = (
        "create",
        "write",
        "pwrite",
        "close",
        "fdatasync",
        "sync_directory",
        "sync_all",
        "start_writeback",
        "unlink",
        "rename",
        "make_directory",
        "make_directories",
        "remove_directory",
        "truncate",
        "allocate",
        "commit",
    )
    READS: Final = ("open", "pread", "read_into")

    def create(self, path: str, mode: int = 0o644) -> int:
        """A descriptor for reading and writing of a file that did not exist; FileExistsError when it did."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)

    def open(self, path: str, *, write: bool = False) -> int:
        """A descriptor of an existing file; links are not followed."""
        return os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, data: Buffer) -> int:
        """As many bytes as the kernel took, perhaps fewer than given."""
        return os.write(fd, data)

    def pwrite(self, fd: int, data: Buffer, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return os.pread(fd, size, offset)

    def read_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        """Bytes read at `offset` into the buffer; 0 at the end of the file."""
        return os.preadv(fd, [buffer], offset)

    def fdatasync(self, fd: int) -> None:
        """Never to be repeated after a failure: the kernel forgets the pages it could not write."""
        os.fdatasync(fd)

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_all(self, path: str) -> None:
        """Write out the whole file system that `path` is on: cheaper than one fdatasync a file for many small ones."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _syncfs(fd) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)
        finally:
            os.close(fd)

    def start_writeback(self, fd: int, offset: int, size: int, *, wait: bool = False) -> None:
        """Ask the kernel to start writing a range of a file out now; `wait` until it is written.

        No promise of durability: it only makes the fdatasync that follows short. A write error met here is not
        reported again, so it must fail the file.
        """
        flags = _SYNC_FILE_RANGE_WRITE
        if wait:
            flags |= _SYNC_FILE_RANGE_WAIT_BEFORE | _SYNC_FILE_RANGE_WAIT_AFTER
        if _sync_file_range(fd, offset, size, flags) != 0:
            number = ctypes.get_errno()
            if number not in _UNSUPPORTED:
                raise OSError(number, os.strerror(number))

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rename(self, source: str, destination: str) -> None:
        os.rename(source, destination)

    def make_directory(self, path: str) -> None:
        os.mkdir(path, 0o755)

    def make_directories(self, path: str) -> None:
        """A directory and those above it, where they are missing."""
        os.makedirs(path, exist_ok=True)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def allocate(self, fd: int, size: int) -> None:
        """Give a file `size` bytes of real space."""
        os.posix_fallocate(fd, 0, size)

    def space(self, path: str) -> FileSystemSpace:
        answer = os.statvfs(path)
        return FileSystemSpace(answer.f_blocks * answer.f_frsize, answer.f_bavail * answer.f_frsize)

    def commit(self, connection: sqlite3.Connection) -> None:
        """End the catalog's transaction: the commit point of everything in it."""
        connection.execute("COMMIT")


def write_all(filesystem: FileSystem, fd: int, data: Buffer) -> None:
    """Write every byte at the descriptor's position, over as many calls as the kernel wants."""
    written = filesystem.write(fd, data)
    if written == len(data):
        return
    rest = memoryview(data)
    while written < len(data):
        count = filesystem.write(fd, rest[written:])
        if count == 0:
            raise OSError(errno.EIO, "the file system accepted no bytes")
        written += count


def pwrite_all(filesystem: FileSystem, fd: int, data: Buffer, offset: int) -> None:
    """Write every byte at an offset, over as many calls as the kernel wants."""
    rest = memoryview(data).cast("B")
    while rest:
        count = filesystem.pwrite(fd, rest, offset)
        if count == 0:
            raise OSError(errno.EIO, "the file system accepted no bytes")
        offset, rest = offset + count, rest[count:]


def sync_file(filesystem: FileSystem, path: str) -> None:
    """Make the bytes of a file durable that somebody else has written, as SQLite does."""
    fd = filesystem.open(path, write=True)
    try:
        filesystem.fdatasync(fd)
    finally:
        filesystem.close(fd)


def remove_if_there(filesystem: FileSystem, paths: Iterable[str]) -> None:
    """Unlink files that may be gone already."""
    for path in paths:
        try:
            filesystem.unlink(path)
        except FileNotFoundError:
            pass


# CDLL calls release the interpreter's lock; `use_errno` keeps the thread's own errno.
_libc = ctypes.CDLL(None, use_errno=True)
_sync_file_range = _libc.sync_file_range
_sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
_sync_file_range.restype = ctypes.c_int
_syncfs = _libc.syncfs
_syncfs.argtypes = [ctypes.c_int]
_syncfs.restype = ctypes.c_int
