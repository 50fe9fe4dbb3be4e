"""Roles of disks for a name: who holds it, who is read, who decides, who stands in."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from placements import BUCKET, place, placement, with_disk, with_slices

from dfc.placement.roles import (
    Copies,
    LayoutSpec,
    Placement,
    Roles,
    SliceState,
    future_replicas,
    primary_among,
    replicas_of,
    roles,
    roles_once,
    slice_number,
)

DISKS = ("n1a", "n1b", "n2a", "n2b", "n3a", "n3b")
NAMES = [f"train-{number:06d}.tar" for number in range(40)]


def of(state: Placement, name: str = NAMES[0]) -> Roles:
    return roles(state, BUCKET, name)


def test_replicas_lie_on_different_nodes_and_the_first_is_primary():
    state = placement(*DISKS)
    for name in NAMES:
        found = of(state, name)
        assert len(found.replicas) == 2
        assert len({each[:2] for each in found.replicas}) == 2
        assert found.readers == found.members == found.replicas == found.everywhere
        assert (found.primary, found.handoffs) == (found.replicas[0], ())
        assert found.writers == found.replicas[1:]


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("phase", ["done", "copying", "moving", "moved"])
def test_walks_find_what_roles_say(copies, phase):
    """Without working out the rest of them."""
    state = with_disk(placement(*DISKS[:-1], DISKS[-1], copies=copies), "n2a", out_of_sync_with=frozenset(("n1a",)))
    state = with_disk(state, "n1b", status="down")
    to = None if phase == "done" else 2
    state = with_slices(state, SliceState(1, to, phase), to=frozenset(DISKS[1:]))
    for name in NAMES:
        found = of(state, name)
        assert replicas_of(state, BUCKET, name) == found.replicas
        assert primary_among(state, BUCKET, found.replicas) == found.primary
        assert roles_once(state, BUCKET, name) == found
        for disk in DISKS:
            is_asked = phase == "copying" and disk == found.primary
            lacking = [each for each in found.everywhere if is_asked and each not in found.replicas]
            assert future_replicas(state, disk, BUCKET, [name]) == [(each, BUCKET, name) for each in lacking]
    assert future_replicas(state, "removed", BUCKET, NAMES) == [], "its target may have it still"


def test_replicas_lie_in_different_zones():
    zones = {"n1": "zone a", "n2": "zone a", "n3": "zone b"}
    state = placement(*(place(each, domain=zones[each[:2]]) for each in DISKS))
    for name in NAMES:
        assert {zones[each[:2]] for each in of(state, name).replicas} == {"zone a", "zone b"}


def test_a_disk_that_is_down_is_replaced_by_the_next_in_the_ranking():
    state = placement(*DISKS)
    for name in NAMES:
        first, second = of(state, name).replicas
        found = of(with_disk(state, first, status="down"), name)
        assert (found.replicas, found.readers, found.primary) == ((first, second), (second,), second)
        assert found.members == (second,)
        (handoff,) = found.handoffs
        assert handoff[:2] != second[:2]
        ranking = [each for each in state.layout(1).ranking(BUCKET, name) if each not in (first, second)]
        assert handoff == next(each for each in ranking if each[:2] != second[:2])


def test_a_disk_that_is_behind_is_written_and_not_read():
    state = placement(*DISKS)
    first, second = of(state).replicas
    found = of(with_disk(state, first, out_of_sync_with=frozenset(("n3a",))))
    assert (found.readers, found.primary) == ((second,), second)
    assert found.members == (first, second)
    assert found.handoffs == ()


def test_without_a_reader_a_name_is_unavailable():
    state = placement(*DISKS)
    first, second = of(state).replicas
    found = of(with_disk(with_disk(state, first, status="down"), second, out_of_sync_with=frozenset((first,))))
    assert (found.readers, found.primary) == ((), None)


def test_the_only_copy_is_read_although_its_disk_is_behind():
    state = placement(*DISKS, copies=1)
    (replica,) = of(state).replicas
    assert of(with_disk(state, replica, out_of_sync_with=frozenset(DISKS) - {replica})).primary == replica
    down = of(with_disk(state, replica, status="down"))
    assert (down.primary, down.members, down.handoffs) == (None, (), ())


def test_a_failed_disk_is_no_member():
    state = placement(*DISKS)
    first, second = of(state).replicas
    found = of(with_disk(state, first, status="failed"))
    assert found.members == (second,)
    assert len(found.handoffs) == 1


def test_a_gone_disk_is_no_replica_unless_it_has_the_only_copy():
    state = placement(*DISKS)
    first, second = of(state).replicas
    spec = LayoutSpec(frozenset(DISKS), frozenset((first,)))
    gone = msgspec.structs.replace(state, layouts={1: spec})
    found = of(gone)
    assert first not in found.replicas
    assert found.replicas[0] == second or second in found.replicas
    assert of(msgspec.structs.replace(gone, copies={})).replicas == (first,)


def test_in_a_move_writes_go_to_both_and_reads_to_one():
    state = placement(*DISKS)
    to = frozenset(("n1a", "n2a", "n3a"))
    for name in NAMES:
        old = of(state, name).replicas
        copying = of(with_slices(state, SliceState(1, 2, "copying"), to=to), name)
        moving = of(with_slices(state, SliceState(1, 2, "moving"), to=to), name)
        moved = of(with_slices(state, SliceState(1, 2, "moved"), to=to), name)
        new = moved.replicas
        assert set(new) <= to
        assert copying.replicas == copying.members == old
        assert moving.replicas == old
        assert moving.primary == old[0]
        assert moved.primary == new[0]
        for found in (moving, moved):
            assert set(found.members) == {*old, *new}
        assert set(copying.everywhere) == set(moving.everywhere) == set(moved.everywhere) == {*old, *new}


def test_while_copies_are_added_they_are_written_and_not_read():
    found = of(msgspec.structs.replace(placement(*DISKS), copies={BUCKET: Copies(1, 2, 2)}))
    assert found.readers == found.replicas[:1]
    assert found.members == found.replicas
    assert len(found.replicas) == 2


@given(st.sets(st.sampled_from(DISKS)), st.sets(st.sampled_from(DISKS)), st.integers(1, 3), st.sampled_from(NAMES))
def test_roles_fit_together(down, out_of_sync_with, copies, name):
    state = placement(*DISKS, copies=copies)
    for each in down:
        state = with_disk(state, each, status="down")
    for each in out_of_sync_with - down:
        state = with_disk(state, each, out_of_sync_with=frozenset(DISKS) - {each})
    found = of(state, name)
    assert set(found.readers) <= set(found.members) <= set(found.replicas)
    assert set(found.members) == set(found.replicas) - down
    assert not set(found.handoffs) & (set(found.replicas) | down)
    assert found.primary == (found.readers[0] if found.readers else None)
    nodes_up = {each[:2] for each in set(DISKS) - down}
    if copies > 1:
        present = {each[:2] for each in (*found.members, *found.handoffs)}
        assert len(present) == len(found.members) + len(found.handoffs) == min(copies, len(nodes_up))


def test_leaving_a_disk_out_moves_only_its_names():
    whole = placement(*DISKS)
    for gone in DISKS:
        less = msgspec.structs.replace(whole, layouts={1: LayoutSpec(frozenset(DISKS), frozenset((gone,)))})
        for name in NAMES:
            before, after = of(whole, name).replicas, of(less, name).replicas
            assert before == after or gone in before


def test_slices_are_even_and_depend_on_bucket_and_name():
    counts = [0] * 256
    for number in range(20_000):
        counts[slice_number(BUCKET, f"x-{number}")] += 1
    assert min(counts) > 30
    assert len({slice_number(bucket, "x") for bucket in map(str, range(50))}) > 20
    state = placement(*DISKS, slices=4)
    assert all(state.slice_of(BUCKET, name) == slice_number(BUCKET, name) // 64 for name in NAMES)


def test_roles_are_remembered_with_their_placement():
    state = placement(*DISKS)
    assert of(state) is of(state)
    assert of(with_disk(state, "n1a", status="down")) is not of(state)


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_every_combination_of_disks_that_are_up_has_a_writer_or_none(copies):
    for size in range(len(DISKS) + 1):
        for up in itertools.combinations(DISKS, size):
            state = placement(*DISKS, copies=copies)
            for each in set(DISKS) - set(up):
                state = with_disk(state, each, status="down")
            found = of(state)
            assert found.primary is None or found.primary in up
