"""Plots of what nodes have done, drawn as lines of SVG: numbers in, coordinates and words out. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from dfc.units import format_size
from dfc.wire.status import ClusterStats, NodeFigures

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
