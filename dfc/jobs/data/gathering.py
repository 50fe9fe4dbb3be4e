"""Writes samples from any shards into one archive, in any order, as canonical bytes. Used for all ordered outputs.

Works in windows of limited size. The reads of a window are made in order of source and offset, directly to their final place
in the buffer; then new headers overwrite those of the source. Large members of local files bypass the buffer: they are sent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import numpy as np

from dfc.checksum import Buffer
from dfc.handover import Part
from dfc.jobs.data.corpus import ForwardSource, Parts, Sources, open_index, starts_of
from dfc.jobs.data.output import clear_padding, head_sizes, header_blocks, padded, special_headers
from dfc.jobs.store import Source, Store
from dfc.limits import KIB, MIB, TAR_HEADER_BYTES
from dfc.tar.index.columns import Integers, SampleArrays, concatenate
from dfc.tar.scanner import PlainFiles

BLOCK: Final = TAR_HEADER_BYTES
SEND_BYTES: Final = 32 * KIB  # from this size on, two system calls and a separate header cost less than copying the data
LOCAL_WINDOW_BYTES: Final = 4 * MIB  # small enough to be written from the CPU cache
COPY_BYTES: Final = 1 * MIB  # buffer for a member larger than a window
AHEAD_BYTES: Final = 16 * MIB  # how far ahead to announce reads to the kernel (WILLNEED)
TOGETHER_BYTES: Final = 4 * MIB  # sent per call
LOOKUP_SAMPLES: Final = 1 << 16  # columns of this many are in memory at once: a few hundred bytes each


class ArchiveSink(Protocol):
    """Takes the bytes of an archive, like ShardOutput."""

    @property
    def sends(self) -> bool: ...
    def write(self, data: Buffer, files: PlainFiles | None = None) -> object: ...
    def send(self, parts: Sequence[Part]) -> object: ...


def look_up(store: Store, parts: Parts, ordinals: Integers) -> tuple[Integers, SampleArrays]:
    """Look up samples by ordinals; return, in the same order, the row in `parts` of each, and their columns."""
    order = np.argsort(ordinals, kind="stable")
    ascending = ordinals[order]
    rows = np.searchsorted(starts_of(parts), ascending, side="right") - 1
    used, begins = np.unique(rows, return_index=True)
    found = []
    for row, begin, end in zip(used.tolist(), begins.tolist(), [*begins.tolist(), len(rows)][1:], strict=True):
        part = parts[row]
        arrays = open_index(store, part.shard).arrays(ascending[begin:end] - part.start)
        found.append(arrays.prefixed(part.prefix) if part.prefix else arrays)
    samples = concatenate(found)
    if len(order) < 2 or bool((order[1:] > order[:-1]).all()):
        return rows, samples
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return rows[back], samples.reordered(back)


def in_lookups(count: int) -> Iterator[tuple[int, int]]:
    """Split `count` into ranges of at most LOOKUP_SAMPLES."""
    for lo in range(0, count, LOOKUP_SAMPLES):
        yield lo, min(count, lo + LOOKUP_SAMPLES)


def write_samples(
    sink: ArchiveSink, sources: Sources, rows: Integers, samples: SampleArrays, memory_bytes: int, *, window: int | None = None
) -> None:
    """Write samples (of sources by `rows`), in order, to the sink. `window`: the exact number of bytes per window."""
    if len(samples):
        _SampleWriter(sink, sources, rows, samples, memory_bytes, window).write()


class _SampleWriter:
    """Writes samples. Positions count only bytes that go through the buffer, not those that are sent directly."""

    def __init__(
        self, sink: ArchiveSink, sources: Sources, rows: Integers, samples: SampleArrays, memory_bytes: int, window: int | None
    ) -> None:
        self._sink, self._sources, self._rows, self._samples = sink, sources, rows, samples
        self._special = special_headers(samples)
        self._heads = head_sizes(samples, self._special)
        used = np.unique(rows).tolist()
        local = np.zeros(max(used) + 1, dtype=bool)
        local[used] = [sources.is_local(row) for row in used]
        self._window = window or window_bytes(memory_bytes, bool(local[used].all()))
        member_rows = np.repeat(rows, samples.counts)
        self._sent = (samples.sizes >= SEND_BYTES) & local[member_rows] & sink.sends
        # Of a sent member, only the block with its padding goes through the buffer.
        data = np.where(self._sent, np.where(samples.sizes % BLOCK, BLOCK, 0), padded(samples.sizes))
        self._positions = np.zeros(len(data) + 1, dtype=np.int64)
        np.cumsum(self._heads + data, out=self._positions[1:])
        plain = (self._heads == BLOCK) & ~self._sent
        self._whole = samples.whole & np.logical_and.reduceat(plain, samples.first[:-1])
        self._buffer = np.empty(min(self._window, int(self._positions[-1])), dtype=np.uint8)

    def write(self) -> None:
        first, positions = self._samples.first, self._positions
        ends = positions[first[1:]]
        lo = 0
        while lo < len(ends):
            hi = int(np.searchsorted(ends, positions[first[lo]] + self._window, side="right"))
            if hi == lo:
                self._write_large(lo)
                hi = lo + 1
            else:
                self._write_window(lo, hi)
            lo = hi

    def _write_window(self, lo: int, hi: int) -> None:
        samples = self._samples
        a, b = int(samples.first[lo]), int(samples.first[hi])
        base = int(self._positions[a])
        buffer = self._buffer[: int(self._positions[b]) - base]
        at = self._positions[a:b] - base
        self._read(lo, hi, a, b, at, buffer.data)
        blocks = buffer.reshape(-1, BLOCK)
        plain = np.arange(a, b)
        if self._special:
            special = [row for row in self._special if a <= row < b]
            plain = np.setdiff1d(plain, special)
            for row in special:
                head = self._special[row]
                buffer[at[row - a] : at[row - a] + len(head)] = np.frombuffer(head, dtype=np.uint8)
        blocks[at[plain - a] // BLOCK] = header_blocks(samples.names[plain], samples.sizes[plain])
        sizes, data = samples.sizes[a:b], at + self._heads[a:b]
        sent = self._sent[a:b]
        loose = np.flatnonzero((sizes % BLOCK != 0) & ~sent)
        clear_padding(blocks, (data[loose] + sizes[loose]) // BLOCK, sizes[loose])
        blocks[data[sent & (sizes % BLOCK != 0)] // BLOCK] = 0
        known = len(plain) == b - a and not sent.any()
        files = PlainFiles.of(samples.names[a:b], sizes, at) if known else None
        self._emit(buffer.data, np.flatnonzero(sent), a, data, files)

    def _read(self, lo: int, hi: int, a: int, b: int, at: Integers, buffer: memoryview) -> None:
        """Read samples that only need new headers with one read each; of others, read each member."""
        samples = self._samples
        whole = np.flatnonzero(self._whole[lo:hi]) + lo
        counts = samples.counts[lo:hi]
        single = np.repeat(~self._whole[lo:hi], counts) & ~self._sent[a:b] & (samples.sizes[a:b] > 0)
        rows = np.concatenate([self._rows[whole], np.repeat(self._rows[lo:hi], counts)[single]])
        offsets = np.concatenate([samples.starts[whole], samples.offsets[a:b][single]])
        sizes = np.concatenate([samples.ends[whole] - samples.starts[whole], samples.sizes[a:b][single]])
        places = np.concatenate([at[samples.first[whole] - a], (at + self._heads[a:b])[single]])
        read_spans(self._sources, rows, offsets, sizes, places, buffer)

    def _emit(self, buffer: memoryview, sent: Integers, a: int, data: Integers, files: PlainFiles | None) -> None:
        samples, done = self._samples, 0
        owners = np.searchsorted(samples.first, sent + a, side="right") - 1
        spans = list(
            zip(self._rows[owners].tolist(), samples.offsets[sent + a].tolist(), samples.sizes[sent + a].tolist(), strict=True)
        )
        ends = data[sent].tolist()
        for first, together in _announced(self._sources, spans):
            parts: list[Part] = []
            for (file, offset, size), end in zip(together, ends[first:], strict=False):
                parts.append((buffer[done:end], file, offset, size))
                done = end + size % BLOCK
            self._sink.send(parts)
        if done < len(buffer):
            self._sink.write(buffer[done:], files)

    def _write_large(self, sample: int) -> None:
        """Write a sample that is larger than a window, in pieces."""
        samples, source = self._samples, self._sources[int(self._rows[sample])]
        for member in range(int(samples.first[sample]), int(samples.first[sample + 1])):
            size = int(samples.sizes[member])
            head = self._special.get(member)
            if head is None:
                head = header_blocks(samples.names[member : member + 1], samples.sizes[member : member + 1]).tobytes()
            self._sink.write(head)
            copy_range(self._sink, source, int(samples.offsets[member]), size)
            self._sink.write(bytes(-size % BLOCK))


def _announced(sources: Sources, spans: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, list[tuple[int, int, int]]]]:
    """Yield groups of spans of local sources, as the number of the first and a list of (file, offset, size), while the kernel
    reads ahead."""
    announced = ahead = gone = at = 0
    while at < len(spans):
        while announced < len(spans) and ahead - gone <= AHEAD_BYTES:
            row, offset, count = spans[announced]
            if (file := sources[row].file()) is not None:
                os.posix_fadvise(file, offset, count, os.POSIX_FADV_WILLNEED)
            announced, ahead = announced + 1, ahead + count
        # Looked up again: with very many sources, it may have been closed meanwhile.
        together, first, size = [], at, 0
        while at < len(spans) and at - first < sources.open_max and size < TOGETHER_BYTES:
            row, offset, count = spans[at]
            file = sources[row].file()
            assert file is not None
            together.append((file, offset, count))
            at, size = at + 1, size + count
        yield first, together
        gone += size


def window_bytes(memory_bytes: int, local: bool) -> int:
    """The size of a window, in whole blocks. Remote windows are larger, although their bytes are in memory twice."""
    return max(64 * KIB, min(memory_bytes // 4, LOCAL_WINDOW_BYTES if local else memory_bytes)) // BLOCK * BLOCK


def copy_range(sink: ArchiveSink, source: Source | ForwardSource, offset: int, size: int) -> None:
    """Copy a range of any size to the sink; it is sent without copying if possible."""
    file = source.file()
    if file is not None and sink.sends and size >= SEND_BYTES:
        sink.send([(b"", file, offset, size)])
        return
    buffer = memoryview(bytearray(min(size, COPY_BYTES)))
    for at in range(0, size, COPY_BYTES):
        piece = buffer[: min(COPY_BYTES, size - at)]
        source.read_into(offset + at, piece)
        sink.write(piece)


def read_spans(
    sources: Sources, rows: Integers, offsets: Integers, sizes: Integers, places: Integers, buffer: memoryview
) -> None:
    """Read bytes at `offsets` of sources to `places` in the buffer, in order of source and offset, merging adjacent reads."""
    order = np.lexsort((offsets, rows))
    rows, offsets, sizes, places = rows[order], offsets[order], sizes[order], places[order]
    if not len(rows):
        return
    begins = np.ones(len(rows), dtype=bool)
    begins[1:] = (rows[1:] != rows[:-1]) | (offsets[1:] != offsets[:-1] + sizes[:-1]) | (places[1:] != places[:-1] + sizes[:-1])
    runs = np.flatnonzero(begins)
    sizes = np.add.reduceat(sizes, runs)
    rows, offsets, places = rows[runs], offsets[runs], places[runs]
    used, firsts = np.unique(rows, return_index=True)
    for row, begin, end in zip(used.tolist(), firsts.tolist(), [*firsts[1:].tolist(), len(rows)], strict=True):
        spans = offsets[begin:end].tolist(), sizes[begin:end].tolist(), places[begin:end].tolist()
        source = sources[row]
        if not isinstance(source, ForwardSource):
            source.read_scattered(*spans, buffer)
            continue
        for offset, size, place in zip(*spans, strict=True):
            source.read_into(offset, buffer[place : place + size])


def write_spans(sink: ArchiveSink, sources: Sources, rows: Integers, offsets: Integers, sizes: Integers, window: int) -> None:
    """Copy ranges unchanged to the sink, in order, `window` bytes at a time."""
    if not len(rows):
        return
    ends = np.cumsum(sizes)
    if sink.sends and ends[-1] >= SEND_BYTES * len(ends) and all(sources.is_local(row) for row in np.unique(rows).tolist()):
        spans = list(zip(rows.tolist(), offsets.tolist(), sizes.tolist(), strict=True))
        for _, together in _announced(sources, spans):
            sink.send([(b"", *span) for span in together])
        return
    buffer = np.empty(min(window, int(ends[-1])), dtype=np.uint8).data
    lo = 0
    while lo < len(ends):
        base = int(ends[lo] - sizes[lo])
        hi = int(np.searchsorted(ends, base + window, side="right"))
        if hi == lo:
            copy_range(sink, sources[int(rows[lo])], int(offsets[lo]), int(sizes[lo]))
            lo += 1
            continue
        places = ends[lo:hi] - sizes[lo:hi] - base
        read_spans(sources, rows[lo:hi], offsets[lo:hi], sizes[lo:hi], places, buffer)
        sink.write(buffer[: int(ends[hi - 1]) - base])
        lo = hi
