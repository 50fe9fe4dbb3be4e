"""Read the samples of an input, and write those of an output, in any format."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Self

from dfc.checksum import hash64
from dfc.errors import Conflict
from dfc.formats.base import (
    ON_SPLIT_REMEDY,
    DataMember,
    FileFormat,
    FormatError,
    OnSplit,
    SampleData,
    SampleWriter,
    SplitSample,
    WriterOptions,
    check_member_name,
    group_files,
)
from dfc.formats.lmdb import FILE_NAME, LmdbWriter, read_lmdb
from dfc.formats.table import FORMATS, FormatName, SourceName
from dfc.jobs.data.output import PlainOutput, ShardOutput
from dfc.jobs.data.partitions import read_whole
from dfc.jobs.store import Store
from dfc.jobs.tasks import InputShard, OutputRecord
from dfc.limits import FORMAT_TREE_OBJECTS_MAX, JOB_MEMBER_BYTES_MAX
from dfc.names import check_object_name
from dfc.tar.header import FILE, TYPES, TarError
from dfc.tar.reader import iterate_members
from dfc.tar.samples import SampleGrouper


def read_samples(store: Store, shard: InputShard, on_split: OnSplit = "fail") -> Iterator[SampleData]:
    """Yield every sample of a shard, in order, in one sequential pass.

    With `join`, the whole shard is held in memory if keys occur again. Raises SplitSample, TarError naming member and offset,
    InputChanged, JobCancelled.
    """
    if shard.repeated and on_split == "fail":
        raise SplitSample(
            f"{shard.label}: the key {_first_repeated(store, shard)!r} occurs again later in the shard; {ON_SPLIT_REMEDY}"
        )
    samples = _in_order(store, shard)
    if not shard.repeated or on_split == "keep":
        yield from samples
        return
    joined: dict[str, SampleData] = {}
    for sample in samples:
        first = joined.setdefault(sample.key, sample)
        if first is not sample:
            known = {member.ext for member in first.members}
            twice = next((member.ext for member in sample.members if member.ext in known), None)
            if twice is not None:
                raise SplitSample(f"{shard.label}: the sample {sample.key!r} has {twice!r} twice")
            first.members += sample.members
    for number, sample in enumerate(joined.values()):
        sample.number = number
        yield sample


def _in_order(store: Store, shard: InputShard) -> Iterator[SampleData]:
    try:
        with closing(store.open(shard)) as source, source.open() as stream:
            grouper, sample, number, held = SampleGrouper(), None, 0, 0
            for member, data in iterate_members(stream, shard.kind):
                if member.type != TYPES[FILE] or member.key is None or member.ext is None:
                    continue
                if member.size > JOB_MEMBER_BYTES_MAX:
                    raise TarError(f"member {member.name[:80]!r} is too large to be changed in memory", member.offset)
                held += member.size
                if grouper.starts_sample(member.name):
                    if sample is not None:
                        yield sample
                        store.check()
                    sample = SampleData(member.key, number, [])
                    number, held = number + 1, member.size
                elif held > JOB_MEMBER_BYTES_MAX:
                    raise TarError(f"the sample {member.key[:80]!r} is too large to be changed in memory", member.offset)
                assert sample is not None
                sample.members.append(DataMember(member.ext, member.name, data.readall()))
            if sample is not None:
                yield sample
    except TarError as error:
        raise TarError(f"{shard.label}: {error}", error.offset, truncated=error.truncated) from None


def _first_repeated(store: Store, shard: InputShard) -> str:
    seen = set()
    for sample in store.index(shard).samples():
        if sample.key in seen:
            return sample.key
        seen.add(sample.key)
    return "?"


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
    form = FORMATS[source].file
    with closing(store.open(shard)) as opened:
        if form is not None and form.joins_samples:
            samples = form.read(opened, shard.label, on_split, warnings)
        else:
            read = read_lmdb if form is None else form.read
            samples = _settle_split(shard.label, read(opened, shard.label), on_split)
        for sample in samples:
            store.check()
            yield sample


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
        members = [DataMember(group.ext(name), name, _read_object(store, each)) for name, each in group.files]
        yield SampleData(group.key, number, members)


def _read_object(store: Store, shard: InputShard) -> bytes:
    if shard.size > JOB_MEMBER_BYTES_MAX:
        raise FormatError(shard.label, f"an object of {shard.size} bytes is too large to be changed in memory")
    return bytes(read_whole(store.open(shard)))


# --- Writes samples to an output of any format: one object, an object and its index, or a directory tree.


class Target(ABC):
    """An output of samples; a context manager that discards it without `commit`."""

    @abstractmethod
    def add(self, sample: SampleData) -> None: ...
    @abstractmethod
    def commit(self) -> tuple[OutputRecord, ...]: ...

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...


def open_target(
    store: Store, format: FormatName, name: str, *, level: int | None = None, columns: Sequence[str] = (), seed: str = ""
) -> Target:
    """Open an output. `name` is the object's name or, for trees, the prefix of all names. `columns` is for Parquet; `seed`
    identifies the input, for formats that would otherwise use random numbers."""
    form = FORMATS[format]
    if form.kind is not None:
        return _Shard(ShardOutput(store, name, level=level))
    if format == "directory":
        return _Directory(store, name)
    if format == "lmdb":
        return _Lmdb(store, name)
    assert form.file is not None, f"{format} holds no samples"
    output = PlainOutput(store, name)
    try:
        writer = form.file.writer(output, WriterOptions(level, columns, seed))
        return _IndexedFile(store, output, writer, form.file) if form.file.index_ending else _File(output, writer)
    except BaseException:
        output.abort()
        raise


class _Shard(Target):
    def __init__(self, output: ShardOutput) -> None:
        self._output = output

    def add(self, sample: SampleData) -> None:
        self._output.add(sample.members)

    def commit(self) -> tuple[OutputRecord, ...]:
        return (self._output.commit(),)

    def __exit__(self, *_: object) -> None:
        self._output.abort()


class _File(Target):
    def __init__(self, output: PlainOutput, writer: SampleWriter) -> None:
        self._output, self._writer = output, writer
        self._samples = 0

    def add(self, sample: SampleData) -> None:
        self._writer.add(sample)
        self._samples += 1

    def commit(self) -> tuple[OutputRecord, ...]:
        self._writer.finish()
        return (self._output.commit(self._samples),)

    def __exit__(self, *_: object) -> None:
        self._output.abort()


class _IndexedFile(_File):
    """A file, and beside it the index that its writer has made."""

    def __init__(self, store: Store, output: PlainOutput, writer: SampleWriter, format: FileFormat) -> None:
        super().__init__(output, writer)
        self._store, self._format = store, format

    def commit(self) -> tuple[OutputRecord, ...]:
        records = super().commit()
        made: bytearray = self._writer.index  # type: ignore[attr-defined]  # as FileFormat demands
        with PlainOutput(self._store, self._format.index_name(self._output.name), len(made)) as index:
            index.write(bytes(made))
            return (*records, index.commit())


class _Directory(Target):
    """Writes every member as an object, at once: staged objects are invisible until the job succeeds."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._prefix = store, prefix
        self._records: list[OutputRecord] = []
        self._names: set[str] = set()

    def add(self, sample: SampleData) -> None:
        """Add a sample. BadName for a member whose name is invalid for an object; Conflict for duplicates or too many files."""
        for place, member in enumerate(sample.members):
            name = check_object_name(self._prefix + member.name)
            if name in self._names:
                raise Conflict(f"two files of the directory would be named {name[:80]!r}")
            if len(self._names) >= FORMAT_TREE_OBJECTS_MAX:
                raise Conflict(f"{self._prefix}: one input can make a directory of at most {FORMAT_TREE_OBJECTS_MAX} files")
            self._names.add(name)
            with PlainOutput(self._store, name, len(member.data)) as output:
                output.write(member.data)
                self._records.append(output.commit(samples=0 if place else 1))

    def commit(self) -> tuple[OutputRecord, ...]:
        return tuple(self._records)

    def __exit__(self, *_: object) -> None:
        pass  # the end of the job removes staged objects that were not recorded


class _Lmdb(Target):
    """Writes an LMDB file to scratch space, then copies it to the output."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._prefix = store, prefix
        self._samples = 0
        self._stack = ExitStack()

    def add(self, sample: SampleData) -> None:
        self._writer.add(sample)
        self._samples += 1

    def commit(self) -> tuple[OutputRecord, ...]:
        self._writer.finish()
        file = os.open(self._writer.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(file).st_size
            with PlainOutput(self._store, self._prefix + FILE_NAME, size) as output:
                output.send([(b"", file, 0, size)])
                return (output.commit(self._samples),)
        finally:
            os.close(file)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._writer = LmdbWriter(stack.enter_context(self._store.scratch()))
            stack.callback(self._writer.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
