"""Salvage facts from a catalog that is no longer trusted: deletes, which blobs were synced, what is recorded of copies.

It may be missing, damaged or too old. Every query returns an answer, possibly "nothing".
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from typing import Any

from dfc.database import connect
from dfc.storage.catalog.schema import RANKED_LAYOUT, ROLLED_BACK, read_removed_buckets, version_parts, version_text
from dfc.storage.rows import GOOD, ObjectRow


class OldCatalog:
    """Reads the catalog file at `path` and its log, if they exist."""

    def __init__(self, path: str) -> None:
        self._connection: sqlite3.Connection | None = None
        if os.path.exists(path):
            try:
                self._connection = connect(path)
            except sqlite3.Error:
                pass

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def rolled_back(self) -> int:
        """The mark of a disk that was put back to an earlier state; 0 if there is none."""
        found = self._one("SELECT value FROM meta WHERE key = ?", (ROLLED_BACK,))
        return int(found[0]) if found else 0

    def tombstone(self, bucket_id: str, name: str) -> str:
        """The version of a tombstone; empty if there is none."""
        found = self._one(
            "SELECT us, node FROM tombstones JOIN buckets ON number = bucket WHERE id = ? AND name = ?",
            (bucket_id, name.encode()),
        )
        return version_text(*found) if found else ""

    def tombstones(self) -> Iterator[tuple[str, str, str, int]]:
        """Bucket id, name and version of every readable tombstone, and when it was written."""
        query = "SELECT id, CAST(name AS TEXT), us, node, written_us FROM tombstones JOIN buckets ON number = bucket"
        for bucket_id, name, us, node, written_us in self._all(query):
            yield bucket_id, name, version_text(us, node), written_us

    def pending(self) -> Iterator[tuple[str, str, str]]:
        """Bucket id, name and version of every readable row that is marked as pending."""
        query = "SELECT id, CAST(name AS TEXT), us, node FROM pending JOIN buckets ON number = bucket"
        for bucket_id, name, us, node in self._all(query):
            yield bucket_id, name, version_text(us, node)

    def publisher(self, bucket_id: str, name: str) -> str:
        """The job that publishes what is pending, or ""."""
        query = "SELECT job FROM published JOIN buckets ON number = bucket WHERE id = ? AND name = ?"
        found: Any = self._one(query, (bucket_id, name.encode()))
        return str(found[0]) if found else ""

    def notes(self) -> Iterator[tuple[str, str, str]]:
        """Disk, bucket id and name of every readable note of what another disk lacks."""
        yield from self._all("SELECT disk, id, CAST(name AS TEXT) FROM owed JOIN buckets ON number = bucket")

    def has_departed(self, row: ObjectRow) -> bool:
        """Whether this blob was about to be unlinked."""
        query = "SELECT 1 FROM departed JOIN buckets ON number = bucket WHERE id = ? AND name = ? AND blob = ?"
        return self._one(query, (row.bucket_id, row.name.encode(), row.blob_id)) is not None

    def rank(self, row: ObjectRow) -> int | None:
        """The rank of the object of this name; None if it does not know the object."""
        query = "SELECT rank FROM objects JOIN buckets ON number = bucket WHERE id = ? AND name = ?"
        found = self._one(query, (row.bucket_id, row.name.encode()))
        return found[0] if found else None

    def ranked_layout(self) -> int:
        """The layout by which its ranks were computed; 0: unknown."""
        found = self._one("SELECT value FROM meta WHERE key = ?", (RANKED_LAYOUT,))
        return found[0] if found else 0

    def removed_buckets(self) -> dict[str, int]:
        """The removed buckets that it records, and when each was removed, in µs since 1970."""
        if self._connection is None:
            return {}
        try:
            return read_removed_buckets(self._connection)
        except sqlite3.Error:
            return {}

    def knows_as_good(self, row: ObjectRow) -> bool:
        """Whether it records exactly this blob as that of a synced, sound object."""
        found = self._one(
            "SELECT state FROM objects JOIN buckets ON number = bucket"
            " WHERE id = ? AND name = ? AND us = ? AND node = ? AND size = ? AND checksum = ? AND drawn IS ?",
            (row.bucket_id, row.name.encode(), *version_parts(row.version), row.size, row.checksum, row.drawn or None),
        )
        return found is not None and found[0] == GOOD

    def _all(self, query: str) -> Iterator[Any]:
        if self._connection is None:
            return
        try:
            yield from self._connection.execute(query)
        except sqlite3.Error:
            return

    def _one(self, query: str, values: tuple[object, ...]) -> tuple[int, ...] | None:
        if self._connection is None:
            return None
        try:
            found: tuple[int, ...] | None = self._connection.execute(query, values).fetchone()
        except sqlite3.Error:
            return None
        return found
