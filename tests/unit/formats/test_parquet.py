"""Parquet: what pyarrow sees, absent and empty, layouts, foreign files, damage."""

from __future__ import annotations

import io
import random

import msgspec
import pyarrow
import pyarrow.parquet
import pytest
from format_files import ODD_SAMPLES, MemorySource, contents, plain, sample, written

from dfc.errors import Conflict
from dfc.formats import base, parquet
from dfc.formats.base import ExtraMissing, FormatError
from dfc.formats.parquet import LAYOUTS_KEY, ParquetWriter, parquet_fields, read_parquet

COLUMNS = ("bin", "cls", "jpg", "json", "mp", "seg.png", "txt")


def read(data: bytes):
    return contents(read_parquet(MemorySource(data), "b/x-1.parquet"))


def table_of(table: pyarrow.Table) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(table, sink)
    return sink.getvalue()


@pytest.mark.parametrize("level", [None, 0, 1, 19])
def test_there_and_back(level):
    data = written(ParquetWriter, ODD_SAMPLES, COLUMNS, level)
    assert written(ParquetWriter, ODD_SAMPLES, COLUMNS, level) == data
    assert read(data) == plain(ODD_SAMPLES)
    assert parquet_fields(MemorySource(data), "x") == list(COLUMNS)


def test_what_pyarrow_reads():
    data = written(ParquetWriter, ODD_SAMPLES, COLUMNS)
    table = pyarrow.parquet.read_table(io.BytesIO(data))
    assert table.schema.names == ["__key__", *COLUMNS]
    assert [str(column.type) for column in table.schema] == ["string"] + ["binary"] * len(COLUMNS)
    rows = table.to_pylist()
    assert [row["__key__"] for row in rows] == [each.key for each in ODD_SAMPLES]
    assert rows[1]["seg.png"] == b""
    assert rows[0]["seg.png"] is None
    layouts = msgspec.json.decode(pyarrow.parquet.read_metadata(io.BytesIO(data)).metadata[LAYOUTS_KEY])
    assert layouts["layouts"][0] == ["jpg", "cls"]
    assert layouts["runs"] == [[0, 1], [1, 1], [2, 1], [3, 1]]


def test_order_and_case_of_members():
    samples = [sample("a", JPG=b"1", cls=b"2"), sample("b", cls=b"3", jpg=b"4"), sample("c", JPG=b"5", cls=b"6")]
    assert read(written(ParquetWriter, samples, ("cls", "jpg"))) == plain(samples)


def test_row_groups_are_bounded(monkeypatch):
    monkeypatch.setattr(parquet, "PARQUET_ROW_GROUP_BYTES", 10_000)
    monkeypatch.setattr(parquet, "PARQUET_ROW_GROUP_ROWS", 20)
    samples = [sample(f"{number:04d}", bin=bytes(4000 if number < 10 else 1)) for number in range(100)]
    data = written(ParquetWriter, samples, ("bin",))
    metadata = pyarrow.parquet.read_metadata(io.BytesIO(data))
    rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert max(rows) == 20
    assert rows[0] == 3
    assert read(data) == plain(samples)


def test_no_samples():
    data = written(ParquetWriter, [], ("jpg",))
    assert pyarrow.parquet.read_table(io.BytesIO(data)).schema.names == ["__key__", "jpg"]
    assert read(data) == []


def test_fields_that_are_no_columns():
    with pytest.raises(Conflict, match=r"without a column: \['cls'\]"):
        written(ParquetWriter, [sample("a", cls=b"1")], ("jpg",))
    with pytest.raises(Conflict, match="for the key"):
        written(ParquetWriter, [], ("__key__",))


def test_files_of_others():
    table = pyarrow.table(
        {
            "image": [{"bytes": b"jpeg", "path": "x"}, None],
            "label": [3, 4],
            "text/en": ["ü", ""],
            "score": [0.5, None],
            "boxes": [[1, 2], []],
        }
    )
    assert read(table_of(table)) == [
        ("x-1-000000000", [("x-1-000000000." + name, data) for name, data in (
            ("image", b"jpeg"), ("label", b"3"), ("text.en", "ü".encode()), ("score", b"0.5"), ("boxes", b"[1,2]"))]),
        ("x-1-000000001", [("x-1-000000001." + name, data) for name, data in (
            ("label", b"4"), ("text.en", b""), ("boxes", b"[]"))]),
    ]  # fmt: skip


@pytest.mark.parametrize("key", ["a.b", "../x", "", "d/.h", "n\0"])
def test_keys_that_are_none(key):
    with pytest.raises(FormatError, match=r"b/x-1\.parquet"):
        read(table_of(pyarrow.table({"__key__": [key], "txt": [b"1"]})))


@pytest.mark.parametrize(
    "layouts",
    [
        b"{", b"[]", b'{"layouts":[["cls"]],"runs":[[0,1]]}', b'{"layouts":[["cls"]],"runs":[[7,2]]}',
        b'{"layouts":[["cls","x"]],"runs":[[0,2]]}', b'{"layouts":[["cls"]],"runs":[[0,-2],[0,4]]}',
    ],
)  # fmt: skip
def test_metadata_that_lies(layouts):
    table = pyarrow.table({"__key__": ["a", "b"], "cls": [b"1", b"2"]}).replace_schema_metadata({LAYOUTS_KEY: layouts})
    with pytest.raises(FormatError, match=r"dfc\.members"):
        read(table_of(table))


def test_damage_is_an_error_and_never_a_crash():
    data = written(ParquetWriter, [sample(f"{n}", txt=b"hello" * n, cls=b"1") for n in range(30)], ("cls", "txt"))
    draw = random.Random(1)
    errors = 0
    for _ in range(300):
        damaged = bytearray(data)
        damaged[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        try:
            read(bytes(damaged))
        except FormatError:
            errors += 1
    assert errors > 20
    for end in (0, 4, 11, len(data) // 2, len(data) - 1):
        with pytest.raises(FormatError):
            read(data[:end])


def test_without_the_library(monkeypatch):
    monkeypatch.setattr(base, "find_spec", lambda name: None)
    with pytest.raises(ExtraMissing, match="pip install pyarrow"):
        written(ParquetWriter, [], ())
