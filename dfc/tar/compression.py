"""Streaming decompression of gz, zst, lz4, bz2 and xz, pushed or pulled, in chunks of bounded size.

Several members or frames one after the other are one stream, as for the command-line tools. What one stream may cost is
bounded: growth, memory of its window or dictionary, and the number of tiny frames.
"""

from __future__ import annotations

import bz2
import io
import lzma
import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final, Protocol, cast

import lz4.frame
from isal import igzip_lib

from dfc.checksum import Buffer
from dfc.limits import (
    DECOMPRESS_CHUNK_BYTES,
    DECOMPRESS_FRAME_BYTES_MIN,
    DECOMPRESS_FRAMES_FREE,
    DECOMPRESS_FREE_BYTES,
    DECOMPRESS_MEMORY_MAX,
    DECOMPRESS_RATIO_MAX,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAGIC_BYTES: Final = 10
_WINDOW_LOG_MAX: Final = DECOMPRESS_MEMORY_MAX.bit_length() - 1
_IsalError: Final = cast(type[Exception], igzip_lib.IsalError)  # its stub calls it an instance
_LIBRARY_ERRORS: Final = (OSError, EOFError, RuntimeError, ValueError, MemoryError, lzma.LZMAError, zstd.ZstdError, _IsalError)


class CompressionError(Exception):
    """The stream is broken, ends early, or costs more than the limits. The message is a sentence for users."""


class _Frame(Protocol):
    """One member or frame, like bz2.BZ2Decompressor."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: Buffer, max_length: int = -1) -> bytes: ...


_OPENERS: Final[dict[str, Callable[[], object]]] = {
    "gz": lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP),
    "zst": lambda: zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX}),
    "lz4": lz4.frame.LZ4FrameDecompressor,
    "bz2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=DECOMPRESS_MEMORY_MAX),
}


def kind_of_bytes(start: bytes) -> str | None:
    """Which compression the first MAGIC_BYTES of a file belong to, if any."""
    if start.startswith(b"\x1f\x8b\x08"):
        return "gz"
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        return "zst"
    if start.startswith(b"\x04\x22\x4d\x18"):
        return "lz4"
    if start.startswith(b"BZh") and start[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return "bz2"
    if start.startswith(b"\xfd7zXZ\0"):
        return "xz"
    return None


class Decompressor:
    """Push side: `feed` what arrives and take the chunks, then `finish`. Raises CompressionError; of no use after that.

    `limited` holds it to DECOMPRESS_RATIO_MAX: for what strangers upload, not for what was indexed already. A chunk has at most
    `chunk_bytes`.
    """

    def __init__(self, kind: str, *, limited: bool = True, chunk_bytes: int = DECOMPRESS_CHUNK_BYTES) -> None:
        self._kind = kind
        self._chunk_bytes = chunk_bytes
        self._limited = limited
        self._frame: _Frame | None = None
        self._frames = 0
        self._padding = False
        self.bytes_in = 0
        self.bytes_out = 0

    def feed(self, data: Buffer) -> Iterator[bytes]:
        """Chunks that follow from this piece. Take all of them before the next `feed`; leaving the rest ends the stream."""
        self.bytes_in += len(data)
        rest: Buffer = data
        while len(rest) or (self._frame is not None and not self._frame.needs_input):
            if self._frame is None:
                rest = self._skip_padding(rest)
                if not len(rest):
                    return
                self._open_frame()
            frame = cast(_Frame, self._frame)
            try:
                chunk = frame.decompress(rest, self._chunk_bytes)
                rest = b""
                if frame.eof:
                    rest = frame.unused_data or b""
                    self._frame = None
                elif not chunk:
                    return  # whatever `needs_input` says: there is no progress without more
            except _LIBRARY_ERRORS as error:
                raise CompressionError(f"the {self._kind} stream is broken ({str(error)[:100]})") from None
            if chunk:
                self.bytes_out += len(chunk)
                self._check_growth()
                yield chunk

    def finish(self) -> None:
        """Raises CompressionError when the stream ends early."""
        if self._frame is not None or not self._frames:
            raise CompressionError(f"the {self._kind} stream ends early")

    def _open_frame(self) -> None:
        self._frames += 1
        if self._frames > DECOMPRESS_FRAMES_FREE + self.bytes_out // DECOMPRESS_FRAME_BYTES_MIN:
            raise CompressionError(f"the {self._kind} stream has {self._frames} frames for {self.bytes_out} bytes")
        self._frame = cast(_Frame, _OPENERS[self._kind]())

    def _skip_padding(self, data: Buffer) -> Buffer:
        """Zeros after the last gzip or xz stream are padding; nothing follows them."""
        if not self._frames or self._kind not in ("gz", "xz"):
            return data
        if not self._padding and data[0] != 0:
            return data
        self._padding = True
        if bytes(data).strip(b"\0"):
            raise CompressionError(f"the {self._kind} stream is followed by something else")
        return b""

    def _check_growth(self) -> None:
        if self._limited and self.bytes_out > max(DECOMPRESS_FREE_BYTES, DECOMPRESS_RATIO_MAX * self.bytes_in):
            raise CompressionError(f"the {self._kind} stream grows more than {DECOMPRESS_RATIO_MAX} times")


class _DecompressedFile(io.RawIOBase):
    """Pull side: reads like a file, without seeking. Raises CompressionError."""

    def __init__(self, source: BinaryIO, kind: str) -> None:
        self._source = source
        self._decompressor = Decompressor(kind, limited=False)
        self._chunks: Iterator[bytes] = iter(())
        self._chunk = memoryview(b"")

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
    """A reader of what `source` holds, decompressed as it is read; `source` stays the caller's to close."""
    return io.BufferedReader(_DecompressedFile(source, kind), DECOMPRESS_CHUNK_BYTES)
