"""How many copies there are of an object, as far as its primary knows. Pure."""

from __future__ import annotations

from collections.abc import Collection

from dfc.placement.roles import Roles
from dfc.placement.state import DiskPlace, Placement


def is_calm(placement: Placement) -> bool:
    """Whether all disks are up and lack nothing, so that every object has all its copies."""
    return all(disk.is_up and not disk.behind for disk in placement.disks.values())


def copies_left(placement: Placement, found: Roles, holder: str, owed_to: Collection[str], wanted: int) -> int:
    """How many of the `wanted` copies of an object are on disks that are up, by what its primary `holder` has noted: `owed_to`
    are the disks that lack it.

    A stand-in is counted if the object was written while a home was away, which the note for that home shows. If others are
    away, too, one of them may have been the stand-in, so none is counted: the number is rather too low than too high.
    """
    homes = found.homes[:wanted]
    there = sum(each == holder or _has_it(placement.disks[each], holder, owed_to) for each in homes)
    away = {each for each in homes if not placement.disks[each].is_up}
    if not away.isdisjoint(owed_to) and all(disk.is_up or disk.id in away for disk in placement.disks.values()):
        there += len(found.standins)
    return min(there, wanted)


def _has_it(place: DiskPlace, holder: str, owed_to: Collection[str]) -> bool:
    """Whether a home has an object. One that came back empty may lack what is not noted yet."""
    return place.is_up and place.id not in owed_to and not (place.compare and holder in place.behind)
