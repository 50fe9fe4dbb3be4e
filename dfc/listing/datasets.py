"""Group shards into datasets by their names: those that differ by a number alone belong together. No I/O.

The number is the last run of digits in the base name, or the one before a final `-of-000128`. It is written with zeros to one
width, or without any.
"""

from __future__ import annotations

import posixpath
import re
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, pairwise
from typing import Final, NamedTuple

import msgspec

from dfc.errors import TooLarge
from dfc.limits import DATASET_MISSING_MAX, DATASET_SHARDS_MAX, DATASETS_MAX
from dfc.listing.pages import Row, rfc3339
from dfc.listing.specs import is_plain
from dfc.wire.objects import DatasetInfo

_NUMBER: Final = re.compile(r"(.*?)([0-9]{1,18})((?:-of-[0-9]+)?[^0-9/]*(?:\.[a-z]+[0-9][a-z0-9]*)?)", re.DOTALL)
SPEC_RUNS_MAX: Final = 16  # of shards without a gap, that a spec names one by one
SPEC_NAMES_MAX: Final = 100  # that are listed instead of a pattern
_CHECKSUM_BYTES: Final = 16
_RANGE: Final = re.compile(r"([0-9]{1,18})\.\.([0-9]{1,18})\}(.*)", re.DOTALL)


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

    def datasets(self) -> list[DatasetInfo]:
        """Return what was found, in the order of the patterns."""
        found = [
            _dataset(before, after, width, tally)
            for (before, after), widths in self._found.items()
            for width, tally in _joined(widths).items()
        ]
        return sorted(found, key=lambda dataset: dataset.pattern.encode("utf-8", "surrogatepass"))

    def around(self, names: NumberedNames) -> DatasetInfo | None:
        """Return the dataset that the name is of which these are around: see `NumberedNames.around`."""
        widths = _joined(self._found.get((names.before, names.after), {}))
        width = len(str(names.last))
        width = width if width in widths else 0
        return _dataset(names.before, names.after, width, widths[width]) if width in widths else None


def _joined(widths: Mapping[tuple[bool, int], _Tally]) -> dict[int, _Tally]:
    """Join numbers that have no zeros in front with those of their width that have. 0: the width of all others."""
    found: dict[int, _Tally] = {}
    for (has_zeros, width), tally in widths.items():
        joined = found.setdefault(width if has_zeros or (True, width) in widths else 0, _Tally())
        joined.add(tally)
    return found


def split(name: str) -> tuple[str, str, str]:
    """Return what comes before the number of a shard, its digits, and what comes after; without a number, the name alone."""
    folder, slash, base = name.rpartition("/")
    found = _NUMBER.fullmatch(base)
    return (name, "", "") if found is None else (folder + slash + found[1], found[2], found[3])


def names_beside(name: str) -> tuple[list[str], list[str]]:
    """The names that the shards before and after one may have."""
    before, digits, after = split(name)
    if not digits:
        return [], []
    number, width = int(digits), len(digits)
    smaller = {f"{number - 1:0{width}d}"} | (set() if digits.startswith("0") else {str(number - 1)}) if number else set()
    return [f"{before}{each}{after}" for each in sorted(smaller)], [f"{before}{number + 1:0{width}d}{after}"]


def _dataset(before: str, after: str, width: int, tally: _Tally) -> DatasetInfo:
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
    modified = rfc3339(tally.modified_us)
    return DatasetInfo(pattern, tally.shards, tally.samples, tally.size, modified, missing[:DATASET_MISSING_MAX], gaps)


def braces(runs: Sequence[tuple[int, int]], width: int) -> str:
    """Write runs of numbers as bash expands them: `{000..016}`, `{{000..016},018}`."""
    found = [f"{first:0{width}d}" if first == last else f"{{{first:0{width}d}..{last:0{width}d}}}" for first, last in runs]
    return found[0] if len(found) == 1 else "{" + ",".join(found) + "}"


def _listed(names: Sequence[str]) -> str:
    return msgspec.json.encode(names).decode()


class NumberedNames(NamedTuple):
    """The names that the pattern of a dataset stands for: `before`, a number from `first` to `last`, `after`. The number has
    `width` digits, with zeros in front; 0: without any."""

    before: str
    first: int
    last: int
    width: int
    after: str

    @classmethod
    def of(cls, pattern: str) -> NumberedNames | None:
        """Take a pattern of `DatasetInfo` apart. None if it is a plain name."""
        before, braces, numbers = pattern.rpartition("{")
        found = _RANGE.fullmatch(numbers) if braces else None
        if found is None or int(found[1]) > int(found[2]):
            return None
        has_zeros = len(found[1]) == len(found[2]) and found[1].startswith("0") and len(found[1]) > 1
        return cls(before, int(found[1]), int(found[2]), len(found[1]) if has_zeros else 0, found[3])

    @classmethod
    def around(cls, name: str) -> NumberedNames | None:
        """All names that differ from this one by their number alone, if it has zeros in front. If not, those with up to so many
        digits, since others may have zeros in front or not: see `DatasetTally.around`. None if it has no number."""
        before, digits, after = split(name)
        if not digits:
            return None
        width = len(digits) if digits.startswith("0") and len(digits) > 1 else 0
        return cls(before, 0, 10 ** len(digits) - 1, width, after)

    @property
    def is_around(self) -> bool:
        """Whether these are the names around one that has no zeros in front."""
        return not self.width and not self.first and str(self.last).strip("9") == ""

    @property
    def pattern(self) -> str:
        """The pattern that `of` takes apart."""
        return f"{self.before}{{{self.digits(self.first)}..{self.digits(self.last)}}}{self.after}"

    @property
    def prefix(self) -> str:
        """What all names begin with."""
        same = posixpath.commonprefix([self.digits(self.first), self.digits(self.last)]) if self.width else ""
        return self.before + same

    def digits(self, number: int) -> str:
        """Return a number as it is written in names."""
        return f"{number:0{self.width}d}"

    def name(self, number: int) -> str:
        """Return the name with a number."""
        return f"{self.before}{self.digits(number)}{self.after}"

    def number(self, name: str) -> int | None:
        """Return the number in a name; None if the name is none of these."""
        digits = name[len(self.before) : len(name) - len(self.after)]
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 18):
            return None
        number = int(digits)
        return number if self.first <= number <= self.last and name == self.name(number) else None


class DatasetShards:
    """The shards of one dataset, as columns in the order of their numbers. Memory: 48 bytes each."""

    def __init__(self, pattern: str) -> None:
        """`pattern`: that of a `DatasetInfo`, or the name of a shard."""
        self.pattern = pattern
        self.names = NumberedNames.of(pattern)
        self.numbers, self.samples, self.sizes, self.modified_us = array("Q"), array("Q"), array("Q"), array("Q")
        self._checksums = bytearray()

    @classmethod
    def single(cls, name: str) -> DatasetShards:
        """The shard of this very name, even if that looks like a pattern."""
        found = cls(name)
        found.names = None
        return found

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def prefix(self) -> str:
        """What the names of all shards begin with."""
        return self.pattern if self.names is None else self.names.prefix

    def add(self, rows: Iterable[Row]) -> None:
        """Add those rows of a listing that belong here. TooLarge."""
        for name, size, checksum, modified_us, samples, _ in rows:
            number = self._number(name)
            if samples is None or number is None:
                continue
            if len(self) >= DATASET_SHARDS_MAX:
                raise TooLarge(f"there are more than {DATASET_SHARDS_MAX:,} shards")
            self.numbers.append(number)
            self.samples.append(samples)
            self.sizes.append(size)
            self.modified_us.append(modified_us)
            self._checksums += bytes.fromhex(checksum).rjust(_CHECKSUM_BYTES, b"\0")[:_CHECKSUM_BYTES]

    def sort(self) -> None:
        """Put the shards in the order of their numbers; a listing has them in the order of their names."""
        if all(number < following for number, following in pairwise(self.numbers)):
            return  # as names with zeros are; sorting would hold the interpreter all the while
        order = sorted(range(len(self)), key=self.numbers.__getitem__)
        checksums = b"".join(self._checksum(at) for at in order)
        for name in ("numbers", "samples", "sizes", "modified_us"):
            column = getattr(self, name)
            setattr(self, name, array("Q", (column[at] for at in order)))
        self._checksums = bytearray(checksums)

    @cached_property
    def total_size(self) -> int:
        """The size of all shards together, once all are added."""
        return sum(self.sizes)

    @cached_property
    def newest_us(self) -> int:
        """When the newest shard was stored, once all are added; there must be one."""
        return max(self.modified_us)

    def _number(self, name: str) -> int | None:
        if self.names is None:
            return 0 if name == self.pattern else None
        return self.names.number(name)

    def name(self, at: int) -> str:
        """Return the name of a shard by its place."""
        return self.pattern if self.names is None else self.names.name(self.numbers[at])

    def checksum(self, at: int) -> str:
        """Return the checksum of a shard by its place, in hex."""
        return self._checksum(at).hex()

    def _checksum(self, at: int) -> bytes:
        return bytes(self._checksums[at * _CHECKSUM_BYTES : (at + 1) * _CHECKSUM_BYTES])

    def place(self, name: str) -> int | None:
        """Return the place of a shard by its name. None if it is not there."""
        number = self._number(name)
        at = None if number is None else bisect_left(self.numbers, number)
        return at if at is not None and at < len(self) and self.numbers[at] == number else None

    def narrowed(self) -> str:
        """The pattern from the first shard that is there to the last, as a listing of datasets has it; they must be sorted."""
        if self.names is None or len(self) < 2:
            return self.name(0)
        return self.names._replace(first=self.numbers[0], last=self.numbers[-1]).pattern

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield the first and the last number of each run of shards without a gap."""
        begun = previous = None
        for number in self.numbers:
            if previous is not None and begun is not None and number != previous + 1:
                yield begun, previous
                begun = None
            begun, previous = number if begun is None else begun, number
        if begun is not None and previous is not None:
            yield begun, previous

    def spec(self) -> str:
        """Return a shard spec of exactly these shards; if they have many gaps, or names in which characters mean something in a
        spec, one that may select more, or a list."""
        if self.names is None or len(self) == 1:
            return name if is_plain(name := self.name(0)) else _listed([name])
        if not is_plain(self.names.before + self.names.after):
            return _listed([self.name(at) for at in range(min(len(self), SPEC_NAMES_MAX))])
        runs = list(islice(self.runs(), SPEC_RUNS_MAX + 1))
        if len(runs) > SPEC_RUNS_MAX:
            return f"{self.names.before}*{self.names.after}"
        return f"{self.names.before}{braces(runs, self.names.width)}{self.names.after}"

    @property
    def missing(self) -> int:
        """How many numbers between the first and the last are not there; 0 if fewer than half are there (see `DatasetInfo`)."""
        if self.names is None or not len(self):
            return 0
        gaps = self.numbers[-1] - self.numbers[0] + 1 - len(self)
        return 0 if gaps > len(self) else gaps
