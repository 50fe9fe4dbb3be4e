"""What comparing copies has found, as targets tell proxies, and proxies tell whoever has asked."""

from __future__ import annotations

from typing import Final

import msgspec

from dfc.wire.status import CheckedDisk, CheckedObject

FOUND_MAX: Final = 100  # names that one disk tells; all are counted, and more are in its target's log


class CheckAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A target is to compare what its disks have with others. `check` names this time, `began_us` is when it was asked for, in
    µs since 1970; `buckets` are the ids of those to be compared, none for all."""

    check: str
    began_us: int
    buckets: tuple[str, ...] = ()


class TargetCheck(msgspec.Struct, frozen=True):
    """What a target has to say about the last comparison that it was asked for; `check` empty: none since it was started."""

    check: str = ""
    began_us: int = 0
    buckets: tuple[str, ...] = ()
    disks: list[CheckedDisk] = []


def note(check: CheckedDisk, found: CheckedObject) -> None:
    """Add a difference to those that are told, unless there are many, or it is found again."""
    if len(check.found) < FOUND_MAX and found not in check.found:
        check.found.append(found)
