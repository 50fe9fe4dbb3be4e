"""Settling, and which disk lacks what."""

from __future__ import annotations

import msgspec
import pytest
from placements import BUCKET, place, placement, with_disk, with_slices

from dfc.placement.roles import Copies, SliceState, roles
from dfc.replication.recovery import (
    SINCE_MAX,
    Delivery,
    Peering,
    Resolution,
    delivery,
    has_arrived,
    hints_after_commit,
    hints_when_planned,
    is_excess,
    may_remove,
    resolution,
    still_pending,
)

DISKS = ("n1a", "n2a", "n3a", "n4a")
NAME = "x"


def found(state):
    return roles(state, BUCKET, NAME)


def peered(node, state):
    peering = Peering(node)
    peering.take(state)
    for other in sorted(peering.to_ask()):
        peering.answered(other, state.step)
    assert peering.finish()
    return peering


def test_all_others_that_are_up_are_asked():
    state = with_disk(placement(*DISKS), "n4a", status="down")
    peering = Peering("n1")
    peering.take(state)
    assert peering.to_ask() == {"n2", "n3"}
    peering.answered("n2", state.step)
    peering.answered("n3", state.step - 1)
    assert peering.to_ask() == {"n3"}, "it spoke of another step"
    assert not peering.finish()
    peering.answered("n3", state.step)
    assert peering.finish()
    assert not peering.finish()


def test_which_pending_rows_keep_a_disk_from_being_clean():
    before = {"settled": (5, 1), "same": (5, 1), "newer": (5, 1), "older": (5, 1)}
    now = {"same": (5, 1), "newer": (6, 1), "older": (4, 1), "came later": (1, 1)}
    assert still_pending(before, now) == {"same": (5, 1), "older": (5, 1)}


def test_a_name_of_before_is_served_while_another_step_is_peered():
    state = placement(*DISKS)
    primary, second = found(state).replicas
    peering = peered(primary[:-1], state)
    assert peering.is_peered(BUCKET, NAME, primary)
    other = peered(second[:-1], state)
    down = with_disk(state, primary, status="down")
    peering.take(with_disk(state, second, status="down"))
    assert peering.is_peered(BUCKET, NAME, primary), "it was its primary already"
    other.take(down)
    assert not other.is_peered(BUCKET, NAME, second), "it has just become its primary"
    for node in sorted(other.to_ask()):
        other.answered(node, down.step)
    assert other.finish()
    assert other.is_peered(BUCKET, NAME, second)


def test_after_a_start_nothing_is_peered():
    state = placement(*DISKS)
    peering = Peering("n1")
    peering.take(state)
    assert not peering.is_peered(BUCKET, NAME, "n1a")


def test_steps_that_come_while_peering_begin_it_anew_but_forget_nothing():
    state = placement(*DISKS)
    primary = found(state).primary
    peering = peered(primary[:-1], state)
    second = with_disk(state, found(state).replicas[1], status="down")
    peering.take(second)
    peering.take(with_disk(second, found(state).replicas[1], status="up"))
    assert len(peering.to_ask()) == 3
    assert peering.is_peered(BUCKET, NAME, primary)


@pytest.mark.parametrize("hears", [True, False])
def test_a_bucket_that_is_made_within_a_step(hears):
    """Of its names, a disk that is out of sync is not the primary, as it would be with one copy. When it has caught up, it must
    ask first; whose primary stays goes on, if its target has heard of the bucket."""
    primary, second = found(placement(*DISKS)).replicas
    made = with_disk(placement(*DISKS), primary, out_of_sync_with=frozenset((second,)))
    before = msgspec.structs.replace(made, copies={})
    assert (found(before).primary, found(made).primary) == (primary, second)
    first, other = peered(primary[:-1], before), peered(second[:-1], before)
    if hears:
        first.refresh(made)
        other.refresh(made)
        assert other.is_peered(BUCKET, NAME, second)
    first.take(with_disk(made, primary, out_of_sync_with=frozenset()))
    assert not first.is_peered(BUCKET, NAME, primary)
    stays = with_disk(made, next(each for each in DISKS if each not in (primary, second)), status="down")
    other.take(stays)
    assert other.is_peered(BUCKET, NAME, second) is hears
    other.refresh(made)
    assert other.step == stays.step, "a placement of another step is no news"


def test_names_with_one_copy_go_on_while_a_bucket_gets_more():
    one = msgspec.structs.replace(placement(*DISKS), copies={})
    primary = found(one).primary
    peering = peered(primary[:-1], one)
    peering.take(msgspec.structs.replace(one, step=one.step + 1, copies={BUCKET: Copies(1, 2, 2)}))
    assert peering.is_peered(BUCKET, NAME, primary)


def test_a_primary_that_is_one_again_peers_first():
    """Another one was meanwhile, and may have begun writes."""
    state = placement(*DISKS)
    primary = found(state).primary
    peering = peered(primary[:-1], state)
    lagging = with_disk(state, primary, out_of_sync_with=frozenset({found(state).replicas[1]}))
    peering.take(lagging)
    clean = with_disk(lagging, primary, out_of_sync_with=frozenset())
    assert found(clean).primary == primary
    peering.take(clean)
    assert not peering.is_peered(BUCKET, NAME, primary)
    for other in peering.to_ask():
        peering.answered(other, clean.step)
    assert peering.finish()
    assert peering.is_peered(BUCKET, NAME, primary)


def test_after_steps_that_are_not_known_nothing_is_peered():
    state = placement(*DISKS)
    primary = found(state).primary
    peering = peered(primary[:-1], state)
    peering.take(msgspec.structs.replace(state, step=state.step + 2))
    assert not peering.is_peered(BUCKET, NAME, primary)


def test_after_very_many_steps_nothing_is_peered():
    state = placement(*DISKS)
    primary = found(state).primary
    peering = peered(primary[:-1], state)
    for more in range(1, SINCE_MAX + 3):
        peering.take(msgspec.structs.replace(state, step=state.step + more))
        assert peering.is_peered(BUCKET, NAME, primary) is (more <= SINCE_MAX), more


def test_disks_that_join_while_a_step_is_peered_are_asked_too():
    state = placement(*DISKS)
    peering = Peering("n1")
    peering.take(state)
    for node in ("n2", "n3", "n4"):
        peering.answered(node, state.step)
    peering.refresh(msgspec.structs.replace(state, disks={**state.disks, "n5a": place("n5a")}))
    assert (peering.to_ask(), peering.finish()) == ({"n5"}, False)


def test_what_a_holder_does_with_a_hint():
    state = placement(*DISKS)
    primary, second = found(state).replicas
    others = [each for each in DISKS if each not in (primary, second)]
    assert delivery(state, found(state), primary, second) is Delivery.ADOPT
    assert delivery(state, found(state), others[0], second) is Delivery.ASK
    assert delivery(state, found(state), primary, others[0]) is Delivery.DROP
    down = with_disk(state, second, status="down")
    assert delivery(down, found(down), primary, second) is Delivery.KEEP
    stuck = with_disk(with_disk(state, primary, status="down"), second, out_of_sync_with=frozenset((primary,)))
    assert delivery(stuck, found(stuck), others[0], second) is Delivery.DIRECT


def test_a_member_hints_for_replicas_that_do_not_have_it():
    state = placement(*DISKS, copies=3)
    first, second, third = found(state).replicas
    lagging = with_disk(with_disk(state, second, out_of_sync_with=frozenset((first,))), third, status="down")
    handoff = found(lagging).handoffs[0]
    assert hints_after_commit(lagging, found(lagging), handoff) == [second, third]
    assert hints_after_commit(lagging, found(lagging), second) == [third]


def test_future_replicas_are_hinted_everything():
    state = placement(*DISKS)
    assert hints_when_planned(state, found(state), BUCKET) == []
    to = frozenset(DISKS) - {found(state).replicas[0]}
    copying = with_slices(state, SliceState(1, 2, "copying"), to=to)
    new = [each for each in found(with_slices(state, SliceState(2), to=to)).replicas if each not in found(state).replicas]
    assert hints_when_planned(copying, found(copying), BUCKET) == new


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
    assert resolution("2", "1", changed=False, replicated=False) is Resolution.REVERT
    assert resolution("2", "3", changed=False, replicated=False) is Resolution.REVERT
    for theirs in ("2", None):
        assert resolution("2", theirs, changed=False, replicated=False) is Resolution.KEEP
    assert resolution("2", "1", changed=True, replicated=False) is Resolution.KEEP


def test_what_a_job_publishes_is_not_given_up_for_something_older() -> None:
    """The primary is to take it: the job only goes forward. What is newer there has replaced it."""
    for theirs in (None, "1"):
        assert resolution("2", theirs, changed=False, published=True) is Resolution.OFFER
        assert resolution("2", theirs, changed=True, published=True) is Resolution.KEEP
    assert resolution("2", None, changed=False, replicated=False, published=True) is Resolution.KEEP
    assert resolution("2", "2", changed=False, published=True) is Resolution.CONFIRM
    assert resolution("2", "3", changed=False, published=True) is Resolution.REVERT


def test_a_hint_is_dropped_when_the_row_has_arrived():
    assert has_arrived("2", "2")
    assert has_arrived("3", "2")
    assert not has_arrived("1", "2")
    assert not has_arrived(None, "2")


def test_an_excess_row_goes_when_all_replicas_have_said_so():
    assert may_remove([True, True])
    assert not may_remove([True, None])
    assert not may_remove([True, False])


def test_a_row_is_excess_only_when_all_replicas_are_well():
    state = placement(*DISKS)
    replicas = found(state).replicas
    other = next(each for each in DISKS if each not in replicas)
    assert is_excess(state, found(state), other, pending=False, is_hinted=False)
    assert not any(is_excess(state, found(state), replica, pending=False, is_hinted=False) for replica in replicas)
    for change in ({"status": "down"}, {"out_of_sync_with": frozenset((other,))}):
        ill = with_disk(state, replicas[1], **change)
        assert not is_excess(ill, found(ill), other, pending=False, is_hinted=False)
    moving = with_slices(state, SliceState(1, 2, "moving"), to=frozenset(DISKS) - {replicas[0]})
    assert found(moving).everywhere != found(moving).replicas
    assert not is_excess(moving, found(moving), other, pending=False, is_hinted=False)
    assert not is_excess(state, found(state), other, pending=True, is_hinted=False)
    assert not is_excess(state, found(state), other, pending=False, is_hinted=True)
