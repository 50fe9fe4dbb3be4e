"""Write the samples of each input in another format, one output per input, or write indexes that other libraries need.

The format of inputs is recognized by the endings of their names; without a known ending, they are the files of one
directory tree. `from` overrides that. Before Parquet is written, all inputs are surveyed, so that all files get the same
columns. With `samples_per_shard`, samples are regrouped; inputs other than plain tars are first unpacked into temporary tars.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from dfc.errors import BadRequest, Conflict, NotAShard
from dfc.formats.base import KEY_FIELD, OnSplit, SampleData, need
from dfc.formats.table import (
    FORMATS,
    INDEXES,
    FormatName,
    SourceName,
    dali_index,
    goes_with,
    source_format,
    wids_index,
    written_format,
)
from dfc.jobs.data.corpus import SampleRange, cut, number_through, open_index, read_sections
from dfc.jobs.data.ordering import gather
from dfc.jobs.data.orders import Cut, Stride
from dfc.jobs.data.output import PlainOutput, ShardOutput
from dfc.jobs.data.samples import open_target, read_input
from dfc.jobs.spec import CommonOptions
from dfc.jobs.store import Function, Store
from dfc.jobs.tasks import InputShard, JobInput, Results, Stage, Task, TaskDraft, TaskResult
from dfc.limits import FORMAT_FIELDS_MAX, FORMAT_TREE_OBJECTS_MAX
from dfc.listing.specs import OutputPattern
from dfc.tar.index.format import index_kind
from dfc.tar.samples import split_key

# --- The tasks of `convert`, which turn one input, or ranges of samples, into one output, and their payloads.


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
        with closing(store.open(shard)) as source:
            fields = set(form.fields(source, shard.label))
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


FUNCTIONS: Final[Mapping[str, Function]] = {
    "convert": convert,
    "dali": write_dali_index,
    "survey": survey,
    "unpack": unpack,
    "wids": write_wids_index,
}


# --- Its options and its plan.

TAKES_ANY_OBJECT: Final = True


class Options(CommonOptions, frozen=True, kw_only=True):
    """The formats of inputs and outputs."""

    format: Annotated[FormatName, Meta(description="The format of the outputs.", examples=["parquet"])]
    level: Annotated[int | None, Meta(description="The compression level, for formats that have levels.", examples=[6])] = None
    fields: Annotated[
        Annotated[tuple[str, ...], Meta(min_length=1, max_length=FORMAT_FIELDS_MAX)] | None,
        Meta(description="Keep only these extensions; for Parquet, these columns in this order.", examples=[["jpg", "cls"]]),
    ] = None
    samples_per_shard: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Samples per output. By default, each input makes one output.", examples=[1000]),
    ] = None
    source: Annotated[
        SourceName | None, Meta(description="The format of the inputs, if their names do not tell.", examples=["tfrecord"])
    ] = msgspec.field(default=None, name="from")


def check(options: Options, pattern: OutputPattern) -> None:
    """Raise BadRequest for a level that the format does not have, a pattern for another format, or a missing library."""
    form = FORMATS[options.format]
    _check_pattern(options.format, pattern)
    if form.levels is None and options.level is not None:
        raise BadRequest(f"the format {options.format} has no compression levels")
    if form.levels is not None and options.level is not None and options.level not in form.levels:
        raise BadRequest(f"{options.format} has levels from {form.levels[0]} to {form.levels[-1]}, not {options.level}")
    if options.fields is not None:
        if options.format in INDEXES:
            raise BadRequest(f"{options.format} is an index of whole shards; it takes no 'fields'")
        if len(set(options.fields)) < len(options.fields) or any(field != field.lower() for field in options.fields):
            raise BadRequest("'fields' must be distinct extensions in lower case")
        if KEY_FIELD in options.fields:
            raise BadRequest(f"{KEY_FIELD!r} cannot be listed in 'fields'; keys are always kept")
    if options.samples_per_shard is not None:
        if options.format in INDEXES:
            raise BadRequest(f"{options.format} is an index of whole shards; it takes no 'samples_per_shard'")
        if not pattern.is_numbered:
            raise BadRequest("with samples_per_shard, the output pattern needs a number, such as %06d")
    if form.library is not None:
        need(form.library)
    read = FORMATS[options.source].file if options.source is not None else None
    if read is not None and read.library is not None:
        need(read.library)


def _check_pattern(format: FormatName, pattern: OutputPattern) -> None:
    form, name = FORMATS[format], pattern.name(part="part")
    if pattern.has_part:
        raise BadRequest("convert has no parts; only split can have {part} in its output pattern")
    if form.is_tree != pattern.is_prefix:
        raise BadRequest(
            f"the format {format} writes a directory tree: the output pattern must end in '/'"
            if form.is_tree
            else f"the format {format} writes files: the output pattern cannot end in '/'"
        )
    if form.kind is not None and index_kind(name) != form.kind:
        raise BadRequest(f"for the format {format} the output pattern must end in {' or '.join(form.endings)}")
    if form.kind is None and not form.is_tree and written_format(name) not in (None, format):
        raise BadRequest(f"the output pattern {pattern.text[:80]!r} is for the format {written_format(name)}, not {format}")
    if format == "wids-index" and pattern.is_numbered:
        raise BadRequest("a wids-index is one object for all shards; its output pattern cannot have a number")


def other_outputs(options: Options, pattern: OutputPattern) -> tuple[str, ...]:
    """The names of outputs that the pattern does not match: the indexes of RecordIO."""
    form = FORMATS[options.format].file
    return (form.index_name(pattern.text),) if form is not None and form.index_ending else ()


def plan(job: JobInput) -> list[Stage]:
    """Plan one task per input. For Parquet, survey the fields first, unless `fields` is given."""
    options: Options = job.options
    if options.format == "wids-index":
        draft = _wids_draft(job)
        return [Stage("wids", lambda _: iter((draft,)), 1, 1)]
    count = _count(job)
    if options.samples_per_shard is not None:
        return _plan_cut(job, options.samples_per_shard)
    if count > 1 and not job.pattern.is_numbered:
        raise BadRequest(f"{count} inputs make {count} outputs: the output pattern needs a number, such as %06d")
    if options.format == "dali-index":
        return [Stage("dali", lambda _: map(_draft, _work(job)), count, count)]
    columns = options.fields or ()
    form = FORMATS[options.format].file
    outputs = None if options.format == "directory" else count * (2 if form is not None and form.index_ending else 1)
    if form is None or not form.wants_columns or columns:
        return [Stage("convert", lambda _: map(_draft, _work(job, columns)), count, outputs)]
    return [
        Stage("survey", lambda _: map(_draft, _work(job)), count),
        Stage("convert", lambda results: map(_draft, _work(job, _columns(results))), count, outputs),
    ]


def _plan_cut(job: JobInput, size: int) -> list[Stage]:
    """Plan to unpack inputs that are not plain tars, survey all, and convert them in ranges of `size` samples."""
    options: Options = job.options
    count = sum(not _is_plain(work) for work in _work(job))
    stages = [Stage("unpack", lambda _: (_draft(work) for work in _work(job) if not _is_plain(work)), count)] if count else []

    def shards(results: Results) -> Iterator[InputShard]:
        made = iter(results.get("unpack", ()))
        return (work.shards[0] if _is_plain(work) else next(made).decode(InputShard) for work in _work(job))

    def as_work(number: int, sections: tuple[SampleRange, ...], columns: tuple[str, ...]) -> Work:
        name = job.pattern.name(number)
        read = tuple(section.shard for section in sections)
        return Work(read, "tar", "", options.format, name, options.level, None, options.on_split, columns, sections)

    def survey(results: Results) -> Iterator[TaskDraft]:
        for number, shard in enumerate(shards(results)):
            yield _draft(as_work(number, (SampleRange(shard, 0, shard.samples),), ()))

    def convert(results: Results) -> Iterator[TaskDraft]:
        columns = options.fields or (_columns(results) if "survey" in results else ())
        for number, sections in enumerate(cut(shards(results), size)):
            yield _draft(as_work(number, sections, columns))

    form = FORMATS[options.format].file
    if form is not None and form.wants_columns and not options.fields:
        stages.append(Stage("survey", survey))
    return [*stages, Stage("convert", convert)]


def _is_plain(work: Work) -> bool:
    """Whether samples can be read directly from the middle of an input."""
    shard = work.shards[0]
    unsplit = not shard.repeated or work.on_split == "keep"
    return work.source == "tar" and shard.kind == "tar" and unsplit and work.fields is None


def _count(job: JobInput) -> int:
    """Count the outputs, keeping nothing in memory. BadRequest or NotAShard for inputs that cannot be converted."""
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
            raise NotAShard(f"{shard.label} is not an archive, or is damaged")
    if files and count:
        raise BadRequest(f"cannot tell the format of {tree} among other inputs: narrow the input, or set 'from'")
    if files > FORMAT_TREE_OBJECTS_MAX:
        raise BadRequest(f"the directory tree has {files} files; one output can be made of at most {FORMAT_TREE_OBJECTS_MAX}")
    return count or min(files, 1)


def _sources(job: JobInput) -> Iterator[tuple[InputShard, SourceName]]:
    """Yield the shards and their formats, without companion files of other inputs."""
    wanted = {main for shard in job.shards for main in goes_with(shard.name)}
    present = {shard.name for shard in job.shards if shard.name in wanted} if wanted else set()
    for shard in job.shards:
        if not any(main in present for main in goes_with(shard.name)):
            yield shard, job.options.source or source_format(shard.name) or "directory"


def _work(job: JobInput, columns: tuple[str, ...] = ()) -> Iterator[Work]:
    """Yield the payload of each task, lazily, since there may be a million of them."""
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
    if not work.shards:
        return TaskDraft.of(work, work.output)
    first = work.shards[0]
    label = first.label if len(work.shards) == 1 else f"{first.bucket}/{work.prefix}"
    return TaskDraft.of(work, label, first.node)


def _columns(results: Results) -> tuple[str, ...]:
    """The union of the fields found by the surveys."""
    found: set[str] = set()
    for result in results["survey"]:
        found.update(result.decode(list[str]))
    return check_fields(found)


def _wids_draft(job: JobInput) -> TaskDraft:
    if len(job.shards) > FORMAT_TREE_OBJECTS_MAX:
        raise BadRequest(f"one index can list at most {FORMAT_TREE_OBJECTS_MAX} shards, not {len(job.shards)}")
    shards = [shard for shard, source in _sources(job) if source == "tar"]
    for shard in shards:
        _check_plain_tar(shard, "wids")
    output = job.pattern.name()
    rows = tuple((shard.label, shard.samples, shard.size) for shard in shards)
    name = shards[0].bucket if shards else job.output_bucket
    return TaskDraft.of(Wids(name, output, rows), f"{job.output_bucket}/{output}", job.node_of(output))


def _check_plain_tar(shard: InputShard, reader: str) -> None:
    if not shard.is_indexed:
        raise NotAShard(f"{shard.label} is not an archive, or is damaged")
    if shard.kind != "tar":
        raise BadRequest(f"{reader} reads only uncompressed tars, and {shard.label} is compressed")
