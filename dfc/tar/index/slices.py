"""Gather the records of many samples from an index file into one buffer, to be read in columns.

Samples close to each other are read together, others one by one; more than INDEX_COLUMNS_BYTES are split into several slices.
Positions in the tables are not trusted: every slice holds whole records of its samples, or IndexCorrupt is raised.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dfc.limits import INDEX_COLUMNS_BYTES, SAMPLE_RECORDS_MAX, TAR_MEMBER_NAME_BYTES_MAX
from dfc.tar.index.file import IndexFile
from dfc.tar.index.format import HEADER_BYTES, RECORD, SAMPLE, IndexCorrupt, IndexHeader

Integers = NDArray[np.int64]
Bytes = NDArray[np.uint8]
RECORDS: Final = np.dtype(
    [("offset", "=u8"), ("size", "=u8"), ("head", "=u4"), ("name", "=u2"), ("key", "=u2"), ("type", "u1")], align=False
)
assert RECORDS.itemsize == RECORD.size
# Reading this many unneeded bytes takes as long as one more call.
_GAP_BYTES: Final = 4096
# The records of one sample; a byte of a name that is not UTF-8 is stored as three.
_SAMPLE_BYTES_MAX: Final = SAMPLE_RECORDS_MAX * (RECORD.size + 3 * TAR_MEMBER_NAME_BYTES_MAX)


class Slice(NamedTuple):
    """Some of the requested samples: the rows `first` up to `first + len(starts)`.

    `starts`: offsets of their first headers in the archive. `positions`, `ends`: where their records begin and end in `data`.
    """

    first: int
    starts: Integers
    positions: Integers
    ends: Integers
    data: Bytes


def read_slices(file: IndexFile, header: IndexHeader, numbers: Integers) -> Iterator[Slice]:
    """Read the samples with these ordinals, in this order. Raises IndexError if one does not exist, IndexCorrupt, OSError."""
    if not len(numbers):
        return
    if not 0 <= numbers.min() <= numbers.max() < header.samples:
        raise IndexError(f"some of the requested samples do not exist: the shard has {header.samples}, counted from 0")
    starts, positions, ends = _table_rows(file, header, numbers)
    outside = min(positions.min(), ends.min()) < HEADER_BYTES or ends.max() > header.records_end
    if outside or (ends - positions).min() < RECORD.size:
        raise IndexCorrupt("an index points outside its records", int(positions.min()))
    ends = np.minimum(ends, positions + _SAMPLE_BYTES_MAX)
    held = np.cumsum(ends - positions)
    first = 0
    while first < len(numbers):
        before = int(held[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(held, before + INDEX_COLUMNS_BYTES, side="right")))
        begin, end = positions[first:stop], ends[first:stop]
        data, shifts = _gather(file, begin, end)
        yield Slice(first, starts[first:stop], begin + shifts, end + shifts, data)
        first = stop


def overlay(data: Bytes, kind: np.dtype[np.void]) -> NDArray[np.void]:
    """View data as an array of overlapping records, one beginning at each byte, since records may begin anywhere."""
    return np.ndarray((max(0, len(data) - kind.itemsize + 1),), dtype=kind, buffer=data, strides=(1,))


def next_records(after: Integers, ends: Integers) -> Integers:
    """The rows of the samples that have another record. `after`: the end of the last record read of each."""
    if (after > ends).any():
        raise IndexCorrupt("a record of an index cannot be read", int(after.max()))
    return np.flatnonzero(after + RECORD.size <= ends)


def _table_rows(file: IndexFile, header: IndexHeader, numbers: Integers) -> tuple[Integers, Integers, Integers]:
    """The first header, the first record and the end of the records of each sample."""
    begin = header.samples_start + SAMPLE.size * numbers
    data, shifts = _gather(file, begin, np.minimum(begin + 2 * SAMPLE.size, header.file_size))
    words, at = data.view(np.int64), (begin + shifts) // 8
    ends = np.full(len(numbers), header.records_end, dtype=np.int64)
    inner = np.flatnonzero(numbers + 1 < header.samples)
    ends[inner] = words[at[inner] + 3]
    return words[at], words[at + 1], ends


def _gather(file: IndexFile, begins: Integers, ends: Integers) -> tuple[Bytes, Integers]:
    """Read these parts of the file into one buffer; returns it and what to add to a position in each part to find it there."""
    order = np.argsort(begins, kind="stable")
    low, high = begins[order], np.maximum.accumulate(ends[order])
    new = low[1:] > high[:-1] + _GAP_BYTES
    cuts = np.flatnonzero(new)
    froms = low[np.concatenate(([0], cuts + 1))]
    sizes = high[np.concatenate((cuts, [len(low) - 1]))] - froms
    at = np.cumsum(sizes) - sizes
    data = np.frombuffer(file.read_many(froms.tolist(), sizes.tolist()), dtype=np.uint8)
    shifts = np.empty(len(order), dtype=np.int64)
    shifts[order] = (at - froms)[np.concatenate(([0], np.cumsum(new)))]
    return data, shifts
