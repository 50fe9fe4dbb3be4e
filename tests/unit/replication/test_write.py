"""A write until it is certain."""

from __future__ import annotations

import msgspec
from placements import BUCKET, placement, with_disk, with_slices

from dfc.placement.roles import Copies, SliceState, roles
from dfc.replication.write import MarkOutOfSync, NotPrimary, Pause, Replicated, SendCommit, Writing, marked_just_now, required

DISKS = ("n1a", "n2a", "n3a", "n4a")
NAME = "x.tar"


def begin(state, least=1):
    found = roles(state, BUCKET, NAME)
    return Writing(found.primary, BUCKET, NAME, least), found


def begin_with_one_down(least=1):
    """The second replica is down: what is there without it, and the handoff replica in its place."""
    state = placement(*DISKS)
    writing, found = begin(state, least)
    down = with_disk(state, found.replicas[1], status="down")
    (handoff,) = roles(down, BUCKET, NAME).handoffs
    return writing, found, down, handoff


def test_it_is_certain_when_all_members_have_it():
    state = placement(*DISKS, copies=3)
    writing, found = begin(state)
    assert writing.next(state, ()) == SendCommit(found.replicas[1:])
    assert writing.next(state, ()) == Pause()
    writing.committed(found.replicas[1])
    assert writing.next(state, ()) == Pause()
    writing.committed(found.replicas[2])
    assert writing.next(state, ()) == Replicated((), tuple(sorted(found.replicas[1:])), 3)


def test_a_member_that_fails_is_asked_again_and_then_marked_out_of_sync():
    state = placement(*DISKS)
    writing, found = begin(state)
    other = found.replicas[1]
    assert writing.next(state, ()) == SendCommit((other,))
    writing.failed(other)
    assert writing.next(state, ()) == SendCommit((other,))
    writing.failed(other)
    assert writing.next(state, ()) == MarkOutOfSync(other)
    lagging = with_disk(state, other, out_of_sync_with=frozenset((writing.disk,)))
    handoff = next(each for each in DISKS if each not in found.replicas)
    assert writing.next(lagging, ()) == SendCommit((handoff,)), "there is another disk: two copies are to be had"
    writing.committed(handoff)
    assert writing.next(lagging, ()) == Replicated((other,), (handoff,), 2)


def test_one_that_has_committed_and_is_down_by_now_is_not_waited_for():
    """Seed 22 of "removals and faults": the write waited for a copy on a disk that was never to come back, and with it whoever
    read the object, and each move."""
    state = placement(*DISKS[:3], copies=3)
    writing, found = begin(state)
    second, third = found.replicas[1:]
    assert writing.next(state, ()) == SendCommit((second, third))
    writing.committed(second)
    down = with_disk(state, second, status="down")
    assert writing.next(down, ()) == Pause()
    writing.committed(third)
    assert writing.next(down, ()) == Replicated((), tuple(sorted((second, third))), 2)


def silent(state, primary, *disks):
    return Writing(primary, BUCKET, NAME, silent=disks)


def test_a_silent_member_that_is_out_of_sync_is_passed_over_at_once():
    """There is a hint for it; a handoff replica takes the copy."""
    state = placement(*DISKS)
    found = roles(state, BUCKET, NAME)
    primary, other = found.replicas
    lagging = with_disk(state, other, out_of_sync_with=frozenset((primary,)))
    writing = silent(lagging, primary, other)
    (handoff,) = writing.next(lagging, ()).disks
    assert handoff not in found.replicas
    assert writing.next(lagging, ()) == Pause(), "the silent one is not asked while there is another"
    writing.committed(handoff)
    assert writing.next(lagging, ()) == Replicated((other,), (handoff,), 2)


def test_a_silent_third_replica_that_is_out_of_sync_is_passed_over_at_once():
    state = placement(*DISKS, copies=3)
    found = roles(state, BUCKET, NAME)
    primary, second, third = found.replicas
    lagging = with_disk(state, third, out_of_sync_with=frozenset((primary,)))
    handoff = next(each for each in DISKS if each not in found.replicas)
    writing = silent(lagging, primary, third)
    assert writing.next(lagging, ()) == SendCommit((second, handoff))
    writing.committed(second)
    writing.committed(handoff)
    assert writing.next(lagging, ()) == Replicated((third,), tuple(sorted((second, handoff))), 3)


def test_a_silent_member_that_is_required_is_tried_once_and_then_marked_out_of_sync():
    state = placement(*DISKS)
    primary, other = roles(state, BUCKET, NAME).replicas
    writing = silent(state, primary, other)
    assert writing.next(state, ()) == SendCommit((other,))
    writing.failed(other)
    assert writing.next(state, ()) == MarkOutOfSync(other)
    lagging = with_disk(state, other, out_of_sync_with=frozenset((primary,)))
    writing = silent(lagging, primary, other)
    assert writing.next(lagging, {other}) == SendCommit((other,)), "it was reported clean"


def test_a_silent_handoff_is_tried_once():
    state = placement(*DISKS)
    found = roles(state, BUCKET, NAME)
    down = with_disk(state, found.replicas[1], status="down")
    (handoff,) = roles(down, BUCKET, NAME).handoffs
    writing = silent(down, found.primary, handoff)
    assert writing.next(down, ()) == SendCommit((handoff,))
    writing.failed(handoff)
    (another,) = writing.next(down, ()).disks
    assert another != handoff


def test_a_silent_member_that_is_out_of_sync_is_asked_where_nobody_else_is_left():
    state = placement(*DISKS[:2])
    primary, other = roles(state, BUCKET, NAME).replicas
    lagging = with_disk(state, other, out_of_sync_with=frozenset((primary,)))
    writing = Writing(primary, BUCKET, NAME, 2, (other,))
    assert writing.next(lagging, ()) == SendCommit((other,)), "the bucket wants two copies at least"
    writing.failed(other)
    assert writing.next(lagging, ()) == SendCommit((other,))
    writing.committed(other)
    assert writing.next(lagging, ()) == Replicated((), (other,), 2)


def test_where_the_coordinator_refuses_the_member_is_tried_again():
    state = placement(*DISKS)
    writing, found = begin(state)
    other = found.replicas[1]
    for _ in range(3):
        for _ in range(2):
            assert writing.next(state, ()) == SendCommit((other,))
            writing.failed(other)
        assert writing.next(state, ()) == MarkOutOfSync(other)
    assert writing.next(state, ()) == SendCommit((other,))
    writing.committed(other)
    assert isinstance(writing.next(state, ()), Replicated)


def test_one_that_was_reported_clean_is_required_again():
    state = placement(*DISKS)
    writing, found = begin(state)
    other = found.replicas[1]
    lagging = with_disk(state, other, out_of_sync_with=frozenset((writing.disk,)))
    found = roles(lagging, BUCKET, NAME)
    assert required(lagging, found, writing.disk, ()) == set()
    assert required(lagging, found, writing.disk, {other}) == {other}


def test_a_handoff_takes_the_place_of_a_replica_that_is_down():
    writing, found, down, handoff = begin_with_one_down()
    assert writing.next(down, ()) == SendCommit((handoff,))
    writing.committed(handoff)
    assert writing.next(down, ()) == Replicated((found.replicas[1],), (handoff,), 2), "the replica gets it when it is back"


def test_a_handoff_that_cannot_be_reached_does_not_hold_up_the_write():
    writing, found, down, handoff = begin_with_one_down()
    for _ in range(2):
        assert writing.next(down, ()) == SendCommit((handoff,))
        writing.failed(handoff)
    told = writing.next(down, ())
    assert told.disks != (handoff,), "the next in the ranking takes its place"
    writing.failed(told.disks[0])
    writing.next(down, ())
    writing.failed(told.disks[0])
    assert writing.next(down, ()) == Replicated((found.replicas[1],), (), 1)


def test_the_least_number_of_copies_is_never_gone_below():
    writing, _, down, handoff = begin_with_one_down(least=2)
    asked = []
    for _ in range(20):
        told = writing.next(down, ())
        assert not isinstance(told, Replicated), "there is one copy"
        if isinstance(told, SendCommit):
            asked += told.disks
            for each in told.disks:
                writing.failed(each)
    assert asked.count(handoff) > 3
    assert len(set(asked)) == 2, "the next in the ranking was asked, too"
    writing.committed(handoff)
    assert isinstance(writing.next(down, ()), Replicated)


def test_another_primary_ends_it():
    state = placement(*DISKS)
    writing, _found = begin(state)
    assert writing.next(with_disk(state, writing.disk, status="down"), ()) == NotPrimary()


def test_with_one_copy_nobody_is_marked_out_of_sync():
    """While a slice moves: the new replica must have the row, since it is going to be read whatever it is behind of."""
    one = msgspec.structs.replace(placement(*DISKS, copies=1), copies={})
    replica = roles(one, BUCKET, NAME).replicas[0]
    moving = with_slices(one, SliceState(1, 2, "moving"), to=frozenset(DISKS) - {replica})
    writing, found = begin(moving)
    (other,) = found.writers
    for _ in range(6):
        told = writing.next(moving, ())
        assert told == SendCommit((other,)), told
        writing.failed(other)


def test_both_layouts_of_a_move_must_have_it():
    state = placement(*DISKS)
    replicas = set(roles(state, BUCKET, NAME).replicas)
    to = frozenset(DISKS) - {min(replicas)}
    moving = with_slices(state, SliceState(1, 2, "moving"), to=to)
    writing, found = begin(moving)
    assert set(found.members) > replicas
    assert writing.next(moving, ()) == SendCommit(found.writers)
    for each in found.writers[:-1]:
        writing.committed(each)
    assert writing.next(moving, ()) == Pause()
    writing.committed(found.writers[-1])
    assert isinstance(writing.next(moving, ()), Replicated)


def test_copies_that_are_added_are_written_at_once():
    state = msgspec.structs.replace(placement(*DISKS), copies={BUCKET: Copies(1, 2, 2)})
    writing, found = begin(state)
    assert writing.next(state, ()) == SendCommit(found.replicas[1:])


def test_who_is_marked_by_the_newest_step_is_required_until_all_know():
    before = placement(*DISKS)
    after = with_disk(before, "n2a", out_of_sync_with=frozenset(("n1a",)))
    assert marked_just_now(before, after, "n1a") == {"n2a"}
    assert marked_just_now(None, after, "n1a") == {"n2a"}, "what was before is not known"
    assert marked_just_now(after, with_disk(after, "n3a", status="down"), "n1a") == set()
    assert marked_just_now(before, after, "n3a") == set()
    back = with_disk(with_disk(before, "n2a", status="down"), "n2a", status="up", out_of_sync_with=frozenset(("n1a",)))
    assert marked_just_now(with_disk(before, "n2a", status="down"), back, "n1a") == set(), "nobody could read from it"


def test_two_disks_of_one_target_are_one_copy():
    state = placement("n1a", "n2a", "n2b")
    writing, found = begin(state)
    assert found.replicas == ("n2b", "n1a")
    writing.committed("n1a")
    writing.committed("n2a")  # beside the primary
    assert writing.next(state, ()) == Replicated((), ("n1a", "n2a"), 2)
