"""Weights of disks: what an operator says, and the moves that follow."""

from __future__ import annotations

import pytest
from harness import until
from stepped import Proxy, move_all, phases

from dfc.errors import NotFound
from dfc.placement.map import DiskEntry
from dfc.placement.mapped import placement_of
from dfc.proxy.admin import Administration
from dfc.registry import changes
from dfc.registry.changes import set_rebalance


async def test_another_weight_moves_objects(proxy: Proxy, administration: Administration) -> None:
    assert await administration.weigh("disk", "d2", 2.0) == {"d2": 2.0}
    await until(lambda: phases(proxy) == {"copying"})
    placement = placement_of(proxy.cluster.map)
    assert (placement.layouts[1].weights, placement.layouts[2].weights) == ({}, {"d2": 2.0})
    assert placement.layouts[1].disks == placement.layouts[2].disks
    await proxy.beats(0, 1, 2)
    assert await administration.weigh("node", "t2", 1.0) == {"d2": 1.0}
    await until(lambda: phases(proxy) == {"done"})
    assert placement_of(proxy.cluster.map).layouts == {3: placement.layouts[1]}, "as before, under another number"
    with pytest.raises(NotFound):
        await administration.weigh("disk", "t2", 1.0)


async def test_weights_wait_while_moves_are_paused(proxy: Proxy, administration: Administration) -> None:
    await proxy.cluster.change(set_rebalance(True, None))
    await administration.weigh("disk", "d2", 2.0)
    for _ in range(5):
        proxy.seconds += 1
        await proxy.beats(0, 1, 2)
    assert phases(proxy) == {"done"}
    await proxy.cluster.change(set_rebalance(False, None))
    await until(lambda: phases(proxy) == {"copying"})


async def test_a_target_shares_its_weight_among_disks_that_are_not_drained(
    proxy: Proxy, administration: Administration
) -> None:
    await proxy.beat(3, (DiskEntry(id="d3", weight=1.0), DiskEntry(id="d4", weight=3.0)))
    await until(lambda: "d4" in proxy.cluster.map.placed())
    assert await administration.weigh("node", "t3", 2.0) == {"d3": 0.5, "d4": 1.5}
    await proxy.cluster.change(changes.use_disks(["d4"], "out"))
    assert await administration.weigh("node", "t3", 6.0) == {"d3": 6.0}
    await proxy.cluster.change(changes.use_disks(["d3"], "out"))
    assert await administration.weigh("node", "t3", 5.0) == {"d3": 4.0, "d4": 1.0}


async def test_weights_say_of_which_share_the_counters_are(proxy: Proxy, administration: Administration) -> None:
    await proxy.cluster.create_bucket("two", 2, "fsync")
    await administration.weigh("disk", "d2", 2.0)
    await until(lambda: phases(proxy) == {"copying"})
    await move_all(proxy, 0, 1, 2, is_over=lambda: not proxy.cluster.map.is_moving)
    assert placement_of(proxy.cluster.map).layouts[2].weights == {"d2": 2.0}
    assert proxy.cluster.counted_share(proxy.cluster.bucket("two")) == 1.0
    await proxy.beat(2, leaving=True)
    await until(lambda: proxy.states() == ["up", "up", "down"])
    assert proxy.cluster.counted_share(proxy.cluster.bucket("two")) == pytest.approx(0.5)
