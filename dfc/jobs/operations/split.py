"""Split a dataset into parts or folds by a hash of the key: a sample stays in its part when others are added or removed.

Give `parts` or `folds`. The names of the outputs must contain {part}: cut/{part}-%06d.tar.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import numpy as np
import xxhash
from msgspec import Meta, Struct

from dfc.errors import BadRequest
from dfc.jobs.data.corpus import CorpusPart, corpus
from dfc.jobs.data.fields import BadField, NotAClass, Regex, class_of, parse_class_field, read_fields
from dfc.jobs.data.ordering import ORDER_FUNCTIONS, Ordered, OrderOptions, check_order
from dfc.jobs.data.orders import SCALE, chance, picked, read_labels, write_labels, write_picked
from dfc.jobs.data.partitions import PartitionWriter, partition_count, read_partition
from dfc.jobs.spec import Seed
from dfc.jobs.store import Store
from dfc.jobs.tasks import JobInput, Results, Stage, Task, TaskDraft, TaskResult
from dfc.limits import JOB_SPLIT_PARTS_MAX
from dfc.listing.specs import PART_NAME, OutputPattern
from dfc.tar.index.columns import Integers

_RECORD: Final = np.dtype([("class", "S16"), ("draw", "<u8"), ("ordinal", "<i8")])
_ABSENT: Final = bytes(16)  # the class of samples without the field
_SUM_TOLERANCE: Final = 1e-9


class Options(OrderOptions, frozen=True, kw_only=True):
    """The parts, and what must stay together."""

    parts: Annotated[
        Annotated[dict[str, Annotated[float, Meta(ge=0, le=1)]], Meta(min_length=1, max_length=JOB_SPLIT_PARTS_MAX)] | None,
        Meta(
            description="Names of the parts and their fractions, which add up to 1: train=0.9,val=0.1.",
            examples=[{"train": 0.9, "val": 0.1}],
        ),
    ] = None
    folds: Annotated[
        Annotated[int, Meta(ge=2, le=JOB_SPLIT_PARTS_MAX)] | None,
        Meta(description="Instead of parts: the number of equal parts, named 0, 1, …", examples=[5]),
    ] = None
    seed: Annotated[Seed, Meta(description="Determines which sample goes where.", examples=[42])] = 0
    group_regex: Annotated[
        str | None, Meta(description="Keys whose beginnings match the same text stay together (RE2).", examples=["[^/]*/"])
    ] = None
    stratify: Annotated[
        str | None, Meta(description="A field, cls or json:path: each part gets its share of every value.", examples=["cls"])
    ] = None


class ShardTask(Struct, frozen=True):
    part: CorpusPart
    options: Options
    partitions: int = 0
    labels: tuple[str, ...] = ()
    shards: int = 0


class RankTask(Struct, frozen=True):
    starts: list[int]
    options: Options
    partition: int
    inputs: int


def check(options: Options, pattern: OutputPattern) -> None:
    """Raise BadRequest for fractions that do not add up to 1, invalid names, or grouping combined with stratifying."""
    check_order(options, pattern, part=True)
    if (options.parts is None) == (options.folds is None):
        raise BadRequest("split needs exactly one of 'parts' and 'folds'")
    for name in options.parts or ():
        if PART_NAME.fullmatch(name) is None:
            raise BadRequest(f"the name of a part can have letters, digits and ._- only, not {name[:80]!r}")
    if options.parts is not None and abs(math.fsum(options.parts.values()) - 1) > _SUM_TOLERANCE:
        raise BadRequest(f"the fractions of the parts must add up to 1, not {math.fsum(options.parts.values())}")
    if options.group_regex is not None:
        Regex(options.group_regex)
        if options.stratify is not None:
            raise BadRequest("'group_regex' keeps groups together, 'stratify' divides classes: give one, not both")
    if options.stratify is not None:
        parse_class_field(options.stratify)


def _names(options: Options) -> list[str]:
    return list(options.parts) if options.parts is not None else [str(fold) for fold in range(options.folds or 0)]


def _cumulated(options: Options) -> list[float]:
    """The cumulative fractions of the parts, except the last part, which gets the rest."""
    if options.parts is None:
        folds = options.folds or 1
        return [fold / folds for fold in range(1, folds)]
    fractions = list(options.parts.values())
    return [min(1.0, math.fsum(fractions[: k + 1])) for k in range(len(fractions) - 1)]


def plan(job: JobInput) -> list[Stage]:
    """Plan to pick the samples of every shard; with classes, rank the samples of each class first."""
    options: Options = job.options
    names = _names(options)
    partitions = partition_count(4 * _RECORD.itemsize * sum(shard.samples for shard in job.shards), job.memory_bytes)

    def classes(results: Results) -> Iterator[TaskDraft]:
        for part in corpus(job, results):
            yield TaskDraft.of(ShardTask(part, options, partitions), part.shard.label, part.shard.node)

    def ranks(results: Results) -> Iterator[TaskDraft]:
        parts = corpus(job, results)
        starts = [*(part.start for part in parts), parts[-1].end if parts else 0]
        for partition in range(partitions):
            yield TaskDraft.of(RankTask(starts, options, partition, len(results["classes"])), f"classes, part {partition}")

    def pick(results: Results) -> Iterator[TaskDraft]:
        parts = corpus(job, results)
        labels = tuple(_label_name(number) for number in range(len(results.get("ranks", ()))))
        for part in parts:
            task = ShardTask(part, options, labels=labels, shards=len(parts))
            yield TaskDraft.of(task, part.shard.label, part.shard.node)

    own = [Stage("pick", pick, len(job.shards))]
    if options.stratify is not None:
        own = [Stage("classes", classes, len(job.shards)), Stage("ranks", ranks, partitions), *own]
    ordered = Ordered(
        job, lambda results: picked(corpus(job, results), results, names), own=own, follows=True, parts=len(names)
    )
    return ordered.stages()


def pick_parts(task: Task, store: Store) -> TaskResult:
    """Pick the part for each sample of one shard."""
    wanted = task.decode(ShardTask)
    options = wanted.options
    count = len(_names(options))
    if options.stratify is not None:
        ordinals, labels = read_labels(store, wanted.labels, task.number, wanted.shards)
        return write_picked(store, task.number, [ordinals[labels == part] for part in range(count)])
    limits = [math.ceil(cumulated * SCALE) for cumulated in _cumulated(options)]
    pattern = None if options.group_regex is None else Regex(options.group_regex)
    found: list[list[int]] = [[] for _ in range(count)]
    for fields in read_fields(store, wanted.part, ()):
        keys = fields.keys if pattern is None else [_group(pattern, key) for key in fields.keys]
        # Limits can be 2^64, which does not fit into 64 bits; every draw is below that.
        draws = chance(options.seed, keys)
        parts = np.zeros(len(keys), dtype=np.int64)
        for limit in limits:
            if limit < SCALE:
                parts += draws >= np.uint64(limit)
        for part in range(count):
            found[part] += (fields.start + np.flatnonzero(parts == part)).tolist()
    return write_picked(store, task.number, [np.array(each, dtype=np.int64) for each in found])


def _group(pattern: Regex, key: bytes) -> bytes:
    prefix = pattern.prefix(key.decode())
    return key if prefix is None else prefix.encode()


def write_classes(task: Task, store: Store) -> TaskResult:
    """Write class, draw and ordinal of each sample of a shard, partitioned by the hash of the class."""
    wanted = task.decode(ShardTask)
    field = parse_class_field(wanted.options.stratify or "")
    with PartitionWriter(store, _class_name(task.number), wanted.partitions) as writer:
        for fields in read_fields(store, wanted.part, [field.ext]):
            draws = chance(wanted.options.seed, fields.keys).tolist()
            for i, value in enumerate(fields.values[0]):
                try:
                    name = class_of(field, value)
                except NotAClass as error:
                    raise BadField(f"{wanted.part.shard.label}: {fields.keys[i].decode()!r}: {error}") from None
                digest = _ABSENT if name is None else xxhash.xxh3_128_digest(name.encode())
                record = digest + draws[i].to_bytes(8, "little") + (fields.start + i).to_bytes(8, "little")
                writer.add(digest[-1] % wanted.partitions, record)
        size = writer.commit()
    return TaskResult(bytes_out=size)


def rank_classes(task: Task, store: Store) -> TaskResult:
    """Assign the samples of each class to parts in the order of their draws, so that shares are exact up to rounding."""
    wanted = task.decode(RankTask)
    data = b"".join(
        segment for number in range(wanted.inputs) for segment in read_partition(store, _class_name(number), wanted.partition)
    )
    records = np.frombuffer(data, dtype=_RECORD)
    records = records[np.lexsort((records["ordinal"], records["draw"], records["class"]))]
    labels = np.zeros(len(records), dtype=np.int64)
    begins = [0, *(np.flatnonzero(records["class"][1:] != records["class"][:-1]) + 1).tolist()] if len(records) else []
    for begin, end in zip(begins, [*begins, len(records)][1:], strict=True):
        labels[begin:end] = _shares(_cumulated(wanted.options), end - begin)
    ordinals = records["ordinal"].astype(np.int64)
    write_labels(store, _label_name(task.number), wanted.starts, ordinals, labels)
    return TaskResult(bytes_in=len(data))


def _shares(cumulated: Sequence[float], count: int) -> Integers:
    """The part of each of `count` ranks: part k ends at rank floor(its cumulated fraction * count + 1/2)."""
    ends = np.array([math.floor(each * count + 0.5) for each in cumulated], dtype=np.int64)
    return np.searchsorted(ends, np.arange(count), side="right")


def _class_name(number: int) -> str:
    return f"classes/{number:06d}"


def _label_name(number: int) -> str:
    return f"labels/{number:06d}"


FUNCTIONS: Final = {**ORDER_FUNCTIONS, "pick": pick_parts, "classes": write_classes, "ranks": rank_classes}
