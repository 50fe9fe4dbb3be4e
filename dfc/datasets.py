"""Group shards into datasets by their names: those that differ by a number alone belong together. No I/O.

The number is the last run of digits in the base name, or the one before a final `-of-000128`. It is written with zeros to one
width, or without any.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import msgspec

from dfc.errors import TooLarge
from dfc.limits import DATASET_MISSING_MAX, DATASET_SHARDS_MAX, DATASETS_MAX
from dfc.pages import Row, rfc3339

_NUMBER: Final = re.compile(r"(.*?)([0-9]{1,18})((?:-of-[0-9]+)?[^0-9/]*(?:\.[a-z]+[0-9][a-z0-9]*)?)", re.DOTALL)


class Dataset(msgspec.Struct, frozen=True):
    """Shards that belong together. `pattern`: the name of the only one, or all names with the numbers as `{000000..000146}`.
    `modified`: when the newest was stored. `missing`: the first numbers between the first and the last that are not there, of
    `missing_count`; none if fewer than half are there, since then the numbers count something else."""

    pattern: str
    shards: int
    samples: int
    bytes: int
    modified: str
    missing: list[str]
    missing_count: int


@dataclass
class _Tally:
    shards: int = 0
    samples: int = 0
    size: int = 0
    modified_us: int = 0
    numbers: array[int] = field(default_factory=lambda: array("Q"))

    def add(self, other: _Tally) -> None:
        self.shards += other.shards
        self.samples += other.samples
        self.size += other.size
        self.modified_us = max(self.modified_us, other.modified_us)
        self.numbers += other.numbers


class DatasetTally:
    """Adds up the shards of a listing, page by page. Memory: 8 bytes a shard, and what there is for each dataset."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], dict[tuple[bool, int], _Tally]] = {}
        self._shards = 0

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows of a listing; those of no shard are left out. TooLarge."""
        for name, size, _, modified_us, samples, _ in rows:
            if samples is None:
                continue
            self._shards += 1
            if self._shards > DATASET_SHARDS_MAX:
                raise TooLarge(f"there are more than {DATASET_SHARDS_MAX:,} shards: ask for those under a prefix")
            before, digits, after = split(name)
            # Zeros in front give a width away; a number without may have any width.
            widths = self._found.setdefault((before, after), {})
            if len(self._found) > DATASETS_MAX:
                raise TooLarge(f"there are more than {DATASETS_MAX:,} datasets: ask for those under a prefix")
            tally = widths.setdefault((digits.startswith("0") and len(digits) > 1, len(digits)), _Tally())
            tally.add(_Tally(1, samples, size, modified_us, array("Q", [int(digits)] if digits else [])))

    def datasets(self) -> list[Dataset]:
        """Return what was found, in the order of the patterns."""
        found = []
        for (before, after), widths in self._found.items():
            padded = {width: tally for (has_zeros, width), tally in widths.items() if has_zeros}
            plain = _Tally()
            for (has_zeros, width), tally in widths.items():
                if not has_zeros:
                    padded.get(width, plain).add(tally)
            found += [_dataset(before, after, width, tally) for width, tally in padded.items()]
            if plain.shards:
                found.append(_dataset(before, after, 0, plain))
        return sorted(found, key=lambda dataset: dataset.pattern.encode("utf-8", "surrogatepass"))


def split(name: str) -> tuple[str, str, str]:
    """Return what comes before the number of a shard, its digits, and what comes after; without a number, the name alone."""
    folder, slash, base = name.rpartition("/")
    found = _NUMBER.fullmatch(base)
    return (name, "", "") if found is None else (folder + slash + found[1], found[2], found[3])


def _dataset(before: str, after: str, width: int, tally: _Tally) -> Dataset:
    numbers = sorted(set(tally.numbers))
    if not numbers:
        pattern = before + after
    elif len(numbers) == 1:
        pattern = f"{before}{numbers[0]:0{width}d}{after}"
    else:
        pattern = f"{before}{{{numbers[0]:0{width}d}..{numbers[-1]:0{width}d}}}{after}"
    gaps = 0 if not numbers else numbers[-1] - numbers[0] + 1 - len(numbers)
    missing: list[str] = []
    if gaps > len(numbers):
        gaps = 0
    elif gaps:
        for number, following in pairwise(numbers):
            if len(missing) >= DATASET_MISSING_MAX:
                break
            missing += [f"{each:0{width}d}" for each in range(number + 1, following)]
    return Dataset(
        pattern,
        tally.shards,
        tally.samples,
        tally.size,
        rfc3339(tally.modified_us),
        missing[:DATASET_MISSING_MAX],
        gaps,
    )
