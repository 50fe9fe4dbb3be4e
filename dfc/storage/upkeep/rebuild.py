"""A catalog made anew from the footers of blobs, and from what an untrusted catalog still says."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import groupby
from typing import Any, Final

import msgspec

from dfc.filesystem import FileSystem, connect, remove_if_there
from dfc.storage import identity, layout
from dfc.storage.blobs.reader import find_damage
from dfc.storage.catalog.catalog import Catalog
from dfc.storage.catalog.changes import StagedName, StagedRow, insert_staged, staged_version
from dfc.storage.catalog.schema import (
    RANKED_LAYOUT,
    REMOVED_BUCKET,
    ROLLED_BACK,
    read_removed_buckets,
    version_parts,
    version_text,
)
from dfc.storage.catalog.transaction import UNVERIFIED, Transaction
from dfc.storage.parts import IndexWriter
from dfc.storage.rows import GOOD, UNSYNCED, ObjectRow
from dfc.storage.upkeep.sweep import blob_directories, blob_files, read_footer
from dfc.tar.header import TarError
from dfc.tar.index.format import index_kind
from dfc.tar.index.reader import ShardIndex
from dfc.walcheck import torn_log

# --- Salvage facts from a catalog that is no longer trusted: deletes, which blobs were synced, what is recorded of copies.
#
# It may be missing, damaged or too old. Every query returns an answer, possibly "nothing".


class OldCatalog:
    """Reads the catalog file at `path` and its log, if they exist."""

    def __init__(self, path: str) -> None:
        self._connection: sqlite3.Connection | None = None
        if os.path.exists(path):
            with suppress(sqlite3.Error):
                self._connection = connect(path)

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

    def hints(self) -> Iterator[tuple[str, str, str]]:
        """Disk, bucket id and name of every readable hint that another disk lacks something."""
        yield from self._all("SELECT disk, id, CAST(name AS TEXT) FROM hints JOIN buckets ON number = bucket")

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


# --- Rebuild a disk's catalog from the footers of its blobs, when the catalog is lost or can no longer be trusted.
#
# Of each name the newest version counts. What the old catalog records of deletes, synced blobs and copies is used if it can be
# read; other blobs are verified before they are served, since a footer says nothing about the bytes before it. Blobs without a
# valid footer are moved to `damaged/`, where nothing deletes them. The old catalog is kept beside the new one.

_ROWS_A_COMMIT: Final = 2000
_NEW: Final = layout.CATALOG_FILE + ".new"
_KEPT: Final = ".before-"
_BUFFER_BYTES: Final = 1 << 18


class RebuildReport(msgspec.Struct):
    """What happened to the blobs. `damaged`: paths, relative to the disk, of blobs set aside or quarantined."""

    disk: str
    disk_id: str
    full: bool
    objects: int = 0
    bytes: int = 0
    older_versions: int = 0
    deleted: int = 0
    tombstones: int = 0
    staged: int = 0
    damaged: list[str] = []
    old_catalog: str = ""


def rebuild(
    path: str, *, full: bool = False, filesystem: FileSystem | None = None, say: Callable[[str], None] = lambda text: None
) -> RebuildReport:
    """Rebuild the catalog; `full` also verifies every body and quarantines those that fail.

    Raises DiskLocked; DiskRefused when the directory has no identity. An interrupted rebuild is simply repeated.
    """
    root, filesystem = os.path.abspath(path), filesystem or FileSystem()
    lock = identity.lock_disk(root)
    try:
        who = identity.require_identity(root, None)
        report = RebuildReport(root, who.disk_id, full)
        new = f"{root}/{_NEW}"
        if torn_log(f"{root}/{layout.CATALOG_FILE}") is not None:
            # Reading it would put what is left of its log into it, and after an interruption nobody would see what is lost.
            _set_catalog_aside(root, filesystem, report)
        remove_if_there(filesystem, (new, f"{new}-wal", f"{new}-shm"))
        Catalog.create(new, who.disk_id, filesystem)
        with closing(Catalog(new, who.disk_id)) as catalog:
            with closing(_Rebuild(root, catalog, filesystem, report, say)) as work:
                rolled_back = work.rolled_back
                work.run()
            catalog.set_epoch(identity.last_opening(root).epoch, filesystem)
            # What only a torn log had is found by its blobs; what is not on the disk at all is not.
            catalog.mark_lost(filesystem, rolled_back)
        _exchange(root, new, filesystem, report)
        return report
    finally:
        os.close(lock)


class _Rebuild:
    def __init__(
        self, root: str, catalog: Catalog, filesystem: FileSystem, report: RebuildReport, say: Callable[[str], None]
    ) -> None:
        self._root = root
        self._catalog = catalog
        self._filesystem = filesystem
        self._report = report
        self._say = say
        self._old = OldCatalog(_old_catalog(root))
        self._removed = self._old.removed_buckets()
        self._departed: list[ObjectRow] = []
        self._ranks_known = True

    def close(self) -> None:
        self._old.close()

    @property
    def rolled_back(self) -> int:
        """What the old catalog says of objects that were lost with an earlier state."""
        return self._old.rolled_back()

    def run(self) -> None:
        batch: list[ObjectRow | StagedRow] = []
        for row in self._rows():
            batch.append(row)
            if len(batch) >= _ROWS_A_COMMIT:
                self._commit(batch)
                batch = []
        self._commit(batch)
        self._keep_tombstones()
        self._keep_what_is_known_of_copies()
        self._report.objects, self._report.bytes = self._catalog.totals()

    def _rows(self) -> Iterator[ObjectRow | StagedRow]:
        """The rows of each name sorted by version, then by blob id: the one that counts comes last."""
        for bucket_id, directory in blob_directories(self._root):
            blobs = [(path, file) for path, file in blob_files(directory) if not file.is_index]
            for _, group in groupby(blobs, key=lambda found: found[1].stem):
                rows = [row for path, file in group if (row := self._row(bucket_id, path, file)) is not None]
                yield from sorted(rows, key=_order)

    def _row(self, bucket_id: str, path: str, file: layout.BlobFile) -> ObjectRow | StagedRow | None:
        try:
            footer = read_footer(self._filesystem, path)
        except (layout.FooterDamaged, ValueError) as error:
            self._set_aside(bucket_id, path, str(error))
            return None
        if path != layout.blob_path(self._root, footer.bucket_id, footer.name, file.blob_id):
            self._set_aside(bucket_id, path, "its footer belongs to another object")
            return None
        drawn = "" if file.blob_id == footer.version else file.blob_id
        known = footer.name, footer.version, footer.size, footer.checksum
        row = ObjectRow(bucket_id, *known, attributes=footer.attributes, drawn=drawn)
        if bucket_id in self._removed:
            self._report.deleted += 1
            return None
        if footer.job is not None:
            return self._staged_row(path, row, StagedName(footer.job, footer.temporary))
        if self._old.has_departed(row):
            self._departed.append(row)
            self._report.deleted += 1
            return None
        if self._old.tombstone(bucket_id, row.name) > row.version:
            self._report.deleted += 1
            return None
        trusted = self._report.full or self._old.knows_as_good(row)
        return self._with_index(path, row if trusted else msgspec.structs.replace(row, state=UNSYNCED))

    def _staged_row(self, path: str, row: ObjectRow, owner: StagedName) -> StagedRow | None:
        """The row of a staged blob: it stays staged, and is verified before it is read or published."""
        if self._report.full:
            damage = find_damage(self._filesystem, path, row, footer=b"", longer=True)
            if damage is not None:
                self._set_aside(row.bucket_id, path, damage)
                return None
        return StagedRow(self._with_index(path, row), owner, None if self._report.full else UNVERIFIED)

    def _with_index(self, path: str, row: ObjectRow) -> ObjectRow:
        """The row with the counts of its index, which is built if it is missing."""
        kind = index_kind(row.name)
        if kind is None:
            return row
        found = _index_counts(path + layout.INDEX_SUFFIX, row)
        if found is not None:
            return msgspec.structs.replace(row, samples=found[0], members=found[1])
        self._say(f"indexing {os.path.relpath(path, self._root)}")
        remove_if_there(self._filesystem, (path + layout.INDEX_SUFFIX,))
        index = IndexWriter(self._filesystem, path + layout.INDEX_SUFFIX, kind, f"{self._root}/{layout.TEMPORARY}")
        summary = None
        try:
            self._feed(path, row, index)
            summary = index.finish(row.version, row.size, row.checksum)
        finally:
            if summary is None:
                index.abort()
        if isinstance(summary, TarError):
            return msgspec.structs.replace(row, warnings=(str(summary),))
        return msgspec.structs.replace(row, samples=summary.samples, members=summary.members, warnings=summary.warnings)

    def _feed(self, path: str, row: ObjectRow, index: IndexWriter) -> None:
        fd = self._filesystem.open(path)
        try:
            buffer = memoryview(bytearray(_BUFFER_BYTES))
            offset = 0
            while offset < row.size:
                count = self._filesystem.read_into(fd, buffer[: row.size - offset], offset)
                if count == 0:
                    raise OSError(f"{path} shrank while it was being read")
                index.feed(buffer[:count])
                offset += count
        finally:
            self._filesystem.close(fd)

    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        transaction = Transaction(self._catalog, "")
        self._catalog.writer.execute("BEGIN IMMEDIATE")
        yield transaction
        transaction.finish()
        self._filesystem.commit(self._catalog.writer)
        self._catalog.learn_buckets(transaction.buckets)

    def _commit(self, batch: list[ObjectRow | StagedRow]) -> None:
        """Store the rows that are the newest of their name so far."""
        rows = [entry for entry in batch if isinstance(entry, ObjectRow)]
        with self._transaction() as transaction:
            transaction.load((row.bucket_id, row.name) for row in rows)
            for row in rows:
                current = transaction.current(row.bucket_id, row.name)
                self._report.older_versions += current is not None
                if current is not None and current.version == row.version and self._stays(current, row):
                    continue
                self._take(transaction, row, current)
            for entry in batch:
                if isinstance(entry, StagedRow):
                    self._take_staged(transaction, entry)
        self._say(f"{len(batch)} blobs read")

    def _stays(self, current: ObjectRow, row: ObjectRow) -> bool:
        """Whether the older of two blobs of one version stays. It does if the younger one has other content, since that was
        never acknowledged then; unless the old catalog knows better, or the older one is damaged."""
        if (current.checksum, current.attributes) == (row.checksum, row.attributes) or current.quarantined:
            return False
        return self._old.knows_as_good(current) or not self._old.knows_as_good(row)

    def _take(self, transaction: Transaction, row: ObjectRow, current: ObjectRow | None) -> None:
        damage = self._damage(row)
        if damage is not None and current is not None:
            return  # an older, sound version is better than none
        rank = self._old.rank(row)
        self._ranks_known = self._ranks_known and rank is not None
        transaction.put(row, current, rank)
        if damage is not None:
            transaction.quarantine(row, damage, int(time.time() * 1e6))
        elif row.unsynced:
            transaction.note_unsynced(row, current, UNVERIFIED)

    def _take_staged(self, transaction: Transaction, entry: StagedRow) -> None:
        current = staged_version(transaction, entry.row.bucket_id, entry.row.name, entry.owner)
        if current is None or current.version <= entry.row.version:
            insert_staged(transaction, entry)
        self._report.staged += current is None

    def _damage(self, row: ObjectRow) -> str | None:
        if not self._report.full:
            return None
        path = layout.row_path(self._root, row)
        damage = find_damage(self._filesystem, path, row)
        if damage is not None:
            self._report.damaged.append(os.path.relpath(path, self._root))
        return damage

    def _keep_tombstones(self) -> None:
        """Keep tombstones, so that an older upload still running elsewhere cannot undo a delete; removed buckets likewise."""
        with self._transaction() as transaction:
            for bucket_id, name, version, written_us in self._old.tombstones():
                if transaction.current(bucket_id, name) is None:
                    transaction.write_tombstone(bucket_id, name, version, written_us)
                    self._report.tombstones += 1
            for bucket_id, us in self._removed.items():
                transaction.set_meta(REMOVED_BUCKET + bucket_id, us)

    def _keep_what_is_known_of_copies(self) -> None:
        """Keep the marks of rows that are there, hints, and blobs that are to be unlinked; ranks, if all are known."""
        with self._transaction() as transaction:
            for bucket_id, name, version in self._old.pending():
                current = transaction.current(bucket_id, name)
                if version == (current.version if current is not None else transaction.tombstone(bucket_id, name)):
                    transaction.mark_pending(bucket_id, name, version, self._old.publisher(bucket_id, name))
            for disk, bucket_id, name in self._old.hints():
                transaction.add_hints(bucket_id, name, (disk,))
            for row in self._departed:
                transaction.bucket_number(row.bucket_id, make=True)
                transaction.depart(row)
            transaction.set_meta(RANKED_LAYOUT, self._old.ranked_layout() if self._ranks_known else 0)

    def _set_aside(self, bucket_id: str, path: str, why: str) -> None:
        directory = f"{self._root}/{layout.DAMAGED}"
        for part in (directory, f"{directory}/{bucket_id}"):
            with suppress(FileExistsError):
                self._filesystem.make_directory(part)
        self._filesystem.rename(path, f"{directory}/{bucket_id}/{os.path.basename(path)}")
        self._report.damaged.append(os.path.relpath(path, self._root))
        self._say(f"set aside {os.path.relpath(path, self._root)}: {why}")


def _order(entry: ObjectRow | StagedRow) -> tuple[str, str]:
    row = entry if isinstance(entry, ObjectRow) else entry.row
    return row.version, row.blob_id


def _index_counts(path: str, row: ObjectRow) -> tuple[int, int] | None:
    """The numbers of samples and members from the index beside a blob, if that is sound and belongs to the blob."""
    try:
        index = ShardIndex.open(path)
    except (OSError, TarError):
        return None
    try:
        if (index.version, index.size, index.checksum) != (row.version, row.size, row.checksum):
            return None
        return index.sample_count, index.member_count
    finally:
        index.close()


def _exchange(root: str, new: str, filesystem: FileSystem, report: RebuildReport) -> None:
    """Replace the old catalog by the new one; the old one is kept under another name, with its log.

    The old catalog is renamed first: without a catalog the disk is refused, but without its log the catalog would be stale. No
    log is ever left for the new catalog to find.
    """
    _set_catalog_aside(root, filesystem, report)
    filesystem.rename(new, f"{root}/{layout.CATALOG_FILE}")
    filesystem.sync_directory(root)


def _set_catalog_aside(root: str, filesystem: FileSystem, report: RebuildReport) -> None:
    catalog = f"{root}/{layout.CATALOG_FILE}"
    kept = f"{catalog}{_KEPT}{time.time_ns()}"
    for ending in ("", "-wal", "-shm"):
        if os.path.exists(catalog + ending):
            filesystem.rename(catalog + ending, kept + ending)
            report.old_catalog = os.path.basename(kept)
    filesystem.sync_directory(root)


def _old_catalog(root: str) -> str:
    """The path of the old catalog or, after an interrupted rebuild, of the one that was already renamed."""
    path = f"{root}/{layout.CATALOG_FILE}"
    if os.path.exists(path):
        return path
    kept = [n for n in os.listdir(root) if n.startswith(layout.CATALOG_FILE + _KEPT) and not n.endswith(("-wal", "-shm"))]
    return f"{root}/{max(kept)}" if kept else path
