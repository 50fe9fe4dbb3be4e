"""The hybrid clock: versions only grow, whatever the wall clock does and from however many threads."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.clock import NODE_NUMBER_MAX, HybridClock, version_us


@given(st.lists(st.integers(0, 1 << 50), min_size=1, max_size=50))
def test_versions_grow_whatever_the_wall_clock_does(readings):
    times = iter(readings)
    clock = HybridClock(7, wall_us=lambda: next(times))
    versions = [clock.next_version() for _ in readings]
    assert versions == sorted(set(versions))
    for version, reading in zip(versions, readings, strict=True):
        assert version_us(version) >= reading
        assert len(version) == 18
        assert version.endswith("0007")


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1 << 50)), max_size=30))
def test_versions_seen_elsewhere_push_the_clock(events):
    now = 0
    clock = HybridClock(1, wall_us=lambda: now)
    greatest = ""
    for observed, value in events:
        if observed:
            seen = f"{value:014x}ffff"
            clock.observe(seen)
            greatest = max(greatest, seen[:14] + "0000")
        else:
            now = value
            version = clock.next_version()
            assert version > greatest
            greatest = version
            assert version_us(version) >= now


def test_a_version_follows_the_wall_clock_when_it_can():
    now = 1_700_000_000_000_000
    clock = HybridClock(0xABCD, wall_us=lambda: now)
    assert clock.next_version() == f"{now:014x}abcd"
    assert clock.next_version() == f"{now + 1:014x}abcd"
    now += 1000
    assert clock.next_version() == f"{now:014x}abcd"
    assert abs(version_us(HybridClock(1).next_version()) - time.time_ns() // 1000) < 60_000_000


def test_threads_never_get_the_same_version():
    clock = HybridClock(1, wall_us=lambda: 5)
    with ThreadPoolExecutor(8) as threads:
        versions = [v for batch in threads.map(lambda _: [clock.next_version() for _ in range(500)], range(8)) for v in batch]
    assert len(set(versions)) == 4000


def test_versions_of_two_nodes_differ_at_the_same_moment():
    first, second = (HybridClock(number, wall_us=lambda: 5) for number in (1, 2))
    assert first.next_version() < second.next_version()


@pytest.mark.parametrize("number", [-1, NODE_NUMBER_MAX + 1])
def test_node_numbers(number):
    with pytest.raises(ValueError, match="node number"):
        HybridClock(number)


@pytest.mark.parametrize("version", ["", "0" * 17, "0" * 19, "x" * 18])
def test_what_is_no_version(version):
    with pytest.raises(ValueError):
        version_us(version)
