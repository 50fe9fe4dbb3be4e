"""How many copies of an object there are: rather too few than too many."""

from __future__ import annotations

import pytest
from placements import BUCKET, place, placement, with_disk

from dfc.placement.roles import Placement, roles
from dfc.replication.recovery import copies_left, is_calm

DISKS = ("n1a", "n2a", "n3a", "n4a")
NAME = "x"
CALM = placement(*DISKS)
PRIMARY, OTHER = roles(CALM, BUCKET, NAME).homes
STANDIN, LAST = roles(placement(*DISKS, copies=4), BUCKET, NAME).homes[2:]


def left(state: Placement, owed_to: tuple[str, ...] = (), wanted: int = 2) -> int:
    return copies_left(state, roles(state, BUCKET, NAME), PRIMARY, owed_to, wanted)


def test_all_are_there() -> None:
    assert is_calm(CALM)
    assert left(CALM) == 2


def test_a_home_that_is_away() -> None:
    away = with_disk(CALM, OTHER, status="down", down_step=2)
    assert not is_calm(away)
    assert left(away) == 1


def test_a_disk_that_cannot_be_written_is_no_safe_place() -> None:
    assert left(with_disk(CALM, OTHER, status="failed", down_step=2)) == 1


def test_written_while_a_home_was_away() -> None:
    """The stand-in has it: a note says so."""
    away = with_disk(CALM, OTHER, status="down", down_step=2)
    assert roles(away, BUCKET, NAME).standins == (STANDIN,)
    assert left(away, (OTHER,)) == 2


def test_the_stand_in_may_be_the_next_to_be_away() -> None:
    away = with_disk(with_disk(CALM, OTHER, status="down", down_step=2), STANDIN, status="down", down_step=3)
    assert roles(away, BUCKET, NAME).standins == (LAST,)
    assert left(away, (OTHER,)) == 1


def test_a_home_that_catches_up() -> None:
    """It has what is not in a note."""
    back = with_disk(CALM, OTHER, behind=frozenset({PRIMARY}))
    assert (left(back), left(back, (OTHER,))) == (2, 1)


@pytest.mark.parametrize("owed_to", [(), (OTHER,)])
def test_a_home_that_came_back_empty(owed_to: tuple[str, ...]) -> None:
    """It may lack what nobody has noted yet."""
    assert left(with_disk(CALM, OTHER, behind=frozenset({PRIMARY}), compare="new"), owed_to) == 1


def test_never_more_than_wanted() -> None:
    state = placement(*(place(disk) for disk in DISKS), copies=3)
    assert [left(state, wanted=wanted) for wanted in (1, 2, 3)] == [1, 2, 3]
    assert left(with_disk(state, OTHER, status="down"), (OTHER,), wanted=3) == 3
