"""Seconds of several nodes side by side: by how long ago they were, in as many points as there is room for."""

from __future__ import annotations

import pytest

from dfc.http.rates import DISK, NodeSeconds
from dfc.proxy.rates import NodeMirror, coarse, step_for


def mirror(values: list[float], *, answered_s: float = 100.0, age_s: float = 0.0) -> NodeMirror:
    made = NodeMirror("n", "target")
    made.ring.take(NodeSeconds("n", "b", 0, len(values) - 1, 0.0, {"bytes_in": list(values), DISK + "d": list(values)}))
    made.answered_s, made.age_s = answered_s, age_s
    return made


def test_the_last_seconds_are_those_before_now() -> None:
    assert mirror([1, 2, 3]).last("bytes_in", 5, 100.0) == [None, None, 1, 2, 3]
    assert mirror([1, 2, 3]).last("bytes_in", 2, 100.0) == [2, 3]


@pytest.mark.parametrize(("age_s", "shift"), [(0.0, 0), (0.99, 0), (1.4, 0), (1.6, 1), (2.4, 1), (2.6, 2), (90.0, 3)])
def test_nodes_are_aligned_by_age(age_s: float, shift: int) -> None:
    """The clocks of nodes differ, and a second of one ends when that of another begins."""
    expected = ([None] * 3 + [1, 2, 3] + [None] * shift)[-3:] if shift < 3 else [None] * 3
    assert mirror([1, 2, 3], age_s=age_s).last("bytes_in", 3, 100.0) == expected
    assert mirror([1, 2, 3]).last("bytes_in", 3, 100.0 + age_s) == expected


def test_what_is_not_known_is_never_zero() -> None:
    nobody = NodeMirror("n", "target")
    nobody.silent, nobody.why = True, "gone"
    stats = nobody.stats(4, 1, 100.0)
    assert stats.bytes_in == stats.errors == [None] * 4
    assert (stats.silent, stats.silent_s, stats.why, stats.disks) == (True, None, "gone", {})
    was_there = mirror([1, 2, 3])
    was_there.silent = True
    assert was_there.stats(4, 1, 103.0).silent_s == 3.0
    assert was_there.stats(6, 1, 103.0).bytes_in == [None, 1, 2, 3, None, None]
    assert was_there.stats(6, 1, 103.0).disks == {"d": [None, 1, 2, 3, None, None]}
    assert was_there.stats(6, 1, 103.0).bytes_out == [None] * 6


def test_points_are_means_of_what_is_known() -> None:
    assert coarse([1, 2, 3, 4, None, None, None, 5, 6], 3) == [2, 4, 5.5]
    assert coarse([None, None], 2) == [None]
    # Of 5 seconds in steps of 2, the first point begins a second earlier, and the last one ends now.
    assert mirror([1, 2, 3, 4, 5, 6]).stats(5, 2, 100.0).bytes_in == [1.5, 3.5, 5.5]


@pytest.mark.parametrize(
    ("seconds", "series", "step"),
    [(1, 0, 1), (60, 20, 1), (300, 20, 1), (301, 20, 2), (900, 20, 3), (900, 6000, 28), (900, 10**9, 900)],
)
def test_answers_are_bounded(seconds: int, series: int, step: int) -> None:
    assert step_for(seconds, series) == step
