"""Changes of a catalog that objects with copies need: rows that come from other disks, their confirmation, hints, removal.

`dfc.replication` has the rules and `Standing` what they make of a row; here is only what they come to in one transaction,
decided against what the catalog has at that moment. As everywhere, an operation that raises has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dfc.clock import HybridClock, version_us
from dfc.errors import Conflict
from dfc.storage.catalog.changes import REMOVED_ROWS, Change, makes_good, place, require_same, with_previous
from dfc.storage.catalog.transaction import Transaction
from dfc.storage.rows import ALONE, UNSYNCED, NameState, ObjectRow, Standing

Guard = Callable[[], object]
"""Runs inside the transaction; anything it raises refuses the operation. It must not touch the disk."""
RowName = tuple[str, str, str]  # bucket id, name, version


@dataclass(frozen=True, slots=True)
class AdoptVerdict:
    """Whether a disk takes a state from elsewhere: `taken`: it has it, or (`commits`) it commits it now, with this standing.
    `stays_cached`: whether its row is kept in memory, for whoever reads it next."""

    taken: bool
    commits: bool = False
    standing: Standing = ALONE
    stays_cached: bool = True


Decide = Callable[[str | None], AdoptVerdict]
"""Decides inside the transaction, given the version that is present; None: neither an object nor a tombstone. It may raise."""


@dataclass(frozen=True, slots=True)
class AdoptOutcome:
    """`taken` and `commits` of the verdict, as far as they could be carried out. `stored`: the new blob is the object's; else
    it is garbage itself. `row`: the object that was here before and is not any more."""

    taken: bool
    commits: bool = False
    stored: bool = False
    row: ObjectRow | None = None
    garbage: tuple[ObjectRow, ...] = ()

    @property
    def replaced(self) -> bool:
        return self.row is not None


class Adopt(Change[AdoptOutcome]):
    """Take over a state from another disk: an object whose blob is finished here, or a tombstone. The newer version stays.

    A version that is here already stays as it is, confirmed if it was or if the sender knows it to be; but a sound blob takes
    the place of one that is lost or may be lost. Notes are recorded either way. A bucket that was removed takes nothing.
    """

    def __init__(self, bucket_id: str, name: str, state: NameState, decide: Decide, clock: HybridClock) -> None:
        self._bucket_id = bucket_id
        self._name = name
        self._state = state
        self._decide = decide
        self._clock = clock
        self.durable = state.row is None or state.row.state != UNSYNCED
        self.frees_space = state.row is None
        self.keys = ((bucket_id, name),)

    def apply(self, transaction: Transaction) -> AdoptOutcome:
        bucket_id, name, state = self._bucket_id, self._name, self._state
        if transaction.bucket_number(bucket_id) is None and transaction.was_removed(bucket_id):
            return AdoptOutcome(taken=False)
        current, tombstone = transaction.current(bucket_id, name), transaction.tombstone(bucket_id, name)
        present = current.version if current is not None else tombstone
        verdict = self._decide(present)
        if not verdict.taken:
            return AdoptOutcome(taken=False)
        if present is not None and present > state.version:
            return self._stay(transaction, current, tombstone)
        if present == state.version:
            return self._meet_again(transaction, current, verdict.standing)
        if not verdict.commits:
            return AdoptOutcome(taken=True)
        garbage = _set_state(transaction, bucket_id, name, state, current, verdict.standing, self._clock)
        if not verdict.stays_cached:
            transaction.uncache(bucket_id, name)
        return AdoptOutcome(taken=True, commits=True, stored=True, row=current, garbage=garbage)

    def _stay(self, transaction: Transaction, current: ObjectRow | None, tombstone: str | None) -> AdoptOutcome:
        """What is here is newer. Only a power loss must not bring back what a delete, which comes late, has removed."""
        outcome = AdoptOutcome(taken=True)
        if self._state.row is not None:
            return outcome
        if tombstone is not None:
            # Uploads that are older than this delete may still be on their way here.
            transaction.write_tombstone(self._bucket_id, self._name, tombstone, version_us(self._clock.next_version()))
        if current is None:
            return outcome
        previous = transaction.previous(current)
        if previous is None or previous.version > self._state.version:
            return outcome
        transaction.replace_previous(current, None)
        return AdoptOutcome(taken=True, garbage=(previous,))

    def _meet_again(self, transaction: Transaction, current: ObjectRow | None, standing: Standing) -> AdoptOutcome:
        """The version is here already."""
        row, stored = self._state.row, False
        garbage: tuple[ObjectRow, ...] = ()
        if (row is None) != (current is None):
            raise Conflict(f"version {self._state.version} of {self._name!r} is here both as an object and as its deletion")
        if row is not None and current is not None:
            require_same(row, current)
            stored = current.blob_id == row.blob_id or makes_good(row, current) or transaction.is_suspect(current)
            is_pending = transaction.pending(self._bucket_id, self._name) is not None
            if stored:
                job = transaction.publisher(row.bucket_id, row.name)
                again = Standing(standing.rank, standing.pending and is_pending, job=job)
                garbage = place(transaction, row, current, again)
            else:
                transaction.set_rank(current, standing.rank)
        if not standing.pending:
            transaction.drop_mark(self._bucket_id, self._name, is_undone=False)
        transaction.add_hints(self._bucket_id, self._name, standing.hints)
        return AdoptOutcome(taken=True, stored=stored, garbage=garbage)


class Meet(Change[AdoptVerdict]):
    """Look whether a state of another disk, or a newer one, is here already, and record its hints if it is."""

    def __init__(self, bucket_id: str, name: str, decide: Decide) -> None:
        self._bucket_id = bucket_id
        self._name = name
        self._decide = decide
        self.keys = ((bucket_id, name),)

    def apply(self, transaction: Transaction) -> AdoptVerdict:
        verdict = self._decide(_present(transaction, self._bucket_id, self._name))
        if verdict.taken and not verdict.commits:
            transaction.add_hints(self._bucket_id, self._name, verdict.standing.hints)
        return verdict


@dataclass(frozen=True, slots=True)
class RevertOutcome:
    """`stored` False: nothing was changed, and the new blob, if there is one, is garbage."""

    stored: bool
    garbage: tuple[ObjectRow, ...] = ()


class Revert(Change[RevertOutcome]):
    """Undo a row that is pending and never came to count: go back to the state that the primary has, or (None) to nothing.

    Only what is still exactly the pending version `over` is replaced. Nothing is pending then, unless the primary's is itself
    (`pending`). `rank`: None leaves it. The blob that goes is remembered until its file is gone: no newer version here
    explains it.
    """

    def __init__(
        self,
        bucket_id: str,
        name: str,
        over: str,
        state: NameState | None,
        clock: HybridClock,
        *,
        rank: int | None = None,
        pending: bool = False,
        guard: Guard | None = None,
    ) -> None:
        self._pending = pending
        self._bucket_id = bucket_id
        self._name = name
        self._over = over
        self._state = state
        self._clock = clock
        self._rank = rank
        self._guard = guard
        self.keys = ((bucket_id, name),)

    def apply(self, transaction: Transaction) -> RevertOutcome:
        bucket_id, name = self._bucket_id, self._name
        if self._guard is not None:
            self._guard()
        current, tombstone = transaction.current(bucket_id, name), transaction.tombstone(bucket_id, name)
        present = current.version if current is not None else tombstone
        if present != self._over or transaction.pending(bucket_id, name) != self._over:
            return RevertOutcome(stored=False)
        rank = self._rank or 0
        garbage: tuple[ObjectRow, ...] = ()
        if current is not None:
            rank = transaction.rank(current) if self._rank is None else self._rank
            garbage = with_previous(current, transaction.previous(current))
            # Removed before the other is put: it must not become its fallback after a power loss.
            transaction.remove(current)
        standing = Standing(rank, pending=self._pending)
        _set_state(transaction, bucket_id, name, self._state, None, standing, self._clock)
        for row in garbage:
            transaction.depart(row)
        return RevertOutcome(stored=True, garbage=garbage)


def _set_state(
    transaction: Transaction,
    bucket_id: str,
    name: str,
    state: NameState | None,
    current: ObjectRow | None,
    standing: Standing,
    clock: HybridClock,
) -> tuple[ObjectRow, ...]:
    """Make a state that of a name, in place of a tombstone or the current row; returns the garbage."""
    if state is not None and state.row is not None:
        transaction.remove_tombstone(bucket_id, name)
        return place(transaction, state.row, current, standing)
    garbage = () if current is None else with_previous(current, transaction.previous(current))
    if current is not None:
        transaction.remove(current)
    if state is None:
        transaction.remove_tombstone(bucket_id, name)
        transaction.drop_mark(bucket_id, name, is_undone=True)
        return garbage
    # Its time counts from now, however old the version: older uploads may still be on their way here.
    transaction.write_tombstone(bucket_id, name, state.version, version_us(clock.next_version()))
    transaction.record(bucket_id, name, state.version, standing)
    return garbage


class Confirm(Change[None]):
    """Rows of exactly these versions count: they are not pending any more. If this is lost, it is asked again."""

    durable = False

    def __init__(self, rows: Sequence[RowName]) -> None:
        self._rows = rows

    def apply(self, transaction: Transaction) -> None:
        for bucket_id, name, version in self._rows:
            _confirm(transaction, bucket_id, name, version)


def _confirm(transaction: Transaction, bucket_id: str, name: str, version: str) -> None:
    if transaction.pending(bucket_id, name) == version:
        transaction.drop_mark(bucket_id, name, is_undone=False)


class MarkReplicated(Change[None]):
    """A write of this disk counts: make hints for who lacks it and drop its mark, in one transaction. With hints it must be
    durable, since it may be acknowledged then, and the hints are all that brings it to those disks."""

    def __init__(self, row: RowName, hints: Sequence[str]) -> None:
        self._row = row
        self._hints = hints
        self.durable = bool(hints)

    def apply(self, transaction: Transaction) -> None:
        bucket_id, name, _ = self._row
        transaction.add_hints(bucket_id, name, self._hints)
        _confirm(transaction, *self._row)


class AddHints(Change[None]):
    """Note that disks lack what is here: disk, bucket id and name."""

    def __init__(self, hints: Sequence[tuple[str, str, str]], *, durable: bool = True) -> None:
        self._hints = hints
        self.durable = durable

    def apply(self, transaction: Transaction) -> None:
        transaction.add_all_hints(self._hints)


class DropHints(Change[None]):
    """Drop hints: disk, bucket id, name, and the version here that the hint was about (None: nothing). If another one has come
    here meanwhile, the hint means that. If this is lost, the disk is asked again."""

    durable = False
    frees_space = True

    def __init__(self, hints: Sequence[tuple[str, str, str, str | None]], guard: Guard | None = None) -> None:
        self._hints = hints
        self._guard = guard
        self.keys = [(bucket_id, name) for _, bucket_id, name, _ in hints]

    def apply(self, transaction: Transaction) -> None:
        if self._guard is not None:
            self._guard()
        gone = [
            (disk, bucket_id, name)
            for disk, bucket_id, name, version in self._hints
            if _present(transaction, bucket_id, name) == version
        ]
        transaction.drop_hints(gone)


class ForgetDisk(Change[int]):
    """Drop some hints for a disk, which needs nothing any more; returns how many."""

    durable = False
    frees_space = True

    def __init__(self, disk: str) -> None:
        self._disk = disk

    def apply(self, transaction: Transaction) -> int:
        return transaction.forget_hints("disk", self._disk, REMOVED_ROWS)


@dataclass(frozen=True, slots=True)
class ExcessOutcome:
    """`removed`: objects and tombstones."""

    removed: int
    garbage: tuple[ObjectRow, ...]


class RemoveExcess(Change[ExcessOutcome]):
    """Remove objects and tombstones of exactly these versions, which other disks are known to have; no tombstone is left.

    What is pending or has a hint stays. The blobs are remembered until their files are gone: a crash before that would leave
    any number of complete blobs without a row, which otherwise means that the catalog is too old. Not those that are to be
    kept (`keeps_blobs`), which are few.
    """

    frees_space = True

    def __init__(self, rows: Sequence[RowName], guard: Guard | None = None, *, keeps_blobs: bool = False) -> None:
        self._rows = rows
        self._guard = guard
        self._keeps_blobs = keeps_blobs
        self.keys = [(bucket_id, name) for bucket_id, name, _ in rows]

    def apply(self, transaction: Transaction) -> ExcessOutcome:
        if self._guard is not None:
            self._guard()
        removed = 0
        garbage: list[ObjectRow] = []
        for bucket_id, name, version in self._rows:
            if _present(transaction, bucket_id, name) != version:
                continue
            if transaction.pending(bucket_id, name) is not None or transaction.is_hinted(bucket_id, name):
                continue
            removed += 1
            current = transaction.current(bucket_id, name)
            if current is None:
                transaction.remove_tombstone(bucket_id, name)
                continue
            leaving = with_previous(current, transaction.previous(current))
            transaction.remove(current)
            for row in () if self._keeps_blobs else leaving:
                transaction.depart(row)
            garbage += leaving
        return ExcessOutcome(removed, tuple(garbage))


class ForgetDeparted(Change[None]):
    """Forget blobs whose files are gone for certain: bucket number, name and blob id."""

    durable = False
    frees_space = True

    def __init__(self, blobs: Sequence[tuple[int, bytes, str]]) -> None:
        self._blobs = blobs

    def apply(self, transaction: Transaction) -> None:
        transaction.forget_departed(self._blobs)


class SetRanks(Change[None]):
    """Set which replica of each object this disk is: bucket id, name and rank. The counters follow. Computed from the layout,
    so not durable."""

    durable = False

    def __init__(self, ranks: Sequence[tuple[str, str, int]]) -> None:
        self._ranks = ranks
        self.keys = [(bucket_id, name) for bucket_id, name, _ in ranks]

    def apply(self, transaction: Transaction) -> None:
        for bucket_id, name, rank in self._ranks:
            row = transaction.current(bucket_id, name)
            if row is not None:
                transaction.set_rank(row, rank)


def _present(transaction: Transaction, bucket_id: str, name: str) -> str | None:
    """The version that a name has here, of an object or a tombstone."""
    current = transaction.current(bucket_id, name)
    return current.version if current is not None else transaction.tombstone(bucket_id, name)
