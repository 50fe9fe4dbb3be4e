"""Samples of an index as columns of numbers, for code that moves whole datasets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dfc.limits import INDEX_COLUMNS_BYTES, SAMPLE_RECORDS_MAX, TAR_HEADER_BYTES, TAR_MEMBER_NAME_BYTES_MAX
from dfc.tar.index.format import HEADER_BYTES, RECORD, SAMPLE, IndexCorrupt, IndexFile, IndexHeader
from dfc.tar.samples import NO_KEY

# --- Gather the records of many samples from an index file into one buffer, to be read in columns.
#
# Samples close to each other are read together, others one by one; more than INDEX_COLUMNS_BYTES are split into several slices.
# Positions in the tables are not trusted: every slice holds whole records of its samples, or IndexCorrupt is raised.

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


# --- Samples of an index as columns of numbers, so that code that moves whole datasets needs no object per member.
#
# All offsets and sizes are bytes of the uncompressed archive. Columns of members are in the order of the requested samples.

HEADER_NAME_BYTES: Final = 100  # the size of the name field in a tar header


@dataclass(frozen=True)
class SampleArrays:
    """Columns of n samples with m members in all. Sample i has the members `first[i]` up to `first[i + 1]`.

    `starts`, `ends` (n): its bytes in the archive, including headers and padding. `whole` (n): there is nothing else between,
    and every member has one header block. `offsets`, `sizes` (m): of the data. `names` (m, at most 100): in UTF-8, padded with
    zeros; longer names are truncated here and complete in `long_names`. `key_chars` (m): characters, not bytes.
    """

    starts: Integers
    ends: Integers
    whole: NDArray[np.bool_]
    first: Integers
    offsets: Integers
    sizes: Integers
    key_chars: Integers
    names: Bytes
    long_names: dict[int, bytes]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def counts(self) -> Integers:
        """The number of members of each sample."""
        return np.diff(self.first)

    def name_list(self) -> list[bytes]:
        """The full names."""
        names = strings(self.names)
        for row, name in self.long_names.items():
            names[row] = name
        return names

    def reordered(self, order: Integers) -> SampleArrays:
        """The samples at these rows, in this order."""
        counts = self.counts[order]
        first = np.zeros(len(order) + 1, dtype=np.int64)
        np.cumsum(counts, out=first[1:])
        rows = np.repeat(self.first[order] - first[:-1], counts) + np.arange(first[-1])
        long_names = {}
        if self.long_names:
            for new in np.flatnonzero(np.isin(rows, np.fromiter(self.long_names, dtype=np.int64))).tolist():
                long_names[new] = self.long_names[int(rows[new])]
        return SampleArrays(
            self.starts[order], self.ends[order], self.whole[order], first, self.offsets[rows], self.sizes[rows],
            self.key_chars[rows], self.names[rows], long_names,
        )  # fmt: skip

    def prefixed(self, prefix: str) -> SampleArrays:
        """The same samples with `prefix` before each name."""
        begin = prefix.encode()
        count = len(self.names)
        wide = np.zeros((count, len(begin) + self.names.shape[1]), dtype=np.uint8)
        wide[:, : len(begin)] = np.frombuffer(begin, dtype=np.uint8)
        wide[:, len(begin) :] = self.names
        long_names = {row: begin + name for row, name in self.long_names.items()}
        for row in np.flatnonzero(wide[:, HEADER_NAME_BYTES:].any(axis=1)).tolist():
            long_names.setdefault(row, wide[row].tobytes().rstrip(b"\0"))
        return replace(self, names=wide[:, :HEADER_NAME_BYTES], key_chars=self.key_chars + len(prefix), long_names=long_names)


def strings(rows: Bytes) -> list[bytes]:
    """Zero-padded rows as bytes without the padding."""
    if rows.shape[1] == 0:
        return [b""] * len(rows)
    found: list[bytes] = np.ascontiguousarray(rows).view(f"S{rows.shape[1]}").ravel().tolist()
    return found


def concatenate(parts: Sequence[SampleArrays]) -> SampleArrays:
    """Concatenate the samples of several indexes."""
    if len(parts) == 1:
        return parts[0]
    width = max((part.names.shape[1] for part in parts), default=0)
    members = [len(part.offsets) for part in parts]
    before = np.cumsum([0, *members])
    names = np.zeros((int(before[-1]), width), dtype=np.uint8)
    long_names: dict[int, bytes] = {}
    for part, at in zip(parts, before.tolist(), strict=False):
        names[at : at + len(part.names), : part.names.shape[1]] = part.names
        long_names.update((row + at, name) for row, name in part.long_names.items())
    first = [part.first[:-1] + at for part, at in zip(parts, before.tolist(), strict=False)]

    def join(column: str) -> Any:
        return np.concatenate([getattr(part, column) for part in parts]) if parts else np.zeros(0, dtype=np.int64)

    return SampleArrays(
        join("starts"), join("ends"), join("whole").astype(bool), np.concatenate([*first, before[-1:]]), join("offsets"),
        join("sizes"), join("key_chars"), names, long_names,
    )  # fmt: skip


def read_arrays(file: IndexFile, header: IndexHeader, numbers: Integers) -> SampleArrays:
    """Read the samples with these ordinals. The record blocks have been verified; even so, nothing is read outside them."""
    return concatenate([_columns(part) for part in read_slices(file, header, numbers)])


def _columns(part: Slice) -> SampleArrays:
    starts, data = part.starts, part.data
    owners, records, places = _walk(part)
    counts = np.bincount(owners, minlength=len(starts))
    if not counts.all():
        raise IndexCorrupt("a sample in an index has no members", int(part.positions[int(np.argmin(counts))]))
    first = np.zeros(len(starts) + 1, dtype=np.int64)
    np.cumsum(counts, out=first[1:])
    offsets = records["offset"].astype(np.int64)
    sizes = records["size"].astype(np.int64)
    spans = records["head"].astype(np.int64) + (sizes + (TAR_HEADER_BYTES - 1) & -TAR_HEADER_BYTES)
    last = first[1:] - 1
    ends = offsets[last] + (sizes[last] + (TAR_HEADER_BYTES - 1) & -TAR_HEADER_BYTES)
    covered = np.add.reduceat(spans, first[:-1])
    plain = np.logical_and.reduceat(records["head"] == TAR_HEADER_BYTES, first[:-1])
    whole = plain & (covered == ends - starts)
    names, long_names = _names(data, places + RECORD.size, records["name"].astype(np.int64))
    key_chars = records["key"].astype(np.int64)
    return SampleArrays(starts, ends, whole, first, offsets, sizes, key_chars, names, long_names)


def _walk(part: Slice) -> tuple[Integers, NDArray[np.void], Integers]:
    """The records of all samples: the sample of each, the record, its position. One step goes to the next record of every
    sample that has one, so there are as many steps as members in the largest sample."""
    all_records = overlay(part.data, RECORDS)
    owner, positions, ends = np.arange(len(part.starts), dtype=np.int64), part.positions, part.ends
    owners, records, places = [], [], []
    for _ in range(SAMPLE_RECORDS_MAX):  # what lies beyond belongs to no sample
        found = all_records[positions]
        after = positions + (found["name"].astype(np.int64) + RECORD.size)
        mine = found["key"] != NO_KEY
        if mine.all():
            owners.append(owner)
            records.append(found)
            places.append(positions)
        else:
            owners.append(owner[mine])
            records.append(found[mine])
            places.append(positions[mine])
        rows = next_records(after, ends)
        if not len(rows):
            break
        owner, positions, ends = owner[rows], after[rows], ends[rows]
    all_owners = np.concatenate(owners)
    order = np.argsort(all_owners, kind="stable")
    return all_owners[order], np.concatenate(records)[order], np.concatenate(places)[order]


def _names(data: Bytes, positions: Integers, lengths: Integers) -> tuple[Bytes, dict[int, bytes]]:
    """The names at these positions in the data as rows, and in full those too long for a row."""
    width = min(HEADER_NAME_BYTES, int(lengths.max()))
    if width == 0:
        return np.zeros((len(lengths), 0), dtype=np.uint8), {}
    wide = overlay(data, np.dtype(f"V{width}"))
    inside = positions < len(wide)  # the last names are closer to the end than the width of a row
    rows = np.zeros((len(lengths), width), dtype=np.uint8)
    rows[inside] = wide[positions[inside]].view(np.uint8).reshape(-1, width)
    for row in np.flatnonzero(~inside).tolist():
        piece = data[positions[row] : positions[row] + min(width, lengths[row])]
        rows[row, : len(piece)] = piece
    rows *= np.arange(width) < lengths[:, None]
    long_names = {
        row: data[positions[row] : positions[row] + lengths[row]].tobytes()
        for row in np.flatnonzero(lengths > HEADER_NAME_BYTES).tolist()
    }
    return rows, long_names


# --- Find the positions of many samples in their archive, for readers that copy them unchanged, including headers.
#
# Numbers are bytes of the uncompressed archive. The blocks of the index have been verified; even so, nothing is read outside
# them.


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
