"""Sums over time: nothing is lost when steps are joined, and there are never too many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.jobs.recording import STEP_S, TimeSteps

TIMES = st.lists(st.tuples(st.floats(-1, 1e6), st.integers(0, 10**12)), max_size=60)


@given(TIMES, st.integers(2, 9))
def test_sums_stay_the_same_and_steps_bounded(added, size):
    steps = TimeSteps(size, 2)
    for at_s, amount in added:
        steps.add(at_s, (amount, 1))
    assert [sum(column) for column in steps.columns] == ([sum(amount for _, amount in added), len(added)])
    assert {len(column) for column in steps.columns} == {len(steps.columns[0])}
    assert len(steps.columns[0]) <= size


@given(TIMES)
def test_what_is_in_a_step_happened_then(added):
    steps = TimeSteps(8, 1)
    for at_s, _ in added:
        steps.add(at_s, (1,))
    counts = [0] * len(steps.columns[0])
    for at_s, _ in added:
        counts[int(max(0.0, at_s) / steps.step_s)] += 1
    assert steps.columns[0] == counts


def test_resolution_is_halved_when_it_is_full_and_not_before():
    steps = TimeSteps(600, 1)
    steps.add(600 * STEP_S - 0.01, (1,))
    assert (steps.step_s, len(steps.columns[0])) == (STEP_S, 600)
    steps.add(600 * STEP_S, (1,))
    assert (steps.step_s, len(steps.columns[0])) == (2 * STEP_S, 301)
    steps.add(86_400 * 30, (1,))
    assert 300 < len(steps.columns[0]) <= 600
    assert sum(steps.columns[0]) == 3


@given(st.lists(st.tuples(st.floats(0, 5000), st.floats(0, 500)), min_size=1, max_size=20))
def test_a_time_is_spread_over_the_steps_in_which_it_lies(spans):
    steps = TimeSteps(16, 0)
    one, other = steps.add_column(), steps.add_column()
    for begin_s, length_s in spans:
        steps.spread(one, begin_s, begin_s + length_s)
    total_ms = 1000 * sum(length for _, length in spans)
    assert sum(steps.columns[one]) == pytest.approx(total_ms, abs=16 * len(spans))
    assert sum(steps.columns[other]) == 0


def test_a_column_that_comes_later_is_as_long_as_the_others():
    steps = TimeSteps(16, 0)
    first = steps.add_column()
    steps.spread(first, 0, 3)
    second = steps.add_column()
    steps.spread(second, 2.5, 3)
    assert steps.columns[first] == [250] * 12 + [0]
    assert steps.columns[second] == [0] * 10 + [250, 250, 0]


def test_what_was_kept_is_made_whole():
    steps = TimeSteps.of(4, 2.0, [[1, 2, 3, 4, 5], [1]])
    assert steps.columns == [[1, 2, 3, 4], [1, 0, 0, 0]]
    assert (steps.step_s, TimeSteps.of(4, float("nan"), []).step_s, TimeSteps.of(4, -1.0, []).step_s) == (2.0, STEP_S, STEP_S)
