"""An index made from the columns of who wrote the archive is that which its bytes give, whatever else is among them."""

from __future__ import annotations

import random
import tempfile
from typing import Any

import numpy as np
import pytest

from dfc.tar.header import TarError
from dfc.tar.index.builder import IndexBuilder, open_builder
from dfc.tar.samples import member_header
from dfc.tar.scanner import PlainFiles

VERSION, CHECKSUM = "0" * 18, "0" * 32


class Window:
    """Bytes of whole members, and what they are, where one header is enough for each."""

    def __init__(self, chance: random.Random, first: int, kind: str) -> None:
        self.data, names, sizes, heads = bytearray(), [], [], []
        for number in range(first, first + chance.randrange(1, 200)):
            ending = chance.choice(("jpg", "cls", "json"))
            name = f"{'ä' if kind == 'odd letters' else 'd'}/{number // 2:06d}.{ending}{number % 2}"
            name += "x" * chance.randrange(200) if kind == "long names" and chance.random() < 0.1 else ""
            size = chance.choice((0, 1, 511, 512, 513, 9000))
            heads.append(len(self.data))
            names.append(name.encode())
            sizes.append(size)
            self.data += member_header(name, size) + chance.randbytes(size) + bytes(-size % 512)
        self.files = None
        if all(len(name) <= 100 for name in names):
            text = np.array(names, dtype="S100").view(np.uint8).reshape(len(names), 100)[:, : max(map(len, names))]
            self.files = PlainFiles.of(text, np.array(sizes), np.array(heads))


def index_of(windows: list[tuple[bytes, PlainFiles | None]], builder: Any = IndexBuilder) -> tuple[bytes, Any]:
    with tempfile.TemporaryFile() as file, tempfile.TemporaryDirectory() as directory:
        made = builder(file, directory) if builder is IndexBuilder else open_builder("tar", file, directory)
        for data, files in windows:
            made.feed(data, files)
        summary = made.finish(VERSION, sum(len(data) for data, _ in windows), CHECKSUM)
        file.seek(0)
        return file.read(), summary


@pytest.mark.parametrize("kind", ["plain", "odd letters", "long names"])
@pytest.mark.parametrize("builder", [IndexBuilder, open_builder])
@pytest.mark.parametrize("seed", range(4))
def test_the_same_index(kind, builder, seed):
    chance, windows, first = random.Random(seed), [], 0
    for _ in range(12):
        window = Window(chance, first, kind)
        first += 200
        # Some come without columns, some of them in pieces that end anywhere: what follows must not be misled.
        if chance.random() < 0.3:
            cut = chance.randrange(len(window.data))
            windows += [(bytes(window.data[:cut]), None), (bytes(window.data[cut:]), None)]
        else:
            windows.append((bytes(window.data), window.files))
    windows.append((bytes(1024), None))
    assert any(files is not None for _, files in windows) or kind == "long names"
    assert index_of(windows, builder) == index_of([(data, None) for data, _ in windows], builder)


def test_columns_are_used(monkeypatch):
    """Otherwise the test above compares two of the same."""
    window = Window(random.Random(1), 0, "plain")
    walked = []
    monkeypatch.setattr("dfc.tar.scanner.HeaderBatch.walk", lambda self, view, start, offset: walked.append(start) or offset)
    index_of([(bytes(window.data), window.files), (bytes(1024), None)])
    assert walked == [len(window.data)]


@pytest.mark.parametrize("lie", ["shorter", "longer", "a gap", "not from the start"])
def test_columns_that_do_not_fill_the_bytes_are_not_used(lie):
    window = Window(random.Random(2), 0, "plain")
    data, files = bytes(window.data), window.files
    sizes, heads = files.sizes.copy(), files.heads.copy()
    if lie == "shorter":
        sizes[-1] += 512
    elif lie == "longer":
        data += member_header("z", 0)
    elif lie == "a gap":
        sizes[3] += 512
    else:
        heads += 512
    told = PlainFiles.of(files.text, sizes, heads)
    end = (bytes(1024), None)
    assert index_of([(data, told), end]) == index_of([(data, None), end])


def test_columns_in_the_middle_of_a_member_are_not_used():
    window = Window(random.Random(3), 0, "plain")
    inside = member_header("big", len(window.data))
    end = (bytes(1024), None)
    assert index_of([(inside, None), (bytes(window.data), window.files), end])[1].members == 1


def test_columns_after_the_end_are_not_used():
    window = Window(random.Random(4), 0, "plain")
    windows = [(member_header("a", 0) + bytes(1024), None), (bytes(window.data), window.files)]
    found = index_of(windows)
    assert found == index_of([(data, None) for data, _ in windows])
    assert found[1].members == 1


def test_columns_between_a_long_name_and_its_member_are_not_used():
    window = Window(random.Random(5), 0, "plain")
    long_name = member_header("n" * 300, 0)[:-512]  # all but the last header
    windows = [(long_name, None), (bytes(window.data), window.files), (bytes(1024), None)]
    assert index_of(windows) == index_of([(data, None) for data, _ in windows])


def test_a_broken_archive_stays_broken():
    window = Window(random.Random(6), 0, "plain")
    with tempfile.TemporaryFile() as file, tempfile.TemporaryDirectory() as directory:
        builder = IndexBuilder(file, directory)
        builder.feed(b"\xff" * 512)
        builder.feed(bytes(window.data), window.files)
        with pytest.raises(TarError):
            builder.finish(VERSION, 512 + len(window.data), CHECKSUM)
