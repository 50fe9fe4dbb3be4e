"""Reads of what a catalog records of copies: states of names, pending rows, hints, ranks. In pages where there may be many."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from dfc.storage.catalog.catalog import Catalog
from dfc.storage.catalog.schema import ROW_COLUMNS, make_row, version_text
from dfc.storage.rows import NameState, hinted_disk

Position = tuple[int, bytes]
"""Where a page ended: give it back to get the next one. It means something only to the catalog that it is from."""
START: Final[Position] = (-1, b"")
END: Final[Position] = ((1 << 63) - 1, b"")

_STATE: Final = (
    f"SELECT t.us, t.node, {', '.join(f'o.{column}' for column in ROW_COLUMNS.split(', '))}"
    " FROM (SELECT ? AS bucket, ? AS name) LEFT JOIN objects AS o USING (bucket, name)"
    " LEFT JOIN tombstones AS t USING (bucket, name)"
)


class RankedRow(NamedTuple):
    """A row on a walk over all of them."""

    bucket_id: str
    name: str
    version: str
    rank: int


class PendingRow(NamedTuple):
    """The version of a name that is not known to count."""

    bucket_id: str
    name: str
    version: str


class DepartedBlob(NamedTuple):
    """A blob whose row was removed, and whose file may not be unlinked yet."""

    key: tuple[int, bytes, str]
    bucket_id: str
    name: str
    blob_id: str


def find_state(catalog: Catalog, bucket_id: str, name: str) -> NameState | None:
    """What there is of a name, in any state. One statement, so that a row cannot become a tombstone in between."""
    number = catalog.bucket_number(bucket_id)
    if number is None:
        return None
    with catalog.reader() as connection:
        us, node, *columns = connection.execute(_STATE, (number, name.encode())).fetchone()
    if columns[0] is not None:
        row = make_row(bucket_id, name, columns)
        return NameState(row.version, row)
    return None if us is None else NameState(version_text(us, node))


def _page(catalog: Catalog, columns: str, table: str, after: Position, limit: int) -> tuple[list[Any], Position | None]:
    """A page of rows that have a bucket and a name: bucket id, name and `columns` of each, and where the next page begins."""
    with catalog.reader() as connection:
        found = connection.execute(
            f"SELECT bucket, name, id, CAST(name AS TEXT), {columns} FROM {table} JOIN buckets ON number = bucket"
            " WHERE (bucket, name) > (?, ?) ORDER BY bucket, name LIMIT ?",
            (*after, limit),
        ).fetchall()
    return [row[2:] for row in found], found[-1][:2] if len(found) == limit else None


def _names(
    catalog: Catalog, table: str, after: Position, limit: int, where: str = "", given: tuple[str, ...] = ()
) -> tuple[list[tuple[str, str]], Position | None]:
    """A page of names in a table: bucket id and name, and where the next page begins."""
    with catalog.reader() as connection:
        found = connection.execute(
            f"SELECT bucket, id, CAST(name AS TEXT) FROM {table} JOIN buckets ON number = bucket"
            f" WHERE {where} (bucket, name) > (?, ?) ORDER BY bucket, name LIMIT ?",
            (*given, *after, limit),
        ).fetchall()
    ids: dict[str, str] = {}  # one object for each, as many of these names may be kept
    names = [(ids.setdefault(bucket_id, bucket_id), name) for _, bucket_id, name in found]
    return names, (found[-1][0], names[-1][1].encode()) if len(found) == limit else None


def pending_page(catalog: Catalog, after: Position, limit: int) -> tuple[list[PendingRow], Position | None]:
    """A page of pending rows, and where the next begins; None: this was the last."""
    found, then = _page(catalog, "us, node", "pending", after, limit)
    return [PendingRow(bucket_id, name, version_text(us, node)) for bucket_id, name, us, node in found], then


def walk_page(catalog: Catalog, after: Position, limit: int) -> tuple[list[RankedRow], Position | None]:
    """A page of the rows of all objects, and where the next begins."""
    found, then = _page(catalog, "us, node, rank", "objects", after, limit)
    return [RankedRow(bucket_id, name, version_text(us, node), rank) for bucket_id, name, us, node, rank in found], then


class ComparedRow(NamedTuple):
    """What is compared of an object."""

    bucket_id: str
    name: str
    version: str
    checksum: str


def compared_page(catalog: Catalog, after: Position, limit: int) -> tuple[list[ComparedRow], Position | None]:
    """A page of what is compared of all objects, and where the next begins."""
    found, then = _page(catalog, "us, node, checksum", "objects", after, limit)
    return [ComparedRow(bucket_id, name, version_text(us, node), check) for bucket_id, name, us, node, check in found], then


def compared_range(catalog: Catalog, bucket_id: str, after: str, upto: str | None, limit: int) -> list[ComparedRow]:
    """The first of the objects of a bucket with names after one and up to another, in byte order; None: all that follow."""
    number = catalog.bucket_number(bucket_id)
    if number is None:
        return []
    until, given = ("", ()) if upto is None else (" AND name <= ?", (upto.encode(),))
    with catalog.reader() as connection:
        found = connection.execute(
            f"SELECT CAST(name AS TEXT), us, node, checksum FROM objects WHERE bucket = ? AND name > ?{until}"
            " ORDER BY name LIMIT ?",
            (number, after.encode(), *given, limit),
        ).fetchall()
    return [ComparedRow(bucket_id, name, version_text(us, node), checksum) for name, us, node, checksum in found]


def tombstone_page(catalog: Catalog, after: Position, limit: int) -> tuple[list[tuple[str, str, str]], Position | None]:
    """A page of all tombstones: bucket id, name and version; and where the next begins."""
    found, then = _page(catalog, "us, node", "tombstones", after, limit)
    return [(bucket_id, name, version_text(us, node)) for bucket_id, name, us, node in found], then


def names_page(catalog: Catalog, table: str, after: Position, limit: int) -> tuple[list[tuple[str, str]], Position | None]:
    """A page of the names in a table, `objects` or `tombstones`: bucket id and name; and where the next begins."""
    return _names(catalog, table, after, limit)


def hints_page(catalog: Catalog, disk: str, after: Position, limit: int) -> tuple[list[tuple[str, str]], Position | None]:
    """A page of the names that a disk lacks, bucket id and name; and where the next begins."""
    return _names(catalog, "hints", after, limit, "disk = ? AND", (disk,))


def damaged_page(catalog: Catalog, after: Position, limit: int) -> tuple[list[tuple[str, str]], Position | None]:
    """A page of the quarantined objects, bucket id and name; and where the next begins."""
    return _names(catalog, "quarantine", after, limit)


def has_hints_for(catalog: Catalog, disk: str) -> bool:
    with catalog.reader() as connection:
        return connection.execute("SELECT 1 FROM hints WHERE disk = ? LIMIT 1", (disk,)).fetchone() is not None


def hinted_disks(catalog: Catalog, bucket_id: str, name: str) -> set[str]:
    """The disks for which there is a hint about a name."""
    key = (catalog.bucket_number(bucket_id), name.encode())
    with catalog.reader() as connection:
        found = connection.execute("SELECT disk FROM hints WHERE bucket = ? AND name = ?", key).fetchall()
    return {hinted_disk(hints) for (hints,) in found}


def hinted(catalog: Catalog) -> list[str]:
    """For whom there are hints: disks, and disks `later`. One step of an index for each."""
    found, last = [], ""
    with catalog.reader() as connection:
        while row := connection.execute("SELECT disk FROM hints WHERE disk > ? ORDER BY disk LIMIT 1", (last,)).fetchone():
            (last,) = row
            found.append(last)
    return found


def hint_counts(catalog: Catalog) -> dict[str, int]:
    """The number of hints for each disk, and for each disk `later`; reads all of them."""
    with catalog.reader() as connection:
        return dict(connection.execute("SELECT disk, count(*) FROM hints GROUP BY disk").fetchall())


def departed_page(catalog: Catalog, limit: int) -> list[DepartedBlob]:
    """The first of the blobs whose files may not be unlinked yet."""
    with catalog.reader() as connection:
        found = connection.execute(
            "SELECT bucket, name, blob, id, CAST(name AS TEXT) FROM departed JOIN buckets ON number = bucket"
            " ORDER BY bucket, name, blob LIMIT ?",
            (limit,),
        ).fetchall()
    return [DepartedBlob((number, key, blob), bucket_id, name, blob) for number, key, blob, bucket_id, name in found]


def stray_marks(catalog: Catalog) -> list[tuple[str, str, str]]:
    """Pending versions that are not there: bucket id, name and version."""
    with catalog.reader() as connection:
        found = connection.execute(
            "SELECT coalesce(id, ''), CAST(p.name AS TEXT), p.us, p.node FROM pending AS p"
            " LEFT JOIN buckets ON number = p.bucket LEFT JOIN objects AS o USING (bucket, name)"
            " LEFT JOIN tombstones AS t USING (bucket, name)"
            " WHERE (p.us, p.node) IS NOT (o.us, o.node) AND (p.us, p.node) IS NOT (t.us, t.node)"
        ).fetchall()
    return [(bucket_id, name, version_text(us, node)) for bucket_id, name, us, node in found]


def stray_hints(catalog: Catalog) -> list[tuple[str, str, str]]:
    """Notes about names of which nothing is there: disk, bucket id and name."""
    with catalog.reader() as connection:
        return connection.execute(
            "SELECT disk, coalesce(id, ''), CAST(n.name AS TEXT) FROM hints AS n LEFT JOIN buckets ON number = n.bucket"
            " WHERE NOT EXISTS (SELECT 1 FROM objects AS o WHERE (o.bucket, o.name) = (n.bucket, n.name))"
            " AND NOT EXISTS (SELECT 1 FROM tombstones AS t WHERE (t.bucket, t.name) = (n.bucket, n.name))"
        ).fetchall()
