"""List keys: one manifest of all samples, in global order, as NDJSON, plain text or Parquet by the name of the output."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np

from dfc.checksum import Buffer
from dfc.errors import BadRequest, Conflict
from dfc.jobs.corpus import PREPARING_FUNCTIONS, Part, Sources, corpus, open_index, preparing_stages
from dfc.jobs.gathering import copy_range
from dfc.jobs.options import CommonOptions
from dfc.jobs.output import PlainOutput
from dfc.jobs.pattern import OutputPattern
from dfc.jobs.store import Store
from dfc.jobs.tasks import JobInput, Results, Stage, Task, TaskDraft, TaskResult
from dfc.tar.key_lines import Form, LineBreak, extensions, key_lines, sample_keys

Field = Literal["key", "members"]
_ENDINGS: Final = (".ndjson", ".txt", ".parquet")
_ROW_GROUP: Final = 1 << 16


class Options(CommonOptions, frozen=True, kw_only=True):
    """`fields`: `["key"]`, or with extensions and sizes of the members, which is the default but for plain text."""

    fields: Annotated[list[Field], msgspec.Meta(min_length=1, max_length=2)] | None = None


def check(options: Options, pattern: OutputPattern) -> None:
    """BadRequest for a name that is no manifest, for members in plain text, and when Parquet's library is missing."""
    if pattern.is_numbered or pattern.has_part or not pattern.text.endswith(_ENDINGS):
        raise BadRequest(f"keys writes one object, with a name that ends in {', '.join(_ENDINGS)}")
    fields = options.fields
    if fields is not None and ("key" not in fields or len(set(fields)) != len(fields)):
        raise BadRequest('fields are ["key"] or ["key", "members"]')
    if pattern.text.endswith(".txt") and fields is not None and "members" in fields:
        raise BadRequest("plain text has one key a line and no members; take .ndjson or .parquet")
    if pattern.text.endswith(".parquet") and find_spec("pyarrow") is None:
        raise BadRequest("a Parquet manifest needs pyarrow on every node: pip install 'dfc[parquet]'")


class _ListTask(msgspec.Struct, frozen=True):
    part: Part
    name: str  # of the shard; the part may be one whose samples were joined
    form: Form


class _WriteTask(msgspec.Struct, frozen=True):
    output: str
    sizes: list[int]  # of the pieces, in bytes
    samples: int


class _ParquetTask(msgspec.Struct, frozen=True):
    output: str
    parts: list[tuple[Part, str]]
    members: bool


def plan(job: JobInput) -> list[Stage]:
    """A piece of each shard, then all pieces in one object; Parquet is written in one go."""
    options: Options = job.options
    output = job.pattern.text
    form: Form = "text" if output.endswith(".txt") else "key" if options.fields == ["key"] else "all"

    def pieces(results: Results) -> Iterator[TaskDraft]:
        for shard, part in zip(job.shards, corpus(job, results), strict=True):
            yield TaskDraft(msgspec.msgpack.encode(_ListTask(part, shard.name, form)), shard.label, shard.node)

    def together(results: Results) -> Iterator[TaskDraft]:
        listed = results["list"]
        task = _WriteTask(output, [r.bytes_out for r in listed], sum(r.samples for r in listed))
        yield TaskDraft(msgspec.msgpack.encode(task), output, job.node_of(output))

    def parquet(results: Results) -> Iterator[TaskDraft]:
        parts = [(part, shard.name) for shard, part in zip(job.shards, corpus(job, results), strict=True)]
        task = _ParquetTask(output, parts, form == "all")
        yield TaskDraft(msgspec.msgpack.encode(task), output, job.node_of(output))

    before = preparing_stages(job, options.on_split)
    if output.endswith(".parquet"):
        return [*before, Stage("parquet", parquet, 1, 1)]
    return [*before, Stage("list", pieces, len(job.shards)), Stage("write", together, 1, 1)]


def list_shard(task: Task, store: Store) -> TaskResult:
    """The lines of one shard, as a temporary object."""
    wanted = task.decode(_ListTask)
    index = open_index(store, wanted.part.shard)
    with PlainOutput(store, _piece(task.number), temporary=True) as output:
        try:
            for lines in key_lines(index, wanted.name, wanted.form):
                output.write(lines)
                store.check()
        except LineBreak as error:
            raise Conflict(f"{wanted.part.shard.label}: {error}; list it as .ndjson") from None
        written = output.commit()
    return TaskResult(samples=index.sample_count, bytes_out=written.size)


def write_manifest(task: Task, store: Store) -> TaskResult:
    """All pieces, one after the other."""
    wanted = task.decode(_WriteTask)
    with (
        PlainOutput(store, wanted.output, sum(wanted.sizes)) as output,
        Sources(store, [_piece(number) for number in range(len(wanted.sizes))]) as pieces,
    ):
        sink = _Copies(output)
        for number, size in enumerate(wanted.sizes):
            if size:
                copy_range(sink, pieces[number], 0, size)
            store.check()
        record = output.commit(wanted.samples)
    return TaskResult((record,), bytes_in=record.size, bytes_out=record.size)


def write_parquet(task: Task, store: Store) -> TaskResult:
    """`shard`, `key` and, unless only keys are wanted, `members`, a map from extension to size."""
    wanted = task.decode(_ParquetTask)
    arrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    columns = [("shard", arrow.string()), ("key", arrow.string())]
    if wanted.members:
        columns.append(("members", arrow.map_(arrow.string(), arrow.int64())))
    schema, count = arrow.schema(columns), 0
    with PlainOutput(store, wanted.output) as output:
        with parquet.ParquetWriter(arrow.PythonFile(_Writable(output), mode="w"), schema, compression="zstd") as writer:
            for part, name in wanted.parts:
                index = open_index(store, part.shard)
                for start in range(0, index.sample_count, _ROW_GROUP):
                    samples = index.arrays(np.arange(start, min(index.sample_count, start + _ROW_GROUP)))
                    keys = arrow.array(sample_keys(samples), arrow.binary()).cast(arrow.string())
                    found = [arrow.repeat(name, len(samples)), keys]
                    if wanted.members:
                        exts = arrow.array(extensions(samples), arrow.binary()).cast(arrow.string())
                        offsets = arrow.array(samples.first.astype(np.int32))
                        found.append(arrow.MapArray.from_arrays(offsets, exts, arrow.array(samples.sizes)))
                    writer.write_table(arrow.Table.from_arrays(found, schema=schema))
                    count += len(samples)
                    store.check()
        record = output.commit(count)
    return TaskResult((record,), count, bytes_out=record.size)


class _Copies:
    """The manifest as a sink without a way around memory: its pieces are small."""

    sends = False

    def __init__(self, output: PlainOutput) -> None:
        self.write = output.write

    def send(self, file: int, offset: int, count: int) -> None:
        raise NotImplementedError("pieces are copied")


class _Writable:
    """What pyarrow asks of a file."""

    closed = False

    def __init__(self, output: PlainOutput) -> None:
        self._output, self._at = output, 0

    def write(self, data: Buffer) -> int:
        self._output.write(bytes(data))
        self._at += len(data)
        return len(data)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


def _piece(number: int) -> str:
    return f"lines/{number:06d}"


FUNCTIONS: Final = {**PREPARING_FUNCTIONS, "list": list_shard, "write": write_manifest, "parquet": write_parquet}
