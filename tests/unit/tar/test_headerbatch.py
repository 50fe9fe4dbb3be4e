"""Headers that are checked many together give what they give one by one, whatever the pieces they come in."""

from __future__ import annotations

import io
import random
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from job_shards import tar_of

from dfc.tar import scanner as headerbatch
from dfc.tar.header import FILE, TarError, stored_sum
from dfc.tar.index import builder as index_builder
from dfc.tar.index.builder import cut_files
from dfc.tar.samples import SampleGrouper
from dfc.tar.scanner import Entry, HeaderBatch, PlainFiles, Scanner

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def archive(kind: str, seed: int, members: int = 1500) -> bytearray:
    """Files, directories, links, long names, fields that only some formats have."""
    chance, stream = random.Random(seed), io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=FORMATS[kind]) as tar:
        for number in range(members):
            info = tarfile.TarInfo(f"{number:05d}.{'x' * chance.choice((1, 3, 80))}")
            info.size = chance.choice((0, 1, 511, 512, 513, 3000))
            odd = chance.random()
            if odd < 0.03:
                info.type, info.size = tarfile.DIRTYPE, 0
            elif odd < 0.06:
                info.type, info.linkname, info.size = tarfile.SYMTYPE, "elsewhere", 0
            elif odd < 0.09:
                info.name = f"{'d' * 90}/{number}.{'y' * 90}"
            elif odd < 0.12:
                info.mtime = 0.5
            tar.addfile(info, io.BytesIO(bytes(info.size)))
    return bytearray(stream.getvalue())


class Patient:
    """A scanner that gives files in columns, and what came of it in the order of the archive."""

    def __init__(self) -> None:
        self.found: list[Entry] = []
        self.scanner = Scanner(take_files=self._take)

    def _take(self, before: list[Entry], files: PlainFiles) -> None:
        self.found += before + files.entries()

    def entries(self, data: bytes | bytearray, piece: int, chance: random.Random | None = None) -> list[Entry]:
        at = 0
        while at < len(data):
            size = piece if chance is None else chance.randrange(1, 2 * piece)
            self.found += self.scanner.feed(memoryview(data)[at : at + size])
            at += size
        self.found += self.scanner.finish()
        return self.found


def entries(data: bytes | bytearray, piece: int = 1 << 30) -> list[Entry]:
    """By a scanner that gives them one by one."""
    scanner, found = Scanner(), []
    for at in range(0, len(data), piece):
        found += scanner.feed(memoryview(data)[at : at + piece])
    return found + scanner.finish()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("size", [100, 5_000, 1 << 20])
def test_a_patient_scanner_finds_the_same(kind: str, size: int) -> None:
    for seed in range(3):
        data, chance = archive(kind, seed), random.Random(seed)
        eager, patient = Scanner(), Patient()
        wanted = eager.feed(data) + eager.finish()
        assert len(wanted) == 1500
        assert patient.entries(data, size, chance) == wanted
        assert (patient.scanner.oddities, patient.scanner.last_name) == (eager.oddities, eager.last_name)


def test_most_headers_of_a_dataset_are_checked_together(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    take = HeaderBatch.take

    def counting(self: HeaderBatch) -> tuple[PlainFiles, int | None]:
        taken.append(len(self))
        return take(self)

    monkeypatch.setattr(HeaderBatch, "take", counting)
    data = tar_of([(f"{number}.jpg", bytes(3000)) for number in range(2000)], tarfile.USTAR_FORMAT)
    assert len(Patient().entries(data, 1 << 20)) == 2000
    assert sum(taken) >= 1990
    assert max(taken) >= 250


@pytest.mark.parametrize("number", [0, 1, 700, 1499])
def test_a_wrong_checksum_is_found_at_the_same_header(number: int) -> None:
    data = archive("ustar", 1)
    head = entries(data)[number][2]
    data[head + 20] ^= 1
    told = []
    for read in (entries, Patient().entries):
        with pytest.raises(TarError) as raised:
            read(data, 100_000)
        told.append((str(raised.value), raised.value.offset))
    assert told[0] == told[1]
    assert told[1][1] == head


def test_sums_of_signed_bytes_and_rubbish_behind_a_name() -> None:
    """As old tars wrote them, and some tools leave them."""
    data = archive("ustar", 2)
    heads = [entry[2] for entry in entries(data) if entry[1] == 0]
    for head in (heads[5], heads[900]):
        data[head + 90 : head + 94] = b"junk"
        _sum(data, head)
    data[heads[7]] = 0xE9
    _sum(data, heads[7], signed=True)
    eager, patient = Scanner(), Patient()
    wanted = eager.feed(data) + eager.finish()
    assert patient.entries(data, 70_000) == wanted
    assert patient.scanner.oddities == eager.oddities == [("data after the NUL of a name is ignored", heads[5])]


def _sum(data: bytearray, head: int, signed: bool = False) -> None:
    data[head + 148 : head + 156] = b" " * 8
    block = data[head : head + 512]
    data[head + 148 : head + 156] = b"%06o\0 " % (sum(block) - 256 * signed * sum(byte > 127 for byte in block))


FIELDS = [
    b"012345\0 ", b"777777\0 ", b"12345 \0 ", b" 12345\0 ", b"0012345\0", b"00123456", b"012348\0 ", b"01234/\0 ",
    b"-12345\0 ", b"1_2345\0 ", b"+12345\0 ", b"012345  ", b"012345\0\0", b"\0" * 8, b" " * 8, b"\xff" * 8,
    b"0\x2f0000\0 ", b"\x38/0000\0 ",
]  # fmt: skip


def test_a_checksum_is_read_alike_alone_and_among_others() -> None:
    chance = random.Random(3)
    fields = list(FIELDS)
    for _ in range(20_000):
        field = bytearray(chance.choice(FIELDS))
        for _ in range(chance.randrange(3)):
            field[chance.randrange(8)] = chance.choice((chance.randrange(256), *b"0789/ \0"))
        fields.append(bytes(field))
    table = np.zeros((len(fields), 512), dtype=np.uint8)
    table[:, 148:156] = np.frombuffer(b"".join(fields), dtype=np.uint8).reshape(-1, 8)
    assert headerbatch._stored_sums(table).tolist() == [stored_sum(field) for field in fields]


@pytest.mark.parametrize("runs", [[0, 3, 1], [5, 1, 0, 7], [1] * 20, [300, 2, 300]])
def test_names_with_a_prefix_among_others(runs: list[int]) -> None:
    """Which the walk passes over first, and then goes back to."""
    listed: list[str] = []
    for number, plain in enumerate(runs):
        listed += [*(f"{number}-{i}.x" for i in range(plain)), f"{'d' * 120}/{number}.x"]
    data = tar_of([(name, bytes(700)) for name in listed], tarfile.USTAR_FORMAT)
    for piece in (700, 5000, 1 << 20):
        found = Patient().entries(data, piece)
        assert found == entries(data)
        assert len(found) == len(listed)


@pytest.mark.parametrize("form", [b"%012o", b"%011o ", b"%011o\0", b"%10o \0", b" %010o\0", b"%09o   "])
def test_sizes_in_other_forms(form: bytes) -> None:
    data = archive("ustar", 4)
    wanted = entries(data)
    for _, _, head, offset, size in wanted[10::9]:
        if offset == head + 512:
            data[head + 124 : head + 136] = form % size
            _sum(data, head)
    assert entries(data) == wanted
    for piece in (5000, 1 << 20):
        assert Patient().entries(data, piece) == wanted


@pytest.mark.parametrize("odd", ["v1.0/{}.jpg", "{}.d/x.jpg", "d/.{}.jpg", "__{}__.jpg", "{}", "{}.JPG"])
def test_names_that_are_odd_in_one_way(odd: str) -> None:
    for some in (range(500), range(400, 500)):  # all of them, or the last ones
        names = [odd.format(i) if i in some else f"{i}.jpg" for i in range(500)]
        joined = np.array(names, dtype="S")
        text = joined.view(np.uint8).reshape(500, -1)
        sizes = np.zeros(500, dtype=np.int64)
        chars, starts = cut_files(SampleGrouper(), PlainFiles.of(text, sizes, 512 * np.arange(500)))
        assert (chars.tolist(), starts.tolist()) == tuple(map(list, SampleGrouper().cut(names, [FILE] * 500)))


def test_a_table_that_is_wider_than_its_names() -> None:
    """As where longer names stand elsewhere in the columns that a job cuts it from."""
    listed = ["v1.0/x.jpg", *(f"d/{number // 2}.{'xY'[number % 2]}" for number in range(399))]
    text = np.zeros((400, 700), dtype=np.uint8)
    cells = np.array(listed, dtype="S").view(np.uint8).reshape(400, -1)
    text[:, : cells.shape[1]] = cells
    for first in (0, 1):  # with a slash behind a dot, so that they are cut one by one, and without
        files = PlainFiles.of(text[first:], np.zeros(400 - first, dtype=np.int64), 512 * np.arange(400 - first))
        chars, starts = cut_files(SampleGrouper(), files)
        wanted = SampleGrouper().cut(listed[first:], [FILE] * (400 - first))
        assert (chars.tolist(), starts.tolist()) == tuple(map(list, wanted))


def names(chance: random.Random, count: int) -> list[str]:
    """As datasets have them, and worse: keys and extensions again, capitals, dots and lines where they mean something."""
    odd = [
        "a.", ".a", "noext", "__meta__.json", "__x/a.jpg", "d/.hidden", "d.e/f", "é.jpg", "_.jpg", "__", "a/b.c/d.jpg", "a..b",
    ]  # fmt: skip
    found: list[str] = []
    while len(found) < count:
        key = f"{chance.choice(('', 'd/', 'd/e/'))}{chance.randrange(count):04d}"
        style = chance.random()
        if style < 0.9:
            found += [f"{key}.{end}" for end in ("jpg", "cls", "seg.PNG", "json")[: chance.randrange(1, 5)]]
        elif style < 0.94:
            found += [f"{key}.JPG", f"{key}.jpg", f"{key}.cls"]
        elif style < 0.96:
            found += [f"{key}.{number}" for number in range(chance.randrange(10, 40))]
        elif style < 0.98:
            found.append(chance.choice(odd))
        else:
            found += [f"{key}.x"] * 3
    return found[:count]


@pytest.mark.parametrize("worst", [False, True])
def test_an_index_is_the_same_by_columns_and_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worst: bool) -> None:
    cut = []

    def counting(grouper: SampleGrouper, files: PlainFiles) -> Any:
        cut.append(len(files))
        return cut_files(grouper, files)

    monkeypatch.setattr(index_builder, "cut_files", counting)
    for seed in range(4):
        chance = random.Random(seed)
        listed = [f"{i:04d}.{ext}" for i in range(1000) for ext in ("jpg", "Cls", "seg.png")]
        if worst:
            listed = names(chance, 3000)
        data = tar_of([(name, bytes(chance.choice((0, 7, 512, 2000)))) for name in listed], tarfile.USTAR_FORMAT)
        piece = chance.choice((1 << 20, 300_000, 20_000))
        made = []
        for smallest in (1, 1 << 30):
            monkeypatch.setattr(index_builder, "_COLUMNS_MIN", smallest)
            path = tmp_path / "index"
            with path.open("w+b") as file:
                builder = index_builder.IndexBuilder(file, str(tmp_path))
                for at in range(0, len(data), piece):
                    builder.feed(data[at : at + piece])
                summary = builder.finish("1", len(data), "0" * 32)
            made.append((path.read_bytes(), summary))
        assert made[0] == made[1], seed
    assert sum(cut) > 4 * 1000
