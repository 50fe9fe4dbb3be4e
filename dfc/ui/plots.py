"""Plots as the texts of SVG attributes: from numbers to points and paths. Pure; how it looks, templates and the style say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


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
