"""Check a disk that no process uses and report every inconsistency. Changes nothing.

It covers rows without blobs, blobs without rows, footers and (with `full`) every byte of every body. `dfc disk check` prints
the report.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from typing import Final

import msgspec

from dfc.errors import DfcError
from dfc.filesystem import FileSystem
from dfc.storage import identity, layout
from dfc.storage.blobs.reader import find_damage, find_index_damage
from dfc.storage.catalog.catalog import Catalog
from dfc.storage.catalog.changes import StagedRow, staged_rows
from dfc.storage.catalog.copyreads import departed_page, stray_hints, stray_marks
from dfc.storage.rows import ObjectRow, hinted_disk
from dfc.storage.upkeep.sweep import blob_directories, find_orphans, read_footer

_PROBLEMS_MAX: Final = 10_000  # listed at most; all are counted
_PAGE_ROWS: Final = 1000
_FOREVER: Final = "f" * 18  # later than every version

# What a crash may leave behind, or what is rebuilt automatically; everything else is damage.
HARMLESS: Final = frozenset(
    (
        "torn_blob",
        "superseded_blob",
        "hint_without_row",
        "mark_without_row",
        "departed_without_blob",
        "removed_blob",
        "uncommitted_blob",
        "unpublished_blob",
        "index_without_blob",
        "damaged_index",
    )
)


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """`kind` is one of those in docs/on-disk-format.md; `path` is relative to the disk."""

    kind: str
    detail: str
    path: str = ""
    bucket_id: str = ""
    name: str = ""
    version: str = ""


class CheckReport(msgspec.Struct):
    """The result of a check. `problems` lists the first 10,000; `counts` counts all of them by kind."""

    disk: str
    disk_id: str = ""
    cluster_id: str = ""
    full: bool = False
    objects: int = 0
    bytes: int = 0
    staged: int = 0
    orphans: int = 0
    damaged_files: int = 0
    counts: dict[str, int] = {}
    problems: list[Problem] = []

    def add(self, problem: Problem) -> None:
        self.counts[problem.kind] = self.counts.get(problem.kind, 0) + 1
        if len(self.problems) < _PROBLEMS_MAX:
            self.problems.append(problem)

    @property
    def damaged(self) -> bool:
        """Whether anything was found besides leftovers of a crash."""
        return any(kind not in HARMLESS for kind in self.counts)


def check(path: str, *, full: bool = False, filesystem: FileSystem | None = None) -> CheckReport:
    """Check a disk; `full` also reads every body. Raises DiskLocked, or DiskRefused when there is no disk at all."""
    root, filesystem = os.path.abspath(path), filesystem or FileSystem()
    report = CheckReport(disk=root, full=full)
    lock = identity.lock_disk(root)
    try:
        who = identity.require_identity(root, None)
        report.disk_id, report.cluster_id = who.disk_id, who.cluster_id
        report.orphans = _count_files(f"{root}/{layout.ORPHANS}")
        report.damaged_files = _count_files(f"{root}/{layout.DAMAGED}")
        try:
            catalog = Catalog.open(root, who.disk_id)
        except DfcError as error:
            report.add(Problem("catalog", error.message, layout.CATALOG_FILE))
            return report
        try:
            _check_rows(root, catalog, filesystem, report)
            _check_copies(root, catalog, report)
            _check_staged(root, catalog, filesystem, report)
            _check_files(root, catalog, filesystem, report)
        except sqlite3.Error as error:
            report.add(Problem("catalog", f"it cannot be read: {error}", layout.CATALOG_FILE))
        finally:
            catalog.close()
    finally:
        os.close(lock)
    return report


def _check_rows(root: str, catalog: Catalog, filesystem: FileSystem, report: CheckReport) -> None:
    for bucket_id in catalog.bucket_ids():
        objects = size = 0
        for row in all_rows(catalog, bucket_id):
            objects += 1
            size += row.size
            _check_row(root, row, filesystem, report)
        said = (catalog.counts(bucket_id), catalog.copy_counts(bucket_id))
        for which, counted, there in zip(("", " of later ranks"), said, catalog.measure(bucket_id), strict=True):
            if counted != there:
                detail = (
                    f"the counters say {counted[0]} objects{which} with {counted[1]} bytes,"
                    f" but there are {there[0]} with {there[1]} bytes"
                )
                report.add(Problem("counters", detail, bucket_id=bucket_id))
        report.objects += objects
        report.bytes += size
    for found in catalog.quarantined():
        report.add(Problem("quarantined", found.reason, "", found.bucket_id, found.name, found.version))


def _check_copies(root: str, catalog: Catalog, report: CheckReport) -> None:
    """What is recorded of copies and refers to nothing. None of it does harm."""
    for bucket_id, name, version in stray_marks(catalog):
        report.add(Problem("mark_without_row", "this version is pending, but not there", "", bucket_id, name, version))
    for disk, bucket_id, name in stray_hints(catalog):
        report.add(
            Problem("hint_without_row", f"disk {hinted_disk(disk)} lacks it, but there is nothing of it", "", bucket_id, name)
        )
    for blob in departed_page(catalog, -1):
        path = layout.blob_path(root, blob.bucket_id, blob.name, blob.blob_id)
        if not os.path.exists(path):
            detail = "it was unlinked, and is forgotten when the disk is next opened"
            report.add(Problem("departed_without_blob", detail, os.path.relpath(path, root), blob.bucket_id, blob.name))


def _check_row(root: str, row: ObjectRow, filesystem: FileSystem, report: CheckReport) -> None:
    path = layout.row_path(root, row)
    try:
        damage = find_damage(filesystem, path, row) if report.full else _footer_damage(filesystem, path, row)
    except OSError as error:
        damage = f"it cannot be read: {error.strerror}"
    if damage is not None:
        kind = "row_without_blob" if damage == "its blob is gone" else "damaged_blob"
        report.add(Problem(kind, damage, os.path.relpath(path, root), row.bucket_id, row.name, row.version))
    elif report.full and row.samples is not None:
        damage = find_index_damage(path, row)
        if damage is not None:
            where = os.path.relpath(path + layout.INDEX_SUFFIX, root)
            report.add(Problem("damaged_index", damage, where, row.bucket_id, row.name, row.version))


def _check_staged(root: str, catalog: Catalog, filesystem: FileSystem, report: CheckReport) -> None:
    for entry in staged_rows(catalog):
        row, path = entry.row, layout.row_path(root, entry.row)
        report.staged += 1
        try:
            damage = _staged_damage(filesystem, path, entry, report.full)
        except OSError as error:
            damage = f"it cannot be read: {error.strerror}"
        if damage is not None:
            kind = "row_without_blob" if damage == "its blob is gone" else "damaged_blob"
            detail = f"staged by the job {entry.owner.job}: {damage}"
            report.add(Problem(kind, detail, os.path.relpath(path, root), row.bucket_id, row.name, row.version))


def _staged_damage(filesystem: FileSystem, path: str, entry: StagedRow, full: bool) -> str | None:
    """What is wrong with a staged blob, or None. If publishing was interrupted, its footer may already be, partly or wholly,
    that of an object: then only the body counts."""
    found = _footer_damage(filesystem, path, entry.row, staged=True)
    if found == "its blob is gone" or (found is None and not full):
        return found
    return find_damage(filesystem, path, entry.row, footer=b"", longer=True)


def _footer_damage(filesystem: FileSystem, path: str, row: ObjectRow, *, staged: bool = False) -> str | None:
    try:
        footer = read_footer(filesystem, path)
    except FileNotFoundError:
        return "its blob is gone"
    except layout.FooterDamaged as error:
        return str(error)
    said = (footer.bucket_id, footer.name, footer.version, footer.size, footer.checksum)
    if said != (row.bucket_id, row.name, row.version, row.size, row.checksum):
        return "its footer belongs to another object"
    if footer.attributes != row.attributes:
        return "its footer and the catalog have different attributes"
    if footer.job is not None and not staged:
        return "its footer belongs to a staged blob"
    return None


def _check_files(root: str, catalog: Catalog, filesystem: FileSystem, report: CheckReport) -> None:
    kinds = {
        "torn": "torn_blob",
        "superseded": "superseded_blob",
        "removed": "removed_blob",
        "departed": "superseded_blob",
        "complete": "uncommitted_blob",
        "unpublished": "unpublished_blob",
        "index": "index_without_blob",
    }
    for orphan in find_orphans(root, catalog, filesystem, _FOREVER):
        report.add(Problem(kinds[orphan.kind], "no row refers to it", os.path.relpath(orphan.path, root)))
    for path in foreign_files(root):
        report.add(Problem("foreign_file", "it was not created by DFC", os.path.relpath(path, root)))


def all_rows(catalog: Catalog, bucket_id: str) -> Iterator[ObjectRow]:
    """Iterate over the rows of a bucket; reads in pages."""
    after = ""
    while page := catalog.list_rows(bucket_id, prefix="", start_after=after, after_prefix=False, limit=_PAGE_ROWS, ranks="all"):
        yield from page
        after = page[-1].name


def foreign_files(root: str) -> Iterator[str]:
    """Files in blob directories whose names are not those of blobs or indexes."""
    for _, directory in blob_directories(root):
        for name in sorted(os.listdir(directory)):
            if layout.parse_blob_file(name) is None:
                yield f"{directory}/{name}"


def _count_files(directory: str) -> int:
    return sum(len(names) for _, _, names in os.walk(directory))
