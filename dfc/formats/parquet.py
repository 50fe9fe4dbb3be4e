"""Parquet: a row a sample, `__key__` (string) and a nullable binary column by extension; null is absent, empty is empty.

How members were written and in which order stands in the file's metadata, `dfc.members`: JSON of `layouts`, the different
lists of extensions, and `runs`, pairs of a layout's number and how many rows in a row have it. With it a tar comes back byte
for byte. Needs pyarrow, an extra.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

import msgspec

from dfc.checksum import Buffer
from dfc.errors import Conflict
from dfc.formats.base import (
    KEY_FIELD,
    FileFormat,
    FormatError,
    Readable,
    SampleData,
    SeekableFile,
    Sink,
    key_without,
    need,
    sample_of,
)
from dfc.limits import PARQUET_ROW_GROUP_BYTES, PARQUET_ROW_GROUP_ROWS

LAYOUTS_KEY: Final = b"dfc.members"
DEFAULT_LEVEL: Final = 1  # of zstd; most samples are compressed already, and it gives up on them soon
_BATCH_ROWS: Final = 64  # read at a time: their values are in memory together
_READ_BYTES: Final = 1 << 20

Ordinal = Annotated[int, msgspec.Meta(ge=0)]


class Layouts(msgspec.Struct, frozen=True):
    """The contents of the metadata `dfc.members`."""

    layouts: list[list[str]]
    runs: list[tuple[Ordinal, Ordinal]]


class SinkFile:
    """A sink as the file object that the library writes to."""

    closed = False

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._at = 0

    def write(self, data: Buffer) -> int:
        self._sink.write(bytes(data))  # the library's memory is not ours to keep
        self._at += len(data)
        return len(data)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


class ParquetWriter:
    """`columns` are the extensions of the whole dataset, so that all its files have one schema. `level` 0 leaves the values as
    they are, 1 to 19 are zstd's. The same samples, columns and library give the same bytes."""

    def __init__(self, sink: Sink, columns: Sequence[str], level: int | None = None) -> None:
        need("pyarrow")
        import pyarrow
        import pyarrow.parquet

        if KEY_FIELD in columns:
            raise Conflict(f"a sample has a field {KEY_FIELD!r}, which Parquet files use for the key")
        self._arrow: Any = pyarrow
        self._columns = tuple(columns)
        fields = [pyarrow.field(KEY_FIELD, pyarrow.string(), nullable=False)]
        self._schema: Any = pyarrow.schema([*fields, *(pyarrow.field(name, pyarrow.binary()) for name in columns)])
        level = DEFAULT_LEVEL if level is None else level
        self._file: Any = pyarrow.PythonFile(SinkFile(sink), mode="w")
        self._writer: Any = pyarrow.parquet.ParquetWriter(
            self._file, self._schema, compression="zstd" if level else "none", compression_level=level or None,
            use_dictionary=False, write_statistics=[KEY_FIELD],
        )  # fmt: skip
        self._rows: list[dict[str, bytes]] = []
        self._keys: list[str] = []
        self._bytes = 0
        self._numbers: dict[tuple[str, ...], int] = {}
        self._runs: list[list[int]] = []

    def add(self, sample: SampleData) -> None:
        row = {member.ext: member.data for member in sample.members}
        if not row.keys() <= set(self._columns):
            raise Conflict(f"the sample {sample.key!r} has fields without a column: {sorted(row.keys() - set(self._columns))}")
        self._keys.append(sample.key)
        self._rows.append(row)
        self._bytes += sum(map(len, row.values()))
        layout = tuple(member.name[len(sample.key) + 1 :] for member in sample.members)
        number = self._numbers.setdefault(layout, len(self._numbers))
        if self._runs and self._runs[-1][0] == number:
            self._runs[-1][1] += 1
        else:
            self._runs.append([number, 1])
        if self._bytes >= PARQUET_ROW_GROUP_BYTES or len(self._rows) >= PARQUET_ROW_GROUP_ROWS:
            self._flush()

    def finish(self) -> None:
        self._flush()
        layouts = {"layouts": list(self._numbers), "runs": self._runs}
        self._writer.add_key_value_metadata({LAYOUTS_KEY: msgspec.json.encode(layouts)})
        self._writer.close()
        self._file.flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        arrays = [self._arrow.array(self._keys, self._arrow.string())]
        for name in self._columns:
            arrays.append(self._arrow.array([row.get(name) for row in self._rows], self._arrow.binary()))
        table = self._arrow.Table.from_arrays(arrays, schema=self._schema)
        self._writer.write_table(table, row_group_size=len(self._rows))
        self._rows, self._keys, self._bytes = [], [], 0


def parquet_fields(source: Readable, file: str) -> list[str]:
    """The names of the columns as extensions. FormatError when it is not a Parquet file."""
    return [_extension(name) for name in _open(source, file).schema_arrow.names if name != KEY_FIELD]


def parquet_columns(source: Readable, file: str) -> list[str]:
    """The names of the columns as they are. FormatError when it is not a Parquet file."""
    return list(_open(source, file).schema_arrow.names)


def read_parquet(source: Readable, file: str) -> Iterator[SampleData]:
    """The samples of a file in order. FormatError when it cannot be read.

    Of other programs' files: without `__key__` keys are made of file name and ordinal; texts become UTF-8, a struct with
    `bytes` in it (as Hugging Face's images) those bytes, all else JSON; slashes in names become dots.
    """
    import pyarrow

    parquet = _open(source, file)
    layouts = iter(_layouts(parquet, file))
    number = 0
    try:
        for group in range(parquet.metadata.num_row_groups):
            for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=[group], use_threads=False):
                names = batch.schema.names
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    values = dict(zip(names, row, strict=True))
                    key = values.pop(KEY_FIELD, None)
                    if key is not None and not isinstance(key, str):
                        raise FormatError(file, f"row {number}: the key is not text")
                    fields = _fields(values, next(layouts, None), file, number)
                    yield sample_of(file, number, key_without(file, number) if key is None else key, fields)
                    number += 1
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise FormatError(file, f"row {number} cannot be read ({str(error)[:200]})") from None


def _open(source: Readable, file: str) -> Any:
    need("pyarrow")
    import pyarrow
    import pyarrow.parquet

    try:
        handle = pyarrow.PythonFile(SeekableFile(source, file), mode="r")
        return pyarrow.parquet.ParquetFile(handle, buffer_size=_READ_BYTES, pre_buffer=False)
    except (pyarrow.ArrowException, OSError, ValueError, MemoryError) as error:
        raise FormatError(file, f"not a Parquet file, or a damaged one ({str(error)[:200]})") from None


def _layouts(parquet: Any, file: str) -> Iterator[list[str]]:
    """The layout of each row; empty for files that DFC did not write."""
    stored = (parquet.metadata.metadata or {}).get(LAYOUTS_KEY)
    if stored is None:
        return
    try:
        found = msgspec.json.decode(stored, type=Layouts)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(file, f"its metadata {LAYOUTS_KEY.decode()} cannot be read ({error})") from None
    if sum(count for _, count in found.runs) != parquet.metadata.num_rows:
        raise FormatError(file, f"its metadata {LAYOUTS_KEY.decode()} is for another number of rows")
    for layout, count in found.runs:
        if layout >= len(found.layouts):
            raise FormatError(file, f"its metadata {LAYOUTS_KEY.decode()} refers to a layout that does not exist")
        for _ in range(count):
            yield found.layouts[layout]


def _fields(values: dict[str, Any], layout: list[str] | None, file: str, number: int) -> Iterator[tuple[str, bytes]]:
    present = {name: value for name, value in values.items() if value is not None}
    if layout is None:
        yield from ((_extension(name), _bytes(value)) for name, value in present.items())
        return
    if sorted(written.lower() for written in layout) != sorted(present):
        raise FormatError(file, f"row {number}: its fields do not match the metadata {LAYOUTS_KEY.decode()}")
    yield from ((written, _bytes(present[written.lower()])) for written in layout)


def _extension(name: str) -> str:
    return name.replace("/", ".")


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and isinstance(inner := value.get("bytes"), bytes):
        return inner
    return msgspec.json.encode(value)


FORMAT: Final = FileFormat(
    endings=(".parquet",),
    writer=lambda sink, options: ParquetWriter(sink, options.columns, options.level),
    read=read_parquet,
    levels=range(20),
    library="pyarrow",
    fields=parquet_fields,
    wants_columns=True,
)
