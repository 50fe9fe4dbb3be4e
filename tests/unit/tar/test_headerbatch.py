"""Headers that are checked many together give what they give one by one, whatever the pieces they come in."""

from __future__ import annotations

import io
import random
import tarfile

import pytest

from dfc.tar.header import TarError
from dfc.tar.headerbatch import Entry, HeaderBatch
from dfc.tar.scanner import Scanner

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


def entries(
    scanner: Scanner, data: bytes | bytearray, piece: int = 1 << 30, chance: random.Random | None = None
) -> list[Entry]:
    """Fed in pieces of this size, or of any up to twice that."""
    found, at = [], 0
    while at < len(data):
        size = piece if chance is None else chance.randrange(1, 2 * piece)
        found += scanner.feed(memoryview(data)[at : at + size])
        at += size
    return found + scanner.finish()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("size", [100, 5_000, 1 << 20])
def test_a_patient_scanner_finds_the_same(kind: str, size: int) -> None:
    for seed in range(3):
        data, chance = archive(kind, seed), random.Random(seed)
        eager, patient = Scanner(), Scanner(patient=True)
        wanted = entries(eager, data)
        assert len(wanted) == 1500
        assert entries(patient, data, size, chance) == wanted
        assert (patient.oddities, patient.last_name) == (eager.oddities, eager.last_name)


def test_most_headers_of_a_dataset_are_checked_together(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    take = HeaderBatch.take

    def counting(self: HeaderBatch) -> tuple[list[Entry], int | None]:
        taken.append(len(self))
        return take(self)

    monkeypatch.setattr(HeaderBatch, "take", counting)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(2000):
            info = tarfile.TarInfo(f"{number}.jpg")
            info.size = 3000
            tar.addfile(info, io.BytesIO(bytes(3000)))
    assert len(entries(Scanner(patient=True), stream.getvalue(), 1 << 20)) == 2000
    assert sum(taken) >= 1990
    assert max(taken) >= 250


@pytest.mark.parametrize("number", [0, 1, 700, 1499])
def test_a_wrong_checksum_is_found_at_the_same_header(number: int) -> None:
    data = archive("ustar", 1)
    head = entries(Scanner(), data)[number][2]
    data[head + 20] ^= 1
    told = []
    for patient in (False, True):
        with pytest.raises(TarError) as raised:
            entries(Scanner(patient=patient), data, 100_000)
        told.append((str(raised.value), raised.value.offset))
    assert told[0] == told[1]
    assert told[1][1] == head


def test_sums_of_signed_bytes_and_rubbish_behind_a_name() -> None:
    """As old tars wrote them, and some tools leave them."""
    data = archive("ustar", 2)
    heads = [entry[2] for entry in entries(Scanner(), data) if entry[1] == 0]
    for head in (heads[5], heads[900]):
        data[head + 90 : head + 94] = b"junk"
        _sum(data, head)
    data[heads[7]] = 0xE9
    _sum(data, heads[7], signed=True)
    eager, patient = Scanner(), Scanner(patient=True)
    wanted = entries(eager, data)
    assert entries(patient, data, 70_000) == wanted
    assert patient.oddities == eager.oddities == [("what follows the NUL of a name is ignored", heads[5])]


def _sum(data: bytearray, head: int, signed: bool = False) -> None:
    data[head + 148 : head + 156] = b" " * 8
    block = data[head : head + 512]
    data[head + 148 : head + 156] = b"%06o\0 " % (sum(block) - 256 * signed * sum(byte > 127 for byte in block))
