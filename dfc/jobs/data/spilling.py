"""Reorder more samples than fit into memory: sorted runs, and the passes that merge them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from dfc.checksum import Buffer
from dfc.errors import StorageFailed
from dfc.handover import Part
from dfc.jobs.data.corpus import ForwardSource, PartList, Parts, Sources, part_list, parts_within
from dfc.jobs.data.gathering import look_up, window_bytes, write_samples, write_spans
from dfc.jobs.data.orders import Arrangement, Cut, Order, places_of, read_numbers, touching
from dfc.jobs.data.output import PlainOutput, ShardOutput, sample_sizes
from dfc.jobs.store import Function, Source, Store
from dfc.jobs.tasks import JobInput, Results, Stage, Task, TaskDraft, TaskResult
from dfc.limits import GIB
from dfc.tar.index.columns import Integers, SampleArrays
from dfc.tar.samples import END_OF_ARCHIVE
from dfc.tar.scanner import PlainFiles

# --- Runs: sequences of canonical samples in temporary objects, each sorted by place in the output.
#
#     data of all runs · ENTRIES (place, size), one a sample · FENCES (place, offset of the data), one each FENCE_SAMPLES, run
#     RUNS (first entry, first fence, end of the data), one a run · their three numbers
#
# All numbers have 8 bytes, little-endian. Fences let a reader fetch only the entries of a range of places.

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
    entry_count, fence_count, run_count = read_numbers(source, tail, 3).tolist()
    runs_at = tail - 24 * run_count
    fences_at = runs_at - 16 * fence_count
    entries_at = fences_at - 16 * entry_count
    runs = read_numbers(source, runs_at, 3 * run_count).reshape(-1, 3).tolist()
    fences = read_numbers(source, fences_at, 2 * fence_count).reshape(-1, 2)
    for number, (first_entry, first_fence, _) in enumerate(runs):
        end_entry, end_fence = runs[number + 1][:2] if number + 1 < run_count else (entry_count, fence_count)
        mine = fences[first_fence:end_fence]
        begin = max(0, int(np.searchsorted(mine[:, 0], lo, side="right")) - 1)
        end = int(np.searchsorted(mine[:, 0], hi, side="left"))
        if end <= begin:
            continue
        first = first_entry + begin * FENCE_SAMPLES
        last = min(end_entry, first_entry + end * FENCE_SAMPLES)
        entries = read_numbers(source, entries_at + 16 * first, 2 * (last - first)).reshape(-1, 2)
        places, sizes = entries[:, 0], entries[:, 1]
        offsets = int(mine[begin, 1]) + np.cumsum(sizes) - sizes
        kept = (places >= lo) & (places < hi)
        if kept.any():
            yield places[kept], sizes[kept], offsets[kept]


# --- Reorders samples in two or more sequential passes, for compressed inputs and rotating disks.
#
# The first pass reads shards sequentially and writes runs (`dfc.jobs.data.spilling`): as many samples as fit into memory, as
# canonical bytes, sorted by place. For each output, the last pass reads one range of every run, each in one read. If a run
# would be divided into more than FAN_OUT ranges, passes in between merge the runs of a range of places into new runs.

FAN_OUT: Final = 256  # ranges of a run: with runs of 128 MiB, reads have half a megabyte
_TASKS_MAX: Final = 1024  # of the first pass: each output opens all of their objects
_TASK_BYTES: Final = GIB  # how much a task of the first pass reads of one uncompressed shard
_SPREAD_SAMPLES: Final = 1 << 15
_PASSES: Final = 4  # 256^4 ranges are more than is possible


class SpreadTask(msgspec.Struct, frozen=True):
    """The payload of the first pass: samples with ordinals from `lo` up to `hi`."""

    lo: int
    hi: int
    order: Order
    parts: PartList


class MergeTask(msgspec.Struct, frozen=True):
    """The payload of later passes: places from `lo` up to `hi`, read from objects of runs."""

    name: str
    lo: int
    hi: int
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Spilling:
    """The stages of a job that spills. `outputs` is an estimate of their number."""

    job: JobInput
    arrange: Callable[[Results], Arrangement]
    cuts: Callable[[Results], Iterator[Cut]]
    outputs: int

    def stages(self) -> list[Stage]:
        merges = [Stage(f"merge{level}", self._merging(level)) for level in range(1, self._passes)]
        spread = Stage("spread", self._spread, temporary_bytes=self._content * self._passes)
        return [spread, *merges, Stage("collect", self._collect)]

    @property
    def _content(self) -> int:
        """The bytes that each pass writes."""
        return sum(shard.content_size for shard in self.job.shards)

    @property
    def _ranges(self) -> int:
        """The number of ranges into which places must be divided: outputs, or pieces of them that fit into memory."""
        return max(1, self.outputs, 2 * self._content // max(1, self.job.memory_bytes))

    @property
    def _passes(self) -> int:
        return next(passes for passes in range(1, _PASSES + 1) if passes == _PASSES or FAN_OUT**passes >= self._ranges)

    @property
    def _factor(self) -> int:
        """The number of ranges into which each pass divides: as few as possible."""
        return next(n for n in range(2, FAN_OUT + 1) if n == FAN_OUT or n**self._passes >= self._ranges)

    def _spread(self, results: Results) -> Iterator[TaskDraft]:
        arrangement = self.arrange(results)
        for lo, hi, node in _batches(arrangement.parts):
            parts = parts_within(arrangement.parts, lo, hi)
            task = SpreadTask(lo, hi, touching(arrangement.order, lo, hi), part_list(parts, arrangement.parts))
            yield TaskDraft.of(task, parts[0].shard.label, node)

    def _merging(self, level: int) -> Callable[[Results], Iterator[TaskDraft]]:
        def tasks(results: Results) -> Iterator[TaskDraft]:
            count = self.arrange(results).count
            sources = self._objects(results, count, level - 1)
            for number in range(self._factor**level):
                lo, hi = self._range(count, level, number)
                task = MergeTask(_merged_name(level, number), lo, hi, _overlapping(sources, lo, hi))
                yield TaskDraft.of(task, f"places {lo} to {hi}")

        return tasks

    def _collect(self, results: Results) -> Iterator[TaskDraft]:
        sources = self._objects(results, self.arrange(results).count, self._passes - 1)
        for cut in self.cuts(results):
            task = MergeTask(cut.name, cut.lo, cut.hi, _overlapping(sources, cut.lo, cut.hi))
            yield TaskDraft.of(task, cut.name, self.job.node_of(cut.name))

    def _range(self, count: int, level: int, number: int) -> tuple[int, int]:
        ranges = self._factor**level
        return count * number // ranges, count * (number + 1) // ranges

    def _objects(self, results: Results, count: int, level: int) -> list[tuple[int, int, str]]:
        """The objects of a level: their ranges of places, and their names."""
        if level == 0:
            bounds = [result.decode(tuple[int, int]) for result in results["spread"]]
            return [(lo, hi, _run_name(number)) for number, (lo, hi) in enumerate(bounds)]
        return [(*self._range(count, level, number), _merged_name(level, number)) for number in range(self._factor**level)]


def _overlapping(objects: list[tuple[int, int, str]], lo: int, hi: int) -> tuple[str, ...]:
    return tuple(name for low, high, name in objects if low < hi and high > lo)


def _merged_name(level: int, number: int) -> str:
    return f"runs{level}/{number:06d}"


def _run_name(number: int) -> str:
    return f"runs0/{number:06d}"


def _batches(parts: Parts) -> Iterator[tuple[int, int, str]]:
    """Yield the ordinals for each task of the first pass: several small shards, or a piece of a large uncompressed one."""
    enough = sum(part.shard.content_size for part in parts) // _TASKS_MAX
    lo, size = 0, 0
    for part in parts:
        shard = part.shard
        pieces = min(shard.content_size // _TASK_BYTES, shard.samples) if shard.kind == "tar" else 0
        if pieces > 1:
            if lo < part.start:
                yield lo, part.start, shard.node
            for piece in range(pieces):
                begin, end = (part.start + shard.samples * each // pieces for each in (piece, piece + 1))
                yield begin, end, shard.node
            lo, size = part.end, 0
            continue
        size += shard.content_size
        if size >= enough and part.end > lo:
            yield lo, part.end, shard.node
            lo, size = part.end, 0
    if parts and lo < parts[-1].end:
        yield lo, parts[-1].end, parts[-1].shard.node


def spread(task: Task, store: Store) -> TaskResult:
    """Write the samples of shards, or of a piece of one, as runs."""
    wanted = task.decode(SpreadTask)
    parts = wanted.parts.load(store)
    # Memory for the window, and once more for a remote source to assemble it.
    window = window_bytes(store.memory_bytes, local=False)
    size = object_bytes(*_measure(store, wanted, parts, window))
    low, high = 0, 0
    with (
        PlainOutput(store, _run_name(task.number), size, temporary=True) as output,
        Sources(store, [part.shard for part in parts]) as sources,
    ):
        runs = RunWriter(output)
        for places, rows, samples in _chosen(store, wanted, parts):
            sizes = sample_sizes(samples)
            for first, last in _fitting(sizes, window):
                order = first + np.argsort(places[first:last])
                write_samples(runs, sources, rows[order], samples.reordered(order), store.memory_bytes, window=window)
                runs.end(places[order], sizes[order])
                store.check()
            low = min(low, int(places.min())) if high else int(places.min())
            high = max(high, int(places.max()) + 1)
        bytes_in = runs.size
        runs.finish()
        written = output.commit()
    return TaskResult(bytes_in=bytes_in, bytes_out=written.size, data=msgspec.msgpack.encode((low, high)))


def _chosen(store: Store, wanted: SpreadTask, parts: Parts) -> Iterator[tuple[Integers, Integers, SampleArrays]]:
    """Yield the places of a task's samples, their rows in `parts`, and their columns; a few at a time."""
    for start in range(wanted.lo, wanted.hi, _SPREAD_SAMPLES):
        places = places_of(wanted.order, store, start, min(wanted.hi, start + _SPREAD_SAMPLES))
        chosen = np.flatnonzero(places >= 0)
        if len(chosen):
            yield places[chosen], *look_up(store, parts, start + chosen)


def _measure(store: Store, wanted: SpreadTask, parts: Parts, window: int) -> tuple[int, list[int]]:
    """The total size of the samples, and the samples per run. If the size is announced, the kernel receives without copies."""
    total, runs = 0, []
    for _, _, samples in _chosen(store, wanted, parts):
        sizes = sample_sizes(samples)
        total += int(sizes.sum())
        runs += [last - first for first, last in _fitting(sizes, window)]
    return total, runs


def merge(task: Task, store: Store) -> TaskResult:
    """Merge a range of places from many runs into fewer, longer runs."""
    wanted = task.decode(MergeTask)
    window = window_bytes(store.memory_bytes, local=False)
    with Sources(store, wanted.runs) as sources:
        found = find(sources, len(wanted.runs), wanted.lo, wanted.hi)
        fitting = list(_fitting(found.sizes, window))
        size = object_bytes(int(found.sizes.sum()), [last - first for first, last in fitting])
        with PlainOutput(store, wanted.name, size, temporary=True) as output:
            runs = RunWriter(output)
            for first, last in fitting:
                order = first + np.argsort(found.places[first:last])
                write_spans(runs, sources, found.rows[order], found.offsets[order], found.sizes[order], window)
                runs.end(found.places[order], found.sizes[order])
                store.check()
            bytes_in = runs.size
            runs.finish()
            written = output.commit()
    return TaskResult(bytes_in=bytes_in, bytes_out=written.size)


def collect(task: Task, store: Store) -> TaskResult:
    """Write one output from all runs."""
    wanted = task.decode(MergeTask)
    with Sources(store, wanted.runs) as sources:
        found = find(sources, len(wanted.runs), wanted.lo, wanted.hi)
        order = np.argsort(found.places)
        if not np.array_equal(found.places[order], np.arange(wanted.lo, wanted.hi)):
            raise StorageFailed(f"the temporary objects for {wanted.name} do not hold all of its samples")
        size = int(found.sizes.sum()) + len(END_OF_ARCHIVE)
        window = window_bytes(store.memory_bytes, local=False)
        with ShardOutput(store, wanted.name, size) as output:
            write_spans(output, sources, found.rows[order], found.offsets[order], found.sizes[order], window)
            output.write(END_OF_ARCHIVE)
            record = output.commit(len(order))
    return TaskResult((record,), len(order), record.content_size, record.size)


SPILL_FUNCTIONS: Final[Mapping[str, Function]] = {
    "spread": spread,
    **{f"merge{level}": merge for level in range(1, _PASSES)},
    "collect": collect,
}


def _fitting(sizes: Integers, window: int) -> Iterator[tuple[int, int]]:
    """Yield ranges whose sizes add up to at most a window; a larger sample is a range by itself."""
    ends = np.cumsum(sizes)
    first = 0
    while first < len(ends):
        last = max(first + 1, int(np.searchsorted(ends, (ends[first - 1] if first else 0) + window, side="right")))
        yield first, last
        first = last
