"""Reads of the rows whose blobs are not known to be synced: those of this boot of the machine, and those of others."""

from __future__ import annotations

from dfc.storage.catalog.catalog import Catalog
from dfc.storage.catalog.schema import ROW_COLUMNS, make_row, version_parts
from dfc.storage.rows import ObjectRow


def unsynced_up_to(catalog: Catalog, boot: str) -> tuple[int, int]:
    """The number of unsynced rows of this boot of the machine, and their highest sequence number."""
    with catalog.reader() as connection:
        found = connection.execute("SELECT count(*), max(sequence) FROM unsynced WHERE boot = ?", (boot,)).fetchone()
    return found[0], found[1] or 0


def unsynced(catalog: Catalog, boot: str, up_to: int) -> list[ObjectRow]:
    """The unsynced rows of this boot of the machine with sequence numbers up to `up_to`."""
    with catalog.reader() as connection:
        found = connection.execute(
            f"SELECT id, CAST(name AS TEXT), {', '.join('o.' + c for c in ROW_COLUMNS.split(', '))}"
            " FROM unsynced AS u JOIN buckets ON number = u.bucket JOIN objects AS o USING (bucket, name)"
            " WHERE u.boot = ? AND u.sequence <= ?",
            (boot, up_to),
        ).fetchall()
    return [make_row(bucket_id, name, columns) for bucket_id, name, *columns in found]


def unsynced_boot(catalog: Catalog, row: ObjectRow) -> str | None:
    """The boot of the machine in which an unsynced row was written; None when it is no longer unsynced."""
    us, node = version_parts(row.version)
    key = (catalog.bucket_number(row.bucket_id), row.name.encode(), us, node)
    with catalog.reader() as connection:
        found = connection.execute(
            "SELECT boot FROM unsynced WHERE bucket = ? AND name = ? AND us = ? AND node = ?", key
        ).fetchone()
    return found[0] if found else None


def suspects(catalog: Catalog, boot: str, after: tuple[int, bytes], limit: int) -> list[tuple[tuple[int, bytes], str, str]]:
    """A page of unsynced rows of other boots: the position for the next `after`, the bucket id and the name."""
    with catalog.reader() as connection:
        found = connection.execute(
            "SELECT bucket, name, id, CAST(name AS TEXT) FROM unsynced JOIN buckets ON number = bucket"
            " WHERE boot <> ? AND (bucket, name) > (?, ?) ORDER BY bucket, name LIMIT ?",
            (boot, *after, limit),
        ).fetchall()
    return [((number, key), bucket_id, name) for number, key, bucket_id, name in found]
