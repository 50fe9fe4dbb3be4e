"""Samples as archives: what is packed comes back, what would not is refused before a byte is written."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_shards import members_of

from dfc.inputs.base import SampleBroken
from dfc.inputs.writers import SampleArchive, kind_for, pack
from dfc.tar.compression import Decompressor
from dfc.tar.samples import SampleGrouper, split_key

NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=30)


def archived(samples: list[dict[str, Any]], kind: Any = None) -> bytes:
    file = io.BytesIO()
    archive = SampleArchive(file, kind)
    last = None
    for sample in samples:
        record = pack(sample, False, last)
        size = archive.size_with(record)
        archive.add(record)
        last = record.key
    archive.finish()
    if samples:
        assert archive.size == size
    return file.getvalue()


def read_back(data: bytes) -> list[dict[str, Any]]:
    """With the tar reader of the standard library and the one rule for keys."""
    grouper = SampleGrouper()
    found: list[dict[str, Any]] = []
    for name, content in members_of(data):
        key, extension = split_key(name)
        if grouper.starts_sample(name):
            found.append({"__key__": key})
        found[-1][extension] = content
    return found


@given(st.lists(st.tuples(NAMES, st.dictionaries(NAMES, st.binary(max_size=2000), max_size=4)), max_size=5))
def test_what_is_packed_comes_back(given: list[tuple[str, dict[str, bytes]]]) -> None:
    """Whatever keys and fields there are: a sample is refused, or read back as it was."""
    kept: list[dict[str, Any]] = []
    for key, fields in given:
        sample = {"__key__": key, **fields}
        try:
            pack(sample, False, kept[-1]["__key__"] if kept else None)
        except SampleBroken:
            continue
        kept.append(sample)
    wanted = [
        {"__key__": sample["__key__"], **{ext.lower(): data for ext, data in sample.items() if not ext.startswith("_")}}
        for sample in kept
    ]
    assert read_back(archived(kept)) == wanted


@pytest.mark.parametrize("kind", ["gz", "zst", "lz4", "bz2", "xz"])
def test_compressed_archives_are_those_archives(kind: str) -> None:
    samples = [{"__key__": f"{at:04d}", "txt": b"some text " * at, "cls": b"1"} for at in range(50)]
    data = archived(samples, kind)
    decompressor = Decompressor(kind)
    plain = b"".join(decompressor.feed(data))
    assert plain == archived(samples)
    assert len(data) < len(plain)


def test_equal_samples_give_equal_bytes_in_any_order_of_fields() -> None:
    one, other = {"__key__": "a", "x": b"1", "b": b"2"}, {"b": b"2", "__source__": "y", "x": b"1", "__key__": "a"}
    assert archived([one]) == archived([other])


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"txt": b""}, "__key__"),
        ({"__key__": 7, "txt": b""}, "__key__"),
        (
            {"__key__": "d.1/a.b", "txt": b""},
            "field 'txt' of sample 'd.1/a.b' could not be read back: keys must not contain dots",
        ),
        ({"__key__": "d.1/", "txt": b""}, "field 'txt' of sample 'd.1/' could not be read back$"),
        ({"__key__": "__meta__/a", "txt": b""}, "could not be read back"),
        ({"__key__": "a", "x/y": b""}, "could not be read back"),
        ({"__key__": "a", "txt": b"", "TXT": b""}, "twice"),
        ({"__key__": "a", "txt": 7}, "must be bytes or str, not int"),
        ({"__key__": "a"}, "has no fields"),
        ({"__key__": "a", "_hidden": b""}, "has no fields"),
        ({"__key__": "a\0b", "txt": b""}, "tar member"),
        ({"__key__": "x" * 5000, "txt": b""}, "tar member"),
        ({"__key__": "\udc80", "txt": b""}, "encode"),
        ({"__key__": "before", "txt": b""}, "previous sample"),
        ({"__key__": "a"} | {f"f{number}": b"" for number in range(4097)}, "4097 fields"),
    ],
)
def test_samples_that_would_not_come_back_are_refused(sample: dict[str, Any], message: str) -> None:
    with pytest.raises(SampleBroken, match=message) as caught:
        pack(sample, False, "before")
    assert caught.value.key == (sample.get("__key__") if isinstance(sample.get("__key__"), str) else "")


def test_memory_in_any_order_is_written_as_rows() -> None:
    rows = np.arange(6, dtype=np.uint8).reshape(2, 3)
    for array in (rows, np.asfortranarray(rows), np.repeat(rows, 2, axis=1)[:, ::2]):
        assert bytes(pack({"__key__": "a", "bin": array.data}, False, None).pieces[1]) == rows.tobytes()


def test_values_are_encoded_by_extension_or_function() -> None:
    record = pack({"__key__": "a", "cls": 7, "json": {"b": [1]}, "txt": "ü"}, True, None)
    assert record.pieces[1::3] == [b"7", b'{"b": [1]}', "ü".encode()]
    assert record.payload == 1 + 10 + 2
    record = pack({"__key__": "a", "x": 7}, lambda sample: {"__key__": sample["__key__"], "y": b"seven"}, None)
    assert record.pieces[1] == b"seven"
    with pytest.raises(SampleBroken, match="cannot be encoded"):
        pack({"__key__": "a", "cls": object()}, True, None)
    with pytest.raises(SampleBroken, match="cannot be encoded: division"):
        pack({"__key__": "a", "cls": 0}, lambda sample: {"cls": 1 / sample["cls"]}, None)


def test_raw_files_that_take_a_part_at_a_time() -> None:
    class Slow(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: Any, /) -> int | None:
            stored.write(memoryview(data)[:limit])
            return min(limit, len(data)) or None

    for kind in (None, "gz"):
        stored, whole, limit = io.BytesIO(), io.BytesIO(), 700
        for file in (Slow(), whole):
            archive = SampleArchive(file, kind)  # type: ignore[arg-type]
            archive.add(pack({"__key__": "a", "bin": random.Random(1).randbytes(100_000)}, False, None))
            archive.finish()
        assert stored.getvalue() == whole.getvalue()
    limit = 0
    with pytest.raises(BlockingIOError):
        SampleArchive(Slow(), None).finish()  # type: ignore[arg-type]


def test_the_name_says_how_it_is_compressed() -> None:
    names = ("a.tar", "a.tgz", "a.TAR.ZST", "a.bin", "", "http://h/a.tar.xz?signature=x.tgz")
    assert [kind_for(name, None) for name in names] == [None, "gz", "zst", None, None, "xz"]
    assert kind_for("a.tgz", False) is None
    assert kind_for("a.tar", "lz4") == "lz4"
