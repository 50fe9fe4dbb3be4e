"""Sort samples by key or by a field; samples with equal values stay in global order."""

from __future__ import annotations

import math
import re
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Annotated, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct

from dfc.errors import BadRequest, Conflict
from dfc.jobs.data.corpus import CorpusPart, corpus
from dfc.jobs.data.fields import Absent, ClassField, parse_class_field, read_fields, value_at
from dfc.jobs.data.ordering import ORDER_FUNCTIONS, Ordered, OrderOptions, check_order
from dfc.jobs.data.orders import Arrangement, Section, Table, TableRow, encode_entries, read_numbers
from dfc.jobs.data.output import PlainOutput
from dfc.jobs.store import Source, Store
from dfc.jobs.tasks import JobInput, Results, Stage, Task, TaskDraft, TaskResult
from dfc.limits import JOB_SORT_TEXT_BYTES_MAX
from dfc.listing.specs import OutputPattern

# --- Encodes values to sort by, and stores them in sorted runs, temporary objects that can be searched without reading all.
#
# A run, with numbers of 8 bytes, little-endian: count · ordinals · offsets of the values and the end of the last · values.
# Values are bytes whose order is the order of the samples; numbers have 8 bytes.

SortType = Literal["int", "float", "text"]
Entry = tuple[bytes, int]  # value and global ordinal: no two are equal
_INTEGER: Final = re.compile(rb"[+-]?[0-9]{1,19}")
_FLOAT: Final = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_SIGN: Final = 1 << 63
_WORD: Final = (1 << 64) - 1
_FLIPPED: Final = bytes(255 - byte for byte in range(256))
_FLIPPED_TEXT: Final = bytes(max(0, 254 - byte) for byte in range(256))


class Unsortable(Conflict):
    """A sample has no value to sort by, or one that is not of the type."""

    code = "unsortable"


def encoder(kind: SortType, path: Sequence[str], reverse: bool) -> Callable[[bytes], bytes]:
    """Return a function that encodes a text, or the value at a path in it, as sortable bytes. ValueError for the wrong type."""
    one = {"int": _int, "float": _float, "text": _text}[kind]

    def encode(data: bytes) -> bytes:
        if path:
            try:
                data = _scalar(value_at(data, path))
            except Absent:
                raise ValueError(f"no value at {'.'.join(path)!r}") from None
        value = one(data)
        return _reversed(value, kind) if reverse else value

    return encode


def _scalar(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("neither a number nor a string")
    return msgspec.json.encode(value)


def _int(data: bytes) -> bytes:
    if _INTEGER.fullmatch(data) is None or not -_SIGN <= int(data) < _SIGN:
        raise ValueError("not a 64-bit integer")
    return (int(data) + _SIGN).to_bytes(8, "big")


def _float(data: bytes) -> bytes:
    number = float(data) if _FLOAT.fullmatch(data) else math.nan
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    bits = int.from_bytes(struct.pack(">d", number + 0.0), "big")  # -0.0 becomes 0.0
    return (bits ^ _WORD if bits & _SIGN else bits | _SIGN).to_bytes(8, "big")


def _text(data: bytes) -> bytes:
    if len(data) > JOB_SORT_TEXT_BYTES_MAX:
        raise ValueError(f"longer than {JOB_SORT_TEXT_BYTES_MAX} bytes")
    try:
        data.decode()
    except UnicodeDecodeError:
        raise ValueError("not valid UTF-8") from None
    return data


def _reversed(value: bytes, kind: SortType) -> bytes:
    """Encode for the reverse order. UTF-8 has no bytes above 0xF4, so 0xFF can end a text."""
    return value.translate(_FLIPPED_TEXT) + b"\xff" if kind == "text" else value.translate(_FLIPPED)


def write_run(store: Store, name: str, entries: Sequence[Entry]) -> int:
    """Write sorted entries as a run; return its size in bytes."""
    lengths = np.array([len(value) for value, _ in entries], dtype=np.int64)
    offsets = np.zeros(len(entries) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    with PlainOutput(store, name, temporary=True) as output:
        output.write(encode_entries(np.array([len(entries)])))
        output.write(encode_entries(np.array([ordinal for _, ordinal in entries], dtype=np.int64)))
        output.write(encode_entries(offsets))
        output.write(b"".join(value for value, _ in entries))
        return output.commit().size


class SortedRun:
    """A stored run that can be searched."""

    def __init__(self, store: Store, name: str) -> None:
        self._source: Source = store.open_temporary(name)
        self.count = int(read_numbers(self._source, 0, 1)[0])
        self._values = 8 * (2 * self.count + 2)

    def entries(self, lo: int, hi: int) -> list[Entry]:
        """Read the entries from the `lo`-th up to the `hi`-th."""
        ordinals = read_numbers(self._source, 8 * (1 + lo), hi - lo).tolist()
        offsets = read_numbers(self._source, 8 * (1 + self.count + lo), hi - lo + 1).tolist()
        data = bytearray(offsets[-1] - offsets[0])
        if data:
            self._source.read_into(self._values + offsets[0], memoryview(data))
        raw, base = bytes(data), offsets[0]
        return [(raw[offsets[i] - base : offsets[i + 1] - base], ordinal) for i, ordinal in enumerate(ordinals)]

    def below(self, bound: Entry | None) -> int:
        """Return how many entries are smaller than `bound`; None is larger than all."""
        if bound is None:
            return self.count
        return bisect_left(range(self.count), bound, key=lambda at: self.entries(at, at + 1)[0])

    def close(self) -> None:
        self._source.close()


# --- The operation: its options, its plan and its tasks.

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
            yield TaskDraft.of(RunTask(part, options, samples), part.shard.label, part.shard.node)

    def ranks(results: Results) -> Iterator[TaskDraft]:
        bounds: list[Entry | None] = [None, *_bounds(results, job.memory_bytes), None]
        for low, high in pairwise(bounds):
            yield TaskDraft.of(SortRankTask(low, high, len(results["runs"])), "a range of values")

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
        with closing(SortedRun(store, _run_name(number))) as run:
            entries += run.entries(0 if wanted.low is None else run.below(wanted.low), run.below(wanted.high))
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
