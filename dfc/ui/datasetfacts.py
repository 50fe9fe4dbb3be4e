"""What the page of a dataset shows: its fields, histograms and shards. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from dfc.jobs.records import StatsReport
from dfc.limits import format_size
from dfc.listing.datasets import DatasetShards
from dfc.listing.pages import rfc3339
from dfc.proxy.samples import SampleRow
from dfc.ui import words
from dfc.ui.words import Kind, array_of, kind_of, last_part, shard_url, text_of

PICKLES: Final = frozenset(("pyd", "pkl", "pickle", "pth"))  # whoever decodes them runs what is in them
NUMBERS: Final = frozenset(("cls", "cls2", "count", "index", "inx"))  # loaders make whole numbers of them
EXAMPLE_CHARS: Final = 60
SHORT_CHARS: Final = 12  # of values of which some are shown
EXAMPLES_SHOWN: Final = 4
_WHOLE: Final = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")


class FieldFacts(NamedTuple):
    """A field: in how many samples it is, its smallest and largest size, all its bytes, and the beginning of one (empty: it
    was not looked at) and of `others`."""

    ext: str
    samples: int
    smallest: int
    largest: int
    total: int
    example: bytes = b""
    others: tuple[bytes, ...] = ()

    @property
    def kind(self) -> Kind:
        """What it is to a browser."""
        return kind_of(self.ext)

    @property
    def last(self) -> str:
        """The last part of the extension, which says what it is."""
        return last_part(self.ext)

    @property
    def is_pickle(self) -> bool:
        """Whether decoding it could run a program."""
        return self.last in PICKLES

    @property
    def is_number(self) -> bool:
        """Whether loaders can make a whole number of it, as far as is known."""
        return self.last in NUMBERS and (not self.example or _WHOLE.fullmatch(self.text or "") is not None)

    @property
    def is_plain(self) -> bool:
        """Whether loaders must leave its bytes alone: by its name they would make a number of what is none."""
        return self.last in NUMBERS and not self.is_number

    @property
    def text(self) -> str:
        """The beginning of it as text; empty if it is none."""
        return text_of(self.example, is_whole=False) or ""

    @property
    def type(self) -> str:
        """What it is, in words."""
        if self.kind == "array":
            return array_of(self.example) or "array"
        if self.is_number and self.example:
            return "whole number"
        if self.last in ("json", "jsonl"):
            return "JSON"
        return self.kind

    @property
    def shown(self) -> str:
        """One line of text as an example, or several short ones; empty if it is no text."""
        if self.kind != "text":
            return ""
        line, *others = (" ".join((text_of(each, is_whole=False) or "").split()) for each in (self.example, *self.others))
        short = dict.fromkeys(each for each in (line, *others) if 0 < len(each) <= SHORT_CHARS)
        if line in short:
            return ", ".join(list(short)[:EXAMPLES_SHOWN])
        return line if len(line) <= EXAMPLE_CHARS else line[:EXAMPLE_CHARS] + "…"


def is_short(ext: str, size: int) -> bool:
    """Whether a field is a text of which several fit in a line, such as a class."""
    return 0 < size <= SHORT_CHARS and kind_of(ext) == "text"


def fields_of(rows: Iterable[SampleRow], *examples: Mapping[str, bytes]) -> list[FieldFacts]:
    """Add up the fields of samples, in the order in which they first occur. `examples`: the beginnings of some."""
    found: dict[str, FieldFacts] = {}
    for row in rows:
        for ext, field in row.members.items():
            size, known = field.size, found.get(ext)
            if known is None:
                example, *others = [some[ext] for some in examples if ext in some] or [b""]
                found[ext] = FieldFacts(ext, 1, size, size, size, example, tuple(others))
            else:
                found[ext] = known._replace(
                    samples=known.samples + 1,
                    smallest=min(known.smallest, size),
                    largest=max(known.largest, size),
                    total=known.total + size,
                )
    return list(found.values())


# --- Histograms of a `stats` report, and which values are far from the others. No I/O.

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


# --- The shards of a dataset as lines of a table, with those that are missing or far from the others. No I/O.

LINES_MAX: Final = 100  # shards on a page
ODD_SHOWN_MAX: Final = 10


class ShardLine(NamedTuple):
    """A shard; or, with `missing`, numbers that are not there: their number. `marks`: what is far from other shards."""

    name: str
    url: str
    samples: int
    size: int
    modified: str
    marks: str
    missing: int = 0


class ShardLines:
    """Makes lines of the shards of a dataset in a bucket."""

    def __init__(self, bucket: str, shards: DatasetShards) -> None:
        self._bucket = bucket
        self._columns = shards
        self.samples, self.sizes = Usual.of(shards.samples), Usual.of(shards.sizes)

    def page(self, start: int) -> list[ShardLine]:
        """Return the lines of LINES_MAX shards from a place on, each after those that are missing before it."""
        shards, found = self._columns, list[ShardLine]()
        for at in range(start, min(start + LINES_MAX, len(shards))):
            gap = shards.numbers[at] - shards.numbers[at - 1] - 1 if at and shards.missing else 0
            if gap and shards.names is not None:
                first, last = shards.names.digits(shards.numbers[at - 1] + 1), shards.names.digits(shards.numbers[at] - 1)
                found.append(ShardLine(first if gap == 1 else f"{first} to {last}", "", 0, 0, "", "", gap))
            found.append(self._line(at))
        return found

    def odd(self) -> tuple[list[ShardLine], int]:
        """Return the first shards that are far from the others, and how many there are."""
        places = [at for at in range(len(self._columns)) if self._marks(at)]
        return [self._line(at) for at in places[:ODD_SHOWN_MAX]], len(places)

    def _line(self, at: int) -> ShardLine:
        shards, name = self._columns, self._columns.name(at)
        url, modified = shard_url(self._bucket, name), rfc3339(shards.modified_us[at])
        return ShardLine(name, url, shards.samples[at], shards.sizes[at], modified, self._marks(at))

    def _marks(self, at: int) -> str:
        samples = self.samples.mark(self._columns.samples[at], "few samples", "many samples")
        size = self.sizes.mark(self._columns.sizes[at], "small", "large")
        return ", ".join(filter(None, (samples, size)))
