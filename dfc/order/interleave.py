"""The order of a weighted merge: always take the next sample of the source with the smallest (taken + 1) / weight.

Ties go by source order. So the k-th sample of a source (from 1) has the rank (k / weight, source), and samples are sorted by
these ranks: the place of a sample is the sum over the sources of how many of their samples have a lower rank. Nothing is
simulated, and any part of the order can be computed alone. All numbers are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm
from typing import Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
_INT64_MAX: Final = 2**63 - 1


class MergeSource(msgspec.Struct, frozen=True, array_like=True):
    """One source: ordinals from `start` on, of which the first `count` are taken, with a `weight`."""

    start: int
    count: int
    weight: int


class Interleave(msgspec.Struct, frozen=True, tag="interleave"):
    """A weighted merge of sources, whose ordinals rise in the order of the sources."""

    sources: tuple[MergeSource, ...]
    count: int

    def ordinals(self, lo: int, hi: int) -> Integers:
        """The ordinals of the samples at the places from `lo` up to `hi`."""
        found = np.empty(hi - lo, dtype=np.int64)
        for number, (begin, end) in enumerate(self.runs(lo, hi)):
            source = self.sources[number]
            taken = np.arange(begin - source.start + 1, end - source.start + 1)
            found[self._places(number, taken) - lo] = np.arange(begin, end)
        return found

    def places(self, lo: int, hi: int) -> Integers:
        """The places of the samples with ordinals from `lo` up to `hi`; -1 for those that are not taken."""
        found = np.full(hi - lo, -1, dtype=np.int64)
        for number, source in enumerate(self.sources):
            begin, end = max(lo, source.start), min(hi, source.start + source.count)
            if begin < end:
                taken = np.arange(begin - source.start + 1, end - source.start + 1)
                found[begin - lo : end - lo] = self._places(number, taken)
        return found

    def runs(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """For each source, the range of its ordinals at the places from `lo` up to `hi`."""
        return [
            (source.start + self._taken(number, lo), source.start + self._taken(number, hi))
            for number, source in enumerate(self.sources)
        ]

    def _taken(self, number: int, place: int) -> int:
        """How many samples of a source come before a place."""
        low, high = 0, self.sources[number].count
        while low < high:
            middle = (low + high) // 2
            if _place(self.sources, number, middle + 1) < place:
                low = middle + 1
            else:
                high = middle
        return low

    def _places(self, number: int, taken: Integers) -> Integers:
        """The places of the `taken`-th samples of a source, counted from 1."""
        heaviest = max(source.weight for source in self.sources)
        # Products beyond 64 bits, from weights with many digits, are computed in Python.
        wide = len(taken) > 0 and int(taken[-1]) * heaviest > _INT64_MAX
        numbers: Any = taken.astype(object) if wide else taken.astype(np.int64)
        weight = self.sources[number].weight
        places: Any = numbers - 1
        for other, source in enumerate(self.sources):
            if other < number:
                places = places + np.minimum(source.count, numbers * source.weight // weight)
            elif other > number:
                places = places + np.minimum(source.count, -(-numbers * source.weight // weight) - 1)
        result: Integers = np.asarray(places, dtype=np.int64)
        return result


def _place(sources: Sequence[MergeSource], number: int, taken: int) -> int:
    """The place of one sample; see `_places`."""
    weight = sources[number].weight
    place = taken - 1
    for other, source in enumerate(sources):
        if other != number:
            rank = taken * source.weight
            place += min(source.count, rank // weight if other < number else -(-rank // weight) - 1)
    return place


def whole_weights(weights: Sequence[int | float]) -> list[int]:
    """Convert weights to whole numbers in the same proportions, exact to the decimals as written."""
    exact = [Fraction(str(weight)) for weight in weights]
    scale = lcm(*(weight.denominator for weight in exact))
    return [int(weight * scale) for weight in exact]


def interleave(counts: Sequence[int], weights: Sequence[int], until: Literal["first", "all"]) -> Interleave:
    """Merge sources with `counts` samples each, numbered consecutively in the order of the sources.

    `until` all: take every sample. `first`: stop at the last sample of the source that runs out first.
    """
    starts = [sum(counts[:number]) for number in range(len(counts))]
    sources = tuple(MergeSource(*each) for each in zip(starts, counts, weights, strict=True))
    if until == "all" or not sources:
        return Interleave(sources, sum(counts))
    total = min(0 if not source.count else _place(sources, number, source.count) + 1 for number, source in enumerate(sources))
    everything = Interleave(sources, sum(counts))
    taken = [end - source.start for source, (_, end) in zip(sources, everything.runs(0, total), strict=True)]
    return Interleave(tuple(MergeSource(*each) for each in zip(starts, taken, weights, strict=True)), total)
