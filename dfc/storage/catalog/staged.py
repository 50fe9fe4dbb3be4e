"""Staged rows: blobs that a job has written and that are not objects yet. The rows, and changes to them.

A row is keyed by job, bucket, name and whether it is temporary (for later tasks of the job, never an object). Once a job has
ended on this disk, by publishing or discarding, nothing more can be staged for it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgspec

from dfc.clock import HybridClock, version_us
from dfc.errors import JobCancelled
from dfc.storage import layout
from dfc.storage.catalog.catalog import Catalog
from dfc.storage.catalog.changes import Change, PutOutcome, makes_good, store
from dfc.storage.catalog.schema import STAGED_ROW_COLUMNS, make_row, row_values
from dfc.storage.catalog.transaction import Transaction
from dfc.storage.preconditions import ALWAYS, Precondition
from dfc.storage.rows import ALONE, GOOD, UNSYNCED, ObjectRow, Standing

_COLUMNS: Final = f"{STAGED_ROW_COLUMNS}, boot, job, temporary"
_WIDTH: Final = len(_COLUMNS.split(", "))
_PAGE_ROWS: Final = 1000


class StagedName(NamedTuple):
    """What identifies a staged blob besides its bucket and name."""

    job: str
    temporary: bool = False


class StagedRow(msgspec.Struct, frozen=True, gc=False):
    """One staged blob. `boot`: the boot of the machine in which it was written, None once it is synced."""

    row: ObjectRow
    owner: StagedName
    boot: str | None

    @property
    def footer(self) -> bytes:
        return layout.staged_footer(self.row, *self.owner)


class StagedTotal(msgspec.Struct, frozen=True):
    """The totals of what a job has staged on a disk, including temporary blobs."""

    objects: int
    bytes: int
    oldest_us: int


# --- reading


def find_staged(catalog: Catalog, bucket_id: str, name: str, owner: StagedName) -> StagedRow | None:
    number = catalog.bucket_number(bucket_id)
    if number is None:
        return None
    with catalog.reader() as connection:
        found = connection.execute(
            f"SELECT {_COLUMNS} FROM staged WHERE job = ? AND bucket = ? AND name = ? AND temporary = ?",
            (owner.job, number, name.encode(), int(owner.temporary)),
        ).fetchone()
    return None if found is None else _row(bucket_id, name, found)


def staged_rows(catalog: Catalog, job: str | None = None) -> Iterator[StagedRow]:
    """Iterate over the staged rows of a job, or of all jobs, by job, bucket, name; reads in pages."""
    after: tuple[Any, ...] = (job or "", -1, b"", -1)
    while True:
        with catalog.reader() as connection:
            page = connection.execute(
                f"SELECT {_COLUMNS}, bucket, name, id, CAST(name AS TEXT) FROM staged JOIN buckets ON number = bucket"
                " WHERE (job, bucket, name, temporary) > (?, ?, ?, ?) AND (? IS NULL OR job = ?)"
                " ORDER BY job, bucket, name, temporary LIMIT ?",
                (*after, job, job, _PAGE_ROWS),
            ).fetchall()
        for columns in page:
            yield _row(columns[-2], columns[-1], columns[:_WIDTH])
        if len(page) < _PAGE_ROWS:
            return
        *_, job_id, temporary, bucket, key, _, _ = page[-1]
        after = (job_id, bucket, key, temporary)


def staged_totals(catalog: Catalog) -> dict[str, StagedTotal]:
    """The totals by job."""
    with catalog.reader() as connection:
        found = connection.execute("SELECT job, count(*), total(size), min(us) FROM staged GROUP BY job").fetchall()
    return {job: StagedTotal(count, int(size), oldest) for job, count, size, oldest in found}


def has_ended(catalog: Catalog, job: str) -> bool:
    with catalog.reader() as connection:
        return connection.execute("SELECT 1 FROM ended_jobs WHERE job = ?", (job,)).fetchone() is not None


def _row(bucket_id: str, name: str, columns: Any) -> StagedRow:
    *values, boot, job, temporary = columns
    row = make_row(bucket_id, name, (*values, GOOD if boot is None else UNSYNCED))
    return StagedRow(row, StagedName(job, bool(temporary)), boot)


# --- changes


def insert_staged(transaction: Transaction, staged: StagedRow) -> None:
    """Insert a row, or replace the one with the same key."""
    row, owner = staged.row, staged.owner
    number = transaction.bucket_number(row.bucket_id, make=True)
    values = (owner.job, number, row.name.encode(), int(owner.temporary), *row_values(row)[:-1], staged.boot)
    columns = f"job, bucket, name, temporary, {STAGED_ROW_COLUMNS}, boot"
    transaction.run(f"INSERT OR REPLACE INTO staged ({columns}) VALUES ({', '.join('?' * len(values))})", values)
    transaction.changes += 2


def staged_version(transaction: Transaction, bucket_id: str, name: str, owner: StagedName) -> ObjectRow | None:
    """The row with this key, as the transaction sees it."""
    number = transaction.bucket_number(bucket_id)
    found = transaction.run(
        f"SELECT {_COLUMNS} FROM staged WHERE job = ? AND bucket = ? AND name = ? AND temporary = ?",
        (owner.job, number, name.encode(), int(owner.temporary)),
    ).fetchone()
    return None if found is None else _row(bucket_id, name, found).row


class KeepStaged(Change[PutOutcome]):
    """Stage a finished blob for its job; a later attempt replaces an earlier one. JobCancelled if the job has ended here."""

    def __init__(self, row: ObjectRow, owner: StagedName, precondition: Precondition = ALWAYS) -> None:
        self._row = row
        self._owner = owner
        self._precondition = precondition
        self.durable = row.state != UNSYNCED

    def apply(self, transaction: Transaction) -> PutOutcome:
        self._precondition.check_guard()  # its standing is that of an object
        if _ended(transaction, self._owner.job):
            raise JobCancelled(f"job {self._owner.job} has already ended on this disk")
        row = self._row
        current = staged_version(transaction, row.bucket_id, row.name, self._owner)
        if current is not None and current.version > row.version:
            return PutOutcome(stored=False, replaced=True)
        boot = transaction.boot if row.state == UNSYNCED else None
        insert_staged(transaction, StagedRow(row, self._owner, boot))
        return PutOutcome(stored=True, replaced=current is not None, garbage=() if current is None else (current,))


class EndJob(Change[None]):
    """Refuse to stage anything more for a job."""

    def __init__(self, job: str, clock: HybridClock) -> None:
        self._job = job
        self._clock = clock

    def apply(self, transaction: Transaction) -> None:
        _end(transaction, self._job, self._clock)


class MarkStaged(Change[None]):
    """Record that all rows of a job that will become objects are sound and synced."""

    def __init__(self, job: str) -> None:
        self._job = job

    def apply(self, transaction: Transaction) -> None:
        found = transaction.run("UPDATE staged SET boot = NULL WHERE job = ? AND temporary = 0 AND boot NOT NULL", (self._job,))
        transaction.changes += max(found.rowcount, 0)


class Published(NamedTuple):
    """`objects` and `bytes` that became visible; `garbage` is the rows of replaced objects, temporary rows, and rows whose
    bucket is gone or whose object has a newer version."""

    objects: int
    bytes: int
    garbage: tuple[ObjectRow, ...]


StandingOf = Callable[[ObjectRow, str | None], Standing]
"""How a row is recorded that is published, given the version of what is pending of its name. It may raise."""


class Publish(Change[Published]):
    """Turn the rows of a job into objects, all at once, by the rules of Put; this ends the job.

    Before this, staging must have been stopped (EndJob) and every blob must have its final footer. `is_open` says for each
    bucket whether objects may be put into it, and `standing` how an object is recorded; or they raise to refuse publishing
    altogether. Neither may touch the disk.
    """

    def __init__(self, job: str, rows: Iterable[ObjectRow], is_open: Callable[[str], bool], standing: StandingOf) -> None:
        self._job = job
        self._rows = list(rows)
        self._is_open = is_open
        self._standing = standing

    def apply(self, transaction: Transaction) -> Published:
        # Before anything is changed.
        are_open = {bucket_id for bucket_id in {row.bucket_id for row in self._rows} if self._is_open(bucket_id)}
        standings = {
            (row.bucket_id, row.name): self._standing(row, transaction.pending(row.bucket_id, row.name))
            for row in self._rows
            if row.bucket_id in are_open
        }
        staged = _take_rows(transaction, self._job)
        transaction.load((entry.row.bucket_id, entry.row.name) for entry in staged if not entry.owner.temporary)
        garbage: list[ObjectRow] = []
        objects = size = 0
        for entry in staged:
            row = msgspec.structs.replace(entry.row, state=GOOD)
            if entry.owner.temporary or row.bucket_id not in are_open:
                garbage.append(row)
                continue
            current = transaction.current(row.bucket_id, row.name)
            if current is not None and current.version == row.version and not makes_good(row, current):
                garbage.append(row)  # published by another disk, it came here as a copy
                continue
            standing = standings.get((row.bucket_id, row.name), ALONE)
            if standing.pending:
                standing = replace(standing, job=self._job)
            outcome = store(transaction, row, current, transaction.tombstone(row.bucket_id, row.name), standing)
            garbage += outcome.garbage if outcome.stored else (row,)
            objects += outcome.stored
            size += row.size if outcome.stored else 0
        return Published(objects, size, tuple(garbage))


class DiscardJob(Change[tuple[ObjectRow, ...]]):
    """Drop all rows of a job, which ends it; returns the rows. What it has published stays, and is like any other object."""

    frees_space = True

    def __init__(self, job: str, clock: HybridClock) -> None:
        self._job = job
        self._clock = clock

    def apply(self, transaction: Transaction) -> tuple[ObjectRow, ...]:
        _end(transaction, self._job, self._clock)
        transaction.end_publication(self._job)
        return tuple(entry.row for entry in _take_rows(transaction, self._job))


class PurgeEndedJobs(Change[int]):
    """Forget ended jobs of which no task can still be running."""

    durable = False

    def __init__(self, before_us: int) -> None:
        self._before_us = before_us

    def apply(self, transaction: Transaction) -> int:
        return transaction.run("DELETE FROM ended_jobs WHERE us < ?", (self._before_us,)).rowcount


def _ended(transaction: Transaction, job: str) -> bool:
    return transaction.run("SELECT 1 FROM ended_jobs WHERE job = ?", (job,)).fetchone() is not None


def _end(transaction: Transaction, job: str, clock: HybridClock) -> None:
    transaction.run("INSERT OR REPLACE INTO ended_jobs VALUES (?, ?)", (job, version_us(clock.next_version())))
    transaction.changes += 1


def _take_rows(transaction: Transaction, job: str) -> list[StagedRow]:
    """Remove the rows of a job and return them."""
    found: sqlite3.Cursor = transaction.run(
        f"SELECT {_COLUMNS}, id, CAST(name AS TEXT) FROM staged JOIN buckets ON number = bucket WHERE job = ?"
        " ORDER BY bucket, name, us, node",
        (job,),
    )
    rows = [_row(columns[-2], columns[-1], columns[:_WIDTH]) for columns in found.fetchall()]
    if rows:
        transaction.run("DELETE FROM staged WHERE job = ?", (job,))
        transaction.changes += 2 * len(rows)
    return rows
