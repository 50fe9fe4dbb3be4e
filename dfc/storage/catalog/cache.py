"""What a catalog keeps in memory: rows that were used lately, and what it records of copies.

The row cache: recently used rows in memory, for the event loop. No I/O; a hit costs about a microsecond.

Commits drop a row before the catalog's COMMIT and store the new one after it. A reader that fills the cache presents the
ticket that it took before it read the catalog; it is refused if a commit touched the same corner meanwhile.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from dfc.storage.catalog.schema import version_text
from dfc.storage.rows import ObjectRow

Key = tuple[str, str]  # bucket id, name
CACHED_ATTRIBUTES_BYTES: Final = 512  # rows with more are not cached: the cache counts rows, not bytes
_CORNERS: Final = 1024  # keys share tickets by hash: few enough to be small, enough that unrelated keys rarely collide


class RowCache:
    """A cache in two generations: `_young` fills up and becomes `_old`; rows used in time move back. Thread-safe."""

    def __init__(self, rows_max: int) -> None:
        self._half = max(1, rows_max // 2)
        self._lock = threading.Lock()
        self._young: dict[Key, ObjectRow] = {}
        self._old: dict[Key, ObjectRow] = {}
        self._tickets = [0] * _CORNERS
        self.hits = 0
        self.misses = 0

    def get(self, key: Key) -> ObjectRow | None:
        row = self._young.get(key)
        if row is not None:
            self.hits += 1
            return row
        if key not in self._old:
            return None
        with self._lock:
            row = self._old.pop(key, None)
            if row is not None:
                self.hits += 1
                self._insert(key, row)
            return row

    def ticket(self, key: Key) -> int:
        """Count a miss and return a ticket for `fill`. Take it before reading the catalog."""
        self.misses += 1
        return self._tickets[hash(key) % _CORNERS]

    def fill(self, key: Key, row: ObjectRow, ticket: int) -> None:
        """Cache a row read from the catalog, unless a commit may have made it stale."""
        with self._lock:
            if self._tickets[hash(key) % _CORNERS] == ticket:
                self._insert(key, row)

    def forget(self, keys: Iterable[Key]) -> None:
        with self._lock:
            for key in keys:
                self._drop(key)

    def store(self, rows: dict[Key, ObjectRow | None]) -> None:
        """Store the rows of a finished commit; None for objects that are gone or must be looked up."""
        with self._lock:
            for key, row in rows.items():
                self._drop(key)
                if row is not None:
                    self._insert(key, row)

    def clear(self) -> None:
        with self._lock:
            self._tickets = [ticket + 1 for ticket in self._tickets]
            self._young, self._old = {}, {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def _drop(self, key: Key) -> None:
        self._tickets[hash(key) % _CORNERS] += 1
        self._young.pop(key, None)
        self._old.pop(key, None)

    def _insert(self, key: Key, row: ObjectRow) -> None:
        if len(row.attributes) > CACHED_ATTRIBUTES_BYTES:
            return
        if len(self._young) >= self._half:
            self._old = self._young
            self._young = {}
        self._young[key] = row


# --- What a catalog remembers in memory of copies, so that a disk without copies pays nothing for them.
#
# Rows that are pending, whether there are hints about rows that other disks lack, and the newest conditional write of a name.
# The committer's thread changes it around each COMMIT: what makes readers careful before, what makes them carefree after it.

CONDITIONAL_NAMES_MAX: Final = 4096


@dataclass(slots=True)
class MarkChanges:
    """What one transaction changes. `pending`: the version that is now pending, None where nothing is any more. `undone`: how
    many pending rows were replaced or removed instead of confirmed. `published`: the job that publishes what is pending, None
    where none does any more. `has_hints`: whether there are hints; None: as before. `damaged`: the same of quarantined
    objects."""

    pending: dict[Key, str | None] = field(default_factory=dict)
    published: dict[Key, str | None] = field(default_factory=dict)
    undone: int = 0
    has_hints: bool | None = None
    damaged: bool | None = None


class Marks:
    """Reads are thread-safe; all else is for the thread of the committer.

    `undone` counts pending rows that were replaced or removed. A row that was read, and is not pending afterwards, was
    confirmed if the count is what it was before the row was read.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Read what the catalog has."""
        found = connection.execute("SELECT id, CAST(name AS TEXT), us, node FROM pending JOIN buckets ON number = bucket")
        self.pending: dict[Key, str] = {(bucket_id, name): version_text(us, node) for bucket_id, name, us, node in found}
        self.published: dict[Key, str] = {}
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'published'").fetchone() is not None:
            found = connection.execute("SELECT id, CAST(name AS TEXT), job FROM published JOIN buckets ON number = bucket")
            self.published.update(((bucket_id, name), job) for bucket_id, name, job in found)
        self.has_hints = connection.execute("SELECT 1 FROM hints LIMIT 1").fetchone() is not None
        self.damaged = connection.execute("SELECT 1 FROM quarantine LIMIT 1").fetchone() is not None
        self.undone = 0
        self.keeps_tombstones_until_s = 0.0  # by the monotonic clock: see `DiskCopies.keep_tombstones_until`
        self._conditional: dict[Key, str] = {}
        self._floor: str | None = None

    def expect(self, changes: MarkChanges) -> list[Key]:
        """Before COMMIT: a row must be known as pending before anybody can read it. Returns what `withdraw` takes back."""
        changed = changes.pending.items()
        new = {key: version for key, version in changed if version is not None and key not in self.pending}
        self.pending.update(new)
        self.has_hints = self.has_hints or changes.has_hints is True
        return list(new)

    def withdraw(self, expected: Iterable[Key]) -> None:
        """Nothing was committed. That there may be hints is left, since it only costs a query."""
        for key in expected:
            self.pending.pop(key, None)

    def accept(self, changes: MarkChanges) -> None:
        """After COMMIT, and before the row cache has the new rows."""
        self.undone += changes.undone  # first: see the class
        for known, changed in ((self.pending, changes.pending), (self.published, changes.published)):
            for key, value in changed.items():
                if value is None:
                    known.pop(key, None)
                else:
                    known[key] = value
        if changes.has_hints is not None:
            self.has_hints = changes.has_hints
        if changes.damaged is not None:
            self.damaged = changes.damaged

    def note_conditional(self, key: Key, version: str) -> None:
        """A write with a condition is about to be committed. No upload survives a restart, so neither need this.

        Of a name that is forgotten, the version counts for every name: then too many uploads are refused, never too few.
        """
        self._conditional.pop(key, None)
        self._conditional[key] = version
        if len(self._conditional) > CONDITIONAL_NAMES_MAX:
            forgotten = self._conditional.pop(next(iter(self._conditional)))
            self._floor = max(self._floor or "", forgotten)

    def newest_conditional(self, key: Key) -> str | None:
        """The version of the newest conditional write of a name, or of a later one of another name."""
        own = self._conditional.get(key)
        return own if self._floor is None else max(own or "", self._floor)
