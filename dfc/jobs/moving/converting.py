"""The tasks of `convert`, which turn one input, or ranges of samples, into one output, and their payloads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from dfc.errors import Conflict
from dfc.formats.dali import dali_index
from dfc.formats.sample import OnSplit, SampleData
from dfc.formats.table import FORMATS, FormatName, SourceName
from dfc.formats.wids import wids_index
from dfc.jobs.moving.arrangement import Cut
from dfc.jobs.moving.corpus import number_through, open_index
from dfc.jobs.moving.ordering import gather
from dfc.jobs.moving.orders import Stride
from dfc.jobs.moving.sections import SampleRange, read_sections
from dfc.jobs.shards.output import PlainOutput, ShardOutput
from dfc.jobs.shards.reading import read_input
from dfc.jobs.shards.writing import open_target
from dfc.jobs.store import Function, Store
from dfc.jobs.tasks import InputShard, Task, TaskResult
from dfc.limits import FORMAT_FIELDS_MAX
from dfc.tar.samples import split_key


class Work(Struct, frozen=True, array_like=True):
    """The payload of a task: one input and one output."""

    shards: tuple[InputShard, ...]
    source: SourceName
    prefix: str
    format: FormatName
    output: str
    level: int | None
    fields: tuple[str, ...] | None
    on_split: OnSplit
    columns: tuple[str, ...] = ()
    sections: tuple[SampleRange, ...] | None = None  # what to read, instead of all of `shards`

    @property
    def only_moves(self) -> bool:
        """Whether all samples are moved unchanged from a shard to a shard, without being parsed."""
        tars = self.source == "tar" and FORMATS[self.format].kind is not None
        whole = self.fields is None and self.sections is None
        return tars and whole and (not self.shards[0].repeated or self.on_split == "keep")


class Wids(Struct, frozen=True, array_like=True):
    """The payload of the task that writes a wids index. `shards`: (`BUCKET/NAME`, samples, bytes)."""

    name: str
    output: str
    shards: tuple[tuple[str, int, int], ...]


def check_fields(found: set[str]) -> tuple[str, ...]:
    if len(found) > FORMAT_FIELDS_MAX:
        raise Conflict(f"the samples have {len(found)} different extensions; a table has at most {FORMAT_FIELDS_MAX} columns")
    return tuple(sorted(found, key=str.encode))


def survey(task: Task, store: Store) -> TaskResult:
    """Find the extensions in one input: from its index, schema or names if possible, else by reading all of it."""
    work = task.decode(Work)
    shard, form = work.shards[0], FORMATS[work.source].file
    if work.source == "tar":
        fields = {member.ext for member in open_index(store, shard).members() if member.ext is not None}
    elif work.source == "directory":
        parts = (split_key(each.name.removeprefix(work.prefix)) for each in work.shards)
        fields = {part[1] for part in parts if part is not None}
    elif form is not None and form.fields is not None:
        source = store.open(shard)
        try:
            fields = set(form.fields(source, shard.label))
        finally:
            source.close()
    else:
        fields = set()
        for sample in _samples(store, work, []):
            fields.update(member.ext for member in sample.members)
            check_fields(fields)
    return TaskResult(data=msgspec.msgpack.encode(check_fields(fields)))


def convert(task: Task, store: Store) -> TaskResult:
    """Convert one input to one output."""
    work = task.decode(Work)
    if work.only_moves:
        shard = work.shards[0]
        moved = gather(
            store, Cut(work.output, 0, shard.samples), Stride(0, 1, shard.samples), number_through([shard]), level=work.level
        )
        return msgspec.structs.replace(moved, bytes_in=shard.size)
    warnings: list[str] = []
    seed = "\n".join([shard.checksum for shard in work.shards] if work.sections is None else [s.seed for s in work.sections])
    with open_target(store, work.format, work.output, level=work.level, columns=work.columns, seed=seed) as target:
        count = 0
        for sample in _wanted(_samples(store, work, warnings), work, warnings):
            target.add(sample)
            count += 1
        outputs = target.commit()
    read, written = sum(shard.size for shard in work.shards), sum(output.size for output in outputs)
    return TaskResult(outputs, count, read, written, tuple(warnings))


def unpack(task: Task, store: Store) -> TaskResult:
    """Unpack one input to a temporary tar with the wanted fields."""
    work = task.decode(Work)
    warnings: list[str] = []
    with ShardOutput(store, f"unpacked/{task.number:08d}.tar", temporary=True) as output:
        for sample in _wanted(_samples(store, work, warnings), work, warnings):
            output.add(sample.members)
        made = output.commit_temporary(work.shards[0].version, work.shards[0].node)
    read = sum(shard.size for shard in work.shards)
    return TaskResult((), made.samples, read, made.size, tuple(warnings), msgspec.msgpack.encode(made))


def _samples(store: Store, work: Work, warnings: list[str]) -> Iterator[SampleData]:
    if work.sections is not None:
        return read_sections(store, work.sections)
    return read_input(store, work.shards, work.source, work.prefix, work.on_split, warnings)


def _wanted(samples: Iterator[SampleData], work: Work, warnings: list[str]) -> Iterator[SampleData]:
    """Drop the unwanted fields. Samples without fields are left out, since a tar cannot hold them."""
    empty = 0
    for sample in samples:
        if work.fields is not None:
            sample.members = [member for member in sample.members if member.ext in work.fields]
        if sample.members:
            yield sample
        else:
            empty += 1
    if empty:
        warnings.append(f"{work.shards[0].label}: {empty} samples without any of the fields were left out")


def write_dali_index(task: Task, store: Store) -> TaskResult:
    """Write the DALI index of one tar."""
    work = task.decode(Work)
    shard = work.shards[0]
    with PlainOutput(store, work.output) as output:
        for line in dali_index(store.index(shard), shard.label):
            output.write(line)
        record = output.commit()
    return TaskResult((record,), shard.samples, 0, record.size)


def write_wids_index(task: Task, store: Store) -> TaskResult:
    """Write the wids index of all shards."""
    work = task.decode(Wids)
    data = wids_index(work.name, f"{task.output_bucket}/{work.output}", work.shards)
    with PlainOutput(store, work.output, len(data)) as output:
        output.write(data)
        record = output.commit()
    return TaskResult((record,), sum(samples for _, samples, _ in work.shards), 0, record.size)


CONVERT_FUNCTIONS: Final[Mapping[str, Function]] = {
    "convert": convert,
    "dali": write_dali_index,
    "survey": survey,
    "unpack": unpack,
    "wids": write_wids_index,
}
