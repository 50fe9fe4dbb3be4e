"""The catalog of one disk: an SQLite database that says which blob is which object. Opened, checked, read.

It is created only when a disk is formatted or rebuilt; if the catalog is missing, foreign, or fails its check, the disk is
refused. Reads use a pool of connections, in any thread. Writes go through `dfc.storage.catalog.transaction`, in one thread.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, Final, Literal

from dfc.clock import version_us
from dfc.errors import DiskRefused, StorageFailed
from dfc.filesystem import APPLICATION_ID, FileSystem, connect, other_format, read_header, sync_file
from dfc.listing.pages import Row
from dfc.storage.catalog.cache import Marks
from dfc.storage.catalog.schema import (
    EPOCH,
    INCARNATION,
    RELAXED_BOOT,
    REMOVED_BUCKET,
    ROLLED_BACK,
    ROW_COLUMNS,
    SCHEMA_VERSION,
    TORN_LOG,
    create_tables,
    decode_previous,
    doubtful_incarnation,
    make_row,
    read_removed_buckets,
    version_parts,
    version_text,
)
from dfc.storage.health import DiskHealth
from dfc.storage.layout import CATALOG_FILE
from dfc.storage.rows import ObjectRow, QuarantinedObject
from dfc.walcheck import torn_log

_IDLE_READERS_MAX: Final = 16  # more than this are closed when they are returned
_READER_CACHE_KIB: Final = 1024
_WRITER_CACHE_KIB: Final = 8192

_FIND: Final = f"SELECT {ROW_COLUMNS} FROM objects WHERE bucket = ? AND name = ?"
Ranks = Literal["first", "all"]
_LISTED: Final = "CAST(name AS TEXT), size, checksum, us, samples, members"


def prefix_successor(prefix: bytes) -> bytes | None:
    """The first byte string that sorts after all with this `prefix`; None when there is none."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes((head[-1] + 1,)) if head else None


class Catalog:
    """The catalog of a disk. Reads are thread-safe; the writer connection belongs to one thread at a time."""

    marks: Marks
    """What is remembered of copies; the committer keeps it up to date."""
    incarnation: str
    """A random id of this life of the catalog: another one after a rebuild, or when a power loss may have cost rows."""
    relaxed_boot: str | None
    """The boot of the machine in which a row with copies was committed that a power loss may cost. The committer notes it
    before the first of them, and forgets it when all are synced."""
    epoch: int
    """How far the disk has come; see `dfc.storage.identity`. Durable."""
    rolled_back: int
    """1: the disk was put back to an earlier state, and does not have everything again yet. 2: nor will it without what only it
    had, and nobody has accepted that yet. Otherwise 0."""

    has_torn_log: bool
    """Whether its log was torn by a power loss, perhaps, and nobody has accepted what was lost."""

    def __init__(self, path: str, disk_id: str, health: DiskHealth | None = None, *, may_be_torn: bool = False) -> None:
        """Open and check the catalog. Another schema version is refused, and nothing is changed.

        `health` translates read errors; without it they are SQLite's. `may_be_torn`: a log with commits behind
        a damaged frame is not refused, but `torn` says so.
        """
        self._health = health
        self.path = path
        self.disk_id = disk_id
        self._idle: deque[sqlite3.Connection] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self._numbers: dict[str, int] = {}
        self._check_schema()
        try:
            self.torn = torn_log(path)
        except OSError as error:
            raise DiskRefused(_refusal(path, str(error))) from error
        if self.torn is not None and not may_be_torn:
            where = f"frame {self.torn.frame} of {self.torn.frames} in its log is damaged"
            raise DiskRefused(_refusal(path, f"{where}, and {self.torn.commits} commits behind that would be lost"))
        try:
            self.writer = _connect(path)
        except sqlite3.Error as error:
            raise DiskRefused(_refusal(path, str(error))) from error
        try:
            self._check()
            _tune(self.writer, _WRITER_CACHE_KIB)
            self._numbers.update(self.writer.execute("SELECT id, number FROM buckets"))
            self._sequence: int = self.writer.execute("SELECT coalesce(max(sequence), 0) FROM unsynced").fetchone()[0]
            self._load_copies()
        except sqlite3.Error as error:
            self.writer.close()
            raise DiskRefused(_refusal(path, str(error))) from error
        except BaseException:
            self.writer.close()
            raise

    # --- making and opening

    @classmethod
    def open(cls, root: str, disk_id: str, health: DiskHealth | None = None, *, may_be_torn: bool = False) -> Catalog:
        """Open the catalog of the disk at `root`; DiskRefused when it is missing, foreign or fails its check."""
        path = f"{root}/{CATALOG_FILE}"
        if not os.path.exists(path):
            raise DiskRefused(_refusal(path, "it is missing"))
        return cls(path, disk_id, health, may_be_torn=may_be_torn)

    @staticmethod
    def create(path: str, disk_id: str, filesystem: FileSystem) -> None:
        """Create an empty, durable catalog; FileExistsError if the file exists."""
        filesystem.close(filesystem.create(path))
        connection = _connect(path)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            _tune(connection, _WRITER_CACHE_KIB)
            create_tables(connection, disk_id)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            connection.close()
        sync_file(filesystem, path)

    @staticmethod
    def holds_objects(path: str) -> bool:
        """Whether a file is a catalog with objects in it, or cannot be read: it must not be thrown away."""
        if not os.path.exists(path) or os.path.getsize(path) == 0:
            return False
        try:
            with closing(_connect(path)) as connection:
                tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'objects'").fetchone()[0]
                return bool(tables) and connection.execute("SELECT 1 FROM objects LIMIT 1").fetchone() is not None
        except sqlite3.Error:
            return True

    @staticmethod
    def disk_id_in(path: str) -> str | None:
        """The disk id recorded in a catalog; None when it cannot be read."""
        if not os.path.exists(path):
            return None
        try:
            with closing(_connect(path)) as connection:
                found = connection.execute("SELECT value FROM meta WHERE key = 'disk_id'").fetchone()
                return str(found[0]) if found else None
        except sqlite3.Error:
            return None

    def _check_schema(self) -> None:
        try:
            header = read_header(self.path)
        except OSError as error:
            raise DiskRefused(_refusal(self.path, str(error))) from error
        if header is None:
            return
        if header.application_id != APPLICATION_ID:
            raise DiskRefused(_refusal(self.path, "it is not a DFC catalog"))
        if header.user_version != SCHEMA_VERSION:
            raise DiskRefused(f"{self.path} is a catalog {other_format(header.user_version, SCHEMA_VERSION)}")

    def _check(self) -> None:
        if os.path.getsize(self.path) == 0:
            raise DiskRefused(_refusal(self.path, "it is empty"))
        if self.writer.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise DiskRefused(_refusal(self.path, "it is not a DFC catalog"))
        if self.writer.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise DiskRefused(_refusal(self.path, "it fails SQLite's integrity check"))
        owner = self.writer.execute("SELECT value FROM meta WHERE key = 'disk_id'").fetchone()
        if owner is None or owner[0] != self.disk_id:
            raise DiskRefused(_refusal(self.path, f"it is the catalog of disk {owner and owner[0]}, not of {self.disk_id}"))

    def _load_copies(self) -> None:
        self.marks = Marks(self.writer)
        keys = (INCARNATION, RELAXED_BOOT, EPOCH, ROLLED_BACK, TORN_LOG)
        meta = dict(self.writer.execute("SELECT key, value FROM meta WHERE key IN (?, ?, ?, ?, ?)", keys))
        if INCARNATION not in meta:
            raise DiskRefused(_refusal(self.path, "it does not say which life of the disk it is of"))
        self.incarnation = str(meta[INCARNATION])
        self.relaxed_boot = str(meta[RELAXED_BOOT]) if RELAXED_BOOT in meta else None
        self.epoch = int(meta.get(EPOCH, 0))
        self.rolled_back, self.has_torn_log = int(meta.get(ROLLED_BACK, 0)), TORN_LOG in meta

    def close(self) -> None:
        """Checkpoint the log and close every connection. Reads still running fail."""
        with self._lock:
            self._closed = True
            idle = list(self._idle)
            self._idle.clear()
        for connection in idle:
            connection.close()
        with suppress(sqlite3.Error):  # the log stays and is read when the catalog is next opened
            self.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.writer.close()

    # --- reading

    @contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """Borrow a read connection that sees the last commit."""
        connection = self._take()
        try:
            yield connection
        except sqlite3.Error as error:
            raise self._translate(error) from error
        finally:
            self._give_back(connection)

    def _translate(self, error: sqlite3.Error) -> Exception:
        return error if self._health is None else self._health.translate_catalog(error, "reading it")

    def _take(self) -> sqlite3.Connection:
        try:
            return self._idle.pop()
        except IndexError:
            pass
        if self._closed:
            raise StorageFailed("the disk is closed")
        try:
            connection = _connect(self.path)
            _tune(connection, _READER_CACHE_KIB)
            connection.execute("PRAGMA query_only = 1")
        except sqlite3.Error as error:
            raise self._translate(error) from error
        return connection

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _IDLE_READERS_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def bucket_number(self, bucket_id: str) -> int | None:
        """The number of a bucket in this catalog; None if it has never held an object of the bucket."""
        return self._numbers.get(bucket_id)

    def learn_buckets(self, numbers: dict[str, int | None]) -> None:
        """Record the buckets that a commit has added or (None) removed."""
        for bucket_id, number in numbers.items():
            if number is None:
                self._numbers.pop(bucket_id, None)
            else:
                self._numbers[bucket_id] = number

    def bucket_ids(self) -> list[str]:
        return sorted(self._numbers)

    def find(self, bucket_id: str, name: str) -> ObjectRow | None:
        number = self._numbers.get(bucket_id)
        if number is None:
            return None
        connection = self._take()
        try:
            columns = connection.execute(_FIND, (number, name.encode())).fetchone()
        except sqlite3.Error as error:
            raise self._translate(error) from error
        finally:
            self._give_back(connection)
        return None if columns is None else make_row(bucket_id, name, columns)

    def list_tuples(
        self, bucket_id: str, *, prefix: str, start_after: str, after_prefix: bool, limit: int, ranks: Ranks = "first"
    ) -> list[Row]:
        """See `Disk.list_tuples`."""
        return self._page(_LISTED, bucket_id, prefix, start_after, after_prefix, limit, ranks)

    def list_rows(
        self, bucket_id: str, *, prefix: str, start_after: str, after_prefix: bool, limit: int, ranks: Ranks = "first"
    ) -> list[ObjectRow]:
        """See `Disk.list`."""
        page = self._page(f"CAST(name AS TEXT), {ROW_COLUMNS}", bucket_id, prefix, start_after, after_prefix, limit, ranks)
        return [make_row(bucket_id, columns[0], columns[1:]) for columns in page]

    def _page(
        self, columns: str, bucket_id: str, prefix: str, start_after: str, after_prefix: bool, limit: int, ranks: Ranks
    ) -> list[Any]:
        number = self._numbers.get(bucket_id)
        if number is None:
            return []
        low: bytes | None = start_after.encode()
        if start_after:
            low = prefix_successor(start_after.encode()) if after_prefix else start_after.encode() + b"\0"
        if low is None:
            return []
        bounds: list[object] = [number, max(low, prefix.encode())]
        high = prefix_successor(prefix.encode())
        if high is not None:
            bounds.append(high)
        # The rank is looked at while the range is scanned: an index of the rows of rank 0 would cost every upload a second key.
        query = (
            f"SELECT {columns} FROM objects WHERE bucket = ? AND name >= ?{' AND name < ?' if high is not None else ''}"
            f"{' AND rank = 0' if ranks == 'first' else ''} ORDER BY name LIMIT ?"
        )
        with self.reader() as connection:
            return connection.execute(query, (*bounds, limit)).fetchall()

    def counts(self, bucket_id: str) -> tuple[int, int]:
        """The number of objects and bytes of a bucket, from its counters: rows of rank 0."""
        with self.reader() as connection:
            found = connection.execute("SELECT objects, bytes FROM buckets WHERE id = ?", (bucket_id,)).fetchone()
        return found or (0, 0)

    def copy_counts(self, bucket_id: str) -> tuple[int, int]:
        """The same of rows of all other ranks."""
        with self.reader() as connection:
            found = connection.execute("SELECT copies, copy_bytes FROM buckets WHERE id = ?", (bucket_id,)).fetchone()
        return found or (0, 0)

    def measure(self, bucket_id: str) -> tuple[tuple[int, int], tuple[int, int]]:
        """What the counters should say, of rank 0 and of all others; reads every row of the bucket."""
        query = "SELECT total(1), total(size) FROM objects WHERE bucket = ? AND (rank = 0) = ?"
        with self.reader() as connection:
            found = [connection.execute(query, (self._numbers.get(bucket_id, -1), first)).fetchone() for first in (1, 0)]
        return (int(found[0][0]), int(found[0][1])), (int(found[1][0]), int(found[1][1]))

    def totals(self) -> tuple[int, int]:
        """The number of objects and bytes of all buckets, whatever the rank."""
        with self.reader() as connection:
            query = "SELECT total(objects) + total(copies), total(bytes) + total(copy_bytes) FROM buckets"
            objects, size = connection.execute(query).fetchone()
        return int(objects), int(size)

    def first_counts(self) -> dict[str, int]:
        """The number of objects of rank 0 of each bucket, by its id."""
        with self.reader() as connection:
            return dict(connection.execute("SELECT id, objects FROM buckets").fetchall())

    def tombstone(self, bucket_id: str, name: str) -> str | None:
        """The version of an object's tombstone, or None."""
        with self.reader() as connection:
            found = connection.execute(
                "SELECT us, node FROM tombstones JOIN buckets ON number = bucket WHERE id = ? AND name = ?",
                (bucket_id, name.encode()),
            ).fetchone()
        return version_text(*found) if found else None

    def quarantined(self) -> list[QuarantinedObject]:
        with self.reader() as connection:
            found = connection.execute(
                "SELECT id, CAST(name AS TEXT), us, node, size, reason, found_us FROM quarantine"
                " JOIN buckets ON number = bucket ORDER BY id, name"
            ).fetchall()
        return [QuarantinedObject(b, n, version_text(us, node), *rest) for b, n, us, node, *rest in found]

    def quarantined_count(self) -> int:
        return self._count("quarantine")

    def unsynced_count(self) -> int:
        return self._count("unsynced")

    def _count(self, table: str) -> int:
        with self.reader() as connection:
            count: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        return count

    def blob_ids(self, connection: sqlite3.Connection, bucket_id: str) -> Iterator[str]:
        """The ids of all blobs that a bucket still needs."""
        key = (self._numbers.get(bucket_id, -1),)
        yield from _blob_ids(connection.execute("SELECT us, node, drawn FROM objects WHERE bucket = ?", key))
        for (previous,) in connection.execute("SELECT previous FROM unsynced WHERE bucket = ? AND previous NOT NULL", key):
            yield decode_previous(previous).blob_id
        yield from _blob_ids(connection.execute("SELECT us, node, drawn FROM staged WHERE bucket = ?", key))

    def next_sequence(self) -> int:
        """The next sequence number, which orders unsynced rows by commit; for the committer."""
        self._sequence += 1
        return self._sequence

    def set_epoch(self, epoch: int, filesystem: FileSystem) -> None:
        """Record durably how far the disk has come; before the committer takes the writer."""
        self._set_meta(filesystem, ("UPDATE meta SET value = ? WHERE key = ?", (epoch, EPOCH)))
        self.epoch = epoch

    def accept(self, filesystem: FileSystem) -> None:
        """Forget durably that rows were lost; before the committer takes the writer."""
        self._set_meta(filesystem, ("DELETE FROM meta WHERE key IN (?, ?)", (ROLLED_BACK, TORN_LOG)))
        self.rolled_back, self.has_torn_log = 0, False

    @property
    def may_have_lost_rows(self) -> bool:
        """Whether blobs without a row may be objects."""
        return bool(self.rolled_back) or self.has_torn_log

    def mark_lost(self, filesystem: FileSystem, rolled_back: int) -> None:
        """Record durably what was recorded in the catalog before this one."""
        if rolled_back:
            self._set_meta(filesystem, ("INSERT OR REPLACE INTO meta VALUES (?, ?)", (ROLLED_BACK, rolled_back)))
            self.rolled_back = rolled_back

    def begin_log(self) -> None:
        """Begin the log anew: what earlier processes had left there is not to be taken for a part of it. If something prevents
        that, nothing is lost."""
        with suppress(sqlite3.Error):
            self.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def doubt(self, filesystem: FileSystem, *, has_torn_log: bool = False) -> None:
        """Take another incarnation, durably, since rows may have been lost; before the committer takes the writer."""
        new = doubtful_incarnation(self.incarnation)
        torn = [("INSERT OR REPLACE INTO meta VALUES (?, 1)", (TORN_LOG,))] if has_torn_log else []
        self._set_meta(
            filesystem,
            *torn,
            ("UPDATE meta SET value = ? WHERE key = ?", (new, INCARNATION)),
            ("DELETE FROM meta WHERE key = ?", (RELAXED_BOOT,)),
        )
        self.incarnation, self.relaxed_boot = new, None
        self.has_torn_log = self.has_torn_log or has_torn_log

    def _set_meta(self, filesystem: FileSystem, *changes: tuple[str, tuple[object, ...]]) -> None:
        self.writer.execute("BEGIN IMMEDIATE")
        try:
            for statement, values in changes:
                self.writer.execute(statement, values)
            filesystem.commit(self.writer)
        except BaseException:
            if self.writer.in_transaction:
                self.writer.execute("ROLLBACK")
            raise

    def referenced_blobs(self, connection: sqlite3.Connection, bucket_id: str, name: str) -> tuple[set[str], str | None]:
        """The ids of an object's blobs that are still needed, and its newest known version.

        The newest version may be that of a tombstone. `connection` is a reader's, so that callers can query one snapshot.
        """
        key = (self._numbers.get(bucket_id, -1), name.encode())
        needed, known = set(), set()
        for us, node, drawn in connection.execute("SELECT us, node, drawn FROM objects WHERE bucket = ? AND name = ?", key):
            known.add(version_text(us, node))
            needed.add(drawn or version_text(us, node))
        for (previous,) in connection.execute("SELECT previous FROM unsynced WHERE bucket = ? AND name = ?", key):
            if previous is not None:
                needed.add(decode_previous(previous).blob_id)
        for us, node in connection.execute("SELECT us, node FROM tombstones WHERE bucket = ? AND name = ?", key):
            known.add(version_text(us, node))
        # Needed, but no version of the object itself.
        needed.update(_blob_ids(connection.execute("SELECT us, node, drawn FROM staged WHERE bucket = ? AND name = ?", key)))
        return needed, max(known, default=None)

    def has_departed(self, connection: sqlite3.Connection, bucket_id: str, name: str, blob_id: str) -> bool:
        """Whether a blob's row was removed and the file is to be unlinked."""
        key = (self._numbers.get(bucket_id, -1), name.encode(), blob_id)
        found = connection.execute("SELECT 1 FROM departed WHERE bucket = ? AND name = ? AND blob = ?", key)
        return found.fetchone() is not None

    def newest_us(self) -> int:
        """The time in µs of the newest version or blob id of all rows, and of files still to be unlinked; reads every row."""
        versions = (f"coalesce((SELECT max(us) FROM {table}), 0)" for table in ("objects", "tombstones", "staged"))
        tables = {"objects": "drawn", "staged": "drawn", "departed": "blob"}
        drawn = (f"coalesce((SELECT max({column}) FROM {table}), '')" for table, column in tables.items())
        with self.reader() as connection:
            us, blob_id = connection.execute(f"SELECT max({', '.join(versions)}), max({', '.join(drawn)})").fetchone()
        return max(int(us), version_us(blob_id) if blob_id else 0)

    def was_removed(self, connection: sqlite3.Connection, bucket_id: str) -> bool:
        """Whether the removal of a bucket has been committed or begun."""
        return connection.execute("SELECT 1 FROM meta WHERE key = ?", (REMOVED_BUCKET + bucket_id,)).fetchone() is not None

    def removed_buckets(self) -> dict[str, int]:
        """The ids of recently removed buckets, and when each was removed, in µs since 1970."""
        with self.reader() as connection:
            return read_removed_buckets(connection)

    def meta(self, key: str) -> Any:
        """A value stored in `meta`, or None."""
        with self.reader() as connection:
            found = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return found[0] if found else None


def _blob_ids(rows: Iterable[tuple[int, int, str | None]]) -> Iterator[str]:
    for us, node, drawn in rows:
        yield drawn or version_text(us, node)


def _connect(path: str) -> sqlite3.Connection:
    return connect(path, timeout_s=30, cached_statements=64)


def _tune(connection: sqlite3.Connection, cache_kib: int) -> None:
    # The committer starts the checkpoints; temporary tables never touch the disk.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA cache_size = -{cache_kib}")


def _refusal(path: str, why: str) -> str:
    directory = os.path.dirname(path)
    return (
        f"{path}: {why}. The disk stays unused, so nothing on it is lost. Restore the newest copy of the catalog, or"
        f" rebuild it from the blobs: dfc disk rebuild {directory}"
    )


# --- Reads of the rows whose blobs are not known to be synced: those of this boot of the machine, and those of others.


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
