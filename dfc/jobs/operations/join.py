"""Add fields to the samples of a dataset, found by key in another dataset, CSV, JSON lines or Parquet.

The output has the samples in the order of the input.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import closing
from heapq import merge
from typing import Annotated, Any, BinaryIO, Final, Literal, NamedTuple

import msgpack
import msgspec
from msgspec import Meta, Struct, field

from dfc.errors import BadRequest, Conflict
from dfc.formats.base import KEY_FIELD, DataMember, FormatError, OnSplit, SampleData
from dfc.formats.parquet import parquet_columns, read_parquet
from dfc.jobs.data.ordering import RECUT_FUNCTIONS, OrderOptions, check_order, commit_made, has_size, open_made, recut
from dfc.jobs.data.partitions import DuplicateKey, PartitionWriter, key_hash, partition_bytes, partition_count, read_records
from dfc.jobs.data.samples import read_samples
from dfc.jobs.spec import InputSpec, SizeOptions
from dfc.jobs.store import Function, Store
from dfc.jobs.tasks import InputShard, JobInput, Results, Stage, Task, TaskDraft, TaskResult
from dfc.limits import JOB_TABLE_COLUMNS_MAX, JOB_TABLE_LINE_BYTES_MAX, KIB, SAMPLE_RECORDS_MAX
from dfc.listing.specs import OutputPattern
from dfc.listing.specs import check as check_shards
from dfc.names import check_bucket_name

# --- Reads rows for joins, from shards, CSV, TSV, JSON lines and Parquet, as a key and the fields to add.
#
# A column is a field, and its name in lower case is the extension. CSV cells are taken as text, even if empty. In JSON and
# Parquet, null is absent, strings become UTF-8, and everything else JSON.

_DELIMITERS: Final = {".csv": ",", ".tsv": "\t"}
_JSON_LINES: Final = (".jsonl", ".ndjson")
_PARQUET: Final = ".parquet"
TABLE_ENDINGS: Final = (*_DELIMITERS, *_JSON_LINES, _PARQUET)


class Row(NamedTuple):
    """The fields for a key. `fields`: extension, in lower case, and bytes."""

    key: str
    fields: list[tuple[str, bytes]]


def check_joinable(shard: InputShard) -> None:
    """Raise BadRequest for an object from which rows cannot be read."""
    if not shard.is_indexed and not shard.name.lower().endswith(TABLE_ENDINGS):
        raise BadRequest(f"{shard.label} is neither an archive of samples nor a table ({', '.join(TABLE_ENDINGS)})")


def read_rows(store: Store, shard: InputShard, key: str, on_split: OnSplit) -> Iterator[Row]:
    """Yield the rows of an object, in order. `key` names the column with the keys; samples have their own.

    Raises FormatError naming the line, TarError, SplitSample, InputChanged, JobCancelled.
    """
    if shard.is_indexed:
        for sample in read_samples(store, shard, on_split):
            yield Row(sample.key, [(member.ext, member.data) for member in sample.members])
        return
    with closing(store.open(shard)) as source:
        name = shard.name.lower()
        if name.endswith(_PARQUET):
            columns = parquet_columns(source, shard.label)
            if key not in columns:
                raise _no_key(shard.label, key, columns)
            rows: Iterator[Row] = (_row_of(shard.label, sample, key) for sample in read_parquet(source, shard.label))
        else:
            rows = _read_text(source.open(), shard.label, key, _DELIMITERS.get(name[-4:]))
        for number, row in enumerate(rows):
            if not number & 255:
                store.check()
            yield row


def _row_of(label: str, sample: SampleData, key: str) -> Row:
    fields = [(member.ext, member.data) for member in sample.members]
    if key == KEY_FIELD:
        return Row(sample.key, fields)
    wanted = key.replace("/", ".").lower()
    found = next((data for ext, data in fields if ext == wanted), None)
    if found is None:
        raise FormatError(label, f"row {sample.number} has no {key!r}")
    return Row(found.decode(errors="replace"), [field for field in fields if field[0] != wanted])


def _read_text(stream: BinaryIO, label: str, key: str, delimiter: str | None) -> Iterator[Row]:
    with stream:
        yield from _read_json_lines(stream, label, key) if delimiter is None else _read_csv(stream, label, key, delimiter)


def _lines(stream: BinaryIO, label: str) -> Iterator[bytes]:
    """Yield lines, of limited length, with their line ends."""
    number = 0
    while line := stream.readline(JOB_TABLE_LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > JOB_TABLE_LINE_BYTES_MAX:
            raise FormatError(label, f"line {number} is longer than {JOB_TABLE_LINE_BYTES_MAX} bytes")
        yield line


def _text_lines(stream: BinaryIO, label: str) -> Iterator[str]:
    for number, line in enumerate(_lines(stream, label)):
        try:
            yield line.decode("utf-8-sig" if number == 0 else "utf-8")
        except UnicodeDecodeError:
            raise FormatError(label, f"line {number + 1} is not valid UTF-8") from None


def _read_csv(stream: BinaryIO, label: str, key: str, delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(JOB_TABLE_LINE_BYTES_MAX)
    reader = csv.reader(_text_lines(stream, label), delimiter=delimiter, strict=True)
    try:
        columns = next(reader, [])
        place, names = _columns(label, columns, key)
        for cells in reader:
            if not cells:
                continue  # an empty line
            if len(cells) != len(columns):
                raise FormatError(label, f"line {reader.line_num} has {len(cells)} cells, the first line has {len(columns)}")
            yield Row(cells[place], [(name, cell.encode()) for name, cell in zip(names, cells, strict=True) if name])
    except csv.Error as error:
        raise FormatError(label, f"line {reader.line_num}: {error}") from None


def _columns(label: str, columns: Sequence[str], key: str) -> tuple[int, list[str]]:
    """Return the position of the key, and the extension of every column, empty for the key's."""
    if key not in columns:
        raise _no_key(label, key, columns)
    if len(columns) > JOB_TABLE_COLUMNS_MAX:
        raise FormatError(label, f"it has {len(columns)} columns, more than {JOB_TABLE_COLUMNS_MAX}")
    place = columns.index(key)
    names = ["" if number == place else _extension(label, column) for number, column in enumerate(columns)]
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise FormatError(label, f"two of its columns are named {twice!r}")
    return place, names


def _no_key(label: str, key: str, columns: Sequence[str]) -> FormatError:
    return FormatError(label, f"no column {key!r} for keys (option 'key') among {', '.join(columns)[:200] or 'none'}")


def _extension(label: str, name: str) -> str:
    if not name or "/" in name or "\0" in name:
        raise FormatError(label, f"the column {name[:80]!r} cannot be a field: the name of a field has no '/'")
    return name.lower()


def _read_json_lines(stream: BinaryIO, label: str, key: str) -> Iterator[Row]:
    for number, line in enumerate(_lines(stream, label), 1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise FormatError(label, f"line {number} is not a JSON object ({str(error)[:100]})") from None
        found = row.pop(key, None)
        if not isinstance(found, str | int) or isinstance(found, bool):
            raise FormatError(label, f"line {number} has no string {key!r} (option 'key')")
        fields = {_extension(label, name): _cell(value) for name, value in row.items() if value is not None}
        if len(fields) < sum(value is not None for value in row.values()) or len(fields) > JOB_TABLE_COLUMNS_MAX:
            raise FormatError(label, f"line {number} has fields that differ only in case, or more than {JOB_TABLE_COLUMNS_MAX}")
        yield Row(str(found), list(fields.items()))


def _cell(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


# --- Both sides are partitioned by a hash of the key so that a partition fits into memory: `left` logs keys and ordinals,
# `right` keys and fields; `match` finds the matches in each partition; `add` reads each shard in order and adds what was found.

OnDuplicate = Literal["fail", "first", "last"]
_LOAD_RATIO: Final = 2  # bytes of memory per byte of fields and keys, at least
_PARQUET_RATIO: Final = 4  # assumed expansion of compressed columns


class Options(SizeOptions, frozen=True, kw_only=True):
    """What to join, and how."""

    other: Annotated[
        InputSpec,
        Meta(
            description="The other side, BUCKET/SHARDS: archives, or tables (.csv, .tsv, .jsonl, .ndjson, .parquet).",
            examples=[{"bucket": "tables", "shards": "meta.csv"}],
        ),
    ] = field(name="with")
    how: Annotated[
        Literal["inner", "left"],
        Meta(description="Whether samples without a match are left out (inner) or kept as they are (left).", examples=["left"]),
    ] = "inner"
    on_duplicate: Annotated[
        OnDuplicate, Meta(description="What to do with a key that the other side has more than once.", examples=["first"])
    ] = "fail"
    key: Annotated[str, Meta(description="The column of a table that holds the keys.", examples=["id"])] = KEY_FIELD


class FieldOnBothSides(Conflict):
    """A sample already has a field that the other side would add."""

    code = "field_on_both_sides"


class _Left(Struct, frozen=True):
    shard: InputShard
    number: int
    partitions: int
    on_split: OnSplit


class _Right(_Left, frozen=True):
    key: str


class _Match(Struct, frozen=True):
    partition: int
    partitions: int
    lefts: int
    rights: int
    on_duplicate: OnDuplicate


class _Add(Struct, frozen=True):
    shard: InputShard
    number: int
    name: str | None
    passes: list[int]  # of each partition
    inner: bool
    on_split: OnSplit


def check(options: Options, pattern: OutputPattern) -> None:
    check_order(OrderOptions(samples_per_shard=options.samples_per_shard, shard_size=options.shard_size), pattern)
    check_bucket_name(options.other.bucket)
    check_shards(options.other.shards)
    if not options.key:
        raise BadRequest("'key' must name the column that holds the keys")


def other_inputs(options: Options) -> tuple[InputSpec, ...]:
    return (options.other,)


def plan(job: JobInput) -> list[Stage]:
    options: Options = job.options
    lefts, rights = job.inputs
    for shard in rights:
        check_joinable(shard)
    partitions = partition_count(sum(map(_expected_bytes, rights)), job.memory_bytes)

    def left(_: Results) -> Iterator[TaskDraft]:
        for number, shard in enumerate(lefts):
            yield TaskDraft.of(_Left(shard, number, partitions, options.on_split), shard.label, shard.node)

    def right(_: Results) -> Iterator[TaskDraft]:
        for number, shard in enumerate(rights):
            yield TaskDraft.of(_Right(shard, number, partitions, options.on_split, options.key), shard.label, shard.node)

    def match(_: Results) -> Iterator[TaskDraft]:
        for partition in range(partitions):
            payload = _Match(partition, partitions, len(lefts), len(rights), options.on_duplicate)
            yield TaskDraft.of(payload, f"keys of part {partition} of {partitions}")

    def add(results: Results) -> Iterator[TaskDraft]:
        passes = [result.decode(int) for result in results["match"]]
        for number, shard in enumerate(lefts):
            name = None if has_size(options) else job.pattern.name(number)
            payload = _Add(shard, number, name, passes, options.how == "inner", options.on_split)
            yield TaskDraft.of(payload, shard.label, shard.node if name is None else job.node_of(name))

    stages = [
        Stage("left", left, len(lefts)),
        Stage("right", right, len(rights)),
        Stage("match", match, partitions),
        Stage("add", add, len(lefts)),
    ]
    return recut(job, stages, "add")


def _expected_bytes(shard: InputShard) -> int:
    if shard.is_indexed:
        return shard.content_size
    return shard.size * (_PARQUET_RATIO if shard.name.lower().endswith(".parquet") else 1)


def run_left(task: Task, store: Store) -> TaskResult:
    """Log the keys of one shard with the ordinals that `add` will see."""
    payload = task.decode(_Left)
    with PartitionWriter(store, _left_name(payload.number), payload.partitions) as log:
        for key, number in _keys(store, payload.shard, payload.on_split):
            log.add_key(key, number)
        log.commit()
    return TaskResult()


def _keys(store: Store, shard: InputShard, on_split: OnSplit) -> Iterator[tuple[str, int]]:
    if shard.repeated and on_split == "fail":
        for _ in read_samples(store, shard, on_split):
            pass  # raises an error that names the key
    joined: set[str] | None = set() if shard.repeated and on_split == "join" else None
    number = 0
    for sample in store.index(shard).samples():
        if not sample.number & 1023:
            store.check()
        if joined is not None:
            if sample.key in joined:
                continue
            joined.add(sample.key)
        yield sample.key, number
        number += 1


def run_right(task: Task, store: Store) -> TaskResult:
    """Partition the rows of one object by key."""
    payload = task.decode(_Right)
    rows = 0
    with PartitionWriter(store, _right_name(payload.number), payload.partitions) as log:
        for row in read_rows(store, payload.shard, payload.key, payload.on_split):
            log.add_key(row.key, row.fields)
            rows += 1
        log.commit()
    return TaskResult(samples=rows, bytes_in=payload.shard.size)


def run_match(task: Task, store: Store) -> TaskResult:
    """Find the rows for the keys of a partition; in several passes if not all rows fit into memory."""
    payload = task.decode(_Match)
    rights = [_right_name(number) for number in range(payload.rights)]
    total = sum(partition_bytes(store, name, payload.partition) for name in rights)
    passes = max(1, -(-_LOAD_RATIO * total // max(1, store.memory_bytes // 2)))
    # `add` reads one piece of every partition at a time.
    buffer_bytes = max(64 * KIB, store.memory_bytes // (4 * payload.partitions * passes))
    for number in range(passes):
        known = _load(store, payload, rights, number, passes)
        with PartitionWriter(store, _match_name(payload.partition, number), payload.lefts, buffer_bytes) as found:
            for shard in range(payload.lefts):
                store.check()
                for key, ordinal in read_records(store, _left_name(shard), payload.partition):
                    fields = known.get(key)
                    if fields is not None:
                        found.add(shard, msgpack.packb((ordinal, fields)))
            found.commit()
    return TaskResult(data=msgspec.msgpack.encode(passes))


def _load(store: Store, payload: _Match, rights: list[str], number: int, passes: int) -> dict[str, list[Any]]:
    """Load the fields by key, for the keys of one pass."""
    known: dict[str, list[Any]] = {}
    for name in rights:
        store.check()
        for key, fields in read_records(store, name, payload.partition):
            if passes > 1 and key_hash(key) // payload.partitions % passes != number:
                continue
            if key in known:
                if payload.on_duplicate == "fail":
                    raise DuplicateKey(f"the key {key[:200]!r} occurs more than once on the other side of the join")
                if payload.on_duplicate == "first":
                    continue
            known[key] = fields
    return known


def run_add(task: Task, store: Store) -> TaskResult:
    """Write one shard with the fields found for it."""
    payload = task.decode(_Add)
    names = [_match_name(partition, number) for partition, passes in enumerate(payload.passes) for number in range(passes)]
    with open_made(store, payload.name, payload.number) as output:
        found = merge(*(read_records(store, name, payload.number) for name in names), key=lambda record: int(record[0]))
        ordinal, fields = next(found, (-1, []))
        for sample in read_samples(store, payload.shard, payload.on_split):
            store.check()
            if sample.number == ordinal:
                output.add(_with_fields(payload.shard, sample, fields))
                ordinal, fields = next(found, (-1, []))
            elif not payload.inner:
                output.add(sample.members)
        return commit_made(output, payload.shard)


def _with_fields(shard: InputShard, sample: SampleData, fields: list[Any]) -> list[DataMember]:
    known = {member.ext for member in sample.members}
    for ext, _ in fields:
        if ext in known:
            raise FieldOnBothSides(f"{shard.label}: the sample {sample.key[:200]!r} already has a field {ext!r}")
    if len(known) + len(fields) > SAMPLE_RECORDS_MAX:
        raise Conflict(f"{shard.label}: the sample {sample.key[:200]!r} would have more than {SAMPLE_RECORDS_MAX} fields")
    return sample.members + [DataMember(ext, f"{sample.key}.{ext}", data) for ext, data in fields]


def _left_name(number: int) -> str:
    return f"left-{number:08d}"


def _right_name(number: int) -> str:
    return f"right-{number:08d}"


def _match_name(partition: int, number: int) -> str:
    return f"match-{partition:06d}-{number:06d}"


FUNCTIONS: Final[dict[str, Function]] = {
    "left": run_left,
    "right": run_right,
    "match": run_match,
    "add": run_add,
    **RECUT_FUNCTIONS,
}
