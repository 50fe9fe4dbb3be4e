"""Weights of disks in a registry."""

from __future__ import annotations

import msgspec
import pytest
from registering import Kept

from dfc.errors import BadRequest, NotFound
from dfc.limits import WEIGHT_MAX, WEIGHT_MIN
from dfc.placement.map import DiskEntry, LayoutEntry
from dfc.placement.mapped import wanted_layout
from dfc.registry import changes
from dfc.registry.changes import weigh_disks


@pytest.fixture
def registry() -> Kept:
    found = Kept()
    found.say("t1", (DiskEntry(id="d1", weight=1.0), DiskEntry(id="d2", weight=3.0)))
    found.say("t2", (DiskEntry(id="d3", weight=4.0),))
    found.create_bucket("b")
    return found


def weights(registry: Kept) -> dict[str, float]:
    return {disk.id: disk.wanted_weight for node in registry.map.nodes for disk in node.disks}


def test_a_disk_gets_another_weight(registry: Kept) -> None:
    step, placed = registry.map.step, registry.map.owner(registry.map.buckets[0], "x")
    registry.apply(weigh_disks(["d3"], 2.0))
    assert (weights(registry), registry.map.step) == ({"d1": 0.0, "d2": 0.0, "d3": 2.0}, step)
    assert [each.number for each in registry.map.layouts] == [1], "where objects are is written down"
    assert registry.map.owner(registry.map.buckets[0], "x").disk.id == placed.disk.id, "nothing has been moved yet"
    assert wanted_layout(registry.map).weights == {"d3": 2.0}
    version = registry.map.version
    registry.apply(weigh_disks(["d3"], 2.0))
    assert registry.map.version == version
    registry.say("t2", (DiskEntry(id="d3", weight=9.0),), url="http://moved:1")
    registry.say("t9", (DiskEntry(id="d3", weight=9.0),))
    assert (weights(registry)["d3"], registry.map.node("t9").disks[0].weight) == (2.0, 4.0), "whatever its node says"
    registry.apply(weigh_disks(["d3"], 4.0))
    assert (weights(registry)["d3"], wanted_layout(registry.map)) == (0.0, None), "that with which it joined"


def test_disks_of_a_target_keep_their_proportions(registry: Kept) -> None:
    registry.apply(weigh_disks(["d1", "d2"], 8.0))
    assert weights(registry) == {"d1": 2.0, "d2": 6.0, "d3": 0.0}
    registry.apply(weigh_disks(["d2"], 2.0))
    registry.apply(weigh_disks(["d1", "d2"], 1.0))
    assert weights(registry) == {"d1": 0.5, "d2": 0.5, "d3": 0.0}


def test_weights_have_bounds(registry: Kept) -> None:
    before = registry.map
    with pytest.raises(BadRequest, match=r"disk d1 would get the weight 7\.5e-07, and weights are from 1e-06 to 1e"):
        registry.apply(weigh_disks(["d1", "d2"], 3 * WEIGHT_MIN))
    with pytest.raises(BadRequest):
        registry.apply(weigh_disks(["d1"], 2 * WEIGHT_MAX))
    with pytest.raises(NotFound, match="disk d9"):
        registry.apply(weigh_disks(["d9"], 1.0))
    assert registry.map == before
    registry.apply(weigh_disks(["d1"], WEIGHT_MAX))
    registry.apply(weigh_disks(["d2"], WEIGHT_MIN))


def test_a_disk_that_is_removed_leaves_the_weights_of_layouts(registry: Kept) -> None:
    registry.apply(weigh_disks(["d3"], 2.0))
    registry.remove_bucket("b", registry.map.buckets[0].id)
    layouts = (LayoutEntry(number=1, disks=("d1", "d2", "d3"), weights={"d1": 2.0, "d3": 2.0}),)
    registry.state = msgspec.structs.replace(registry.state, map=msgspec.structs.replace(registry.map, layouts=layouts))
    registry.mark_down("t2")
    registry.apply(changes.remove_node("t2"))
    assert (registry.map.layouts[0].disks, registry.map.layouts[0].weights) == (("d1", "d2"), {"d1": 2.0})
