"""Plots of numbers, of nodes and of live figures.

They are the texts of SVG attributes; how it looks, templates and the style say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Literal, NamedTuple

import msgspec

from dfc.errors import DfcError
from dfc.http.peer import SharedCall
from dfc.limits import format_size
from dfc.wire.status import ClusterStats, NodeFigures


def polyline(points: Iterable[tuple[float, float]], width: float, height: float, right: float, top: float) -> str:
    """The `points` of a polyline in a picture of this size, whose lower left corner is (0, 0) and whose upper right one is
    (`right`, `top`); what is outside is moved to the edge."""
    return " ".join(f"{_number(width * _share(x, right))},{_number(height * (1 - _share(y, top)))}" for x, y in points)


def boxes(some: Iterable[tuple[float, float, float]], width: float, height: float, right: float, gap: float = 0.0) -> str:
    """The `d` of a path of boxes that stand on the ground, each (begin, length, share of the height); `right` is where the
    picture ends. Each is drawn narrower by `gap`, but not less than that wide."""
    drawn = []
    for begin, length, share in some:
        left, end = width * _share(begin, right), width * _share(begin + length, right)
        wide, high = max(gap, end - left - gap), height * _share(share, 1)
        if high > 0 and wide > 0:
            drawn.append(f"M{_number(left)} {_number(height)}h{_number(wide)}v{_number(-high)}h{_number(-wide)}z")
    return "".join(drawn)


def steps_joined(values: Sequence[float], count_max: int) -> tuple[list[float], int]:
    """Join neighbours until there are at most so many sums; return these, and how many values are in each, but for the last."""
    each = max(1, -(-len(values) // count_max))
    return [sum(values[at : at + each]) for at in range(0, len(values), each)], each


def rounded_top(value: float) -> float:
    """The end of an axis for values up to this one: 1, 2 or 5 times a power of ten; 1 if there are none."""
    if not 0 < value < float("inf"):
        return 1.0
    power = 10.0 ** (len(f"{int(value)}") - 1) if value >= 1 else 1.0
    while power > value:
        power /= 10
    return next((power * step for step in (1, 2, 5) if power * step >= value), power * 10)


def _share(value: float, whole: float) -> float:
    return min(1.0, max(0.0, value / whole)) if whole > 0 else 0.0


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


# --- Plots of what nodes have done, drawn as lines of SVG: numbers in, coordinates and words out. No I/O.

HEIGHT: Final = 200
STEP: Final = 2  # from one point to the next, in units of the drawing
LINES_MAX: Final = 8  # further nodes are one line
OTHERS: Final = "others"
UNKNOWN: Final = "–"
Values = Sequence[float | None]


class Line(NamedTuple):
    """A node, or all others together. `number`: its class in the style sheet. `parts`: the points of each stretch of the time
    in which it is known. The figures are words."""

    name: str
    number: int
    parts: list[str]
    now: str
    mean: str
    peak: str


class Plot(NamedTuple):
    """A drawing, `width` wide and HEIGHT high. `label` says it in words."""

    title: str
    label: str
    top: str
    width: int
    lines: list[Line]


class RatesShown(NamedTuple):
    """What a page shows of the last minutes. `silent`: nodes that did not answer, and why."""

    plots: list[Plot]
    minutes: str
    until: str
    silent: list[tuple[str, str]]


def rates_shown(series: ClusterStats) -> RatesShown:
    """Draw the bytes that nodes have received and sent."""
    plots = [plot(series, "bytes_in", "In"), plot(series, "bytes_out", "Out")]
    silent = [(node.id, node.why) for node in series.nodes if node.silent]
    return RatesShown(plots, f"{series.seconds / 60:.0f} min", series.until, silent)


def plot(series: ClusterStats, figure: Literal["bytes_in", "bytes_out"], title: str) -> Plot:
    """Draw a figure of all nodes, those with most of it singly."""
    drawn = by_node(series.nodes, figure)
    top = max((value for _, values in drawn for value in values if value is not None), default=0.0)
    lines = [
        Line(name, number, parts(values, top), per_second(latest(values)), per_second(mean(values)), per_second(peak(values)))
        for number, (name, values) in enumerate(drawn)
    ]
    said = ", ".join(f"{line.name} {line.mean} on average, {line.peak} at most" for line in lines)
    count = max((len(values) for _, values in drawn), default=1)
    return Plot(
        title, f"{title}, bytes a second: {said or 'nothing is known'}", per_second(top), STEP * max(1, count - 1), lines
    )


def by_node(nodes: Iterable[NodeFigures], figure: Literal["bytes_in", "bytes_out"]) -> list[tuple[str, Values]]:
    """Return the values of each node by its id: of those with the highest sums, and of all others together."""
    found: list[tuple[str, Values]] = [(node.id, getattr(node, figure)) for node in nodes]
    found.sort(key=lambda each: -sum(value or 0 for value in each[1]))
    shown, rest = sorted(found[:LINES_MAX], key=lambda each: each[0]), [values for _, values in found[LINES_MAX:]]
    return [*shown, (f"{len(rest)} {OTHERS}", added(rest))] if rest else list(shown)


def added(rows: Sequence[Values]) -> Values:
    """Return the sums of what is known, point by point."""
    known = ([value for value in column if value is not None] for column in zip(*rows, strict=True))
    return [sum(values) if values else None for values in known]


def parts(values: Values, top: float) -> list[str]:
    """Return the points of each stretch without a gap."""
    found: list[list[str]] = [[]]
    for number, value in enumerate(values):
        if value is None:
            found.append([])
        else:
            found[-1].append(f"{STEP * number},{HEIGHT - round(HEIGHT * value / top) if top else HEIGHT}")
    return [" ".join(points if len(points) > 1 else points * 2) for points in found if points]  # one point alone is a dot


def latest(values: Values) -> float | None:
    return values[-1] if values else None


def mean(values: Values) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def peak(values: Values) -> float | None:
    return max((value for value in values if value is not None), default=None)


def per_second(value: float | None) -> str:
    return UNKNOWN if value is None else f"{format_size(round(value))}/s"


def recent_words(node: NodeFigures | None) -> str:
    """Say in one line what a node has done, on average of the seconds of these figures."""
    if node is None or node.silent:
        return "silent"
    requests = mean(node.requests)
    many = UNKNOWN if requests is None else f"{requests:.0f}"
    return f"in {per_second(mean(node.bytes_in))}, out {per_second(mean(node.bytes_out))}, {many} requests/s"


# --- Live figures: what changes on a page while it is looked at, collected once a second however many look.

EVERY_S: Final = 1.0
STREAM_S: Final = 15.0


class Figures(NamedTuple):
    """What is shown at one moment. `shape`: another value means that there is more or less to show than before, so that the
    page has to be rendered anew; `values` are texts by the names of their places on pages."""

    shape: str
    values: Mapping[str, str]


class LiveFeed:
    """Sends figures to browsers. `collect` returns those of now; `elsewhere` the URL of another proxy that has them, if one
    has. `clock_s` is replaced by tests."""

    def __init__(
        self,
        collect: Callable[[], Awaitable[Figures]],
        elsewhere: Callable[[], str | None] = lambda: None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._collect = collect
        self._elsewhere = elsewhere
        self._clock_s = clock_s
        self._collecting = SharedCall(self._collected, EVERY_S, clock_s)
        self._ending = asyncio.Event()
        self.streams = 0

    def end(self) -> None:
        """End all streams: the node stops."""
        self._ending.set()

    async def stop(self) -> None:
        """Collect nothing any more; call it after the last request."""
        await self._collecting.stop()

    async def now(self) -> bytes:
        """Return the figures as JSON, at most EVERY_S old. DfcError when they cannot be had."""
        return (await self._collecting.get())[1]

    async def figures(self) -> Figures:
        """Return the figures, at most EVERY_S old. DfcError when they cannot be had."""
        return (await self._collecting.get())[0]

    async def _collected(self) -> tuple[Figures, bytes]:
        figures = await self._collect()
        return figures, msgspec.json.encode({"shape": figures.shape, "values": figures.values})

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield server-sent events for a while, after which browsers ask again: they may have come through another proxy, which
        cannot end the stream when it stops. While there are no figures, the stream says why, and goes on."""
        self.streams += 1
        try:
            yield b"retry: 500\n\n"
            until_s = self._clock_s() + STREAM_S
            while not self._ending.is_set() and self._clock_s() < until_s and self._elsewhere() is None:
                try:
                    yield b"event: figures\ndata: %b\n\n" % await self.now()
                except DfcError as error:
                    yield b"event: silence\ndata: %b\n\n" % msgspec.json.encode(error.message)
                with suppress(TimeoutError):
                    async with asyncio.timeout(EVERY_S):
                        await self._ending.wait()
        finally:
            self.streams -= 1
