"""Choose the index builder for a shard by its name and its first bytes."""

from __future__ import annotations

from typing import BinaryIO

from dfc.checksum import Buffer
from dfc.tar.compression import MAGIC_BYTES, CompressionError, Decompressor, kind_of_bytes
from dfc.tar.header import TarError
from dfc.tar.headerbatch import PlainFiles
from dfc.tar.index.builder import Builder, IndexBuilder, IndexSummary
from dfc.tar.index.format import KINDS


def open_builder(kind: str, file: BinaryIO, temporary_directory: str) -> Builder:
    """Open the builder for a shard. Its first bytes overrule `kind`: a plain tar named .tgz is indexed like any other."""
    return _SniffingBuilder(kind, file, temporary_directory)


class CompressedIndexBuilder:
    """Decompresses what it is fed and indexes that; used like IndexBuilder. Limits stop decompression bombs."""

    def __init__(self, kind: str, file: BinaryIO, temporary_directory: str) -> None:
        self._kind = kind
        self._builder = IndexBuilder(file, temporary_directory)
        self._decompressor: Decompressor | None = Decompressor(kind)
        self._fed = 0

    @property
    def problem(self) -> TarError | None:
        return self._builder.problem

    def feed(self, data: Buffer, files: PlainFiles | None = None) -> None:
        """Take the next bytes of the compressed shard. Never raises for their contents."""
        self._fed += len(data)
        if self._decompressor is None:
            return
        try:
            for chunk in self._decompressor.feed(data):
                self._builder.feed(chunk)
                if self._builder.problem is not None:
                    self._decompressor = None
                    return
        except CompressionError as error:
            self._fail(error)

    def finish(self, version: str, size: int, checksum: str) -> IndexSummary:
        """Like IndexBuilder.finish; `size` is that of the compressed shard."""
        if self._decompressor is not None:
            if size != self._fed:
                raise ValueError(f"{self._fed} bytes were fed, not {size}")
            try:
                self._decompressor.finish()
            except CompressionError as error:
                self._fail(error)
        ignored = None if self._decompressor is None else self._decompressor.ignored_from
        warnings = (
            () if ignored is None else (f"data after the {self._kind} stream is ignored, at offset {ignored} of the file",)
        )
        self._decompressor = None
        return self._builder.finish_as(self._kind, version, size, checksum, warnings)

    def close(self) -> None:
        self._decompressor = None
        self._builder.close()

    def _fail(self, error: CompressionError) -> None:
        self._decompressor = None
        self._builder.fail(TarError(str(error), self._builder.archive_size, truncated=error.truncated))


class _SniffingBuilder:
    """Chooses the builder by the first bytes, then forwards everything to it."""

    def __init__(self, kind: str, file: BinaryIO, temporary_directory: str) -> None:
        if kind not in KINDS:
            raise ValueError(f"unknown kind of shard: {kind!r}")
        self._kind = kind
        self._file = file
        self._temporary_directory = temporary_directory
        self._start = bytearray()
        self._builder: Builder | None = None

    @property
    def problem(self) -> TarError | None:
        return None if self._builder is None else self._builder.problem

    def feed(self, data: Buffer, files: PlainFiles | None = None) -> None:
        if self._builder is not None:
            self._builder.feed(data, files)
            return
        missing = MAGIC_BYTES - len(self._start)
        self._start += data[:missing]
        if len(self._start) == MAGIC_BYTES:
            self._choose().feed(data[missing:])

    def finish(self, version: str, size: int, checksum: str) -> IndexSummary:
        return self._choose().finish(version, size, checksum)

    def close(self) -> None:
        if self._builder is not None:
            self._builder.close()

    def _choose(self) -> Builder:
        if self._builder is None:
            start = bytes(self._start)
            kind = kind_of_bytes(start, f".{self._kind}") or ("tar" if _maybe_tar(start) else self._kind)
            if kind == "tar":
                self._builder = IndexBuilder(self._file, self._temporary_directory)
            else:
                self._builder = CompressedIndexBuilder(kind, self._file, self._temporary_directory)
            self._builder.feed(start)
            self._start = bytearray()
        return self._builder


def _maybe_tar(start: bytes) -> bool:
    """Whether these bytes could begin a member's name, or are zeros or missing: an empty archive."""
    text = start.partition(b"\0")[0]
    return len(start) in (0, MAGIC_BYTES) and all(byte >= 32 for byte in text)
