"""The system calls by which a node changes and syncs its files, and the small files and databases made with them.

Everything that a node does to its files goes through a `FileSystem`, one method per system call. Tests pass one that kills the
process, fails or writes short at the n-th call. Errors are raised as plain OSError; callers decide what they mean. SQLite does
its own I/O; only its COMMIT goes through here, so that a test can stop before or after it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sqlite3
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import quote

import xxhash

from dfc.checksum import Buffer
from dfc.errors import DiskRefused, OperatorError
from dfc.limits import SMALL_FILE_BYTES_MAX
from dfc.walcheck import torn_log

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
        "create", "write", "pwrite", "close", "fdatasync", "sync_directory", "sync_all", "start_writeback", "unlink", "rename",
        "make_directory", "make_directories", "remove_directory", "truncate", "allocate", "commit",
    )  # fmt: skip
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
        with suppress(FileNotFoundError):
            filesystem.unlink(path)


# CDLL calls release the interpreter's lock; `use_errno` keeps the thread's own errno.
_libc = ctypes.CDLL(None, use_errno=True)
_sync_file_range = _libc.sync_file_range
_sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
_sync_file_range.restype = ctypes.c_int
_syncfs = _libc.syncfs
_syncfs.argtypes = [ctypes.c_int]
_syncfs.restype = ctypes.c_int


# --- Durably write, and carefully read, a node's small files: its id, a disk's identity, the shape of `dfc serve`.
#
# A file is written under another name, synced, renamed, and its directory synced: after a power loss it is either the old one
# or the new one, complete. Directories are durable once they are made. So a file that is empty or torn was damaged in another
# way: that is an error, which says where the file is and what to do. Nothing is guessed or recreated.

NEW_SUFFIX: Final = ".new"  # a file that is being written; a leftover from a crash is overwritten by the next one


def make_directories(path: str, filesystem: FileSystem) -> None:
    """Create a directory and its missing parents, all durable when this returns. OSError.

    The deepest existing one is made durable too: the process that created it may have been killed before it synced.
    """
    path = os.path.abspath(path)
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    with suppress(PermissionError):  # we cannot have created anything in a directory that we may not read
        filesystem.sync_directory(os.path.dirname(path))
    for directory in reversed(missing):
        with suppress(FileExistsError):
            filesystem.make_directory(directory)
        filesystem.sync_directory(os.path.dirname(directory))


def write_small_file(path: str, data: Buffer, filesystem: FileSystem, mode: int = 0o644) -> None:
    """Write a file atomically in a directory that is durable; the file is durable when this returns. OSError."""
    temporary = path + NEW_SUFFIX
    remove_if_there(filesystem, (temporary,))
    fd = filesystem.create(temporary, mode)
    try:
        write_all(filesystem, fd, data)
        filesystem.fdatasync(fd)
    finally:
        filesystem.close(fd)
    filesystem.rename(temporary, path)
    filesystem.sync_directory(os.path.dirname(path))


class SmallFileDamaged(OperatorError):
    """A small file exists but is empty, torn or unreadable. The message says where it is, what is wrong and what to do."""

    def __init__(self, path: str, what: str, way_out: str) -> None:
        super().__init__(f"{path} {what}. {way_out}")
        self.what = what


def read_small_file(path: str, way_out: str, bytes_max: int = SMALL_FILE_BYTES_MAX) -> bytes | None:
    """Return the content of a file; None if it does not exist. SmallFileDamaged, with `way_out`: what an operator can do."""
    try:
        with open(path, "rb") as file:
            data = file.read(bytes_max + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SmallFileDamaged(path, f"cannot be read ({error.strerror})", way_out) from error
    if not data.strip(b"\0 \r\n\t"):
        raise SmallFileDamaged(path, "is empty" if not data else "contains nothing but blanks", way_out)
    if len(data) > bytes_max:
        raise SmallFileDamaged(path, f"is longer than {bytes_max} bytes", way_out)
    return data


# --- Create and open the SQLite files that a node keeps beside its disks: the registry and the journal of jobs.
#
# A new file is filled under another name and renamed once it is durable, so a file under its own name is never half-made. One
# that is empty or not ours has been damaged: it is refused, with a message that says how to recover. All files use WAL with
# synchronous=FULL.

APPLICATION_ID: Final = 0x44464301  # "DFC" and 1: files of other applications are refused
APPLICATION_ID_BEFORE: Final = 0x44464331  # "DFC1": of catalogs of DFC before 0.1.0
_ENDINGS: Final = ("", "-journal", "-wal", "-shm")
# The header of the file: https://www.sqlite.org/fileformat.html
_MAGIC: Final = b"SQLite format 3\0"
_HEADER: Final = struct.Struct(">60xI4xI28x")  # user version, application id
Fill = Callable[[sqlite3.Connection], object]
Upgrades = Mapping[int, Callable[[sqlite3.Connection], object]]
"""By the version of a file: what makes it one version newer, within a transaction."""
# Codes for trouble with the disk or the system. A short read is not one of them: there the file itself is damaged.
_TROUBLES: Final = frozenset(
    (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOMEM)
)


def is_full(error: sqlite3.Error) -> bool:
    """Whether SQLite ran out of space: the statement changed nothing and may be retried."""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def open_database(
    path: str,
    what: str,
    schema: str,
    version: int,
    filesystem: FileSystem,
    *,
    way_out: str,
    fill: Fill | None = None,
    upgrades: Upgrades = MappingProxyType({}),
) -> sqlite3.Connection:
    """Open a database; if it is missing, create it with `schema` and the rows that `fill` inserts.

    Only its owner can read the file. Returns one connection in autocommit mode, which threads may share by turns. Raises
    DiskRefused, whose message names `what` and the `way_out`, when the file is empty or damaged, of another program, or of
    another `version` that is not in `upgrades`; then nothing in the directory was changed. OSError.
    """
    directory = os.path.dirname(path)
    check_format(path, what, version, upgrades, way_out=way_out)
    make_directories(directory, filesystem)
    if not os.path.exists(path):
        _make(path + NEW_SUFFIX, schema, version, filesystem, fill)
        # The log left over from a database that was moved away would be replayed into this one.
        remove_if_there(filesystem, (path + ending for ending in _ENDINGS[1:]))
        filesystem.sync_directory(directory)
        filesystem.rename(path + NEW_SUFFIX, path)
    filesystem.sync_directory(directory)
    torn = torn_log(path)
    # Each commit is synced before the next one begins, so that a power loss can tear the last one only.
    if torn is not None and torn.commits > 1:
        raise DiskRefused(
            f"{path} is not {what}: frame {torn.frame} of {torn.frames} in its log is damaged, and {torn.commits - 1} commits"
            f" or more behind that would be lost. {way_out}"
        )
    try:
        database = connect(path)
    except sqlite3.DatabaseError as error:
        raise refusal(path, what, error, way_out) from None
    try:
        if os.path.getsize(path) == 0:
            raise DiskRefused(f"{path} is not {what}: it is empty. {way_out}")
        (found,) = database.execute("PRAGMA user_version").fetchone()
        if found != version and found not in upgrades:
            # A newer version has changed it, and was killed before its header said so: the log does.
            raise DiskRefused(f"{path} is {what} {other_format(found, version)}")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        _upgrade(database, found, version, filesystem, upgrades)
        with suppress(sqlite3.OperationalError):  # what earlier processes left in the log is not to be taken for a part of it
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        os.chmod(path, 0o600)
    except sqlite3.DatabaseError as error:
        database.close()
        raise refusal(path, what, error, way_out) from None
    except BaseException:
        database.close()
        raise
    return database


def _upgrade(database: sqlite3.Connection, found: int, version: int, filesystem: FileSystem, upgrades: Upgrades) -> None:
    """Bring a file to this version, in one transaction."""
    if found == version:
        return
    database.execute("BEGIN IMMEDIATE")
    try:
        for each in range(found, version):
            upgrades[each](database)
        database.execute(f"PRAGMA user_version = {version}")
        filesystem.commit(database)
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def refusal(path: str, what: str, error: Exception, way_out: str) -> DiskRefused:
    """Explain why a database cannot be opened. Only a damaged file is a reason to replace it."""
    code = getattr(error, "sqlite_errorcode", 0)
    if code & 0xFF in _TROUBLES and code != sqlite3.SQLITE_IOERR_SHORT_READ:
        return DiskRefused(
            f"cannot open {path}, {what}: {error}. The disk is full, read-only or failing. The file itself may be intact, so do"
            " not remove it: free some space or repair the disk, then start again"
        )
    return DiskRefused(f"{path} is not {what}: {error}. {way_out}")


class Header(NamedTuple):
    """The header fields of a database file that say what it is."""

    user_version: int
    application_id: int


def read_header(path: str) -> Header | None:
    """Read the header without SQLite, which would replay the log into the file. None if it is missing or not a database."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEADER.size)
    except FileNotFoundError:
        return None
    return Header(*_HEADER.unpack(head)) if head.startswith(_MAGIC) and len(head) == _HEADER.size else None


_OTHER_FILE: Final = (
    "it is of another program, or of DFC before 0.1.0. Nothing was changed. Run the version of DFC that wrote it, or start in"
    " another directory. If it is damaged instead"
)


def other_format(found: int, known: int) -> str:
    """Return the end of an error message about files that another version of DFC wrote."""
    return (
        f"in format {found}, and this version of DFC reads format {known}. Nothing was changed. Run the version of DFC that"
        " wrote it, or start in another directory"
    )


def check_format(path: str, what: str, version: int, upgrades: Upgrades = MappingProxyType({}), *, way_out: str) -> None:
    """Raise DiskRefused for a database that is not of DFC, or of a version that is neither this nor one of `upgrades`. Reads
    only its first bytes; a missing file is fine."""
    header = read_header(path)
    if header is None:
        return
    if header.application_id != APPLICATION_ID:
        raise DiskRefused(f"{path} is not {what}: {_OTHER_FILE}: {way_out}")
    if header.user_version not in (version, *upgrades):
        raise DiskRefused(f"{path} is {what} {other_format(header.user_version, version)}")


def _make(path: str, schema: str, version: int, filesystem: FileSystem, fill: Fill | None) -> None:
    remove_if_there(filesystem, (path + ending for ending in _ENDINGS))
    filesystem.close(filesystem.create(path, 0o600))
    with closing(connect(path)) as database:
        # It is synced as a whole once it is complete; nothing uses it before.
        database.execute("PRAGMA journal_mode = MEMORY")
        database.execute("PRAGMA synchronous = OFF")
        marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {version};"
        database.executescript(f"BEGIN; {schema} {marks}")
        if fill is not None:
            fill(database)
        database.execute("COMMIT")
        database.execute("PRAGMA journal_mode = WAL")
    sync_file(filesystem, path)


def connect(path: str, *, timeout_s: float = 5.0, cached_statements: int = 128) -> sqlite3.Connection:
    """Connect to an existing file, in autocommit, for threads that take turns. A missing file is an error, not created.
    sqlite3.DatabaseError if the schema has bytes that none of ours has: not all of them are an error for SQLite, and those that
    are it quotes, which Python cannot decode."""
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode=rw",
        timeout=timeout_s,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=cached_statements,
        uri=True,
    )
    is_text = True
    try:
        texts = connection.execute("SELECT CAST(name || tbl_name || coalesce(sql, '') AS BLOB) FROM sqlite_master")
        is_text = all(text.isascii() for (text,) in texts)
    except UnicodeDecodeError:
        is_text = False
    except sqlite3.Error:
        pass  # whoever uses it hears that, and knows what to say of it
    if not is_text:
        connection.close()
        raise sqlite3.DatabaseError("malformed database schema")
    return connection
