"""Decompression pushed and pulled, in bounded chunks, of one or several frames."""

from __future__ import annotations

import gzip
import io
import lzma
import random
import struct
import zlib

import lz4.block
import lz4.frame
import pytest
from archives import COMPRESS

from dfc.limits import DECOMPRESS_CHUNK_BYTES
from dfc.tar.compression import CompressionError, Decompressor, kind_of_bytes, open_decompressed, zstd
from dfc.tar.index.format import KINDS as ALL_KINDS

TEXT = random.Random(1).randbytes(300_000) + bytes(700_000)
KINDS = pytest.mark.parametrize("kind", ALL_KINDS[1:])


def push(data: bytes, kind: str, chunk: int, ignored_from: int | None = None) -> bytes:
    decompressor = Decompressor(kind)
    out = []
    for start in range(0, len(data), chunk):
        for piece in decompressor.feed(data[start : start + chunk]):
            assert 0 < len(piece) <= DECOMPRESS_CHUNK_BYTES
            out.append(piece)
    decompressor.finish()
    result = b"".join(out)
    assert (decompressor.bytes_in, decompressor.bytes_out) == (len(data), len(result))
    assert decompressor.ignored_from == ignored_from
    return result


@KINDS
@pytest.mark.parametrize("chunk", [997, 65536, 1 << 30])
def test_push(kind, chunk):
    data = COMPRESS[kind](TEXT)
    assert push(data, kind, chunk) == TEXT
    assert push(data + COMPRESS[kind](b"more") + COMPRESS[kind](b""), kind, chunk) == TEXT + b"more"


@KINDS
def test_pull(kind):
    data = COMPRESS[kind](TEXT)
    with open_decompressed(io.BytesIO(data), kind) as reader:
        assert reader.read(10) == TEXT[:10]
        assert reader.read() == TEXT[10:]
        assert reader.read(1) == b""
    with pytest.raises(CompressionError, match="ends early"):
        open_decompressed(io.BytesIO(data[:-5]), kind).read()
    assert open_decompressed(io.BytesIO(COMPRESS[kind](b"")), kind).read() == b""


@KINDS
def test_nothing_is_no_stream(kind):
    with pytest.raises(CompressionError, match="ends early"):
        push(b"", kind, 1)


@KINDS
def test_garbage(kind):
    with pytest.raises(CompressionError):
        push(b"no stream at all, whatever it is", kind, 7)


@pytest.mark.parametrize("kind", ["zst", "xz"])
def test_rubbish_behind_the_stream_is_an_error(kind):
    with pytest.raises(CompressionError):
        push(COMPRESS[kind](b"text") + b"something else", kind, 7)


@pytest.mark.parametrize("kind", ["gz", "bz2", "lz4"])
@pytest.mark.parametrize(
    "rubbish", [b"something else", b"x", b"xyz", b"\x1f", b"\x1f\x8b\x07", b"BZh9", b"\4\x22", b"x" * 300_000]
)
def test_rubbish_behind_the_stream_is_ignored(kind, rubbish):
    data = COMPRESS[kind](TEXT[:3000])
    for chunk in (1, 7, 1 << 30) if len(rubbish) < 100 else (65536, 1 << 30):
        assert push(data + rubbish, kind, chunk, len(data)) == TEXT[:3000]
    with open_decompressed(io.BytesIO(data + rubbish), kind) as reader:
        assert reader.read() == TEXT[:3000]
        assert reader.raw.ignored_from == len(data)
    with pytest.raises(CompressionError):
        push(data + data[:-1], kind, 65536)  # that is no rubbish, but a stream that ends early


@pytest.mark.parametrize("kind", ["bz2", "lz4"])
def test_zeros_are_rubbish_where_no_padding_is_known(kind):
    data = COMPRESS[kind](TEXT[:3000])
    assert push(data + bytes(5000), kind, 65536, len(data)) == TEXT[:3000]


def test_zeros_and_rubbish_after_gzip():
    data = gzip.compress(TEXT[:3000])
    for rest in (b"rubbish", data):
        for chunk in (999, 1 << 30):
            assert push(data + bytes(5000) + rest, "gz", chunk, len(data) + 5000) == TEXT[:3000]


@pytest.mark.parametrize("kind", ["gz", "xz"])
def test_zeros_after_the_end_are_padding(kind):
    data = COMPRESS[kind](TEXT[:3000])
    assert push(data + bytes(5000), kind, 999) == TEXT[:3000]
    assert push(data + bytes(5000), kind, 1 << 30) == TEXT[:3000]


def test_xz_padding_stands_between_streams_too_in_words_of_four():
    data = lzma.compress(TEXT)
    for chunk in (1, 999, 1 << 30):
        assert push(data + bytes(8) + data + bytes(4), "xz", max(chunk, 100), None) == TEXT * 2
    for padded in (data + bytes(7), data + bytes(6) + data, data + bytes(4) + b"x"):
        with pytest.raises(CompressionError):
            push(padded, "xz", 999)


def gzip_with(flags: int, fields: bytes, data: bytes = b"text" * 100) -> bytes:
    """A member with optional fields in its header."""
    member = gzip.compress(data, mtime=0)
    start = member[:3] + bytes([flags]) + member[4:10] + fields
    return start + (struct.pack("<H", zlib.crc32(start) & 0xFFFF) if flags & 2 else b"") + member[10:]


@pytest.mark.parametrize("chunk", [1, 3, 10, 11, 1 << 20])
@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        (8, b"shard.tar\0"), (16, b"a comment\0"), (24, b"shard.tar\0a comment\0"), (4, b"\4\0abcd"), (2, b""),
        (12, b"\4\0abcdshard.tar\0"), (30, b"\0\0n\0c\0"), (8, b"\0"), (4, b"\xff\xff" + b"x" * 65535),
    ],
)  # fmt: skip
def test_gzip_headers_with_optional_fields_in_any_pieces(chunk, flags, fields):
    member = gzip_with(flags, fields)
    assert push(member, "gz", max(chunk, len(member) // 2000)) == b"text" * 100
    assert push(gzip.compress(b"a") + member, "gz", max(chunk, len(member) // 2000)) == b"a" + b"text" * 100
    with pytest.raises(CompressionError, match="ends early"):
        push(member[: 10 + len(fields) - 1] if fields else member[:11], "gz", 1000)


def test_gzip_headers_are_bounded():
    with pytest.raises(CompressionError, match="header"):
        push(gzip_with(8, b"n" * 200_000 + b"\0"), "gz", 1000)


def test_a_wrong_gzip_checksum_is_noticed():
    data = bytearray(gzip.compress(b"text" * 1000))
    data[-6] ^= 1
    with pytest.raises(CompressionError):
        push(bytes(data), "gz", 1 << 20)


def test_zstd_skippable_frames():
    assert push(zstd.compress(b"a") + skippable(5) + zstd.compress(b"b"), "zst", 3) == b"ab"


def skippable(size: int, number: int = 0) -> bytes:
    return struct.pack("<II", 0x184D2A50 + number, size) + b"s" * size


def legacy(*blocks: bytes) -> bytes:
    """What `lz4 -l` writes; its own blocks have 8 MiB, but for the last."""
    packed = [lz4.block.compress(block, store_size=False) for block in blocks]
    return b"\x02\x21\x4c\x18" + b"".join(struct.pack("<I", len(block)) + block for block in packed)


@pytest.mark.parametrize("chunk", [1, 5, 1000, 1 << 30])
def test_lz4_skippable_and_legacy_frames(chunk):
    text = TEXT[:3000]
    frame, old, both = lz4.frame.compress(text), legacy(text, text[:100]), text + text[:100]
    chunk = max(chunk, 3)
    assert push(skippable(5) + frame + skippable(0, 15) + frame + skippable(70_000, 3), "lz4", chunk) == text * 2
    assert push(old, "lz4", chunk) == both
    assert push(old + frame + old + old + skippable(9) + frame, "lz4", chunk) == both + text + both * 2 + text
    assert push(skippable(0) + old, "lz4", chunk) == both
    assert push(old + b"rubbish", "lz4", chunk, len(old)) == both
    assert push(old + bytes(10), "lz4", chunk, len(old)) == both
    more = skippable(5)
    for broken in (old[:-1], old + more[:-1], old + more[:6], more[:7], old + b"\5\0\0\0xx", frame + old[:9]):
        with pytest.raises(CompressionError):
            push(broken, "lz4", chunk)


def test_lz4_legacy_blocks_of_their_full_size_come_in_chunks():
    block = random.Random(2).randbytes(1 << 20) * 8
    assert push(legacy(block, block, b"rest"), "lz4", 100_000) == block * 2 + b"rest"
    with pytest.raises(CompressionError, match="broken"):
        push(legacy(block + b"x"), "lz4", 1 << 20)


def test_tiny_legacy_blocks_and_frames_are_bounded():
    for stream in (legacy(*[b"x"] * 5000), b"\x02\x21\x4c\x18" * 5000, skippable(0) * 5000):
        with pytest.raises(CompressionError, match="frames"):
            push(stream, "lz4", 1 << 20)


def test_kinds_behind_skippable_frames():
    zst, lz4_start = zstd.compress(b"a"), lz4.frame.compress(b"a")
    assert kind_of_bytes(skippable(4) + zst) == "zst"
    assert kind_of_bytes(skippable(4) + skippable(0, 9) + lz4_start, "x.tar.zst") == "lz4"
    assert kind_of_bytes(skippable(4) + legacy(b"x")) == "lz4"
    assert kind_of_bytes(skippable(400)[:10]) is None
    for kind in ("lz4", "zst"):
        assert kind_of_bytes(skippable(400)[:10], f"dir/X.TAR.{kind.upper()}") == kind
    assert kind_of_bytes(skippable(4) + gzip.compress(b""), "x.tar.lz4") is None


@KINDS
def test_kind_of_bytes(kind):
    assert kind_of_bytes(COMPRESS[kind](b"text")[:10]) == kind
    assert kind_of_bytes(COMPRESS[kind](b"")[:10]) == kind


@pytest.mark.parametrize("start", [b"", b"BZh91file.", b"a.txt\0\0\0\0\0", bytes(10), b"\x1f\x8b"])
def test_other_bytes(start):
    assert kind_of_bytes(start) is None
