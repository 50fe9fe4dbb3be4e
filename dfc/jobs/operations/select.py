"""Write a subset of the samples, in the same order: by keys, a regular expression, a condition, a stride or at random.

Give exactly one of `keys`, `key_regex`, `predicate`, `every`, `fraction` and `slice`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
import numpy as np
import xxhash
from msgspec import Meta, Struct

from dfc.errors import BadRequest
from dfc.jobs.external.keylist import HASH_BYTES, KeyList, write_key_hashes
from dfc.jobs.moving.arrangement import Arrangement, Section
from dfc.jobs.moving.corpus import CorpusPart, corpus
from dfc.jobs.moving.ordering import ORDER_FUNCTIONS, Ordered, OrderOptions, check_order
from dfc.jobs.moving.orders import Stride
from dfc.jobs.moving.picking import SCALE, chance, picked, write_picked
from dfc.jobs.options import Seed
from dfc.jobs.pattern import OutputPattern
from dfc.jobs.spec import InputSpec
from dfc.jobs.store import Store
from dfc.jobs.tasks import InputShard, JobInput, Results, Stage, Task, TaskDraft, TaskResult
from dfc.jobs.values.fields import read_fields
from dfc.jobs.values.predicate import Condition, Predicate
from dfc.jobs.values.regex import Regex
from dfc.names import check_bucket_name, check_object_name

_SLICE: Final = re.compile(r"(-?[0-9]{1,18})?:(-?[0-9]{1,18})?(?::([0-9]{1,18})?)?")
_WAYS: Final = ("keys", "key_regex", "predicate", "every", "fraction", "slice")


class KeysObject(Struct, frozen=True, forbid_unknown_fields=True):
    """An object with one key per line, or NDJSON lines with a `key`, as written by the operation `keys`."""

    bucket: str
    object: str


class Options(OrderOptions, frozen=True, kw_only=True):
    """Which samples to select."""

    keys: Annotated[
        KeysObject | None,
        Meta(description="Keys listed in an object, one per line.", examples=[{"bucket": "lists", "object": "wanted.txt"}]),
    ] = None
    key_regex: Annotated[
        str | None, Meta(description="A regular expression (RE2) that must match the whole key.", examples=["n0144.*_01"])
    ] = None
    predicate: Annotated[
        Condition | None,
        Meta(
            description="A condition on fields, as JSON; see docs/jobs.md.",
            examples=[{"field": "cls", "op": "in", "value": [0, 3]}],
        ),
    ] = None
    every: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Every n-th sample, starting with the first.", examples=[10])
    ] = None
    fraction: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None, Meta(description="Each sample with this probability.", examples=[0.1])
    ] = None
    slice: Annotated[
        str | None, Meta(description="lo:hi:step in the order of the dataset, as in Python.", examples=["0:1000:2"])
    ] = None
    seed: Annotated[Seed | None, Meta(description="With fraction: determines which samples are taken.", examples=[42])] = None


class PickTask(Struct, frozen=True):
    part: CorpusPart
    options: Options
    lists: tuple[str, ...]


class ListTask(Struct, frozen=True):
    shard: InputShard


def check(options: Options, pattern: OutputPattern) -> None:
    """Raise BadRequest unless exactly one way to select is given, and it is valid."""
    check_order(options, pattern)
    given = [name for name in _WAYS if getattr(options, name) is not None]
    if len(given) != 1:
        raise BadRequest(f"select needs exactly one of {', '.join(_WAYS)}, not {len(given)}")
    if options.seed is not None and options.fraction is None:
        raise BadRequest("'seed' is only for 'fraction'")
    if options.key_regex is not None:
        Regex(options.key_regex)
    if options.predicate is not None:
        Predicate(options.predicate)
    if options.slice is not None:
        _range(options.slice, 0)
    if options.keys is not None:
        check_bucket_name(options.keys.bucket)
        check_object_name(options.keys.object)


def other_inputs(options: Options) -> tuple[InputSpec, ...]:
    """The list of keys."""
    return () if options.keys is None else (InputSpec(options.keys.bucket, [options.keys.object]),)


def _range(text: str, count: int) -> range:
    """Parse `lo:hi:step` for `count` samples, like a Python slice with a positive step."""
    match = _SLICE.fullmatch(text.replace(" ", ""))
    if match is None or match[3] == "0":
        raise BadRequest(f"a slice must be lo:hi or lo:hi:step with a step of 1 or more, not {text[:40]!r}")
    lo, hi, step = (int(group) if group else None for group in match.groups())
    return range(*slice(lo, hi, step).indices(count))


def plan(job: JobInput) -> list[Stage]:
    """Plan the stages: strides are formulas; otherwise every shard is scanned."""
    options: Options = job.options
    if options.every is not None or options.slice is not None:
        return Ordered(job, lambda results: _strided(job, results), follows=True).stages()

    def pick(results: Results) -> Iterator[TaskDraft]:
        lists = tuple(f"keys/{number:06d}" for number in range(len(results.get("keys", ()))))
        for part in corpus(job, results):
            yield TaskDraft(msgspec.msgpack.encode(PickTask(part, options, lists)), part.shard.label, part.shard.node)

    def keys(_: Results) -> Iterator[TaskDraft]:
        for shard in job.inputs[1]:
            yield TaskDraft(msgspec.msgpack.encode(ListTask(shard)), shard.label, shard.node)

    own = [Stage("pick", pick, len(job.shards))]
    if options.keys is not None:
        own.insert(0, Stage("keys", keys, 1))
    return Ordered(job, lambda results: picked(corpus(job, results), results, [""]), own=own, follows=True).stages()


def _strided(job: JobInput, results: Results) -> Arrangement:
    options: Options = job.options
    parts = corpus(job, results)
    total = parts[-1].end if parts else 0
    chosen = range(0, total, options.every) if options.every is not None else _range(options.slice or ":", total)

    def before(ordinal: int) -> int:
        """How many of the chosen samples have a smaller ordinal."""
        return min(len(chosen), max(0, -(-(ordinal - chosen.start) // chosen.step)))

    counts = [before(part.end) - before(part.start) for part in parts]
    return Arrangement(parts, Stride(chosen.start, chosen.step, len(chosen)), [Section("", 0, counts)])


def pick_samples(task: Task, store: Store) -> TaskResult:
    """Pick the chosen samples of one shard."""
    wanted = task.decode(PickTask)
    options = wanted.options
    chosen = [np.zeros(0, dtype=np.int64)]
    predicate = None if options.predicate is None else Predicate(options.predicate)
    pattern = None if options.key_regex is None else Regex(options.key_regex)
    hashes: list[bytes] = []
    for fields in read_fields(store, wanted.part, predicate.wanted if predicate else (), predicate.sized if predicate else ()):
        if options.fraction is not None:
            # The threshold can be 2^64, which does not fit into 64 bits.
            limit = int(options.fraction * SCALE)
            draws = chance(options.seed or 0, fields.keys)
            found = np.flatnonzero(draws < np.uint64(limit)) if limit < SCALE else np.arange(len(fields))
        elif pattern is not None:
            found = np.array([i for i, key in enumerate(fields.keys) if pattern.matches(key.decode())], dtype=np.int64)
        elif predicate is not None:
            found = np.array([i for i in range(len(fields)) if predicate.holds(fields, i)], dtype=np.int64)
        else:
            hashes += [xxhash.xxh3_128_digest(key) for key in fields.keys]
            continue
        chosen.append(fields.start + found)
    if wanted.lists:
        chosen.append(wanted.part.start + KeyList(store, wanted.lists).find(hashes))
    return write_picked(store, task.number, [np.concatenate(chosen)])


def list_keys(task: Task, store: Store) -> TaskResult:
    """Write the hashes of a list of keys to a temporary object."""
    shard = task.decode(ListTask).shard
    size = write_key_hashes(store, shard, f"keys/{task.number:06d}")
    return TaskResult(samples=0, bytes_in=shard.size, bytes_out=size * HASH_BYTES)


FUNCTIONS: Final = {**ORDER_FUNCTIONS, "pick": pick_samples, "keys": list_keys}
