"""The health of a disk: its errors, its free space, its counters.

This is the one place where OSError and SQLite's errors are counted and translated to `dfc.errors`. A full disk is NoSpace and
is not counted. An I/O error is StorageFailed and is counted; once the error budget is used up, the disk refuses writes until it
is opened again, while reads continue. Nothing here retries.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
import threading
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from dfc.errors import NoSpace, ServerTrouble, StorageFailed, Unavailable
from dfc.filesystem import FileSystem, file_system_id, is_full, remove_if_there
from dfc.storage.layout import BALLAST_FILE
from dfc.storage.rows import DiskSpace

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


# --- Free space of a disk: the reserve, the space claimed by running uploads, and the ballast.
#
# Uploads do not use the reserve. The ballast is a file of allocated blocks. When even the catalog runs out of space, it is
# given up, so that deletes still work on a full file system; it is created again once there is room.

# The catalog's log and shared memory need this much just to be opened.
OPENING_BYTES: Final = 1 << 20


class SpaceKeeper:
    """Decides whether an upload may start and continue. Thread-safe."""

    def __init__(self, root: str, filesystem: FileSystem, *, reserve_bytes: int, ballast_bytes: int) -> None:
        self._root = root
        self._filesystem = filesystem
        self._reserve_bytes = reserve_bytes
        self._ballast_bytes = ballast_bytes
        self._ballast = f"{root}/{BALLAST_FILE}"
        self._lock = threading.Lock()
        self._claimed = 0
        self._ballast_there = False
        self._file_system = file_system_id(root)

    def claim(self, size: int) -> None:
        """Reserve `size` bytes for an upload; NoSpace when they are not free."""
        space = self._filesystem.space(self._root)
        with self._lock:
            left = space.free - self._reserve_bytes - self._claimed
            if size > left:
                raise NoSpace(f"the disk is full: {size} bytes needed, {max(left, 0)} bytes free")
            self._claimed += size

    def require(self, size: int) -> None:
        """Check that `size` bytes are free for a short upload, without claiming them; NoSpace when they are not."""
        left = self._filesystem.space(self._root).free - self._reserve_bytes - self._claimed
        if size > left:
            raise NoSpace(f"the disk is full: {size} bytes needed, {max(left, 0)} bytes free")

    def release(self, size: int) -> None:
        """Return claimed space: it has been written, or the upload has ended."""
        with self._lock:
            self._claimed -= size

    def require_room(self) -> None:
        """Raise NoSpace when only the reserve is left; for uploads of unknown length."""
        if self._filesystem.space(self._root).free < self._reserve_bytes:
            raise NoSpace("the disk is full: only its reserve is left")

    def measure(self) -> DiskSpace:
        space = self._filesystem.space(self._root)
        free = max(0, space.free - self._reserve_bytes)
        return DiskSpace(space.capacity, space.capacity - space.free, free, self._reserve_bytes, self._file_system)

    def prepare_opening(self) -> None:
        """Make room for the catalog's own files before it is opened."""
        if self._filesystem.space(self._root).free < OPENING_BYTES:
            self.give_up_ballast()

    def give_up_ballast(self) -> bool:
        """Unlink the ballast; returns whether there was one."""
        with self._lock:
            self._ballast_there = False
            try:
                self._filesystem.unlink(self._ballast)
            except FileNotFoundError:
                return False
            return True

    def keep_ballast(self) -> bool:
        """Create the ballast if it is missing and there is room for it besides the reserve; returns whether it exists now."""
        if self._ballast_there or self._ballast_bytes == 0:
            return True
        with self._lock:
            if self._filesystem.space(self._root).free < self._reserve_bytes + 2 * self._ballast_bytes:
                return False
            try:
                self._allocate_ballast()
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                remove_if_there(self._filesystem, (self._ballast,))
                return False
            self._ballast_there = True
            return True

    def _allocate_ballast(self) -> None:
        try:
            fd = self._filesystem.create(self._ballast)
        except FileExistsError:
            fd = self._filesystem.open(self._ballast, write=True)
        try:
            self._filesystem.allocate(fd, self._ballast_bytes)
        finally:
            self._filesystem.close(fd)


# --- Counters of one disk, and the metrics that they are. Few threads update each; a lost increment does not matter.


class MetricOf(NamedTuple):
    """The metric of a field; `counts`: it is a counter, else a gauge. docs/metrics.md has a row for each."""

    name: str
    help: str
    counts: bool


def _counter(name: str, help: str) -> Any:
    """A field that counts from 0 since the disk was opened. On the page its name ends in `_total`."""
    return field(default=0, metadata={"metric": MetricOf(name, help, counts=True)})


def _gauge(name: str, help: str) -> Any:
    """A field that says how things are now."""
    return field(default=0, metadata={"metric": MetricOf(name, help, counts=False)})


@dataclass(slots=True)
class DiskStats:
    """What one disk counts."""

    commits: int = _counter("dfc_catalog_commits", "Transactions committed")
    committed_operations: int = _counter("dfc_catalog_operations", "Puts and deletes committed; per commit: the group size")
    commit_seconds: float = _counter("dfc_catalog_commit_seconds", "Time spent in commits")
    puts: int = _counter("dfc_disk_puts", "Objects stored")
    put_bytes: int = _counter("dfc_disk_put_bytes", "Bytes of objects stored")
    deletes: int = _counter("dfc_disk_deletes", "Objects deleted")
    fsyncs: int = _counter("dfc_disk_fsyncs", "Calls of fsync and fdatasync")
    fsync_seconds: float = _counter("dfc_disk_fsync_seconds", "Time spent in fsync and fdatasync")
    io_errors: int = _counter("dfc_disk_io_errors", "I/O errors that count against the disk's budget")
    cache_hits: int = _counter("dfc_catalog_cache_hits", "Rows found in memory")
    cache_misses: int = _counter("dfc_catalog_cache_misses", "Rows read from the catalog")
    indexes_built: int = _counter("dfc_index_shards", "Shards indexed while they were uploaded")
    indexes_broken: int = _counter("dfc_index_broken_shards", "Uploads named like a shard that are not a valid tar")
    indexed_members: int = _counter("dfc_index_members", "Members of these shards")
    indexes_rebuilt: int = _counter("dfc_index_rebuilds", "Tar indexes rebuilt because they were missing or damaged")
    orphans_found: int = _counter("dfc_orphans_found", "Unreferenced files moved to orphans/")
    orphans_deleted: int = _counter("dfc_orphans_deleted", "Orphans deleted after orphan_keep_s")
    orphan_alarm: int = _gauge("dfc_orphan_alarm", "1: too many orphans were found, so none was moved; see docs/operations.md")
    unsynced_rows: int = _gauge("dfc_catalog_unsynced_rows", "Objects of relaxed durability that are not synced yet")
    quarantined_rows: int = _gauge("dfc_catalog_quarantined_rows", "Objects whose stored bytes are gone or wrong")
    repaired_rows: int = _counter("dfc_disk_repaired", "Damaged objects whose bytes were fetched from another disk")
    compared_rows: int = _counter("dfc_compare_rows", "Objects compared with their copies on another disk")
    divergences: int = _counter("dfc_compare_divergences", "Objects whose copies were not what the primary has")
    divergences_repaired: int = _counter("dfc_compare_repairs", "Of these, copies that get what the primary has")
    set_aside_rows: int = _counter("dfc_compare_set_aside", "Copies here that no primary knew, moved to orphans/")
    divergence_alarms: int = _gauge("dfc_compare_alarms", "Copies elsewhere that contradict this disk, left as they are")
    scrubbed_bytes: int = _counter("dfc_scrub_bytes", "Bytes read and checked by the scrubber")
    scrubbed_objects: int = _counter("dfc_scrub_objects", "Objects read and checked by the scrubber")
    scrub_errors: int = _counter("dfc_scrub_errors", "Objects that the scrubber found damaged")
    scrub_finished_s: float = _gauge("dfc_scrub_finished_timestamp_seconds", "When the last complete pass ended; 0: none yet")
