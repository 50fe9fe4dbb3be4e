"""Tables that do not fit into memory: sorted as a whole, with runs and blocks made tiny so that everything is merged."""

from __future__ import annotations

import io
import os
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfc.tar.index import spill
from dfc.tar.index.spill import HashTable, Spill, read_at, write_all

HASHES = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1)), max_size=300)


def table_of(hashes: list[int], directory: str) -> tuple[HashTable, list[tuple[int, int]]]:
    table = HashTable(directory)
    for start in range(0, len(hashes), 7):
        piece = hashes[start : start + 7]
        table.append(piece, range(start, start + len(piece)))
    out = bytearray()
    rows = table.write(out.extend)
    assert len(out) == 16 * rows == 16 * len(hashes)
    columns = array("Q", bytes(out))
    return table, list(zip(columns[:rows], columns[rows:], strict=True))


@settings(max_examples=60)
@given(hashes=HASHES, run=st.integers(1, 40), block=st.integers(1, 60))
def test_sorted_by_hash_and_arrival(tmp_path_factory, hashes, run, block):
    directory = str(tmp_path_factory.getbasetemp())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spill, "INDEX_RUN_ROWS", run)
        patch.setattr(spill, "INDEX_SORT_ROWS", block)
        patch.setattr(spill, "_READ_ROWS_MIN", 2)
        patch.setattr(spill, "INDEX_FLUSH_BYTES", 64)
        table, rows = table_of(hashes, directory)
    assert rows == sorted(zip(hashes, range(len(hashes)), strict=True))
    seen: set[int] = set()
    repeated = [number for number, value in enumerate(hashes) if value in seen or seen.add(value)]
    assert (table.repeated, table.first_repeated) == (len(repeated), repeated[0] if repeated else None)


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(spill, "INDEX_RUN_ROWS", 10)
    table = HashTable(str(tmp_path))
    table.append(range(100), range(100))
    assert os.listdir(tmp_path) == []  # the temporary file has no name
    table.close()
    table.close()


def test_spill_keeps_the_order(tmp_path, monkeypatch):
    monkeypatch.setattr(spill, "INDEX_FLUSH_BYTES", 100)
    kept = Spill(str(tmp_path))
    for number in range(100):
        kept.append(b"%04d" % number)
    pieces: list[bytes] = []
    kept.copy_to(lambda data: pieces.append(bytes(data)))
    assert b"".join(pieces) == b"".join(b"%04d" % number for number in range(100))
    assert max(map(len, pieces)) <= 104
    assert kept.size == 400
    kept.close()


def test_short_writes_are_continued():
    class Stingy(io.BytesIO):
        def write(self, data):
            return super().write(bytes(data)[:3])

    file = Stingy()
    write_all(file, b"0123456789")
    assert file.getvalue() == b"0123456789"


def test_a_short_temporary_file_is_an_error(tmp_path):
    path = tmp_path / "t"
    path.write_bytes(b"123")
    with open(path, "rb") as file:
        assert read_at(file.fileno(), 2, 1) == b"23"
        with pytest.raises(OSError, match="shorter"):
            read_at(file.fileno(), 3, 1)
