"""The scrubber: continuously and slowly reads every blob of a disk, and quarantines objects with damaged bytes.

It reads the medium, not the kernel's cache, and checks again before it calls anything damaged: an object that was replaced or
deleted meanwhile is no error. Its position is kept in the catalog, so it continues there after a restart.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass, replace
from typing import Final, Literal

import msgspec

from dfc.errors import DfcError
from dfc.storage.blobs.reader import find_damage, find_index_damage, quarantine
from dfc.storage.catalog.changes import LiftQuarantine, SetMeta
from dfc.storage.disk import Disk
from dfc.storage.rows import ObjectRow, RowChanged

_log = logging.getLogger(__name__)
_PAGE_ROWS: Final = 200
_SAVE_S: Final = 30.0  # interval between saves of the position
_BURST_S: Final = 0.05  # the rate is averaged over this time; shorter sleeps would be mostly overhead
_POSITION: Final = "scrub_position"
_FINISHED: Final = "scrub_finished_s"


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """The progress of the current pass, or the result of the last. `errors`: damaged objects found."""

    state: Literal["idle", "running"] = "idle"
    bytes_done: int = 0
    bytes_total: int = 0
    objects_done: int = 0
    errors: int = 0


class _Stopped(Exception):
    """The pass should end early."""


class _Position(msgspec.Struct, frozen=True):
    """Where a pass continues: after this name in this bucket, with the counts so far."""

    bucket_id: str = ""
    name: str = ""
    bytes_done: int = 0
    objects_done: int = 0
    errors: int = 0


class Scrubber:
    """Scrubs one disk. `bytes_per_s` 0: as fast as the disk reads; `interval_s`: from the end of a pass to the next."""

    def __init__(self, disk: Disk, *, bytes_per_s: int, interval_s: float) -> None:
        self._disk = disk
        self._parts = disk.parts
        self._bytes_per_s = bytes_per_s
        self._interval_s = interval_s
        self._wake = threading.Event()
        self._stopping = False
        self._requested = False
        self._thread: threading.Thread | None = None
        self._running = threading.Lock()
        self._budget_s = 0.0
        self._position = _Position()
        self.progress = ScrubProgress()

    def start(self) -> None:
        """Scrub in a background thread until `stop`."""
        self._thread = threading.Thread(target=self._run, name=f"dfc-scrub-{self._disk.id[:8]}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread promptly, even in the middle of a blob. Call it before the disk is closed."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def request_pass(self) -> None:
        """Start a full pass now; a running one starts over."""
        self._requested = True
        self._wake.set()

    def scrub_once(self) -> ScrubProgress:
        """Run a full pass in this thread and return its result."""
        with self._running:
            self._position = _Position()
            self._pass()
        return self.progress

    # --- the thread

    def _run(self) -> None:
        resume = self._saved_position()
        while not self._stopping:
            try:
                self._wait_until_due(resume is not None)
                with self._running:
                    self._position = resume or _Position()
                    self._pass()
            except _Stopped:
                pass
            except Exception:
                _log.exception("disk %s: a scrub pass failed; the next one starts on schedule", self._disk.id)
                self._wake.wait(min(self._interval_s, 60.0))
            resume = None

    def _wait_until_due(self, now: bool) -> None:
        """Wait until a pass is due. Raises _Stopped when the scrubber is being stopped."""
        while not self._stopping and not now and not self._requested:
            left_s = self._finished_s() + self._interval_s - time.time()
            if left_s <= 0:
                break
            # Wake up now and then: the clock may be changed.
            self._wake.wait(min(left_s, 3600.0))
            self._wake.clear()
        self._requested = False
        self._wake.clear()  # otherwise the rate would be exceeded
        if self._stopping:
            raise _Stopped

    def _finished_s(self) -> float:
        """When the last pass ended; for a disk that has never been scrubbed, the time of the first call."""
        finished = self._parts.catalog.meta(_FINISHED)
        if finished is None:
            finished = time.time()
            self._save(_FINISHED, finished)
        return float(finished)

    def _saved_position(self) -> _Position | None:
        text = self._parts.catalog.meta(_POSITION)
        if not text or math.isinf(self._interval_s):
            return None
        try:
            return msgspec.json.decode(text, type=_Position)
        except msgspec.DecodeError:
            return None

    def _save(self, key: str, value: object) -> None:
        try:
            self._parts.committer.submit(SetMeta(key, value))
        except DfcError as error:
            _log.warning("disk %s: the scrubber cannot save its position: %s", self._disk.id, error)

    # --- a pass

    def _pass(self) -> None:
        start, stats = self._position, self._parts.stats
        self.progress = ScrubProgress("running", start.bytes_done, self._disk.totals()[1], start.objects_done, start.errors)
        try:
            for bucket_id in self._disk.bucket_ids():
                if bucket_id >= start.bucket_id:
                    self._scrub_bucket(bucket_id, start.name if bucket_id == start.bucket_id else "")
        finally:
            self.progress = replace(self.progress, state="idle")
        stats.scrub_finished_s = time.time()
        self._save(_FINISHED, stats.scrub_finished_s)
        self._save(_POSITION, "")

    def _scrub_bucket(self, bucket_id: str, after: str) -> None:
        saved_at = time.monotonic()
        while page := self._disk.list(bucket_id, start_after=after, limit=_PAGE_ROWS, ranks="all"):
            for row in page:
                damaged = self._scrub(row)
                done = self.progress
                self.progress = replace(done, objects_done=done.objects_done + 1, errors=done.errors + damaged)
                after = row.name
                if time.monotonic() - saved_at >= _SAVE_S:
                    saved_at = time.monotonic()
                    done = self.progress
                    place = _Position(bucket_id, after, done.bytes_done, done.objects_done, done.errors)
                    self._save(_POSITION, msgspec.json.encode(place).decode())

    def _scrub(self, row: ObjectRow) -> bool:
        """Check one object; returns whether it is damaged."""
        parts = self._parts
        damage = self._damage(row)
        parts.stats.scrubbed_objects += 1
        if damage is None:
            if row.quarantined and parts.committer.submit(LiftQuarantine(row)):
                _log.warning("disk %s: %s/%r is sound again and is being served again", parts.disk_id, row.bucket_id, row.name)
            self._scrub_index(row)
            return False
        current = parts.catalog.find(row.bucket_id, row.name)
        if current is None or current.blob_id != row.blob_id:
            return False  # replaced or deleted while it was read
        damage = self._damage(row)
        if damage is None:
            return False
        if not row.quarantined:
            if quarantine(parts, row, damage) == "changed":
                return False
            parts.stats.scrub_errors += 1
        return True

    def _scrub_index(self, row: ObjectRow) -> None:
        """Check the index of a shard and rebuild it if it is wrong; that is no damage to the object."""
        if row.samples is None:
            return
        try:
            damage = find_index_damage(self._parts.path(row), row)
            if damage is not None:
                _log.warning("disk %s: the index of %s/%r: %s", self._disk.id, row.bucket_id, row.name, damage)
                self._disk.rebuild_index(row)
        except (DfcError, RowChanged, OSError) as error:
            _log.warning("disk %s: the index of %s/%r: %s", self._disk.id, row.bucket_id, row.name, error)

    def _damage(self, row: ObjectRow) -> str | None:
        try:
            return find_damage(self._parts.filesystem, self._parts.path(row), row, self._pace, from_medium=True)
        except OSError as error:
            self._parts.health.count(error, "scrubbing a blob")
            return f"it cannot be read: {error.strerror}"

    def _pace(self, count: int) -> None:
        """Sleep as the rate requires after `count` bytes. Raises _Stopped when the pass should end."""
        self._parts.stats.scrubbed_bytes += count
        self.progress = replace(self.progress, bytes_done=self.progress.bytes_done + count)
        if self._bytes_per_s:
            self._budget_s += count / self._bytes_per_s
            if self._budget_s >= _BURST_S:
                self._wake.wait(self._budget_s)
                self._budget_s = 0.0
        if self._stopping or (self._requested and self._thread is threading.current_thread()):
            self._wake.clear()
            raise _Stopped
