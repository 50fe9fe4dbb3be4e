"""One transaction of the catalog: rows read and changed, and the few statements that execute it. One thread."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final

from dfc.storage.catalog.cache import Key, MarkChanges
from dfc.storage.catalog.catalog import Catalog
from dfc.storage.catalog.schema import (
    EPOCH,
    INCARNATION,
    RELAXED_BOOT,
    REMOVED_BUCKET,
    ROLLED_BACK,
    ROW_COLUMNS,
    STAGED_ROW_COLUMNS,
    TORN_LOG,
    decode_previous,
    doubtful_incarnation,
    encode_previous,
    make_row,
    row_values,
    version_parts,
    version_text,
)
from dfc.storage.rows import ALONE, GOOD, QUARANTINED, UNSYNCED, ObjectRow, Standing

# --- The rows of one table that a transaction has read and will write, in few statements however many they are.

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


# --- The rows of a batch of operations are read together, changed in memory, and written together by `finish`.
#
# Each statement releases and reacquires the GIL, which is expensive while many threads upload. Decisions are made in
# `dfc.storage.catalog.changes`; this module only executes them.

# Stored instead of a boot id, for rows to be verified like those of another boot.
SYNC_FAILED: Final = "sync failed"
UNVERIFIED: Final = "unverified"


class Transaction:
    """The state between BEGIN and COMMIT on the catalog's writer. `boot` is the machine's current boot id.

    `rows` (updates for the cache), `buckets` (numbers, None for removed ones) and `marks` are valid once it is committed.
    """

    def __init__(self, catalog: Catalog, boot: str) -> None:
        self._catalog = catalog
        self._execute: Execute = catalog.writer.execute
        self.boot = boot
        self._objects = RowTable(self._execute, "objects", f"rank, {ROW_COLUMNS}")
        self._tombstones = RowTable(self._execute, "tombstones", "us, node, written_us")
        self._unsynced = RowTable(self._execute, "unsynced", "us, node, boot, sequence, previous")
        self._quarantine = RowTable(self._execute, "quarantine", "us, node, size, reason, found_us")
        self._pending = RowTable(self._execute, "pending", "us, node")
        self._published = RowTable(self._execute, "published", "job")
        self._hints: list[tuple[str, int, bytes]] = []  # hints to write: disk, bucket number, name
        self._has_dropped_hints = False
        self._departed: list[tuple[int, bytes, str]] = []
        self._counters: dict[int, list[int]] = {}
        self.marks = MarkChanges()
        self.rows: dict[Key, ObjectRow | None] = {}
        self.buckets: dict[str, int | None] = {}
        self.changes = 0
        self.leaves_doubt = False  # a row with copies was put that a power loss may cost
        self.may_end_doubt = False
        self.has_ended_doubt = False
        self.doubted: tuple[str, int] | None = None  # the incarnation and epoch that the catalog takes
        self.rolled_back: int | None = None  # the mark from now on, if that changes

    # --- reading

    def load(self, keys: Iterable[Key]) -> None:
        """Read the rows of many objects at once; after that, the lookups below are answered from memory."""
        found = [self._key(*key) for key in dict.fromkeys(keys)]
        known = [key for key in found if key[0] != UNKNOWN_BUCKET]
        self._objects.load(known)
        self._tombstones.load(known)
        self._unsynced.load([key for key in known if (values := self._objects.get(key)) and values[-1] == UNSYNCED])

    def current(self, bucket_id: str, name: str) -> ObjectRow | None:
        """The row as this transaction sees it."""
        values = self._objects.get(self._key(bucket_id, name))
        return None if values is None else make_row(bucket_id, name, values[1:])

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

    def is_suspect(self, row: ObjectRow) -> bool:
        """Whether the current row may not have survived a restart of the machine, and has not been verified since."""
        if row.state != UNSYNCED:
            return False
        values = self._unsynced.get(self._key(row.bucket_id, row.name))
        return values is not None and values[2] != self.boot

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

    def put(self, row: ObjectRow, replaced: ObjectRow | None, rank: int | None = None) -> None:
        """Point the name at a blob. `replaced` is what `current` gave; None: the `rank` stays as it is."""
        key = self._key_or_new(row.bucket_id, row.name)
        if replaced is not None:
            before = self._rank(key)
            rank = before if rank is None else rank
            self._count(key[0], before, -1, -replaced.size)
            self._forget_state(key, replaced)
        rank = rank or 0
        self._objects.set(key, (rank, *row_values(row)))
        self._count(key[0], rank, 1, row.size)
        self.rows[row.bucket_id, row.name] = row

    def uncache(self, bucket_id: str, name: str) -> None:
        """Leave the row of a name out of the row cache until it is read."""
        self.rows[bucket_id, name] = None

    def rank(self, row: ObjectRow) -> int:
        """The rank of the current row."""
        return self._rank(self._key(row.bucket_id, row.name))

    def set_rank(self, row: ObjectRow, rank: int) -> None:
        """Change the rank of the current row."""
        key = self._key(row.bucket_id, row.name)
        before, values = self._rank(key), self._objects.get(key)
        if values is not None and before != rank:
            self._objects.set(key, (rank, *values[1:]))
            self._count(key[0], before, -1, -row.size)
            self._count(key[0], rank, 1, row.size)

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
        self._count(key[0], self._rank(key), -1, -row.size)
        self._objects.remove(key)
        self._forget_state(key, row)
        self.rows[row.bucket_id, row.name] = None

    def write_tombstone(self, bucket_id: str, name: str, version: str, written_us: int) -> None:
        """Write a tombstone. `written_us`: when the delete was applied here, in µs since 1970; it is kept for a while."""
        self._tombstones.set(self._key_or_new(bucket_id, name), (*version_parts(version), written_us))

    def remove_tombstone(self, bucket_id: str, name: str) -> None:
        """Remove the tombstone of a name, if there is one."""
        key = self._key(bucket_id, name)
        if self._tombstones.get(key) is not None:
            self._tombstones.remove(key)

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
            # Not `WHERE (bucket, name) IN (SELECT …)`, for which SQLite walks all objects of the buckets.
            f"UPDATE objects SET state = {GOOD} FROM (SELECT bucket, name FROM unsynced WHERE boot = ? AND sequence <= ?) AS u"
            f" WHERE objects.bucket = u.bucket AND objects.name = u.name AND objects.state = {UNSYNCED}",
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
        self.marks.damaged = True
        self.rows[row.bucket_id, row.name] = None

    def lift_quarantine(self, row: ObjectRow) -> None:
        self._set_state(row, GOOD)
        self.rows[row.bucket_id, row.name] = None

    def remove_empty_bucket(self, bucket_id: str) -> None:
        """Remove a bucket without rows, with its tombstones and all hints about its names."""
        self._flush()
        number = self._number(bucket_id)
        for table in ("tombstones", "pending", "published", "hints", "departed"):
            self._execute(f"DELETE FROM {table} WHERE bucket = ?", (number,))
        self._execute("DELETE FROM buckets WHERE number = ?", (number,))
        self.buckets[bucket_id] = None
        remembered = self._catalog.marks.pending.keys() | self.marks.pending.keys()
        gone = {key: None for key in remembered if key[0] == bucket_id}
        self.marks.undone += len(gone)
        self.marks.pending.update(gone)
        self.marks.published.update(gone)
        self._has_dropped_hints = True
        for read in (self._tombstones, self._pending, self._published):
            read.forget()  # another bucket may get the number

    def purge_tombstones(self, before_us: int, limit: int) -> int:
        """Remove old tombstones. One that is not everywhere yet stays: where it is missing, the object is still there. So do
        all of them while a disk is away that may still have such an object."""
        if time.monotonic() < self._catalog.marks.keeps_tombstones_until_s:
            return 0
        self._flush()
        old = self._execute(
            "SELECT bucket, name FROM tombstones AS t WHERE written_us < ?"
            " AND NOT EXISTS (SELECT 1 FROM pending AS p WHERE p.bucket = t.bucket AND p.name = t.name)"
            " AND NOT EXISTS (SELECT 1 FROM hints AS o WHERE o.bucket = t.bucket AND o.name = t.name) LIMIT ?",
            (before_us, limit),
        ).fetchall()
        delete_each(self._execute, "tombstones", ("bucket", "name"), old)
        return len(old)

    # --- copies

    def record(self, bucket_id: str, name: str, version: str, standing: Standing) -> None:
        """Record the standing of the row or tombstone that was just written; a mark of the one before it goes."""
        if standing.pending:
            self.mark_pending(bucket_id, name, version, standing.job)
        elif self.marks.pending or self._catalog.marks.pending:  # without copies, nothing ever is
            self.drop_mark(bucket_id, name, is_undone=True)
        if standing is not ALONE:
            self.add_hints(bucket_id, name, standing.hints)

    def pending(self, bucket_id: str, name: str) -> str | None:
        """The version that is pending. Answered from memory."""
        key = (bucket_id, name)
        changed = self.marks.pending
        return changed[key] if key in changed else self._catalog.marks.pending.get(key)

    def mark_pending(self, bucket_id: str, name: str, version: str, job: str = "") -> None:
        """Mark what is here as pending; `job`: the one that publishes it."""
        before = self.pending(bucket_id, name)
        self.marks.undone += before not in (None, version)
        self.marks.pending[bucket_id, name] = version
        self._pending.set(self._key_or_new(bucket_id, name), version_parts(version))
        if job:
            self.marks.published[bucket_id, name] = job
            self._published.set(self._key(bucket_id, name), (job,))
        else:
            self._drop_publication(bucket_id, name)

    def drop_mark(self, bucket_id: str, name: str, *, is_undone: bool) -> None:
        """Nothing of this name is pending any more: it was confirmed, or it is not there any more (`is_undone`)."""
        if self.pending(bucket_id, name) is not None:
            self.marks.undone += is_undone
            self.marks.pending[bucket_id, name] = None
            self._pending.remove(self._key(bucket_id, name))
            self._drop_publication(bucket_id, name)

    def publisher(self, bucket_id: str, name: str) -> str:
        """The job that publishes what is pending, or "". Answered from memory."""
        key = (bucket_id, name)
        changed = self.marks.published
        return (changed[key] if key in changed else self._catalog.marks.published.get(key)) or ""

    def end_publication(self, job: str) -> None:
        """No pending row is any more what this job publishes."""
        known = self._catalog.marks.published | self.marks.published
        for name in [name for name, publisher in known.items() if publisher == job]:
            self._drop_publication(*name)

    def _drop_publication(self, bucket_id: str, name: str) -> None:
        if self.publisher(bucket_id, name):
            self.marks.published[bucket_id, name] = None
            self._published.remove(self._key(bucket_id, name))

    def add_hints(self, bucket_id: str, name: str, disks: Iterable[str]) -> None:
        """Note that these disks lack what is here of a name. In a bucket of which nothing is here, there is nothing to lack."""
        self.add_all_hints([(disk, bucket_id, name) for disk in disks])

    def add_all_hints(self, hints: Iterable[tuple[str, str, str]]) -> None:
        """`add_hints` for many names: disk, bucket id and name."""
        known = [(disk, self._number(bucket_id), name.encode()) for disk, bucket_id, name in hints]
        found = [(disk, number, name) for disk, number, name in known if number is not None]
        if found:
            self._hints += found
            self.marks.has_hints = True

    def drop_hints(self, hints: Iterable[tuple[str, str, str]]) -> None:
        """Drop hints: disk, bucket id and name."""
        self._flush_hints()
        gone = [(disk, *self._key(bucket_id, name)) for disk, bucket_id, name in hints]
        delete_each(self._execute, "hints", ("disk", "bucket", "name"), gone)
        self.changes += 2 * len(gone)
        self._has_dropped_hints = True

    def forget_hints(self, column: str, value: object, limit: int) -> int:
        """Drop at most `limit` hints for a disk, or of names of a bucket; returns how many."""
        self._flush_hints()
        chosen = f"SELECT disk, bucket, name FROM hints WHERE {column} = ? LIMIT ?"
        found = self._execute(f"DELETE FROM hints WHERE (disk, bucket, name) IN ({chosen})", (value, limit)).rowcount
        self.changes += 2 * found
        self._has_dropped_hints = True
        return found

    def is_hinted(self, bucket_id: str, name: str) -> bool:
        """Whether some disk lacks what is here of a name."""
        if not self._may_have_hints():
            return False
        self._flush_hints()
        found = self._execute("SELECT 1 FROM hints WHERE bucket = ? AND name = ? LIMIT 1", self._key(bucket_id, name))
        return found.fetchone() is not None

    def depart(self, row: ObjectRow) -> None:
        """Remember a blob without a row until its file is gone, since nothing else here explains it."""
        self._departed.append((*self._key(row.bucket_id, row.name), row.blob_id))

    def forget_departed(self, blobs: Sequence[tuple[int, bytes, str]]) -> None:
        """Forget blobs whose files are gone: bucket number, name and blob id."""
        self._flush_hints()
        delete_each(self._execute, "departed", ("bucket", "name", "blob"), blobs)
        self.changes += len(blobs)

    def has_departed(self, bucket_id: str) -> bool:
        """Whether files of a bucket are remembered that may not be unlinked yet."""
        self._flush_hints()
        return self._execute("SELECT 1 FROM departed WHERE bucket = ?", (self._number(bucket_id),)).fetchone() is not None

    def note_conditional(self, bucket_id: str, name: str, version: str) -> None:
        self._catalog.marks.note_conditional((bucket_id, name), version)

    def newest_conditional(self, bucket_id: str, name: str) -> str | None:
        return self._catalog.marks.newest_conditional((bucket_id, name))

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

    def doubt(self, above: int, rolled_back: int) -> None:
        """Take another incarnation, since rows were lost, and an epoch above this one."""
        self.doubted = doubtful_incarnation(self._catalog.incarnation), max(above, self._catalog.epoch) + 1
        for key, value in zip((INCARNATION, EPOCH), self.doubted, strict=True):
            self.set_meta(key, value)
        self.rolled_back = max(rolled_back, self._catalog.rolled_back)
        self.set_meta(ROLLED_BACK, self.rolled_back)

    def accept(self) -> None:
        """Forget that rows were lost."""
        self._execute("DELETE FROM meta WHERE key IN (?, ?)", (ROLLED_BACK, TORN_LOG))
        self.rolled_back = 0

    def finish(self) -> None:
        """Write all changes. Call it before COMMIT."""
        self._flush()
        for number, changes in self._counters.items():
            self._execute(
                "UPDATE buckets SET objects = objects + ?, bytes = bytes + ?, copies = copies + ?, copy_bytes = copy_bytes + ?"
                " WHERE number = ?",
                (*changes, number),
            )
        self.changes += len(self._counters)
        self._counters.clear()
        if self.may_end_doubt and self._execute("SELECT 1 FROM unsynced LIMIT 1", ()).fetchone() is None:
            self._execute("DELETE FROM meta WHERE key = ?", (RELAXED_BOOT,))
            self.has_ended_doubt = True
        if self._has_dropped_hints and self._may_have_hints():
            self.marks.has_hints = self._execute("SELECT 1 FROM hints LIMIT 1", ()).fetchone() is not None
        if self.marks.damaged or self._catalog.marks.damaged:
            self.marks.damaged = self._execute("SELECT 1 FROM quarantine LIMIT 1", ()).fetchone() is not None

    def _flush(self) -> None:
        tables = (self._objects, self._tombstones, self._unsynced, self._quarantine, self._pending, self._published)
        self.changes += sum(table.flush() for table in tables)
        self._flush_hints()

    def _flush_hints(self) -> None:
        if self._hints:
            in_chunks(self._execute, "INSERT OR IGNORE INTO hints (disk, bucket, name) VALUES ", "(?, ?, ?)", "", self._hints)
            self.changes += 2 * len(self._hints)
            self._hints.clear()
        if self._departed:
            insert = "INSERT OR IGNORE INTO departed (bucket, name, blob) VALUES "
            in_chunks(self._execute, insert, "(?, ?, ?)", "", self._departed)
            self.changes += len(self._departed)
            self._departed.clear()

    def _may_have_hints(self) -> bool:
        return self._catalog.marks.has_hints if self.marks.has_hints is None else self.marks.has_hints

    def _rank(self, key: RowKey) -> int:
        values = self._objects.get(key)
        assert values is not None, "the caller has seen the row in this transaction"
        rank: int = values[0]
        return rank

    def _set_state(self, row: ObjectRow, state: int) -> None:
        key = self._key(row.bucket_id, row.name)
        values = self._objects.get(key)
        assert values is not None, "the caller has seen the row in this transaction"
        self._objects.set(key, (*values[:-1], state))
        self._forget_state(key, row)

    def _forget_state(self, key: RowKey, row: ObjectRow) -> None:
        """Remove the entries of the side tables for a row that is leaving its state."""
        if row.state == UNSYNCED:
            self._unsynced.remove(key)
        elif row.state == QUARANTINED:
            self._quarantine.remove(key)

    def _number(self, bucket_id: str) -> int | None:
        if bucket_id in self.buckets:
            return self.buckets[bucket_id]
        return self._catalog.bucket_number(bucket_id)

    def _key(self, bucket_id: str, name: str) -> RowKey:
        number = self._number(bucket_id)
        return (UNKNOWN_BUCKET if number is None else number, name.encode())

    def _key_or_new(self, bucket_id: str, name: str) -> RowKey:
        if self._number(bucket_id) is None:
            cursor = self._execute("INSERT INTO buckets (id, objects, bytes) VALUES (?, 0, 0)", (bucket_id,))
            self.buckets[bucket_id] = cursor.lastrowid
        return self._key(bucket_id, name)

    def _count(self, number: int, rank: int, objects: int, size: int) -> None:
        counter = self._counters.setdefault(number, [0, 0, 0, 0])
        at = 0 if rank == 0 else 2
        counter[at] += objects
        counter[at + 1] += size
