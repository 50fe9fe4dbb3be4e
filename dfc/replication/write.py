"""One row on its way from the primary's disk to every disk that must have it, until the write is certain.

The primary has committed the row and marked it pending. It is certain, and may be acknowledged, when every *required* disk has
committed it and enough copies exist. A required disk that cannot be reached is first put behind the primary, in a step that
every target has acknowledged; from then on nobody reads from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from dfc.placement.roles import Roles, roles, standins
from dfc.placement.state import Placement

FAILURES_MAX: Final = 2  # commits of one disk that fail before something is done about it


@dataclass(frozen=True)
class NotPrimary:
    """Another disk decides about the name now, or none. The outcome of the write is open."""


@dataclass(frozen=True)
class SendCommit:
    """Send the row to these disks; each has it once `committed` was called for it."""

    disks: tuple[str, ...]


@dataclass(frozen=True)
class PutBehind:
    """Ask the coordinator to put this disk behind the primary."""

    disk: str


@dataclass(frozen=True)
class Pause:
    """Nothing to do before something changes, or a moment has passed."""


@dataclass(frozen=True)
class Certain:
    """Every later read finds the row. `owed` to these homes, which do not have it; `confirm` to those that do."""

    owed: tuple[str, ...]
    confirm: tuple[str, ...]
    copies: int


Instruction = NotPrimary | SendCommit | PutBehind | Pause | Certain


class Writing:
    """What is known of one row's way. `disk` is the primary's, which has the row."""

    def __init__(self, disk: str, bucket_id: str, name: str, least: int = 1, silent: Collection[str] = ()) -> None:
        """`silent`: disks that have just not answered to other writes of this primary."""
        self.disk = disk
        self._key = (bucket_id, name)
        self._least = least
        self._done: set[str] = set()
        self._failures: Counter[str] = Counter()
        self._tried: set[str] = set()
        self._asked: set[str] = set()  # disks that the coordinator was asked to put behind
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
        """What to do now. `cleared`: disks that are required although the placement says that they are behind: those towards
        which this one has reported itself clean, and those of `marked_just_now`."""
        found = roles(placement, *self._key)
        if found.primary != self.disk:
            return NotPrimary()
        needed = required(placement, found, self.disk, cleared)
        self._expect(found, needed)
        missing = needed - self._done
        unreached = sorted(each for each in missing if self._failures[each] >= FAILURES_MAX)
        for each in unreached:
            # A disk with the only copy is read although it is behind.
            if each not in self._asked and placement.copies_of(self._key[0]).written > 1:
                self._asked.add(each)
                return PutBehind(each)
            self._asked.discard(each)
            self._failures[each] = 0  # the coordinator has refused: it may be reached after all
        passed_over = {each for each in self._failures if self._is_lost(each) and each not in found.members}
        lost = {placement.disks[each].node for each in found.members if self._is_lost(each)}  # and put behind by now
        out_of_reach = {disk.id for node in lost for disk in placement.disks_of(node)}
        others = standins(placement, *self._key, passed_over | out_of_reach) if found.standins or out_of_reach else ()
        wanted = [each for each in dict.fromkeys((*found.members, *others, *sorted(self._done))) if each != self.disk]
        if not missing and self._copies(placement) >= self._enough(placement, found, wanted):
            owed = tuple(each for each in found.everywhere if each != self.disk and each not in self._done)
            return Certain(owed, tuple(sorted(self._done)), self._copies(placement))
        left = tuple(each for each in wanted if each not in self._done | self._tried)
        send = tuple(each for each in left if each in missing or not self._is_lost(each))
        if not send and not self._tried:  # those that cannot be reached, or were passed over, are all that is left
            send = left
            for each in passed_over:
                self._failures[each] = 0
        self._tried.update(send)
        return SendCommit(send) if send else Pause()

    def _expect(self, found: Roles, needed: Collection[str]) -> None:
        """Begin with what other writes have found out: a member that is behind, and silent, is passed over at once; any other
        silent disk is tried once before something is done about it."""
        for each in self._silent:
            is_behind = each in found.members and each not in needed
            self._failures[each] = FAILURES_MAX if is_behind else FAILURES_MAX - 1
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
    """The disks without which a write of this primary is not certain: members that could be read from by somebody's map."""
    return {
        each for each in found.members if each != primary and (primary not in placement.disks[each].behind or each in cleared)
    }


def marked_just_now(before: Placement | None, placement: Placement, primary: str) -> set[str]:
    """The disks that this placement puts behind a primary, and that could be read from by the one `before`: by that, somebody
    may still decide. They are required until the coordinator says that all know, or a step later."""
    return {
        disk.id
        for disk in placement.disks.values()
        if disk.is_up and primary in disk.behind and (before is None or _could_be_read(before, disk.id, primary))
    }


def _could_be_read(before: Placement, disk_id: str, primary: str) -> bool:
    disk = before.disks.get(disk_id)
    return disk is not None and disk.is_up and primary not in disk.behind
