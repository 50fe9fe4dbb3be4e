"""Write one manifest of all samples, in global order, as NDJSON, text or Parquet, depending on the name of the output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np

from dfc.errors import BadRequest, Conflict
from dfc.formats.parquet import SinkFile
from dfc.jobs.data.corpus import PREPARING_FUNCTIONS, CorpusPart, Sources, corpus, open_index, preparing_stages
from dfc.jobs.data.gathering import copy_range
from dfc.jobs.data.output import PlainOutput
from dfc.jobs.spec import CommonOptions
from dfc.jobs.store import Store
from dfc.jobs.tasks import InputShard, JobInput, Results, Stage, Task, TaskDraft, TaskResult
from dfc.limits import MIB
from dfc.listing.specs import OutputPattern
from dfc.tar.index.lines import Form, LineBreak, extensions, key_lines, sample_keys

Field = Literal["key", "members"]
_ENDINGS: Final = (".ndjson", ".txt", ".parquet")
_ROW_GROUP: Final = 1 << 16
_TASK_SAMPLES: Final = 1 << 16  # a tenth of a second
_TASK_SHARDS: Final = 256
_KEPT_BYTES: Final = 32 * MIB


class Options(CommonOptions, frozen=True, kw_only=True):
    """What a manifest contains for each sample."""

    fields: Annotated[
        Annotated[list[Field], msgspec.Meta(min_length=1, max_length=2)] | None,
        msgspec.Meta(
            description="key, or key,members to add extensions and sizes; the default, except for .txt.",
            examples=[["key", "members"]],
        ),
    ] = None


def check(options: Options, pattern: OutputPattern) -> None:
    """Raise BadRequest for a name that is not a manifest's, members in plain text, or a missing library for Parquet."""
    if pattern.is_numbered or pattern.has_part or not pattern.text.endswith(_ENDINGS):
        raise BadRequest(f"keys writes one object; its name must end in one of {', '.join(_ENDINGS)}")
    fields = options.fields
    if fields is not None and ("key" not in fields or len(set(fields)) != len(fields)):
        raise BadRequest('fields must be ["key"] or ["key", "members"]')
    if pattern.text.endswith(".txt") and fields is not None and "members" in fields:
        raise BadRequest("plain text has one key per line and no members; use .ndjson or .parquet")
    if pattern.text.endswith(".parquet") and find_spec("pyarrow") is None:
        raise BadRequest("a Parquet manifest needs pyarrow on every node: pip install pyarrow")


class _ListTask(msgspec.Struct, frozen=True):
    shards: list[tuple[CorpusPart, str]]  # with the shard's original name, since the part may be a joined shard
    form: Form


class _WriteTask(msgspec.Struct, frozen=True):
    output: str
    pieces: list[tuple[int, int, int]]  # of each shard: number of the object, offset, bytes
    samples: int


class _ParquetTask(msgspec.Struct, frozen=True):
    output: str
    parts: list[tuple[CorpusPart, str]]
    members: bool


def reads_only(_: Options) -> bool:
    return True


def plan(job: JobInput) -> list[Stage]:
    """Plan to list groups of shards into temporary objects, then concatenate them; Parquet is written by one task."""
    options: Options = job.options
    output = job.pattern.text
    form: Form = "text" if output.endswith(".txt") else "key" if options.fields == ["key"] else "all"
    groups = list(_groups(job.shards))

    def pieces(results: Results) -> Iterator[TaskDraft]:
        parts = corpus(job, results)
        for group in groups:
            task = _ListTask([(parts[number], job.shards[number].name) for number in group], form)
            first = job.shards[group[0]]
            more = f" and {len(group) - 1} more" if len(group) > 1 else ""
            yield TaskDraft.of(task, first.label + more, first.node)

    def together(results: Results) -> Iterator[TaskDraft]:
        listed: list[tuple[int, int, int]] = [(0, 0, 0)] * len(job.shards)
        for at, (group, result) in enumerate(zip(groups, results["list"], strict=True)):
            offset = 0
            for number, size in zip(group, result.decode(list[int]), strict=True):
                listed[number] = (at, offset, size)
                offset += size
        task = _WriteTask(output, listed, sum(result.samples for result in results["list"]))
        yield TaskDraft.of(task, output, job.node_of(output))

    def parquet(results: Results) -> Iterator[TaskDraft]:
        parts = [(part, shard.name) for shard, part in zip(job.shards, corpus(job, results), strict=True)]
        yield TaskDraft.of(_ParquetTask(output, parts, form == "all"), output, job.node_of(output))

    before = preparing_stages(job, options.on_split)
    if output.endswith(".parquet"):
        return [*before, Stage("parquet", parquet, 1, 1)]
    return [*before, Stage("list", pieces, len(groups)), Stage("write", together, 1, 1)]


def _groups(shards: Sequence[InputShard]) -> Iterator[list[int]]:
    """Group shards of the same target for one task each, with enough samples to make up for the task's overhead."""
    open_groups: dict[str, tuple[list[int], list[int]]] = {}  # by node: numbers, and samples
    for number, shard in enumerate(shards):
        numbers, samples = open_groups.setdefault(shard.node, ([], []))
        numbers.append(number)
        samples.append(shard.samples)
        if sum(samples) >= _TASK_SAMPLES or len(numbers) >= _TASK_SHARDS:
            yield numbers
            del open_groups[shard.node]
    for node in sorted(open_groups):
        yield open_groups[node][0]


def list_shards(task: Task, store: Store) -> TaskResult:
    """Write the lines of some shards to a temporary object. The result's data has the size of each shard's lines."""
    wanted = task.decode(_ListTask)
    sizes, samples = [], 0
    with _Lines(store, _piece(task.number)) as lines:
        for part, name in wanted.shards:
            index, before = open_index(store, part.shard), lines.size
            try:
                for piece in key_lines(index, name, wanted.form):
                    lines.write(piece)
                    store.check()
            except LineBreak as error:
                raise Conflict(f"{part.shard.label}: {error}; write the manifest as .ndjson instead") from None
            sizes.append(lines.size - before)
            samples += index.sample_count
        lines.commit()
    return TaskResult(samples=samples, bytes_out=lines.size, data=msgspec.msgpack.encode(sizes))


class _Lines:
    """A temporary object that is buffered, so that its size can be announced, unless it becomes too large for memory."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._kept: list[bytes] = []
        self._output: PlainOutput | None = None
        self.size = 0

    def write(self, data: bytes) -> None:
        self.size += len(data)
        if self._output is not None:
            self._output.write(data)
            return
        self._kept.append(data)
        if self.size > _KEPT_BYTES:
            self._begin(None)

    def commit(self) -> None:
        (self._output or self._begin(self.size)).commit()

    def _begin(self, size: int | None) -> PlainOutput:
        self._output = PlainOutput(self._store, self._name, size, temporary=True)
        for data in self._kept:
            self._output.write(data)
        self._kept.clear()
        return self._output

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        if self._output is not None:
            self._output.abort()


def write_manifest(task: Task, store: Store) -> TaskResult:
    """Concatenate the lines of all shards, in order."""
    wanted = task.decode(_WriteTask)
    objects = 1 + max((number for number, _, _ in wanted.pieces), default=-1)
    with (
        PlainOutput(store, wanted.output, sum(size for _, _, size in wanted.pieces)) as output,
        Sources(store, [_piece(number) for number in range(objects)]) as sources,
    ):
        for number, offset, size in wanted.pieces:
            if size:
                copy_range(output, sources[number], offset, size)
            store.check()
        record = output.commit(wanted.samples)
    return TaskResult((record,), bytes_in=record.size, bytes_out=record.size)


def write_parquet(task: Task, store: Store) -> TaskResult:
    """Write Parquet with the columns `shard`, `key` and, unless only keys are wanted, `members` (extension to size)."""
    wanted = task.decode(_ParquetTask)
    arrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    columns = [("shard", arrow.string()), ("key", arrow.string())]
    if wanted.members:
        columns.append(("members", arrow.map_(arrow.string(), arrow.int64())))
    schema, count = arrow.schema(columns), 0
    with PlainOutput(store, wanted.output) as output:
        with parquet.ParquetWriter(arrow.PythonFile(SinkFile(output), mode="w"), schema, compression="zstd") as writer:
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


def _piece(number: int) -> str:
    return f"lines/{number:06d}"


FUNCTIONS: Final = {**PREPARING_FUNCTIONS, "list": list_shards, "write": write_manifest, "parquet": write_parquet}
