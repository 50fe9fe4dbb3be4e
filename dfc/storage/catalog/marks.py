"""What a catalog remembers in memory of copies, so that a disk without copies pays nothing for them.

Rows that are pending, whether there are notes of rows that other disks lack, and the newest conditional write of a name. The
committer's thread changes it around each COMMIT: what makes readers careful before, what makes them carefree after it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from dfc.storage.catalog.cache import Key
from dfc.storage.catalog.schema import version_text

CONDITIONAL_NAMES_MAX: Final = 4096


@dataclass(slots=True)
class MarkChanges:
    """What one transaction changes. `pending`: the version that is now pending, None where nothing is any more. `undone`: how
    many pending rows were replaced or removed instead of confirmed. `published`: the job that publishes what is pending, None
    where none does any more. `owes`: whether there are notes; None: as before. `damaged`: the same of quarantined objects."""

    pending: dict[Key, str | None] = field(default_factory=dict)
    published: dict[Key, str | None] = field(default_factory=dict)
    undone: int = 0
    owes: bool | None = None
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
        self.owes = connection.execute("SELECT 1 FROM owed LIMIT 1").fetchone() is not None
        self.damaged = connection.execute("SELECT 1 FROM quarantine LIMIT 1").fetchone() is not None
        self.undone = 0
        self.keeps_tombstones_until_s = 0.0  # by the monotonic clock: see `DiskCopies.keep_tombstones_until`
        self._conditional: dict[Key, str] = {}
        self._floor: str | None = None

    def expect(self, changes: MarkChanges) -> list[Key]:
        """Before COMMIT: a row must be known as pending before anybody can read it. Returns what `withdraw` takes back."""
        new = [key for key, version in changes.pending.items() if version is not None and key not in self.pending]
        for key in new:
            version = changes.pending[key]
            assert version is not None
            self.pending[key] = version
        self.owes = self.owes or changes.owes is True
        return new

    def withdraw(self, expected: Iterable[Key]) -> None:
        """Nothing was committed. That there may be notes is left, since it only costs a query."""
        for key in expected:
            self.pending.pop(key, None)

    def accept(self, changes: MarkChanges) -> None:
        """After COMMIT, and before the row cache has the new rows."""
        self.undone += changes.undone  # first: see the class
        for key, version in changes.pending.items():
            if version is None:
                self.pending.pop(key, None)
            else:
                self.pending[key] = version
        for key, job in changes.published.items():
            if job is None:
                self.published.pop(key, None)
            else:
                self.published[key] = job
        if changes.owes is not None:
            self.owes = changes.owes
        if changes.damaged is not None:
            self.damaged = changes.damaged

    # --- conditional writes

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
