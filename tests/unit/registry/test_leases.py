"""Leases by a clock that is moved by hand: holders count their time from before the registry does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from clocks import Clock

from dfc.errors import Unavailable
from dfc.registry.base import Grant, Lease, LeaseHeld, LeaseTable, boot_s, hold

TTL_S = 10.0


@pytest.fixture
def now() -> Clock:
    return Clock()


class Store:
    """A table behind a network: `before` runs on the way of each request, `after` on the way of its answer."""

    def __init__(self, now: Clock) -> None:
        self.table = LeaseTable(now)
        self.before: Callable[[], Any] = lambda: None
        self.after: Callable[[], Any] = lambda: None
        self.revoked = 0

    async def grant_lease(self, name: str, holder: str, ttl_s: float, url: str = "") -> Grant:
        self.before()
        grant = self.table.grant(name, holder, ttl_s)
        self.after()
        return grant

    async def renew_lease(self, grant: Grant) -> bool:
        self.before()
        renewed = self.table.renew(grant)
        self.after()
        return renewed

    async def revoke_lease(self, grant: Grant) -> None:
        self.revoked += 1
        self.before()
        self.table.revoke(grant)

    async def lease_vacancy(self, name: str) -> None:
        await self.table.vacancy(name)


@pytest.fixture
def store(now: Clock) -> Store:
    return Store(now)


def test_the_clock_of_leases_goes_on_in_sleep_and_cannot_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wall clock that is set back would let a holder act that much longer, and so would one that stops while the machine
    sleeps."""
    asked: list[int] = []

    def read(clock: int) -> float:
        asked.append(clock)
        return 42.0

    with monkeypatch.context() as patch:
        patch.setattr(time, "clock_gettime", read)
        found = boot_s()
    assert (found, asked) == (42.0, [time.CLOCK_BOOTTIME])
    assert abs(LeaseTable()._clock_s() - boot_s()) < 3600, "what is used where nobody says otherwise"


def test_a_lease_ends_with_its_time(now: Clock) -> None:
    table = LeaseTable(now)
    first = table.grant("a", "p1", TTL_S)
    now.seconds += TTL_S - 0.1
    assert table.is_valid(first)
    with pytest.raises(LeaseHeld):
        table.grant("a", "p2", TTL_S)
    assert table.renew(first)
    now.seconds += TTL_S - 0.1
    assert table.is_valid(first)
    now.seconds += 0.1
    assert not table.is_valid(first)
    assert not table.renew(first)
    second = table.grant("a", "p2", TTL_S)
    assert second.token != first.token
    table.revoke(first)
    assert table.is_valid(second)


def test_leases_that_are_over_are_forgotten(now: Clock) -> None:
    table = LeaseTable(now)
    for number in range(100):
        table.grant(f"job-{number}", "p1", TTL_S)
        now.seconds += TTL_S
    assert len(table._held) == 1


async def test_the_holder_counts_from_its_asking(now: Clock, store: Store) -> None:
    def slow() -> None:
        now.seconds += 4

    store.before = store.after = slow
    async with hold(store, "a", "p1", TTL_S, now) as lease:
        store.before = lambda: None
        assert lease.is_held  # 8 s after it has asked, 4 s after it was granted
        now.seconds += 2
        assert not lease.is_held
        assert store.table.is_valid(lease.grant)
    assert not store.table.is_valid(lease.grant)


async def test_a_process_that_was_stopped_knows_at_once(now: Clock, store: Store) -> None:
    async with hold(store, "a", "p1", TTL_S, now) as lease:
        now.seconds += 60  # and no task has run meanwhile
        assert not lease.is_held
        store.table.grant("a", "p2", TTL_S)
    with pytest.raises(LeaseHeld, match="held by p2"):  # the end of the first took nothing from the second
        store.table.grant("a", "p3", TTL_S)


async def test_an_answer_that_comes_after_its_time_is_worth_nothing(now: Clock, store: Store) -> None:
    def slow() -> None:
        now.seconds += TTL_S

    store.after = slow
    async with hold(store, "a", "p1", TTL_S, now) as lease:
        assert not lease.is_held
        async with asyncio.timeout(20):
            await lease.lost.wait()


async def test_renewals_begin_the_time_anew(now: Clock, store: Store) -> None:
    renewed = asyncio.Event()
    store.after = renewed.set
    async with hold(store, "a", "p1", 0.3, now) as lease:
        for _ in range(5):
            renewed.clear()
            now.seconds += 0.25
            async with asyncio.timeout(20):
                await renewed.wait()
            assert lease.is_held


async def test_a_renewal_that_failed_is_tried_again(now: Clock, store: Store) -> None:
    attempts = 0
    renewed = asyncio.Event()

    def fail() -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise Unavailable("not now")
        renewed.set()

    async with hold(store, "a", "p1", 0.3, now) as lease:
        store.before = fail
        async with asyncio.timeout(20):
            await renewed.wait()
        assert lease.is_held
        store.before = lambda: None


async def test_who_cannot_give_it_back_leaves_it_to_its_time(now: Clock, store: Store) -> None:
    def fail() -> None:
        raise Unavailable("gone")

    async with hold(store, "a", "p1", TTL_S, now) as lease:
        store.before = fail
    assert store.revoked == 1
    assert store.table.is_valid(lease.grant)
    assert not lease.is_held


async def test_no_task_is_left(now: Clock, store: Store) -> None:
    before = asyncio.all_tasks()
    async with asyncio.timeout(20):
        async with hold(store, "a", "p1", 1000, now):
            await asyncio.sleep(0)  # it waits to renew
        assert asyncio.all_tasks() == before


async def test_what_happens_under_a_lease_is_raised(store: Store, now: Clock) -> None:
    with pytest.raises(ZeroDivisionError):
        async with hold(store, "a", "p1", TTL_S, now):
            raise ZeroDivisionError
    assert store.revoked == 1


async def test_a_lease_without_a_keeper_ends_by_itself(now: Clock) -> None:
    table = LeaseTable(now)
    lease = Lease(table.grant("a", "p1", TTL_S), now() + TTL_S, now)
    assert lease.is_held
    now.seconds += TTL_S
    assert not lease.is_held
