"""Reads rows for joins, from shards, CSV, TSV, JSON lines and Parquet, as a key and the fields to add.

A column is a field, and its name in lower case is the extension. CSV cells are taken as text, even if empty. In JSON and
Parquet, null is absent, strings become UTF-8, and everything else JSON.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from dfc.errors import BadRequest
from dfc.formats.base import KEY_FIELD, FormatError
from dfc.formats.parquet import parquet_columns, read_parquet
from dfc.formats.sample import OnSplit, SampleData
from dfc.jobs.shards.samples import read_samples
from dfc.jobs.store import Store
from dfc.jobs.tasks import InputShard
from dfc.limits import JOB_TABLE_COLUMNS_MAX, JOB_TABLE_LINE_BYTES_MAX

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
    source = store.open(shard)
    try:
        name = shard.name.lower()
        if name.endswith(_PARQUET):
            if key not in parquet_columns(source, shard.label):
                raise _no_key(shard.label, key, parquet_columns(source, shard.label))
            rows: Iterator[Row] = (_row_of(shard.label, sample, key) for sample in read_parquet(source, shard.label))
        else:
            rows = _read_text(source.open(), shard.label, key, _DELIMITERS.get(name[-4:]))
        for number, row in enumerate(rows):
            if not number & 255:
                store.check()
            yield row
    finally:
        source.close()


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
