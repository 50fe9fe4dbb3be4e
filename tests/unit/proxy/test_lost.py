"""Disks that are away for too long are given up, and get objects again when they are back and have nothing useless."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from harness import until
from stepped import DOWN_S, Proxy, doing, phases, report

from dfc.errors import NotFound, TooFewDomains, Unavailable
from dfc.placement.map import DiskEntry
from dfc.placement.mapped import placement_of
from dfc.placement.roles import LayoutSpec
from dfc.proxy.duties import LostDisks
from dfc.registry.changes import expect_by
from dfc.registry.messages import ClearedReport

OUT_S = 600.0
ALL = frozenset(("d0", "d1", "d2"))


@pytest.fixture
async def duty(proxy: Proxy) -> AsyncIterator[LostDisks]:
    """The bucket "two" has two copies."""
    await proxy.cluster.create_bucket("two", 2, "fsync")
    found = LostDisks(proxy.cluster, OUT_S)
    async with doing(proxy.registry, found.run):
        yield found


async def pass_s(proxy: Proxy, seconds: float, *numbers: int) -> None:
    """Time passes, and only these targets are heard."""
    for _ in range(int(seconds / 5)):
        proxy.seconds += 5
        await proxy.beats(*numbers)
        await asyncio.sleep(0.005)


def marked(proxy: Proxy) -> set[str]:
    return {disk for disk, owner in proxy.cluster.map.placed().items() if owner.disk.evicted}


def newest(proxy: Proxy) -> LayoutSpec:
    placement = placement_of(proxy.cluster.map)
    return placement.layouts[max(placement.layouts)]


async def lose_d2(proxy: Proxy) -> None:
    await pass_s(proxy, DOWN_S + OUT_S + 20, 0, 1)
    await until(lambda: newest(proxy) == LayoutSpec(ALL, frozenset(("d2",))))


async def heal(proxy: Proxy) -> None:
    """All that is reported is handed over."""
    for _ in range(3 * 16 + 5):
        await report(proxy, "d0", "d1")
        await pass_s(proxy, 5, 0, 1)
        if phases(proxy) == {"done"}:
            return
    raise AssertionError("not healed")


async def test_a_disk_that_is_away_for_long_is_evicted(proxy: Proxy, duty: LostDisks) -> None:
    await pass_s(proxy, DOWN_S + OUT_S - 100, 0, 1)
    assert marked(proxy) == set()
    await pass_s(proxy, 120, 0, 1)
    await until(lambda: newest(proxy) == LayoutSpec(ALL, frozenset(("d2",))))
    assert marked(proxy) == {"d2"}
    await heal(proxy)
    assert placement_of(proxy.cluster.map).layouts.keys() == {2}
    with pytest.raises(Unavailable):
        proxy.cluster.live_targets()  # bucket "b" has one copy of each object, and d2 has some of them
    two = proxy.cluster.bucket("two")
    assert [node.id for node in proxy.cluster.targets_of(two.id)] == ["t0", "t1"]
    assert proxy.cluster.counted_share(two) == 1.0
    with pytest.raises(TooFewDomains, match="has 2"):
        proxy.cluster.check_copies(3)
    with pytest.raises(TooFewDomains):
        proxy.cluster.check_use(["d1"], "out")


async def test_a_target_that_is_expected_back_is_not_evicted(proxy: Proxy) -> None:
    """Until it has been away for so long after the time that was said, by the wall clock."""
    await proxy.cluster.create_bucket("two", 2, "fsync")
    await proxy.cluster.change(expect_by("t2", 5000))
    wall_s, duty = 4000.0, LostDisks(proxy.cluster, OUT_S, lambda: wall_s)
    async with doing(proxy.registry, duty.run):
        await pass_s(proxy, DOWN_S + OUT_S + 60, 0, 1)
        assert marked(proxy) == set()
        wall_s = 5000.0
        await pass_s(proxy, OUT_S - 20, 0, 1)
        assert marked(proxy) == set(), "it may be back, and have something to be repaired"
        await pass_s(proxy, 40, 0, 1)
        await until(lambda: marked(proxy) == {"d2"})


async def test_a_disk_that_fails_is_evicted_whatever_is_expected_of_its_target(proxy: Proxy) -> None:
    await proxy.cluster.create_bucket("two", 2, "fsync")
    await proxy.cluster.change(expect_by("t2", 5000))
    async with doing(proxy.registry, LostDisks(proxy.cluster, OUT_S, lambda: 4000.0).run):
        for _ in range(int(OUT_S / 5) + 10):
            proxy.seconds += 5
            await proxy.beats(0, 1)
            await proxy.beat(2, (DiskEntry(id="d2", weight=1.0, state="failed"),))
            await asyncio.sleep(0.005)
        await until(lambda: marked(proxy) == {"d2"})
        assert proxy.states()[2] == "up"


async def test_without_buckets_of_several_copies_nothing_is_evicted(proxy: Proxy) -> None:
    async with doing(proxy.registry, LostDisks(proxy.cluster, OUT_S).run):
        await pass_s(proxy, DOWN_S + OUT_S + 100, 0, 1)
        assert marked(proxy) == set()


async def test_where_it_is_switched_off_nothing_is_evicted(proxy: Proxy, duty: LostDisks) -> None:
    duty._out_after_s = 0.0
    await pass_s(proxy, DOWN_S + OUT_S + 100, 0, 1)
    assert marked(proxy) == set()


async def test_two_that_may_have_both_copies_are_not_evicted(proxy: Proxy, duty: LostDisks) -> None:
    await pass_s(proxy, DOWN_S + OUT_S + 100, 0)
    assert proxy.states() == ["up", "down", "down"]
    assert marked(proxy) == set()


async def test_one_that_is_back_before_anything_came_of_it_is_as_before(proxy: Proxy, duty: LostDisks) -> None:
    proxy.steps.may_move = lambda: False
    await pass_s(proxy, DOWN_S + OUT_S + 20, 0, 1)
    await until(lambda: marked(proxy) == {"d2"})
    await pass_s(proxy, 10, 0, 1, 2)
    await until(lambda: marked(proxy) == set())
    assert newest(proxy) == LayoutSpec(ALL)


async def test_one_that_is_back_gets_objects_when_it_has_nothing_stale(proxy: Proxy, duty: LostDisks) -> None:
    await lose_d2(proxy)
    await heal(proxy)
    await pass_s(proxy, 10, 0, 1, 2)
    step = proxy.cluster.map.step
    assert marked(proxy) == {"d2"}
    with pytest.raises(Unavailable):
        await duty.report_cleared(ClearedReport(disk="d2", step=step - 1))
    with pytest.raises(NotFound):
        await duty.report_cleared(ClearedReport(disk="d9", step=step))
    await duty.report_cleared(ClearedReport(disk="d1", step=step))
    assert marked(proxy) == {"d2"}
    await duty.report_cleared(ClearedReport(disk="d2", step=step))
    await until(lambda: newest(proxy) == LayoutSpec(ALL))
    assert phases(proxy) == {"copying"}


async def test_a_report_that_a_step_overtakes_counts_for_nothing(
    proxy: Proxy, duty: LostDisks, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lose_d2(proxy)
    await pass_s(proxy, 10, 0, 1, 2)
    step, change, held = proxy.cluster.map.step, proxy.cluster.change, list[bool]()

    async def late(made: Any, **given: Any) -> Any:
        if not held:  # the report; the step itself comes this way, too
            held.append(True)
            proxy.steps._planner.mark_out_of_sync("d0", "d1")
            await until(lambda: proxy.cluster.map.step > step)
        return await change(made, **given)

    monkeypatch.setattr(proxy.cluster, "change", late)
    reporting = asyncio.create_task(duty.report_cleared(ClearedReport(disk="d2", step=step)))
    await pass_s(proxy, 10, 0, 1, 2)
    await reporting
    assert (held, marked(proxy)) == ([True], {"d2"})
