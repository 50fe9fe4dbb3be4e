"""All samples of a job's input in the global order: numbered, looked for twice, cut into ranges.

Handles shards in which a key occurs again before anything else: the job fails, or they are rewritten as temporary shards
with joined samples, and indexes beside them.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import accumulate
from typing import Final

import msgspec
import numpy as np

from dfc.formats.base import ON_SPLIT_REMEDY, DataMember, OnSplit, SampleData, SplitSample
from dfc.jobs.data.output import ShardOutput, index_beside
from dfc.jobs.data.partitions import read_value, read_whole, write_value
from dfc.jobs.data.samples import read_samples
from dfc.jobs.store import Function, Source, Store
from dfc.jobs.tasks import InputShard, JobInput, Results, Stage, Task, TaskDraft, TaskResult
from dfc.limits import DECOMPRESS_CHUNK_BYTES, JOB_INLINE_SHARDS_MAX, JOB_MEMBER_BYTES_MAX, JOB_OPEN_SOURCES_MAX
from dfc.tar.compression import CompressionError, open_decompressed
from dfc.tar.header import TarError
from dfc.tar.index.columns import Integers
from dfc.tar.index.format import Sample
from dfc.tar.index.reader import ShardIndex


class CorpusPart(msgspec.Struct, frozen=True, array_like=True):
    """One shard in the global order. Its first sample has the ordinal `start`; `prefix` is put before its keys in outputs."""

    start: int
    shard: InputShard
    prefix: str = ""

    @property
    def end(self) -> int:
        return self.start + self.shard.samples


Parts = tuple[CorpusPart, ...]


def number_through(shards: Sequence[InputShard]) -> Parts:
    """Number the samples of the shards, in this order."""
    starts = accumulate((shard.samples for shard in shards), initial=0)
    return tuple(CorpusPart(start, shard) for start, shard in zip(starts, shards, strict=False))


def parts_within(parts: Parts, lo: int, hi: int) -> Parts:
    """The parts with samples from ordinal `lo` up to `hi`."""
    first = bisect_right(parts, lo, key=lambda part: part.end)
    return tuple(part for part in parts[first : bisect_left(parts, hi, key=lambda part: part.start)] if part.shard.samples)


class PartList(msgspec.Struct, frozen=True, array_like=True):
    """The shards in a task's payload; if there are many, the names of temporary objects that list them."""

    parts: Parts
    stored: tuple[str, ...] = ()

    def load(self, store: Store) -> Parts:
        """Return the shards."""
        return self.parts + tuple(part for name in self.stored for part in read_value(store, name, Parts))


def store_parts(task: Task, store: Store) -> TaskResult:
    """Write a list of shards to a temporary object, once for all tasks."""
    write_value(store, _list_name(task.number), task.decode(PartList).parts)
    return TaskResult()


def listing_stages(job: JobInput) -> list[Stage]:
    """The stages that write a long list of shards; none for a short list."""

    def tasks(results: Results) -> Iterator[TaskDraft]:
        parts = corpus(job, results)
        for lo in range(0, len(parts), JOB_INLINE_SHARDS_MAX):
            yield TaskDraft.of(PartList(parts[lo : lo + JOB_INLINE_SHARDS_MAX]), "the list of shards")

    count = len(job.shards)
    return [Stage("shards", tasks, -(-count // JOB_INLINE_SHARDS_MAX))] if count > JOB_INLINE_SHARDS_MAX else []


def part_list(parts: Parts, everything: Parts) -> PartList:
    """The list for a task that needs `parts`, which are some or all of `everything`."""
    if len(parts) <= JOB_INLINE_SHARDS_MAX:
        return PartList(parts)
    return PartList((), tuple(_list_name(number) for number in range(-(-len(everything) // JOB_INLINE_SHARDS_MAX))))


def _list_name(number: int) -> str:
    return f"shards/{number:06d}"


class Sources:
    """The shards or temporary objects of one task, by row: opened when needed, a limited number at once. A context manager."""

    def __init__(self, store: Store, rows: Sequence[InputShard | str]) -> None:
        self._store = store
        self._rows = rows
        self._open: OrderedDict[int, Source | ForwardSource] = OrderedDict()
        self._local: dict[int, bool] = {}

    def __getitem__(self, row: int) -> Source | ForwardSource:
        found = self._open.get(row)
        if found is not None:
            self._open.move_to_end(row)
            return found
        if len(self._open) >= JOB_OPEN_SOURCES_MAX:
            self._open.popitem(last=False)[1].close()
        wanted = self._rows[row]
        source = self._store.open_temporary(wanted) if isinstance(wanted, str) else open_shard(self._store, wanted)
        if isinstance(wanted, str) or wanted.kind == "tar":
            self._open[row] = source
            self._local[row] = source.file() is not None
            return source
        # A task that reads forward is done with the previous shard, and each holds a dictionary of up to 96 MiB.
        for other in [number for number, opened in self._open.items() if isinstance(opened, ForwardSource)]:
            self._open.pop(other).close()
        self._open[row] = forward = ForwardSource(source, wanted)
        return forward

    @property
    def open_max(self) -> int:
        """How many of the most recently used are kept open."""
        return JOB_OPEN_SOURCES_MAX

    def is_local(self, row: int) -> bool:
        """Whether it can be read from a local file."""
        wanted = self._rows[row]
        if not isinstance(wanted, str) and wanted.kind != "tar":
            return False
        if row not in self._local:
            self[row]
        return self._local[row]

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *_: object) -> None:
        for source in self._open.values():
            source.close()
        self._open.clear()


class ForwardSource:
    """The uncompressed archive of a compressed shard, which can only be read forward."""

    def __init__(self, source: Source, shard: InputShard) -> None:
        self.size = shard.content_size
        self._label = shard.label
        self._source = source
        self._stored = source.open()
        self._stream = open_decompressed(self._stored, shard.kind)
        self._at = 0

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Like Source.read_into, for ascending offsets."""
        if offset < self._at:
            raise ValueError(f"{self._label} is compressed and can only be read forward: byte {offset} has already been passed")
        try:
            while self._at < offset:
                self._advance(len(self._stream.read(min(offset - self._at, DECOMPRESS_CHUNK_BYTES))))
            while len(buffer):
                count = self._stream.readinto(buffer)
                self._advance(count)
                buffer = buffer[count:]
        except CompressionError as error:
            raise TarError(f"{self._label}: {error}", self._at, truncated=error.truncated) from None

    def read_ranges(self, ranges: Sequence[tuple[int, int]], buffer: memoryview) -> None:
        at = 0
        for offset, size in ranges:
            self.read_into(offset, buffer[at : at + size])
            at += size

    def file(self) -> None:
        return None

    def close(self) -> None:
        self._stream.close()
        self._stored.close()
        self._source.close()

    def _advance(self, count: int) -> None:
        if not count:
            raise TarError(f"{self._label}: the archive ends early", self._at, truncated=True)
        self._at += count


# --- Keys that occur again.

_JOINED: Final = "joined/"  # prefix of the names of temporary shards with joined samples


def open_shard(store: Store, shard: InputShard) -> Source:
    """Open an input of the job, or a joined shard."""
    return store.open(shard) if shard.bucket else store.open_temporary(shard.name)


def open_index(store: Store, shard: InputShard) -> ShardIndex:
    """Open the index of an input or of a joined shard."""
    if shard.bucket:
        return store.index(shard)
    with tempfile.TemporaryFile() as file:
        file.write(read_whole(store.open_temporary(index_beside(shard.name))))
        file.flush()
        return ShardIndex.open(file.fileno())


class _JoinTask(msgspec.Struct, frozen=True):
    number: int  # of the shard among the inputs
    shard: InputShard


def preparing_stages(job: JobInput, on_split: OnSplit) -> list[Stage]:
    """The stages that handle keys that occur again; usually none."""
    torn = sum(shard.repeated > 0 for shard in job.shards)
    if on_split == "keep" or not torn:
        return []

    def tasks(_: Results) -> Iterator[TaskDraft]:
        for number, shard in enumerate(job.shards):
            if shard.repeated:
                yield TaskDraft.of(_JoinTask(number, shard), shard.label, shard.node)
                if on_split == "fail":
                    return

    return [Stage("check", tasks, 1) if on_split == "fail" else Stage("join", tasks, torn)]


def corpus(job: JobInput, results: Results) -> Parts:
    """Return the shards of the job, with joined shards in place of their originals."""
    shards = list(job.shards)
    for result in results.get("join", ()):
        number, shard = result.decode(tuple[int, InputShard])
        shards[number] = shard
    return number_through(shards)


def refuse_split(task: Task, store: Store) -> TaskResult:
    """Check a shard in which a key occurs again: fail with an error that names it."""
    shard = task.decode(_JoinTask).shard
    for _ in read_samples(store, shard, "fail"):
        break
    raise SplitSample(f"{shard.label}: a key occurs again later in the shard; {ON_SPLIT_REMEDY}")


def join_split(task: Task, store: Store) -> TaskResult:
    """Rewrite one shard with the samples of each key joined, as two temporary objects: shard and index."""
    wanted = task.decode(_JoinTask)
    shard, name = wanted.shard, f"{_JOINED}{wanted.number:06d}.tar"
    with ShardOutput(store, name, temporary=True) as output:
        for sample in read_samples(store, shard, "join"):
            output.add(sample.members)
        joined = output.commit_temporary(shard.version, shard.node)
    return TaskResult(bytes_in=shard.size, bytes_out=joined.size, data=msgspec.msgpack.encode((wanted.number, joined)))


PREPARING_FUNCTIONS: Final[Mapping[str, Function]] = {"join": join_split, "check": refuse_split, "shards": store_parts}


def starts_of(parts: Parts) -> Integers:
    """The first ordinal of each part, for binary search."""
    return np.array([part.start for part in parts], dtype=np.int64)


# --- Ranges of samples in indexed shards: divides a conversion into outputs of a given size, and reads a task's ranges.


class SampleRange(msgspec.Struct, frozen=True, array_like=True):
    """The samples `first` to `stop` (not included) of an uncompressed shard, of the job's input or temporary."""

    shard: InputShard
    first: int
    stop: int

    @property
    def seed(self) -> str:
        """A text that identifies its content."""
        return f"{self.shard.checksum} {self.first} {self.stop}"


def cut(shards: Iterable[InputShard], count: int) -> Iterator[tuple[SampleRange, ...]]:
    """Yield the sections of each output: `count` samples, the rest in the last; one empty output if there are no samples."""
    sections: list[SampleRange] = []
    room, outputs = count, 0
    for shard in shards:
        first = 0
        while first < shard.samples:
            stop = min(shard.samples, first + room)
            sections.append(SampleRange(shard, first, stop))
            room -= stop - first
            first = stop
            if not room:
                yield tuple(sections)
                sections, room, outputs = [], count, outputs + 1
    if sections or not outputs:
        yield tuple(sections)


def read_sections(store: Store, sections: Sequence[SampleRange]) -> Iterator[SampleData]:
    """Yield the samples of all sections, in order. TarError for a member too large for memory; InputChanged."""
    number = 0
    for section in sections:
        index = open_index(store, section.shard)
        with closing(open_shard(store, section.shard)) as source:
            for ordinal in range(section.first, section.stop):
                store.check()
                yield _read(source, index.sample_at(ordinal), number, section.shard.label)
                number += 1


def _read(source: Source, sample: Sample, number: int, label: str) -> SampleData:
    for member in sample.members:
        if member.size > JOB_MEMBER_BYTES_MAX:
            raise TarError(f"{label}: member {member.name[:80]!r} is too large to be changed in memory", member.offset)
    ranges = [(member.offset, member.size) for member in sample.members]
    total = sum(size for _, size in ranges)
    if total > JOB_MEMBER_BYTES_MAX:
        raise TarError(f"{label}: the sample {sample.key[:80]!r} is too large to be changed in memory", ranges[0][0])
    data = memoryview(bytearray(total))
    source.read_ranges(ranges, data)
    members, at = [], 0
    for member in sample.members:
        assert member.ext is not None
        members.append(DataMember(member.ext, member.name, bytes(data[at : at + member.size])))
        at += member.size
    return SampleData(sample.key, number, members)
