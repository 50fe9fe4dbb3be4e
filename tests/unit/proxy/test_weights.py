"""Weights of disks: what an operator says, and the moves that follow."""

from __future__ import annotations

from typing import Any

import pytest
from registry_conformance import until
from stepped import Proxy, phases, report

from dfc.errors import NotFound
from dfc.placement.map import DiskEntry
from dfc.placement.mapped import placement_of
from dfc.proxy.admin import Administration
from dfc.registry import changes
from dfc.registry.changes import set_rebalance


def administration(proxy: Proxy) -> Administration:
    unused: Any = None
    return Administration(proxy.cluster, unused, unused, unused, unused, "p1")


async def test_another_weight_moves_objects(proxy: Proxy) -> None:
    assert await administration(proxy).weigh("disk", "d2", 2.0) == {"d2": 2.0}
    await until(lambda: phases(proxy) == {"copying"})
    placement = placement_of(proxy.cluster.map)
    assert (placement.layouts[1].weights, placement.layouts[2].weights) == ({}, {"d2": 2.0})
    assert placement.layouts[1].disks == placement.layouts[2].disks
    for number in range(3):
        await proxy.beat(number)
    assert await administration(proxy).weigh("node", "t2", 1.0) == {"d2": 1.0}
    await until(lambda: phases(proxy) == {"done"})
    assert placement_of(proxy.cluster.map).layouts == {3: placement.layouts[1]}, "as before, under another number"
    with pytest.raises(NotFound):
        await administration(proxy).weigh("disk", "t2", 1.0)


async def test_weights_wait_while_moves_are_paused(proxy: Proxy) -> None:
    await proxy.cluster.change(set_rebalance(True, None))
    await administration(proxy).weigh("disk", "d2", 2.0)
    for _ in range(5):
        proxy.seconds += 1
        for number in range(3):
            await proxy.beat(number)
    assert phases(proxy) == {"done"}
    await proxy.cluster.change(set_rebalance(False, None))
    await until(lambda: phases(proxy) == {"copying"})


async def test_a_target_shares_its_weight_among_disks_that_are_not_drained(proxy: Proxy) -> None:
    await proxy.beat(3, (DiskEntry(id="d3", weight=1.0), DiskEntry(id="d4", weight=3.0)))
    await until(lambda: "d4" in proxy.cluster.map.placed())
    assert await administration(proxy).weigh("node", "t3", 2.0) == {"d3": 0.5, "d4": 1.5}
    await proxy.cluster.change(changes.use_disks(["d4"], "out"))
    assert await administration(proxy).weigh("node", "t3", 6.0) == {"d3": 6.0}
    await proxy.cluster.change(changes.use_disks(["d3"], "out"))
    assert await administration(proxy).weigh("node", "t3", 5.0) == {"d3": 4.0, "d4": 1.0}


async def test_weights_say_of_which_share_the_counters_are(proxy: Proxy) -> None:
    await proxy.cluster.create_bucket("two", 2, "fsync")
    await administration(proxy).weigh("disk", "d2", 2.0)
    await until(lambda: phases(proxy) == {"copying"})
    for _ in range(300):
        proxy.seconds += 0.3
        for number in range(3):
            await proxy.beat(number)
        await report(proxy, "d0", "d1", "d2")
        if not proxy.cluster.map.is_moving:
            break
    assert placement_of(proxy.cluster.map).layouts[2].weights == {"d2": 2.0}
    assert proxy.cluster.counted_share(proxy.cluster.bucket("two")) == 1.0
    await proxy.beat(2, leaving=True)
    await until(lambda: proxy.states() == ["up", "up", "down"])
    assert proxy.cluster.counted_share(proxy.cluster.bucket("two")) == pytest.approx(0.5)
