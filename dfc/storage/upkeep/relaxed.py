"""Relaxed durability: objects acknowledged before they were synced, and the threads that sync them.

Until the blob is synced, its row stays marked with the id of the boot in which it was written. During that boot the kernel has
the bytes, so the object is served. After a restart of the machine it is served only once its checksum has been verified; if
that fails, the row goes back to the durable object that it replaced, or is quarantined.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from dfc.errors import DfcError, ObjectCorrupt, ObjectNotFound
from dfc.storage import layout
from dfc.storage.blobs.reader import find_damage, quarantine
from dfc.storage.catalog.catalog import suspects, unsynced, unsynced_boot, unsynced_up_to
from dfc.storage.catalog.changes import (
    REMOVED_ROWS,
    EndDoubt,
    ForgetRemovedBuckets,
    MarkSynced,
    MarkSyncedUpTo,
    PurgeEndedJobs,
    PurgeTombstones,
)
from dfc.storage.layout import blob_directory
from dfc.storage.parts import DiskParts
from dfc.storage.rows import GOOD, ObjectRow
from dfc.storage.upkeep.sweep import delete_old_orphans, sweep, unlink_departed

_log = logging.getLogger(__name__)
_ROWS_A_COMMIT: Final = 10_000  # other commits wait 20 ms for it
# From this many blobs on, one sync of the whole file system is cheaper than an fdatasync for each.
_SYNC_ALL_FROM: Final = 64
_LOCKS: Final = 16
_SUSPECTS_A_PAGE: Final = 500


class RelaxedRows:
    """Syncs and verifies rows of relaxed durability. Thread-safe."""

    def __init__(self, parts: DiskParts) -> None:
        self._parts = parts
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def examine(self, row: ObjectRow) -> ObjectRow:
        """Return the row to serve for an unsynced one: itself, or the one that it replaced.

        Reads the whole blob if the machine has been restarted since. Raises ObjectCorrupt or ObjectNotFound.
        """
        if not self._suspect(row):
            return row
        key = (row.bucket_id, row.name)
        with self._locks[hash(key) % _LOCKS]:
            if self._suspect(row) and self._verify(row):
                return msgspec.structs.replace(row, state=GOOD)
        current = self._parts.catalog.find(*key)
        if current is None:
            raise ObjectNotFound(f"object {row.name!r} does not exist")
        if current.blob_id == row.blob_id and current.state == GOOD:
            return current  # another thread has verified it
        if current.quarantined or current.blob_id == row.blob_id:
            raise ObjectCorrupt(f"the stored bytes of {row.name!r} did not survive a restart of the machine")
        return self.examine(current) if current.unsynced else current

    def _suspect(self, row: ObjectRow) -> bool:
        return unsynced_boot(self._parts.catalog, row) not in (None, self._parts.boot)

    def _verify(self, row: ObjectRow) -> bool:
        """Verify the blob: mark the row as synced if it is sound, else quarantine it or go back to what it replaced."""
        parts = self._parts
        try:
            damage = find_damage(parts.filesystem, parts.path(row), row, from_medium=True)
        except OSError as error:
            raise parts.health.translate(error, "verifying a blob") from error
        if damage is not None:
            quarantine(parts, row, damage, restore=True)
            return False
        # It was read from the medium, so it is synced.
        try:
            garbage = parts.committer.submit(MarkSynced([row]))
            parts.discard(garbage)
        except DfcError as error:
            _log.warning("disk %s: cannot mark a verified row as synced: %s", parts.disk_id, error)
        return True

    def verify_suspects(self, stopped: Callable[[], bool]) -> int:
        """Verify every row from an earlier boot before it is requested; returns how many."""
        after, count = (0, b""), 0
        while page := suspects(self._parts.catalog, self._parts.boot, after, _SUSPECTS_A_PAGE):
            after = page[-1][0]
            for _, bucket_id, name in page:
                if stopped():
                    return count
                row = self._parts.catalog.find(bucket_id, name)
                if row is None or not row.unsynced:
                    continue
                count += 1
                try:
                    self.examine(row)
                except DfcError as error:
                    _log.warning("disk %s: %s", self._parts.disk_id, error)
        return count

    def sync(self) -> int:
        """Sync every object of relaxed durability of this boot; returns the number of rows."""
        parts = self._parts
        count, up_to = unsynced_up_to(parts.catalog, parts.boot)
        if not count:
            self._end_doubt()
            return 0
        failed = self._sync_blobs(count, up_to)
        for first in range(up_to - count + 1, up_to + 1, _ROWS_A_COMMIT):
            last = min(first + _ROWS_A_COMMIT - 1, up_to)
            garbage = parts.committer.submit(MarkSyncedUpTo(last, failed))
            parts.discard(garbage)
        self._end_doubt()
        return count - len(failed)

    def _end_doubt(self) -> None:
        if self._parts.catalog.relaxed_boot is not None:
            self._parts.committer.submit(EndDoubt())

    def _sync_blobs(self, count: int, up_to: int) -> list[ObjectRow]:
        """Sync the blobs of all rows up to a sequence number; returns the rows that could not be synced."""
        parts = self._parts
        if count >= _SYNC_ALL_FROM:
            try:
                parts.filesystem.sync_all(parts.root)
            except OSError as error:
                # The error does not say which file it was; each file's own first fdatasync still does.
                parts.health.count(error, "syncing the file system")
            else:
                return []
        rows = unsynced(parts.catalog, parts.boot, up_to)
        failed = [row for row in rows if not self._sync_blob(row)]
        of_directory: dict[str, list[ObjectRow]] = {}
        for row in rows:
            of_directory.setdefault(blob_directory(parts.root, row.bucket_id, row.name), []).append(row)
        for directory, there in sorted(of_directory.items()):
            try:
                parts.directories.sync_chain(directory)
            except OSError as error:
                parts.health.count(error, "syncing a directory")
                failed += there
        return failed

    def _sync_blob(self, row: ObjectRow) -> bool:
        """Sync a blob; returns whether that succeeded. If not, the blob is read back, and quarantined if it is damaged."""
        parts, path = self._parts, self._parts.path(row)
        try:
            fd = parts.filesystem.open(path)
        except FileNotFoundError:
            return False  # replaced meanwhile
        except OSError as error:
            parts.health.count(error, "opening a blob to sync it")
            return False
        try:
            parts.filesystem.fdatasync(fd)
            return True
        except OSError as error:
            parts.health.count(error, "syncing a blob")
        finally:
            parts.filesystem.close(fd)
        try:
            damage = find_damage(parts.filesystem, path, row, from_medium=True)
        except OSError as error:
            damage = f"it cannot be read: {error.strerror}"
        if damage is not None:
            quarantine(parts, row, f"its sync failed and {damage}", restore=True)
        return False


# --- The background threads of a disk. One runs after opening: it sweeps, and verifies rows that were never synced. The other
# runs until the disk is closed: it syncs relaxed objects, keeps the ballast, and deletes old tombstones and orphans.

_HOUSEKEEPING_S: Final = 600.0  # interval between searches for old tombstones and orphans


class Maintenance:
    """Runs the background threads. Blobs from version `opened_at` on were written since the disk was opened."""

    def __init__(self, parts: DiskParts, relaxed: RelaxedRows, opened_at: str) -> None:
        self._parts = parts
        self._relaxed = relaxed
        self._opened_at = opened_at
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.opening_work_done = threading.Event()  # set when all the work after opening is done

    def start(self) -> None:
        name = f"dfc-maintain-{self._parts.disk_id[:8]}"
        self._threads = [threading.Thread(target=run, name=name, daemon=True) for run in (self._do_opening_work, self._go_on)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _do_opening_work(self) -> None:
        stopped = self._stop.is_set
        self._attempt("sweeping", lambda: sweep(self._parts, self._opened_at, stopped))
        # After a rebuild this is every object, and takes as long as reading the whole disk.
        self._attempt("verifying rows", lambda: self._relaxed.verify_suspects(stopped))
        self.opening_work_done.set()

    def _go_on(self) -> None:
        parts = self._parts
        next_housekeeping = 0.0
        # A third of the promised time, so that even a slow pass keeps the promise.
        while not self._stop.wait(parts.options.sync_relaxed_s / 3):
            self._attempt("syncing", self._relaxed.sync)
            self._attempt("keeping the ballast", parts.space.keep_ballast)
            if time.monotonic() >= next_housekeeping:
                next_housekeeping = time.monotonic() + _HOUSEKEEPING_S
                self._attempt("housekeeping", lambda: keep_house(parts))

    def _attempt(self, doing: str, action: Callable[[], object]) -> None:
        """Run one duty; if it fails, log it and continue."""
        try:
            action()
        except OSError as error:
            self._parts.health.count(error, doing)
        except Exception:
            _log.exception("disk %s: %s failed", self._parts.disk_id, doing)


def keep_house(parts: DiskParts) -> None:
    """Delete tombstones, orphans, ended jobs and removed buckets that are old enough, and the files of removed rows."""
    delete_old_orphans(parts)
    unlink_departed(parts)
    before_us = int((time.time() - parts.options.tombstone_keep_s) * 1e6)
    if parts.health.reason is None:
        parts.committer.submit(PurgeEndedJobs(before_us))
        gone = [
            bucket_id
            for bucket_id, us in parts.catalog.removed_buckets().items()
            if us < before_us and not os.path.exists(layout.bucket_directory(parts.root, bucket_id))
        ]
        if gone:
            parts.committer.submit(ForgetRemovedBuckets(gone[:REMOVED_ROWS]))
    while parts.health.reason is None and parts.committer.submit(PurgeTombstones(before_us)) == REMOVED_ROWS:
        pass
