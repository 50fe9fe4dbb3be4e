"""Compression against the decompressor, the command-line tools and itself."""

from __future__ import annotations

import io
import random
import subprocess

import pytest

from dfc.tar.compression import check_level, level_range, open_compressor, open_decompressed

DATA = random.Random(1).randbytes(100_000) + b"the same again " * 30_000
KINDS = ("gz", "zst", "lz4", "bz2", "xz")
TOOLS = {"gz": "gzip", "bz2": "bzip2", "xz": "xz", "zst": "zstd", "lz4": "lz4"}


def compress(kind: str, data: bytes, level: int | None = None, step: int = 1 << 16) -> bytes:
    compressor = open_compressor(kind, level)
    pieces = [compressor.compress(data[at : at + step]) for at in range(0, len(data), step)]
    return b"".join([*pieces, compressor.flush()])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("data", [b"", b"x", DATA], ids=["empty", "one", "much"])
def test_there_and_back(kind, data):
    packed = compress(kind, data)
    assert open_decompressed(io.BytesIO(packed), kind).read() == data
    assert compress(kind, data) == packed


@pytest.mark.parametrize("kind", KINDS)
def test_every_level(kind):
    levels = level_range(kind)
    data = DATA[90_000:130_000]
    for level in levels:
        packed = compress(kind, data, level)
        assert open_decompressed(io.BytesIO(packed), kind).read() == data
        assert compress(kind, data, level) == packed
    for level in (levels[0] - 1, levels[-1] + 1):
        with pytest.raises(ValueError, match=f"{kind} has levels from {levels[0]} to {levels[-1]}, not {level}"):
            check_level(kind, level)
        with pytest.raises(ValueError, match="has levels"):
            open_compressor(kind, level)


@pytest.mark.parametrize("kind", ["gz", "zst", "xz"])
def test_a_higher_level_is_smaller(kind):
    text = " ".join(str(number * number) for number in range(60_000)).encode()
    low, high = (len(compress(kind, text, level)) for level in (level_range(kind)[1], level_range(kind)[-1]))
    assert high < low < len(text)


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_line_tool_reads_it(kind):
    assert subprocess.run([TOOLS[kind], "-dc"], input=compress(kind, DATA), capture_output=True, check=True).stdout == DATA


def test_no_time_and_no_name_in_gzip():
    head = compress("gz", DATA)[:10]
    assert head[:8] == b"\x1f\x8b\x08\0\0\0\0\0"
    for level in (0, 3, 4, 9):
        assert compress("gz", DATA[:10], level)[3:8] == bytes(5)
