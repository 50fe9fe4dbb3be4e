"""Kinds of shards by name and by their first bytes, and compressed shards with their limits."""

from __future__ import annotations

import gzip
import io
import lzma
import time

import pytest
from archives import COMPRESS

from dfc.tar import compression
from dfc.tar.compression import zstd
from dfc.tar.header import TarError
from dfc.tar.index.builder import CompressedIndexBuilder, open_builder
from dfc.tar.index.format import index_kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.tar", "tar"), ("A.TAR", "tar"), ("d.tar/a.TGZ", "gz"), ("a.tar.gz", "gz"), ("a.tar.zst", "zst"),
        ("a.tar.lz4", "lz4"), ("a.tar.bz2", "bz2"), ("a.tar.XZ", "xz"),
        ("a.gz", None), ("a.tar.idx", None), ("tar", None), ("", None),
    ],
)  # fmt: skip
def test_kind_by_name(name, kind):
    assert index_kind(name) == kind


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("chunk", [1, 1000, 1 << 20])
def test_compressed_shards(make, index_of, kind, chunk):
    members = {f"{number // 2}.{'xy'[number % 2]}": b"%d" % number * 300 for number in range(200)}
    data = COMPRESS[kind](make.tar(members))
    summary, index = index_of(data, kind, chunk)
    assert (summary.members, summary.samples) == (200, 100)
    assert (index.kind, index.compressed, index.size, index.archive_size) == (kind, True, len(data), len(make.tar(members)))


@pytest.mark.parametrize("kind", COMPRESS)
def test_the_first_bytes_overrule_the_name(make, index_of, kind):
    tar = make.tar({"BZh9.x": b"1"})
    assert index_of(COMPRESS[kind](tar), "tar")[1].kind == kind
    assert index_of(COMPRESS[kind](tar), "gz")[1].kind == kind
    assert index_of(tar, kind)[1].kind == "tar"
    assert index_of(tar, kind, chunk=1)[1].kind == "tar"


def test_unknown_kinds_are_refused(tmp_path):
    with pytest.raises(ValueError, match="unknown kind of shard"):
        open_builder("zip", io.BytesIO(), str(tmp_path))


@pytest.mark.parametrize("kind", COMPRESS)
def test_truncated_and_damaged_streams(make, index_of, kind):
    data = COMPRESS[kind](make.tar({f"{number}.x": bytes([number]) * 5000 for number in range(200)}))
    for size in (1, 5, 20, len(data) // 2, len(data) - 1):
        with pytest.raises(TarError):
            index_of(data[:size], kind)
    summary, index = index_of(data + data, kind)  # two archives, one after the other
    assert (summary.members, index.size) == (200, 2 * len(data))
    assert summary.warnings == (f"data after the end of the archive is ignored, at offset {index.archive_size // 2}",)
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 0xFF
    try:
        index_of(bytes(damaged), kind)
    except TarError:
        pass
    else:
        assert kind == "lz4"  # frames without a content checksum notice nothing in stored data


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_broken_tar_inside_names_its_own_offset(make, index_of, kind):
    tar = make.member(b"a", b"x" * 1000) + make.header(checksum=b"000000\x00 ") + make.end
    with pytest.raises(TarError) as caught:
        index_of(COMPRESS[kind](tar), kind)
    assert caught.value.offset == 1536


@pytest.mark.parametrize("kind", COMPRESS)
def test_bombs_end_at_the_limit(make, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(compression, "DECOMPRESS_FREE_BYTES", 8 << 20)
    bomb = COMPRESS[kind](make.header(b"large.bin", 64 << 20) + bytes(64 << 20) + make.end)
    assert len(bomb) * 100 < 64 << 20
    builder = CompressedIndexBuilder(kind, io.BytesIO(), str(tmp_path))
    start = time.process_time()
    builder.feed(bomb)
    for _ in range(1000):
        builder.feed(bomb)
    assert time.process_time() - start < 5
    with pytest.raises(TarError, match=f"the {kind} stream expands to more than 100 times its size") as caught:
        builder.finish("v", 1, "c")
    assert caught.value.offset <= 32 << 20


@pytest.mark.parametrize("kind", ["gz", "zst", "lz4", "xz", "bz2"])
def test_frames_without_content_are_bounded(tmp_path, kind):
    builder = CompressedIndexBuilder(kind, io.BytesIO(), str(tmp_path))
    empty = COMPRESS[kind](b"") * 2000
    start = time.process_time()
    for _ in range(100):
        builder.feed(empty)
    assert time.process_time() - start < 5
    assert "frames" in builder.problem.message


def test_decompression_stops_at_the_first_problem(make, tmp_path, monkeypatch):
    builder = CompressedIndexBuilder("gz", io.BytesIO(), str(tmp_path))
    builder.feed(gzip.compress(make.header(checksum=b"000000\x00 ") + bytes(1 << 20)))
    assert builder.problem.offset == 0
    monkeypatch.setattr(compression.Decompressor, "feed", None)
    builder.feed(b"anything")


def test_large_windows_are_refused(make, index_of):
    parameter = zstd.CompressionParameter
    tar = make.tar({"a.x": bytes(1000)})
    small = zstd.ZstdCompressor(options={parameter.window_log: 20})
    assert index_of(small.compress(tar) + small.flush(), "zst")[0].samples == 1
    large = zstd.ZstdCompressor(options={parameter.window_log: 30})
    with pytest.raises(TarError, match="zst stream is broken"):
        index_of(large.compress(tar) + large.flush(), "zst")
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 512 << 20}]
    with pytest.raises(TarError, match="xz stream is broken"):
        index_of(lzma.compress(tar, filters=filters), "xz")
