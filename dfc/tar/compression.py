"""Streaming compression and decompression of gz, zst, lz4, bz2 and xz, in chunks of bounded size.

Consecutive members or frames are one stream, as for the command-line tools; skippable frames are skipped. Garbage after a gz,
bz2 or lz4 stream is ignored, as in libarchive. The cost of a stream is limited: its expansion, the memory for its window or
dictionary, and the number of tiny frames.
"""

from __future__ import annotations

import bz2
import io
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final, Protocol, cast

import lz4.block
import lz4.frame
from isal import igzip_lib, isal_zlib

from dfc.checksum import Buffer
from dfc.limits import (
    DECOMPRESS_CHUNK_BYTES,
    DECOMPRESS_FRAME_BYTES_MIN,
    DECOMPRESS_FRAMES_FREE,
    DECOMPRESS_FREE_BYTES,
    DECOMPRESS_MEMORY_MAX,
    DECOMPRESS_RATIO_MAX,
    KIB,
    MIB,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAGIC_BYTES: Final = 10
_GZIP: Final = b"\x1f\x8b\x08"
_GZIP_RESERVED_FLAGS: Final = 0xE0
_GZIP_HEADER_BYTES: Final = 10
_GZIP_CHECKSUM, _GZIP_EXTRA, _GZIP_NAME, _GZIP_COMMENT = 2, 4, 8, 16  # flags: optional fields of a header
_GZIP_HEADER_BYTES_MAX: Final = 96 * KIB  # the extra field alone may have 64 KiB
_BZIP2_HEADER_BYTES: Final = 14  # of a stream and its first block
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_LZ4: Final = b"\x04\x22\x4d\x18"
_LZ4_LEGACY: Final = b"\x02\x21\x4c\x18"  # `lz4 -l`, and the Linux kernel
_LZ4_LEGACY_BLOCK_BYTES: Final = 8 * MIB  # decompressed; only the last block may have fewer
_LZ4_LEGACY_STORED_BYTES_MAX: Final = _LZ4_LEGACY_BLOCK_BYTES + _LZ4_LEGACY_BLOCK_BYTES // 255 + 16
_SKIPPABLE: Final = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")  # the same for lz4 and zstd: pzstd begins with one
_SKIPPABLE_HEADER_BYTES: Final = 8
_XZ_PADDING_BYTES: Final = 4  # padding between and after streams: zeros, in multiples of this
_LOOK_BYTES: Final = {"gz": _GZIP_HEADER_BYTES, "bz2": _BZIP2_HEADER_BYTES, "lz4": 4}  # tells a frame from garbage
_WINDOW_LOG_MAX: Final = DECOMPRESS_MEMORY_MAX.bit_length() - 1
_IsalError: Final = cast(type[Exception], igzip_lib.IsalError)  # its stub declares an instance
_LIBRARY_ERRORS: Final = (
    OSError, EOFError, RuntimeError, ValueError, MemoryError, lzma.LZMAError, zstd.ZstdError, _IsalError,
    lz4.block.LZ4BlockError,
)  # fmt: skip


class CompressionError(Exception):
    """The stream is broken, truncated, or exceeds the limits. The message is meant for users."""

    def __init__(self, message: str, *, truncated: bool = False) -> None:
        super().__init__(message)
        self.truncated = truncated


class _Frame(Protocol):
    """Decompresses one member or frame; like bz2.BZ2Decompressor."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: Buffer, max_length: int = -1) -> bytes: ...


class _Skippable:
    """A skippable frame: magic number, length, and that many bytes to ignore."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._left = 0
        self.eof = False
        self.needs_input = True
        self.unused_data: bytes | None = None

    def decompress(self, data: Buffer, max_length: int = -1) -> bytes:
        view = memoryview(data)
        missing = _SKIPPABLE_HEADER_BYTES - len(self._header)
        if missing:
            self._header += view[:missing]
            view = view[missing:]
            if len(self._header) < _SKIPPABLE_HEADER_BYTES:
                return b""
            self._left = int.from_bytes(self._header[4:], "little")
        skipped = min(self._left, len(view))
        self._left -= skipped
        if not self._left:
            self.eof, self.unused_data = True, bytes(view[skipped:])
        return b""


class _LegacyStart:
    """The magic number of an lz4 legacy frame, which consists of blocks and has no end mark."""

    def __init__(self) -> None:
        self.eof = True
        self.needs_input = True
        self.unused_data: bytes | None = None

    def decompress(self, data: Buffer, max_length: int = -1) -> bytes:
        self.unused_data = bytes(data[len(_LZ4_LEGACY) :])
        return b""


class _LegacyBlock:
    """One block of an lz4 legacy frame: its stored size in four bytes, then the block, decompressed as a whole."""

    def __init__(self) -> None:
        self._stored = bytearray()
        self._size = 0
        self._out = memoryview(b"")
        self.eof = False
        self.unused_data: bytes | None = None

    @property
    def needs_input(self) -> bool:
        return not len(self._out)

    def decompress(self, data: Buffer, max_length: int = -1) -> bytes:
        if not len(self._out):
            self._stored += data
            if not self._size and len(self._stored) >= 4:
                self._size = 4 + int.from_bytes(self._stored[:4], "little")
            if not self._size or len(self._stored) < self._size:
                return b""
            with memoryview(self._stored) as view:
                self._out = memoryview(lz4.block.decompress(view[4 : self._size], uncompressed_size=_LZ4_LEGACY_BLOCK_BYTES))
                self.unused_data = bytes(view[self._size :])
            self._stored.clear()
        chunk = bytes(self._out if max_length < 0 else self._out[:max_length])
        self._out = self._out[len(chunk) :]
        self.eof = not len(self._out)
        return chunk


_OPENERS: Final[dict[str, Callable[[], object]]] = {
    "gz": lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP),
    "zst": lambda: zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX}),
    "lz4": lz4.frame.LZ4FrameDecompressor,
    "bz2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=DECOMPRESS_MEMORY_MAX),
    "skippable": _Skippable,
    "legacy": _LegacyStart,
    "block": _LegacyBlock,
}


def kind_of_bytes(start: bytes, name: str = "") -> str | None:
    """Detect the compression of a file by its first MAGIC_BYTES; None if it is not compressed.

    More bytes help if it begins with skippable frames, which lz4 and zst share; if they are not enough, the ending of `name`
    decides.
    """
    at = 0
    while _SKIPPABLE.match(start, at) and len(start) >= at + _SKIPPABLE_HEADER_BYTES:
        at += _SKIPPABLE_HEADER_BYTES + int.from_bytes(start[at + 4 : at + _SKIPPABLE_HEADER_BYTES], "little")
    if at:
        start = start[at:]
        if len(start) < 4:
            return next((kind for kind in ("lz4", "zst") if name.lower().endswith(f".{kind}")), None)
    if start.startswith(_ZSTD):
        return "zst"
    if start.startswith((_LZ4, _LZ4_LEGACY)):
        return "lz4"
    if at:
        return None
    if start.startswith(_GZIP):
        return "gz"
    if start.startswith(b"BZh") and start[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return "bz2"
    if start.startswith(b"\xfd7zXZ\0"):
        return "xz"
    return None


class Decompressor:
    """Push decompressor: `feed` what arrives and take the chunks, then `finish`. Raises CompressionError; unusable after that.

    `limited` enforces DECOMPRESS_RATIO_MAX: for untrusted uploads, not for shards already indexed. A chunk has at most
    `chunk_bytes`. `ignored_from` is the offset in the file of garbage after the stream, if there is any.
    """

    def __init__(self, kind: str, *, limited: bool = True, chunk_bytes: int = DECOMPRESS_CHUNK_BYTES) -> None:
        self._kind = kind
        self._chunk_bytes = chunk_bytes
        self._limited = limited
        self._frame: _Frame | None = None
        self._frames = 0
        self._legacy = False  # the last frame was an lz4 legacy block: another may follow without a magic number
        self._undecided = b""  # too few bytes to tell a frame from garbage
        self._zeros = 0  # after the last frame
        self.ignored_from: int | None = None
        self.bytes_in = 0
        self.bytes_out = 0

    def feed(self, data: Buffer) -> Iterator[bytes]:
        """Decompress a piece. Take all the chunks before the next `feed`; leaving any ends the stream."""
        self.bytes_in += len(data)
        rest: Buffer = data
        while len(rest) or (self._frame is not None and not self._frame.needs_input):
            if self._frame is None:
                rest = self._next_frame(rest)
                if self._frame is None:
                    return
            frame = self._frame
            try:
                chunk = frame.decompress(rest, self._chunk_bytes)
                rest = b""
                if frame.eof:
                    rest = frame.unused_data or b""
                    self._frame = None
                elif not chunk:
                    return  # whatever `needs_input` says: no progress without more input
            except _LIBRARY_ERRORS as error:
                raise CompressionError(f"the {self._kind} stream is broken ({str(error)[:100]})") from None
            if chunk:
                self.bytes_out += len(chunk)
                self._check_growth()
                yield chunk

    def finish(self) -> None:
        """End the stream. Raises CompressionError if it is truncated."""
        if self._frame is not None or not self._frames or (self._kind == "xz" and self._zeros % _XZ_PADDING_BYTES):
            raise CompressionError(f"the {self._kind} stream ends early", truncated=True)
        if self._undecided:
            self._ignore(self._undecided)

    def _next_frame(self, data: Buffer) -> Buffer:
        """Open the frame that begins here and return what to feed it; opens none if there is none or too few bytes are here."""
        if self.ignored_from is not None:
            return b""
        if self._undecided:
            data, self._undecided = self._undecided + bytes(data), b""
        if self._frames and self._kind in ("gz", "xz"):
            data = self._skip_zeros(data)
        if not len(data):
            return b""
        start = bytes(data[:_BZIP2_HEADER_BYTES])
        if self._kind in _LOOK_BYTES and (self._frames or self._kind != "bz2"):
            if len(start) < _LOOK_BYTES[self._kind]:
                self._undecided = start
                return b""
            if self._frames and not self._is_frame(start):
                self._ignore(data)
                return b""
        if self._kind == "gz" and start.startswith(_GZIP) and start[3]:
            data = self._plain_gzip(bytes(data))
            if not data:
                return b""
        self._frames += 1
        if self._frames > DECOMPRESS_FRAMES_FREE + self.bytes_out // DECOMPRESS_FRAME_BYTES_MIN:
            raise CompressionError(f"the {self._kind} stream has too many frames: {self._frames} for {self.bytes_out} bytes")
        self._frame = cast(_Frame, _OPENERS[self._opener(start)]())
        return data

    def _plain_gzip(self, data: bytes) -> bytes:
        """A gzip member without the optional fields of its header, which isal misreads if they arrive in pieces; empty until
        the whole header is here."""
        size = _gzip_header_size(data)
        if size is not None:
            return data[:3] + b"\0" + data[4:_GZIP_HEADER_BYTES] + data[size:]
        if len(data) > _GZIP_HEADER_BYTES_MAX:
            raise CompressionError(f"the gz stream has a header of more than {_GZIP_HEADER_BYTES_MAX} bytes")
        self._undecided = data
        return b""

    def _opener(self, start: bytes) -> str:
        if self._kind != "lz4":
            return self._kind
        if start.startswith(_LZ4_LEGACY):
            self._legacy = True
            return "legacy"
        self._legacy = self._legacy and _is_legacy_block(start)
        return "skippable" if _SKIPPABLE.match(start) else "block" if self._legacy else "lz4"

    def _is_frame(self, start: bytes) -> bool:
        if self._kind == "gz":
            return not self._zeros and start.startswith(_GZIP) and not start[3] & _GZIP_RESERVED_FLAGS
        if self._kind == "lz4" and ((self._legacy and _is_legacy_block(start)) or _SKIPPABLE.match(start)):
            return True
        return kind_of_bytes(start) == self._kind

    def _skip_zeros(self, data: Buffer) -> Buffer:
        """Skip the zeros after a gzip or xz stream, which are padding; after xz padding another stream may follow."""
        rest = bytes(data).lstrip(b"\0") if data[0] == 0 else data
        self._zeros += len(data) - len(rest)
        if len(rest) and self._kind == "xz":
            if self._zeros % _XZ_PADDING_BYTES:
                raise CompressionError("the xz stream is followed by other data")
            self._zeros = 0
        return rest

    def _ignore(self, rest: Buffer) -> None:
        self.ignored_from = self.bytes_in - len(rest)

    def _check_growth(self) -> None:
        if self._limited and self.bytes_out > max(DECOMPRESS_FREE_BYTES, DECOMPRESS_RATIO_MAX * self.bytes_in):
            raise CompressionError(f"the {self._kind} stream expands to more than {DECOMPRESS_RATIO_MAX} times its size")


def _gzip_header_size(data: bytes) -> int | None:
    """The size of a gzip header (RFC 1952, 2.3); None while `data` ends inside it."""
    at, flags = _GZIP_HEADER_BYTES, data[3]
    if flags & _GZIP_EXTRA:
        at += 2 + int.from_bytes(data[at : at + 2], "little")
    for flag in (_GZIP_NAME, _GZIP_COMMENT):
        if flags & flag:
            at = data.find(b"\0", at) + 1
            if not at:
                return None
    if flags & _GZIP_CHECKSUM:
        at += 2
    return at if at <= len(data) else None


def _is_legacy_block(start: bytes) -> bool:
    """Whether this is the size of a block; magic numbers are larger, and so is most garbage."""
    return 0 < int.from_bytes(start[:4], "little") <= _LZ4_LEGACY_STORED_BYTES_MAX


class DecompressedFile(io.RawIOBase):
    """Pull decompressor: reads like a file, without seeking. Raises CompressionError."""

    def __init__(self, source: BinaryIO, kind: str) -> None:
        self._source = source
        self._decompressor = Decompressor(kind, limited=False)
        self._chunks: Iterator[bytes] = iter(())
        self._chunk = memoryview(b"")

    @property
    def ignored_from(self) -> int | None:
        """The offset in `source` of garbage after the stream, known at its end."""
        return self._decompressor.ignored_from

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:  # type: ignore[override]
        view = memoryview(buffer).cast("B")
        while not len(self._chunk):
            chunk = next(self._chunks, None)
            if chunk is not None:
                self._chunk = memoryview(chunk)
                continue
            data = self._source.read(DECOMPRESS_CHUNK_BYTES)
            if not data:
                self._decompressor.finish()
                return 0
            self._chunks = self._decompressor.feed(data)
        count = min(len(view), len(self._chunk))
        view[:count] = self._chunk[:count]
        self._chunk = self._chunk[count:]
        return count


def open_decompressed(source: BinaryIO, kind: str) -> io.BufferedReader:
    """Open a reader that decompresses `source` as it is read; the caller closes `source`."""
    return io.BufferedReader(DecompressedFile(source, kind), DECOMPRESS_CHUNK_BYTES)


# --- Streaming compression of shards: the inverse of the above, for the same kinds.
#
# The same bytes and level give the same output with the same library: no time stamps, no file names.

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
