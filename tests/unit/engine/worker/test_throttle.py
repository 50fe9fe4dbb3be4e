"""Speed limits, by a clock that is moved by hand."""

from __future__ import annotations

import pytest
from clocks import Clock

from dfc.engine.worker.reading import BURST_S, Throttle


class Slept(Clock):
    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.mark.parametrize("piece", [1, 1000, 300_000])
def test_bytes_take_their_time(piece):
    clock = Slept()
    throttle = Throttle(100_000, clock, clock.sleep)
    for _ in range(0, 1_000_000, piece):
        throttle.take(piece)
    moved = len(range(0, 1_000_000, piece)) * piece
    assert clock.seconds - 1000.0 == pytest.approx(moved / 100_000 - BURST_S, abs=0.01)


def test_what_was_not_used_is_not_kept_for_long():
    clock = Slept()
    throttle = Throttle(100_000, clock, clock.sleep)
    clock.seconds += 3600
    throttle.take(1_000_000)
    assert clock.seconds - 4600.0 == pytest.approx(10 - BURST_S)


def test_no_limit_never_sleeps():
    throttle = Throttle(0, lambda: 0.0, lambda _: pytest.fail("slept"))
    throttle.take(10**12)
