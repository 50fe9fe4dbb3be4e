"""Orders of samples: by a formula, by tables, or as a selection.

They map places in the output to samples of the input, in both directions, for any range: `ordinals_at` for writing an output,
`places_of` for reading an input. Every sample is at most at one place.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import xxhash

from dfc.jobs.data.corpus import ForwardSource, Parts, parts_within
from dfc.jobs.data.output import PlainOutput
from dfc.jobs.data.partitions import Unsigned
from dfc.jobs.store import Source, Store
from dfc.jobs.tasks import Results, TaskResult
from dfc.order import Interleave, Permutation
from dfc.tar.index.columns import Integers

ENTRY_BYTES: Final = 8  # of an ordinal in a table, little-endian
_ENTRY: Final = np.dtype("<i8")
_SCAN_ENTRIES: Final = 1 << 18  # of a table, searched at once


class Stride(msgspec.Struct, frozen=True, tag="stride"):
    """Place p holds ordinal start + p * step."""

    start: int
    step: int
    count: int


class Shuffle(msgspec.Struct, frozen=True, tag="shuffle"):
    """The permutation given by a seed."""

    seed: int
    count: int


class TableRow(msgspec.Struct, frozen=True, array_like=True):
    """`count` entries of a temporary object, from entry `first` on, for the places from `place` on. The ordinals are from `low`
    up to `high`, and ascend if `rises`."""

    name: str
    first: int
    count: int
    place: int
    low: int
    high: int
    rises: bool


class Table(msgspec.Struct, frozen=True, tag="table"):
    """Ordinals that earlier tasks wrote; the rows are in order of their places, without gaps."""

    rows: tuple[TableRow, ...]
    count: int


Order = Stride | Shuffle | Table | Interleave


def restricted(order: Order, parts: Parts, lo: int, hi: int) -> tuple[Order, Parts]:
    """Restrict an order and its shards to what is needed for the places from `lo` up to `hi`."""
    if isinstance(order, Stride):
        last = order.start + (hi - 1) * order.step + 1
        return order, parts_within(parts, order.start + lo * order.step, last) if hi > lo else ()
    if isinstance(order, Shuffle):
        return order, parts
    if isinstance(order, Interleave):
        runs = order.runs(lo, hi)
        return order, tuple(part for part in parts if any(part.start < end and part.end > begin for begin, end in runs))
    first = bisect_right(order.rows, lo, key=lambda row: row.place + row.count)
    rows = order.rows[first : bisect_left(order.rows, hi, key=lambda row: row.place)]
    needed = {part.start: part for row in rows for part in parts_within(parts, row.low, row.high)}
    return Table(rows, order.count), tuple(needed[start] for start in sorted(needed))


def touching(order: Order, low: int, high: int) -> Order:
    """Restrict an order to what is needed for the ordinals from `low` up to `high`."""
    if isinstance(order, Table):
        return Table(tuple(row for row in order.rows if row.low < high and row.high > low), order.count)
    return order


def ordinals_at(order: Order, store: Store, lo: int, hi: int) -> Integers:
    """Return the ordinals at the places from `lo` up to `hi`."""
    if isinstance(order, Stride):
        return order.start + np.arange(lo, hi, dtype=np.int64) * order.step
    if isinstance(order, Shuffle):
        return Permutation(order.seed, order.count).ordinals(lo, hi)
    if isinstance(order, Interleave):
        return order.ordinals(lo, hi)
    found = np.empty(hi - lo, dtype=np.int64)
    filled = 0
    for row in order.rows:
        first, last = max(lo, row.place), min(hi, row.place + row.count)
        if first < last:
            found[first - lo : last - lo] = read_entries(store, row.name, row.first + first - row.place, last - first)
            filled += last - first
    if filled != hi - lo:
        raise ValueError(f"the table has only {filled} of {hi - lo} places")
    return found


def places_of(order: Order, store: Store, lo: int, hi: int) -> Integers:
    """Return the places of the samples with ordinals from `lo` up to `hi`; -1 for samples without a place."""
    if isinstance(order, Shuffle):
        return Permutation(order.seed, order.count).places(lo, hi)
    if isinstance(order, Stride):
        places, rest = np.divmod(np.arange(lo, hi, dtype=np.int64) - order.start, order.step)
        return np.where((rest == 0) & (places >= 0) & (places < order.count), places, -1)
    if isinstance(order, Interleave):
        return order.places(lo, hi)
    found = np.full(hi - lo, -1, dtype=np.int64)
    for row in order.rows:
        if row.low >= hi or row.high <= lo:
            continue
        for start in range(0, row.count, _SCAN_ENTRIES):
            count = min(_SCAN_ENTRIES, row.count - start)
            ordinals = read_entries(store, row.name, row.first + start, count)
            if row.rises and len(ordinals) and (ordinals[0] >= hi or ordinals[-1] < lo):
                continue
            wanted = np.flatnonzero((ordinals >= lo) & (ordinals < hi))
            found[ordinals[wanted] - lo] = row.place + start + wanted
    return found


def encode_entries(ordinals: Integers) -> bytes:
    """Encode ordinals for a temporary object."""
    return ordinals.astype(_ENTRY).tobytes()


def read_entries(store: Store, name: str, first: int, count: int) -> Integers:
    """Read some of the ordinals in a temporary object."""
    if not count:
        return np.zeros(0, dtype=np.int64)
    with closing(store.open_temporary(name)) as source:
        return read_numbers(source, first * ENTRY_BYTES, count)


def read_numbers(source: Source | ForwardSource, offset: int, count: int) -> Integers:
    """Read so many numbers, as `encode_entries` writes them."""
    data = bytearray(count * ENTRY_BYTES)
    if count:
        source.read_into(offset, memoryview(data))
    return np.frombuffer(data, dtype=_ENTRY).astype(np.int64)


# --- What an operation that moves unchanged samples decides: their order, and the outputs if no size is given.


@dataclass(frozen=True)
class Section:
    """Places from `lo` on, whose outputs are numbered from 0. `counts`: samples of each output if no size is given."""

    part: str
    lo: int
    counts: Sequence[int]

    @property
    def hi(self) -> int:
        return self.lo + sum(self.counts)


@dataclass(frozen=True)
class Arrangement:
    """The order of the samples, and its sections."""

    parts: Parts
    order: Order
    sections: Sequence[Section]

    @property
    def count(self) -> int:
        return self.order.count


class Cut(msgspec.Struct, frozen=True, array_like=True):
    """One output: its name and its range of places."""

    name: str
    lo: int
    hi: int


# --- Selects subsets: tables say, for each shard, which samples go to which part of the output, in their order.
#
# Operations write the tables in a stage named `pick`, with one task per shard; `picked` turns them into an order. Choices that
# need all shards (duplicates, classes) are made by tasks that each handle a partition by hash; they write labels, which the
# task of each shard then reads: `write_labels`, `read_labels`.

SCALE: Final = 1 << 64


def write_picked(store: Store, number: int, sections: Sequence[Integers]) -> TaskResult:
    """Write the table of shard `number`: ascending global ordinals for each part of the output. Returns the task's result."""
    with PlainOutput(store, _table_name(number), temporary=True) as output:
        for ordinals in sections:
            output.write(encode_entries(ordinals))
        written = output.commit()
    return TaskResult(bytes_out=written.size, data=msgspec.msgpack.encode([len(ordinals) for ordinals in sections]))


def picked(parts: Parts, results: Results, names: Sequence[str]) -> Arrangement:
    """Make an order from the results of `pick`: one part of the output after the other, each with the shards in order."""
    counts = [result.decode(list[int]) for result in results["pick"]]
    rows, sections, place = [], [], 0
    for section, name in enumerate(names):
        lo = place
        for number, part in enumerate(parts):
            count = counts[number][section]
            if count:
                first = sum(counts[number][:section])
                rows.append(TableRow(_table_name(number), first, count, place, part.start, part.end, True))
                place += count
        sections.append(Section(name, lo, [each[section] for each in counts]))
    return Arrangement(parts, Table(tuple(rows), place), sections)


def _table_name(number: int) -> str:
    return f"picked/{number:06d}"


def write_labels(store: Store, name: str, starts: Sequence[int], ordinals: Integers, values: Integers) -> None:
    """Write labels for samples of all shards, as ordinal * 256 + value, and where those of each shard begin. `starts` has the
    first ordinal of each shard, and the end of the last one."""
    order = np.argsort(ordinals)
    bounds = np.searchsorted(ordinals[order], np.array(starts, dtype=np.int64))
    with PlainOutput(store, name, temporary=True) as output:
        output.write(encode_entries(bounds))
        output.write(encode_entries(ordinals[order] * 256 + values[order]))
        output.commit()


def read_labels(store: Store, names: Sequence[str], number: int, shards: int) -> tuple[Integers, Integers]:
    """Read the labels of shard `number` that all tasks wrote, as ascending ordinals and their values."""
    found = [np.zeros(0, dtype=np.int64)]
    for name in names:
        first, last = read_entries(store, name, number, 2).tolist()
        found.append(read_entries(store, name, shards + 1 + first, last - first))
    labels = np.sort(np.concatenate(found))
    return labels // 256, labels % 256


def chance(seed: int, keys: Sequence[bytes]) -> Unsigned:
    """The number u of each key, times 2^64 (docs/jobs-order.md)."""
    message = seed.to_bytes(8, "little")
    hash64 = xxhash.xxh3_64_intdigest
    return np.fromiter((hash64(message + key) for key in keys), dtype=np.uint64, count=len(keys))
