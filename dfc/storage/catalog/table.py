"""The rows of one table that a transaction has read and will write, in few statements however many they are."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

Execute = Callable[[str, Sequence[object]], sqlite3.Cursor]
RowKey = tuple[int, bytes]  # bucket number, name
Values = tuple[Any, ...]
UNKNOWN_BUCKET: Final = -1
_CHUNK: Final = 64  # rows per statement; smaller powers of two for the rest, so that few statements are prepared


@cache
def _placeholders(columns: str) -> str:
    """Those of one row, with its key."""
    return f"({', '.join('?' * (2 + len(columns.split(', '))))})"


class RowTable:
    """The cached rows of one table with the key (bucket, name): those read, and those to write."""

    def __init__(self, execute: Execute, name: str, columns: str) -> None:
        self._execute = execute
        self._name = name
        self._columns = columns
        self._row = _placeholders(columns)
        self._seen: dict[RowKey, Values | None] = {}
        self._changed: set[RowKey] = set()

    def load(self, keys: Sequence[RowKey]) -> None:
        missing = [key for key in keys if key not in self._seen]
        for start in range(0, len(missing), _CHUNK):
            chunk = missing[start : start + _CHUNK]
            self._seen.update(dict.fromkeys(chunk))
            # Padded to the next power of two with NULLs, which match nothing.
            count = 1 << (len(chunk) - 1).bit_length()
            bindings = [value for key in chunk for value in key] + [None, None] * (count - len(chunk))
            for bucket, name, *values in self._execute(
                f"WITH wanted (bucket, name) AS (VALUES {', '.join(['(?, ?)'] * count)})"
                f" SELECT bucket, name, {self._columns} FROM wanted CROSS JOIN {self._name} USING (bucket, name)",
                bindings,
            ).fetchall():
                self._seen[bucket, name] = tuple(values)

    def get(self, key: RowKey) -> Values | None:
        if key not in self._seen:
            if key[0] == UNKNOWN_BUCKET:
                return None
            self.load((key,))
        return self._seen[key]

    def set(self, key: RowKey, values: Values) -> None:
        self._seen[key] = values
        self._changed.add(key)

    def remove(self, key: RowKey) -> None:
        self._seen[key] = None
        self._changed.add(key)

    def flush(self) -> int:
        """Write the changed rows; returns how many."""
        if not self._changed:
            return 0
        gone = [key for key in self._changed if self._seen[key] is None]
        kept = [(*key, *values) for key in self._changed if (values := self._seen[key]) is not None]
        insert = f"INSERT OR REPLACE INTO {self._name} (bucket, name, {self._columns}) VALUES "
        delete_each(self._execute, self._name, ("bucket", "name"), gone)
        in_chunks(self._execute, insert, self._row, "", kept)
        changes = len(self._changed)
        self._changed.clear()
        return changes

    def forget(self) -> None:
        """Drop the rows read, which other statements may have changed. Call it after `flush`."""
        self._seen.clear()


def delete_each(execute: Execute, table: str, key: tuple[str, ...], rows: Sequence[Values]) -> None:
    """Delete rows by their keys, one by one: for a list of keys, however short, SQLite would walk the table."""
    statement = f"DELETE FROM {table} WHERE {' AND '.join(f'{column} = ?' for column in key)}"
    for row in rows:
        execute(statement, row)


def in_chunks(execute: Execute, head: str, row: str, tail: str, rows: Sequence[Values]) -> None:
    """Execute a statement, `head` and `tail` around one `row` of placeholders each, for many rows of values."""
    start = 0
    while start < len(rows):
        count = min(_CHUNK, 1 << ((len(rows) - start).bit_length() - 1))
        bindings = [value for values in rows[start : start + count] for value in values]
        execute(head + ", ".join([row] * count) + tail, bindings)
        start += count
