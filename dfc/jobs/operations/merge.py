"""Combine several datasets into one: their samples are interleaved by weight, and those of each dataset stay in order.

The next sample comes from the input with the smallest (taken + 1) / weight; if equal, from the first such input.
"""

# The order is a formula (`dfc.order`) over the concatenated inputs; the rest is shared code. Before, `keys` logs the
# keys of each shard, and `equal` fails if there is a duplicate.

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from dfc.errors import BadRequest, Conflict
from dfc.jobs.data.corpus import CorpusPart, Parts, corpus, open_index
from dfc.jobs.data.ordering import ORDER_FUNCTIONS, Ordered, OrderOptions, check_order
from dfc.jobs.data.orders import Arrangement, Section
from dfc.jobs.data.partitions import (
    KEY_BYTES,
    DuplicateKey,
    PartitionWriter,
    find_repeats,
    partition_count,
    place_of,
    shard_and_ordinal,
)
from dfc.jobs.store import Store
from dfc.jobs.tasks import JobInput, Results, Stage, Task, TaskDraft, TaskResult
from dfc.limits import JOB_MERGE_PREFIX_CHARS_MAX, TAR_MEMBER_NAME_BYTES_MAX
from dfc.listing.specs import OutputPattern
from dfc.order import Interleave, interleave, whole_weights
from dfc.tar.samples import split_key

TAKES_MANY: Final = True
Weight = Annotated[int, Meta(ge=1, le=10**9)] | Annotated[float, Meta(ge=1e-6, le=1e9)]


class Options(OrderOptions, frozen=True, kw_only=True):
    """How to mix the inputs."""

    weights: Annotated[
        list[Weight] | None,
        Meta(
            description="How often to draw from each input, one number per input. By default, equally often.", examples=[[3, 1]]
        ),
    ] = None
    until: Annotated[
        Literal["first", "all"],
        Meta(
            description="Whether the output ends when all inputs are exhausted (all), or as soon as one is (first).",
            examples=["first"],
        ),
    ] = "all"
    prefix: Annotated[list[str] | None, Meta(description="Prefixes for the keys, one per input.", examples=[["a-", "b-"]])] = (
        None
    )


class _Keys(Struct, frozen=True):
    part: CorpusPart
    number: int
    taken: int  # samples of the shard that go into the output
    partitions: int


class _Equal(Struct, frozen=True):
    partition: int
    partitions: int
    ends: list[int]  # for each source, the number of the shard after its last one
    between: bool  # keys of one source are not compared with each other


def check(options: Options, pattern: OutputPattern) -> None:
    check_order(options, pattern)
    for prefix in options.prefix or ():
        if len(prefix) > JOB_MERGE_PREFIX_CHARS_MAX or "\0" in prefix or split_key(f"{prefix}k.x") != (f"{prefix}k", "x"):
            raise BadRequest(f"invalid prefix {prefix[:80]!r}; use one like 'a-' or 'set/1-', without a dot after a '/'")


def plan(job: JobInput) -> list[Stage]:
    """Plan the stages. BadRequest if the number of weights or prefixes is not the number of inputs."""
    options: Options = job.options
    sources = len(job.inputs)
    for name, given in (("weights", options.weights), ("prefix", options.prefix)):
        if given is not None and len(given) != sources:
            raise BadRequest(f"{name!r} must have one entry for each of the {sources} inputs, not {len(given)}")
    weights = whole_weights(options.weights or [1] * sources)
    prefixes = options.prefix or [""] * sources
    ends = list(accumulate(len(shards) for shards in job.inputs))
    flat = replace(job, inputs=([shard for shards in job.inputs for shard in shards],))
    partitions = partition_count(sum(shard.samples for shard in flat.shards) * KEY_BYTES, job.memory_bytes)

    def order(results: Results) -> tuple[Parts, Interleave]:
        parts = corpus(flat, results)
        begins = [0, *ends]
        counts = [sum(part.shard.samples for part in parts[lo:hi]) for lo, hi in zip(begins, ends, strict=False)]
        named = tuple(CorpusPart(part.start, part.shard, prefixes[bisect_right(ends, n)]) for n, part in enumerate(parts))
        return named, interleave(counts, weights, options.until)

    def arrange(results: Results) -> Arrangement:
        parts, merged = order(results)
        return Arrangement(parts, merged, [Section("", 0, _counts(parts, merged.count))])

    def keys(results: Results) -> Iterator[TaskDraft]:
        parts, merged = order(results)
        for number, part in enumerate(parts):
            source = merged.sources[bisect_right(ends, number)]
            taken = min(part.shard.samples, max(0, source.start + source.count - part.start))
            yield TaskDraft.of(_Keys(part, number, taken, partitions), part.shard.label, part.shard.node)

    def equal(_: Results) -> Iterator[TaskDraft]:
        for partition in range(partitions):
            payload = _Equal(partition, partitions, ends, options.prefix is not None)
            yield TaskDraft.of(payload, f"keys of part {partition} of {partitions}")

    own = [Stage("keys", keys, len(flat.shards)), Stage("equal", equal, partitions)]
    return Ordered(flat, arrange, own).stages()


def _counts(parts: Parts, total: int) -> list[int]:
    """Samples per output if no size is given: as many outputs as inputs, with their counts until no samples are left."""
    counts = []
    for part in parts:
        counts.append(min(part.shard.samples, total))
        total -= counts[-1]
    return counts


def run_keys(task: Task, store: Store) -> TaskResult:
    """Log the keys of a shard, as they will be in the output."""
    payload = task.decode(_Keys)
    part, prefix = payload.part, payload.part.prefix
    with PartitionWriter(store, _keys_name(payload.number), payload.partitions) as log:
        if payload.taken:
            for sample in open_index(store, part.shard).samples():
                if sample.number >= payload.taken:
                    break
                key = prefix + sample.key
                if prefix:
                    _check_names(part, [prefix + member.name for member in sample.members], key)
                log.add_key(key, place_of(payload.number, sample.number))
                if not sample.number & 1023:
                    store.check()
        log.commit()
    return TaskResult()


def _check_names(part: CorpusPart, names: Sequence[str], key: str) -> None:
    for name in names:
        parts = split_key(name)
        if parts is None or parts[0] != key or len(name.encode()) > TAR_MEMBER_NAME_BYTES_MAX:
            raise Conflict(
                f"{part.shard.label}: with its prefix a member would be named {name[:200]!r}, which is not a valid member name"
            )


def run_equal(task: Task, store: Store) -> TaskResult:
    """Fail if a partition has a duplicate key."""
    payload = task.decode(_Equal)
    ends = payload.ends
    logs = [_keys_name(number) for number in range(ends[-1] if ends else 0)]
    for repeat in find_repeats(store, logs, payload.partition, payload.partitions):
        first, second = (bisect_right(ends, shard_and_ordinal(place)[0]) for place in (repeat.first, repeat.place))
        if first != second or not payload.between:
            where = f"inputs {first} and {second}" if first != second else f"input {first} twice"
            raise DuplicateKey(f"the key {repeat.key[:200]!r} is in {where} (counted from 0); use 'prefix' to tell them apart")
    return TaskResult()


def _keys_name(number: int) -> str:
    return f"keys-{number:08d}"


FUNCTIONS: Final = {**ORDER_FUNCTIONS, "keys": run_keys, "equal": run_equal}
