"""What the errors of the operating system mean for a disk: the one place where OSError and SQLite's errors become ours.

A full disk is NoSpace and costs nothing. An I/O error is StorageFailed and is counted; with the error budget used up the
disk refuses writes until it is opened again, while reads go on. Nothing here ever tries again.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
import threading
from typing import Final, Literal

from dfc.errors import NoSpace, ServerTrouble, StorageFailed, Unavailable

_log = logging.getLogger(__name__)
_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
# Shortages of this process or machine, and two threads that met at one name: not faults of the medium.
_NOT_THE_DISK: Final = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN, errno.ENOENT, errno.EEXIST)
)
# What the medium itself says of bytes that it cannot give; ENODATA also stands for a file that ends too early.
UNREADABLE: Final = frozenset(
    (errno.EIO, errno.ENODATA, errno.EBADMSG, errno.EUCLEAN, errno.EREMOTEIO, errno.EILSEQ, errno.ENXIO, errno.ESTALE)
)
# SQLite's primary codes for the same: no descriptor or memory to be had, or a lock that was held too long.
_PASSING: Final = frozenset((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM))

DiskState = Literal["up", "failed"]


class DiskHealth:
    """Counts the errors of one disk. Thread-safe."""

    def __init__(self, disk_id: str, budget: int) -> None:
        self._disk_id = disk_id
        self._budget = budget
        self._lock = threading.Lock()
        self.errors = 0
        self.reason: str | None = None

    @property
    def state(self) -> DiskState:
        return "up" if self.reason is None else "failed"

    def require_writable(self) -> None:
        """StorageFailed once the disk has failed."""
        if self.reason is not None:
            raise StorageFailed(f"disk {self._disk_id} accepts no writes: {self.reason}")

    def fail(self, reason: str) -> None:
        """Refuse writes from now on."""
        with self._lock:
            if self.reason is None:
                self.reason = reason
                _log.error("disk %s accepts no more writes: %s", self._disk_id, reason)

    def count(self, error: BaseException, doing: str) -> None:
        """Take one error off the budget, unless it is none of the medium's."""
        if isinstance(error, OSError) and (error.errno in _FULL or error.errno in _NOT_THE_DISK):
            return
        with self._lock:
            self.errors += 1
            used_up = self.errors >= self._budget
        _log.warning("disk %s: %s: %s", self._disk_id, doing, error)
        if used_up:
            self.fail(f"{self.errors} I/O errors, the last while {doing}")

    def translate(self, error: OSError, doing: str) -> ServerTrouble:
        """Count it and give the error that the caller is to raise instead; `doing` like "writing a blob"."""
        self.count(error, doing)
        if error.errno in _NOT_THE_DISK:
            return Unavailable(f"{doing}: {error.strerror}")
        if error.errno in _FULL:
            return NoSpace(f"disk {self._disk_id} is full")
        # The path of the file stays in the log; clients learn the kind of the error alone.
        return StorageFailed(f"disk {self._disk_id}: {doing}: {error.strerror or type(error).__name__}")

    def translate_catalog(self, error: sqlite3.Error, doing: str) -> ServerTrouble:
        """The same for an error of the catalog. Damage or I/O errors there end writing at once."""
        if is_full(error):
            return NoSpace(f"disk {self._disk_id} is full")
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING:
            _log.warning("disk %s: its catalog, while %s: %s", self._disk_id, doing, error)
            return Unavailable(f"disk {self._disk_id}: its catalog is temporarily unavailable")
        self.count(error, doing)
        self.fail(f"its catalog failed while {doing}: {error}")
        return StorageFailed(f"disk {self._disk_id}: its catalog failed while {doing}")


def is_full(error: sqlite3.Error) -> bool:
    """Whether SQLite ran out of space: a statement that changed nothing, which may be run again."""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
