"""Histograms of a `stats` report, and which values are far from the others. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final, NamedTuple

from dfc.jobs.reports import StatsReport
from dfc.ui import words
from dfc.units import format_size

CLASSES_SHOWN_MAX: Final = 40
SMALL_BYTES: Final = 16  # of fields with nothing larger, such as classes, sizes say nothing
FIELDS_SHOWN_MAX: Final = 8
SIZES_SHOWN_MAX: Final = 64  # of a field: one for each number of bits
BAR_UNITS: Final = 1000
FAR_SHARE: Final = 0.25  # of the median: nearer values are never far
FAR_DEVIATIONS: Final = 6.0
FAR_VALUES_MIN: Final = 4  # of fewer none can be said to be far from the others
_NUMBER: Final = re.compile("-?[0-9]{1,18}")


class Bar(NamedTuple):
    """A line of a histogram. `length`: of the bar, in BAR_UNITS."""

    label: str
    value: str
    length: int


class Histogram(NamedTuple):
    """A histogram. `left_out`: so many bars are not shown, after the bar at `cut`."""

    title: str
    bars: list[Bar]
    left_out: int = 0
    cut: int = 0


def class_histogram(report: StatsReport) -> Histogram | None:
    """The samples of each class; of many, of the largest and the smallest. None if they were not counted."""
    if not report.classes:
        return None
    found = [(name, totals.samples) for name, totals in report.classes.items()]
    if len(found) <= CLASSES_SHOWN_MAX:
        found.sort(key=_as_people_sort)
        return Histogram("", _bars(found))
    found.sort(key=lambda pair: (-pair[1], _as_people_sort(pair)))
    half = CLASSES_SHOWN_MAX // 2
    return Histogram("", _bars(found[:half] + found[-half:]), len(found) - 2 * half, half)


def size_histograms(report: StatsReport) -> list[Histogram]:
    """The sizes of each field, of those with the most bytes; not of fields that are always small."""
    fields = sorted(report.extensions.items(), key=lambda pair: -pair[1].bytes)[:FIELDS_SHOWN_MAX]
    shown = [(ext, totals) for ext, totals in fields if totals.sizes and totals.largest > SMALL_BYTES]
    return [Histogram(ext, _size_bars(totals.sizes[:SIZES_SHOWN_MAX])) for ext, totals in shown]


def _size_bars(sizes: Iterable[tuple[int, int]]) -> list[Bar]:
    """A bar for each doubling of the size, from the smallest to the largest."""
    by_bits: dict[int, int] = {}
    for size, members in sizes:
        bits = min(size.bit_length(), SIZES_SHOWN_MAX)
        by_bits[bits] = by_bits.get(bits, 0) + members
    every = range(min(by_bits), max(by_bits) + 1)
    return _bars([(_size_label(bits), by_bits.get(bits, 0)) for bits in every])


def _size_label(bits: int) -> str:
    return "empty" if bits == 0 else f"{format_size(1 << bits >> 1)} to {format_size(1 << bits)}"


def _bars(pairs: Sequence[tuple[str, int]]) -> list[Bar]:
    most = max((value for _, value in pairs), default=0)
    return [Bar(label, words.count(value), round(BAR_UNITS * value / most) if most else 0) for label, value in pairs]


def _as_people_sort(pair: tuple[str, int]) -> tuple[bool, int, str]:
    is_number = _NUMBER.fullmatch(pair[0]) is not None
    return not is_number, int(pair[0]) if is_number else 0, pair[0]


class Usual(NamedTuple):
    """The range of values that are not far from the others, and their median."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[int]) -> Usual:
        """The range around the median: a quarter of it to each side, or six times the median distance from it if that is more.
        All values, if there are few."""
        middle = median(values) if values else 0.0
        if len(values) < FAR_VALUES_MIN:
            return cls(middle, float("-inf"), float("inf"))
        reach = max(FAR_SHARE * middle, FAR_DEVIATIONS * median([abs(value - middle) for value in values]))
        return cls(middle, middle - reach, middle + reach)

    def mark(self, value: int, few: str, many: str) -> str:
        """Return the word for a value that is far from the others; empty for one that is not."""
        return few if value < self.low else many if value > self.high else ""
