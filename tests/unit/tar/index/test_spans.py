"""Where samples lie, many at a time: the same as one at a time, and nothing outside of the archive."""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from job_shards import tar_of

from dfc.tar.index import columns
from dfc.tar.index.format import SAMPLE, IndexCorrupt, IndexFile
from dfc.tar.index.reader import ShardIndex


@pytest.fixture
def indexed(index_of) -> Callable[..., tuple[ShardIndex, bytes]]:
    """Makes an archive of names and sizes, and its index."""

    def make(files: list[tuple[str, int]], form: int = tarfile.GNU_FORMAT) -> tuple[ShardIndex, bytes]:
        content = tar_of([(name, bytes(size)) for name, size in files], form)
        return index_of(content)[1], content

    return make


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("seed", range(4))
def test_the_same_as_one_at_a_time(indexed, seed: int, form: int) -> None:
    draw = random.Random(seed)
    files = []
    for number in range(60):
        key = f"d/{number:03d}{'y' * draw.choice((0, 0, 90))}"
        for ext in draw.sample(("a", "b", "c.d"), draw.randrange(1, 4)):
            files.append((f"{key}.{ext}", draw.choice((0, 1, 512, 5000))))
            if draw.random() < 0.15:
                files.append(("noise", draw.randrange(2000)))
    index, content = indexed(files, form)
    numbers = np.array([draw.randrange(index.sample_count) for _ in range(500)], dtype=np.int64)
    spans = index.spans(numbers)
    assert 0 < spans.solid.sum() < len(numbers)
    for row, number in enumerate(numbers.tolist()):
        sample = index.sample_at(number)
        assert (spans.starts[row], spans.ends[row]) == (sample.start, sample.end)
        pieces = [(sample.start, sample.end)] if spans.solid[row] else spans.pieces[row]
        assert b"".join(content[a:b] for a, b in pieces) == b"".join(content[a:b] for a, b in sample.pieces)
        assert bool(spans.solid[row]) == (len(sample.pieces) == 1)
        archive = b"".join(content[start:end] for start, end in pieces) + bytes(1024)
        with tarfile.open(fileobj=io.BytesIO(archive)) as found:
            assert [(entry.name, entry.size) for entry in found] == [(m.name, m.size) for m in sample.members]
    assert len(index.spans(np.zeros(0, dtype=np.int64)).starts) == 0


def test_ordinals_that_are_not_there(indexed) -> None:
    index, _ = indexed([("a.x", 1), ("b.x", 2)])
    for number in (-1, 2, 2**62):
        with pytest.raises(IndexError):
            index.spans(np.array([0, number], dtype=np.int64))


def test_tables_that_lead_outside(indexed, tmp_path: Path) -> None:
    """As if a checksum had matched by chance: an error, never a wrong place."""
    index, content = indexed([("a.x", 1000), ("b.x", 2000)])
    index.verify()
    start, end = index._samples_start, index._records_end
    for offset, position in ((0, 0), (0, end - 1), (0, 2**63), (0, 2**63 + 512), (2**63 - 1, 512), (len(content) + 512, 512)):
        with (tmp_path / "0.idx").open("r+b") as file:
            file.seek(start)
            file.write(SAMPLE.pack(offset, position))
        with pytest.raises(IndexCorrupt):
            index.spans(np.array([0], dtype=np.int64))


def test_columns_of_more_than_fits_into_memory(indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several slices: the same as at once."""
    draw = random.Random(7)
    files = [(f"{number:04d}{'y' * draw.choice((0, 120))}.{ext}", number) for number in range(300) for ext in ("a", "b")]
    index, _ = indexed(files)
    numbers = np.array([draw.randrange(index.sample_count) for _ in range(1000)], dtype=np.int64)
    spans, arrays = index.spans(numbers), index.arrays(numbers)
    read: list[int] = []
    read_many = IndexFile.read_many

    def counted(self: IndexFile, starts: list[int], sizes: list[int]) -> bytes:
        read.append(sum(sizes))
        return read_many(self, starts, sizes)

    monkeypatch.setattr(IndexFile, "read_many", counted)
    monkeypatch.setattr(columns, "INDEX_COLUMNS_BYTES", 5000)
    sliced, sliced_arrays = index.spans(numbers), index.arrays(numbers)
    assert len(read) > 20  # one is of the table of samples, the others of their records
    assert (sliced.starts == spans.starts).all()
    assert (sliced.ends == spans.ends).all()
    assert (sliced.solid == spans.solid).all()
    assert sliced_arrays.name_list() == arrays.name_list()
    assert (sliced_arrays.first == arrays.first).all()
    assert (sliced_arrays.whole == arrays.whole).all()
