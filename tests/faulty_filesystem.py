"""File systems that fail, kill the process or lose power at a chosen call: for tests of whatever keeps state on a disk."""

from __future__ import annotations

import errno
import os
import random
import signal
import sqlite3
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import pytest

from dfc.filesystem import FileSystem

# A fault gets the name of the call, the real call and its arguments, and does what it likes.
Fault = Callable[..., Any]
_WRITES: Final = ("write", "pwrite")
_DATABASE: Final = ".sqlite"
_DATABASE_PARTS: Final = (".sqlite-wal", ".sqlite-shm", ".sqlite-journal")  # SQLite's own, which it syncs itself


PARTS: Final = 4
_Test = TypeVar("_Test", bound=Callable[..., None])


def in_parts(test: _Test) -> _Test:
    """For a test that does something at each call: its argument `part` is the first of its calls, and it takes each PARTS-th.
    `make test` runs one of the parts."""
    return pytest.mark.thinned(PARTS)(pytest.mark.parametrize("part", range(PARTS))(test))


def seeds(count: int) -> range:
    """So many seeds of power losses: other ones for each POWER_LOSS_SEED, which `make test-cluster` sets."""
    first = (int(os.environ.get("POWER_LOSS_SEED", "1")) - 1) * count
    return range(first, first + count)


class FaultyFileSystem(FileSystem):
    """Counts the calls that change or sync something and runs a fault at the n-th (from 0). Thread-safe.

    `every` lets the fault come again at each n-th call. Nothing is counted before `arm`. With `reads`, reads count too.
    """

    def __init__(self, fault: Fault | None = None, *, reads: bool = False) -> None:
        self.names: list[str] = []
        self._fault = fault
        self._at = -1
        self._every = 0
        self._armed = False
        self._lock = threading.Lock()
        for name in (*self.CHANGES, *(self.READS if reads else ())):
            setattr(self, name, partial(self._call, name, getattr(super(), name)))

    def arm(self, at: int = -1, *, every: int = 0) -> None:
        """Forget the calls so far, and run the fault at call `at`, then at each `every`-th after it."""
        with self._lock:
            self.names = []
            self._at = at
            self._every = every
            self._armed = True

    def _call(self, name: str, real: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        with self._lock:
            number = len(self.names)
            if self._armed:
                self.names.append(name)
            hit = self._armed and (
                number == self._at or (self._every and number > self._at and (number - self._at) % self._every == 0)
            )
        if hit and self._fault is not None:
            return self._fault(name, real, *arguments, **named)
        return real(*arguments, **named)


def kill(name: str, real: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """SIGKILL before the call is made."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_after(name: str, real: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """SIGKILL when the call has been made; of a write, when half of it has."""
    try:
        write_short(name, real, *arguments, **named)
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


FAULTS: Final = pytest.mark.parametrize("fault", [kill, kill_after], ids=["before", "after"])


def places(names: Sequence[str], fault: Fault) -> list[int]:
    """The numbers of the calls at which a fault leaves something of its own. `kill_after` does so at a write, which it halves,
    at a commit and at the last call: after any other it leaves what `kill` leaves before the next one."""
    last = len(names) - 1
    return [at for at, name in enumerate(names) if fault is not kill_after or name in (*_WRITES, "commit") or at == last]


def fail_with(number: int) -> Fault:
    """A fault that fails with this errno, as SQLite would report it where the call is a COMMIT."""

    def fail(name: str, real: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if name == "close":
            real(*arguments)  # a close that fails has closed
        if name == "commit":
            raise sqlite_error(number)
        raise OSError(number, os.strerror(number))

    return fail


def commit_and_fail(name: str, real: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """A COMMIT that is on the medium although it is reported as failed; other calls go through."""
    result = real(*arguments, **named)
    if name == "commit":
        raise sqlite_error(errno.EIO)
    return result


def write_short(name: str, real: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Take half of what is written; other calls go through."""
    return real(*_halved(arguments), **named) if name in _WRITES else real(*arguments, **named)


def _halved(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    fd, data, *rest = arguments
    return (fd, memoryview(data)[: max(1, len(data) // 2)], *rest)


def sqlite_error(number: int = errno.ENOSPC) -> sqlite3.OperationalError:
    """What SQLite raises when the system refuses a write."""
    full = number in (errno.ENOSPC, errno.EDQUOT)
    error = sqlite3.OperationalError("database or disk is full" if full else "disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL if full else sqlite3.SQLITE_IOERR_FSYNC
    return error


class PowerLossFileSystem(FaultyFileSystem):
    """Knows what is on the medium. When the fault comes, the directory becomes what a power loss leaves; then SIGKILL.

    `root` may be one disk, or all that the nodes of a process keep. A file's bytes are on the medium after its fdatasync, a
    name after the fsync of its directory, a commit after one with synchronous = FULL. Of everything else the seed decides:
    lost, kept or (bytes) torn. Small files only.
    """

    def __init__(self, root: str, seed: int) -> None:
        super().__init__(self._lose_power)
        self._root = root
        self._random = random.Random(seed)
        self._bytes: dict[int, bytes] = {}  # inode → what of it is on the medium
        self._dirty: set[int] = set()
        self._names: dict[str, dict[str, int]] = {}  # directory → the names on the medium
        self._kept: dict[int, int] = {}  # inode → a descriptor, so that unlinked files can come back
        self._databases: dict[str, tuple[bytes, bytes]] = {}  # path → database and log after the last durable commit
        self._quiet = threading.Condition()
        self._running = 0
        self._is_lost = False
        self._remember_everything()

    def _call(self, name: str, real: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        with self._quiet:
            while self._is_lost:
                self._quiet.wait()  # the process is about to be killed
            self._running += 1
        try:
            return self._remembered(name, super()._call(name, real, *arguments, **named), *arguments)
        finally:
            with self._quiet:
                self._running -= 1
                self._quiet.notify_all()

    def _remembered(self, name: str, result: Any, *arguments: Any) -> Any:
        match name:
            case "create":
                inode = os.fstat(result).st_ino
                self._bytes[inode] = b""
                self._dirty.add(inode)
                self._kept[inode] = os.dup(result)
            case "write" | "pwrite" | "truncate":
                self._dirty.add(os.fstat(arguments[0]).st_ino)
            case "fdatasync":
                self._remember_bytes(arguments[0])
            case "sync_directory":
                self._names[arguments[0]] = _listing(arguments[0])
            case "sync_all":
                self._remember_everything()
            case "commit":
                path = arguments[0].execute("PRAGMA database_list").fetchone()[2]
                if arguments[0].execute("PRAGMA synchronous").fetchone()[0] >= 2:
                    self._remember_database(path)
                else:  # of one that was made here: what was synced before it was first opened
                    self._databases.setdefault(path, (self._bytes.get(os.stat(path).st_ino, b""), b""))
            case _:
                pass
        return result

    def _remember_bytes(self, fd: int) -> None:
        found = os.fstat(fd)
        self._bytes[found.st_ino] = os.pread(fd, found.st_size, 0)
        self._dirty.discard(found.st_ino)

    def _remember_database(self, path: str) -> None:
        # A log that is not there is as good as an empty one.
        self._databases[path] = (_contents(path), _contents(f"{path}-wal"))
        self._dirty.discard(os.stat(path).st_ino)

    def _remember_everything(self) -> None:
        for directory, _, names in os.walk(self._root):
            self._names[directory] = _listing(directory)
            for name in names:
                if name.endswith(_DATABASE):
                    self._remember_database(f"{directory}/{name}")
                elif not name.endswith(_DATABASE_PARTS):
                    fd = os.open(f"{directory}/{name}", os.O_RDWR)
                    self._remember_bytes(fd)
                    self._kept.setdefault(os.fstat(fd).st_ino, fd)

    def _lose_power(self, name: str, real: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if self._random.random() < 0.5 and name not in ("fdatasync", "sync_directory", "sync_all", "commit"):
            with suppress(FileExistsError, FileNotFoundError):  # as the caller would meet it
                real(*arguments, **named)
        self.lose_power(running=1)

    def lose_power(self, running: int = 0) -> None:
        """Make the directory what is left of it, and end the process. `running`: calls of this thread."""
        with self._quiet:
            self._is_lost = True
            self._quiet.wait_for(lambda: self._running <= running)
        try:
            self._lose_what_is_not_safe()
            os.kill(os.getpid(), signal.SIGKILL)
        except BaseException:
            # A mistake of this class. Nobody else may go on, not even to clean up.
            traceback.print_exc()
            os._exit(70)

    def _lose_what_is_not_safe(self) -> None:
        if self._random.random() < 0.7:
            for path, contents in self._databases.items():
                for ending, data in zip(("", "-wal"), contents, strict=True):
                    with open(path + ending, "wb") as file:
                        file.write(data)
        self._lose_names(self._root)

    def _lose_names(self, directory: str) -> None:
        now, safe = _listing(directory), self._names.get(directory, {})
        for name in sorted(now.keys() | safe.keys()):
            if name.endswith(_DATABASE_PARTS):
                continue
            path = f"{directory}/{name}"
            if now.get(name) != safe.get(name) and self._random.random() < 0.5:
                self._put_back(path, safe.get(name))
            if os.path.isdir(path):
                self._lose_names(path)
            elif os.path.exists(path) and os.stat(path).st_ino in self._dirty:
                self._tear(path)

    def _put_back(self, path: str, inode: int | None) -> None:
        if os.path.isdir(path):
            os.rename(path, f"{self._root}/.lost-{os.getpid()}-{self._random.random()}")
        else:
            for ending in ("", *_DATABASE_PARTS) if path.endswith(_DATABASE) else ("",):
                with suppress(FileNotFoundError):
                    os.unlink(path + ending.removeprefix(_DATABASE))
        if inode is not None and inode in self._kept:
            fd = self._kept[inode]
            with open(path, "wb") as file:
                file.write(os.pread(fd, os.fstat(fd).st_size, 0))

    def _tear(self, path: str) -> None:
        """What was not synced: gone, all there, cut, or of the right length with a hole. What was, up to the first change,
        stays."""
        inode = os.stat(path).st_ino
        with open(path, "r+b") as file:
            data = file.read()
            safe = self._bytes.get(inode, b"")
            pairs = enumerate(zip(safe, data, strict=False))
            same = next((at for at, (one, other) in pairs if one != other), min(len(safe), len(data)))
            how = self._random.randrange(4)
            torn = bytearray((safe, data, data[: max(same, len(data) // 2)], data)[how])
            if how == 3 and len(torn) > same:
                hole = self._random.randrange(same, len(torn))
                torn[hole : hole + 512] = bytes(len(torn[hole : hole + 512]))
            file.seek(0)
            file.truncate()
            file.write(torn)


def _contents(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


def _listing(directory: str) -> dict[str, int]:
    with os.scandir(directory) as entries:
        return {entry.name: entry.inode() for entry in entries}
