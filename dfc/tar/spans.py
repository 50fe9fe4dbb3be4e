"""Where samples lie in their archive, many at a time: for readers that copy them as they stand, headers included.

Numbers are bytes of the uncompressed archive. The blocks of the index have been verified; still nothing leads outside of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dfc.limits import SAMPLE_RECORDS_MAX, TAR_HEADER_BYTES
from dfc.tar.index_format import HEADER_BYTES, RECORD, IndexCorrupt
from dfc.tar.samples import NO_KEY

Integers = NDArray[np.int64]
_RECORD: Final = np.dtype(
    [("offset", "=u8"), ("size", "=u8"), ("head", "=u4"), ("name", "=u2"), ("key", "=u2"), ("type", "u1")], align=False
)
assert _RECORD.itemsize == RECORD.size


@dataclass(frozen=True)
class SampleSpans:
    """n samples: `starts` of their first headers, `ends` behind the padding of their last members; `solid` where nothing but
    the sample's own members lies between. For the others `pieces` has the start and end of each member, by row."""

    starts: Integers
    ends: Integers
    solid: NDArray[np.bool_]
    pieces: dict[int, list[tuple[int, int]]]


def read_spans(
    data: memoryview, samples_start: int, sample_count: int, records_end: int, archive_size: int, numbers: Integers
) -> SampleSpans:
    """The samples with these ordinals. IndexError for one that is not there, IndexCorrupt."""
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < sample_count:
        raise IndexError(f"there are {sample_count} samples; not all of those asked for are among them")
    table = np.frombuffer(data, dtype="=u8", count=2 * sample_count, offset=samples_start).reshape(-1, 2)
    starts = table[numbers, 0].astype(np.int64)
    positions = table[numbers, 1].astype(np.int64)
    stops = np.full(len(numbers), records_end, dtype=np.int64)
    inner = np.flatnonzero(numbers + 1 < sample_count)
    stops[inner] = table[numbers[inner] + 1, 1].astype(np.int64)
    ends, covered = starts.copy(), np.zeros(len(numbers), dtype=np.int64)
    # A record may begin at any byte: an array of records that overlap, each one byte after the other.
    last = records_end - RECORD.size
    records = np.ndarray((max(0, last + 1),), dtype=_RECORD, buffer=data, strides=(1,))
    rows, places = np.arange(len(numbers)), positions
    for _ in range(SAMPLE_RECORDS_MAX):  # what lies beyond belongs to no sample
        if not len(rows):
            break
        _check_positions(places, last)
        found = records[places]
        padded = (found["size"].astype(np.int64) + (TAR_HEADER_BYTES - 1)) & -TAR_HEADER_BYTES
        own = found["key"] != NO_KEY
        mine = rows if own.all() else rows[own]
        ends[mine] = (found["offset"].astype(np.int64) + padded)[own]
        covered[mine] += (found["head"].astype(np.int64) + padded)[own]
        places = places + (found["name"].astype(np.int64) + RECORD.size)
        more = np.flatnonzero(places < stops)
        rows, places, stops = rows[more], places[more], stops[more]
    if len(numbers) and not (covered.min() > 0 and starts.min() >= 0 and (starts < ends).all() and ends.max() <= archive_size):
        raise IndexCorrupt("a sample in an index lies outside of its archive", int(ends.max()))
    solid = covered == ends - starts
    pieces = {}
    for row in np.flatnonzero(~solid).tolist():
        end = int(table[int(numbers[row]) + 1, 1]) if int(numbers[row]) + 1 < sample_count else records_end
        pieces[row] = _pieces(records, int(positions[row]), end)
    return SampleSpans(starts, ends, solid, pieces)


def _pieces(records: NDArray[np.void], position: int, end: int) -> list[tuple[int, int]]:
    """Where the members of one sample lie, each with its headers and padding."""
    found = []
    for _ in range(SAMPLE_RECORDS_MAX):
        offset, size, head, name_bytes, key, _ = records[position].item()
        if key != NO_KEY:
            found.append((offset - head, offset + (size + TAR_HEADER_BYTES - 1 & -TAR_HEADER_BYTES)))
        position += RECORD.size + name_bytes
        if position >= end:
            break
    return found


def _check_positions(places: Integers, last: int) -> None:
    if places.min() < HEADER_BYTES or places.max() > last:
        raise IndexCorrupt("an index points outside of its records", int(places.max()))
