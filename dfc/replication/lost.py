"""Disks that are lost, perhaps for good: when they may be given up, so that their objects get other homes. Pure.

A disk that is given up stays in its layouts, among those that are `gone`: objects with one copy stay there, unavailable. When
it comes back, what it has of others is of no use any more, and may be older than the tombstones that are kept: it drops all
that is not its own (`is_useless`), and only then gets objects again, like a disk that is new.
"""

from __future__ import annotations

from collections.abc import Collection

from dfc.placement.roles import Roles
from dfc.placement.state import LayoutSpec, Placement


def is_lost_alone(placement: Placement, lost: Collection[str]) -> bool:
    """Whether every object of several copies has one that may be read without these disks, so they may be given up.

    They are all in one failure domain, and no copies of an object share one. By every layout there is another domain, and all
    disks there are up and lack nothing. Objects with one copy have none elsewhere: they stay where they are, unavailable.
    """
    if not lost:
        return True
    domains = {placement.disks[each].domain for each in lost}
    return len(domains) == 1 and all(_has_all_without(placement, spec, *domains) for spec in placement.layouts.values())


def _has_all_without(placement: Placement, spec: LayoutSpec, domain: str) -> bool:
    others = [placement.disks[each] for each in spec.disks - spec.gone if placement.disks[each].domain != domain]
    return bool(others) and all(disk.is_up and not disk.behind for disk in others)


def next_to_give_up(placement: Placement, away: Collection[str]) -> frozenset[str]:
    """Which of the disks that are away for long are given up next: all in one failure domain that hold something; none if
    objects would be lost."""
    holding = {each for spec in placement.layouts.values() for each in spec.disks - spec.gone}
    by_domain: dict[str, set[str]] = {}
    for each in holding.intersection(away):
        by_domain.setdefault(placement.disks[each].domain, set()).add(each)
    found = (lost for _, lost in sorted(by_domain.items()) if is_lost_alone(placement, lost))
    return frozenset(next(found, ()))


def is_given_up(placement: Placement, disk_id: str) -> bool:
    """Whether a disk has been given up, by the layout to which everything comes."""
    return disk_id in placement.layouts[max(placement.layouts)].gone


def is_restoring(placement: Placement) -> bool:
    """Whether objects get copies on other disks in the place of those that the newest layout gives up."""
    gone = placement.layouts[max(placement.layouts)].gone
    return any(gone & spec.disks - spec.gone for spec in placement.layouts.values())


def is_out(placement: Placement, disk_id: str) -> bool:
    """Whether a disk has been given up by all layouts: it has taken part in nothing but writes of one copy since then."""
    specs = [spec for spec in placement.layouts.values() if disk_id in spec.disks]
    return bool(specs) and all(disk_id in spec.gone for spec in specs)


def is_no_home(placement: Placement, disk_id: str) -> bool:
    """Whether a disk is a home of no object with several copies, by any layout in force."""
    return all(disk_id not in spec.disks - spec.gone for spec in placement.layouts.values())


def needs_tombstones(placement: Placement) -> bool:
    """Whether a disk may have an object that was deleted while it had no part in that, so that only a tombstone tells it so.

    That is one that is away or behind, unless it was given up: then it drops all that is not its own. And one to which objects
    were to move that go elsewhere now: what it has of them is removed as surplus when the move is over. The number of copies
    does not matter, since there may have been more of them, or another layout, when the disk went away.
    """
    are_homes = any(copies.reading == 1 < copies.written for copies in placement.copies.values())  # see `roles`
    here = [disk for disk in placement.disks.values() if are_homes or not is_out(placement, disk.id)]
    return placement.is_moving or any(not disk.is_up or disk.behind for disk in here)


def is_useless(placement: Placement, found: Roles, disk_id: str) -> bool:
    """Whether a row on a disk that was given up may go once the primary has answered, whatever it has: the disk is no home of
    the name. All that it had acknowledged was at others when it was given up, and since then it has taken part in nothing."""
    return is_given_up(placement, disk_id) and found.primary is not None and disk_id not in found.everywhere
