"""Rows that disks lack: to whom a row goes, when a note may be dropped, when a disk is clean, and which rows are surplus.

A note on disk X says "disk Y should get my row of this name". The primary delivers; any other holder makes sure that either Y
has the row or the primary knows. A note is dropped only when Y has said that it has this version or a newer one.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import TypeVar

from dfc.placement.roles import Roles
from dfc.placement.state import Placement

V = TypeVar("V", str, tuple[int, int])


class Delivery(Enum):
    """What a holder does with a note."""

    KEEP = "keep"  # nothing can be done now
    DROP = "drop"  # nobody needs it any more
    ADOPT = "adopt"  # as the primary: send the row; dropped when the disk has it
    ASK = "ask"  # ask the disk for its version; if that is older, tell the primary
    DIRECT = "direct"  # ask the disk for its version; if that is older, send the row, pending as it is: there is no primary


def delivery(placement: Placement, found: Roles, holder: str, disk: str) -> Delivery:
    """What the holder of a note does about the disk that lacks a row, by the roles for that name."""
    if found.primary is not None and disk not in found.everywhere:
        return Delivery.DROP  # also while it is away: it was given up, or its objects have been moved
    if not placement.disks[disk].is_up:
        return Delivery.KEEP
    if found.primary is None:
        return Delivery.DIRECT
    return Delivery.ADOPT if found.primary == holder else Delivery.ASK


def owes_after_commit(placement: Placement, found: Roles, holder: str) -> list[str]:
    """Homes for which a member notes a row that it commits, since its primary may be the next to die: those that cannot have it
    yet, or serve nothing before they have caught up."""
    return [
        each for each in found.homes if each != holder and (not placement.disks[each].is_up or placement.disks[each].behind)
    ]


def owes_when_planned(placement: Placement, found: Roles, bucket_id: str) -> list[str]:
    """The homes to come that the primary owes a row to: by the layout that a slice moves to, or of a bucket that gets more
    copies."""
    complete = found.homes[: placement.copies_of(bucket_id).reading]
    return [each for each in found.everywhere if each not in complete]


def keeps_behind(found: Roles, disk: str) -> bool:
    """Whether a disk that lacks a row is behind whoever has noted that. Not if it is only to become a home: nobody reads the
    row there before all that is noted has come (`StepPlanner`), and otherwise a target that is restarted in the middle of a
    move would not be read for as long as that takes."""
    return disk in found.homes or disk in found.members


def are_roles_changing(placement: Placement) -> bool:
    """Whether a disk that was to become a home may be a member by now: then all that is noted keeps it behind."""
    return is_handing_over(placement) or any(copies.reading != copies.written for copies in placement.copies.values())


def is_handing_over(placement: Placement) -> bool:
    """Whether slices are on their last steps to other homes."""
    return any(state.phase in ("moving", "moved") for state in placement.slices)


class Resolution(Enum):
    """What becomes of a row that is pending here, once its primary has said what it has."""

    KEEP = "keep"  # ask again later
    CONFIRM = "confirm"  # it counts
    REVERT = "revert"  # take the primary's row instead, or none
    OFFER = "offer"  # keep it: the primary takes it when the job that publishes it asks for that


def resolution(own: V, theirs: V | None, *, changed: bool, certain: bool = True, published: bool = False) -> Resolution:
    """What becomes of a row that is pending here, when its primary says that it has `theirs` (None: no row). `changed`:
    something about the name arrived here after the question was sent, or the row is no longer pending, so the answer may be
    older than that. `certain`: no write of the name is on its way at the primary. `published`: ours is an output of a job
    that is not over.

    An acknowledged row is at the primary, and a primary that is settled takes no row of others any more; so a different one
    there means that ours was never acknowledged, also if ours is newer. If the primary's is on its way it may be waiting for
    this disk, which refuses an older row than it has: then that one is taken instead, and is pending in its turn.

    A job that is published only goes forward: what its primary lacks is never undone, and gives way only to what is newer and
    certain. It may take effect at any time until the job has succeeded, so it does not matter what the primary has acknowledged
    meanwhile, unless that is newer.
    """
    if changed or (not certain and (published or theirs in (own, None))):
        return Resolution.KEEP
    if theirs == own:
        return Resolution.CONFIRM
    return Resolution.OFFER if published and (theirs is None or theirs < own) else Resolution.REVERT


def surplus(placement: Placement, found: Roles, holder: str, *, pending: bool, owes: bool) -> bool:
    """Whether a row here may go once every home has said that it holds this version or a newer one: this disk is no home by any
    layout that matters, all homes are readers, and the row here is neither `pending` nor in a note of this disk (`owes`)."""
    return (
        not pending
        and not owes
        and found.everywhere == found.homes  # nothing moves
        and holder not in found.homes
        and found.primary is not None
        and all(placement.disks[each].is_up and not placement.disks[each].behind for each in found.homes)
    )


def may_remove(answers: Collection[bool | None]) -> bool:
    """Whether a surplus row goes: every home has answered that it holds this version or a newer one, for certain."""
    return all(answers)


def has_arrived(theirs: V | None, own: V) -> bool:
    """Whether a note may be dropped, by the version that the disk says it has."""
    return theirs is not None and theirs >= own
