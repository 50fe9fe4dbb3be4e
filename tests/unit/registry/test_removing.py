"""Lost disks that are removed for good, in a registry."""

from __future__ import annotations

import msgspec
import pytest
from registering import Kept, said

from dfc.errors import Conflict, NotFound
from dfc.limits import REMOVED_DISKS_MAX
from dfc.placement.map import DiskEntry
from dfc.placement.mapped import placement_of, wanted_layout
from dfc.registry.changes import check_registration, forgettable, join, remove_lost
from dfc.registry.changes import forget_removed_disks as forget_removed
from dfc.registry.messages import is_known


@pytest.fixture
def registry() -> Kept:
    """Three targets with two disks each; t2 is down."""
    found = Kept()
    for number in range(3):
        found.say(f"t{number}", disks_of(number))
    found.create_bucket("b", copies=2)
    found.mark_down("t2")
    return found


def disks_of(number: int, **fields: str) -> tuple[DiskEntry, ...]:
    return tuple(DiskEntry(id=f"d{number}{letter}", weight=1.0, incarnation="first", **fields) for letter in "ab")


def move(registry: Kept) -> None:
    """Take all steps of the move that is wanted."""
    spec = wanted_layout(registry.map)
    assert spec is not None
    registry.move(spec)


def test_a_lost_target_is_forgotten_when_all_is_moved(registry: Kept) -> None:
    registry.apply(remove_lost(["d2a", "d2b"]))
    assert all(disk.evicted and disk.removing for disk in registry.map.node("t2").disks)
    for _ in range(2):  # it is given up, then it leaves
        assert forget_removed(registry.state) is registry.state
        move(registry)
    assert wanted_layout(registry.map) is None
    assert forgettable(registry.map) == {"d2a", "d2b"}
    step = registry.map.step
    registry.apply(forget_removed)
    assert (registry.map.node("t2"), registry.map.removed_disks, registry.map.step) == (None, ("d2a", "d2b"), step)
    assert placement_of(registry.map).disks.keys() == {"d0a", "d0b", "d1a", "d1b"}
    assert all(not disk.out_of_sync_with for disk in placement_of(registry.map).disks.values())
    assert registry.say("t9", ("d9",)) == 4, "its number is not given again"


def test_one_of_two_disks(registry: Kept) -> None:
    registry.say("t2", disks_of(2))
    registry.say("t2", (disks_of(2)[0], disks_of(2, state="failed")[1]))
    registry.apply(remove_lost(["d2b"]))
    move(registry)
    move(registry)
    registry.apply(forget_removed)
    assert [disk.id for disk in registry.map.node("t2").disks] == ["d2a"]
    assert placement_of(registry.map).layout(max(placement_of(registry.map).layouts)).best("b", "x") in {
        disk.id for node in registry.map.nodes for disk in node.disks
    }
    version = registry.map.version
    registry.say("t2", (disks_of(2)[0], disks_of(2, state="failed")[1]))
    registry.say("t2", disks_of(2))
    assert registry.map.version == version, "its target goes on, and says what it likes"


def test_only_disks_that_are_away(registry: Kept) -> None:
    with pytest.raises(Conflict, match="disk d1a is up: drain it"):
        registry.apply(remove_lost(["d1a", "d2a"]))
    with pytest.raises(NotFound):
        registry.apply(remove_lost(["d2a", "d7"]))


def check_refused(registry: Kept) -> None:
    """A target that starts with one of them, alone or with others."""
    before = registry.map
    for node, disks in (("t2", disks_of(2)), ("t9", (*disks_of(2)[:1], "d9"))):
        starting = said(node, disks, starting=True)
        with pytest.raises(Conflict, match="was removed from this cluster for good"):
            check_registration(registry.map, starting)
        with pytest.raises(Conflict, match="was removed from this cluster for good"):
            registry.apply(join(starting))
    assert registry.map == before


def test_it_is_refused_from_then_on(registry: Kept) -> None:
    registry.apply(remove_lost(["d2a", "d2b"]))
    check_refused(registry)
    move(registry)
    move(registry)
    registry.apply(forget_removed)
    check_refused(registry)
    heartbeat = said("t1", (*disks_of(1), *disks_of(2)))
    assert is_known(registry.map, msgspec.structs.replace(heartbeat, labels=registry.map.node("t1").labels))
    registry.say("t1", (*disks_of(1), *disks_of(2)), url="http://moved:1")
    assert [disk.id for disk in registry.map.node("t1").disks] == ["d1a", "d1b"]


def test_only_so_many_ids_are_kept(registry: Kept) -> None:
    many = tuple(f"x{number}" for number in range(REMOVED_DISKS_MAX))
    registry.state = msgspec.structs.replace(registry.state, map=msgspec.structs.replace(registry.map, removed_disks=many))
    registry.apply(remove_lost(["d2a", "d2b"]))
    move(registry)
    move(registry)
    registry.apply(forget_removed)
    assert registry.map.removed_disks == (*many[2:], "d2a", "d2b")
