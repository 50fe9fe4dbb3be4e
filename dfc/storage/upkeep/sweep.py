"""The sweep: move files in `objects/` that the catalog does not refer to into `orphans/`, and delete them later.

Only files from before this opening of the disk are considered; the file of a running upload is newer, even if the upload
brings an older version along. A crash leaves torn blobs, replaced ones, any number from a bucket that was being removed or of
excess copies, and a few complete ones that were not committed. More complete blobs than that mean that the catalog is wrong,
not the blobs: then nothing is moved and an alarm is raised.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from dfc.filesystem import FileSystem, remove_if_there
from dfc.storage import layout
from dfc.storage.catalog.catalog import Catalog
from dfc.storage.catalog.changes import REMOVED_ROWS
from dfc.storage.catalog.copies import ForgetDeparted
from dfc.storage.catalog.copyreads import DepartedBlob, departed_page
from dfc.storage.parts import DiskParts
from dfc.storage.rows import ObjectRow

_log = logging.getLogger(__name__)
_ORPHANS_A_SWEEP: Final = 50_000  # limits memory; the rest waits until the disk is next opened

OrphanKind = Literal["torn", "superseded", "complete", "unpublished", "index", "removed", "departed"]
_UNLINKED: Final = ("index", "removed", "departed")  # nothing to keep: an index, or a file that was about to be unlinked


class Orphan(NamedTuple):
    """A file without a row. "complete": its footer is sound and no newer version of that name is known; "unpublished": a job
    had staged it, or was about to; "removed": it belongs to a bucket whose removal the catalog records; "departed": its row was
    removed, as the catalog records."""

    path: str
    kind: OrphanKind
    bucket_id: str


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The result of a sweep. `alarm`: too many complete blobs; nothing was moved."""

    found: int
    complete: int
    moved: int
    alarm: bool


def sweep(parts: DiskParts, before: str, stopped: Callable[[], bool] = lambda: False) -> SweepReport:
    """Move every unreferenced file whose blob id is older than `before` to `orphans/`, after what was to be unlinked is."""
    unlink_departed(parts)
    orphans = []
    for orphan in find_orphans(parts.root, parts.catalog, parts.filesystem, before, stopped):
        orphans.append(orphan)
        if len(orphans) >= _ORPHANS_A_SWEEP:
            break
    complete = sum(orphan.kind == "complete" for orphan in orphans)
    alarm = complete > parts.options.orphan_alarm
    if alarm:
        _log.error(
            "disk %s: %d complete blobs have no row. The catalog may be too old; nothing was moved. Check the disk with"
            " 'dfc disk check' and rebuild the catalog with 'dfc disk rebuild'",
            parts.disk_id,
            complete,
        )
    elif complete and parts.catalog.may_have_lost_rows:
        _log.error(
            "disk %s: %d complete blobs have no row. The catalog has lost rows, so they may be objects: they stay where they"
            " are until somebody has them found (dfc disk rebuild), or accepts the loss (dfc disk accept)",
            parts.disk_id,
            complete,
        )
        orphans = [orphan for orphan in orphans if orphan.kind != "complete"]
    elif complete:
        _log.warning(
            "disk %s: %d complete blobs have no row, as a crash may leave them: they are set aside in orphans/ for a while",
            parts.disk_id,
            complete,
        )
    moved = 0 if alarm else sum(_set_aside(parts, orphan) for orphan in orphans)
    if not alarm:
        for bucket_id in {orphan.bucket_id for orphan in orphans if orphan.kind == "removed"}:
            remove_directories(parts, bucket_id)
    parts.stats.orphans_found += len(orphans)
    parts.stats.orphan_alarm = int(alarm)
    return SweepReport(len(orphans), complete, moved, alarm)


def find_orphans(
    root: str, catalog: Catalog, filesystem: FileSystem, before: str, stopped: Callable[[], bool] = lambda: False
) -> Iterator[Orphan]:
    """Find files in `objects/` without a row, one directory at a time."""
    for bucket_id, directory in blob_directories(root):
        if stopped():
            return
        with catalog.reader() as connection:
            connection.execute("BEGIN")  # one snapshot: a row cannot change between two queries
            try:
                yield from _orphans_in(directory, bucket_id, catalog, connection, filesystem, before)
            finally:
                connection.execute("ROLLBACK")


def blob_directories(root: str) -> Iterator[tuple[str, str]]:
    """The bucket id and path of every directory that may hold blobs."""
    objects = f"{root}/{layout.OBJECTS}"
    for bucket_id in sorted(os.listdir(objects)):
        try:
            fans = sorted(os.listdir(f"{objects}/{bucket_id}"))
        except (FileNotFoundError, NotADirectoryError):
            continue
        for fan in fans:
            if layout.is_fan_directory(fan):
                yield bucket_id, f"{objects}/{bucket_id}/{fan}"


def blob_files(directory: str) -> list[tuple[str, layout.BlobFile]]:
    """Every file in a directory that is named like a blob or an index, with its path."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    parsed = ((f"{directory}/{name}", layout.parse_blob_file(name)) for name in names)
    return [(path, file) for path, file in parsed if file is not None]


def read_footer(filesystem: FileSystem, path: str) -> layout.Footer:
    """Read the footer of a blob; FooterDamaged if it has none, or one that does not match the file."""
    fd = filesystem.open(path)
    try:
        size = os.fstat(fd).st_size
        start = max(0, size - layout.FOOTER_BYTES_MAX)
        footer = layout.decode_footer(filesystem.pread(fd, size - start, start))
    finally:
        filesystem.close(fd)
    if footer.size + footer.footer_bytes != size:
        raise layout.FooterDamaged(f"its footer says {footer.size} bytes, but the file has {size}")
    return footer


def _orphans_in(
    directory: str, bucket_id: str, catalog: Catalog, connection: sqlite3.Connection, filesystem: FileSystem, before: str
) -> Iterator[Orphan]:
    unnamed: list[tuple[str, str]] = []  # hashed names without a readable footer: path, blob id
    kept: set[str] = set()
    indexes: list[str] = []
    removed = catalog.was_removed(connection, bucket_id)
    for path, file in blob_files(directory):
        if file.blob_id >= before:
            continue
        if file.is_index:
            indexes.append(path)
            continue
        # Most files have a row; footers are read only for the others and for hashed names.
        footer = None if file.name is not None else _footer_or_none(filesystem, path)
        name = file.name or (footer.name if footer else None)
        if name is None:
            unnamed.append((path, file.blob_id))
            continue
        needed, newest = catalog.referenced_blobs(connection, bucket_id, name)
        if file.blob_id in needed:
            kept.add(path)
            continue
        footer = footer or _footer_or_none(filesystem, path)
        if footer is None:
            yield Orphan(path, "torn", bucket_id)
        elif removed:
            yield Orphan(path, "removed", bucket_id)
        elif catalog.has_departed(connection, bucket_id, name, file.blob_id):
            yield Orphan(path, "departed", bucket_id)
        elif footer.job is not None:
            yield Orphan(path, "unpublished", bucket_id)
        else:
            yield Orphan(path, "superseded" if newest is not None and newest >= footer.version else "complete", bucket_id)
    if unnamed:
        known = set(catalog.blob_ids(connection, bucket_id))
        for path, blob_id in unnamed:
            if blob_id in known:
                kept.add(path)
            else:
                yield Orphan(path, "torn", bucket_id)
    for path in indexes:
        if path.removesuffix(layout.INDEX_SUFFIX) not in kept:
            yield Orphan(path, "index", bucket_id)


def _footer_or_none(filesystem: FileSystem, path: str) -> layout.Footer | None:
    try:
        return read_footer(filesystem, path)
    except (layout.FooterDamaged, OSError, ValueError):
        return None


def _set_aside(parts: DiskParts, orphan: Orphan) -> bool:
    try:
        if orphan.kind in _UNLINKED:
            parts.filesystem.unlink(orphan.path)
        else:
            _move_to_orphans(parts, orphan.path, orphan.bucket_id)
        return True
    except FileNotFoundError:
        return False
    except OSError as error:
        parts.health.count(error, "setting an orphan aside")
        return False


def _move_to_orphans(parts: DiskParts, path: str, bucket_id: str) -> str:
    """The path of a file there. OSError."""
    directory = f"{parts.root}/{layout.ORPHANS}/{bucket_id}"
    with suppress(FileExistsError):
        parts.filesystem.make_directory(directory)
    to = f"{directory}/{os.path.basename(path)}"
    parts.filesystem.rename(path, to)
    return to


def keep_as_orphan(parts: DiskParts, row: ObjectRow) -> str | None:
    """Move the blob of a row that was removed to `orphans/`; its path there, None if it stays where it is for the sweep."""
    path = parts.path(row)
    parts.indexes.forget(path)
    try:
        remove_if_there(parts.filesystem, (path + layout.INDEX_SUFFIX,))
        return _move_to_orphans(parts, path, row.bucket_id)
    except FileNotFoundError:
        return None
    except OSError as error:
        parts.health.count(error, "setting a blob aside")
        return None


def unlink_departed(parts: DiskParts) -> int:
    """Make sure that the files of removed rows are gone, and forget them; returns how many."""
    count = 0
    while parts.health.reason is None and (page := departed_page(parts.catalog, REMOVED_ROWS)):
        gone = [blob.key for blob in page if _unlink(parts, blob)]
        if not gone:
            break
        try:
            parts.filesystem.sync_all(parts.root)  # until then, a power loss can bring the files back
        except OSError as error:
            parts.health.count(error, "syncing the removal of blobs")
            break
        parts.committer.submit(ForgetDeparted(gone))
        count += len(gone)
    return count


def _unlink(parts: DiskParts, blob: DepartedBlob) -> bool:
    path = layout.blob_path(parts.root, blob.bucket_id, blob.name, blob.blob_id)
    parts.indexes.forget(path)
    try:
        remove_if_there(parts.filesystem, (path, path + layout.INDEX_SUFFIX))
        return True
    except OSError as error:
        parts.health.count(error, "unlinking a removed blob")
        return False


def remove_directories(parts: DiskParts, bucket_id: str) -> None:
    """Remove the empty directories of a bucket."""
    parts.directories.forget(bucket_id)
    bucket = layout.bucket_directory(parts.root, bucket_id)
    with suppress(OSError):
        for fan in os.listdir(bucket):
            with suppress(OSError):
                parts.filesystem.remove_directory(f"{bucket}/{fan}")
        parts.filesystem.remove_directory(bucket)


def delete_old_orphans(parts: DiskParts, now_s: float | None = None) -> int:
    """Delete orphans that were moved more than `orphan_keep_s` ago; returns how many. None while it is not accepted that the
    catalog has lost rows: they may be objects."""
    if parts.catalog.may_have_lost_rows:
        return 0
    now_s = time.time() if now_s is None else now_s
    deleted = 0
    for directory, _, names in os.walk(f"{parts.root}/{layout.ORPHANS}"):
        for name in names:
            path = f"{directory}/{name}"
            try:
                # The rename into `orphans/` was the last change of its inode.
                if os.lstat(path).st_ctime + parts.options.orphan_keep_s <= now_s:
                    parts.filesystem.unlink(path)
                    deleted += 1
            except FileNotFoundError:
                continue
            except OSError as error:
                parts.health.count(error, "deleting an orphan")
    parts.stats.orphans_deleted += deleted
    return deleted
