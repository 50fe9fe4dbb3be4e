"""Report problems of a dataset as JSON; with `repair`, also write repaired shards.

It finds truncated and damaged archives, split samples, duplicate keys in the dataset, missing required fields, and pictures
and JSON that cannot be decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from dfc.errors import BadRequest
from dfc.formats.base import DataMember, SampleData
from dfc.jobs.data.images import Undecodable, check_field
from dfc.jobs.data.output import PlainOutput, ShardOutput
from dfc.jobs.data.partitions import (
    KEY_BYTES,
    PartitionWriter,
    Repeat,
    find_repeats,
    partition_count,
    place_of,
    read_partition,
    read_value,
    shard_and_ordinal,
    write_value,
)
from dfc.jobs.data.samples import read_samples
from dfc.jobs.records import REPAIRED_NAME
from dfc.jobs.store import Store
from dfc.jobs.tasks import InputShard, JobInput, Results, Stage, Task, TaskDraft, TaskResult
from dfc.limits import JOB_PROBLEMS_MAX, TAR_HEADER_BYTES
from dfc.listing.specs import OutputPattern
from dfc.names import check_object_name
from dfc.tar.compression import MAGIC_BYTES, kind_of_bytes
from dfc.tar.header import TarError
from dfc.tar.index.format import index_kind

# --- Checks one shard for problems; a damaged shard is read up to the damage.

PROBLEMS: Final = ("truncated", "broken", "split", "duplicate", "missing", "undecodable")


class ShardProblem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One problem. `offset` is in the uncompressed archive; `first` is the shard that had the key before."""

    shard: str
    key: str | None = None
    fields: list[str] = []
    message: str = ""
    offset: int | None = None
    first: str | None = None


@dataclass
class Findings:
    """The problems of a shard. `counts` and the first `problems` by kind; `bad`: ordinals of samples to leave out of a repaired
    shard; `parts`: ordinal of a later part of a split sample → ordinal of its first part."""

    samples: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    problems: dict[str, list[ShardProblem]] = field(default_factory=dict)
    bad: set[int] = field(default_factory=set)
    parts: dict[int, int] = field(default_factory=dict)

    def add(self, kind: str, problem: ShardProblem) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        found = self.problems.setdefault(kind, [])
        if len(found) < JOB_PROBLEMS_MAX:
            found.append(problem)


@dataclass
class _Seen:
    """A sample of a shard in which keys may occur again."""

    number: int
    fields: set[str]


def is_archive(shard: InputShard) -> bool:
    """Whether an object should be an archive: it has an index, or is named like a shard."""
    return shard.is_indexed or index_kind(shard.name) is not None


def read_until_broken(store: Store, shard: InputShard, findings: Findings | None = None) -> Iterator[SampleData]:
    """Yield samples as stored (a key that occurs again is a new sample) up to the first damage, which is added to `findings`.

    The sample at the damage is left out, since it may be incomplete.
    """
    if not shard.is_indexed:
        shard = msgspec.structs.replace(shard, kind=_kind_of(store, shard))
    try:
        yield from read_samples(store, shard, "keep")
    except TarError as error:
        if findings is not None:
            text = error.message.removeprefix(f"{shard.label}: ").removesuffix(f" at offset {error.offset}")
            kind = "truncated" if error.truncated else "broken"
            findings.add(kind, ShardProblem(shard.label, message=text, offset=error.offset))


def _kind_of(store: Store, shard: InputShard) -> str:
    """The kind of compression, by the first bytes, as for an index, else by the name."""
    with closing(store.open(shard)) as source:
        start = bytearray(min(source.size, MAGIC_BYTES))
        source.read_into(0, memoryview(start))
    return kind_of_bytes(bytes(start), shard.name) or index_kind(shard.name) or "tar"


def look_through(
    store: Store, shard: InputShard, findings: Findings, require: list[str], *, decode: bool
) -> Iterator[tuple[str, int]]:
    """Yield key and ordinal of each sample; `findings` is complete after the last one.

    Parts of a split sample count as one sample, with the ordinal of the first part. A sample that shares a field with an
    earlier sample of the same key is another sample.
    """
    careful = shard.repeated != 0 or not shard.is_indexed  # else no key occurs again, and none needs to be remembered
    seen: dict[str, _Seen] = {}
    for key, number, fields, data in _samples(store, shard, findings, decode=decode):
        earlier = seen.get(key) if careful else None
        if earlier is not None and not earlier.fields & fields:
            findings.add("split", ShardProblem(shard.label, key))
            findings.parts[number] = earlier.number
            earlier.fields |= fields
            number = earlier.number
        else:
            findings.samples += 1
            if careful and earlier is None:
                seen[key] = _Seen(number, fields)
            elif not fields.issuperset(require):
                _miss(findings, shard, key, number, fields, require)
            yield key, number
        if data is not None:
            _decode(findings, shard, data, number)
    for key, sample in seen.items():
        if not sample.fields.issuperset(require):
            _miss(findings, shard, key, sample.number, sample.fields, require)


def _samples(
    store: Store, shard: InputShard, findings: Findings, *, decode: bool
) -> Iterator[tuple[str, int, set[str], SampleData | None]]:
    if shard.is_indexed and not decode:
        for sample in store.index(shard).samples():
            if not sample.number & 1023:
                store.check()
            yield sample.key, sample.number, {member.ext or "" for member in sample.members}, None
    else:
        for data in read_until_broken(store, shard, findings):
            yield data.key, data.number, {member.ext for member in data.members}, data if decode else None


def _miss(findings: Findings, shard: InputShard, key: str, number: int, fields: set[str], require: list[str]) -> None:
    findings.add("missing", ShardProblem(shard.label, key, [ext for ext in require if ext not in fields]))
    findings.bad.add(number)


def _decode(findings: Findings, shard: InputShard, sample: SampleData, number: int) -> None:
    for member in sample.members:
        try:
            check_field(member.ext, member.data)
        except Undecodable as error:
            findings.add("undecodable", ShardProblem(shard.label, sample.key, [member.ext], str(error)))
            findings.bad.add(number)


# --- Stages: `scan` checks each shard and logs its keys; `duplicates` finds duplicate keys, a partition at a time; `repair`
# writes repaired shards; `report` writes the report.

TAKES_ANY_OBJECT: Final = True  # a truncated shard has no index


class Options(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to check, and what to write."""

    require: Annotated[list[str], Meta(description="Fields that every sample must have.", examples=[["jpg", "cls"]])] = []
    decode: Annotated[bool, Meta(description="Decode pictures and JSON to check them.", examples=[False])] = True
    repair: Annotated[
        bool, Meta(description="Also write repaired shards; the output is then their prefix.", examples=[True])
    ] = False


class _Scan(Struct, frozen=True):
    shard: InputShard
    number: int
    partitions: int
    require: list[str]
    decode: bool


class _Duplicates(Struct, frozen=True):
    partition: int
    partitions: int
    shards: int


class _Repair(Struct, frozen=True):
    shard: InputShard
    number: int
    partitions: int
    name: str


class _Report(Struct, frozen=True):
    name: str
    shards: int
    others: int
    partitions: int


class _Found(Struct):
    """The findings of a scanned shard, as its temporary object."""

    shard: str
    samples: int
    counts: dict[str, int]
    problems: dict[str, list[ShardProblem]]
    bad: list[int]
    parts: list[tuple[int, int]]


class _Repeats(Struct):
    """The duplicates of a partition, as its temporary object: how many samples have the key of an earlier one, and the first of
    them with their keys and places."""

    count: int
    first: list[Repeat]


def check(options: Options, pattern: OutputPattern) -> None:
    if options.repair and (not pattern.is_prefix or pattern.is_numbered or pattern.has_part):
        raise BadRequest("with 'repair', the output pattern must be a prefix, such as 'clean/', for the names of the shards")
    if not options.repair and (pattern.is_prefix or pattern.is_numbered or pattern.has_part):
        raise BadRequest("validate writes one object: give a plain name as output, such as 'report.json'")
    if any(not ext or "/" in ext for ext in options.require):
        raise BadRequest("'require' must list extensions, such as 'jpg'")


def reads_only(options: Options) -> bool:
    return not options.repair


def plan(job: JobInput) -> list[Stage]:
    options: Options = job.options
    shards = [shard for shard in job.shards if is_archive(shard)]
    expected = sum(shard.samples if shard.is_indexed else shard.size // (2 * TAR_HEADER_BYTES) for shard in shards)
    partitions = partition_count(expected * KEY_BYTES, job.memory_bytes)
    report_name = job.pattern.text + REPAIRED_NAME if options.repair else job.pattern.name()
    require = sorted({ext.lower() for ext in options.require})

    def scan(_: Results) -> Iterator[TaskDraft]:
        for number, shard in enumerate(shards):
            yield TaskDraft.of(_Scan(shard, number, partitions, require, options.decode), shard.label, shard.node)

    def duplicates(_: Results) -> Iterator[TaskDraft]:
        for partition in range(partitions):
            yield TaskDraft.of(_Duplicates(partition, partitions, len(shards)), f"partition {partition}")

    def repair(_: Results) -> Iterator[TaskDraft]:
        for number, shard in enumerate(shards):
            name = job.pattern.text + shard.name
            yield TaskDraft.of(_Repair(shard, number, partitions, name), shard.label, job.node_of(name))

    def report(_: Results) -> Iterator[TaskDraft]:
        payload = _Report(report_name, len(shards), len(job.shards) - len(shards), partitions)
        yield TaskDraft.of(payload, report_name, job.node_of(report_name))

    stages = [Stage("scan", scan, len(shards)), Stage("duplicates", duplicates, partitions)]
    if options.repair:
        names = [check_object_name(job.pattern.text + shard.name) for shard in shards]
        if len(set(names)) < len(names) or report_name in names:
            raise BadRequest("with 'repair', no two input shards can have the same name, and none can be named report.json")
        stages.append(Stage("repair", repair, len(shards), len(shards)))
    return [*stages, Stage("report", report, 1, 1)]


def run_scan(task: Task, store: Store) -> TaskResult:
    """Check one shard and log its keys."""
    payload = task.decode(_Scan)
    findings = Findings()
    with PartitionWriter(store, _keys(payload.number), payload.partitions) as log:
        for key, ordinal in look_through(store, payload.shard, findings, payload.require, decode=payload.decode):
            log.add_key(key, place_of(payload.number, ordinal))
        log.commit()
    bad, parts = sorted(findings.bad), sorted(findings.parts.items())
    found = _Found(payload.shard.label, findings.samples, findings.counts, findings.problems, bad, parts)
    write_value(store, _found(payload.number), found)
    return TaskResult(samples=findings.samples, bytes_in=payload.shard.size if payload.decode else 0)


def run_duplicates(task: Task, store: Store) -> TaskResult:
    """Find the duplicate keys of one partition."""
    payload = task.decode(_Duplicates)
    logs = [_keys(number) for number in range(payload.shards)]
    repeats = _Repeats(0, [])
    with PartitionWriter(store, _places(payload.partition), payload.shards) as places:
        for repeat in find_repeats(store, logs, payload.partition, payload.partitions):
            shard, ordinal = shard_and_ordinal(repeat.place)
            places.add(shard, ordinal.to_bytes(8, "little"))
            repeats.count += 1
            repeats.first.append(repeat)
            if len(repeats.first) >= 2 * JOB_PROBLEMS_MAX:
                repeats.first = _first(repeats.first)
        places.commit()
    repeats.first = _first(repeats.first)
    write_value(store, _repeats(payload.partition), repeats)
    return TaskResult()


def run_repair(task: Task, store: Store) -> TaskResult:
    """Write a repaired shard: without bad samples and duplicates, and with split samples joined."""
    payload = task.decode(_Repair)
    found = read_value(store, _found(payload.number), _Found)
    left_out = set(found.bad)
    for partition in range(payload.partitions):
        for segment in read_partition(store, _places(partition), payload.number):
            left_out.update(memoryview(segment).cast("Q"))
    parts = dict(found.parts)
    later: dict[int, list[DataMember]] = {}
    if parts:
        for sample in read_until_broken(store, payload.shard):
            if sample.number in parts:
                later.setdefault(parts[sample.number], []).extend(sample.members)
    with ShardOutput(store, payload.name) as output:
        for sample in read_until_broken(store, payload.shard):
            if sample.number not in parts and sample.number not in left_out:
                output.add(sample.members + later.pop(sample.number, []))
        record = output.commit()
    return TaskResult((record,), record.samples, payload.shard.size, record.size)


def run_report(task: Task, store: Store) -> TaskResult:
    """Write the report: all counts, and the first problems of each kind in global order."""
    payload = task.decode(_Report)
    counts = dict.fromkeys(PROBLEMS, 0)
    problems: dict[str, list[ShardProblem]] = {kind: [] for kind in PROBLEMS}
    repeats: list[Repeat] = []
    for partition in range(payload.partitions):
        found_there = read_value(store, _repeats(partition), _Repeats)
        counts["duplicate"] += found_there.count
        repeats = _first(repeats + found_there.first)
    named = {shard_and_ordinal(place)[0] for repeat in repeats for place in (repeat.first, repeat.place)}
    labels: dict[int, str] = {}
    samples = 0
    for number in range(payload.shards):
        store.check()
        found = read_value(store, _found(number), _Found)
        samples += found.samples
        if number in named:
            labels[number] = found.shard
        for kind, count in found.counts.items():
            counts[kind] += count
            problems[kind] += found.problems[kind][: JOB_PROBLEMS_MAX - len(problems[kind])]
    for repeat in repeats:
        shard, first = (labels[shard_and_ordinal(place)[0]] for place in (repeat.place, repeat.first))
        problems["duplicate"].append(ShardProblem(shard, repeat.key, first=first))
    report = {
        "valid": not any(counts.values()),
        "shards": payload.shards,
        "other_objects": payload.others,
        "samples": samples,
        "counts": counts,
        "problems": problems,
    }
    with PlainOutput(store, payload.name) as output:
        output.write(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
        record = output.commit()
    return TaskResult((record,), bytes_out=record.size)


def _first(repeats: list[Repeat]) -> list[Repeat]:
    return sorted(repeats, key=lambda repeat: repeat.place)[:JOB_PROBLEMS_MAX]


def _keys(number: int) -> str:
    return f"keys-{number:08d}"


def _found(number: int) -> str:
    return f"found-{number:08d}"


def _places(partition: int) -> str:
    return f"places-{partition:08d}"


def _repeats(partition: int) -> str:
    return f"repeats-{partition:08d}"


FUNCTIONS: Final = {"scan": run_scan, "duplicates": run_duplicates, "repair": run_repair, "report": run_report}
