"""Weighted rendezvous hashing, of nodes and then of their disks.

It chooses which of several candidates (nodes or disks) holds a key. For each candidate c: h = xxh3_64(c.id + "\0" + key) >> 11,
u = (h + 0.5) / 2^53 and score = -c.weight / ln(u). The highest score wins; of equal scores the higher h, then the first id.
Source: Schindelhauer and Schomaker, "Weighted distributed hash tables", SPAA 2005. Test vectors: tests/data/placement.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache, partial
from itertools import pairwise
from typing import Final, NamedTuple

import xxhash

from dfc.limits import PLACEMENT_NAMES_MAX

_HASH_SHIFT: Final = 11
_SPAN: Final = float(1 << 53)
_HASHES: Final = float(1 << 64)
_CHUNK: Final = 32  # candidates that are compared with one bound
_FIRST_CHUNK: Final = 4  # before there is a bound
# Hashes below the bound by so much have lower scores, however the logarithm was rounded: the best score so far is at least
# 1/38 of the weight, so that the score of such a hash is lower by 2e-11 of itself, and rounding makes 1e-15.
_SLACK: Final = 1.0 - 1e-9


class Candidate(NamedTuple):
    """A node or disk that may hold keys. `weight` is relative and > 0."""

    id: str
    weight: float


def score(candidate: Candidate, key: bytes) -> float:
    """Return the score of one candidate for one key, > 0."""
    return _score(xxhash.xxh3_64_intdigest(_prefix(candidate.id) + key), candidate.weight)


def _score(digest: int, weight: float) -> float:
    logarithm = math.log(((digest >> _HASH_SHIFT) + 0.5) / _SPAN)
    return -weight / logarithm if logarithm else math.inf  # for the highest possible hash, u is rounded to 1


class Rendezvous:
    """Rendezvous hashing over a fixed set of candidates, each hashed once per key. Thread-safe.

    `best(key)` is the id of the candidate with the highest score; None when there are no candidates. `ranking(key)` are all ids
    by descending score: without the first, the second would be the best.
    """

    def __init__(self, candidates: tuple[Candidate, ...]) -> None:
        self._candidates = sorted(candidates)
        self._prefixes = [_prefix(each.id) for each in self._candidates]
        ids = [each.id for each in self._candidates]
        self.best: Callable[[bytes], str | None]
        self.ranking: Callable[[bytes], list[str]]
        if len(ids) == 1:
            self.best, self.ranking = lambda _: ids[0], lambda _: ids
        elif len({weight for _, weight in self._candidates}) <= 1:
            self.best = partial(_best_of_equal, self._prefixes, ids)
            self.ranking = partial(_ranking_of_equal, self._prefixes, ids)
        else:
            # Heavy ones first: they win most often, and the first of a chunk sets its bound.
            rows = sorted((-weight, place, each) for place, (each, weight) in enumerate(self._candidates))
            cuts = [0, *range(_FIRST_CHUNK, len(rows), _CHUNK), len(rows)]
            self.best = partial(_best_of_weighted, [_Chunk.of(rows[low:high]) for low, high in pairwise(cuts)])
            self.ranking = self._ranking

    def _ranking(self, key: bytes) -> list[str]:
        ranks = []
        for place, (prefix, (_, weight)) in enumerate(zip(self._prefixes, self._candidates, strict=True)):
            value = xxhash.xxh3_64_intdigest(prefix + key)
            ranks.append((-_score(value, weight), -(value >> _HASH_SHIFT), place))
        return [self._candidates[place].id for _, _, place in sorted(ranks)]


class _Chunk(NamedTuple):
    """Some candidates, by descending weight. A row is minus the weight, the position in the order of ids, and the id."""

    weight: float
    prefixes: list[bytes]
    rows: list[tuple[float, int, str]]

    @classmethod
    def of(cls, rows: list[tuple[float, int, str]]) -> _Chunk:
        return cls(-rows[0][0], [_prefix(each) for _, _, each in rows], rows)


def _prefix(each: str) -> bytes:
    return f"{each}\0".encode()


def _best_of_equal(prefixes: list[bytes], ids: list[str], key: bytes) -> str | None:
    """Find the best of equally weighted candidates: the score grows with the hash, so no logarithm is needed."""
    if not ids:
        return None
    digest = xxhash.xxh3_64_intdigest
    values = [digest(prefix + key) for prefix in prefixes]
    top = max(values)
    winner = values.index(top)
    values[winner] = -1
    if max(values) >> _HASH_SHIFT == top >> _HASH_SHIFT:  # of equal ones the first id
        values[winner] = top
        winner = next(place for place, value in enumerate(values) if value >> _HASH_SHIFT == top >> _HASH_SHIFT)
    return ids[winner]


def _ranking_of_equal(prefixes: list[bytes], ids: list[str], key: bytes) -> list[str]:
    """Rank equally weighted candidates by their hashes; of equal ones, those that come first stay first."""
    digest = xxhash.xxh3_64_intdigest
    values = [digest(prefix + key) >> _HASH_SHIFT for prefix in prefixes]
    return [ids[place] for place in sorted(range(len(ids)), key=values.__getitem__, reverse=True)]


def _best_of_weighted(chunks: list[_Chunk], key: bytes) -> str | None:
    """Find the best candidate, taking logarithms only for hashes that may win: over exp(-weight / best)."""
    digest = xxhash.xxh3_64_intdigest
    best, best_hash, place, winner, bound = 0.0, 0, 0, None, 0
    for weight, prefixes, rows in chunks:
        if winner is not None:
            bound = int(math.exp(-weight / best) * _SLACK * _HASHES)
        values = [digest(prefix + key) for prefix in prefixes]
        if max(values) < bound:
            continue
        for value, (minus_weight, row_place, each) in zip(values, rows, strict=True):
            if value >= bound:
                found = _score(value, -minus_weight)
                if found > best or (found == best and (value >> _HASH_SHIFT, -row_place) > (best_hash, -place)):
                    best, best_hash, place, winner = found, value >> _HASH_SHIFT, row_place, each
    return winner


# --- Two-level placement: choose a node by score, then a disk of that node by score.
#
# The key of an object is its bucket's id, "\0" and its name, in UTF-8; a node is scored for b"node\0" + key with the sum of its
# disks' weights, a disk for b"disk\0" + key with its own. With a thousand disks on 32 nodes that is 64 hashes, where one level
# takes a thousand.


class LayoutDisk(NamedTuple):
    """A disk that may hold objects.

    `weight` is relative and > 0. `group` is the first level: the node with which the disk joined. `domain` is what fails as
    one: two copies of an object never share it.
    """

    id: str
    weight: float
    group: str
    domain: str


class Layout:
    """The placement of all objects over a fixed set of disks. Thread-safe.

    `best(bucket_id, name)` is the id of the disk that holds the object, None when there are no disks; recent names are cached.
    `ranking` puts all disks in order, and `best` is its first.
    """

    def __init__(self, disks: tuple[LayoutDisk, ...]) -> None:
        groups: dict[str, list[LayoutDisk]] = {}
        for disk in sorted(disks):
            groups.setdefault(disk.group, []).append(disk)
        self._domains = {disk.id: disk.domain for disk in disks}
        self._groups = Rendezvous(
            tuple(Candidate(group, math.fsum(disk.weight for disk in found)) for group, found in groups.items())
        )
        self._disks = {
            group: Rendezvous(tuple(Candidate(disk.id, disk.weight) for disk in found)) for group, found in groups.items()
        }
        self.best = lru_cache(maxsize=PLACEMENT_NAMES_MAX)(self.only)

    def only(self, bucket_id: str, name: str) -> str | None:
        """`best`, not cached."""
        return self.only_by(object_key(bucket_id, name))

    def only_by(self, key: bytes) -> str | None:
        """The same by the key of an object."""
        group = self._groups.best(b"node\0" + key)
        return None if group is None else self._disks[group].best(b"disk\0" + key)

    def ranking(self, bucket_id: str, name: str) -> Iterator[str]:
        """Yield all disks, best first. Removing a disk does not change the order of the others, so only its own names move."""
        key = object_key(bucket_id, name)
        for group in self._groups.ranking(b"node\0" + key):
            yield from self._disks[group].ranking(b"disk\0" + key)

    def owners(self, bucket_id: str, name: str, count: int, without: Collection[str] = ()) -> list[str]:
        """Return the first `count` disks of the ranking in different failure domains, skipping those in `without`; fewer if
        there are fewer domains. Nothing is cached."""
        found: list[str] = []
        taken: set[str] = set()
        for disk in self.ranking(bucket_id, name):
            if len(found) == count:
                break
            if disk not in without and self._domains[disk] not in taken:
                found.append(disk)
                taken.add(self._domains[disk])
        return found


def object_key(bucket_id: str, name: str) -> bytes:
    """What is hashed for an object."""
    return f"{bucket_id}\0{name}".encode()
