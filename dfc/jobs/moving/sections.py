"""Ranges of samples in indexed shards: divides a conversion into outputs of a given size, and reads a task's ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from dfc.formats.sample import DataMember, SampleData
from dfc.jobs.moving.corpus import open_index, open_shard
from dfc.jobs.store import Source, Store
from dfc.jobs.tasks import InputShard
from dfc.limits import JOB_MEMBER_BYTES_MAX
from dfc.tar.header import TarError
from dfc.tar.index.entries import Sample


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
        source = open_shard(store, section.shard)
        try:
            for ordinal in range(section.first, section.stop):
                store.check()
                yield _read(source, index.sample_at(ordinal), number, section.shard.label)
                number += 1
        finally:
            source.close()


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
