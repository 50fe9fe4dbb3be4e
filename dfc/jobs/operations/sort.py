"""Sort samples by key or by a field; samples with equal values stay in global order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta, Struct

from dfc.errors import BadRequest
from dfc.jobs.moving.arrangement import Arrangement, Section
from dfc.jobs.moving.corpus import CorpusPart, corpus
from dfc.jobs.moving.ordering import ORDER_FUNCTIONS, Ordered, OrderOptions, check_order
from dfc.jobs.moving.orders import Table, TableRow, encode_entries
from dfc.jobs.pattern import OutputPattern
from dfc.jobs.shards.output import PlainOutput
from dfc.jobs.store import Store
from dfc.jobs.tasks import JobInput, Results, Stage, Task, TaskDraft, TaskResult
from dfc.jobs.values.classes import ClassField, parse_class_field
from dfc.jobs.values.fields import read_fields
from dfc.jobs.values.sorting import Entry, SortedRun, SortType, Unsortable, encoder, write_run

NUMBER_FIELDS: Final = frozenset(("cls", "cls2", "class", "count", "index", "inx", "id"))
_ENTRY_OVERHEAD_BYTES: Final = 150  # of a value in memory: a tuple, bytes and an integer
_RANGES_MAX: Final = 4096
_SAMPLES_OF_RUN: Final = 64  # values sampled from each shard to choose the ranges
_SAMPLES_MAX: Final = 1 << 17  # of all shards together (but at least one of each): the proxy holds them in memory
_BOUND_BYTES_MAX: Final = 256  # for a bound of a range, the beginning of a value is enough


class Options(OrderOptions, frozen=True, kw_only=True):
    """What to sort by, and how."""

    by: Annotated[str, Meta(description="key, an extension, or ext:json.path.", examples=["json:score"])] = "key"
    type: Annotated[
        SortType | None,
        Meta(description="How to compare values. By default, int for fields like cls, else text.", examples=["float"]),
    ] = None
    reverse: Annotated[bool, Meta(description="Largest first.", examples=[True])] = False


class RunTask(Struct, frozen=True):
    part: CorpusPart
    options: Options
    samples: int  # about how many of its values to sample


class RunValues(Struct, frozen=True, array_like=True):
    """A summary of a run: the size of its values in memory, and every `step`-th value."""

    size: int
    step: int
    samples: list[Entry]


class SortRankTask(Struct, frozen=True):
    low: Entry | None
    high: Entry | None
    runs: int


def check(options: Options, pattern: OutputPattern) -> None:
    """Raise BadRequest for an invalid field, or a type that keys cannot have."""
    check_order(options, pattern)
    if options.by != "key":
        parse_class_field(options.by)
    elif options.type not in (None, "text"):
        raise BadRequest("keys are always sorted as text; 'type' must be text")


def plan(job: JobInput) -> list[Stage]:
    """Plan to sort the values of each shard, merge each range of values into the order, and write the outputs."""
    options: Options = job.options
    samples = max(1, min(_SAMPLES_OF_RUN, _SAMPLES_MAX // max(1, len(job.shards))))

    def runs(results: Results) -> Iterator[TaskDraft]:
        for part in corpus(job, results):
            yield TaskDraft(msgspec.msgpack.encode(RunTask(part, options, samples)), part.shard.label, part.shard.node)

    def ranks(results: Results) -> Iterator[TaskDraft]:
        bounds: list[Entry | None] = [None, *_bounds(results, job.memory_bytes), None]
        for low, high in pairwise(bounds):
            task = SortRankTask(low, high, len(results["runs"]))
            yield TaskDraft(msgspec.msgpack.encode(task), "a range of values")

    def arrange(results: Results) -> Arrangement:
        parts = corpus(job, results)
        counts = [part.shard.samples for part in parts]
        rows, place = [], 0
        for number, result in enumerate(results["ranks"]):
            rows.append(TableRow(_rank_name(number), 0, result.decode(int), place, 0, sum(counts), False))
            place += rows[-1].count
        return Arrangement(parts, Table(tuple(rows), place), [Section("", 0, counts)])

    own = [Stage("runs", runs, len(job.shards)), Stage("ranks", ranks)]
    return Ordered(job, arrange, own=own).stages()


def _bounds(results: Results, memory_bytes: int) -> list[Entry]:
    """Choose bounds between ranges of values that should each fit into memory."""
    size = sum(result.decode(RunValues).size for result in results["runs"])
    ranges = min(_RANGES_MAX, -(-2 * size // max(1, memory_bytes)))
    if ranges < 2:
        return []
    found = (result.decode(RunValues) for result in results["runs"])
    values = sorted((value, run.step) for run in found for value in run.samples)
    total, passed, bounds = sum(step for _, step in values), 0, list[Entry]()
    for value, step in values:
        if passed * ranges >= total * (len(bounds) + 1):
            bounds.append(value)
        passed += step
    return bounds


def write_values(task: Task, store: Store) -> TaskResult:
    """Write the values of one shard as a sorted run. Unsortable names a sample without a valid value."""
    wanted = task.decode(RunTask)
    options, label = wanted.options, wanted.part.shard.label
    by_key = options.by == "key"
    field = ClassField("", ()) if by_key else parse_class_field(options.by)
    kind = options.type or ("int" if not field.path and field.ext.rpartition(".")[2] in NUMBER_FIELDS else "text")
    encode = encoder(kind, field.path, options.reverse)
    entries: list[Entry] = []
    for fields in read_fields(store, wanted.part, [] if by_key else [field.ext]):
        values = fields.keys if by_key else fields.values[0]
        for ordinal, value in enumerate(values, fields.start):
            key = fields.keys[ordinal - fields.start]
            if value is None:
                raise Unsortable(f"{label}: the sample {key.decode()!r} has no {field.ext!r} to sort by")
            try:
                entries.append((encode(value if by_key else value.strip()), ordinal))
            except ValueError as error:
                shown = value[:40].decode("ascii", errors="backslashreplace")
                raise Unsortable(f"{label}: the sample {key.decode()!r} has {shown!r} in {options.by!r}: {error}") from None
    entries.sort()
    size = write_run(store, _run_name(task.number), entries)
    step = max(1, -(-len(entries) // wanted.samples))
    samples = [(value[:_BOUND_BYTES_MAX], ordinal) for value, ordinal in entries[::step]]
    data = msgspec.msgpack.encode(RunValues(size + _ENTRY_OVERHEAD_BYTES * len(entries), step, samples))
    return TaskResult(bytes_in=wanted.part.shard.size, bytes_out=size, data=data)


def write_order(task: Task, store: Store) -> TaskResult:
    """Write the ordinals of a range of values, in sorted order."""
    wanted = task.decode(SortRankTask)
    entries: list[Entry] = []
    for number in range(wanted.runs):
        run = SortedRun(store, _run_name(number))
        try:
            entries += run.entries(0 if wanted.low is None else run.below(wanted.low), run.below(wanted.high))
        finally:
            run.close()
        store.check()
    entries.sort()
    with PlainOutput(store, _rank_name(task.number), 8 * len(entries), temporary=True) as output:
        output.write(encode_entries(np.array([ordinal for _, ordinal in entries], dtype=np.int64)))
        output.commit()
    return TaskResult(data=msgspec.msgpack.encode(len(entries)))


def _run_name(number: int) -> str:
    return f"values/{number:06d}"


def _rank_name(number: int) -> str:
    return f"order/{number:06d}"


FUNCTIONS: Final = {**ORDER_FUNCTIONS, "runs": write_values, "ranks": write_order}
