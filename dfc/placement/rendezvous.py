"""Weighted rendezvous hashing: the one function by which proxy, targets and clients agree where an object lives.

For each disk d: u = ((xxh3_64(d.id + "\\0" + bucket + "\\0" + name) >> 11) + 0.5) / 2^53 and score = -d.weight / ln(u); the
highest score holds the object. Source: Schindelhauer and Schomaker, "Weighted distributed hash tables", SPAA 2005.
Test vectors: tests/data/placement.json.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import xxhash

_HASH_SHIFT: Final = 11
_SPAN: Final = float(1 << 53)


class Candidate(NamedTuple):
    """A disk that may hold objects. `weight` is relative and > 0."""

    id: str
    weight: float


def score(disk_id: str, weight: float, bucket: str, name: str) -> float:
    """The score of one disk for one object, > 0."""
    digest = xxhash.xxh3_64_intdigest(f"{disk_id}\0{bucket}\0{name}".encode())
    return -weight / math.log(((digest >> _HASH_SHIFT) + 0.5) / _SPAN)


class Rendezvous:
    """Placement over a fixed set of disks; one per version of the map."""

    def __init__(self, candidates: tuple[Candidate, ...]) -> None:
        self._candidates = tuple(sorted(candidates))
        self._prefixes = tuple((f"{disk_id}\0".encode(), disk_id) for disk_id, _ in self._candidates)
        # With equal weights the score grows with the hash, so the logarithms are not needed.
        self._equal = len({weight for _, weight in candidates}) <= 1

    def best(self, bucket: str, name: str) -> str | None:
        """The id of the disk that holds the object; None when there are no disks."""
        if not self._equal:
            return max(self._candidates, key=lambda d: score(d.id, d.weight, bucket, name)).id
        key = f"{bucket}\0{name}".encode()
        digest = xxhash.xxh3_64_intdigest
        best, winner = -1, None
        for prefix, disk_id in self._prefixes:
            value = digest(prefix + key) >> _HASH_SHIFT
            if value > best:
                best, winner = value, disk_id
        return winner

    def ranking(self, bucket: str, name: str) -> list[str]:
        """All disk ids, best first."""
        return [d.id for d in sorted(self._candidates, key=lambda d: (-score(d.id, d.weight, bucket, name), d.id))]
