"""Salvage facts from a catalog that is no longer trusted: deletes, and which blobs were synced.

It may be missing, damaged or too old. Every query returns an answer, possibly "nothing".
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator

from dfc.database import connect
from dfc.storage.catalog.schema import read_removed_buckets, version_parts, version_text
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

    def tombstone(self, bucket_id: str, name: str) -> str:
        """The version of a tombstone; empty if there is none."""
        found = self._one(
            "SELECT us, node FROM tombstones JOIN buckets ON number = bucket WHERE id = ? AND name = ?",
            (bucket_id, name.encode()),
        )
        return version_text(*found) if found else ""

    def tombstones(self) -> Iterator[tuple[str, str, str, int]]:
        """Bucket id, name and version of every readable tombstone, and when it was written."""
        if self._connection is None:
            return
        try:
            for bucket_id, name, us, node, written_us in self._connection.execute(
                "SELECT id, CAST(name AS TEXT), us, node, written_us FROM tombstones JOIN buckets ON number = bucket"
            ):
                yield bucket_id, name, version_text(us, node), written_us
        except sqlite3.Error:
            return

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

    def _one(self, query: str, values: tuple[object, ...]) -> tuple[int, ...] | None:
        if self._connection is None:
            return None
        try:
            found: tuple[int, ...] | None = self._connection.execute(query, values).fetchone()
        except sqlite3.Error:
            return None
        return found
