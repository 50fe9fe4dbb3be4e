"""The system calls by which a node changes and syncs its files, in one place so that tests can simulate crashes.

Everything that a node does to its files goes through a `FileSystem`, one method per system call. Tests pass one that kills the
process, fails or writes short at the n-th call. Errors are raised as plain OSError; callers decide what they mean. SQLite does
its own I/O; only its COMMIT goes through here, so that a test can stop before or after it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sqlite3
from collections.abc import Iterable
from typing import Final, NamedTuple

import xxhash

from dfc.checksum import Buffer

_SYNC_FILE_RANGE_WAIT_BEFORE: Final = 1
_SYNC_FILE_RANGE_WRITE: Final = 2
_SYNC_FILE_RANGE_WAIT_AFTER: Final = 4
# Errors of file systems and kernels without these calls; then the later fdatasync does all the work.
_UNSUPPORTED: Final = frozenset((errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP))


class FileSystemSpace(NamedTuple):
    """Size and free space of a file system in bytes; `free` is what an unprivileged process may still write."""

    capacity: int
    free: int


class FileSystem:
    """System calls on files. Stateless and thread-safe; every method may raise OSError."""

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
        """Create a file and return a descriptor for reading and writing; FileExistsError when it exists."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)

    def open(self, path: str, *, write: bool = False) -> int:
        """Open an existing file and return its descriptor; links are not followed."""
        return os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, data: Buffer) -> int:
        """Write and return the number of bytes written, which may be fewer than given."""
        return os.write(fd, data)

    def pwrite(self, fd: int, data: Buffer, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return os.pread(fd, size, offset)

    def read_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        """Read at `offset` into the buffer and return the number of bytes; 0 at the end of the file."""
        return os.preadv(fd, [buffer], offset)

    def fdatasync(self, fd: int) -> None:
        """Sync a file's data. Never repeat it after a failure: the kernel forgets the pages it could not write."""
        os.fdatasync(fd)

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_all(self, path: str) -> None:
        """Sync the whole file system that `path` is on: for many small files, cheaper than one fdatasync each."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _syncfs(fd) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)
        finally:
            os.close(fd)

    def start_writeback(self, fd: int, offset: int, size: int, *, wait: bool = False) -> None:
        """Ask the kernel to start writing a range of a file to disk; with `wait`, return once it is written.

        This does not make it durable, it only makes the fdatasync that follows short. A write error met here is not
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
        """Create a directory and its missing parents."""
        os.makedirs(path, exist_ok=True)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def allocate(self, fd: int, size: int) -> None:
        """Allocate `size` bytes of disk space for a file."""
        os.posix_fallocate(fd, 0, size)

    def space(self, path: str) -> FileSystemSpace:
        answer = os.statvfs(path)
        return FileSystemSpace(answer.f_blocks * answer.f_frsize, answer.f_bavail * answer.f_frsize)

    def commit(self, connection: sqlite3.Connection) -> None:
        """Commit the connection's transaction: the commit point of everything in it."""
        connection.execute("COMMIT")


def boot_id() -> str:
    """The boot id of the machine; empty if the kernel has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def file_system_id(path: str) -> str:
    """What tells the file system of a path from all others, in this cluster and until the machine starts anew. Empty if it is
    not known."""
    try:
        boot, device = boot_id(), os.stat(path).st_dev
    except OSError:
        return ""
    return xxhash.xxh3_64_hexdigest(f"{boot} {device}".encode()) if boot else ""


def write_all(filesystem: FileSystem, fd: int, data: Buffer) -> None:
    """Write all bytes at the descriptor's position, in as many calls as it takes."""
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
    """Write all bytes at an offset, in as many calls as it takes."""
    rest = memoryview(data).cast("B")
    while rest:
        count = filesystem.pwrite(fd, rest, offset)
        if count == 0:
            raise OSError(errno.EIO, "the file system accepted no bytes")
        offset, rest = offset + count, rest[count:]


def sync_file(filesystem: FileSystem, path: str) -> None:
    """Sync a file that something else has written, such as SQLite."""
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
