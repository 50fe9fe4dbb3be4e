"""The changes that a disk can commit, of objects and of staged rows, each decided inside the transaction.

That is against the state at that moment. An operation reads first and writes last: if it raises, it has changed nothing, and
the rest of its batch continues. `garbage` in an outcome is the rows whose blobs are unreferenced once the transaction is
committed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

import msgspec

from dfc.clock import HybridClock, version_us
from dfc.errors import Conflict, JobCancelled, ObjectNotFound, Overtaken, PreconditionFailed
from dfc.replication.write import UploadOrder, order
from dfc.storage.catalog.cache import Key
from dfc.storage.catalog.catalog import Catalog
from dfc.storage.catalog.schema import REMOVED_BUCKET, STAGED_ROW_COLUMNS, make_row, row_values
from dfc.storage.catalog.transaction import UNVERIFIED, Transaction
from dfc.storage.rows import ALONE, ALWAYS, GOOD, QUARANTINED, UNSYNCED, ObjectRow, Precondition, Standing

T = TypeVar("T")
REMOVED_ROWS: Final = 1000  # rows that one transaction removes: other commits wait a few milliseconds


class Change(Generic[T]):
    """Base class of changes. `durable` False: this change needs no fsync. `keys`: the objects that it will look up."""

    durable = True
    frees_space = False  # on a full disk it must not fail because of others in its batch
    keys: Sequence[Key] = ()

    def apply(self, transaction: Transaction) -> T:
        raise AssertionError(f"{type(self).__name__} has no apply")


class Barrier(Change[None]):
    """A no-op: when it is done, so is everything submitted before it."""

    durable = False

    def apply(self, transaction: Transaction) -> None:
        return None


class PutOutcome(msgspec.Struct, frozen=True, gc=False):
    """`stored` False: the new blob itself is garbage, for instance because a newer version exists. `committed` False: it is not
    what the name points at, at most what a newer version comes back to."""

    stored: bool
    replaced: bool
    garbage: tuple[ObjectRow, ...] = ()
    committed: bool = True


class Put(Change[PutOutcome]):
    """Point a name at a finished blob, unless the name has a newer version. Conflict if the same version has other content."""

    def __init__(self, row: ObjectRow, precondition: Precondition) -> None:
        self._row = row
        self._precondition = precondition
        self.durable = row.state != UNSYNCED
        self.keys = ((row.bucket_id, row.name),)

    def apply(self, transaction: Transaction) -> PutOutcome:
        row, precondition = self._row, self._precondition
        current, tombstone = transaction.current(row.bucket_id, row.name), transaction.tombstone(row.bucket_id, row.name)
        standing = precondition.check(current.checksum if current else None)
        present = current.version if current else tombstone
        if present is not None and present > row.version:
            self._require_order(transaction, present)
        elif precondition.names_an_object:
            transaction.note_conditional(row.bucket_id, row.name, row.version)
        return store(transaction, row, current, tombstone, standing)

    def _require_order(self, transaction: Transaction, present: str) -> None:
        """Raise unless this upload may count as overwritten or deleted at once, by what is present."""
        row = self._row
        ordered = order(
            row.version,
            present,
            conditional=self._precondition.names_an_object,
            newest_conditional=transaction.newest_conditional(row.bucket_id, row.name),
        )
        if ordered is UploadOrder.FAILED:  # its condition was checked against an object that is newer than itself
            raise PreconditionFailed("the object was changed during this upload")
        if ordered is UploadOrder.OVERTAKEN:
            raise Overtaken("a conditional write of the object that began later has been stored; try again")


def store(
    transaction: Transaction, row: ObjectRow, current: ObjectRow | None, tombstone: str | None, standing: Standing
) -> PutOutcome:
    """Store a finished blob by its version: as the object, or below a newer one that may not survive a power loss. `current`
    and `tombstone`: what is here of the name."""
    if (current is not None and current.version > row.version) or (tombstone is not None and tombstone > row.version):
        return _store_below(transaction, row, current, tombstone)
    if current is not None and current.version == row.version:
        require_same(row, current)  # the same version again, perhaps because its blob was lost
    garbage = place(transaction, row, current, standing)
    if tombstone is not None:
        transaction.remove_tombstone(row.bucket_id, row.name)
    return PutOutcome(stored=True, replaced=current is not None, garbage=garbage)


def _store_below(transaction: Transaction, row: ObjectRow, current: ObjectRow | None, tombstone: str | None) -> PutOutcome:
    """Store a version older than the current one: if that is not synced yet, a durable older object is its fallback."""
    not_stored = PutOutcome(stored=False, replaced=True, committed=False)
    if current is None or current.state != UNSYNCED or row.state == UNSYNCED or (tombstone or "") > row.version:
        return not_stored
    previous = transaction.previous(current)
    if previous is not None and previous.version >= row.version:
        return not_stored
    transaction.replace_previous(current, row)
    return PutOutcome(stored=True, replaced=True, garbage=() if previous is None else (previous,), committed=False)


def require_same(row: ObjectRow, current: ObjectRow) -> None:
    """Raise Conflict unless two blobs of one version have the same content."""
    if (current.checksum, current.attributes) != (row.checksum, row.attributes):
        raise Conflict(f"version {current.version} of {current.name!r} is stored here with different bytes or attributes")


def makes_good(row: ObjectRow, current: ObjectRow) -> bool:
    """Whether a blob of the current version should take the place of one that is lost, or may be lost in a power cut."""
    is_same = (current.checksum, current.attributes) == (row.checksum, row.attributes)
    return is_same and current.state != GOOD and (row.state == GOOD or current.state == QUARANTINED)


def place(transaction: Transaction, row: ObjectRow, current: ObjectRow | None, standing: Standing) -> tuple[ObjectRow, ...]:
    """Make a finished blob the object in place of the current one; returns the rows whose blobs are garbage then."""
    garbage: tuple[ObjectRow, ...] = ()
    if row.state == UNSYNCED and standing is not ALONE:
        transaction.leaves_doubt = True  # a power loss may cost it here, while other disks have it
    if current is None:
        transaction.put(row, None, standing.rank)
        if row.state == UNSYNCED:
            transaction.note_unsynced(row, None)
    elif current.blob_id != row.blob_id:  # else this very blob is the object already, and no garbage
        garbage = _replace(transaction, row, current, standing.rank)
    transaction.record(row.bucket_id, row.name, row.version, standing)
    return garbage


def _replace(transaction: Transaction, row: ObjectRow, current: ObjectRow, rank: int) -> tuple[ObjectRow, ...]:
    previous = transaction.previous(current)
    transaction.put(row, current, rank)
    if row.state != UNSYNCED:
        return with_previous(current, previous)
    if current.state == QUARANTINED:
        transaction.note_unsynced(row, None)
        return (current,)
    if current.state == UNSYNCED:
        transaction.note_unsynced(row, previous)
        return (current,)
    # A durable object is replaced by one that is not durable yet: the old blob stays until the new one is synced.
    transaction.note_unsynced(row, current)
    return ()


def with_previous(current: ObjectRow, previous: ObjectRow | None) -> tuple[ObjectRow, ...]:
    """A row that is leaving and its fallback, as garbage."""
    return (current,) if previous is None else (current, previous)


@dataclass(frozen=True, slots=True)
class DeleteOutcome:
    """`row` is the deleted row, `version` that of its tombstone."""

    row: ObjectRow
    version: str
    garbage: tuple[ObjectRow, ...]


class Delete(Change[DeleteOutcome]):
    """Delete an object and leave a tombstone, so that an older upload cannot bring it back."""

    frees_space = True

    def __init__(self, bucket_id: str, name: str, precondition: Precondition, clock: HybridClock) -> None:
        self._bucket_id = bucket_id
        self._name = name
        self._precondition = precondition
        self._clock = clock
        self.keys = ((bucket_id, name),)

    def apply(self, transaction: Transaction) -> DeleteOutcome:
        bucket_id, name = self._bucket_id, self._name
        current = transaction.current(bucket_id, name)
        if current is None:
            self._precondition.check_guard()
            raise ObjectNotFound(f"object {name!r} does not exist")
        standing = self._precondition.check(current.checksum)
        previous = transaction.previous(current)
        self._clock.observe(current.version)
        transaction.remove(current)
        version = self._clock.next_version()
        transaction.write_tombstone(bucket_id, name, version, version_us(version))
        transaction.record(bucket_id, name, version, standing)  # hints about the object stay: they mean the tombstone now
        if self._precondition.names_an_object:
            transaction.note_conditional(bucket_id, name, version)
        return DeleteOutcome(current, version, with_previous(current, previous))


QuarantineOutcome = Literal["changed", "quarantined", "restored"]


class Quarantine(Change[tuple[QuarantineOutcome, tuple[ObjectRow, ...]]]):
    """Stop serving a row whose blob is gone or damaged, if it is still the current one.

    `restore`: the blob was never synced and the machine has been restarted, so go back to the durable object that it
    replaced, if any.
    """

    def __init__(self, row: ObjectRow, reason: str, clock: HybridClock, *, restore: bool = False) -> None:
        self._row = row
        self._reason = reason
        self._clock = clock
        self._restore = restore
        self.keys = ((row.bucket_id, row.name),)

    def apply(self, transaction: Transaction) -> tuple[QuarantineOutcome, tuple[ObjectRow, ...]]:
        current = transaction.current(self._row.bucket_id, self._row.name)
        if current is None or current.blob_id != self._row.blob_id:
            return "changed", ()
        previous = transaction.previous(current)
        if self._restore and previous is not None:
            transaction.put(previous, current)
            if transaction.pending(current.bucket_id, current.name) is not None:
                # Nor is it known of this one: what was pending was lost before it was confirmed.
                transaction.mark_pending(current.bucket_id, current.name, previous.version)
            if previous.state == UNSYNCED:
                transaction.note_unsynced(previous, None, UNVERIFIED)
            return "restored", (current,)
        found_us = version_us(self._clock.next_version())
        transaction.quarantine(current, self._reason, found_us)
        return "quarantined", () if previous is None else (previous,)


class LiftQuarantine(Change[bool]):
    """End the quarantine of a blob that has been found sound, for instance after it was copied back by hand."""

    def __init__(self, row: ObjectRow) -> None:
        self._row = row
        self.keys = ((row.bucket_id, row.name),)

    def apply(self, transaction: Transaction) -> bool:
        current = transaction.current(self._row.bucket_id, self._row.name)
        if current is None or current.blob_id != self._row.blob_id or current.state != QUARANTINED:
            return False
        transaction.lift_quarantine(current)
        return True


class MarkSynced(Change[tuple[ObjectRow, ...]]):
    """Record that the blobs of unsynced rows are synced; returns the rows that they replaced."""

    def __init__(self, rows: list[ObjectRow]) -> None:
        self._rows = rows
        self.keys = [(row.bucket_id, row.name) for row in rows]

    def apply(self, transaction: Transaction) -> tuple[ObjectRow, ...]:
        garbage = []
        for row in self._rows:
            current = transaction.current(row.bucket_id, row.name)
            if current is None or current.blob_id != row.blob_id or current.state != UNSYNCED:
                continue  # replaced, deleted or quarantined meanwhile
            previous = transaction.previous(current)
            transaction.mark_synced(current)
            if previous is not None:
                garbage.append(previous)
        return tuple(garbage)


class MarkSyncedUpTo(Change[list[ObjectRow]]):
    """Like MarkSynced, for all unsynced rows committed up to a sequence number, except those whose sync `failed`."""

    def __init__(self, sequence: int, failed: list[ObjectRow]) -> None:
        self._sequence = sequence
        self._failed = failed
        self.keys = [(row.bucket_id, row.name) for row in failed]

    def apply(self, transaction: Transaction) -> list[ObjectRow]:
        for row in self._failed:
            current = transaction.current(row.bucket_id, row.name)
            if current is not None and current.blob_id == row.blob_id and current.state == UNSYNCED:
                transaction.give_up_syncing(current)
        return transaction.mark_synced_up_to(self._sequence)


class EndDoubt(Change[None]):
    """Forget that a power loss may cost rows with copies, if all rows are synced by now. If this is lost, nothing is."""

    durable = False

    def apply(self, transaction: Transaction) -> None:
        transaction.may_end_doubt = True


@dataclass(frozen=True, slots=True)
class Doubt(Change[None]):
    """The disk has lost rows: it takes another incarnation, and an epoch `above` what others have heard of it. `loses_alone`:
    also objects that no other disk has, as far as is known."""

    above: int
    loses_alone: bool

    def apply(self, transaction: Transaction) -> None:
        transaction.doubt(self.above, 2 if self.loses_alone else 1)


class Accept(Change[None]):
    """Whatever was lost when the disk was put back to an earlier state is accepted, or has come back."""

    def apply(self, transaction: Transaction) -> None:
        transaction.accept()


@dataclass(frozen=True, slots=True)
class RemoveOutcome:
    """`is_done`: nothing is left."""

    removed: int
    garbage: tuple[ObjectRow, ...]
    is_done: bool = True


class RemoveSome(Change[RemoveOutcome]):
    """Remove the first rows of a bucket and of the hints about it, without tombstones: its id is never used again.

    Outputs that jobs have staged in it are dropped first, since the bucket's number disappears with its last object. The
    removal is recorded, because a crash during it leaves more blobs without rows than any other crash.
    """

    frees_space = True

    def __init__(self, bucket_id: str, clock: HybridClock) -> None:
        self._bucket_id = bucket_id
        self._clock = clock

    def apply(self, transaction: Transaction) -> RemoveOutcome:
        bucket_id = self._bucket_id
        rows = transaction.some_rows(bucket_id, REMOVED_ROWS)
        garbage = transaction.drop_staged(bucket_id)
        for row in rows:
            previous = transaction.previous(row)
            transaction.remove(row)
            transaction.drop_mark(bucket_id, row.name, is_undone=True)
            garbage += with_previous(row, previous)
        if garbage or transaction.has_departed(bucket_id):
            transaction.set_meta(REMOVED_BUCKET + bucket_id, version_us(self._clock.next_version()))
        is_done = not rows and not transaction.forget_hints("bucket", transaction.bucket_number(bucket_id), REMOVED_ROWS)
        if is_done:
            transaction.remove_empty_bucket(bucket_id)
        return RemoveOutcome(len(rows), tuple(garbage), is_done)


class ForgetRemovedBuckets(Change[None]):
    """Forget removed buckets of which nothing is left."""

    durable = False

    def __init__(self, bucket_ids: Sequence[str]) -> None:
        self._bucket_ids = bucket_ids

    def apply(self, transaction: Transaction) -> None:
        for bucket_id in self._bucket_ids:
            transaction.run("DELETE FROM meta WHERE key = ?", (REMOVED_BUCKET + bucket_id,))


class PurgeTombstones(Change[int]):
    """Forget tombstones written so long ago that no older upload can still be running."""

    durable = False

    def __init__(self, before_us: int) -> None:
        self._before_us = before_us

    def apply(self, transaction: Transaction) -> int:
        return transaction.purge_tombstones(self._before_us, REMOVED_ROWS)


class SetMeta(Change[None]):
    """Store a value in `meta`, for instance the scrubber's position."""

    durable = False

    def __init__(self, key: str, value: Any) -> None:
        self._key = key
        self._value = value

    def apply(self, transaction: Transaction) -> None:
        transaction.set_meta(self._key, self._value)


# --- Staged rows: blobs that a job has written and that are not objects yet. The rows, and changes to them.
#
# A row is keyed by job, bucket, name and whether it is temporary (for later tasks of the job, never an object). Once a job has
# ended on this disk, by publishing or discarding, nothing more can be staged for it.

_COLUMNS: Final = f"{STAGED_ROW_COLUMNS}, boot, job, temporary"
_WIDTH: Final = len(_COLUMNS.split(", "))
_FIND: Final = f"SELECT {_COLUMNS} FROM staged WHERE job = ? AND bucket = ? AND name = ? AND temporary = ?"
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
        found = connection.execute(_FIND, (owner.job, number, name.encode(), int(owner.temporary))).fetchone()
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
    found = transaction.run(_FIND, (owner.job, number, name.encode(), int(owner.temporary))).fetchone()
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
