"""Find the positions of many samples in their archive, for readers that copy them unchanged, including headers.

Numbers are bytes of the uncompressed archive. The blocks of the index have been verified; even so, nothing is read outside
them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dfc.limits import SAMPLE_RECORDS_MAX, TAR_HEADER_BYTES
from dfc.tar.index.file import IndexFile
from dfc.tar.index.format import RECORD, IndexCorrupt, IndexHeader
from dfc.tar.index.slices import RECORDS, Integers, Slice, next_records, overlay, read_slices
from dfc.tar.samples import NO_KEY


@dataclass(frozen=True)
class SampleSpans:
    """The spans of n samples: `starts` of their first headers, `ends` after the padding of their last members; `solid` where
    only the sample's own members lie between. For the others `pieces` has the start and end of each member, by row."""

    starts: Integers
    ends: Integers
    solid: NDArray[np.bool_]
    pieces: dict[int, list[tuple[int, int]]]


def read_spans(file: IndexFile, header: IndexHeader, numbers: Integers) -> SampleSpans:
    """Find the samples with these ordinals. Raises IndexError if one does not exist, IndexCorrupt."""
    count = len(numbers)
    starts, ends, solid = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool)
    pieces = {}
    for part in read_slices(file, header, numbers):
        last = part.first + len(part.starts)
        starts[part.first : last] = part.starts
        part_ends, part_solid = _ends(part, header.archive_size)
        ends[part.first : last], solid[part.first : last] = part_ends, part_solid
        for row in np.flatnonzero(~part_solid).tolist():
            pieces[part.first + row] = _pieces(part, row)
    return SampleSpans(starts, ends, solid, pieces)


def _ends(part: Slice, archive_size: int) -> tuple[Integers, NDArray[np.bool_]]:
    starts, records = part.starts, overlay(part.data, RECORDS)
    ends, covered = starts.copy(), np.zeros(len(starts), dtype=np.int64)
    rows, places, stops = np.arange(len(starts)), part.positions, part.ends
    for _ in range(SAMPLE_RECORDS_MAX):  # what lies beyond belongs to no sample
        found = records[places]
        padded = (found["size"].astype(np.int64) + (TAR_HEADER_BYTES - 1)) & -TAR_HEADER_BYTES
        own = found["key"] != NO_KEY
        mine = rows if own.all() else rows[own]
        ends[mine] = (found["offset"].astype(np.int64) + padded)[own]
        covered[mine] += (found["head"].astype(np.int64) + padded)[own]
        after = places + (found["name"].astype(np.int64) + RECORD.size)
        more = next_records(after, stops)
        if not len(more):
            break
        rows, places, stops = rows[more], after[more], stops[more]
    if not (covered.min() > 0 and starts.min() >= 0 and (starts < ends).all() and ends.max() <= archive_size):
        raise IndexCorrupt("a sample in an index lies outside its archive", int(ends.max()))
    return ends, covered == ends - starts


def _pieces(part: Slice, row: int) -> list[tuple[int, int]]:
    """The start and end of each member of a sample, including headers and padding."""
    found, position, end = [], int(part.positions[row]), int(part.ends[row])
    records = overlay(part.data, RECORDS)
    for _ in range(SAMPLE_RECORDS_MAX):
        offset, size, head, name_bytes, key, _ = records[position].item()
        if key != NO_KEY:
            found.append((offset - head, offset + (size + TAR_HEADER_BYTES - 1 & -TAR_HEADER_BYTES)))
        position += RECORD.size + name_bytes
        if position + RECORD.size > end:
            break
    return found
