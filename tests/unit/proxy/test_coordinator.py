"""Who coordinates a cluster: elected, its duties begun and ended, replaced when it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from harness import until
from memory_registry import MemoryRegistry, MemoryStore
from registering import bucket
from registry_conformance import silence

from dfc.errors import Unavailable
from dfc.proxy import coordinator as module
from dfc.proxy.coordinator import OFFICE, Coordinator
from dfc.registry.base import Lease, LeaseLost
from dfc.registry.changes import create_bucket

OFFICE_S = 0.8
Make = Callable[..., Coordinator]


class Duty:
    """Notes who does it; two at a time are a mistake."""

    def __init__(self) -> None:
        self.doing: list[str] = []
        self.begun: list[str] = []
        self.last: Lease | None = None

    async def __call__(self, lease: Lease) -> None:
        name = lease.grant.holder
        self.doing.append(name)
        self.begun.append(name)
        self.last = lease
        assert len(self.doing) == 1
        try:
            await asyncio.Event().wait()
        finally:
            self.doing.remove(name)


class Stubborn:
    """A duty that does not end before it may."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.runs = 0

    async def __call__(self, _lease: Lease) -> None:
        self.runs += 1
        while not self.may_end.is_set():
            try:
                await self.may_end.wait()
            except asyncio.CancelledError:
                continue


@pytest.fixture
async def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def make(store: MemoryStore) -> AsyncIterator[Make]:
    made = []

    def build(name: str, registry: MemoryRegistry | None = None, **duties: Any) -> Coordinator:
        made.append(Coordinator(registry or MemoryRegistry(store), name, duties, office_s=OFFICE_S, retry_s=0.01))
        made[-1].start()
        return made[-1]

    yield build
    for each in made:
        await each.stop()


async def test_the_only_one_leads_at_once_and_until_it_stops(make: Make, store: MemoryStore) -> None:
    duty = Duty()
    only = make("p1", duty=duty)
    await until(lambda: duty.doing == ["p1"])
    assert only.leads
    await asyncio.sleep(1.5 * OFFICE_S)
    assert (only.leads, duty.begun) == (True, ["p1"])
    await only.stop()
    assert (only.leads, duty.doing) == (False, [])
    async with MemoryRegistry(store).lease(OFFICE, "p2", OFFICE_S):  # it has given the office back
        pass
    await only.stop()


async def test_one_leads_and_another_after_it(make: Make) -> None:
    duty = Duty()
    both = {name: make(name, duty=duty) for name in ("p1", "p2")}
    await until(lambda: duty.doing)
    first, (second,) = duty.doing[0], both.keys() - {duty.doing[0]}
    await asyncio.sleep(0.05)
    assert [both[name].leads for name in (first, second)] == [True, False]
    await both[first].stop()
    await until(lambda: duty.doing == [second])
    assert both[second].leads


async def test_the_office_is_lost_and_its_duties_end_before_another_begins_them(
    make: Make, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, duty = MemoryRegistry(store), Duty()
    first = make("p1", registry, duty=duty)
    await until(lambda: duty.doing == ["p1"])
    lost = duty.last
    assert lost is not None
    make("p2", duty=duty)
    silence(monkeypatch, registry, "p1")
    await until(lambda: duty.doing == ["p2"])
    assert not first.leads
    with pytest.raises(LeaseLost):
        await registry.change(create_bucket(bucket("b")), fence=lost)


async def test_who_lost_it_stands_again(make: Make, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, duty = MemoryRegistry(store), Duty()
    only = make("p1", registry, duty=duty)
    await until(lambda: duty.doing)
    with monkeypatch.context() as patch:
        silence(patch, registry, "p1")
        await until(lambda: len(duty.begun) > 1)  # for a moment between, nobody leads
    await until(lambda: only.leads)


async def test_a_duty_that_fails_is_begun_anew_and_one_that_is_done_is_not(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    runs, other = {"failing": 0, "done": 0}, Duty()

    async def failing(_lease: Lease) -> None:
        runs["failing"] += 1
        if runs["failing"] < 4:
            raise ZeroDivisionError

    async def done(_lease: Lease) -> None:
        runs["done"] += 1

    make("p1", failing=failing, done=done, other=other)
    await until(lambda: runs["failing"] == 4)
    await asyncio.sleep(0.05)
    assert runs == {"failing": 4, "done": 1}
    assert other.begun == ["p1"]
    assert caplog.text.count("the coordinator's duty 'failing' failed") == 3


async def test_an_election_that_fails_is_tried_again(make: Make, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, duty, attempts = MemoryRegistry(store), Duty(), 0
    grant: Callable[..., Awaitable[Any]] = registry.grant_lease

    async def failing(*arguments: Any) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts < 4:
            raise (Unavailable("not now"), RuntimeError("a mistake"))[attempts % 2]
        return await grant(*arguments)

    monkeypatch.setattr(registry, "grant_lease", failing)
    make("p1", registry, duty=duty)
    await until(lambda: duty.doing == ["p1"])


async def test_a_duty_that_does_not_end_holds_up_no_stop(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "STOP_CLOSE_S", 0.05)
    stubborn = Stubborn()
    only = make("p1", stubborn=stubborn)
    await until(lambda: stubborn.runs)
    async with asyncio.timeout(20):
        await only.stop()
    assert "duties of the coordinator did not stop within 0.05 s: stubborn" in caplog.text
    stubborn.may_end.set()
    await asyncio.sleep(0.01)


async def test_a_stop_while_the_office_is_being_lost_waits_for_its_duties(
    make: Make, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending, ended = asyncio.Event(), False

    async def slow(_lease: Lease) -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await asyncio.sleep(0.1)
            ended = True

    registry = MemoryRegistry(store)
    only = make("p1", registry, slow=slow)
    await until(lambda: only.leads)
    silence(monkeypatch, registry, "p1")
    await ending.wait()
    await only.stop()
    assert ended


async def test_a_duty_that_fails_while_it_ends_is_not_begun_anew(make: Make) -> None:
    runs = 0

    async def clumsy(_lease: Lease) -> None:
        nonlocal runs
        runs += 1
        try:
            await asyncio.Event().wait()
        finally:
            raise ZeroDivisionError

    only = make("p1", clumsy=clumsy)
    await until(lambda: runs)
    await only.stop()
    await asyncio.sleep(0.05)
    assert runs == 1


async def test_who_has_a_duty_left_that_would_not_end_does_not_stand_again(
    make: Make, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Or it would be done twice at a time, by this proxy itself."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(module, "STOP_CLOSE_S", 0.05)
    registry, stubborn = MemoryRegistry(store), Stubborn()
    make("p1", registry, stubborn=stubborn)
    await until(lambda: stubborn.runs == 1)
    with monkeypatch.context() as patch:
        silence(patch, registry, "p1")
        await until(lambda: "did not stop" in caplog.text)
    await asyncio.sleep(0.1)
    assert stubborn.runs == 1
    stubborn.may_end.set()
    await until(lambda: stubborn.runs == 2)


async def test_stop_before_start(store: MemoryStore) -> None:
    await Coordinator(MemoryRegistry(store), "p1", {}).stop()


async def test_who_has_to_decide_waits_for_an_election(make: Make, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, duty = MemoryRegistry(store), Duty()
    first = make("p1", registry, duty=duty)
    lease = await first.lead()
    assert lease.grant.holder == "p1"
    second = make("p2", duty=duty)
    monkeypatch.setattr(module, "ELECTION_WAIT_S", 0.1)
    with pytest.raises(Unavailable, match="not the coordinator"):
        await second.lead()
    monkeypatch.setattr(module, "ELECTION_WAIT_S", 30.0)
    waiting = asyncio.create_task(second.lead())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await first.stop()
    assert (await waiting).grant.holder == "p2"
    with pytest.raises(Unavailable):  # at once
        await asyncio.wait_for(first.lead(), 20)
    with pytest.raises(Unavailable):
        await asyncio.wait_for(Coordinator(registry, "p3", {}).lead(), 20)
