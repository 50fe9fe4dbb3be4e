"""Numbers become points and paths that stay within their picture."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.ui.plots import boxes, polyline, rounded_top, steps_joined

NUMBERS = st.floats(-1e9, 1e12)


def test_points_are_scaled_and_up_is_more():
    assert polyline([(0, 0), (5, 10), (10, 20)], 100, 50, 10, 20) == "0,50 50,25 100,0"
    assert polyline([], 100, 50, 10, 20) == ""
    assert polyline([(1, 1)], 100, 50, 0, 0) == "0,50"


@given(st.lists(st.tuples(NUMBERS, NUMBERS)), NUMBERS, NUMBERS)
def test_points_are_within_the_picture(points, right, top):
    for x, y in re.findall("([^ ]+),([^ ]+)", polyline(points, 600, 140, right, top)):
        assert 0 <= float(x) <= 600
        assert 0 <= float(y) <= 140


def test_boxes_stand_on_the_ground():
    assert boxes([(0, 5, 1.0), (5, 5, 0.5)], 100, 16, 10) == "M0 16h50v-16h-50zM50 16h50v-8h-50z"
    assert boxes([(0, 5, 0.0)], 100, 16, 10) == ""
    assert boxes([(5, 0, 1.0)], 100, 16, 10, 0.6) == "M50 16h0.6v-16h-0.6z", "what took no time is seen"


@given(st.lists(st.integers(0, 10**15), max_size=700), st.integers(1, 200))
def test_joined_steps_have_the_same_sum(values, count_max):
    sums, each = steps_joined(values, count_max)
    assert sum(sums) == sum(values)
    assert len(sums) <= count_max
    assert each * len(sums) >= len(values)


@given(st.floats(1e-6, 1e18))
def test_the_end_of_an_axis_is_round_and_near(value):
    top = rounded_top(value)
    assert value <= top * (1 + 1e-9)
    assert top <= 10 * value
    assert f"{top:e}"[0] in "125"


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_without_values_there_is_an_axis_all_the_same(value):
    assert rounded_top(value) == 1
