"""The last seconds of a node: nothing is invented, nothing of long ago comes back."""

from __future__ import annotations

import msgspec
import pytest

from dfc.errors import BadRequest
from dfc.http.rates import NodeSeconds, SecondsRing


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
