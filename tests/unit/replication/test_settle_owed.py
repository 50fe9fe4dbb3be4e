"""Settling, and what is owed to whom."""

from __future__ import annotations

import msgspec
import pytest
from placements import BUCKET, place, placement, with_disk, with_slices

from dfc.placement.roles import Copies, SliceState, roles
from dfc.replication.recovery import (
    SINCE_MAX,
    Delivery,
    Resolution,
    Settling,
    delivery,
    has_arrived,
    may_remove,
    owes_after_commit,
    owes_when_planned,
    resolution,
    still_pending,
    surplus,
)

DISKS = ("n1a", "n2a", "n3a", "n4a")
NAME = "x"


def found(state):
    return roles(state, BUCKET, NAME)


def settled(node, state):
    settling = Settling(node)
    settling.take(state)
    for other in sorted(settling.to_ask()):
        settling.answered(other, state.step)
    assert settling.finish()
    return settling


def test_all_others_that_are_up_are_asked():
    state = with_disk(placement(*DISKS), "n4a", status="down")
    settling = Settling("n1")
    settling.take(state)
    assert settling.to_ask() == {"n2", "n3"}
    settling.answered("n2", state.step)
    settling.answered("n3", state.step - 1)
    assert settling.to_ask() == {"n3"}, "it spoke of another step"
    assert not settling.finish()
    settling.answered("n3", state.step)
    assert settling.finish()
    assert not settling.finish()


def test_which_pending_rows_keep_a_disk_from_being_clean():
    before = {"settled": (5, 1), "same": (5, 1), "newer": (5, 1), "older": (5, 1)}
    now = {"same": (5, 1), "newer": (6, 1), "older": (4, 1), "came later": (1, 1)}
    assert still_pending(before, now) == {"same": (5, 1), "older": (5, 1)}


def test_a_name_of_before_is_served_while_another_step_is_settled():
    state = placement(*DISKS)
    primary, second = found(state).homes
    settling = settled(primary[:-1], state)
    assert settling.is_settled(BUCKET, NAME, primary)
    other = settled(second[:-1], state)
    down = with_disk(state, primary, status="down")
    settling.take(with_disk(state, second, status="down"))
    assert settling.is_settled(BUCKET, NAME, primary), "it was its primary already"
    other.take(down)
    assert not other.is_settled(BUCKET, NAME, second), "it has just become its primary"
    for node in sorted(other.to_ask()):
        other.answered(node, down.step)
    assert other.finish()
    assert other.is_settled(BUCKET, NAME, second)


def test_after_a_start_nothing_is_settled():
    state = placement(*DISKS)
    settling = Settling("n1")
    settling.take(state)
    assert not settling.is_settled(BUCKET, NAME, "n1a")


def test_steps_that_come_while_settling_begin_it_anew_but_forget_nothing():
    state = placement(*DISKS)
    primary = found(state).primary
    settling = settled(primary[:-1], state)
    second = with_disk(state, found(state).homes[1], status="down")
    settling.take(second)
    third = with_disk(second, found(state).homes[1], status="up")
    settling.take(third)
    assert len(settling.to_ask()) == 3
    assert settling.is_settled(BUCKET, NAME, primary)


@pytest.mark.parametrize("hears", [True, False])
def test_a_bucket_that_is_made_within_a_step(hears):
    """Of its names, a disk that is behind is not the primary, as it would be with one copy. When it has caught up, it must ask
    first; whose primary stays goes on, if its target has heard of the bucket."""
    primary, second = found(placement(*DISKS)).homes
    made = with_disk(placement(*DISKS), primary, behind=frozenset((second,)))
    before = msgspec.structs.replace(made, copies={})
    assert (found(before).primary, found(made).primary) == (primary, second)
    first, other = settled(primary[:-1], before), settled(second[:-1], before)
    if hears:
        first.refresh(made)
        other.refresh(made)
        assert other.is_settled(BUCKET, NAME, second)
    first.take(with_disk(made, primary, behind=frozenset()))
    assert not first.is_settled(BUCKET, NAME, primary)
    stays = with_disk(made, next(each for each in DISKS if each not in (primary, second)), status="down")
    other.take(stays)
    assert other.is_settled(BUCKET, NAME, second) is hears
    other.refresh(made)
    assert other.step == stays.step, "a placement of another step is no news"


def test_names_with_one_copy_go_on_while_a_bucket_gets_more():
    one = msgspec.structs.replace(placement(*DISKS), copies={})
    primary = found(one).primary
    settling = settled(primary[:-1], one)
    settling.take(msgspec.structs.replace(one, step=one.step + 1, copies={BUCKET: Copies(1, 2, 2)}))
    assert settling.is_settled(BUCKET, NAME, primary)


def test_a_primary_that_is_one_again_settles_first():
    """Another one was meanwhile, and may have begun writes."""
    state = placement(*DISKS)
    primary = found(state).primary
    settling = settled(primary[:-1], state)
    behind = with_disk(state, primary, behind=frozenset({found(state).homes[1]}))
    settling.take(behind)
    clean = with_disk(behind, primary, behind=frozenset())
    assert found(clean).primary == primary
    settling.take(clean)
    assert not settling.is_settled(BUCKET, NAME, primary)
    for other in settling.to_ask():
        settling.answered(other, clean.step)
    assert settling.finish()
    assert settling.is_settled(BUCKET, NAME, primary)


def test_after_steps_that_are_not_known_nothing_is_settled():
    state = placement(*DISKS)
    primary = found(state).primary
    settling = settled(primary[:-1], state)
    settling.take(msgspec.structs.replace(state, step=state.step + 2))
    assert not settling.is_settled(BUCKET, NAME, primary)


def test_after_very_many_steps_nothing_is_settled():
    state = placement(*DISKS)
    primary = found(state).primary
    settling = settled(primary[:-1], state)
    for more in range(1, SINCE_MAX + 3):
        settling.take(msgspec.structs.replace(state, step=state.step + more))
        assert settling.is_settled(BUCKET, NAME, primary) is (more <= SINCE_MAX), more


def test_disks_that_join_while_a_step_is_settled_are_asked_too():
    state = placement(*DISKS)
    settling = Settling("n1")
    settling.take(state)
    for node in ("n2", "n3", "n4"):
        settling.answered(node, state.step)
    settling.refresh(msgspec.structs.replace(state, disks={**state.disks, "n5a": place("n5a")}))
    assert (settling.to_ask(), settling.finish()) == ({"n5"}, False)


def test_what_a_holder_does_with_a_note():
    state = placement(*DISKS)
    primary, second = found(state).homes
    others = [each for each in DISKS if each not in (primary, second)]
    assert delivery(state, found(state), primary, second) is Delivery.ADOPT
    assert delivery(state, found(state), others[0], second) is Delivery.ASK
    assert delivery(state, found(state), primary, others[0]) is Delivery.DROP
    down = with_disk(state, second, status="down")
    assert delivery(down, found(down), primary, second) is Delivery.KEEP
    stuck = with_disk(with_disk(state, primary, status="down"), second, behind=frozenset((primary,)))
    assert delivery(stuck, found(stuck), others[0], second) is Delivery.DIRECT


def test_a_member_notes_for_homes_that_do_not_have_it():
    state = placement(*DISKS, copies=3)
    first, second, third = found(state).homes
    behind = with_disk(with_disk(state, second, behind=frozenset((first,))), third, status="down")
    standin = found(behind).standins[0]
    assert owes_after_commit(behind, found(behind), standin) == [second, third]
    assert owes_after_commit(behind, found(behind), second) == [third]


def test_homes_to_come_are_owed_everything():
    state = placement(*DISKS)
    assert owes_when_planned(state, found(state), BUCKET) == []
    to = frozenset(DISKS) - {found(state).homes[0]}
    copying = with_slices(state, SliceState(1, 2, "copying"), to=to)
    new = [each for each in found(with_slices(state, SliceState(2), to=to)).homes if each not in found(state).homes]
    assert owes_when_planned(copying, found(copying), BUCKET) == new


@pytest.mark.parametrize("theirs", [None, "1", "3"])
def test_a_pending_row_is_given_up_for_whatever_else_its_primary_has(theirs):
    """Also for an older one: the primary has settled without this row, so nobody has acknowledged it."""
    assert resolution("2", theirs, changed=False) is Resolution.REVERT
    assert resolution("2", theirs, changed=True) is Resolution.KEEP, "an old answer"


def test_the_same_version_at_the_primary_confirms_a_pending_row():
    assert resolution("2", "2", changed=False) is Resolution.CONFIRM
    assert resolution("2", "2", changed=True) is Resolution.KEEP


def test_a_pending_row_gives_way_to_one_that_is_on_its_way() -> None:
    """The primary may be waiting for this disk, which has a newer one. What is on its way does not confirm anything, though."""
    assert resolution("2", "1", changed=False, certain=False) is Resolution.REVERT
    assert resolution("2", "3", changed=False, certain=False) is Resolution.REVERT
    for theirs in ("2", None):
        assert resolution("2", theirs, changed=False, certain=False) is Resolution.KEEP
    assert resolution("2", "1", changed=True, certain=False) is Resolution.KEEP


def test_what_a_job_publishes_is_not_given_up_for_something_older() -> None:
    """The primary is to take it: the job only goes forward. What is newer there has replaced it."""
    for theirs in (None, "1"):
        assert resolution("2", theirs, changed=False, published=True) is Resolution.OFFER
        assert resolution("2", theirs, changed=True, published=True) is Resolution.KEEP
    assert resolution("2", None, changed=False, certain=False, published=True) is Resolution.KEEP
    assert resolution("2", "2", changed=False, published=True) is Resolution.CONFIRM
    assert resolution("2", "3", changed=False, published=True) is Resolution.REVERT


def test_a_note_is_dropped_when_the_row_has_arrived():
    assert has_arrived("2", "2")
    assert has_arrived("3", "2")
    assert not has_arrived("1", "2")
    assert not has_arrived(None, "2")


def test_a_surplus_row_goes_when_all_homes_have_said_so():
    assert may_remove([True, True])
    assert not may_remove([True, None])
    assert not may_remove([True, False])


def test_a_row_is_surplus_only_when_all_homes_are_well():
    state = placement(*DISKS)
    homes = found(state).homes
    other = next(each for each in DISKS if each not in homes)
    assert surplus(state, found(state), other, pending=False, owes=False)
    assert not any(surplus(state, found(state), home, pending=False, owes=False) for home in homes)
    for change in ({"status": "down"}, {"behind": frozenset((other,))}):
        ill = with_disk(state, homes[1], **change)
        assert not surplus(ill, found(ill), other, pending=False, owes=False)
    moving = with_slices(state, SliceState(1, 2, "moving"), to=frozenset(DISKS) - {homes[0]})
    assert found(moving).everywhere != found(moving).homes
    assert not surplus(moving, found(moving), other, pending=False, owes=False)
    assert not surplus(state, found(state), other, pending=True, owes=False)
    assert not surplus(state, found(state), other, pending=False, owes=True)
