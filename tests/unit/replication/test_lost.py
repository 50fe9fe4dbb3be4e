"""When disks may be given up, and what they drop when they are back."""

from __future__ import annotations

import msgspec
import pytest
from placements import BUCKET, placement, with_disk, with_slices

from dfc.placement.roles import Copies, LayoutSpec, SliceState, replicas_of, roles
from dfc.replication.recovery import (
    Delivery,
    delivery,
    is_evicted,
    is_lost_alone,
    is_stale,
    needs_tombstones,
    next_to_evict,
)

DISKS = ("n1a", "n1b", "n2a", "n3a")
NAMES = [str(number) for number in range(50)]
TWO = Copies.of(2)


def test_disks_of_one_domain_are_evicted_together():
    state = placement(*DISKS)
    assert is_lost_alone(state, ())
    assert is_lost_alone(state, ("n1a",))
    assert is_lost_alone(state, ("n1a", "n1b"))
    assert not is_lost_alone(state, ("n1a", "n2a")), "both copies of some object may be there"


@pytest.mark.parametrize("change", [{"status": "down"}, {"status": "failed"}, {"out_of_sync_with": frozenset(("n2a",))}])
def test_all_others_have_to_be_well(change):
    state = placement(*DISKS)
    assert not is_lost_alone(with_disk(state, "n3a", **change), ("n1a",))
    assert is_lost_alone(with_disk(state, "n1b", **change), ("n1a",)), "one of the same domain has no copies of its objects"


def test_by_every_layout_there_is_another_domain():
    state = placement(*DISKS)
    assert not is_lost_alone(msgspec.structs.replace(state, layouts={1: LayoutSpec(frozenset(("n1a", "n1b")))}), ("n1a",))
    both = {1: LayoutSpec(frozenset(DISKS)), 2: LayoutSpec(frozenset(("n1a", "n1b")))}
    assert not is_lost_alone(msgspec.structs.replace(state, layouts=both), ("n1a",))
    gone = LayoutSpec(frozenset(("n1a", "n2a", "n3a")), frozenset(("n2a", "n3a")))
    assert not is_lost_alone(msgspec.structs.replace(state, layouts={1: gone}), ("n1a",))


def test_which_are_evicted_next():
    state = placement(*DISKS)
    assert next_to_evict(state, ()) == set()
    assert next_to_evict(state, ("n1a", "n1b", "n2a")) == {"n1a", "n1b"}
    assert next_to_evict(with_disk(state, "n3a", status="down"), ("n1a", "n3a")) == {"n3a"}, "the others have all"
    assert next_to_evict(evicted(), ("n1a",)) == set(), "it is already"


def evicted(copies: Copies = TWO, disk: str = "n1a"):
    state = with_disk(placement("n1a", "n2a", "n3a"), disk, status="down")
    spec = LayoutSpec(frozenset(state.disks), frozenset((disk,)))
    return msgspec.structs.replace(state, layouts={1: spec}, copies={BUCKET: copies})


def test_objects_with_one_copy_stay_where_they_are():
    one, two, raised = evicted(Copies.of(1)), evicted(), evicted(Copies(1, 2, 2))
    before = {name: replicas_of(placement("n1a", "n2a", "n3a", copies=1), BUCKET, name) for name in NAMES}
    assert {replica for replicas in before.values() for replica in replicas} == {"n1a", "n2a", "n3a"}
    for name, replicas in before.items():
        assert roles(one, BUCKET, name).replicas == replicas
        assert "n1a" not in roles(two, BUCKET, name).replicas
        assert roles(raised, BUCKET, name).replicas[:1] == replicas, "the only complete copy is there"
        assert (roles(raised, BUCKET, name).primary is None) == (replicas == ("n1a",))


def test_what_is_stale_on_a_disk_that_was_evicted():
    back = with_disk(evicted(), "n1a", status="up")
    assert is_evicted(back, "n1a")
    assert not is_evicted(back, "n2a")
    assert all(is_stale(back, roles(back, BUCKET, name), "n1a") for name in NAMES)
    assert not any(is_stale(back, roles(back, BUCKET, name), "n2a") for name in NAMES)
    one = msgspec.structs.replace(back, copies={})
    assert {is_stale(one, roles(one, BUCKET, name), "n1a") for name in NAMES} == {True, False}
    nobody = with_disk(with_disk(back, "n2a", status="down"), "n3a", status="down")
    assert not any(is_stale(nobody, roles(nobody, BUCKET, name), "n1a") for name in NAMES), "nobody can answer"


def test_nobody_keeps_hints_for_a_disk_that_was_evicted():
    state = evicted()
    found = {delivery(state, roles(state, BUCKET, name), "n2a", "n1a") for name in NAMES}
    assert found == {Delivery.DROP}
    away = with_disk(placement("n1a", "n2a", "n3a"), "n1a", status="down")
    found = {
        delivery(away, roles(away, BUCKET, name), "n2a", "n1a") for name in NAMES if "n1a" in replicas_of(away, BUCKET, name)
    }
    assert found == {Delivery.KEEP}


def test_when_tombstones_are_needed():
    state = placement("n1a", "n2a", "n3a")
    assert not needs_tombstones(state)
    assert needs_tombstones(with_disk(state, "n1a", status="down"))
    assert needs_tombstones(with_disk(state, "n1a", out_of_sync_with=frozenset(("n2a",))))
    assert not needs_tombstones(evicted()), "it drops all that is not its own"
    assert needs_tombstones(evicted(Copies(1, 2, 2))), "it is a replica, since only one copy may be read"
    moving = with_slices(state, SliceState(1, 2, "copying"), to=frozenset(("n1a", "n2a")))
    assert needs_tombstones(moving), "objects may be where they do not go to any more"
    half = msgspec.structs.replace(moving, layouts={1: state.layouts[1], 2: evicted().layouts[1]})
    assert needs_tombstones(with_disk(half, "n1a", status="down")), "not by all layouts"
