"""Health of a disk: the one place where OSError and SQLite's errors are counted and translated to `dfc.errors`.

A full disk is NoSpace and is not counted. An I/O error is StorageFailed and is counted; once the error budget is used up, the
disk refuses writes until it is opened again, while reads continue. Nothing here retries.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
import threading
from typing import Final, Literal

from dfc.database import is_full
from dfc.errors import NoSpace, ServerTrouble, StorageFailed, Unavailable

_log = logging.getLogger(__name__)
_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
# Resource shortages of this process or machine, and races between two threads for a name: not faults of the medium.
_NOT_THE_DISK: Final = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN, errno.ENOENT, errno.EEXIST)
)
# Errors of a medium that cannot read some bytes; ENODATA also stands for a file that ends too early.
UNREADABLE: Final = frozenset(
    (errno.EIO, errno.ENODATA, errno.EBADMSG, errno.EUCLEAN, errno.EREMOTEIO, errno.EILSEQ, errno.ENXIO, errno.ESTALE)
)
# SQLite's primary codes for transient problems: out of descriptors or memory, or a lock held too long.
_PASSING: Final = frozenset((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM))

DiskState = Literal["up", "failed"]


class DiskHealth:
    """Counts and translates the errors of one disk. Thread-safe."""

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
        """Raise StorageFailed if the disk has failed."""
        if self.reason is not None:
            raise StorageFailed(f"disk {self._disk_id} accepts no writes: {self.reason}")

    def fail(self, reason: str) -> None:
        """Refuse writes from now on."""
        with self._lock:
            if self.reason is None:
                self.reason = reason
                _log.error("disk %s accepts no more writes: %s", self._disk_id, reason)

    def count(self, error: BaseException, doing: str) -> None:
        """Count an error against the budget, unless the medium did not cause it."""
        if isinstance(error, OSError) and (error.errno in _FULL or error.errno in _NOT_THE_DISK):
            return
        with self._lock:
            self.errors += 1
            used_up = self.errors >= self._budget
        _log.warning("disk %s: %s: %s", self._disk_id, doing, error)
        if used_up:
            self.fail(f"{self.errors} I/O errors, the last while {doing}")

    def translate(self, error: OSError, doing: str) -> ServerTrouble:
        """Count an error and return the one that the caller should raise instead; `doing` like "writing a blob"."""
        self.count(error, doing)
        if error.errno in _NOT_THE_DISK:
            return Unavailable(f"{doing}: {error.strerror}")
        if error.errno in _FULL:
            return NoSpace(f"disk {self._disk_id} is full")
        # The path of the file is only in the log; clients see only the kind of error.
        return StorageFailed(f"disk {self._disk_id}: {doing}: {error.strerror or type(error).__name__}")

    def translate_catalog(self, error: sqlite3.Error, doing: str) -> ServerTrouble:
        """Like `translate` for errors of the catalog. Damage or I/O errors there stop writes at once."""
        if is_full(error):
            return NoSpace(f"disk {self._disk_id} is full")
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING:
            _log.warning("disk %s: its catalog, while %s: %s", self._disk_id, doing, error)
            return Unavailable(f"disk {self._disk_id}: its catalog is temporarily unavailable")
        self.count(error, doing)
        self.fail(f"its catalog failed while {doing}: {error}")
        return StorageFailed(f"disk {self._disk_id}: its catalog failed while {doing}")
