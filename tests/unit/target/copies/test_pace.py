"""How fast objects move from a disk."""

from __future__ import annotations

import asyncio

import pytest

from dfc.target.copies.background import pace
from dfc.target.copies.background.pace import URGENT, MovePace


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_without_a_limit_all_go_at_once(clock: Clock) -> None:
    limit = MovePace(lambda: 0, clock)
    assert [limit.begin([10**12] * 5, is_urgent=False) for _ in range(3)] == [5, 5, 5]


def test_the_average_is_that_of_the_limit(clock: Clock) -> None:
    """Of objects of all sizes, also such as are larger than what may be sent in a second."""
    limit, sent = MovePace(lambda: 1000, clock), 0
    sizes = [300, 5000, 0, 999, 1, 700] * 50
    left = sizes
    while left:
        count = limit.begin(left, is_urgent=False)
        sent += sum(left[:count])
        left = left[count:]
        assert sent <= 1000 * (clock.now - 100.0) + 5000, "no more than one object ahead"
        clock.now += 0.1
    assert sum(sizes) / 1000 <= clock.now - 100.0 + 5.0
    assert clock.now - 100.0 < sum(sizes) / 1000 * 1.2


def test_objects_with_too_few_copies_go_faster(clock: Clock) -> None:
    limit = MovePace(lambda: 1000, clock)
    assert limit.begin([1000] * 10, is_urgent=True) == URGENT
    assert limit.begin([1], is_urgent=False) == 0, "and before the others"
    clock.now += 1.0
    assert limit.begin([1000] * 10, is_urgent=False) == 1


def test_another_limit_counts_at_once(clock: Clock) -> None:
    rate = 1
    limit = MovePace(lambda: rate, clock)
    assert limit.begin([10**6], is_urgent=False) == 1
    assert limit.begin([1], is_urgent=False) == 0
    rate = 10**6
    assert limit.begin([1], is_urgent=False) == 1


async def test_nobody_waits_longer_than_until_the_next_look(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "LOOK_S", 0.01)
    limit = MovePace(lambda: 1, clock)
    limit.begin([10**6], is_urgent=False)
    async with asyncio.timeout(5):
        await limit.until_free()
