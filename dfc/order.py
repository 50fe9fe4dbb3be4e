"""Orders of samples as pure functions: a seeded shuffle, an epoch, a weighted merge. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import lcm
from operator import index
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from dfc.limits import SHUFFLE_WINDOW_MAX

# --- A seeded shuffle of N samples: computes any part of it, in both directions, without the whole. Pure.
#
# docs/jobs-order.md defines it byte by byte and has test vectors. That must never change, or the same job would give different
# bytes.

Integers = NDArray[np.int64]
_Words = NDArray[np.uint64]

TABLE_COUNT_MAX: Final = 1 << 16  # below: a Fisher-Yates table; from here on: a Feistel network
_ROUNDS: Final = 8
_PLACES: Final = 1 << 15  # places at a time, so that the working set stays in a core's cache


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
        for start in range(lo, hi, _PLACES):
            end = min(hi, start + _PLACES)
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


# --- The order of samples in an epoch: a pure function of the shards' counts, the seed, the epoch and the reader. No I/O.
#
# Samples are numbered in the order of the spec, then of the shard. The *stream order* of an epoch takes the shards in an order
# drawn from (seed, epoch), each from front to back; a sample's place in it is its *position*. Rank r of R delivers the
# positions from r·M/R up to (r+1)·M/R, where M is the number of samples rounded to whole batches of all ranks. Its batches are
# split among its workers: worker w of W delivers one run of positions, its *part*. A part is read in *lanes*: runs of equal
# length, read round-robin, so that several disks work at once; sample i of a part is number i // L of lane i % L. The *window
# shuffle* then moves every sample by less than `window` places: sample i gets the key i + u·window, with u drawn from (seed,
# epoch, who, i), and samples are delivered by key. So any point of the order can be found without computing what comes before
# it. docs/inputs.md describes it; saved states stay valid only as long as nothing here changes (ORDER_VERSION).

ORDER_VERSION: Final = 1
Equal = Literal["pad", "drop"]

_CHUNK: Final = 4096  # samples whose order is computed at once: a few milliseconds of reading, 32 kB
_FRACTION_BITS: Final = 20  # of a key; samples whose keys are equal stay in the order of the stream
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


class SampleRun(NamedTuple):
    """`length` adjacent samples of one shard, from ordinal `start`."""

    shard: int
    start: int
    length: int


@dataclass(frozen=True)
class Place:
    """The reader: worker `worker` of `workers` of rank `rank` of `ranks`."""

    rank: int = 0
    ranks: int = 1
    worker: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        if not (0 <= self.rank < self.ranks and 0 <= self.worker < self.workers):
            raise ValueError(
                f"rank {self.rank} of {self.ranks} with worker {self.worker} of {self.workers} is impossible: both count from 0"
            )


@dataclass(frozen=True)
class Rules:
    """The settings that determine the order of all epochs, besides the shards.

    `batch`: samples per batch; `shuffled`: each epoch draws its own order of the shards; `window` and `lanes` as above (0 or
    1: none); `scattered`: instead of all that, every sample gets a place drawn over all samples. `batches`: batches per rank
    in an epoch, however many samples there are (None: as many as it takes).
    """

    batch: int = 1
    seed: int = 0
    shuffled: bool = True
    window: int = 0
    lanes: int = 1
    scattered: bool = False
    equal: Equal = "pad"
    batches: int | None = None

    def __post_init__(self) -> None:
        if self.batch < 1 or self.lanes < 1 or not 0 <= self.seed < 1 << 63:
            raise ValueError(f"impossible order: seed {self.seed}, batches of {self.batch}, {self.lanes} streams")
        if not 0 <= self.window <= SHUFFLE_WINDOW_MAX:
            raise ValueError(f"the shuffle window must be 0 to {SHUFFLE_WINDOW_MAX} samples, not {self.window}")
        if self.batches is not None and self.batches < 1:
            raise ValueError(f"an epoch of {self.batches} batches is impossible")
        if self.equal not in ("pad", "drop"):
            raise ValueError(f"equal must be 'pad' or 'drop', not {self.equal!r}")


def draw_seed(*numbers: int) -> int:
    """Derive a seed below 2^63 from these numbers."""
    return xxhash.xxh3_64_intdigest(b"".join(index(number).to_bytes(8, "little") for number in numbers)) >> 1


def shard_order(count: int, rules: Rules, epoch: int, round_number: int = 0) -> Integers:
    """The shards in the order of an epoch. `round_number` counts the passes over them within the epoch."""
    if not rules.shuffled:
        return np.arange(count, dtype=np.int64)
    return Permutation(draw_seed(rules.seed, epoch, round_number), count).ordinals(0, count)


def split(total: int, parts: int, part: int) -> tuple[int, int]:
    """The start and end of part number `part` of `total`; sizes differ by at most one, and the larger parts come first."""
    size, rest = divmod(total, parts)
    start = part * size + min(part, rest)
    return start, start + size + (part < rest)


def batches_before(delivered: int, part: int, parts: int) -> int:
    """How many of the first `delivered` batches came from this part, if parts take turns."""
    return max(0, -((part - delivered) // parts))


class Epoch:
    """The stream order of one epoch over shards that have `counts` samples."""

    def __init__(self, counts: Integers, rules: Rules, epoch: int) -> None:
        if epoch < 0:
            raise ValueError(f"impossible epoch {epoch}: epochs count from 0")
        self.rules = rules
        self.epoch = epoch
        self.total = int(counts.sum())
        if self.total == 0:
            raise ValueError("there are no samples")
        self._starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))  # numbers, by shard
        self._scatter: Permutation | None = None
        if rules.scattered:
            self._scatter = Permutation(draw_seed(rules.seed, epoch, 1 << 32), self.total)
        self._order = shard_order(len(counts), rules, epoch)
        self._ends = np.cumsum(counts[self._order])  # positions, in stream order

    def padded(self, ranks: int) -> int:
        """The number of samples of all ranks together: `total` rounded up (`pad`) or down (`drop`) to whole batches of all."""
        return padded_total(self.total, self.rules, ranks)

    def runs(self, lo: int, hi: int) -> Iterator[SampleRun]:
        """The samples at the positions from `lo` up to `hi`; positions beyond the end wrap around to the front."""
        while lo < hi:
            at = lo % self.total
            turn = int(np.searchsorted(self._ends, at, side="right"))
            count = min(int(self._ends[turn]) - at, hi - lo)
            shard = int(self._order[turn])
            size = int(self._starts[shard + 1] - self._starts[shard])
            yield SampleRun(shard, size - (int(self._ends[turn]) - at), count)
            lo += count

    def numbers(self, positions: Integers) -> Integers:
        """The numbers of the samples at these positions, which must be adjacent if the order is scattered."""
        at = positions % self.total
        if self._scatter is not None:
            turns = np.flatnonzero(np.diff(at) <= 0) + 1  # wrapped around to the front
            runs = [run for run in np.split(at, turns) if len(run)]
            return np.concatenate([self._scatter.ordinals(int(run[0]), int(run[-1]) + 1) for run in runs])
        turn = np.searchsorted(self._ends, at, side="right")
        return self._starts[self._order[turn] + 1] - (self._ends[turn] - at)


def padded_total(total: int, rules: Rules, ranks: int) -> int:
    """`total` samples rounded to whole batches of all ranks. ValueError when `drop` would leave nothing."""
    unit = ranks * rules.batch
    if rules.batches is not None:
        return unit * rules.batches
    rounded = -(-total // unit) * unit if rules.equal == "pad" else total // unit * unit
    if rounded == 0:
        raise ValueError(
            f"{total} samples do not make a whole batch of {rules.batch} for each of {ranks} ranks; equal='pad' repeats some"
        )
    return rounded


class WorkerPart:
    """The part that one worker of one rank delivers in one epoch: `size` samples, `batches` batches."""

    def __init__(self, epoch: Epoch, place: Place) -> None:
        self.epoch = epoch
        rules = epoch.rules
        per_rank = epoch.padded(place.ranks) // place.ranks
        first, last = split(per_rank // rules.batch, place.workers, place.worker)
        self.batches = last - first
        self.size = self.batches * rules.batch
        self.start = place.rank * per_rank + first * rules.batch  # position
        self.lanes = 1 if rules.scattered else rules.lanes
        seed = draw_seed(rules.seed, epoch.epoch, place.rank, place.ranks, place.worker, place.workers)
        self._window = WindowShuffle(seed, 0 if rules.scattered else rules.window, self.size)

    def lane(self, number: int) -> tuple[int, int]:
        """The first position of a lane, and the position after its last."""
        lo, hi = split(self.size, self.lanes, number)
        return self.start + lo, self.start + hi

    def order(self, start: int = 0) -> Iterator[Integers]:
        """The samples of the part (i, as read round-robin from the lanes) in delivery order, from the `start`-th on."""
        return self._window.order(start)

    def still_needed(self, start: int) -> tuple[list[int], set[int]]:
        """What to read to continue at the `start`-th sample: from where in each lane, and which samples (i) came before."""
        base, delivered = self._window.delivered(start)
        firsts = []
        for lane in range(self.lanes):
            i = base + (lane - base) % self.lanes
            while i in delivered:
                i += self.lanes
            firsts.append(i // self.lanes)
        return firsts, {i for i in delivered if i // self.lanes >= firsts[i % self.lanes]}

    def positions(self, samples: Integers) -> Integers:
        """The stream positions of these samples of the part."""
        size, rest = divmod(self.size, self.lanes)
        lanes = samples % self.lanes
        return self.start + lanes * size + np.minimum(lanes, rest) + samples // self.lanes

    def repeated(self) -> list[int] | None:
        """For each lane, the number from which samples are repeated to fill the last batches; None: nothing is repeated."""
        if self.start + self.size <= self.epoch.total:
            return None
        return [max(0, self.epoch.total - self.lane(lane)[0]) for lane in range(self.lanes)]

    def numbers(self, start: int = 0) -> Iterator[Integers]:
        """The numbers of the samples in delivery order."""
        for chunk in self.order(start):
            yield self.epoch.numbers(self.positions(chunk))


class WindowShuffle:
    """A shuffle of `size` things in which each moves by less than `window` places; any place of it can be computed from its
    neighbours. `size` None: there is no end."""

    def __init__(self, seed: int, window: int, size: int | None) -> None:
        self._seed = np.uint64(seed)
        self._window = window
        self._size = size

    def order(self, start: int = 0) -> Iterator[Integers]:
        """The things at the places from `start` on, in chunks that are never empty."""
        if self._window < 2:
            yield from self._plain(start)
            return
        at = start
        waiting, keys, delivered = self._waiting(at)
        skip = start - delivered
        while len(waiting) or self._size is None or at < self._size:
            end = at + _CHUNK if self._size is None else min(at + _CHUNK, self._size)
            fresh = np.arange(at, end, dtype=np.int64)
            waiting, keys = np.concatenate((waiting, fresh)), np.concatenate((keys, self._keys(fresh)))
            # Everything later has a key of at least `end`.
            ready = keys < end << _FRACTION_BITS if end != self._size else np.ones(len(keys), dtype=np.bool_)
            found = waiting[ready][np.argsort(keys[ready], kind="stable")]
            if skip < len(found):
                yield found[skip:]
            skip = max(0, skip - len(found))
            waiting, keys, at = waiting[~ready], keys[~ready], end

    def delivered(self, start: int) -> tuple[int, set[int]]:
        """The things in the first `start` places: everything below a number, and a set of others."""
        if self._window < 2:
            return start, set()
        waiting, keys, before = self._waiting(start)
        end = start + self._window if self._size is None else min(start + self._window, self._size)
        fresh = np.arange(start, end, dtype=np.int64)
        waiting, keys = np.concatenate((waiting, fresh)), np.concatenate((keys, self._keys(fresh)))
        order = waiting[np.argsort(keys, kind="stable")]
        taken, rest = order[: start - before], order[start - before :]
        low = int(rest.min()) if len(rest) else end
        near = np.arange(min(low, start), start, dtype=np.int64)
        gone = np.concatenate((near[~np.isin(near, waiting)], taken))
        return low, set(gone[gone >= low].tolist())

    def _plain(self, start: int) -> Iterator[Integers]:
        while self._size is None or start < self._size:
            end = start + _CHUNK if self._size is None else min(start + _CHUNK, self._size)
            yield np.arange(start, end, dtype=np.int64)
            start = end

    def _waiting(self, at: int) -> tuple[Integers, Integers, int]:
        """Of the things below `at`: those with a key of `at` or more, their keys, and how many have a smaller key."""
        near = np.arange(max(0, at - self._window), at, dtype=np.int64)
        keys = self._keys(near)
        late = keys >= at << _FRACTION_BITS
        return near[late], keys[late], at - int(late.sum())

    def _keys(self, things: Integers) -> Integers:
        z = (things.astype(np.uint64) + np.uint64(1)) * _GOLDEN + self._seed
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        drawn = (z ^ (z >> np.uint64(31))) >> np.uint64(33)  # 31 bits
        late = (drawn * np.uint64(self._window)) >> np.uint64(31 - _FRACTION_BITS)
        return (things << _FRACTION_BITS) + late.astype(np.int64)


# --- The order of a weighted merge: always take the next sample of the source with the smallest (taken + 1) / weight.
#
# Ties go by source order. So the k-th sample of a source (from 1) has the rank (k / weight, source), and samples are sorted by
# these ranks: the place of a sample is the sum over the sources of how many of their samples have a lower rank. Nothing is
# simulated, and any part of the order can be computed alone. All numbers are exact.

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
