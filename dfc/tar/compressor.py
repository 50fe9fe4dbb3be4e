"""Streaming compression of shards: the inverse of `dfc.tar.compression`, for the same kinds.

The same bytes and level give the same output with the same library: no time stamps, no file names.
"""

from __future__ import annotations

import bz2
import lzma
import sys
import zlib
from collections.abc import Callable
from typing import Final, Protocol, cast

import lz4.frame
from isal import isal_zlib

from dfc.checksum import Buffer

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

GZIP_WINDOW: Final = 31  # tells zlib to use the largest window and a gzip header
ISAL_LEVELS: Final = range(4)  # isal's levels are faster than zlib's of the same ratio; higher levels use zlib


class Compressor(Protocol):
    """A compression stream; like bz2.BZ2Compressor."""

    def compress(self, data: Buffer) -> bytes: ...
    def flush(self) -> bytes: ...


class _Lz4:
    def __init__(self, level: int) -> None:
        self._context = lz4.frame.LZ4FrameCompressor(compression_level=level, content_checksum=True)
        self._start = True

    def compress(self, data: Buffer) -> bytes:
        head = self._begin()
        return head + cast(bytes, self._context.compress(data))

    def flush(self) -> bytes:
        return self._begin() + cast(bytes, self._context.flush())

    def _begin(self) -> bytes:
        if not self._start:
            return b""
        self._start = False
        return cast(bytes, self._context.begin())


def _gzip(level: int) -> Compressor:
    if level in ISAL_LEVELS:
        return cast(Compressor, isal_zlib.compressobj(level, wbits=GZIP_WINDOW))
    return cast(Compressor, zlib.compressobj(level, wbits=GZIP_WINDOW))


# kind → (lowest level, highest, default, opener)
_KINDS: Final[dict[str, tuple[int, int, int, Callable[[int], Compressor]]]] = {
    "gz": (0, 9, 1, _gzip),
    "zst": (1, 19, 3, lambda level: cast(Compressor, zstd.ZstdCompressor(level=level))),
    "lz4": (0, 12, 0, _Lz4),
    "bz2": (1, 9, 9, lambda level: cast(Compressor, bz2.BZ2Compressor(level))),
    "xz": (0, 9, 6, lambda level: cast(Compressor, lzma.LZMACompressor(lzma.FORMAT_XZ, preset=level))),
}


def level_range(kind: str) -> range:
    """The compression levels of a kind."""
    lowest, highest, _, _ = _KINDS[kind]
    return range(lowest, highest + 1)


def check_level(kind: str, level: int) -> None:
    """Raise ValueError for a level that a kind does not have."""
    levels = level_range(kind)
    if level not in levels:
        raise ValueError(f"{kind} has levels from {levels[0]} to {levels[-1]}, not {level}")


def open_compressor(kind: str, level: int | None = None) -> Compressor:
    """Open a new stream. `level` None: a fast level, since shards are compressed once and read for months."""
    default = _KINDS[kind][2]
    if level is not None:
        check_level(kind, level)
    return _KINDS[kind][3](default if level is None else level)
