"""Write a subset of the samples, in the same order: by keys, a regular expression, a condition, a stride or at random.

Give exactly one of `keys`, `key_regex`, `predicate`, `every`, `fraction` and `slice`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
import xxhash
from msgspec import UNSET, Meta, Struct, UnsetType

from dfc.errors import BadRequest
from dfc.jobs.data.corpus import CorpusPart, corpus
from dfc.jobs.data.fields import Absent, Fields, Regex, read_fields, value_at
from dfc.jobs.data.ordering import ORDER_FUNCTIONS, Ordered, OrderOptions, check_order
from dfc.jobs.data.orders import SCALE, Arrangement, Section, Stride, chance, picked, write_picked
from dfc.jobs.data.partitions import HASH_BYTES, KeyList, write_key_hashes
from dfc.jobs.spec import InputSpec, Seed
from dfc.jobs.store import Store
from dfc.jobs.tasks import InputShard, JobInput, Results, Stage, Task, TaskDraft, TaskResult
from dfc.limits import JOB_PREDICATE_DEPTH_MAX, JOB_PREDICATE_PARTS_MAX
from dfc.listing.specs import OutputPattern
from dfc.names import check_bucket_name, check_object_name

# --- Conditions on samples, as JSON: `{"all": […]}`, `{"any": […]}`, `{"not": …}` over `{"field", "op", "value"}`.
#
# A field is `key`, `size:EXT` (bytes), `EXT` (the text of a member) or `EXT:path` (the value at a path in its JSON). A
# comparison with a field that is absent, or of another type than the value, is false.

Op = Literal["eq", "ne", "lt", "le", "gt", "ge", "in", "contains", "starts_with", "ends_with", "matches", "exists"]
Value = str | int | float | bool | None | list[str | int | float | bool | None]
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WHOLE_CHARS_MAX: Final = 1000
_MISSING: Final = object()
Test = Callable[[Fields, int], bool]


class Condition(Struct, frozen=True, forbid_unknown_fields=True):
    """One of `all`, `any`, `not`, or a comparison."""

    all: list[Condition] | UnsetType = UNSET
    any: list[Condition] | UnsetType = UNSET
    not_: Condition | UnsetType = msgspec.field(default=UNSET, name="not")
    field: str | UnsetType = UNSET
    op: Op | UnsetType = UNSET
    value: Value | UnsetType = UNSET


class Predicate:
    """A checked condition. It needs the bytes of the extensions in `wanted`, and the sizes of those in `sized`."""

    def __init__(self, node: Condition) -> None:
        self.wanted: list[str] = []
        self.sized: list[str] = []
        self._nodes = 0
        self._test = self._compile(node, 0)

    def holds(self, fields: Fields, i: int) -> bool:
        """Whether sample i of `fields` meets the condition."""
        return self._test(fields, i)

    def _compile(self, node: Condition, depth: int) -> Test:
        self._nodes += 1
        if depth > JOB_PREDICATE_DEPTH_MAX or self._nodes > JOB_PREDICATE_PARTS_MAX:
            raise BadRequest(
                f"a predicate can have at most {JOB_PREDICATE_PARTS_MAX} parts, nested at most {JOB_PREDICATE_DEPTH_MAX} deep"
            )
        given = [name for name in node.__struct_fields__ if getattr(node, name) is not UNSET]
        if isinstance(node.all, list) and given == ["all"]:
            tests = [self._compile(each, depth + 1) for each in node.all]
            return lambda fields, i: all(test(fields, i) for test in tests)
        if isinstance(node.any, list) and given == ["any"]:
            tests = [self._compile(each, depth + 1) for each in node.any]
            return lambda fields, i: any(test(fields, i) for test in tests)
        if isinstance(node.not_, Condition) and given == ["not_"]:
            test = self._compile(node.not_, depth + 1)
            return lambda fields, i: not test(fields, i)
        if not isinstance(node.field, str) or isinstance(node.op, UnsetType) or not set(given) <= {"field", "op", "value"}:
            raise BadRequest("each part of a predicate must be one of all, any, not, or field with op and value")
        if (node.op == "exists") != isinstance(node.value, UnsetType):
            raise BadRequest(f"{node.op} takes {'no' if node.op == 'exists' else 'a'} value")
        read, typed = self._reader(node.field)
        return _comparison(read, typed, node.op, None if isinstance(node.value, UnsetType) else node.value)

    def _reader(self, field: str) -> tuple[Callable[[Fields, int], Any], bool]:
        """Return a function that reads a field, and whether its values are typed (text takes the type of the other value)."""
        ext, colon, path = field.partition(":")
        if field == "key":
            return lambda fields, i: fields.keys[i].decode(), False
        if not ext or "/" in ext or (colon and not path):
            raise BadRequest(f"a field must be key, size:EXT, EXT or EXT:path, not {field[:80]!r}")
        if ext == "size" and colon:
            at = _place(self.sized, path.lower())
            return lambda fields, i: size if (size := fields.sizes[at][i]) >= 0 else _MISSING, True
        steps = tuple(path.split(".")) if colon else ()
        at = _place(self.wanted, ext.lower())

        def read(fields: Fields, i: int) -> Any:
            data = fields.values[at][i]
            if data is None:
                return _MISSING
            if not steps:
                return data.decode(errors="replace").strip()
            try:
                return value_at(data, steps)
            except (Absent, ValueError):
                return _MISSING

        return read, bool(steps)


def _place(exts: list[str], ext: str) -> int:
    if ext not in exts:
        exts.append(ext)
    return exts.index(ext)


def _comparison(read: Callable[[Fields, int], Any], typed: bool, op: Op, value: Any) -> Test:
    if op == "exists":
        return lambda fields, i: read(fields, i) is not _MISSING
    if op == "in":
        if not isinstance(value, list):
            raise BadRequest("'in' takes a list")
        each = [_comparison(read, typed, "eq", one) for one in value]
        return lambda fields, i: any(test(fields, i) for test in each)
    if isinstance(value, list):
        raise BadRequest(f"{op} takes one value, not a list")
    if op in ("contains", "starts_with", "ends_with", "matches"):
        return _text_comparison(read, op, value)
    if op not in ("eq", "ne") and (isinstance(value, bool) or not isinstance(value, str | int | float)):
        raise BadRequest(f"{op} takes a number or a string")
    compare = _COMPARE[op]

    def test(fields: Fields, i: int) -> bool:
        found = read(fields, i)
        if found is _MISSING:
            return False
        if not typed and _kind(value) is float:
            if _NUMBER.fullmatch(found) is None:
                return False
            # Python limits integers to some thousand digits; so many are beyond any value here.
            found = int(found) if len(found) <= _WHOLE_CHARS_MAX and found.strip("+-").isdecimal() else float(found)
        return _kind(found) is _kind(value) and compare(found, value)

    return test


def _text_comparison(read: Callable[[Fields, int], Any], op: str, value: Any) -> Test:
    if not isinstance(value, str):
        raise BadRequest(f"{op} takes a string")
    if op == "matches":
        pattern = Regex(value)
        return lambda fields, i: isinstance(found := read(fields, i), str) and pattern.matches(found)
    if op == "starts_with":
        return lambda fields, i: isinstance(found := read(fields, i), str) and found.startswith(value)
    if op == "ends_with":
        return lambda fields, i: isinstance(found := read(fields, i), str) and found.endswith(value)
    return lambda fields, i: isinstance(found := read(fields, i), str | list) and value in found


def _kind(value: Any) -> Any:
    """The kind of a value, for comparisons: all numbers are of the same kind; true and false are not numbers."""
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


# --- The operation: its options, its plan and its tasks.

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
            yield TaskDraft.of(PickTask(part, options, lists), part.shard.label, part.shard.node)

    def keys(_: Results) -> Iterator[TaskDraft]:
        for shard in job.inputs[1]:
            yield TaskDraft.of(ListTask(shard), shard.label, shard.node)

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
