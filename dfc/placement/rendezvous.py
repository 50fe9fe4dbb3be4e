"""Weighted rendezvous hashing: the one function by which proxy, targets and clients agree where an object lives.

For each disk d: u = ((xxh3_64(d.id + "\\0" + bucket + "\\0" + name) >> 11) + 0.5) / 2^53 and score = -d.weight / ln(u); the
highest score holds the object. Source: Schindelhauer and Schomaker, "Weighted distributed hash tables", SPAA 2005.
Test vectors: tests/data/placement.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import pairwise
from typing import Final, NamedTuple

import xxhash

from dfc.limits import PLACEMENT_NAMES_MAX

_HASH_SHIFT: Final = 11
_SPAN: Final = float(1 << 53)
_HASHES: Final = float(1 << 64)
_CHUNK: Final = 32  # disks that are held to one bound
_FIRST_CHUNK: Final = 4  # before there is a bound
# Hashes below the bound by so much have lower scores, however the logarithm was rounded: the best score so far is at least
# 1/38 of the weight, so that the score of such a hash is lower by 2e-11 of itself, and rounding makes 1e-15.
_SLACK: Final = 1.0 - 1e-9


class Candidate(NamedTuple):
    """A disk that may hold objects. `weight` is relative and > 0."""

    id: str
    weight: float


def score(disk_id: str, weight: float, bucket: str, name: str) -> float:
    """The score of one disk for one object, > 0."""
    digest = xxhash.xxh3_64_intdigest(f"{disk_id}\0{bucket}\0{name}".encode())
    return _score(digest, weight)


def _score(digest: int, weight: float) -> float:
    logarithm = math.log(((digest >> _HASH_SHIFT) + 0.5) / _SPAN)
    return -weight / logarithm if logarithm else math.inf  # the highest hash of all is rounded to u = 1


class Rendezvous:
    """Placement over a fixed set of disks; one per version of the map. Thread-safe.

    `best(bucket, name)` is the id of the disk that holds the object; None when there are no disks. Each disk is hashed once
    for a name; the names that were asked for last are remembered.
    """

    def __init__(self, candidates: tuple[Candidate, ...]) -> None:
        ordered = sorted(candidates)
        if len({weight for _, weight in ordered}) <= 1:
            find = partial(_best_of_equal, [_prefix(disk_id) for disk_id, _ in ordered], [disk_id for disk_id, _ in ordered])
        else:
            # Heavy disks first: they win most often, and the bound that a chunk needs is that of its first disk.
            rows = sorted((-weight, place, disk_id) for place, (disk_id, weight) in enumerate(ordered))
            cuts = [0, *range(_FIRST_CHUNK, len(rows), _CHUNK), len(rows)]
            find = partial(_best_of_weighted, [_Chunk.of(rows[low:high]) for low, high in pairwise(cuts)])
        self.best: Callable[[str, str], str | None] = lru_cache(maxsize=PLACEMENT_NAMES_MAX)(find)


class _Chunk(NamedTuple):
    """Some disks, by falling weight. A row is minus the weight, the place in the order of ids, the id."""

    weight: float
    prefixes: list[bytes]
    rows: list[tuple[float, int, str]]

    @classmethod
    def of(cls, rows: list[tuple[float, int, str]]) -> _Chunk:
        return cls(-rows[0][0], [_prefix(disk_id) for _, _, disk_id in rows], rows)


def _prefix(disk_id: str) -> bytes:
    return f"{disk_id}\0".encode()


def _best_of_equal(prefixes: list[bytes], ids: list[str], bucket: str, name: str) -> str | None:
    """With equal weights the score grows with the hash, so the logarithms are not needed."""
    if not ids:
        return None
    key, digest = f"{bucket}\0{name}".encode(), xxhash.xxh3_64_intdigest
    values = [digest(prefix + key) for prefix in prefixes]
    top = max(values)
    winner = values.index(top)
    values[winner] = -1
    if max(values) >> _HASH_SHIFT == top >> _HASH_SHIFT:  # of equal scores the first id
        values[winner] = top
        winner = next(place for place, value in enumerate(values) if value >> _HASH_SHIFT == top >> _HASH_SHIFT)
    return ids[winner]


def _best_of_weighted(chunks: list[_Chunk], bucket: str, name: str) -> str | None:
    """The logarithm is taken only where a hash may be enough: a score over `best` needs one over exp(-weight / best)."""
    key, digest = f"{bucket}\0{name}".encode(), xxhash.xxh3_64_intdigest
    best, place, winner, bound = 0.0, 0, None, 0
    for weight, prefixes, rows in chunks:
        if winner is not None:
            bound = int(math.exp(-weight / best) * _SLACK * _HASHES)
        values = [digest(prefix + key) for prefix in prefixes]
        if max(values) < bound:
            continue
        for value, (minus_weight, row_place, disk_id) in zip(values, rows, strict=True):
            if value >= bound:
                found = _score(value, -minus_weight)
                if found > best or (found == best and row_place < place):
                    best, place, winner = found, row_place, disk_id
    return winner
