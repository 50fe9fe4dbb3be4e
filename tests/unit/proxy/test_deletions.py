"""Deletions of buckets by proxies of one registry: who led before undoes nothing that the next one decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from harness import until
from memory_registry import MemoryRegistry, MemoryStore
from registering import bucket, said
from registry_conformance import end
from stepped import mark_down

from dfc.errors import BucketNotEmpty, Unavailable
from dfc.proxy import buckets as module
from dfc.proxy.buckets import Deletions
from dfc.proxy.cluster import Cluster
from dfc.proxy.coordinator import OFFICE
from dfc.registry import changes
from dfc.registry.base import Lease, LeaseLost
from dfc.registry.messages import MapTaken


class Proxy:
    """One with deletions and a lease, whose calls of targets wait while their method is held."""

    def __init__(self, store: MemoryStore) -> None:
        self.registry = MemoryRegistry(store)
        self.cluster = Cluster(self.registry, self, True, 1)  # type: ignore[arg-type]
        self.deletions = Deletions(self.cluster, self._lead)
        self.lease: Lease | None = None
        self.held = ""
        self.asked: list[str] = []
        self.removed: list[str] | None = None  # the disks on which nothing is left; None: all of them
        self.go_on = asyncio.Event()

    async def _lead(self) -> Lease:
        assert self.lease is not None
        return self.lease

    async def call(self, method: str, url: str, kind: object, **named: object) -> Any:
        self.asked.append(method)
        if method == self.held:
            await self.go_on.wait()
        if method != "DELETE":
            return MapTaken(0) if kind is MapTaken else {}
        disks = (disk.id for node in self.cluster.map.nodes if url.startswith(f"{node.url}/") for disk in node.disks)
        return SimpleNamespace(disks=list(disks) if self.removed is None else self.removed)


Both = tuple[Proxy, Proxy]


@pytest.fixture
async def proxies() -> AsyncIterator[Both]:
    store = MemoryStore()
    both = Proxy(store), Proxy(store)
    for proxy in both:
        await proxy.cluster.hear(said("t0", ("d0",), url="http://t0"))
    await both[0].cluster.change(changes.create_bucket(bucket("b")))
    yield both
    for proxy in both:
        await proxy.cluster.close()


def state_of(proxy: Proxy) -> str:
    found = proxy.cluster.map.bucket("b")
    return "gone" if found is None else found.state


async def test_who_leads_no_longer_makes_no_bucket_active_that_another_removes(proxies: Both) -> None:
    """Objects would be put into it, and go with it."""
    first, second = proxies
    first.held, second.held = "POST", "DELETE"
    async with first.registry.elect(OFFICE, "p1", 60) as first.lease:
        late = asyncio.create_task(first.deletions.delete("b", force=True))
        await until(lambda: first.asked)
        assert state_of(first) == "checking"
    async with second.registry.elect(OFFICE, "p2", 60) as second.lease:
        removing = asyncio.create_task(second.deletions.delete("b", force=True))
        await until(lambda: "DELETE" in second.asked)
        first.go_on.set()
        with pytest.raises(LeaseLost):
            await late
        assert state_of(second) == "deleting"
        second.go_on.set()
        await removing
    assert state_of(second) == "gone"


async def test_what_a_coordinator_was_finding_out_ends_with_it(proxies: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one lets the bucket be written to again; what it finds out itself goes on."""
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    first, second = proxies
    first.held = second.held = "POST"
    async with first.registry.elect(OFFICE, "p1", 60) as first.lease:
        late = asyncio.create_task(first.deletions.delete("b", force=True))
        await until(lambda: first.asked)
    first.go_on.set()
    with pytest.raises(LeaseLost):
        await late
    async with second.registry.elect(OFFICE, "p2", 60) as second.lease:
        duty = asyncio.create_task(second.deletions.finish_begun(second.lease))
        await until(lambda: state_of(second) == "active")
        removing = asyncio.create_task(second.deletions.delete("b", force=True))
        await until(lambda: second.asked)
        await asyncio.sleep(0.05)
        assert state_of(second) == "checking"
        second.go_on.set()
        await removing
        assert state_of(second) == "gone"
        await end(duty)


async def test_a_disk_that_was_away_removes_objects_of_removed_buckets_when_it_is_back(proxies: Both) -> None:
    proxy = proxies[0]
    await proxy.cluster.hear(said("t0", ("d0", "d1"), url="http://t0"))
    proxy.removed = ["d0"]
    bucket_id = proxy.cluster.bucket("b").id
    async with proxy.registry.elect(OFFICE, "p1", 60) as proxy.lease:
        await proxy.deletions.delete("b", force=True)
        assert left_on(proxy) == {"d0": (), "d1": (bucket_id,)}
        proxy.asked.clear()
        finishing = asyncio.create_task(proxy.deletions.finish_begun(proxy.lease))
        await until(lambda: proxy.asked == ["DELETE"])
        assert left_on(proxy) == {"d0": (), "d1": (bucket_id,)}, "it is not open yet"
        finishing.cancel()
        proxy.removed = ["d0", "d1"]
        finishing = asyncio.create_task(proxy.deletions.finish_begun(proxy.lease))
        await until(lambda: left_on(proxy) == {"d0": (), "d1": ()})
        finishing.cancel()


async def _with_a_dead_target(proxy: Proxy, copies: int) -> None:
    await proxy.cluster.hear(said("t1", ("d1",), url="http://t1"))
    await proxy.cluster.change(changes.create_bucket(bucket("c", copies=copies)))
    await mark_down(proxy.cluster, "t1")


async def test_nobody_waits_for_a_dead_target_when_all_is_to_go(proxies: Both) -> None:
    proxy = proxies[0]
    await _with_a_dead_target(proxy, 1)
    bucket_id = proxy.cluster.bucket("c").id
    async with proxy.registry.elect(OFFICE, "p1", 60) as proxy.lease:
        await proxy.deletions.delete("c", force=True)
    assert proxy.cluster.map.bucket("c") is None
    assert left_on(proxy) == {"d0": (), "d1": (bucket_id,)}, "it removes what it has when it is back"


async def test_what_only_a_dead_target_knows_keeps_a_bucket(proxies: Both) -> None:
    proxy = proxies[0]
    await _with_a_dead_target(proxy, 1)
    async with proxy.registry.elect(OFFICE, "p1", 60) as proxy.lease:
        with pytest.raises(Unavailable, match="target t1 is down"):
            await proxy.deletions.delete("c", force=False)
    assert proxy.cluster.bucket("c").state == "active"


async def test_a_listing_says_whether_a_bucket_with_copies_is_empty(proxies: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy, rows = proxies[0], ["an object"]
    await _with_a_dead_target(proxy, 2)

    async def one_page(*_: object) -> Any:
        return SimpleNamespace(rows=rows)

    monkeypatch.setattr(module, "one_page", one_page)
    async with proxy.registry.elect(OFFICE, "p1", 60) as proxy.lease:
        with pytest.raises(BucketNotEmpty):
            await proxy.deletions.delete("c", force=False)
        rows.clear()
        await proxy.deletions.delete("c", force=False)
    assert proxy.cluster.map.bucket("c") is None


def left_on(proxy: Proxy) -> dict[str, tuple[str, ...]]:
    return {disk.id: disk.removed for node in proxy.cluster.map.nodes for disk in node.disks}
