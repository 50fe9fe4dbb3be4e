"""`convert`: the samples of each input in another format, one output an input; and indexes that other libraries want.

Inputs are recognised by the endings of their names; when none has an ending that says anything, they are the files of one
directory tree. `from` overrules that. Writing Parquet begins with a survey, so that all files get the same columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from dfc.errors import BadRequest, Conflict, NotAShard
from dfc.formats import FORMATS, FormatName, SourceName, goes_with, source_format, written_format
from dfc.formats.base import KEY_FIELD, need
from dfc.formats.dali import dali_index
from dfc.formats.parquet import parquet_fields
from dfc.formats.wids import wids_index
from dfc.jobs.options import CommonOptions
from dfc.jobs.output import PlainOutput
from dfc.jobs.pattern import OutputPattern
from dfc.jobs.reading import read_input
from dfc.jobs.samples import OnSplit, SampleData
from dfc.jobs.store import Store
from dfc.jobs.tasks import Function, InputShard, JobInput, Results, Stage, Task, TaskDraft, TaskResult
from dfc.jobs.writing import open_target
from dfc.limits import FORMAT_FIELDS_MAX, FORMAT_TREE_OBJECTS_MAX
from dfc.tar.index import index_kind
from dfc.tar.samples import split_key

TAKES_ANY_OBJECT: Final = True
_INDEXES: Final = ("dali-index", "wids-index")


class Options(CommonOptions, frozen=True, kw_only=True):
    """`level` of compression, for formats that have one; `fields`: only these extensions; `from`: the format of the inputs,
    where their names do not say it."""

    format: FormatName
    level: int | None = None
    fields: Annotated[tuple[str, ...], Meta(min_length=1, max_length=FORMAT_FIELDS_MAX)] | None = None
    source: SourceName | None = msgspec.field(default=None, name="from")


class Work(Struct, frozen=True, array_like=True):
    """One input on its way to one output."""

    shards: tuple[InputShard, ...]
    source: SourceName
    prefix: str
    format: FormatName
    output: str
    level: int | None
    fields: tuple[str, ...] | None
    on_split: OnSplit
    columns: tuple[str, ...] = ()


class Wids(Struct, frozen=True, array_like=True):
    """All shards of an index: (`BUCKET/NAME`, samples, bytes)."""

    name: str
    output: str
    shards: tuple[tuple[str, int, int], ...]


def check(options: Options, pattern: OutputPattern) -> None:
    """BadRequest for a level that the format does not have, a pattern that names another format, a library that is missing."""
    form = FORMATS[options.format]
    _check_pattern(options.format, pattern)
    if form.levels is None and options.level is not None:
        raise BadRequest(f"the format {options.format} has no levels")
    if form.levels is not None and options.level is not None and options.level not in form.levels:
        raise BadRequest(f"{options.format} has levels from {form.levels[0]} to {form.levels[-1]}, not {options.level}")
    if options.fields is not None:
        if options.format in _INDEXES:
            raise BadRequest(f"{options.format} is an index of whole shards; 'fields' has no meaning")
        if len(set(options.fields)) < len(options.fields) or any(field != field.lower() for field in options.fields):
            raise BadRequest("'fields' are different extensions in lower case")
        if KEY_FIELD in options.fields:
            raise BadRequest(f"{KEY_FIELD!r} is no field; keys are always kept")
    if form.extra is not None:
        need(*form.extra)
    if options.source == "parquet":
        need("pyarrow", "parquet")


def _check_pattern(format: FormatName, pattern: OutputPattern) -> None:
    form, name = FORMATS[format], pattern.name(part="part")
    if pattern.has_part:
        raise BadRequest("convert has no parts; a {part} is for split")
    if form.is_tree != pattern.is_prefix:
        raise BadRequest(
            f"{format} makes a tree: its pattern is a prefix that ends in '/'"
            if form.is_tree
            else "a pattern ending in '/' names a tree"
        )
    if form.kind is not None and index_kind(name) != form.kind:
        raise BadRequest(f"outputs of format {format} have names that end in {' or '.join(form.endings)}")
    if form.kind is None and not form.is_tree and written_format(name) not in (None, format):
        raise BadRequest(f"the pattern {pattern.text[:80]!r} names files of format {written_format(name)}, not {format}")
    if format == "wids-index" and pattern.is_numbered:
        raise BadRequest("a wids-index is one object for all shards; its pattern has no number")


def plan(job: JobInput) -> list[Stage]:
    """One task an input. Parquet: before it a survey of the fields, unless `fields` says them."""
    options: Options = job.options
    if options.format == "wids-index":
        draft = _wids_draft(job)
        return [Stage("wids", lambda _: iter((draft,)), 1, 1)]
    count = _count(job)
    if count > 1 and not job.pattern.is_numbered:
        raise BadRequest(f"{count} inputs make as many outputs: the pattern needs a number, such as %06d")
    if options.format == "dali-index":
        return [Stage("dali", lambda _: map(_draft, _work(job)), count, count)]
    columns = options.fields or ()
    outputs = None if options.format == "directory" else count * (2 if options.format == "recordio" else 1)
    if options.format != "parquet" or columns:
        return [Stage("convert", lambda _: map(_draft, _work(job, columns)), count, outputs)]
    return [
        Stage("survey", lambda _: map(_draft, _work(job)), count),
        Stage("convert", lambda results: map(_draft, _work(job, _columns(results))), count, outputs),
    ]


def _count(job: JobInput) -> int:
    """How many outputs there will be. BadRequest, NotAShard for inputs that cannot be converted; nothing is kept of them."""
    count = files = 0
    tree: str | None = None
    for shard, source in _sources(job):
        if source == "directory":
            tree = tree or shard.label
            files += 1
        else:
            count += 1
        if job.options.format == "dali-index":
            _check_plain_tar(shard, "DALI")
        elif source == "tar" and not shard.is_indexed:
            raise NotAShard(f"{shard.label} is no archive, or a broken one")
    if files and count:
        raise BadRequest(f"nothing says the format of {tree}, and others have one: narrow the input, or give options.from")
    if files > FORMAT_TREE_OBJECTS_MAX:
        raise BadRequest(f"a directory tree of {files} files; at most {FORMAT_TREE_OBJECTS_MAX} make one output")
    return count or min(files, 1)


def _sources(job: JobInput) -> Iterator[tuple[InputShard, SourceName]]:
    """The shards and their formats, without those that only go with others of the input."""
    wanted = {main for shard in job.shards for main in goes_with(shard.name)}
    present = {shard.name for shard in job.shards if shard.name in wanted} if wanted else set()
    for shard in job.shards:
        if not any(main in present for main in goes_with(shard.name)):
            yield shard, job.options.source or source_format(shard.name) or "directory"


def _work(job: JobInput, columns: tuple[str, ...] = ()) -> Iterator[Work]:
    """What each task does; made one by one, since there may be a million of them."""
    options: Options = job.options
    prefix = job.prefixes[0] if job.prefixes else ""
    files: list[InputShard] = []
    number = 0

    def work(shards: tuple[InputShard, ...], source: SourceName) -> Work:
        name = job.pattern.name(number)
        return Work(shards, source, prefix, options.format, name, options.level, options.fields, options.on_split, columns)

    for shard, source in _sources(job):
        if source == "directory":
            files.append(shard)
        else:
            yield work((shard,), source)
            number += 1
    if files:
        yield work(tuple(files), "directory")


def _draft(work: Work) -> TaskDraft:
    first = work.shards[0]
    label = first.label if len(work.shards) == 1 else f"{first.bucket}/{work.prefix}"
    return TaskDraft(msgspec.msgpack.encode(work), label, first.node)


def _columns(results: Results) -> tuple[str, ...]:
    """The union of what the surveys have found."""
    found: set[str] = set()
    for result in results["survey"]:
        found.update(result.decode(list[str]))
    return _check_fields(found)


def _check_fields(found: set[str]) -> tuple[str, ...]:
    if len(found) > FORMAT_FIELDS_MAX:
        raise Conflict(f"the samples have {len(found)} different extensions; a table has at most {FORMAT_FIELDS_MAX} columns")
    return tuple(sorted(found, key=str.encode))


def _wids_draft(job: JobInput) -> TaskDraft:
    if len(job.shards) > FORMAT_TREE_OBJECTS_MAX:
        raise BadRequest(f"an index of {len(job.shards)} shards; at most {FORMAT_TREE_OBJECTS_MAX} go into one")
    shards = [shard for shard, source in _sources(job) if source == "tar"]
    for shard in shards:
        _check_plain_tar(shard, "wids")
    output = job.pattern.name()
    rows = tuple((shard.label, shard.samples, shard.size) for shard in shards)
    name = shards[0].bucket if shards else job.output_bucket
    return TaskDraft(msgspec.msgpack.encode(Wids(name, output, rows)), f"{job.output_bucket}/{output}", job.node_of(output))


def _check_plain_tar(shard: InputShard, reader: str) -> None:
    if not shard.is_indexed:
        raise NotAShard(f"{shard.label} is no archive, or a broken one")
    if shard.kind != "tar":
        raise BadRequest(f"{reader} reads uncompressed tars only, and {shard.label} is compressed")


# --- on a worker


def survey(task: Task, store: Store) -> TaskResult:
    """The extensions of one input: from an index, a schema or names where there are such, else by reading all of it."""
    work = task.decode(Work)
    shard = work.shards[0]
    if work.source == "tar":
        fields = {member.ext for member in store.index(shard).members() if member.ext is not None}
    elif work.source == "directory":
        parts = (split_key(each.name.removeprefix(work.prefix)) for each in work.shards)
        fields = {part[1] for part in parts if part is not None}
    elif work.source == "parquet":
        source = store.open(shard)
        try:
            fields = set(parquet_fields(source, shard.label))
        finally:
            source.close()
    else:
        fields = set()
        for sample in _samples(store, work, []):
            fields.update(member.ext for member in sample.members)
            _check_fields(fields)
    return TaskResult(data=msgspec.msgpack.encode(_check_fields(fields)))


def convert(task: Task, store: Store) -> TaskResult:
    """One input into one output."""
    work = task.decode(Work)
    warnings: list[str] = []
    seed = "\n".join(shard.checksum for shard in work.shards)
    with open_target(store, work.format, work.output, level=work.level, columns=work.columns, seed=seed) as target:
        count = 0
        for sample in _wanted(_samples(store, work, warnings), work, warnings):
            target.add(sample)
            count += 1
        outputs = target.commit()
    read, written = sum(shard.size for shard in work.shards), sum(output.size for output in outputs)
    return TaskResult(outputs, count, read, written, tuple(warnings))


def _samples(store: Store, work: Work, warnings: list[str]) -> Iterator[SampleData]:
    return read_input(store, work.shards, work.source, work.prefix, work.on_split, warnings)


def _wanted(samples: Iterator[SampleData], work: Work, warnings: list[str]) -> Iterator[SampleData]:
    """Without the fields that nobody asked for. A sample without any is none in a tar, and so nowhere."""
    empty = 0
    for sample in samples:
        if work.fields is not None:
            sample.members = [member for member in sample.members if member.ext in work.fields]
        if sample.members:
            yield sample
        else:
            empty += 1
    if empty:
        warnings.append(f"{work.shards[0].label}: {empty} samples have none of the fields and were left out")


def write_dali_index(task: Task, store: Store) -> TaskResult:
    """The index of one tar."""
    work = task.decode(Work)
    shard = work.shards[0]
    with PlainOutput(store, work.output) as output:
        for line in dali_index(store.index(shard), shard.label):
            output.write(line)
        record = output.commit()
    return TaskResult((record,), shard.samples, 0, record.size)


def write_wids_index(task: Task, store: Store) -> TaskResult:
    """The list of all shards."""
    work = task.decode(Wids)
    data = wids_index(work.name, f"{task.output_bucket}/{work.output}", work.shards)
    with PlainOutput(store, work.output, len(data)) as output:
        output.write(data)
        record = output.commit()
    return TaskResult((record,), sum(samples for _, samples, _ in work.shards), 0, record.size)


FUNCTIONS: Final[Mapping[str, Function]] = {
    "convert": convert,
    "dali": write_dali_index,
    "survey": survey,
    "wids": write_wids_index,
}
