"""Lost disks are removed for good: what an operator says, what is refused, and what follows."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from harness import until
from stepped import Proxy, doing, move_all, phases

from dfc.errors import Conflict, NotFound, TooFewDomains, WouldLoseObjects
from dfc.placement.map import DiskEntry
from dfc.placement.mapped import placement_of
from dfc.placement.roles import LayoutSpec
from dfc.proxy.admin import Administration
from dfc.proxy.duties import LostDisks
from dfc.registry.changes import mark_evicted
from dfc.registry.messages import DiskNumbers


@pytest.fixture
async def duty(proxy: Proxy) -> AsyncIterator[None]:
    """It gives up nothing by itself."""
    async with doing(proxy.registry, LostDisks(proxy.cluster, 0).run):
        yield


async def lose_t2(proxy: Proxy, objects: int = 0) -> None:
    """It leaves, and has so many objects with one copy."""
    await proxy.beat(2, numbers=(DiskNumbers(id="d2", alone=objects, first=9),))
    await proxy.beat(2, leaving=True)
    await until(lambda: proxy.states() == ["up", "up", "down"])


async def until_forgotten(proxy: Proxy) -> None:
    await move_all(proxy, 0, 1, is_over=lambda: "d2" not in proxy.cluster.map.placed())


async def test_a_lost_target_is_removed_for_good(proxy: Proxy, administration: Administration, duty: None) -> None:
    await lose_t2(proxy)
    with pytest.raises(Conflict, match="disk d2 may hold objects, and has not been evicted"):
        await administration.remove("node", "t2")
    await proxy.cluster.change(mark_evicted(["d2"], evicted=True))
    assert await administration.remove("node", "t2") == ["d2"]
    assert await administration.remove("disk", "d2") == ["d2"], "it may be said again"
    for again in (administration.use("disk", "d2", "in"), administration.weigh("node", "t2", 5.0)):
        with pytest.raises(Conflict, match="being removed for good"):
            await again
    await until_forgotten(proxy)
    placement = placement_of(proxy.cluster.map)
    assert (phases(proxy), [*placement.layouts.values()]) == ({"done"}, [LayoutSpec(frozenset(("d0", "d1")))])
    assert (proxy.states(), proxy.cluster.map.removed_disks) == (["up", "up"], ("d2",))
    assert proxy.cluster.live_targets(), "listings are complete again"
    with pytest.raises(NotFound):
        await administration.remove("node", "t2")
    with pytest.raises(Conflict, match="disk d2 was removed"):
        await proxy.beat(2, starting=True)


async def test_objects_with_one_copy_are_not_lost_unasked(proxy: Proxy, administration: Administration, duty: None) -> None:
    """Nothing was given up here, since all buckets have one copy."""
    await lose_t2(proxy, objects=7)
    for kind, subject in (("disk", "d2"), ("node", "t2")):
        with pytest.raises(Conflict):
            await administration.remove(kind, subject)
    await proxy.cluster.change(mark_evicted(["d2"], evicted=True))
    with pytest.raises(WouldLoseObjects, match="7 objects in buckets with one copy are on disk d2"):
        await administration.remove("disk", "d2")
    assert not proxy.cluster.map.placed()["d2"].disk.removing
    await proxy.cluster.change(mark_evicted(["d2"], evicted=False))
    assert await administration.remove("disk", "d2", accept_loss=True) == ["d2"]
    await until_forgotten(proxy)


async def test_a_proxy_that_does_not_know_what_is_lost_says_so(
    proxy: Proxy, administration: Administration, duty: None
) -> None:
    """It has heard only that the target starts, which does not know yet what it has."""
    await proxy.beat(2, leaving=True)
    await until(lambda: proxy.states() == ["up", "up", "down"])
    proxy.cluster._heartbeats.forget("t2")  # as after a restart of the proxy
    await proxy.beat(2, starting=True)
    await proxy.cluster.change(mark_evicted(["d2"], evicted=True))
    with pytest.raises(WouldLoseObjects, match="is not known"):
        await administration.remove("disk", "d2")
    assert proxy.cluster.map.node("t2").last_heartbeat == ""  # type: ignore[union-attr]
    assert await administration.remove("disk", "d2", accept_loss=True) == ["d2"]


async def test_what_a_disk_holds_is_known_while_it_starts(proxy: Proxy) -> None:
    numbers = (DiskNumbers(id="d2", alone=3, first=9),)
    await proxy.beat(2, (DiskEntry(id="d2", weight=1.0, objects=12, used=34),), numbers=numbers)
    for fields in ({"starting": True}, {"leaving": True}):
        shown = (await proxy.beat(2, **fields, map_version=0)).map
        node = shown.node("t2")  # type: ignore[union-attr]
        assert (node.disks[0].objects, node.disks[0].used) == (12, 34)  # type: ignore[union-attr]
        assert node.last_heartbeat != ""  # type: ignore[union-attr]


async def test_what_is_not_removed(proxy: Proxy, administration: Administration, duty: None) -> None:
    with pytest.raises(Conflict, match="in use"):
        await administration.remove("disk", "d2", accept_loss=True)
    await proxy.cluster.create_bucket("three", 3, "fsync")
    await lose_t2(proxy)
    with pytest.raises(TooFewDomains, match="bucket three has 3 copies"):
        await administration.remove("disk", "d2", accept_loss=True)
    with pytest.raises(NotFound):
        await administration.remove("disk", "t2", accept_loss=True)


async def test_how_many_objects_are_only_on_a_disk(proxy: Proxy) -> None:
    await proxy.beat(1, numbers=(DiskNumbers(id="d1", alone=5, first=9),))
    assert (proxy.cluster.only_on("d1"), proxy.cluster.only_on("d2")) == (5, None)
    await proxy.beat(1, starting=True)
    assert proxy.cluster.only_on("d1") == 5, "which it does not know yet"
    await proxy.beat(2, (DiskEntry(id="d2", weight=1.0, objects=3),))
    assert proxy.cluster.only_on("d2") == 3, "if a target does not say which of them have copies"
    await proxy.cluster.remove_bucket(proxy.cluster.bucket("b"))
    await proxy.cluster.create_bucket("two", 2, "fsync")
    assert (proxy.cluster.only_on("d1"), proxy.cluster.only_on("d2")) == (0, 0)
