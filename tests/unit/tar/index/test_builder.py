"""Builders: real shards, counts, warnings, bad archives in bounded time and memory, and the same bytes however it is fed."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import tarfile
import time

import pytest
from harness import own_files

from dfc.tar.header import TarError
from dfc.tar.index import builder, spill
from dfc.tar.index.builder import CompressedIndexBuilder, IndexBuilder, open_builder
from dfc.tar.index.format import index_kind


def index_bytes(data: bytes, tmp_path, chunks) -> bytes:
    file = io.BytesIO()
    builder = IndexBuilder(file, str(tmp_path))
    position = 0
    while position < len(data):
        size = next(chunks)
        builder.feed(memoryview(bytearray(data[position : position + size])))
        position += size
    builder.finish("v", len(data), "c")
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "members", "samples", "dropped"),
    [("sample.tgz", 180, 90, 0), ("tendata.tar", 100, 100, 0), ("mpdata.tar", 100, 100, 0), ("compressed.tar", 4, 3, 0)],
)
def test_real_shards(data_directory, index_of, name, members, samples, dropped):
    data = (data_directory / name).read_bytes()
    with tarfile.open(data_directory / name) as tar:
        assert len(tar.getmembers()) == members
    summary, index = index_of(data, index_kind(name))
    assert (summary.members, summary.samples, summary.dropped, summary.repeated_keys) == (members, samples, dropped, 0)
    assert summary.warnings == ()
    assert (index.member_count, index.sample_count, index.size) == (members, samples, len(data))
    assert index.compressed == (name == "sample.tgz")


def test_any_pieces_give_the_same_bytes(make, tmp_path, monkeypatch):
    monkeypatch.setattr(spill, "INDEX_RUN_ROWS", 50)
    monkeypatch.setattr(spill, "INDEX_SORT_ROWS", 100)
    monkeypatch.setattr(builder, "INDEX_FLUSH_BYTES", 5000)
    monkeypatch.setattr(builder, "INDEX_BLOCK_BYTES", 1000)
    random_source = random.Random(5)
    names = [f"{'d/' * random_source.choice((0, 1, 60))}{number // 3}.{'abc'[number % 3]}" for number in range(1000)]
    data = make.tar({name: b"x" * random_source.choice((0, 0, 10, 700)) for name in names}, tarfile.PAX_FORMAT)
    whole = index_bytes(data, tmp_path, iter([len(data)]))
    for size in (1000, 512, 4096, 65536):
        assert index_bytes(data, tmp_path, iter(lambda size=size: size, 0)) == whole
    assert index_bytes(data, tmp_path, iter(lambda: random_source.randint(1, 20_000), 0)) == whole
    assert index_bytes(data[:50_000] + data[50_000:], tmp_path, iter(lambda: 1 << 30, 0)) == whole


def test_counts_and_warnings(make, index_of):
    data = b"".join(make.member(name, b"1") for name in (b"a.x", b"b.x", b"a.y", b"README", b"._a.x", b"caf\xe9.txt"))
    data += make.header(b"d/", 0, b"5") + make.header(b"link.x", 0, b"2") + make.end
    summary, index = index_of(data)
    assert (summary.members, summary.samples, summary.repeated_keys, summary.dropped) == (8, 4, 1, 3)
    assert summary.warnings == (
        "3 members belong to no sample",
        "1 samples repeat the key of an earlier sample, first 'a'",
        "1 member names are not UTF-8 and are listed with replacement characters",
    )
    assert (index.repeated_keys, index.dropped) == (1, 3)
    assert index.find_member("caf�.txt").key == "caf�"


def test_empty_archive(make, index_of):
    summary, index = index_of(make.end)
    assert (summary.members, summary.samples) == (0, 0)
    assert list(index.members()) == list(index.samples()) == []
    assert index.find_member("a") is index.find_sample("a") is None


@pytest.mark.parametrize("data", [b"x", b"no tar at all" * 100, bytes(511), b"\x1f\x8b\x08broken gzip" * 50, b"x" * 20])
@pytest.mark.parametrize("kind", ["tar", "gz", "zst", "lz4", "bz2", "xz"])
def test_what_is_no_shard(index_of, data, kind):
    with pytest.raises(TarError):
        index_of(data, kind)


@pytest.mark.parametrize("kind", ["tar", "gz", "zst", "lz4", "bz2", "xz"])
def test_an_archive_of_nothing(index_of, kind):
    for data in (b"", bytes(512)):
        summary, index = index_of(data, kind)
        assert (summary.members, index.kind, index.archive_size) == (0, "tar", len(data))
        assert "offset 0" in summary.warnings[0]


def test_random_garbage_never_raises_from_feed(tmp_path):
    random_source = random.Random(7)
    for round in range(300):
        kind = ("tar", "gz", "zst", "lz4", "bz2", "xz")[round % 6]
        builder = open_builder(kind, io.BytesIO(), str(tmp_path))
        magic = random_source.choice(
            (b"", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"\xfd7zXZ\0", b"BZh91AY&SY")
        )
        builder.feed(magic + random_source.randbytes(random_source.randint(0, 5000)))
        builder.feed(random_source.randbytes(1000))
        with pytest.raises(TarError):
            builder.finish("v", 0, "c") if builder.problem else builder.finish("v", builder_size(builder), "c")


def builder_size(builder) -> int:
    inner = builder._builder
    return inner._fed if isinstance(inner, CompressedIndexBuilder) else inner.archive_size


def test_after_a_problem_feeding_costs_nothing(make, tmp_path):
    builder = open_builder("tar", io.BytesIO(), str(tmp_path))
    builder.feed(make.header(checksum=b"000000\x00 ") + bytes(512))
    assert builder.problem.offset == 0
    piece = bytes(256 * 1024)
    start = time.thread_time()
    for _ in range(40_000):  # as if 10 GB
        builder.feed(piece)
    assert time.thread_time() - start < 1
    with pytest.raises(TarError, match="not a tar archive"):
        builder.finish("v", 1, "c")


def test_bodies_cost_nothing(make, tmp_path):
    builder = IndexBuilder(io.BytesIO(), str(tmp_path))
    builder.feed(make.header(b"large.bin", 8**11 - 512))
    piece = bytes(256 * 1024)
    start = time.thread_time()
    for _ in range((8**11 - 512) // len(piece)):
        builder.feed(piece)
    assert time.thread_time() - start < 1
    builder.feed(bytes(len(piece) - 512) + make.end)
    assert builder.finish("v", 512 + 8**11 - 512 + 1024, "c").members == 1


def test_more_members_than_the_limit(make, monkeypatch, index_of):
    monkeypatch.setattr(builder, "INDEX_MEMBERS_MAX", 100)
    data = b"".join(make.header(b"%d.x" % number) for number in range(101))
    assert index_of(data[:-512] + make.end)[0].members == 100
    with pytest.raises(TarError, match="more than 100 members"):
        index_of(data + make.end)


def test_another_number_of_bytes_than_were_fed_is_a_mistake_of_the_caller(make, tmp_path):
    builder = IndexBuilder(io.BytesIO(), str(tmp_path))
    builder.feed(make.end)
    with pytest.raises(ValueError, match="1024 bytes were fed"):
        builder.finish("v", 1025, "c")


def test_a_full_disk_is_an_os_error(make, tmp_path):
    class Full(io.BytesIO):
        def write(self, data):
            raise OSError(28, "No space left on device")

    builder = IndexBuilder(Full(), str(tmp_path))
    builder.feed(make.end)
    with pytest.raises(OSError, match="No space"):
        builder.finish("v", 1024, "c")


def test_giving_up_is_idempotent_and_leaves_nothing(make, tmp_path, monkeypatch):
    monkeypatch.setattr(spill, "INDEX_RUN_ROWS", 10)
    before = own_files()
    for kind in ("tar", "gz"):
        builder = open_builder(kind, io.BytesIO(), str(tmp_path))
        builder.feed(b"".join(make.header(b"%d.x" % number) for number in range(100)))
        builder.close()
        builder.close()
    assert own_files() == before
    assert os.listdir(tmp_path) == []


MEASURE = """
import sys
from dfc.tar.index.builder import IndexBuilder
from dfc.tar.samples import END_OF_ARCHIVE, member_header
def rss(key):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(key))
with open(sys.argv[1], "w+b", buffering=0) as file:
    builder = IndexBuilder(file, sys.argv[2])
    base = rss("VmRSS")
    size = 0
    for start in range(0, int(sys.argv[3]), 512):
        data = b"".join([member_header(f"{number:08d}.x", 0) for number in range(start, start + 512)])
        builder.feed(data)
        size += len(data)
    builder.feed(END_OF_ARCHIVE)
    summary = builder.finish("v", size + 1024, "c")
    print(summary.samples, rss("VmHWM") - base)
"""


def test_memory_is_bounded(tmp_path):
    members = 250 * 1024
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "idx"), str(tmp_path), str(members)]
    samples, grown_kib = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert int(samples) == members
    assert int(grown_kib) < 60 * 1024
    assert os.listdir(tmp_path) == ["idx"]
