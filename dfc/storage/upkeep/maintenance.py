"""The background threads of a disk. One runs after opening: it sweeps, and verifies rows that were never synced. The other
runs until the disk is closed: it syncs relaxed objects, keeps the ballast, and deletes old tombstones and orphans."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Final

from dfc.storage import layout
from dfc.storage.catalog.changes import REMOVED_ROWS, ForgetRemovedBuckets, PurgeTombstones
from dfc.storage.catalog.staged import PurgeEndedJobs
from dfc.storage.parts import DiskParts
from dfc.storage.upkeep.relaxed import RelaxedRows
from dfc.storage.upkeep.sweep import delete_old_orphans, sweep, unlink_departed

_log = logging.getLogger(__name__)
_HOUSEKEEPING_S: Final = 600.0  # interval between searches for old tombstones and orphans


class Maintenance:
    """Runs the background threads. Blobs from version `opened_at` on were written since the disk was opened."""

    def __init__(self, parts: DiskParts, relaxed: RelaxedRows, opened_at: str) -> None:
        self._parts = parts
        self._relaxed = relaxed
        self._opened_at = opened_at
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.settled = threading.Event()  # set when all the work after opening is done

    def start(self) -> None:
        name = f"dfc-maintain-{self._parts.disk_id[:8]}"
        self._threads = [threading.Thread(target=run, name=name, daemon=True) for run in (self._settle, self._go_on)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _settle(self) -> None:
        stopped = self._stop.is_set
        self._attempt("sweeping", lambda: sweep(self._parts, self._opened_at, stopped))
        # After a rebuild this is every object, and takes as long as reading the whole disk.
        self._attempt("verifying rows", lambda: self._relaxed.verify_suspects(stopped))
        self.settled.set()

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
