"""How fast objects move from a disk."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from clocks import Clock

from dfc.limits import MOVE_BYTES_PER_S
from dfc.target.copies import deliveries
from dfc.target.copies.deliveries import LATE_S, URGENT, MovePace


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_without_a_limit_all_go_at_once(clock: Clock) -> None:
    limit = MovePace(lambda: 0, clock)
    assert [limit.begin("d2", [10**12] * 5, is_urgent=False) for _ in range(3)] == [5, 5, 5]


def test_the_average_is_that_of_the_limit(clock: Clock) -> None:
    """Of objects of all sizes, also such as are larger than what may be sent in a second."""
    limit, sent = MovePace(lambda: 1000, clock), 0
    sizes = [300, 5000, 0, 999, 1, 700] * 50
    left = sizes
    while left:
        count = limit.begin("d2", left, is_urgent=False)
        sent += sum(left[:count])
        left = left[count:]
        assert sent <= 1000 * (clock.seconds - 1000.0) + 5000, "no more than one object ahead"
        clock.seconds += 0.1
    assert sum(sizes) / 1000 <= clock.seconds - 1000.0 + 5.0
    assert clock.seconds - 1000.0 < sum(sizes) / 1000 * 1.2


def test_copies_that_were_lost_are_made_faster(clock: Clock) -> None:
    """However low the limit is, and whatever else is on its way."""
    rate, size = 2 * MOVE_BYTES_PER_S, MOVE_BYTES_PER_S
    limit = MovePace(lambda: rate, clock)
    assert limit.begin("d2", [100 * size], is_urgent=False) == 1
    assert limit.begin("d2", [size] * 20, is_urgent=True) == 2 * URGENT
    assert limit.begin("d2", [size] * 20, is_urgent=True) == 0
    clock.seconds += 1.0
    assert limit.begin("d2", [size] * 20, is_urgent=True) == 2 * URGENT
    rate = 1
    assert limit.begin("d2", [size] * 20, is_urgent=True) == 1
    clock.seconds += 1.0
    assert limit.begin("d2", [size] * 20, is_urgent=True) == 1


def test_those_who_wait_have_their_turns(clock: Clock) -> None:
    """Although one of them asks all the time, and before the others. Who does not ask any more is waited for a moment."""
    limit, sent = MovePace(lambda: 1000, clock), Counter[str]()
    for tenth in range(600):
        sent["quick"] += limit.begin("quick", [1000] * 5, is_urgent=False)
        if tenth % 7 == 0:
            sent["slow"] += limit.begin("slow", [1000] * 5, is_urgent=False)
        clock.seconds += 0.1
    assert sent["slow"] >= 20
    assert sent["quick"] >= 20
    assert limit.begin("gone", [1000] * 5, is_urgent=False) in (0, 1)
    before = sent["quick"]
    for _ in range(100):
        sent["quick"] += limit.begin("quick", [1000] * 5, is_urgent=False)
        clock.seconds += 0.1
    assert sent["quick"] - before >= 100 * 0.1 - LATE_S - 2


def test_another_limit_counts_at_once(clock: Clock) -> None:
    rate = 1
    limit = MovePace(lambda: rate, clock)
    assert limit.begin("d2", [10**6], is_urgent=False) == 1
    assert limit.begin("d2", [1], is_urgent=False) == 0
    rate = 10**6
    assert limit.begin("d2", [1], is_urgent=False) == 1


async def test_nobody_waits_longer_than_until_the_next_look(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "LOOK_S", 0.01)
    limit = MovePace(lambda: 1, clock)
    limit.begin("d2", [10**6], is_urgent=False)
    async with asyncio.timeout(20):
        await limit.until_free(urgent=False)
