"""Where samples lie, many at a time: the same as one at a time, and nothing outside of the archive."""

from __future__ import annotations

import io
import random
import tarfile
from pathlib import Path

import numpy as np
import pytest

from dfc.tar.index import IndexBuilder, IndexCorrupt, ShardIndex
from dfc.tar.index_format import SAMPLE
from dfc.tar.spans import read_spans


def index_of(path: Path, files: list[tuple[str, int]], form: int) -> tuple[ShardIndex, bytes]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, size in files:
            info = tarfile.TarInfo(name)
            info.size = size
            archive.addfile(info, io.BytesIO(bytes(size)))
    content = buffer.getvalue()
    with path.open("w+b") as file:
        builder = IndexBuilder(file, str(path.parent))
        builder.feed(content)
        builder.finish("v", len(content), "c")
    return ShardIndex.open(path), content


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("seed", range(4))
def test_the_same_as_one_at_a_time(tmp_path: Path, seed: int, form: int) -> None:
    draw = random.Random(seed)
    files = []
    for number in range(60):
        key = f"d/{number:03d}{'y' * draw.choice((0, 0, 90))}"
        for ext in draw.sample(("a", "b", "c.d"), draw.randrange(1, 4)):
            files.append((f"{key}.{ext}", draw.choice((0, 1, 512, 5000))))
            if draw.random() < 0.15:
                files.append(("noise", draw.randrange(2000)))
    index, content = index_of(tmp_path / "x.idx", files, form)
    numbers = np.array([draw.randrange(index.sample_count) for _ in range(500)], dtype=np.int64)
    spans = index.spans(numbers)
    assert 0 < spans.solid.sum() < len(numbers)
    for row, number in enumerate(numbers.tolist()):
        sample = index.sample_at(number)
        assert (spans.starts[row], spans.ends[row]) == (sample.start, sample.end)
        pieces = [(sample.start, sample.end)] if spans.solid[row] else spans.pieces[row]
        archive = b"".join(content[start:end] for start, end in pieces) + bytes(1024)
        with tarfile.open(fileobj=io.BytesIO(archive)) as found:
            assert [(entry.name, entry.size) for entry in found] == [(m.name, m.size) for m in sample.members]
    assert len(index.spans(np.zeros(0, dtype=np.int64)).starts) == 0
    index.close()


def test_ordinals_that_are_not_there(tmp_path: Path) -> None:
    index, _ = index_of(tmp_path / "x.idx", [("a.x", 1), ("b.x", 2)], tarfile.USTAR_FORMAT)
    for number in (-1, 2, 2**62):
        with pytest.raises(IndexError):
            index.spans(np.array([0, number], dtype=np.int64))
    index.close()


def test_tables_that_lead_outside(tmp_path: Path) -> None:
    """As if a checksum had matched by chance: an error, never a wrong place."""
    path = tmp_path / "x.idx"
    index, content = index_of(path, [("a.x", 1000), ("b.x", 2000)], tarfile.USTAR_FORMAT)
    data, start, end = path.read_bytes(), index._samples_start, index._records_end
    for offset, position in ((0, 0), (0, end - 1), (0, 2**63), (2**63 - 1, 512), (len(content) + 512, 512)):
        harmed = bytearray(data)
        SAMPLE.pack_into(harmed, start, offset, position)
        with pytest.raises(IndexCorrupt):
            read_spans(memoryview(harmed), start, 2, end, len(content), np.array([0], dtype=np.int64))
    index.close()
