"""The tables of a catalog, and how they store rows and versions."""

from __future__ import annotations

import secrets
import sqlite3
from typing import Any, Final

import msgspec

from dfc.filesystem import APPLICATION_ID
from dfc.storage.rows import ObjectRow

SCHEMA_VERSION: Final = 1
# Keys in `meta`.
REMOVED_BUCKET: Final = "removed_bucket/"  # prefix of the keys that record removed buckets; the value is when, in µs
INCARNATION: Final = "incarnation"  # a random id of this life of the catalog
RELAXED_BOOT: Final = "relaxed_boot"  # the boot of the machine in which rows with copies may have been lost to a power loss
EPOCH: Final = "epoch"  # counts openings, and the first synced commit after each report of it; see `dfc.storage.identity`
ROLLED_BACK: Final = "rolled_back"  # the disk was put back to an earlier state; 2: objects with one copy are lost with that
TORN_LOG: Final = "torn_log"  # rows may be lost because its log was damaged, and nobody has accepted that yet
RANKED_LAYOUT: Final = "ranked_layout"  # the layout by which `rank` was computed; 0: some ranks are unknown
ONE_COPY_LAYOUT: Final = 1  # the ranks of a new catalog: with one copy, every row is of rank 0

# Names are BLOBs, so that they sort by their UTF-8 bytes. `us` and `node` are the two parts of a version. The counters of a
# bucket change in the transactions that change its objects: `objects` and `bytes` count rows of rank 0, `copies` and
# `copy_bytes` all others. `staged` has outputs of jobs that are not objects yet, `ended_jobs` the jobs that may not stage
# anything any more; `boot` is the boot of the machine in which a blob was written that is not known to be synced. `pending`:
# the row or tombstone of this version is not known to be on every disk that must have it; `published`: what of that a job
# publishes. `hints`: the other disk should get the row or tombstone that is here. `departed`: blobs of rows that were removed
# without a tombstone or a newer row that would explain them, until their files are gone for certain.
_TABLES: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE buckets (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, objects INTEGER NOT NULL, bytes INTEGER NOT NULL,
    copies INTEGER NOT NULL DEFAULT 0, copy_bytes INTEGER NOT NULL DEFAULT 0);
CREATE TABLE objects (
    bucket INTEGER NOT NULL, name BLOB NOT NULL, us INTEGER NOT NULL, node INTEGER NOT NULL, size INTEGER NOT NULL,
    checksum TEXT NOT NULL, samples INTEGER, members INTEGER, state INTEGER NOT NULL, warnings TEXT, attributes BLOB,
    drawn TEXT, rank INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (bucket, name)) WITHOUT ROWID;
CREATE TABLE tombstones (
    bucket INTEGER NOT NULL, name BLOB NOT NULL, us INTEGER NOT NULL, node INTEGER NOT NULL, written_us INTEGER NOT NULL,
    PRIMARY KEY (bucket, name)) WITHOUT ROWID;
CREATE INDEX tombstones_by_age ON tombstones (written_us);
CREATE TABLE unsynced (
    bucket INTEGER NOT NULL, name BLOB NOT NULL, us INTEGER NOT NULL, node INTEGER NOT NULL, boot TEXT NOT NULL,
    sequence INTEGER NOT NULL, previous BLOB, PRIMARY KEY (bucket, name)) WITHOUT ROWID;
CREATE TABLE quarantine (
    bucket INTEGER NOT NULL, name BLOB NOT NULL, us INTEGER NOT NULL, node INTEGER NOT NULL, size INTEGER NOT NULL,
    reason TEXT NOT NULL, found_us INTEGER NOT NULL, PRIMARY KEY (bucket, name)) WITHOUT ROWID;
CREATE TABLE staged (
    job TEXT NOT NULL, bucket INTEGER NOT NULL, name BLOB NOT NULL, temporary INTEGER NOT NULL, us INTEGER NOT NULL,
    node INTEGER NOT NULL, size INTEGER NOT NULL, checksum TEXT NOT NULL, samples INTEGER, members INTEGER, warnings TEXT,
    attributes BLOB, drawn TEXT, boot TEXT, PRIMARY KEY (job, bucket, name, temporary)) WITHOUT ROWID;
CREATE INDEX staged_by_name ON staged (bucket, name);
CREATE TABLE ended_jobs (job TEXT PRIMARY KEY, us INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE pending (
    bucket INTEGER NOT NULL, name BLOB NOT NULL, us INTEGER NOT NULL, node INTEGER NOT NULL,
    PRIMARY KEY (bucket, name)) WITHOUT ROWID;
CREATE TABLE published (
    bucket INTEGER NOT NULL, name BLOB NOT NULL, job TEXT NOT NULL, PRIMARY KEY (bucket, name)) WITHOUT ROWID;
CREATE TABLE hints (
    disk TEXT NOT NULL, bucket INTEGER NOT NULL, name BLOB NOT NULL, PRIMARY KEY (disk, bucket, name)) WITHOUT ROWID;
CREATE INDEX hints_by_name ON hints (bucket, name);
CREATE TABLE departed (
    bucket INTEGER NOT NULL, name BLOB NOT NULL, blob TEXT NOT NULL, PRIMARY KEY (bucket, name, blob)) WITHOUT ROWID;
"""
ROW_COLUMNS: Final = "us, node, size, checksum, samples, members, warnings, attributes, drawn, state"  # `state` stays last
STAGED_ROW_COLUMNS: Final = ROW_COLUMNS.removesuffix(", state")


def create_tables(connection: sqlite3.Connection, disk_id: str) -> None:
    """Fill an empty database with the tables of a new catalog."""
    marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};"
    connection.executescript(f"BEGIN; {_TABLES} {marks} COMMIT;")
    values = ("disk_id", disk_id, EPOCH, 0, INCARNATION, new_incarnation(), RANKED_LAYOUT, ONE_COPY_LAYOUT)
    connection.execute("INSERT INTO meta VALUES (?, ?), (?, ?), (?, ?), (?, ?)", values)


def new_incarnation() -> str:
    return secrets.token_hex(8)


def doubtful_incarnation(before: str) -> str:
    """The incarnation of a catalog that may have lost its last rows: it begins like the one before, up to a dot."""
    return f"{before.partition('.')[0]}.{secrets.token_hex(4)}"


def version_text(us: int, node: int) -> str:
    return f"{us:014x}{node:04x}"


def version_parts(version: str) -> tuple[int, int]:
    return int(version[:14], 16), int(version[14:], 16)


def make_row(bucket_id: str, name: str, columns: Any) -> ObjectRow:
    """Make an ObjectRow from ROW_COLUMNS."""
    us, node, size, checksum, samples, members, warnings, attributes, drawn, state = columns
    texts = tuple(warnings.split("\n")) if warnings else ()
    version, attributes, drawn = version_text(us, node), attributes or b"", drawn or ""
    return ObjectRow(bucket_id, name, version, size, checksum, samples, members, texts, state, attributes, drawn)


def row_values(row: ObjectRow) -> tuple[Any, ...]:
    """The values of ROW_COLUMNS for a row."""
    more = "\n".join(row.warnings) or None, row.attributes or None, row.drawn or None
    return (*version_parts(row.version), row.size, row.checksum, row.samples, row.members, *more, row.state)


def encode_previous(row: ObjectRow) -> bytes:
    """Encode the row that an unsynced one replaced, to be restored if the new blob does not survive a power loss."""
    return msgspec.msgpack.encode(row)


def decode_previous(data: bytes) -> ObjectRow:
    return msgspec.msgpack.decode(data, type=ObjectRow)


def read_removed_buckets(connection: sqlite3.Connection) -> dict[str, int]:
    """The ids of recently removed buckets, and when each was removed, in µs since 1970."""
    found = connection.execute(
        "SELECT key, value FROM meta WHERE key >= ? AND key < ?", (REMOVED_BUCKET, REMOVED_BUCKET[:-1] + "0")
    )
    return {key.removeprefix(REMOVED_BUCKET): us for key, us in found}
