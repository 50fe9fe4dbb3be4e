"""Sources of upload bodies: memory, a file, a file object or an iterator.

A `replayable` source can be read again, so its upload can be retried. Every source hashes the bytes as they are sent, so
that the node's answer can be compared with what was really sent.
"""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, Final, cast

import xxhash

from dfc.checksum import Buffer, checksum_of
from dfc.errors import BadRequest
from dfc.limits import KIB, MIB

READ_BYTES: Final = 512 * KIB  # stays in the L2 cache between reading, hashing and sending
# Up to this size a file is read twice, the second time from the page cache: the node then knows the checksum and can refuse
# a damaged body before it replaces the old object. Larger bodies are compared with what was stored afterwards.
HASH_FIRST_BYTES: Final = 64 * MIB

Body = str | os.PathLike[str] | Buffer | BinaryIO | Iterable[bytes]


class UploadSource(ABC):
    """Base class: a source of unknown size that can be read once. `checksum` is the xxh3-128, once known."""

    size: int | None = None
    replayable = False

    def __init__(self) -> None:
        self.checksum: str | None = None
        self.sent_checksum: str | None = None
        self.progress: Callable[[int], None] | None = None
        self._begun = False
        self._reported = 0

    @property
    def begun(self) -> bool:
        """Whether reading has started; a source that is not replayable is then used up."""
        return self._begun

    def chunks(self) -> Iterator[Buffer]:
        """Yield the bytes from the start in non-empty pieces; `sent_checksum` is set after the last.

        `progress` is called with the size of each piece once the next one is requested; on a retry, it first gets the negative
        of all it got so far. Raises BadRequest if the source cannot be read again, OSError if a file cannot be read.
        """
        if self._begun and not self.replayable:
            raise BadRequest("the upload broke off and its body cannot be read a second time: pass a file or bytes")
        self._begun = True
        self.sent_checksum = None
        hasher = xxhash.xxh3_128()
        count = 0
        self._report(-self._reported)
        for data in self._read():
            if len(data):
                hasher.update(data)
                count += len(data)
                yield data
                self._report(len(data))
        if self.size is not None and count != self.size:
            raise BadRequest(f"{self} was changed during the upload: it has {count} bytes instead of {self.size}")
        self.sent_checksum = hasher.hexdigest()

    def hash_first(self) -> str | None:
        """Compute the checksum by reading a replayable source to its end; None for others, unless it is known."""
        if self.checksum is None and self.replayable:
            hasher = xxhash.xxh3_128()
            for data in self._read():
                hasher.update(data)
            self.checksum = hasher.hexdigest()
        return self.checksum

    def __str__(self) -> str:
        return "the body"

    def _report(self, count: int) -> None:
        self._reported += count
        if self.progress is not None and count:
            self.progress(count)

    @abstractmethod
    def _read(self) -> Iterator[Buffer]:
        """Yield the bytes from the start; a piece is valid until the next one is requested."""


class BytesSource(UploadSource):
    """Bytes in memory, hashed at once, which is cheap."""

    replayable = True

    def __init__(self, data: Buffer) -> None:
        super().__init__()
        self._data = memoryview(data).cast("B")
        self.size = len(self._data)
        self.checksum = checksum_of(self._data)

    def _read(self) -> Iterator[Buffer]:
        for at in range(0, len(self._data), READ_BYTES):
            yield self._data[at : at + READ_BYTES]


class FileSource(UploadSource):
    """A file given by its path, opened for each try."""

    replayable = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._path = os.fspath(path)
        with open(self._path, "rb") as file:
            self.size = os.fstat(file.fileno()).st_size

    def __str__(self) -> str:
        return self._path

    def _read(self) -> Iterator[Buffer]:
        with open(self._path, "rb", buffering=0) as file:
            yield from _read_blocks(file)


class FileObjectSource(UploadSource):
    """An open binary file, from its current position to its end; replayable if it can be rewound."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self._start = 0
        if file.seekable():
            self._start = file.tell()
            self.size = file.seek(0, io.SEEK_END) - self._start
            file.seek(self._start)
            self.replayable = True

    def _read(self) -> Iterator[Buffer]:
        if self.replayable:
            self._file.seek(self._start)
        yield from _read_blocks(self._file)


class IteratorSource(UploadSource):
    """Any iterable of bytes; it can be read once and is sent with chunked encoding."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        super().__init__()
        self._pieces = pieces

    def _read(self) -> Iterator[Buffer]:
        for piece in self._pieces:
            yield memoryview(piece).cast("B")


def _read_blocks(file: Any) -> Iterator[memoryview]:
    if not hasattr(file, "readinto"):
        while data := file.read(READ_BYTES):
            yield memoryview(data)
        return
    buffer = memoryview(bytearray(READ_BYTES))
    while count := file.readinto(buffer):
        yield buffer[:count]


def make_source(body: Body, checksum: str | None = None) -> UploadSource:
    """Make the source for a body; a `str` or path object names a file.

    `checksum` (xxh3-128 in hex) is what the caller expects. Raises OSError for a file that cannot be opened.
    """
    source: UploadSource
    if isinstance(body, str | os.PathLike):
        source = FileSource(body)
    elif isinstance(body, bytes | bytearray | memoryview):
        source = BytesSource(body)
    elif hasattr(body, "read"):
        source = FileObjectSource(cast(BinaryIO, body))
    else:
        source = IteratorSource(body)
    if checksum is not None:
        source.checksum = checksum
    return source
