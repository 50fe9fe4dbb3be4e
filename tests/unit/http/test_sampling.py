"""Counters are looked at once a second, at true times; of the last seconds nothing is invented, and none comes back."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from clocks import Clock
from one_face import serving

from dfc.config import Settings
from dfc.errors import BadRequest
from dfc.http.faces import Route
from dfc.http.rates import DISK, Counted, Device, NodeSeconds, RateSampler, SecondsRing
from dfc.http.transfer import ByteMeter


class Node:
    """Counters that a test sets, and a sampler that looks at them at the second that the test says."""

    def __init__(self) -> None:
        self.clock, self.counted = Clock(100.0), Counted(0, 0, 0, 0, 0)
        self.sampler = RateSampler(lambda: self.counted, self.clock)

    def look(self, at_s: float, **counted: int) -> None:
        self.clock.seconds, self.counted = 100.0 + at_s, self.counted._replace(**counted)
        self.sampler.look()

    def column(self, name: str) -> list[float | None]:
        return self.sampler.told("n").columns[name]


def test_a_second_has_what_was_counted_in_it() -> None:
    node = Node()
    node.look(1.0, bytes_in=1000, requests=4, connections=2)
    node.look(2.0, bytes_in=1500, bytes_out=7, requests=5, errors=1, connections=3)
    node.look(2.3, bytes_in=1600)  # too early: that second goes on
    assert node.column("bytes_in") == [1000, 500]
    assert node.column("bytes_out") == [0, 7]
    assert node.column("requests") == [4, 1]
    assert node.column("errors") == [0, 1]
    assert node.column("connections") == [2, 3]
    told = node.sampler.told("n")
    assert (told.first, told.newest, told.age_s) == (0, 1, pytest.approx(0.3))


def test_what_came_in_seconds_nobody_looked_at_is_spread_over_them() -> None:
    node = Node()
    node.look(1.0, bytes_in=1000)
    node.look(5.0, bytes_in=9000, requests=8)
    assert node.column("bytes_in") == [1000, 2000, 2000, 2000, 2000]
    assert node.column("requests") == [0, 2, 2, 2, 2]
    node.look(5.5 + 7200, bytes_in=9000)  # it was stopped for two hours
    assert node.column("bytes_in") == [0] * 900


def test_a_transfer_that_was_broken_off_takes_nothing_back() -> None:
    node = Node()
    node.look(1.0, bytes_in=1000)
    node.look(2.0, bytes_in=900)
    assert node.column("bytes_in") == [1000, 0]


def test_only_newer_seconds_are_told_unless_it_was_started_anew() -> None:
    node = Node()
    for second in range(1, 6):
        node.look(float(second), bytes_in=second)
    told = node.sampler.told("n")
    later = node.sampler.told("n", told.boot, 2)
    assert (later.first, later.columns["bytes_in"]) == (3, [1, 1])
    assert node.sampler.told("n", told.boot, 4).columns["bytes_in"] == []
    assert node.sampler.told("n", told.boot, 99).columns["bytes_in"] == []
    assert node.sampler.told("n", "00000000", 2).first == 0
    assert Node().sampler.told("n").columns == {}


def test_disks_are_as_busy_as_their_devices(tmp_path: Path) -> None:
    number = os.stat(tmp_path).st_dev
    place = tmp_path / f"{os.major(number)}:{os.minor(number)}"
    place.mkdir()
    file = place / "stat"
    node = Node()
    node.sampler.devices = {"d": Device(str(tmp_path), str(tmp_path)), "none": Device(str(tmp_path), str(tmp_path / "none"))}
    for second, busy_ms in enumerate((5000, 5250, 5250, 9000)):
        file.write_text(f" 1 2 3 4 5 6 7 8 0 {busy_ms} 11\n")
        node.look(second + 1.0)
    assert node.column(DISK + "d") == [None, 0.25, 0, 1]
    assert DISK + "none" not in node.sampler.told("n").columns
    file.write_text("what is this")
    node.look(5.0)
    assert node.column(DISK + "d")[-1] is None


async def test_an_error_does_not_end_it_and_stop_does(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = 0

    def counted() -> Counted:
        nonlocal looks
        looks += 1
        if 1 < looks < 4:
            raise RuntimeError("broken")
        return Counted(looks, 0, 0, 0, 0)

    clock = Clock()

    async def sleep(seconds: float) -> None:
        clock.seconds += seconds
        await real_sleep(0)

    real_sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", sleep)
    sampler = RateSampler(counted, clock)
    sampler.start()
    while looks < 6:
        await real_sleep(0)
    await sampler.stop()
    seen = looks
    await real_sleep(0.01)
    assert looks == seen
    assert sampler.told("n").newest >= 3
    assert len([record for record in caplog.records if "counters" in record.message]) == 1  # not once a second


async def test_stop_before_start() -> None:
    await RateSampler(lambda: Counted(0, 0, 0, 0, 0)).stop()


class Moving:
    def __init__(self, moved: int = 0) -> None:
        self.moved = moved

    def step(self) -> Any:
        return None


def test_bytes_count_while_they_move_and_once() -> None:
    meter, first, second = ByteMeter(), Moving(), Moving(50)
    meter.begin(first)
    meter.begin(second)  # goes on after a break: what it had moved before has counted
    first.moved, second.moved = 100, 60
    assert meter.total() == 110
    assert meter.end(first) == 100
    first.moved = 1000
    meter.add(5)
    assert meter.total() == 115
    assert meter.end(second) == 10
    assert meter.total() == 115


async def test_what_was_counted_while_it_moved_is_not_counted_again_at_its_end() -> None:
    server = serving(Settings(port=0), [], Route("{object…}", {}))
    server.bulk.coming.add(700)
    assert server._counted().bytes_in == 700
    server.stats.record("PUT", "/x", 503, 0.1, 1000, 20)
    server.stats.metered_in += 700
    assert server._counted() == Counted(1000, 20, 1, 1, 0)
    await server.stop()


def test_what_is_not_known_is_none() -> None:
    ring = SecondsRing(4)
    assert ring.last("x", 3) == [None, None, None]
    ring.put(0, {"x": 1.0})
    ring.put(3, {"x": 4.0, "y": 9.0})
    assert ring.last("x", 4) == [1.0, None, None, 4.0]
    assert ring.last("y", 4) == [None, None, None, 9.0]
    assert ring.last("z", 2) == [None, None]


def test_old_seconds_make_room_and_never_come_back() -> None:
    ring = SecondsRing(4)
    for second in range(6):
        ring.put(second, {"x": float(second)})
    assert (ring.first_from(0), ring.values("x", 2)) == (2, [2.0, 3.0, 4.0, 5.0])
    ring.put(1_000_000, {"x": 7.0})  # after a long rest
    assert ring.last("x", 6) == [None, None, None, None, None, 7.0]


def test_a_copy_is_told_only_what_it_lacks() -> None:
    ring, copy = SecondsRing(8), SecondsRing(8)
    for second in range(5):
        ring.put(second, {"x": float(second)})
    copy.take(NodeSeconds("n", "b", 0, 2, 0.0, {"x": ring.values("x", 0)[:3]}))
    told = NodeSeconds("n", "b", 1, 4, 0.0, {"x": ring.values("x", 1)})
    copy.take(msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=NodeSeconds))
    assert copy.last("x", 8) == ring.last("x", 8) == [None, None, None, 0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("first", "newest", "columns"),
    [(0, 10**15, {"x": [1.0]}), (0, 1, {"x": [1.0, 2.0], "y": [1.0]}), (5, 1, {}), (0, 10**15, {}), (10**15, 0, {"x": []})],
)
def test_what_does_not_fit_together_is_refused(first: int, newest: int, columns: dict[str, list[float | None]]) -> None:
    ring = SecondsRing(4)
    with pytest.raises(BadRequest):
        ring.take(NodeSeconds("n", "b", first, newest, 0.0, columns))
    assert ring.newest == -1
    ring.take(NodeSeconds("n", "b", 0, -1, 0.0, {}))  # it has just been started
    ring.take(NodeSeconds("n", "b", 10**15, 10**15, 0.0, {"x": [1.0]}))
    assert ring.last("x", 2) == [None, 1.0]


def test_a_ring_of_fifteen_minutes_takes_little_memory() -> None:
    ring = SecondsRing()
    for second in range(2000):
        ring.put(second, {"a": 1.0, "b": 2.0})
    assert sum(column.itemsize * len(column) for column in ring._values.values()) == 2 * 900 * 8
