"""What comparing copies has found, as targets tell proxies, and proxies tell whoever has asked."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

FOUND_MAX: Final = 100  # names that one disk tells; all are counted, and more are in its target's log
CheckState = Literal["none", "running", "done"]


class CheckAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A target is to compare what its disks have with others. `check` names this time, `began_us` is when it was asked for, in
    µs since 1970; `buckets` are the ids of those to be compared, none for all."""

    check: str
    began_us: int
    buckets: tuple[str, ...] = ()


class FoundDifference(msgspec.Struct, frozen=True):
    """An object of which a disk did not have what its primary has. `what`: "owe", "lost", "set aside" or "alarm", as in
    `dfc.replication.comparing.Remedy`."""

    bucket: str
    object: str
    home: str
    what: str
    message: str


class PairCheck(msgspec.Struct, kw_only=True):
    """The comparison of a disk with another home of the objects of which it is the primary.

    `rows`: objects compared. `differing`: those that were not the same, of which `repaired` are by now, `under_way` are on
    their way, `set_aside` were unknown to the primary, and `alarms` are left as they are. `not_compared`: why it could not be
    done; empty: it was.
    """

    home: str
    rows: int = 0
    differing: int = 0
    repaired: int = 0
    under_way: int = 0
    set_aside: int = 0
    alarms: int = 0
    not_compared: str = ""


class DiskCheck(msgspec.Struct, kw_only=True):
    """How far a disk is with comparing what it is the primary of. `pairs`: those that are done, of `pairs_total`. `rows_read`
    of `rows_total` objects are in its digests. `why`: what keeps all of it from being compared."""

    disk: str
    node: str
    state: Literal["waiting", "running", "done", "unknown"] = "waiting"
    why: str = ""
    rows_read: int = 0
    rows_total: int = 0
    pairs_total: int = 0
    pairs: list[PairCheck] = []
    found: list[FoundDifference] = []

    def note(self, found: FoundDifference) -> None:
        """Add a difference to those that are told, unless there are many, or it is found again."""
        if len(self.found) < FOUND_MAX and found not in self.found:
            self.found.append(found)


class TargetCheck(msgspec.Struct, frozen=True):
    """What a target has to say about the last comparison that it was asked for; `check` empty: none since it was started."""

    check: str = ""
    began_us: int = 0
    buckets: tuple[str, ...] = ()
    disks: list[DiskCheck] = []
