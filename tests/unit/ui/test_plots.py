"""Numbers become points and paths that stay within their picture; live figures are collected once for all who follow them."""

from __future__ import annotations

import asyncio
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.errors import Unavailable
from dfc.ui import plots
from dfc.ui.plots import Figures, LiveFeed, boxes, polyline, rounded_top, steps_joined

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


class Collected:
    """Figures that are there when the test says so. `elsewhere`: where the coordinator is."""

    def __init__(self) -> None:
        self.count, self.now_s = 0, 0.0
        self.going_on = asyncio.Event()
        self.error: Exception | None = None
        self.elsewhere: str | None = None
        self.feed = LiveFeed(self._collect, lambda: self.elsewhere, lambda: self.now_s)

    async def _collect(self) -> Figures:
        self.count += 1
        await self.going_on.wait()
        if self.error is not None:
            raise self.error
        return Figures("s", {"n": str(self.count)})


async def test_all_who_look_share_a_collection_for_a_second() -> None:
    made = Collected()
    looking = [asyncio.create_task(made.feed.figures()) for _ in range(20)]
    encoded = asyncio.create_task(made.feed.now())
    await asyncio.sleep(0)
    made.going_on.set()
    assert {each.values["n"] for each in await asyncio.gather(*looking)} == {"1"}
    assert msgspec.json.decode(await encoded) == {"shape": "s", "values": {"n": "1"}}
    made.now_s = 1.0
    assert (await made.feed.figures()).values == {"n": "2"}


async def test_who_leaves_takes_nothing_from_the_others() -> None:
    made = Collected()
    leaving, staying = asyncio.create_task(made.feed.figures()), asyncio.create_task(made.feed.figures())
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait((leaving,))
    made.going_on.set()
    assert (leaving.cancelled(), (await staying).values, made.count) == (True, {"n": "1"}, 1)


async def test_one_failure_is_told_to_all_and_not_kept() -> None:
    made = Collected()
    made.error = Unavailable("no answer")
    looking = [asyncio.create_task(made.feed.figures()) for _ in range(20)]
    await asyncio.sleep(0)
    made.going_on.set()
    found = await asyncio.gather(*looking, return_exceptions=True)
    assert ({type(each) for each in found}, made.count) == ({Unavailable}, 1)
    made.error = None
    assert (await made.feed.figures()).values == {"n": "2"}


async def test_a_stream_says_why_there_are_no_figures_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "EVERY_S", 0.001)
    made = Collected()
    made.going_on.set()
    made.error = Unavailable("no answer")
    stream = made.feed.stream()
    assert await anext(stream) == b"retry: 500\n\n"
    assert await anext(stream) == b'event: silence\ndata: "no answer"\n\n'
    made.error = None
    assert await anext(stream) == b'event: figures\ndata: {"shape":"s","values":{"n":"2"}}\n\n'
    assert made.feed.streams == 1
    made.feed.end()
    assert [each async for each in stream] == []
    assert made.feed.streams == 0


@pytest.mark.parametrize("why", ["late", "moved"])
async def test_a_stream_ends_so_that_browsers_ask_again(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    monkeypatch.setattr(plots, "EVERY_S", 0.001)
    made = Collected()
    made.going_on.set()
    stream = made.feed.stream()
    await anext(stream)
    await anext(stream)
    if why == "late":
        made.now_s = plots.STREAM_S
    else:
        made.elsewhere = "http://other"
    assert [each async for each in stream] == []


async def test_a_collection_does_not_outlive_its_node() -> None:
    made = Collected()
    looking = asyncio.create_task(made.feed.figures())
    await asyncio.sleep(0)
    made.feed.end()  # ends streams alone
    await asyncio.sleep(0)
    assert not looking.done()
    await made.feed.stop()
    with pytest.raises(Unavailable, match="stops"):
        await looking
