"""Copies on one disk: rows from other disks, which rows are replicated, which are excess, what other disks lack.

This carries out what the cores in `dfc.replication` say; every decision that must hold is made again inside the transaction.
All methods may raise StorageFailed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from dfc.checksum import ExpectedChecksums
from dfc.errors import ObjectCorrupt, ObjectNotFound
from dfc.storage import layout
from dfc.storage.blobs.writer import BlobWriter, SmallUpload, observe, store_several
from dfc.storage.catalog import copyreads
from dfc.storage.catalog.changes import REMOVED_ROWS, Delete, SetMeta
from dfc.storage.catalog.copies import (
    AddHints,
    Adopt,
    AdoptOutcome,
    AdoptVerdict,
    Confirm,
    Decide,
    DropHints,
    ForgetDisk,
    Guard,
    MarkReplicated,
    Meet,
    RemoveExcess,
    Revert,
    SetRanks,
)
from dfc.storage.catalog.copyreads import START, ComparedRow, PendingRow, Position, RankedRow
from dfc.storage.catalog.schema import RANKED_LAYOUT
from dfc.storage.parts import DiskParts
from dfc.storage.rows import ALWAYS, Durability, NameState, ObjectRow, Precondition, Supplied
from dfc.storage.upkeep.relaxed import RelaxedRows
from dfc.storage.upkeep.sweep import keep_as_orphan

HINTED_ROWS: Final = 4000  # hints that one transaction makes; in the order of names these are few pages of the catalog
T = TypeVar("T")


class SmallCopy(NamedTuple):
    """A whole object that comes from elsewhere, with its version in `supplied`. `decide`: see `DiskCopies.adopt`."""

    bucket_id: str
    name: str
    body: bytes
    expected: ExpectedChecksums
    supplied: Supplied
    decide: Decide


class DiskCopies:
    """The copies of one disk: `Disk.copies`. Thread-safe. A tuple of three texts is a bucket id, a name and a version."""

    def __init__(self, parts: DiskParts, relaxed: RelaxedRows) -> None:
        self._parts = parts
        self._relaxed = relaxed

    # --- what comes from elsewhere

    def adopt(self, writer: BlobWriter, decide: Decide) -> AdoptOutcome:
        """End an upload that brings a copy, with its version in `Supplied`, after `finish`: `decide` says inside the
        transaction whether it is taken. Raises Conflict if that version is here with other content, and what `decide`
        raises."""

        def change(row: ObjectRow) -> Adopt:
            return self._adoption(row.bucket_id, row.name, NameState(row.version, row), decide)

        return writer.commit_as(change)[1]

    def adopt_small(self, copies: Iterable[SmallCopy], durability: Durability) -> list[AdoptOutcome | Exception]:
        """The same for whole objects at once: for each, what `adopt` returns or raises."""

        def upload(copy: SmallCopy) -> SmallUpload[AdoptOutcome]:
            bucket_id, name, body, expected, supplied, decide = copy

            def change(row: ObjectRow) -> Adopt:
                return self._adoption(bucket_id, name, NameState(row.version, row), decide)

            return SmallUpload(bucket_id, name, body, expected, supplied, change)

        found = store_several(self._parts, [upload(each) for each in copies], durability)
        return [each if isinstance(each, Exception) else each[1] for each in found]

    def adopt_tombstone(self, bucket_id: str, name: str, version: str, decide: Decide) -> AdoptOutcome:
        """Take over a delete. Raises BadRequest for an invalid version, and what `decide` raises."""
        layout.check_bucket_id(bucket_id)
        observe(self._parts, version)
        outcome = self._parts.committer.submit(self._adoption(bucket_id, name, NameState(version), decide))
        self._parts.discard(outcome.garbage)
        return outcome

    def meet(self, bucket_id: str, name: str, decide: Decide) -> AdoptVerdict:
        """Decide about a state that is thought to be here already, without its body: if it is, make durable hints for who lacks
        it. If it is not (`commits`), nothing was done."""
        return self._parts.committer.submit(Meet(bucket_id, name, decide))

    def _adoption(self, bucket_id: str, name: str, state: NameState, decide: Decide) -> Adopt:
        return Adopt(bucket_id, name, state, decide, self._parts.clock)

    def revert(
        self,
        bucket_id: str,
        name: str,
        over: str,
        to: str | None,
        *,
        guard: Guard | None = None,
        rank: int | None = None,
        pending: bool = False,
    ) -> bool:
        """Undo what is pending in the version `over`: go back to a tombstone of the version `to`, `pending` in its turn, or
        (None) to nothing. Returns False, and changes nothing, if something else is there or it is not pending any more."""
        if to is not None:
            observe(self._parts, to)
        state = None if to is None else NameState(to)
        change = Revert(bucket_id, name, over, state, self._parts.clock, rank=rank, pending=pending, guard=guard)
        outcome = self._parts.committer.submit(change)
        self._parts.discard(outcome.garbage)
        return outcome.stored

    def revert_to(
        self, writer: BlobWriter, over: str, *, guard: Guard | None = None, rank: int | None = None, pending: bool = False
    ) -> bool:
        """The same, back to an object whose upload ends with this, after `finish`."""

        def change(row: ObjectRow) -> Revert:
            state = NameState(row.version, row)
            clock = self._parts.clock
            return Revert(row.bucket_id, row.name, over, state, clock, rank=rank, pending=pending, guard=guard)

        return writer.commit_as(change)[1].stored

    # --- what is replicated

    def delete(self, bucket_id: str, name: str, *, precondition: Precondition = ALWAYS) -> tuple[ObjectRow, str]:
        """See `Disk.delete`. Also returns the version of the tombstone."""
        parts = self._parts
        outcome = parts.committer.submit(Delete(bucket_id, name, precondition, parts.clock))
        parts.stats.deletes += 1
        parts.discard(outcome.garbage)
        return outcome.row, outcome.version

    def confirm(self, rows: Iterable[tuple[str, str, str]]) -> None:
        """Rows of exactly these versions count: they are not pending any more. Not durable: it is asked for again."""
        for some in _chunks(rows):
            self._parts.committer.submit(Confirm(some))

    def mark_replicated(self, bucket_id: str, name: str, version: str, hints: Sequence[str] = ()) -> None:
        """A write of this disk counts: make durable hints for the disks that lack it, and drop its mark, all at once."""
        self._parts.committer.submit(MarkReplicated((bucket_id, name, version), hints))

    def is_pending(self, bucket_id: str, name: str) -> bool:
        """Whether the row or tombstone here is not known to count. No I/O; it may be called from an event loop.

        Ask after reading the row. If the answer is no, that row counted, unless `undone` has changed since before it was read.
        """
        return (bucket_id, name) in self._parts.catalog.marks.pending

    def pending_version(self, bucket_id: str, name: str) -> str | None:
        """The version that is not known to count, if there is one. No I/O."""
        return self._parts.catalog.marks.pending.get((bucket_id, name))

    def publisher(self, bucket_id: str, name: str) -> str:
        """The job that publishes what is pending here, or "". No I/O."""
        return self._parts.catalog.marks.published.get((bucket_id, name), "")

    def published_by(self, job: str) -> list[tuple[str, str]]:
        """The names, bucket id and name, of what is pending here because this job publishes it. No I/O."""
        return [name for name, publisher in tuple(self._parts.catalog.marks.published.items()) if publisher == job]

    @property
    def publishers(self) -> set[str]:
        """The jobs that publish something that is pending here. No I/O."""
        found = tuple(self._parts.catalog.marks.published.values())  # the committer changes it meanwhile
        return set(found)

    @property
    def undone(self) -> int:
        """How many pending rows were replaced or removed instead of confirmed. No I/O."""
        return self._parts.catalog.marks.undone

    @property
    def has_pending(self) -> bool:
        """Whether anything is pending. No I/O."""
        return bool(self._parts.catalog.marks.pending)

    def pending(self, after: Position = START, limit: int = REMOVED_ROWS) -> tuple[list[PendingRow], Position | None]:
        """A page of pending rows, and the `after` of the next one; None: this was the last."""
        return copyreads.pending_page(self._parts.catalog, after, limit) if self.has_pending else ([], None)

    def state(self, bucket_id: str, name: str) -> NameState | None:
        """What is here of a name, even an object that must not be served; None: neither an object nor a tombstone. An object
        that a restart of the machine may have cost is verified first: others go by what is said here of it."""
        found = copyreads.find_state(self._parts.catalog, bucket_id, name)
        if found is None or found.row is None or not found.row.unsynced:
            return found
        with suppress(ObjectCorrupt, ObjectNotFound):
            if self._relaxed.examine(found.row) is found.row:
                return found
        return copyreads.find_state(self._parts.catalog, bucket_id, name)

    def states(self, names: Iterable[tuple[str, str]]) -> list[NameState | None]:
        """The same for several names: bucket id and name."""
        return [self.state(*name) for name in names]

    def hinted_states(self, names: Iterable[tuple[str, str]]) -> list[NameState | None]:
        """The same without verifying anything: only `state` tells what is left of a row that is `unsynced`."""
        return [copyreads.find_state(self._parts.catalog, *name) for name in names]

    # --- hints

    def add_hints(self, hints: Iterable[tuple[str, str, str]], *, durable: bool = True) -> None:
        """Record that disks lack what is here: disk, bucket id and name. Not `durable`: a power loss may cost these hints, so
        that they have to be made again after each start."""
        for some in _chunks(hints, HINTED_ROWS):
            self._parts.committer.submit(AddHints(some, durable=durable))

    def drop_hints(self, hints: Iterable[tuple[str, str, str, str | None]], guard: Guard | None = None) -> None:
        """Drop hints: disk, bucket id, name, and the version here that the hint was about, None for nothing. The hint stays if
        another one is here by now. Raises what `guard` raises. Not durable: the disk is asked again."""
        for some in _chunks(hints):
            self._parts.committer.submit(DropHints(some, guard))

    def forget_disk(self, disk: str) -> int:
        """Drop all hints for a disk, in short transactions; returns how many."""
        count = 0
        while found := self._parts.committer.submit(ForgetDisk(disk)):
            count += found
        return count

    def hints(
        self, disk: str, after: Position = START, limit: int = REMOVED_ROWS
    ) -> tuple[list[tuple[str, str]], Position | None]:
        """A page of the names that a disk lacks, bucket id and name, and the `after` of the next one."""
        return copyreads.hints_page(self._parts.catalog, disk, after, limit) if self.has_hints else ([], None)

    def has_hints_for(self, disk: str) -> bool:
        """Whether there is a hint for a disk."""
        return self.has_hints and copyreads.has_hints_for(self._parts.catalog, disk)

    def hinted_disks(self, bucket_id: str, name: str) -> set[str]:
        """The disks that lack what is here of a name."""
        return copyreads.hinted_disks(self._parts.catalog, bucket_id, name) if self.has_hints else set()

    def tombstones_forgotten(self) -> str:
        """What a version begins with that is so old that a delete of it may have been forgotten by now. No I/O."""
        return f"{max(0, int((time.time() - self._parts.options.tombstone_keep_s) * 1e6)):014x}"

    def keep_tombstones_until(self, until_s: float) -> None:
        """Forget no tombstone before this, by the monotonic clock, however old. The hints here need not be all that is
        missing elsewhere. No I/O."""
        self._parts.catalog.marks.keeps_tombstones_until_s = until_s

    @property
    def has_hints(self) -> bool:
        """Whether there is any hint. No I/O."""
        return self._parts.catalog.marks.has_hints

    def hinted(self) -> list[str]:
        """For whom there are hints: disks, and disks `later`."""
        return copyreads.hinted(self._parts.catalog) if self.has_hints else []

    def hint_counts(self) -> dict[str, int]:
        """The number of hints for each disk that lacks something, and for each disk `later`; counts them all."""
        return copyreads.hint_counts(self._parts.catalog) if self.has_hints else {}

    # --- damaged

    @property
    def has_damaged(self) -> bool:
        """Whether any object here is quarantined. No I/O."""
        return self._parts.catalog.marks.damaged

    def damaged(self, after: Position = START, limit: int = REMOVED_ROWS) -> tuple[list[tuple[str, str]], Position | None]:
        """A page of the quarantined objects, bucket id and name, and the `after` of the next one."""
        return copyreads.damaged_page(self._parts.catalog, after, limit) if self.has_damaged else ([], None)

    def note_repaired(self) -> None:
        """Count an object here whose damaged bytes were replaced by those of another disk."""
        self._parts.stats.repaired_rows += 1

    def note_set_aside(self) -> None:
        """Count an object here that was set aside."""
        self._parts.stats.set_aside_rows += 1

    def note_compared(self, rows: int, differing: int, repaired: int) -> None:
        """Count objects of this disk that were compared with copies elsewhere, and those of which others get what is here."""
        stats = self._parts.stats
        stats.compared_rows += rows
        stats.divergences += differing
        stats.divergences_repaired += repaired

    def note_alarms(self, count: int) -> None:
        """Say how many copies elsewhere contradict what is here."""
        self._parts.stats.divergence_alarms = count

    @property
    def scrubbed_s(self) -> float:
        """When the last pass of the scrubber has ended, in seconds since 1970; 0: none since the disk was opened. No I/O."""
        return self._parts.stats.scrub_finished_s

    # --- ranks and excess rows

    def remove_excess(self, rows: Iterable[tuple[str, str, str]], *, guard: Guard | None = None) -> int:
        """Remove objects and tombstones of exactly these versions, unless they are pending or have a hint; returns how many.

        `guard` runs inside each transaction, and refuses it if it raises. A crash at any point leaves only what the next
        opening removes.
        """
        removed = 0
        for some in _chunks(rows):
            outcome = self._parts.committer.submit(RemoveExcess(some, guard))
            self._parts.discard(outcome.garbage)
            removed += outcome.removed
        return removed

    def set_aside(self, rows: Iterable[tuple[str, str, str]], *, guard: Guard | None = None) -> list[str]:
        """Like `remove_excess`, but the files of the objects go to `orphans/`, for `orphan_keep_s`; returns their paths. For
        few rows: a crash leaves files without a row, which the sweep sets aside if they are not too many."""
        paths = list[str]()
        for some in _chunks(rows):
            outcome = self._parts.committer.submit(RemoveExcess(some, guard, keeps_blobs=True))
            paths += [path for row in outcome.garbage if (path := keep_as_orphan(self._parts, row)) is not None]
        return paths

    def rows(self, after: Position = START, limit: int = REMOVED_ROWS) -> tuple[list[RankedRow], Position | None]:
        """A page of all objects on the disk, for a walk over them, and the `after` of the next one."""
        return copyreads.walk_page(self._parts.catalog, after, limit)

    def compared(self, after: Position = START, limit: int = REMOVED_ROWS) -> tuple[list[ComparedRow], Position | None]:
        """A page of what is compared of all objects on the disk, and the `after` of the next one."""
        return copyreads.compared_page(self._parts.catalog, after, limit)

    def compared_range(self, bucket_id: str, after: str, upto: str | None, limit: int) -> list[ComparedRow]:
        """The first of the objects of a bucket with names after one and up to another, in byte order; None: all that follow."""
        return copyreads.compared_range(self._parts.catalog, bucket_id, after, upto, limit)

    def tombstones(
        self, after: Position = START, limit: int = REMOVED_ROWS
    ) -> tuple[list[tuple[str, str, str]], Position | None]:
        """A page of all tombstones, for a walk over them, and the `after` of the next one."""
        return copyreads.tombstone_page(self._parts.catalog, after, limit)

    def object_names(self, after: Position, limit: int) -> tuple[list[tuple[str, str]], Position | None]:
        """A page of the names of all objects, with their bucket ids, and the `after` of the next one."""
        return copyreads.names_page(self._parts.catalog, "objects", after, limit)

    def tombstone_names(self, after: Position, limit: int) -> tuple[list[tuple[str, str]], Position | None]:
        """The same of all tombstones."""
        return copyreads.names_page(self._parts.catalog, "tombstones", after, limit)

    def set_ranks(self, ranks: Iterable[tuple[str, str, int]]) -> None:
        """Record which replica of each object this disk is: bucket id, name and rank. Not durable: it follows from the
        layout."""
        for some in _chunks(ranks):
            self._parts.committer.submit(SetRanks(some))

    @property
    def ranked_layout(self) -> int:
        """The number of the layout by which the ranks were computed; 0: some are unknown."""
        return int(self._parts.catalog.meta(RANKED_LAYOUT))

    def set_ranked_layout(self, number: int) -> None:
        """All ranks have been computed by this layout. Never survives a power loss that those do not."""
        self._parts.committer.submit(SetMeta(RANKED_LAYOUT, number))


def _chunks(items: Iterable[T], size: int = REMOVED_ROWS) -> Iterator[list[T]]:
    """Few enough for one transaction, so that other commits do not wait long."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some
