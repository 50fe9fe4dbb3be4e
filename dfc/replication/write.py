"""Writes and reads of copies: when a write is replicated, who accepts it, the lease, and who may read. Pure.

`refusal` says whether a disk may take a write: only the primary may. It commits the row and marks it pending; `Writing` brings
it to the others. The write is replicated, and may be acknowledged, when every *required* disk has committed it and enough
copies exist. A required disk that cannot be reached is first marked out of sync with the primary, in a step that every target
has acknowledged; from then on nobody reads from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from dfc.placement.roles import Placement, Roles, handoffs, roles

FAILURES_MAX: Final = 2  # commits of one disk that fail before something is done about it


@dataclass(frozen=True)
class NotPrimary:
    """Another disk decides about the name now, or none. The outcome of the write is open."""


@dataclass(frozen=True)
class SendCommit:
    """Send the row to these disks; each has it once `committed` was called for it."""

    disks: tuple[str, ...]


@dataclass(frozen=True)
class MarkOutOfSync:
    """Ask the coordinator to mark this disk out of sync with the primary."""

    disk: str


@dataclass(frozen=True)
class Pause:
    """Nothing to do before something changes, or a moment has passed."""


@dataclass(frozen=True)
class Replicated:
    """The write may be acknowledged: every later read finds the row. `hints` to these replicas, which do not have it;
    `confirm` to those that do."""

    hints: tuple[str, ...]
    confirm: tuple[str, ...]
    copies: int


Instruction = NotPrimary | SendCommit | MarkOutOfSync | Pause | Replicated


class Writing:
    """What is known of one row's way. `disk` is the primary's, which has the row."""

    def __init__(self, disk: str, bucket_id: str, name: str, least: int = 1, silent: Collection[str] = ()) -> None:
        """`least`: the bucket's `min_copies`. `silent`: disks that have just not answered to other writes of this primary."""
        self.disk = disk
        self._key = (bucket_id, name)
        self._least = least
        self._done: set[str] = set()
        self._failures: Counter[str] = Counter()
        self._tried: set[str] = set()
        self._asked: set[str] = set()  # disks that the coordinator was asked to mark
        self._silent = silent  # until the first look

    def committed(self, disk: str) -> None:
        """A disk has the row, and has marked it pending."""
        self._done.add(disk)
        self._tried.discard(disk)

    def failed(self, disk: str) -> None:
        """A disk has not answered, or has refused."""
        self._failures[disk] += 1
        self._tried.discard(disk)

    def next(self, placement: Placement, cleared: Collection[str]) -> Instruction:
        """What to do now. `cleared`: disks that are required although the placement says that they are out of sync: those of
        which this primary has reported, or is about to report, that they have caught up, and those of `marked_just_now`."""
        found = roles(placement, *self._key)
        if found.primary != self.disk:
            return NotPrimary()
        needed = required(placement, found, self.disk, cleared)
        self._expect(found, needed)
        missing = needed - self._done
        unreached = sorted(each for each in missing if self._failures[each] >= FAILURES_MAX)
        for each in unreached:
            # A disk with the only copy is read although it is out of sync.
            if each not in self._asked and placement.copies_of(self._key[0]).written > 1:
                self._asked.add(each)
                return MarkOutOfSync(each)
            self._asked.discard(each)
            self._failures[each] = 0  # the coordinator has refused: it may be reached after all
        passed_over = {each for each in self._failures if self._is_lost(each) and each not in found.members}
        lost = {placement.disks[each].node for each in found.members if self._is_lost(each)}  # and marked out of sync by now
        out_of_reach = {disk.id for node in lost for disk in placement.disks_of(node)}
        others = handoffs(placement, *self._key, passed_over | out_of_reach) if found.handoffs or out_of_reach else ()
        wanted = [each for each in dict.fromkeys((*found.members, *others, *sorted(self._done))) if each != self.disk]
        if not missing and self._copies(placement) >= self._enough(placement, found, wanted):
            hints = tuple(each for each in found.everywhere if each != self.disk and each not in self._done)
            return Replicated(hints, tuple(sorted(self._done)), self._copies(placement))
        left = tuple(each for each in wanted if each not in self._done | self._tried)
        send = tuple(each for each in left if each in missing or not self._is_lost(each))
        if not send and not self._tried:  # those that cannot be reached, or were passed over, are all that is left
            send = left
            for each in passed_over:
                self._failures[each] = 0
        self._tried.update(send)
        return SendCommit(send) if send else Pause()

    def _expect(self, found: Roles, needed: Collection[str]) -> None:
        """Begin with what other writes have found out: a member that is out of sync, and silent, is passed over at once; any
        other silent disk is tried once before something is done about it."""
        for each in self._silent:
            is_out_of_sync = each in found.members and each not in needed
            self._failures[each] = FAILURES_MAX if is_out_of_sync else FAILURES_MAX - 1
        self._silent = ()

    def _is_lost(self, disk: str) -> bool:
        return self._failures[disk] >= FAILURES_MAX and disk not in self._done

    def _copies(self, placement: Placement) -> int:
        """How many failure domains have the row: two disks of one are no more than one."""
        return self._domains(placement, (each for each in self._done if each in placement.up))

    def _domains(self, placement: Placement, others: Iterable[str]) -> int:
        return len({placement.disks[each].domain for each in (self.disk, *others)})

    def _enough(self, placement: Placement, found: Roles, wanted: Collection[str]) -> int:
        """How many copies there must be: those that the bucket wants, or as many as can be had, or the least. One that has
        committed and is down by now is neither a copy nor to be had."""
        count = placement.copies_of(self._key[0]).written
        reachable = self._domains(placement, (each for each in wanted if each in placement.up and not self._is_lost(each)))
        return max(min(count, reachable), min(self._least, self._domains(placement, found.writers)))


def required(placement: Placement, found: Roles, primary: str, cleared: Collection[str]) -> set[str]:
    """The disks without which a write of this primary is not replicated: members that could be read from by somebody's map."""
    return {
        each
        for each in found.members
        if each != primary and (primary not in placement.disks[each].out_of_sync_with or each in cleared)
    }


def marked_just_now(before: Placement | None, placement: Placement, primary: str) -> set[str]:
    """The disks that this placement marks out of sync with a primary, and that could be read from by the one `before`: by that,
    somebody may still decide. They are required until the coordinator says that all know, or a step later."""
    return {
        disk.id
        for disk in placement.disks.values()
        if disk.is_up and primary in disk.out_of_sync_with and (before is None or _could_be_read(before, disk.id, primary))
    }


def _could_be_read(before: Placement, disk_id: str, primary: str) -> bool:
    disk = before.disks.get(disk_id)
    return disk is not None and disk.is_up and primary not in disk.out_of_sync_with


# --- Whether a row is accepted: by the primary from a client, or by a member from the primary. Decided in the transaction.

V = TypeVar("V", str, tuple[int, int])


class Refusal(Enum):
    """Why a primary does not take a write now."""

    NO_LEASE = "no lease"
    NOT_PRIMARY = "not primary"
    NOT_PEERED = "not peered"
    BUSY = "busy"  # another write of the name is on its way


def refusal(found: Roles, disk: str, *, leased: bool, peered: bool, in_doubt: bool) -> Refusal | None:
    """Asked before the body is read, and again in the transaction. None: the disk may take a write of the name."""
    if not leased:
        return Refusal.NO_LEASE
    if found.primary != disk:
        return Refusal.NOT_PRIMARY
    if not peered:
        return Refusal.NOT_PEERED
    return Refusal.BUSY if in_doubt else None


class UploadOrder(Enum):
    """Where an upload stands that began before the row which is there now."""

    FIRST = "first"  # nothing newer is there: it is committed
    REPLACED = "replaced"  # as if it had been overwritten at once
    FAILED = "failed"  # its own condition cannot have held
    OVERTAKEN = "overtaken"  # it cannot be ordered before the conditional write that is there


def order(version: V, present: V | None, *, conditional: bool, newest_conditional: V | None) -> UploadOrder:
    """An upload draws its version when it begins. `newest_conditional`: the version of the newest conditional write."""
    if present is None or present < version:
        return UploadOrder.FIRST
    if conditional:
        return UploadOrder.FAILED
    if newest_conditional is not None and newest_conditional > version:
        return UploadOrder.OVERTAKEN
    return UploadOrder.REPLACED


class Acceptance(NamedTuple):
    """`taken`: the member has this row or commits it now. `is_newer_map`: it refuses, since its own map has another primary."""

    taken: bool
    commits: bool = False
    is_newer_map: bool = False


def acceptance(found: Roles, primary: str, version: V, present: V | None, *, leased: bool) -> Acceptance:
    """A member's answer to a primary, by the member's map, which is at least as new as the primary's was."""
    if found.primary != primary:
        return Acceptance(taken=False, is_newer_map=True)
    if not leased or (present is not None and present > version):
        return Acceptance(taken=False)
    return Acceptance(taken=True, commits=present is None or present < version)


# --- A target's lease: the right to commit, and to say that something does not exist, for a short time after each heartbeat.
#
# The target counts from the sending of the heartbeat, the coordinator from its receipt, both on a clock that nobody can set and
# that goes on while the machine sleeps. So a target knows that its lease is over before anybody else acts on it.

LEASE_SHARE: Final = 0.8  # of `down_after_s`: the rest is for clocks that run at different speeds


def lease_s(down_after_s: float) -> float:
    """How long a lease lasts."""
    return down_after_s * LEASE_SHARE


class TargetLease:
    """The lease in the hands of a target. All times are in seconds of its own boot clock."""

    def __init__(self) -> None:
        self._until_s = 0.0

    def extend(self, sent_s: float, length_s: float) -> None:
        """A heartbeat that was sent at `sent_s` was answered with a lease. An answer that comes late extends nothing."""
        self._until_s = max(self._until_s, sent_s + length_s)

    def end(self) -> None:
        """Give it up at once, before leaving."""
        self._until_s = 0.0

    def is_held(self, now_s: float) -> bool:
        """Whether the target may act now."""
        return now_s < self._until_s

    def left_s(self, now_s: float) -> float:
        """Seconds until it ends."""
        return max(0.0, self._until_s - now_s)


# --- What a target does with a read, by the roles of its disk for the name.


class ReadVerdict(Enum):
    """What to do with a read of a name at one disk."""

    SERVE = "serve"  # the row, or its absence, is what every acknowledged write has made it
    WAIT = "wait"  # a write of the name is on its way, or the name is not peered yet
    ASK_PRIMARY = "ask primary"  # the row here is pending; its primary knows whether it counts
    ELSEWHERE = "elsewhere"  # this disk is not a reader of the name


def reading(found: Roles, disk: str, *, peered: bool, in_doubt: bool, pending: bool) -> ReadVerdict:
    """`peered` and `in_doubt` are about the primary's names: served by it already, and a write on its way. `pending`: the row
    on this disk has not been confirmed."""
    if disk not in found.readers:
        return ReadVerdict.ELSEWHERE
    if disk == found.primary:
        return ReadVerdict.SERVE if peered and not in_doubt else ReadVerdict.WAIT
    return ReadVerdict.ASK_PRIMARY if pending else ReadVerdict.SERVE
