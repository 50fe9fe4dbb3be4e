"""Disks that have come less far than was reported before."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from copied import map_of
from harness import until
from memory_registry import MemoryRegistry, MemoryStore
from registering import said
from registry_conformance import end

from dfc.placement.map import DiskEntry
from dfc.proxy import duties
from dfc.proxy.duties import DiskEpoch, DiskEpochs, older
from dfc.registry.base import EPOCHS, Lease
from dfc.registry.changes import RegistryState
from dfc.registry.messages import Registration

FIRST = DiskEpoch("d1", "life", 5, "first", 10)


@pytest.mark.parametrize(
    ("now", "found"),
    [
        (FIRST, {}),
        (DiskEpoch("d1", "life", 4, "first"), {}),  # a heartbeat that came late
        (DiskEpoch("d1", "life", 6, "second"), {}),
        (DiskEpoch("d1", "life", 5, "second"), {"d1": 5}),  # its opening alone would have made it more
        (DiskEpoch("d1", "life", 2, "second"), {"d1": 5}),
        (DiskEpoch("d1", "another", 1, "second"), {}),  # replaced
        (DiskEpoch("d1", "life.x", 6, "second"), {}),  # in doubt: the coordinator sees that otherwise
        (DiskEpoch("d1", "life.x", 5, "second"), {"d1": 5}),  # but not that more than its last rows are lost
        (DiskEpoch("d1", "life", 4, "first", 20), {"d1": 5}),  # a machine that was put back as it ran
        (DiskEpoch("d1", "life", 4, "first", 5), {}),
        (DiskEpoch("d2", "life", 1, "second"), {}),
    ],
)
def test_which_disk_has_come_less_far(now: DiskEpoch, found: dict[str, int]) -> None:
    assert older({"d1": FIRST}, [now]) == found


def beat(epoch: int, process: str = "first", incarnation: str = "life") -> Registration:
    return said("t1", (DiskEntry(id="d1", weight=1.0, incarnation=incarnation),), epochs={"d1": epoch}, process=process)


@pytest.fixture
def registry() -> MemoryRegistry:
    store = MemoryStore()
    store.state = RegistryState(map=msgspec.structs.replace(map_of(), cluster_id=store.state.map.cluster_id))
    return MemoryRegistry(store)


@pytest.fixture
def known(registry: MemoryRegistry) -> DiskEpochs:
    return DiskEpochs(registry, lambda: registry.map)


def test_what_was_put_back_stays_so_until_it_says_that_it_is_another(known: DiskEpochs) -> None:
    assert known.check(beat(5)) == {}
    assert known.check(beat(4)) == {}
    assert known.check(beat(3, "second")) == {"d1": 5}
    assert known.check(beat(3, "second")) == {"d1": 5}
    assert known.check(beat(6, "second", "life.x")) == {}
    assert known.check(beat(7, "second", "life.x")) == {}
    assert known.check(beat(6, "third", "life.x")) == {"d1": 7}
    assert known.check(beat(8, "third", "life.y")) == {}
    assert known.check(beat(6, "fourth", "life")) == {"d1": 8}, "the same snapshot once more"


def test_a_target_that_does_not_tell_is_not_suspected(known: DiskEpochs) -> None:
    known.check(beat(5))
    assert known.check(said("t1", ("d1",), process="old")) == {}
    assert known.check(beat(6, "third")) == {}


async def test_the_next_coordinator_knows_it(registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duties, "KEEP_S", 0.001)
    one, other = (DiskEpochs(registry, lambda: registry.map) for _ in range(2))
    async with registry.elect("coordinator", "p1", 60) as lease:
        one.begin()
        running = asyncio.create_task(one.run(lease))
        one.check(beat(5))
        await until(lambda: registry.records(EPOCHS))
        other.begin()
        assert other.check(beat(5, "second")) == {"d1": 5}
        one.check(beat(8))
        await end(running)  # a last time when it stops
    other.begin()
    assert other.check(beat(8, "second")) == {"d1": 8}
    assert other.check(beat(9, "second")) == {}


async def test_it_does_not_wait_for_a_silent_registry_when_it_stops(
    registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(name: str, value: bytes | None, fence: Lease) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(duties, "LAST_S", 0.01)
    monkeypatch.setattr(registry, "keep", silent)
    known = DiskEpochs(registry, lambda: registry.map)
    async with registry.elect("coordinator", "p1", 60) as lease:
        known.check(beat(5))
        running = asyncio.create_task(known.run(lease))
        await asyncio.sleep(0)
        async with asyncio.timeout(20):
            await end(running)


def test_nobody_speaks_for_disks_of_others(known: DiskEpochs) -> None:
    known.check(beat(5))
    assert known.check(said("t2", ("d2",), epochs={"d1": 99}, process="x")) == {}
    assert known.check(beat(6, "second")) == {}


async def test_a_record_that_cannot_be_read_stops_nobody(registry: MemoryRegistry, known: DiskEpochs) -> None:
    async with registry.elect("coordinator", "p1", 60) as lease:
        await registry.keep(f"{EPOCHS}1", b"{", lease)
        await registry.keep(f"{EPOCHS}2", b'[["d2","life",3,"p"]]', lease)
    known.begin()
    assert known._known.keys() == {"d2"}


async def test_nothing_is_written_while_nothing_happens(registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    known, written = DiskEpochs(registry, lambda: registry.map), list[str]()
    keep = registry.keep

    async def noted(name: str, value: bytes | None, fence: Lease) -> None:
        written.append(name)
        await keep(name, value, fence)

    monkeypatch.setattr(registry, "keep", noted)
    async with registry.elect("coordinator", "p1", 60) as lease:
        for now_us in (1, 2, 3):
            known.check(msgspec.structs.replace(beat(5), now_us=now_us))
            await known._keep(lease)
    assert written == [f"{EPOCHS}1"]


async def test_what_is_known_of_a_node_that_left_is_forgotten(registry: MemoryRegistry, known: DiskEpochs) -> None:
    async with registry.elect("coordinator", "p1", 60) as lease:
        await registry.keep(f"{EPOCHS}99", b'[["d9","life",3,"p"]]', lease)
        known.begin()
        known.check(beat(5))
        await known._keep(lease)
        assert set(registry.records(EPOCHS)) == {f"{EPOCHS}1"}
