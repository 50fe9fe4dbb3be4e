"""Decompression pushed and pulled, in bounded chunks, of one or several frames."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import sys

import lz4.frame
import pytest

from dfc.limits import DECOMPRESS_CHUNK_BYTES
from dfc.tar.compression import CompressionError, Decompressor, kind_of_bytes, open_decompressed
from dfc.tar.index_format import KINDS as ALL_KINDS

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

COMPRESS = {"gz": gzip.compress, "zst": zstd.compress, "lz4": lz4.frame.compress, "bz2": bz2.compress, "xz": lzma.compress}
TEXT = random.Random(1).randbytes(300_000) + bytes(700_000)
KINDS = pytest.mark.parametrize("kind", ALL_KINDS[1:])


def push(data: bytes, kind: str, chunk: int) -> bytes:
    decompressor = Decompressor(kind)
    out = []
    for start in range(0, len(data), chunk):
        for piece in decompressor.feed(data[start : start + chunk]):
            assert 0 < len(piece) <= DECOMPRESS_CHUNK_BYTES
            out.append(piece)
    decompressor.finish()
    result = b"".join(out)
    assert (decompressor.bytes_in, decompressor.bytes_out) == (len(data), len(result))
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
    with pytest.raises(CompressionError):
        push(COMPRESS[kind](b"text") + b"something else", kind, 7)


@pytest.mark.parametrize("kind", ["gz", "xz"])
def test_zeros_after_the_end_are_padding(kind):
    data = COMPRESS[kind](TEXT)
    assert push(data + bytes(5000), kind, 999) == TEXT
    assert push(data + bytes(5000), kind, 1 << 30) == TEXT
    with pytest.raises(CompressionError, match="something else"):
        push(data + bytes(5000) + data, kind, 999)


def test_a_wrong_gzip_checksum_is_noticed():
    data = bytearray(gzip.compress(b"text" * 1000))
    data[-6] ^= 1
    with pytest.raises(CompressionError):
        push(bytes(data), "gz", 1 << 20)


def test_zstd_skippable_frames():
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"12345"
    assert push(zstd.compress(b"a") + skippable + zstd.compress(b"b"), "zst", 3) == b"ab"


@KINDS
def test_kind_of_bytes(kind):
    assert kind_of_bytes(COMPRESS[kind](b"text")[:10]) == kind
    assert kind_of_bytes(COMPRESS[kind](b"")[:10]) == kind


@pytest.mark.parametrize("start", [b"", b"BZh91file.", b"a.txt\0\0\0\0\0", bytes(10), b"\x1f\x8b"])
def test_other_bytes(start):
    assert kind_of_bytes(start) is None
