"""LMDB: written by the library and read back by it and by our own walker; damage of every byte that matters."""

from __future__ import annotations

import random
import re

import lmdb
import msgpack
import pytest
from format_files import ODD_SAMPLES, MemorySource, contents, plain, sample

from dfc.errors import Conflict
from dfc.formats import lmdb as format
from dfc.formats.base import FormatError, SampleData
from dfc.formats.lmdb import LmdbWriter, read_lmdb


def write(directory, samples) -> bytes:
    directory.mkdir()
    writer = LmdbWriter(str(directory))
    try:
        for each in samples:
            writer.add(each)
        writer.finish()
    finally:
        writer.close()
    return (directory / "data.mdb").read_bytes()


def read(data: bytes):
    return contents(read_lmdb(MemorySource(data), "b/data.mdb"))


def by_key(samples: list[SampleData]):
    return plain(sorted(samples, key=lambda each: each.key.encode()))


def many(count: int, size: int) -> list[SampleData]:
    draw = random.Random(1)
    samples = [sample(f"{number:07d}", jpg=draw.randbytes(draw.randrange(size)), cls=b"1") for number in range(count)]
    draw.shuffle(samples)
    return samples


@pytest.mark.parametrize("samples", [ODD_SAMPLES, [], many(3000, 200), many(500, 9000)], ids=["odd", "none", "deep", "large"])
def test_there_and_back(tmp_path, samples):
    data = write(tmp_path / "one", samples)
    assert write(tmp_path / "two", samples) == data
    assert read(data) == by_key(samples)
    with lmdb.open(str(tmp_path / "one"), readonly=True, lock=False) as environment, environment.begin() as transaction:
        found = {key.decode(): msgpack.unpackb(value) for key, value in transaction.cursor()}
    assert found == {each.key: {member.ext: member.data for member in each.members} for each in samples}


def test_a_map_that_grows(tmp_path, monkeypatch):
    monkeypatch.setattr(format, "_MAP_BYTES", 64 << 10)
    monkeypatch.setattr(format, "_TRANSACTION_BYTES", 32 << 10)
    samples = many(300, 5000)
    assert read(write(tmp_path / "one", samples)) == by_key(samples)


def test_what_lmdb_cannot_hold(tmp_path):
    with pytest.raises(Conflict, match="'a' occurs twice"):
        write(tmp_path / "one", [sample("a", x=b"1"), sample("a", x=b"2")])
    with pytest.raises(Conflict, match="has 512 bytes; LMDB takes 511"):
        write(tmp_path / "two", [sample("k" * 512, x=b"1")])
    assert read(write(tmp_path / "three", [sample("k" * 511, x=b"1")]))


@pytest.mark.parametrize("data", [b"", b"x" * 100, bytes(8192), b"x" * 8192])
def test_no_lmdb(data):
    with pytest.raises(FormatError, match=r"b/data\.mdb"):
        read(data)


def test_named_databases_and_duplicates(tmp_path):
    with lmdb.open(str(tmp_path), max_dbs=2, lib_version=0) as environment:
        environment.open_db(b"name")
    with pytest.raises(FormatError, match="named databases"):
        read((tmp_path / "data.mdb").read_bytes())


def test_damage_is_an_error_and_never_a_crash(tmp_path):
    data = write(tmp_path / "one", many(400, 300))
    draw = random.Random(2)
    errors = 0
    for _ in range(1500):
        damaged = bytearray(data)
        for _ in range(3):
            page = draw.randrange(len(data) // 4096)
            damaged[page * 4096 + draw.randrange(60)] = draw.randrange(256)
        try:
            read(bytes(damaged))
        except FormatError:
            errors += 1
    assert errors > 500
    with pytest.raises(FormatError, match="the file ends before a page"):
        read(data[: len(data) // 2])


def test_a_page_that_leads_back_to_itself(tmp_path):
    data = bytearray(write(tmp_path / "one", many(3000, 200)))
    root = min(int.from_bytes(data[at + 128 : at + 136], "little") for at in (0, 4096))  # of the other, none: 2^64 - 1
    start = root * 4096
    assert data[start + 10] & 1, "a branch"
    first = start + int.from_bytes(data[start + 16 : start + 18], "little")
    data[first : first + 4] = root.to_bytes(4, "little")
    with pytest.raises(FormatError, match="form a loop"):
        read(bytes(data))


def test_values_that_share_their_pages(tmp_path):
    samples = [sample(f"key-{number}", x=bytes(5000 if number else 300_000)) for number in range(9)]
    data = bytearray(write(tmp_path / "one", samples))
    places = [[found.start() for found in re.finditer(b"key-%d" % number, data)] for number in range(9)]
    nodes = [next(at for at in found if data[at - 4] & 1) for found in places]
    for node in nodes[1:]:
        data[node - 8 : node - 4] = data[nodes[0] - 8 : nodes[0] - 4]
        data[node + 5 : node + 13] = data[nodes[0] + 5 : nodes[0] + 13]
    with pytest.raises(FormatError, match="used twice"):
        read(bytes(data))
