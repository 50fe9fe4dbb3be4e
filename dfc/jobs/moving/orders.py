"""Orders: map places in the output to samples of the input, by a formula or by tables in temporary objects.

They work in both directions, for any range: `ordinals_at` for writing an output, `places_of` for reading an input. Every sample
is at most at one place.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

import msgspec
import numpy as np

from dfc.jobs.moving.corpus import Parts, parts_within
from dfc.jobs.store import Store
from dfc.order.interleave import Interleave
from dfc.order.permutation import Permutation
from dfc.tar.index.arrays import Integers

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
    data = bytearray(count * ENTRY_BYTES)
    if count:
        source = store.open_temporary(name)
        try:
            source.read_into(first * ENTRY_BYTES, memoryview(data))
        finally:
            source.close()
    return np.frombuffer(data, dtype=_ENTRY).astype(np.int64)
