"""The row cache: recently used rows in memory, for the event loop. No I/O; a hit costs about a microsecond.

Commits drop a row before the catalog's COMMIT and store the new one after it. A reader that fills the cache presents the
ticket that it took before it read the catalog; it is refused if a commit touched the same corner meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

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
