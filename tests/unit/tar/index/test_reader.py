"""Look-ups and iteration over an index, hash collisions, and index files that are damaged anywhere."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import xxhash

from dfc.tar.header import TarError
from dfc.tar.index import builder
from dfc.tar.index.format import HEADER_BYTES, IndexCorrupt, Member, decode_header, encode_header
from dfc.tar.index.reader import ShardIndex


@pytest.fixture
def members(make) -> dict[str, bytes]:
    return {f"dir/{number // 2:05d}.{('jpg', 'cls')[number % 2]}": bytes(number % 700) for number in range(600)}


def test_members_and_samples(make, index_of, members):
    data = make.tar(members)
    _, index = index_of(data)
    assert (index.version, index.size, index.checksum) == ("0" * 14 + "0001", len(data), "ab" * 16)
    assert (index.member_count, index.sample_count, index.compressed, index.kind) == (600, 300, False, "tar")
    for name, body in members.items():
        member = index.find_member(name)
        assert (member.name, member.size, member.type) == (name, len(body), "file")
        assert data[member.offset : member.offset + member.size] == body
        assert (member.key, member.ext) == tuple(name.split("."))
    samples = list(index.samples())
    assert [sample.number for sample in samples] == list(range(300))
    assert [sample.key for sample in samples] == [f"dir/{number:05d}" for number in range(300)]
    assert all([member.ext for member in sample.members] == ["jpg", "cls"] for sample in samples)
    assert samples[0].start == 0
    assert [sample.end for sample in samples[:-1]] == [sample.start for sample in samples[1:]]
    assert index.find_sample("dir/00123") == index.sample_at(123) == samples[123]
    assert list(index.samples(298)) == samples[298:]
    assert [member.name for member in index.members()] == list(members)
    assert [member.name for member in index.members(590)] == list(members)[590:]
    assert list(index.members(600)) == []


def test_what_is_not_there(make, index_of, members):
    _, index = index_of(make.tar(members))
    for name in ("", "nothing", "dir/00000", "dir/00000.jpg\0", "\udc80.jpg", "x" * 100_000):
        assert index.find_member(name) is None
        assert name == "dir/00000" or index.find_sample(name) is None
    for number in (-1, 300):
        with pytest.raises(IndexError):
            index.sample_at(number)


def test_of_several_the_last_member_and_the_first_sample(make, index_of):
    data = b"".join(make.member(name, bytes(size)) for name, size in ((b"a.x", 1), (b"b.x", 2), (b"a.x", 3), (b"a.y", 4)))
    _, index = index_of(data + make.end)
    assert index.find_member("a.x").size == 3
    assert [(sample.key, len(sample.members)) for sample in index.samples()] == [("a", 1), ("b", 1), ("a", 2)]
    assert index.find_sample("a").number == 0


def test_members_of_no_sample(make, index_of):
    data = make.header(b"d/", 0, b"5") + make.member(b"d/a.x", b"1") + make.member(b"README", b"22")
    data += make.member(b"d/a.y", b"333") + make.header(b"link.x", 0, b"2") + make.end
    _, index = index_of(data)
    assert [(m.name, m.key, m.type) for m in index.members()] == [
        ("d/", None, "directory"),
        ("d/a.x", "d/a", "file"),
        ("README", None, "file"),
        ("d/a.y", "d/a", "file"),
        ("link.x", None, "symlink"),
    ]
    sample = index.find_sample("d/a")
    assert [member.name for member in sample.members] == ["d/a.x", "d/a.y"]
    assert (sample.start, sample.end) == (512, 512 + 3 * 1024)
    assert index.find_member("link.x") == Member("link.x", None, None, len(data) - 1024, 0, "symlink")


def test_long_names_belong_to_the_range_of_their_sample(make, index_of):
    _, index = index_of(make.member(b"a.x", b"1") + make.member(b"L", b"b" * 200 + b".x\0", b"L") + make.header() + make.end)
    sample = index.sample_at(1)
    assert (sample.key, sample.start, sample.members[0].offset, sample.end) == ("b" * 200, 1024, 2560, 2560)


def test_collisions_are_told_apart_by_name(make, index_of, monkeypatch):
    def weak(data, seed=0):
        return len(data) % 3

    members = {f"{'n' * (number % 5)}{number}.x": bytes(number) for number in range(100)}
    with monkeypatch.context() as patch:
        patch.setattr(xxhash, "xxh3_64_intdigest", weak)
        _, index = index_of(make.tar(members))
        for name, body in members.items():
            assert index.find_member(name).size == len(body)
            assert index.find_sample(name[:-2]).key == name[:-2]
        assert index.find_member("other.x") is None
        assert index.find_sample("other") is None


def test_path_or_descriptor(make, index_of, tmp_path):
    index_of(make.tar({"a.x": b"1"}))
    path = tmp_path / "0.idx"
    fd = os.open(path, os.O_RDONLY)
    for source in (str(path), path, fd):
        index = ShardIndex.open(source)
        assert index.find_member("a.x") is not None
        index.close()
        index.close()
        with pytest.raises(ValueError):
            index.find_member("a.x")
    os.close(fd)
    with pytest.raises(FileNotFoundError):
        ShardIndex.open(tmp_path / "none.idx")


def test_many_threads(make, index_of, members):
    _, index = index_of(make.tar(members))

    def wrong(seed: int) -> list[str]:
        names = list(members)
        random.Random(seed).shuffle(names)
        return [name for name in names if index.find_member(name).name != name]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(wrong, range(4))) == [[]] * 4


def read_everything(path: Path) -> list[object]:
    index = ShardIndex.open(path)
    try:
        members = list(index.members())
        samples = list(index.samples())
        found = [index.find_member(member.name) for member in members] + [index.find_sample(s.key) for s in samples]
        return [*members, *samples, *found]
    finally:
        index.close()


@pytest.fixture
def small_index(make, index_of, tmp_path, monkeypatch) -> Path:
    index_of(make.tar({f"{number // 2}.{'xy'[number % 2]}": b"1" for number in range(40)}))
    return tmp_path / "0.idx"


def test_any_flipped_bit_is_noticed(small_index, tmp_path):
    good = read_everything(small_index)
    data = small_index.read_bytes()
    padding = range(decode_header(data[:512]).records_end, decode_header(data[:512]).tables_start)
    path = tmp_path / "bad.idx"
    for position in range(0, len(data), 3):
        if position in padding:
            continue
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :])
        with pytest.raises(IndexCorrupt):
            read_everything(path)
    assert read_everything(small_index) == good


def test_any_other_length_is_noticed(small_index, tmp_path):
    data = small_index.read_bytes()
    path = tmp_path / "bad.idx"
    for bad in (
        *(data[:size] for size in range(0, len(data), 50)),
        data + b"\0",
        data[:-1],
        bytes(len(data)),
        b"x" * len(data),
    ):
        path.write_bytes(bad)
        with pytest.raises(IndexCorrupt):
            ShardIndex.open(path)


def test_corrupt_is_a_tar_error():
    assert issubclass(IndexCorrupt, TarError)


@pytest.mark.parametrize("seed", range(40))
def test_nonsense_under_right_checksums_never_crashes(small_index, tmp_path, seed):
    """As if the checksums had been made for it: the bounds checks alone must hold."""
    random_source = random.Random(seed)
    data = bytearray(small_index.read_bytes())
    header = decode_header(bytes(data[:HEADER_BYTES]))
    for _ in range(random_source.randint(1, 8)):
        position = random_source.randrange(HEADER_BYTES, len(data))
        data[position] = random_source.choice((0, 1, 0x7F, 0xFF, random_source.randrange(256)))
    records = xxhash.xxh3_64_intdigest(data[HEADER_BYTES : header.records_end])
    data[header.tables_start : header.tables_start + 8] = records.to_bytes(8, "little")
    tables = xxhash.xxh3_64_intdigest(data[header.tables_start :])
    data[:HEADER_BYTES] = encode_header(header._replace(tables_checksum=tables))
    path = tmp_path / "bad.idx"
    path.write_bytes(data)
    with suppress(IndexCorrupt):
        read_everything(path)


def test_foreign_formats(small_index):
    header = decode_header(small_index.read_bytes()[:HEADER_BYTES])
    assert decode_header(encode_header(header)) == header
    for change in ({"version": "v" * 64}, {"checksum": "c" * 64}):
        with pytest.raises(ValueError, match="fewer than 64"):
            encode_header(header._replace(**change))
    with pytest.raises(IndexCorrupt):
        decode_header(encode_header(header._replace(records_end=1)))
    with pytest.raises(IndexCorrupt):
        decode_header(bytes(HEADER_BYTES))


def test_records_are_checked_block_by_block(make, index_of, tmp_path):
    _, index = index_of(make.tar({f"{'n' * 90}{number:08d}.x": b"" for number in range(2000)}))
    records_end = decode_header((tmp_path / "0.idx").read_bytes()[:HEADER_BYTES]).records_end
    assert records_end > 3 * builder.INDEX_BLOCK_BYTES
    with open(tmp_path / "0.idx", "r+b") as file:
        file.seek(records_end - 100)
        byte = file.read(1)
        file.seek(records_end - 100)
        file.write(bytes([byte[0] ^ 1]))
    index = ShardIndex.open(tmp_path / "0.idx")
    assert index.sample_at(0).number == 0  # its block is sound
    with pytest.raises(IndexCorrupt):
        index.sample_at(1999)
    index.close()
