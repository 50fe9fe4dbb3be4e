"""How many copies of an object there are: rather too few than too many."""

from __future__ import annotations

import pytest
from placements import BUCKET, place, placement, with_disk

from dfc.placement.roles import Placement, roles
from dfc.replication.recovery import copies_left, is_calm

DISKS = ("n1a", "n2a", "n3a", "n4a")
NAME = "x"
CALM = placement(*DISKS)
PRIMARY, OTHER = roles(CALM, BUCKET, NAME).replicas
STANDIN, LAST = roles(placement(*DISKS, copies=4), BUCKET, NAME).replicas[2:]


def left(state: Placement, hinted_disks: tuple[str, ...] = (), wanted: int = 2) -> int:
    return copies_left(state, roles(state, BUCKET, NAME), PRIMARY, hinted_disks, wanted)


def test_all_are_there() -> None:
    assert is_calm(CALM)
    assert left(CALM) == 2


def test_a_replica_that_is_away() -> None:
    away = with_disk(CALM, OTHER, status="down", down_step=2)
    assert not is_calm(away)
    assert left(away) == 1


def test_a_disk_that_cannot_be_written_is_no_safe_place() -> None:
    assert left(with_disk(CALM, OTHER, status="failed", down_step=2)) == 1


def test_written_while_a_replica_was_away() -> None:
    """The handoff replica has it: a note says so."""
    away = with_disk(CALM, OTHER, status="down", down_step=2)
    assert roles(away, BUCKET, NAME).handoffs == (STANDIN,)
    assert left(away, (OTHER,)) == 2


def test_the_handoff_may_be_the_next_to_be_away() -> None:
    away = with_disk(with_disk(CALM, OTHER, status="down", down_step=2), STANDIN, status="down", down_step=3)
    assert roles(away, BUCKET, NAME).handoffs == (LAST,)
    assert left(away, (OTHER,)) == 1


def test_a_replica_that_catches_up() -> None:
    """It has what is not in a note."""
    back = with_disk(CALM, OTHER, out_of_sync_with=frozenset({PRIMARY}))
    assert (left(back), left(back, (OTHER,))) == (2, 1)


@pytest.mark.parametrize("hinted_disks", [(), (OTHER,)])
def test_a_replica_that_came_back_empty(hinted_disks: tuple[str, ...]) -> None:
    """It may lack what nobody has noted yet."""
    assert left(with_disk(CALM, OTHER, out_of_sync_with=frozenset({PRIMARY}), compare="new"), hinted_disks) == 1


def test_never_more_than_wanted() -> None:
    state = placement(*(place(disk) for disk in DISKS), copies=3)
    assert [left(state, wanted=wanted) for wanted in (1, 2, 3)] == [1, 2, 3]
    assert left(with_disk(state, OTHER, status="down"), (OTHER,), wanted=3) == 3
