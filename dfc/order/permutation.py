"""A seeded shuffle of N samples: computes any part of it, in both directions, without the whole. Pure.

docs/jobs-order.md defines it byte by byte and has test vectors. That must never change, or the same job would give different
bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

Integers = NDArray[np.int64]
_Words = NDArray[np.uint64]

TABLE_COUNT_MAX: Final = 1 << 16  # below: a Fisher-Yates table; from here on: a Feistel network
_ROUNDS: Final = 8
_CHUNK: Final = 1 << 15  # places at a time, so that the working set stays in a core's cache


class Permutation:
    """A permutation of `count` things by `seed` (0 to 2^63 - 1): place p of the new order holds thing `ordinals(p)`."""

    def __init__(self, seed: int, count: int) -> None:
        if not 0 <= seed < 1 << 63 or not 0 <= count < 1 << 62:
            raise ValueError(f"cannot permute {count} things with seed {seed}")
        self.count = count
        self._table = _fisher_yates(seed, count) if count < TABLE_COUNT_MAX else None
        self._network = None if self._table is not None else _Feistel(seed, count)

    def ordinals(self, lo: int, hi: int) -> Integers:
        """The things at the places from `lo` up to `hi`."""
        self._check(lo, hi)
        if self._table is not None:
            return self._table[0][lo:hi].copy()
        assert self._network is not None
        return self._network.walk(lo, hi, self._network.forward)

    def places(self, lo: int, hi: int) -> Integers:
        """The places of the things from `lo` up to `hi`: the inverse."""
        self._check(lo, hi)
        if self._table is not None:
            return self._table[1][lo:hi].copy()
        assert self._network is not None
        return self._network.walk(lo, hi, self._network.backward)

    def _check(self, lo: int, hi: int) -> None:
        if not 0 <= lo <= hi <= self.count:
            raise IndexError(f"places {lo} to {hi} are out of range: there are {self.count}")


def draw(seed: int, step: int, bound: int) -> int:
    """Draw a number below `bound`, each equally likely: xxh3-64 of seed and step, hashed again while it falls into the last,
    incomplete multiple of `bound`."""
    message = seed.to_bytes(8, "little") + step.to_bytes(8, "little")
    limit = (1 << 64) - (1 << 64) % bound
    attempt = 0
    while (number := xxhash.xxh3_64_intdigest(message, attempt)) >= limit:
        attempt += 1
    return number % bound


@lru_cache(maxsize=4)
def _fisher_yates(seed: int, count: int) -> tuple[Integers, Integers]:
    table = list(range(count))
    for i in range(count - 1, 0, -1):
        j = draw(seed, i, i + 1)
        table[i], table[j] = table[j], table[i]
    forward = np.array(table, dtype=np.int64)
    backward = np.empty_like(forward)
    backward[forward] = np.arange(count)
    return forward, backward


class _Feistel:
    """A permutation of all numbers of 2 * `half` bits, walked along its cycles until a number is below `count`."""

    def __init__(self, seed: int, count: int) -> None:
        self._count = np.uint64(count)
        half = (max(1, count - 1).bit_length() + 1) // 2
        self._half = np.uint64(half)
        self._mask = np.uint64((1 << half) - 1)
        self._shift = np.uint64(64 - half)
        message = seed.to_bytes(8, "little")
        self._keys = [np.uint64(xxhash.xxh3_64_intdigest(message + r.to_bytes(8, "little"))) for r in range(_ROUNDS)]

    def walk(self, lo: int, hi: int, step: Callable[[_Words], _Words]) -> Integers:
        result = np.empty(hi - lo, dtype=np.int64)
        for start in range(lo, hi, _CHUNK):
            end = min(hi, start + _CHUNK)
            values = step(np.arange(start, end, dtype=np.uint64))
            outside = np.flatnonzero(values >= self._count)
            while len(outside):
                values[outside] = moved = step(values[outside])
                outside = outside[moved >= self._count]
            result[start - lo : end - lo] = values.astype(np.int64)
        return result

    def forward(self, values: _Words) -> _Words:
        left, right = values >> self._half, values & self._mask
        for key in self._keys:
            left, right = right, left ^ self._mix(right, key)
        return (left << self._half) | right

    def backward(self, values: _Words) -> _Words:
        left, right = values >> self._half, values & self._mask
        for key in reversed(self._keys):
            left, right = right ^ self._mix(left, key), left
        return (left << self._half) | right

    def _mix(self, half: _Words, key: np.uint64) -> _Words:
        """The upper bits of SplitMix64's finalizer (Steele, Lea, Flood 2014) of half + key."""
        z = half + key
        z ^= z >> np.uint64(30)
        z *= np.uint64(0xBF58476D1CE4E5B9)
        z ^= z >> np.uint64(27)
        z *= np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        return z >> self._shift
