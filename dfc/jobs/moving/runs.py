"""Runs: sequences of canonical samples in temporary objects, each sorted by place in the output.

    data of all runs · ENTRIES (place, size), one a sample · FENCES (place, offset of the data), one each FENCE_SAMPLES, run
    RUNS (first entry, first fence, end of the data), one a run · their three numbers

All numbers have 8 bytes, little-endian. Fences let a reader fetch only the entries of a range of places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from dfc.checksum import Buffer
from dfc.jobs.moving.corpus import ForwardSource, Sources
from dfc.jobs.shards.output import PlainOutput
from dfc.jobs.store import Source
from dfc.parts import Part
from dfc.tar.headerbatch import PlainFiles
from dfc.tar.index.arrays import Integers

FENCE_SAMPLES: Final = 64


def object_bytes(data: int, runs: Sequence[int]) -> int:
    """The size of an object with `data` bytes of data, in runs of these numbers of samples."""
    return data + sum(16 * count + 16 * -(-count // FENCE_SAMPLES) for count in runs) + 24 * len(runs) + 24


class RunWriter:
    """Writes runs; the sink of `write_samples` and `write_spans`."""

    def __init__(self, output: PlainOutput) -> None:
        self._output = output
        self.size = 0
        self._entries: list[Integers] = []
        self._fences: list[Integers] = []
        self._runs: list[tuple[int, int, int]] = []
        self._entry_count = self._fence_count = 0

    @property
    def sends(self) -> bool:
        """Whether `send` is cheaper than `write`."""
        return self._output.sends

    def write(self, data: Buffer, files: PlainFiles | None = None) -> None:
        """Write the next bytes. `files` is ignored, because runs are not archives."""
        self._output.write(data)
        self.size += len(data)

    def send(self, parts: Sequence[Part]) -> None:
        self.size += self._output.send(parts)

    def end(self, places: Integers, sizes: Integers) -> None:
        """Complete a run with these samples."""
        starts = self.size - int(sizes.sum()) + np.cumsum(sizes) - sizes
        self._runs.append((self._entry_count, self._fence_count, self.size))
        self._entries.append(np.stack([places, sizes], axis=1))
        self._fences.append(np.stack([places, starts], axis=1)[::FENCE_SAMPLES])
        self._entry_count += len(places)
        self._fence_count += len(self._fences[-1])

    def finish(self) -> None:
        for table in (*self._entries, *self._fences, np.array(self._runs, dtype=np.int64)):
            self._output.write(table.astype("<i8").tobytes())
        self._output.write(np.array([self._entry_count, self._fence_count, len(self._runs)], dtype="<i8").tobytes())


@dataclass(frozen=True)
class Found:
    """Samples in temporary objects: their rows in the sources, offsets, sizes and places."""

    rows: Integers
    offsets: Integers
    sizes: Integers
    places: Integers


def find(sources: Sources, count: int, lo: int, hi: int) -> Found:
    """Find the samples with places from `lo` up to `hi` in `count` objects of runs."""
    columns: list[tuple[Integers, ...]] = [(np.zeros(0, dtype=np.int64),) * 4]
    for row in range(count):
        for places, sizes, offsets in _entries(sources[row], lo, hi):
            columns.append((np.full(len(places), row, dtype=np.int64), offsets, sizes, places))
    return Found(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def _entries(source: Source | ForwardSource, lo: int, hi: int) -> Iterator[tuple[Integers, Integers, Integers]]:
    """Yield places, sizes and offsets of the samples from place `lo` up to `hi`, for each run that has any."""
    tail = source.size - 24
    entry_count, fence_count, run_count = _numbers(source, tail, 3).tolist()
    runs_at = tail - 24 * run_count
    fences_at = runs_at - 16 * fence_count
    entries_at = fences_at - 16 * entry_count
    runs = _numbers(source, runs_at, 3 * run_count).reshape(-1, 3).tolist()
    fences = _numbers(source, fences_at, 2 * fence_count).reshape(-1, 2)
    for number, (first_entry, first_fence, _) in enumerate(runs):
        end_entry, end_fence = runs[number + 1][:2] if number + 1 < run_count else (entry_count, fence_count)
        mine = fences[first_fence:end_fence]
        begin = max(0, int(np.searchsorted(mine[:, 0], lo, side="right")) - 1)
        end = int(np.searchsorted(mine[:, 0], hi, side="left"))
        if end <= begin:
            continue
        first = first_entry + begin * FENCE_SAMPLES
        last = min(end_entry, first_entry + end * FENCE_SAMPLES)
        entries = _numbers(source, entries_at + 16 * first, 2 * (last - first)).reshape(-1, 2)
        places, sizes = entries[:, 0], entries[:, 1]
        offsets = int(mine[begin, 1]) + np.cumsum(sizes) - sizes
        kept = (places >= lo) & (places < hi)
        if kept.any():
            yield places[kept], sizes[kept], offsets[kept]


def _numbers(source: Source | ForwardSource, offset: int, count: int) -> Integers:
    data = bytearray(8 * count)
    if count:
        source.read_into(offset, memoryview(data))
    return np.frombuffer(data, dtype="<i8").astype(np.int64)
