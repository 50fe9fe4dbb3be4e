"""Reads the samples of an input in any format, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dfc.checksum import hash64
from dfc.formats.base import FormatError, check_member_name
from dfc.formats.grouping import group_files
from dfc.formats.lmdb import read_lmdb
from dfc.formats.sample import ON_SPLIT_REMEDY, DataMember, OnSplit, SampleData, SplitSample
from dfc.formats.table import FORMATS, SourceName
from dfc.jobs.shards.samples import read_samples
from dfc.jobs.store import Store
from dfc.jobs.tasks import InputShard
from dfc.limits import JOB_MEMBER_BYTES_MAX


def read_input(
    store: Store, shards: Sequence[InputShard], source: SourceName, prefix: str, on_split: OnSplit, warnings: list[str]
) -> Iterator[SampleData]:
    """Yield the samples of one input: all of `shards` for a `directory`, with names without `prefix`, else the one shard.

    FormatError or TarError name file and offset; SplitSample, InputChanged, JobCancelled. What was left out is added to
    `warnings` at the end.
    """
    if source == "directory":
        return _read_tree(store, shards, prefix, warnings)
    (shard,) = shards
    if source == "tar":
        return read_samples(store, shard, on_split)
    return _read_file(store, shard, source, on_split, warnings)


def _read_file(
    store: Store, shard: InputShard, source: SourceName, on_split: OnSplit, warnings: list[str]
) -> Iterator[SampleData]:
    opened = store.open(shard)
    try:
        form = FORMATS[source].file
        if form is not None and form.joins_samples:
            samples = form.read(opened, shard.label, on_split, warnings)
        else:
            read = read_lmdb if form is None else form.read
            samples = _settle_split(shard.label, read(opened, shard.label), on_split)
        for sample in samples:
            store.check()
            yield sample
    finally:
        opened.close()


def _settle_split(file: str, samples: Iterator[SampleData], on_split: OnSplit) -> Iterator[SampleData]:
    """Handle keys that occur again, as for a tar, in formats that allow it. Joining needs memory for the whole file."""
    if on_split == "keep":
        yield from samples
        return
    if on_split == "fail":
        seen: set[int] = set()
        for sample in samples:
            hashed = hash64(sample.key)
            if hashed in seen:
                raise SplitSample(f"{file}: the key {sample.key!r} occurs again later; {ON_SPLIT_REMEDY}")
            seen.add(hashed)
            yield sample
        return
    joined: dict[str, SampleData] = {}
    for sample in samples:
        first = joined.setdefault(sample.key, sample)
        if first is not sample:
            twice = {member.ext for member in first.members} & {member.ext for member in sample.members}
            if twice:
                raise SplitSample(f"{file}: the sample {sample.key!r} has {min(twice)!r} twice")
            first.members += sample.members
    yield from joined.values()


def _read_tree(store: Store, objects: Sequence[InputShard], prefix: str, warnings: list[str]) -> Iterator[SampleData]:
    """Read a directory tree. Files with the same key are one sample even if not adjacent, since a tree has no order."""
    where = f"{objects[0].bucket}/{prefix}" if objects else prefix
    for each in objects:
        check_member_name(where, each.name.removeprefix(prefix))
    grouped = group_files(where, ((each.name.removeprefix(prefix), each) for each in objects), "join")
    if grouped.dropped:
        warnings.append(f"{where}: {grouped.dropped} objects that belong to no sample were left out")
    for number, group in enumerate(grouped.samples):
        store.check()
        if sum(each.size for _, each in group.files) > JOB_MEMBER_BYTES_MAX:
            raise FormatError(where, f"the sample {group.key[:80]!r} is too large to be changed in memory")
        members = []
        for name, each in group.files:
            members.append(DataMember(name[len(group.key) + 1 :].lower(), name, _read_object(store, each)))
        yield SampleData(group.key, number, members)


def _read_object(store: Store, shard: InputShard) -> bytes:
    if shard.size > JOB_MEMBER_BYTES_MAX:
        raise FormatError(shard.label, f"an object of {shard.size} bytes is too large to be changed in memory")
    source = store.open(shard)
    try:
        data = bytearray(source.size)
        source.read_into(0, memoryview(data))
    finally:
        source.close()
    return bytes(data)
