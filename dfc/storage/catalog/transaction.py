"""One transaction of the catalog: what operations read and change, and the few statements that execute it. One thread.

A batch holds many operations. Each statement releases and reacquires the GIL, which is expensive while many threads upload; so
the rows of a batch are read together, changed in memory, and written together by `finish`. Decisions are made in
`dfc.storage.catalog.changes`; this module only executes them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from dfc.storage.catalog.cache import Key
from dfc.storage.catalog.catalog import (
    REMOVED_BUCKET,
    ROW_COLUMNS,
    STAGED_ROW_COLUMNS,
    Catalog,
    decode_previous,
    encode_previous,
    make_row,
    row_values,
    version_parts,
    version_text,
)
from dfc.storage.rows import GOOD, QUARANTINED, UNSYNCED, ObjectRow

_Execute = Callable[[str, Sequence[object]], sqlite3.Cursor]
_RowKey = tuple[int, bytes]  # bucket number, name
_Values = tuple[Any, ...]
# Stored instead of a boot id, for rows to be verified like those of another boot.
SYNC_FAILED: Final = "sync failed"
UNVERIFIED: Final = "unverified"
_UNKNOWN_BUCKET: Final = -1
_CHUNK: Final = 64  # rows per statement; smaller powers of two for the rest, so that few statements are prepared


class Transaction:
    """The state between BEGIN and COMMIT on the catalog's writer. `boot` is the machine's current boot id.

    `rows` (updates for the cache) and `buckets` (numbers, None for removed ones) are valid once it is committed.
    """

    def __init__(self, catalog: Catalog, boot: str) -> None:
        self._catalog = catalog
        self._execute: _Execute = catalog.writer.execute
        self.boot = boot
        self._objects = _Table(self._execute, "objects", ROW_COLUMNS)
        self._tombstones = _Table(self._execute, "tombstones", "us, node, written_us")
        self._unsynced = _Table(self._execute, "unsynced", "us, node, boot, sequence, previous")
        self._quarantine = _Table(self._execute, "quarantine", "us, node, size, reason, found_us")
        self._counters: dict[int, list[int]] = {}
        self.rows: dict[Key, ObjectRow | None] = {}
        self.buckets: dict[str, int | None] = {}
        self.changes = 0

    # --- reading

    def load(self, keys: Iterable[Key]) -> None:
        """Read the rows of many objects at once; after that, the lookups below are answered from memory."""
        found = [self._key(*key) for key in dict.fromkeys(keys)]
        known = [key for key in found if key[0] != _UNKNOWN_BUCKET]
        self._objects.load(known)
        self._tombstones.load(known)
        self._unsynced.load([key for key in known if (values := self._objects.get(key)) and values[-1] == UNSYNCED])

    def current(self, bucket_id: str, name: str) -> ObjectRow | None:
        """The row as this transaction sees it."""
        values = self._objects.get(self._key(bucket_id, name))
        return None if values is None else make_row(bucket_id, name, values)

    def tombstone(self, bucket_id: str, name: str) -> str | None:
        """The version of the tombstone of a name, or None."""
        values = self._tombstones.get(self._key(bucket_id, name))
        return None if values is None else version_text(*values[:2])

    def previous(self, row: ObjectRow) -> ObjectRow | None:
        """The durable row that an unsynced one replaced, its fallback."""
        if row.state != UNSYNCED:
            return None
        values = self._unsynced.get(self._key(row.bucket_id, row.name))
        return decode_previous(values[4]) if values and values[4] is not None else None

    def some_rows(self, bucket_id: str, limit: int) -> list[ObjectRow]:
        """The first rows of a bucket."""
        self._flush()
        found = self._execute(
            f"SELECT CAST(name AS TEXT), {ROW_COLUMNS} FROM objects WHERE bucket = ? ORDER BY name LIMIT ?",
            (self._number(bucket_id), limit),
        )
        rows = [make_row(bucket_id, name, columns) for name, *columns in found.fetchall()]
        self.load((row.bucket_id, row.name) for row in rows)
        return rows

    # --- changes

    def put(self, row: ObjectRow, replaced: ObjectRow | None) -> None:
        """Point the name at a blob. `replaced` is what `current` gave."""
        key = self._key_or_new(row.bucket_id, row.name)
        self._objects.set(key, row_values(row))
        if replaced is None:
            self._count(key[0], 1, row.size)
        else:
            self._count(key[0], 0, row.size - replaced.size)
            self._forget_state(key, replaced)
        self.rows[row.bucket_id, row.name] = row

    def note_unsynced(self, row: ObjectRow, previous: ObjectRow | None, boot: str | None = None) -> None:
        """Mark the current row as unsynced; if `boot` is not the current boot, it is verified before it is served."""
        data = None if previous is None else encode_previous(previous)
        values = (*version_parts(row.version), boot or self.boot, self._catalog.next_sequence(), data)
        self._unsynced.set(self._key(row.bucket_id, row.name), values)

    def replace_previous(self, row: ObjectRow, previous: ObjectRow | None) -> None:
        """Change the fallback of the current, unsynced row."""
        key = self._key(row.bucket_id, row.name)
        values = self._unsynced.get(key)
        assert values is not None, "the caller has seen the row in this transaction"
        self._unsynced.set(key, (*values[:4], None if previous is None else encode_previous(previous)))

    def was_removed(self, bucket_id: str) -> bool:
        """Whether the removal of a bucket is recorded."""
        return self._execute("SELECT 1 FROM meta WHERE key = ?", (REMOVED_BUCKET + bucket_id,)).fetchone() is not None

    def remove(self, row: ObjectRow) -> None:
        """Remove a row; writing a tombstone is up to the caller."""
        key = self._key(row.bucket_id, row.name)
        self._objects.remove(key)
        self._count(key[0], -1, -row.size)
        self._forget_state(key, row)
        self.rows[row.bucket_id, row.name] = None

    def write_tombstone(self, bucket_id: str, name: str, version: str, written_us: int) -> None:
        """Write a tombstone. `written_us`: when the delete was applied here, in µs since 1970; it is kept for a while."""
        self._tombstones.set(self._key_or_new(bucket_id, name), (*version_parts(version), written_us))

    def remove_tombstone(self, bucket_id: str, name: str) -> None:
        self._tombstones.remove(self._key(bucket_id, name))

    def mark_synced(self, row: ObjectRow) -> None:
        """Record that the blob of the current, unsynced row is synced."""
        self._set_state(row, GOOD)

    def mark_synced_up_to(self, sequence: int) -> list[ObjectRow]:
        """Mark every unsynced row of this boot up to a sequence number as synced; returns the rows that they replaced.

        Takes three statements, however many rows there are. The cache may still show them as unsynced.
        """
        self._flush()
        chosen = (self.boot, sequence)
        found = self._execute("SELECT previous FROM unsynced WHERE boot = ? AND sequence <= ? AND previous NOT NULL", chosen)
        garbage = [decode_previous(previous) for (previous,) in found.fetchall()]
        self.changes += self._execute(
            f"UPDATE objects SET state = {GOOD} WHERE state = {UNSYNCED}"
            " AND (bucket, name) IN (SELECT bucket, name FROM unsynced WHERE boot = ? AND sequence <= ?)",
            chosen,
        ).rowcount
        self._execute("DELETE FROM unsynced WHERE boot = ? AND sequence <= ?", chosen)
        for table in (self._objects, self._unsynced):
            table.forget()
        return garbage

    def give_up_syncing(self, row: ObjectRow) -> None:
        """Leave a row unsynced, as if from another boot: it is verified when the disk is next opened, never synced again."""
        key = self._key(row.bucket_id, row.name)
        values = self._unsynced.get(key)
        if values is not None:
            self._unsynced.set(key, (*values[:2], SYNC_FAILED, *values[3:]))

    def quarantine(self, row: ObjectRow, reason: str, found_us: int) -> None:
        """Quarantine the current row, so that it is not served."""
        self._set_state(row, QUARANTINED)
        values = (*version_parts(row.version), row.size, reason, found_us)
        self._quarantine.set(self._key(row.bucket_id, row.name), values)
        self.rows[row.bucket_id, row.name] = None

    def lift_quarantine(self, row: ObjectRow) -> None:
        self._set_state(row, GOOD)
        self.rows[row.bucket_id, row.name] = None

    def remove_empty_bucket(self, bucket_id: str) -> None:
        """Remove a bucket without rows, with its tombstones."""
        self._flush()
        number = self._number(bucket_id)
        self._execute("DELETE FROM tombstones WHERE bucket = ?", (number,))
        self._execute("DELETE FROM buckets WHERE number = ?", (number,))
        self.buckets[bucket_id] = None

    def purge_tombstones(self, before_us: int, limit: int) -> int:
        self._flush()
        return self._execute(
            "DELETE FROM tombstones WHERE (bucket, name) IN (SELECT bucket, name FROM tombstones WHERE written_us < ? LIMIT ?)",
            (before_us, limit),
        ).rowcount

    def run(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Execute a statement on tables that are not cached here: those of staged rows."""
        return self._execute(statement, values)

    def drop_staged(self, bucket_id: str) -> list[ObjectRow]:
        """Remove everything that jobs have staged for a bucket; returns the rows."""
        number = self._number(bucket_id)
        found = self._execute(f"SELECT CAST(name AS TEXT), {STAGED_ROW_COLUMNS} FROM staged WHERE bucket = ?", (number,))
        rows = [make_row(bucket_id, name, (*columns, GOOD)) for name, *columns in found.fetchall()]
        if rows:
            self._execute("DELETE FROM staged WHERE bucket = ?", (number,))
            self.changes += 2 * len(rows)
        return rows

    def bucket_number(self, bucket_id: str, *, make: bool = False) -> int | None:
        """The number of a bucket; if the catalog does not have it, None, or with `make` a new number."""
        return self._key_or_new(bucket_id, "")[0] if make else self._number(bucket_id)

    def set_meta(self, key: str, value: Any) -> None:
        self._execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def finish(self) -> None:
        """Write all changes. Call it before COMMIT."""
        self._flush()
        for number, (objects, size) in self._counters.items():
            self._execute(
                "UPDATE buckets SET objects = objects + ?, bytes = bytes + ? WHERE number = ?", (objects, size, number)
            )
        self.changes += len(self._counters)
        self._counters.clear()

    # --- inside

    def _flush(self) -> None:
        self.changes += sum(table.flush() for table in (self._objects, self._tombstones, self._unsynced, self._quarantine))

    def _set_state(self, row: ObjectRow, state: int) -> None:
        key = self._key(row.bucket_id, row.name)
        values = self._objects.get(key)
        assert values is not None, "the caller has seen the row in this transaction"
        self._objects.set(key, (*values[:-1], state))
        self._forget_state(key, row)

    def _forget_state(self, key: _RowKey, row: ObjectRow) -> None:
        """Remove the entries of the side tables for a row that is leaving its state."""
        if row.state == UNSYNCED:
            self._unsynced.remove(key)
        elif row.state == QUARANTINED:
            self._quarantine.remove(key)

    def _number(self, bucket_id: str) -> int | None:
        if bucket_id in self.buckets:
            return self.buckets[bucket_id]
        return self._catalog.bucket_number(bucket_id)

    def _key(self, bucket_id: str, name: str) -> _RowKey:
        number = self._number(bucket_id)
        return (_UNKNOWN_BUCKET if number is None else number, name.encode())

    def _key_or_new(self, bucket_id: str, name: str) -> _RowKey:
        if self._number(bucket_id) is None:
            cursor = self._execute("INSERT INTO buckets (id, objects, bytes) VALUES (?, 0, 0)", (bucket_id,))
            self.buckets[bucket_id] = cursor.lastrowid
        return self._key(bucket_id, name)

    def _count(self, number: int, objects: int, size: int) -> None:
        counter = self._counters.setdefault(number, [0, 0])
        counter[0] += objects
        counter[1] += size


class _Table:
    """The cached rows of one table with the key (bucket, name): those read, and those to write."""

    def __init__(self, execute: _Execute, name: str, columns: str) -> None:
        self._execute = execute
        self._name = name
        self._columns = columns
        self._row = f"({', '.join('?' * (2 + len(columns.split(', '))))})"
        self._seen: dict[_RowKey, _Values | None] = {}
        self._changed: set[_RowKey] = set()

    def load(self, keys: Sequence[_RowKey]) -> None:
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

    def get(self, key: _RowKey) -> _Values | None:
        if key not in self._seen:
            if key[0] == _UNKNOWN_BUCKET:
                return None
            self.load((key,))
        return self._seen[key]

    def set(self, key: _RowKey, values: _Values) -> None:
        self._seen[key] = values
        self._changed.add(key)

    def remove(self, key: _RowKey) -> None:
        self._seen[key] = None
        self._changed.add(key)

    def flush(self) -> int:
        """Write the changed rows; returns how many."""
        if not self._changed:
            return 0
        gone = [key for key in self._changed if self._seen[key] is None]
        kept = [(*key, *values) for key in self._changed if (values := self._seen[key]) is not None]
        delete = f"DELETE FROM {self._name} WHERE (bucket, name) IN (VALUES "
        insert = f"INSERT OR REPLACE INTO {self._name} (bucket, name, {self._columns}) VALUES "
        self._in_chunks(delete, "(?, ?)", ")", gone)
        self._in_chunks(insert, self._row, "", kept)
        changes = len(self._changed)
        self._changed.clear()
        return changes

    def forget(self) -> None:
        """Drop the rows read, which other statements may have changed. Call it after `flush`."""
        self._seen.clear()

    def _in_chunks(self, head: str, row: str, tail: str, rows: Sequence[_Values]) -> None:
        start = 0
        while start < len(rows):
            count = min(_CHUNK, 1 << ((len(rows) - start).bit_length() - 1))
            bindings = [value for values in rows[start : start + count] for value in values]
            self._execute(head + ", ".join([row] * count) + tail, bindings)
            start += count
