"""The changes that a disk can commit. Each is decided inside the transaction, against the state at that moment.

An operation reads first and writes last: if it raises, it has changed nothing, and the rest of its batch continues.
`garbage` in an outcome is the rows whose blobs are unreferenced once the transaction is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

from dfc.clock import HybridClock, version_us
from dfc.errors import Conflict, ObjectNotFound, PreconditionFailed
from dfc.storage.catalog.cache import Key
from dfc.storage.catalog.catalog import REMOVED_BUCKET
from dfc.storage.catalog.transaction import UNVERIFIED, Transaction
from dfc.storage.preconditions import Precondition
from dfc.storage.rows import QUARANTINED, UNSYNCED, ObjectRow

T = TypeVar("T")
REMOVED_ROWS: Final = 1000  # rows that one transaction removes: other commits wait a few milliseconds


class Change(Generic[T]):
    """Base class of changes. `durable` False: this change needs no fsync. `keys`: the objects that it will look up."""

    durable = True
    frees_space = False  # on a full disk it must not fail because of others in its batch
    keys: Sequence[Key] = ()

    def apply(self, transaction: Transaction) -> T:
        raise AssertionError(f"{type(self).__name__} has no apply")


class Settle(Change[None]):
    """A no-op: when it is done, so is everything submitted before it."""

    durable = False

    def apply(self, transaction: Transaction) -> None:
        return None


@dataclass(frozen=True, slots=True)
class PutOutcome:
    """`stored` False: a newer version exists, so the new blob itself is garbage."""

    stored: bool
    replaced: bool
    garbage: tuple[ObjectRow, ...] = ()


class Put(Change[PutOutcome]):
    """Point a name at a finished blob, unless the name has a newer version. Conflict if the same version has other content."""

    def __init__(self, row: ObjectRow, precondition: Precondition) -> None:
        self._row = row
        self._precondition = precondition
        self.durable = row.state != UNSYNCED
        self.keys = ((row.bucket_id, row.name),)

    def apply(self, transaction: Transaction) -> PutOutcome:
        row = self._row
        current = transaction.current(row.bucket_id, row.name)
        self._precondition.check(current.checksum if current else None)
        tombstone = transaction.tombstone(row.bucket_id, row.name)
        if (current is not None and current.version > row.version) or (tombstone is not None and tombstone > row.version):
            # As if this upload had been overwritten or deleted at once. But if it had a condition, that was checked against an
            # object that is newer than this upload.
            if self._precondition.names_an_object:
                raise PreconditionFailed("the object was changed during this upload")
            return self._put_under(transaction, current, tombstone)
        if current is not None and current.version == row.version:
            self._require_same(current)  # the same version again, perhaps because its blob was lost
        garbage = self._replace(transaction, current)
        if tombstone is not None:
            transaction.remove_tombstone(row.bucket_id, row.name)
        return PutOutcome(stored=True, replaced=current is not None, garbage=garbage)

    def _put_under(self, transaction: Transaction, current: ObjectRow | None, tombstone: str | None) -> PutOutcome:
        """Store a version older than the current one: if that is not synced yet, a durable older object is its fallback."""
        not_stored = PutOutcome(stored=False, replaced=True)
        if current is None or current.state != UNSYNCED or not self.durable or (tombstone or "") > self._row.version:
            return not_stored
        previous = transaction.previous(current)
        if previous is not None and previous.version >= self._row.version:
            return not_stored
        transaction.replace_previous(current, self._row)
        return PutOutcome(stored=True, replaced=True, garbage=() if previous is None else (previous,))

    def _require_same(self, current: ObjectRow) -> None:
        if (current.checksum, current.attributes) != (self._row.checksum, self._row.attributes):
            raise Conflict(f"version {current.version} of {current.name!r} is stored here with different bytes or attributes")

    def _replace(self, transaction: Transaction, current: ObjectRow | None) -> tuple[ObjectRow, ...]:
        if current is None:
            transaction.put(self._row, None)
            if not self.durable:
                transaction.note_unsynced(self._row, None)
            return ()
        previous = transaction.previous(current)
        transaction.put(self._row, current)
        if self.durable:
            return (current,) if previous is None else (current, previous)
        if current.state == UNSYNCED:
            transaction.note_unsynced(self._row, previous)
            return (current,)
        if current.state == QUARANTINED:
            transaction.note_unsynced(self._row, None)
            return (current,)
        # A durable object is replaced by one that is not durable yet: the old blob stays until the new one is synced.
        transaction.note_unsynced(self._row, current)
        return ()


@dataclass(frozen=True, slots=True)
class DeleteOutcome:
    row: ObjectRow
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
        current = transaction.current(self._bucket_id, self._name)
        if current is None:
            if self._precondition.guard is not None:
                self._precondition.guard()
            raise ObjectNotFound(f"object {self._name!r} does not exist")
        self._precondition.check(current.checksum)
        previous = transaction.previous(current)
        self._clock.observe(current.version)
        transaction.remove(current)
        version = self._clock.next_version()
        transaction.write_tombstone(self._bucket_id, self._name, version, version_us(version))
        return DeleteOutcome(current, (current,) if previous is None else (current, previous))


@dataclass(frozen=True, slots=True)
class BuryOutcome:
    """`row` is the deleted row, None if there was nothing older."""

    row: ObjectRow | None
    garbage: tuple[ObjectRow, ...] = ()


class Bury(Change[BuryOutcome]):
    """Apply a delete that already has a version: remove anything older, and leave a tombstone against its return."""

    frees_space = True

    def __init__(self, bucket_id: str, name: str, version: str, clock: HybridClock) -> None:
        self._bucket_id = bucket_id
        self._name = name
        self._version = version
        self._clock = clock
        self.keys = ((bucket_id, name),)

    def apply(self, transaction: Transaction) -> BuryOutcome:
        bucket_id, name, version = self._bucket_id, self._name, self._version
        current, tombstone = transaction.current(bucket_id, name), transaction.tombstone(bucket_id, name)
        previous = None if current is None else transaction.previous(current)
        if transaction.was_removed(bucket_id):
            return BuryOutcome(None)
        if current is not None and current.version > version:
            if previous is None or previous.version > version:
                return BuryOutcome(None)
            transaction.replace_previous(current, None)
            return BuryOutcome(None, (previous,))
        if current is not None:
            transaction.remove(current)
        # Its time counts from now, however old the version: older uploads may still be on their way here.
        written_us = version_us(self._clock.next_version())
        transaction.write_tombstone(bucket_id, name, max(version, tombstone or ""), written_us)
        return BuryOutcome(current, tuple(row for row in (current, previous) if row is not None))


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


@dataclass(frozen=True, slots=True)
class RemoveOutcome:
    removed: int
    garbage: tuple[ObjectRow, ...]


class RemoveSome(Change[RemoveOutcome]):
    """Remove the first rows of a bucket, without tombstones: its id is never used again. 0 removed: the bucket is gone.

    Outputs that jobs have staged in it are dropped first, since the bucket's number disappears with its last object. The
    removal is recorded, because a crash during it leaves more blobs without rows than any other crash.
    """

    frees_space = True

    def __init__(self, bucket_id: str, clock: HybridClock) -> None:
        self._bucket_id = bucket_id
        self._clock = clock

    def apply(self, transaction: Transaction) -> RemoveOutcome:
        rows = transaction.some_rows(self._bucket_id, REMOVED_ROWS)
        garbage = transaction.drop_staged(self._bucket_id)
        for row in rows:
            previous = transaction.previous(row)
            transaction.remove(row)
            garbage += [row] if previous is None else [row, previous]
        if garbage:
            transaction.set_meta(REMOVED_BUCKET + self._bucket_id, version_us(self._clock.next_version()))
        if not rows:
            transaction.remove_empty_bucket(self._bucket_id)
        return RemoveOutcome(len(rows), tuple(garbage))


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
