"""Writes samples to an output of any format: one object, an object and its index, or a directory tree."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol, Self

from dfc.errors import Conflict
from dfc.formats.base import FileFormat, SampleWriter, WriterOptions
from dfc.formats.lmdb import FILE_NAME, LmdbWriter
from dfc.formats.sample import SampleData
from dfc.formats.table import FORMATS, FormatName
from dfc.jobs.shards.output import PlainOutput, ShardOutput
from dfc.jobs.store import Store
from dfc.jobs.tasks import OutputRecord
from dfc.limits import FORMAT_TREE_OBJECTS_MAX
from dfc.names import check_object_name


class Target(Protocol):
    """An output of samples; a context manager that discards it without `commit`."""

    def add(self, sample: SampleData) -> None: ...
    def commit(self) -> tuple[OutputRecord, ...]: ...
    def __enter__(self) -> Self: ...
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


class _Shard:
    def __init__(self, output: ShardOutput) -> None:
        self._output = output

    def add(self, sample: SampleData) -> None:
        self._output.add(sample.members)

    def commit(self) -> tuple[OutputRecord, ...]:
        return (self._output.commit(),)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._output.abort()


class _File:
    def __init__(self, output: PlainOutput, writer: SampleWriter) -> None:
        self._output, self._writer = output, writer
        self._samples = 0

    def add(self, sample: SampleData) -> None:
        self._writer.add(sample)
        self._samples += 1

    def commit(self) -> tuple[OutputRecord, ...]:
        self._writer.finish()
        return (self._output.commit(self._samples),)

    def __enter__(self) -> Self:
        return self

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


class _Directory:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass  # the end of the job removes staged objects that were not recorded


class _Lmdb:
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
