"""One transaction of the catalog: the statements that change rows, and the counters that follow them. One thread only.

It keeps what must become known once it is committed: rows for the cache and numbers of new buckets. Decisions are made in
`dfc.storage.operations`; this module only carries them out.
"""

from __future__ import annotations

from typing import Any

from dfc.storage.cache import Key
from dfc.storage.catalog import Catalog, decode_previous, encode_previous, make_row, version_parts, version_text
from dfc.storage.rows import GOOD, QUARANTINED, UNSYNCED, ObjectRow


class Transaction:
    """Between BEGIN and COMMIT on the catalog's writer. `boot` is the id of this run of the machine."""

    def __init__(self, catalog: Catalog, boot: str) -> None:
        self._catalog = catalog
        self._execute = catalog.writer.execute
        self._boot = boot
        self._counters: dict[int, list[int]] = {}
        self.rows: dict[Key, ObjectRow | None] = {}
        self.buckets: dict[str, int | None] = {}
        self.changes = 0

    # --- what is there

    def _number(self, bucket_id: str) -> int | None:
        if bucket_id in self.buckets:
            return self.buckets[bucket_id]
        return self._catalog.bucket_number(bucket_id)

    def current(self, bucket_id: str, name: str) -> ObjectRow | None:
        """The row as this transaction sees it."""
        found = self._execute(
            "SELECT us, node, size, checksum, samples, members, warnings, state FROM objects WHERE bucket = ? AND name = ?",
            (self._number(bucket_id), name.encode()),
        ).fetchone()
        return None if found is None else make_row(bucket_id, name, found)

    def tombstone(self, bucket_id: str, name: str) -> str | None:
        """The version of the delete that is remembered for a name."""
        found = self._execute(
            "SELECT us, node FROM tombstones WHERE bucket = ? AND name = ?", (self._number(bucket_id), name.encode())
        ).fetchone()
        return None if found is None else version_text(*found)

    def previous(self, row: ObjectRow) -> ObjectRow | None:
        """The durable row that an unsynced one replaced and can come back to."""
        if row.state != UNSYNCED:
            return None
        found = self._execute(
            "SELECT previous FROM unsynced WHERE bucket = ? AND name = ?", (self._number(row.bucket_id), row.name.encode())
        ).fetchone()
        return decode_previous(found[0]) if found and found[0] is not None else None

    # --- changes

    def put(self, row: ObjectRow, replaced: ObjectRow | None) -> None:
        """Point the name at a new blob. `replaced` is what `current` gave."""
        number = self._number_or_new(row.bucket_id)
        name = row.name.encode()
        us, node = version_parts(row.version)
        warnings = "\n".join(row.warnings) or None
        self._change(
            "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (number, name, us, node, row.size, row.checksum, row.samples, row.members, row.state, warnings),
        )
        if replaced is None:
            self._count(number, 1, row.size)
        else:
            self._count(number, 0, row.size - replaced.size)
            self._forget_state(number, replaced)
        self.rows[row.bucket_id, row.name] = row

    def note_unsynced(self, row: ObjectRow, previous: ObjectRow | None) -> None:
        us, node = version_parts(row.version)
        data = None if previous is None else encode_previous(previous)
        key = (self._number(row.bucket_id), row.name.encode())
        self._change("INSERT OR REPLACE INTO unsynced VALUES (?, ?, ?, ?, ?, ?)", (*key, us, node, self._boot, data))

    def remove(self, row: ObjectRow) -> None:
        """Take a row out; a tombstone is the caller's decision."""
        number = self._number_or_new(row.bucket_id)
        self._change("DELETE FROM objects WHERE bucket = ? AND name = ?", (number, row.name.encode()))
        self._count(number, -1, -row.size)
        self._forget_state(number, row)
        self.rows[row.bucket_id, row.name] = None

    def write_tombstone(self, bucket_id: str, name: str, version: str) -> None:
        key = (self._number_or_new(bucket_id), name.encode())
        self._change("INSERT OR REPLACE INTO tombstones VALUES (?, ?, ?, ?)", (*key, *version_parts(version)))

    def remove_tombstone(self, bucket_id: str, name: str) -> None:
        key = (self._number(bucket_id), name.encode())
        self._change("DELETE FROM tombstones WHERE bucket = ? AND name = ?", key)

    def mark_synced(self, row: ObjectRow) -> bool:
        """The blob of an unsynced row is known to be on the medium; False when the row has changed meanwhile."""
        number, name = self._number(row.bucket_id), row.name.encode()
        key = (number, name, *version_parts(row.version))
        changed = self._change(
            f"UPDATE objects SET state = {GOOD} WHERE bucket = ? AND name = ? AND us = ? AND node = ? AND state = {UNSYNCED}",
            key,
        )
        if changed:
            self._change("DELETE FROM unsynced WHERE bucket = ? AND name = ?", (number, name))
        return bool(changed)

    def quarantine(self, row: ObjectRow, reason: str, found_us: int) -> None:
        """Mark the current row as one that must not be served."""
        number, name = self._number_or_new(row.bucket_id), row.name.encode()
        self._forget_state(number, row)
        self._change(f"UPDATE objects SET state = {QUARANTINED} WHERE bucket = ? AND name = ?", (number, name))
        self._change(
            "INSERT OR REPLACE INTO quarantine VALUES (?, ?, ?, ?, ?, ?, ?)",
            (number, name, *version_parts(row.version), row.size, reason, found_us),
        )
        self.rows[row.bucket_id, row.name] = None

    def lift_quarantine(self, row: ObjectRow) -> None:
        number, name = self._number_or_new(row.bucket_id), row.name.encode()
        self._change(f"UPDATE objects SET state = {GOOD} WHERE bucket = ? AND name = ?", (number, name))
        self._forget_state(number, row)
        self.rows[row.bucket_id, row.name] = None

    def some_rows(self, bucket_id: str, limit: int) -> list[ObjectRow]:
        """The first rows of a bucket."""
        found = self._execute(
            "SELECT CAST(name AS TEXT), us, node, size, checksum, samples, members, warnings, state FROM objects"
            " WHERE bucket = ? ORDER BY name LIMIT ?",
            (self._number(bucket_id), limit),
        )
        return [make_row(bucket_id, name, columns) for name, *columns in found.fetchall()]

    def remove_empty_bucket(self, bucket_id: str) -> None:
        """Forget a bucket without rows, with its tombstones."""
        number = self._number(bucket_id)
        self._change("DELETE FROM tombstones WHERE bucket = ?", (number,))
        self._change("DELETE FROM buckets WHERE number = ?", (number,))
        self.buckets[bucket_id] = None

    def purge_tombstones(self, before_us: int, limit: int) -> int:
        return self._change(
            "DELETE FROM tombstones WHERE (bucket, name) IN (SELECT bucket, name FROM tombstones WHERE us < ? LIMIT ?)",
            (before_us, limit),
        )

    def set_meta(self, key: str, value: Any) -> None:
        self._change("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def finish(self) -> None:
        """Write the counters; to be called before COMMIT."""
        for number, (objects, size) in self._counters.items():
            self._change(
                "UPDATE buckets SET objects = objects + ?, bytes = bytes + ? WHERE number = ?", (objects, size, number)
            )
        self._counters.clear()

    # --- inside

    def _change(self, statement: str, values: tuple[object, ...]) -> int:
        changed = self._execute(statement, values).rowcount
        self.changes += changed
        return changed

    def _number_or_new(self, bucket_id: str) -> int:
        number = self._number(bucket_id)
        if number is None:
            number = self._execute("INSERT INTO buckets (id, objects, bytes) VALUES (?, 0, 0)", (bucket_id,)).lastrowid
            assert number is not None
            self.buckets[bucket_id] = number
        return number

    def _count(self, number: int, objects: int, size: int) -> None:
        counter = self._counters.setdefault(number, [0, 0])
        counter[0] += objects
        counter[1] += size

    def _forget_state(self, number: int, row: ObjectRow) -> None:
        """Drop what the side tables say about a row that is leaving its state."""
        if row.state == UNSYNCED:
            self._change("DELETE FROM unsynced WHERE bucket = ? AND name = ?", (number, row.name.encode()))
        elif row.state == QUARANTINED:
            self._change("DELETE FROM quarantine WHERE bucket = ? AND name = ?", (number, row.name.encode()))
