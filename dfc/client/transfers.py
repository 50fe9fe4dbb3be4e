"""Bytes of objects: bodies to upload, reads like a file, downloads that resume, checksums.

A `replayable` source can be read again, so its upload can be retried. Every source hashes the bytes as they are sent, so
that the node's answer can be compared with what was really sent.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

import xxhash

from dfc.checksum import Buffer, checksum_of, is_checksum
from dfc.errors import BadRequest, ChecksumMismatch, Conflict, NotSeekable, PreconditionFailed
from dfc.http.blocking import Broken, Response
from dfc.http.retry import Cancellation, Headers, Retries
from dfc.limits import KIB, MIB
from dfc.reach.objects import ObjectCalls, Query, checksum_in, described, etag_in
from dfc.reach.reading import CopyReader
from dfc.wire import SAMPLES_HEADER
from dfc.wire.objects import ObjectInfo

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

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
        self.begun = False  # whether reading has started; a source that is not replayable is then used up
        self._reported = 0

    def chunks(self) -> Iterator[Buffer]:
        """Yield the bytes from the start in non-empty pieces; `sent_checksum` is set after the last.

        `progress` is called with the size of each piece once the next one is requested; on a retry, it first gets the negative
        of all it got so far. Raises BadRequest if the source cannot be read again, OSError if a file cannot be read.
        """
        if self.begun and not self.replayable:
            raise BadRequest("the upload broke off and its body cannot be read a second time: pass a file or bytes")
        self.begun = True
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


# --- Read an object like a raw file: `readinto` fills buffers straight from the socket and resumes after broken connections, at
# another node if the object has copies.
#
# An object that is read from start to end is compared with its checksum before the last piece is returned.

BULK_READ_BYTES: Final = 1 * MIB  # measured: 3.1 GB/s with verification; 256 KiB gives 1.9, 4 MiB 2.7
_COUNT: Final = re.compile(r"[0-9]{1,19}")  # int() refuses thousands of digits


class ObjectRequest:
    """What to read: an object, or a part of a shard given by the query. Can be opened at any byte."""

    def __init__(self, calls: ObjectCalls, bucket: str, name: str, query: Query = ()) -> None:
        self.calls = calls
        self.bucket = bucket
        self.name = name
        self.query = query

    def open(self, start: int = 0, end: int | None = None, etag: str | None = None, last: Collection[str] = ()) -> Response:
        """Request bytes `start` to `end` (exclusive; None: to the end); with an etag, the whole object if it has changed.

        The nodes of the URLs in `last` are asked after others with the same object.
        """
        headers: dict[str, str] = {}
        if start or end is not None:
            headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
            if etag:
                headers["If-Range"] = f'"{etag}"'
        return self.calls.call("GET", self.bucket, self.name, query=self.query, headers=headers, last=last)

    def has_other(self, tried: Collection[str]) -> bool:
        """Whether the object can be read from a node that none of these URLs belongs to."""
        return self.calls.has_other(self.bucket, self.name, tried)

    def __str__(self) -> str:
        return f"{self.bucket}/{self.name}" + "".join(f" {key}={value}" for key, value in self.query)


class ObjectReader(CopyReader, io.RawIOBase):
    """An unbuffered, seekable reader of one object or a range of it; positions count from the object's first byte.

    `info` has name, size and etag as of opening; if the object is replaced and the connection then breaks, PreconditionFailed
    is raised. What can only be read whole (a member of a compressed shard) has a size of -1, and raises NotSeekable for a
    range. `checksum` is the expected xxh3-128 of the whole, or None if the node does not send it.
    """

    def __init__(
        self, request: ObjectRequest, start: int = 0, length: int | None = None, *, etag: str | None = None, verify: bool = True
    ) -> None:
        wanted_end = None if length is None else start + length
        super().__init__(start, wanted_end)
        self._request = request
        self._retries = Retries(request.calls.policy)
        answer = request.open(start, wanted_end, etag)
        self.start, version = described(answer)
        size = version.size
        self.info: ObjectInfo = object_info(request.bucket, request.name, answer.headers, -1 if size is None else size)
        if answer.status != 206 and (start or length is not None) and etag is None:
            answer.close()
            raise NotSeekable(f"{request} can only be read as a whole, not in ranges")
        self._position, self._size = self.start, size
        self._end = size if wanted_end is None or size is None else min(wanted_end, size)
        self._continue_with(answer)
        self.checksum = checksum_in(answer.headers) or (self.info.etag if is_checksum(self.info.etag) else None)
        if verify and self.checksum and self.start == 0 and self._end == size:
            self._verify(self.checksum)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self.info.size >= 0

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to another position. The next read sends a new request, and the checksum is no longer verified."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._end or 0}[whence]
        position = base + offset
        if position < 0 or not self.seekable():
            raise io.UnsupportedOperation(f"cannot seek to {position} in {self._request}")
        if position != self._position:
            self._position = position
            self._hasher = None
            self._drop()
        return position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill the buffer and return the number of bytes: fewer at the end, then 0.

        Raises ChecksumMismatch with the last bytes, Unreachable if the connection breaks and cannot be resumed.
        """
        return self._fill(memoryview(buffer).cast("B"))

    def readall(self) -> bytes:
        """Read the rest. If the size is known, memory is allocated once."""
        if self._end is None:
            pieces = []
            while piece := self.read(BULK_READ_BYTES):
                pieces.append(piece)
            return b"".join(pieces)
        # BytesIO can return its buffer without a copy; bytes(bytearray) copies.
        whole = io.BytesIO(bytes(max(self._end - self._position, 0)))
        with whole.getbuffer() as view:
            at = 0
            while at < len(view):
                at += self.readinto(view[at : at + BULK_READ_BYTES])
        return whole.getvalue()

    def close(self) -> None:
        if not self.closed:
            self._drop()
        super().close()

    def _has_other(self, passed: Collection[str]) -> bool:
        return self._request.has_other(passed)

    def _goes_on(self, answer: Response, gained: int) -> bool:
        return self._size is not None and super()._goes_on(answer, gained)

    def _broke(self, problem: Broken, gained: int) -> bool:
        return self._size is not None and self._retries.again(problem, self._request.calls.wait, useful=gained > 0)

    def _connect(self) -> Response:
        if self._size is None:
            raise NotSeekable(f"{self._request} can only be read as a whole, and the connection was closed early")
        answer = self._request.open(self._position, self._end, self.info.etag, self._passed)
        start, version = described(answer)
        if (start, version.size, version.etag) == (self._position, self.info.size, self.info.etag):
            return answer
        answer.close()
        raise PreconditionFailed(f"{self._request} was replaced while it was being read")

    def _mismatch(self, found: str) -> ChecksumMismatch:
        return ChecksumMismatch(f"{self._request} arrived damaged: its checksum is xxh3-128={found}, not {self.checksum}")

    def __del__(self) -> None:
        # Return the connection even if the reader was not closed. Errors are ignored, as in RawIOBase.__del__.
        try:
            self.close()
        except Exception:
            pass


def object_info(bucket: str, name: str, headers: Headers, size: int) -> ObjectInfo:
    """Make an ObjectInfo from the headers of a GET or HEAD; `size` is the size of the whole object in bytes."""
    samples = headers.get(SAMPLES_HEADER) or ""
    return ObjectInfo(
        samples=int(samples) if _COUNT.fullmatch(samples) else None,
        bucket=bucket,
        name=name,
        size=size,
        etag=etag_in(headers),
        modified=_rfc3339(headers.get("Last-Modified")),
        content_type=headers.get("Content-Type") or "",
    )


def _rfc3339(http_date: str | None) -> str:
    if not http_date:
        return ""
    try:
        return parsedate_to_datetime(http_date).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):
        return ""


# --- Resumable downloads: data is kept in `NAME.ETAG.part` and renamed to NAME once it is complete and verified.
#
# The etag in the name of the part tells which version of the object it belongs to; no other state is needed.

_NO_ETAG: Final = "0" * 32
Progress = Callable[[int], None]


def download(request: ObjectRequest, path: str, *, resume: bool = True, progress: Progress | None = None) -> ObjectInfo:
    """Download an object to the file `path`, replacing it. `progress` gets byte counts, including those of a resumed part.

    If the checksum is wrong at the end, the part is deleted and the download is retried once from the start. Raises
    ChecksumMismatch, Conflict if another process downloads to the same path, OSError of the local disk, and the node's error.
    """
    if not resume:
        _remove_parts(path)
    report = progress or (lambda count: None)
    try:
        info = _attempt(request, path, report)
    except ChecksumMismatch:
        info = _attempt(request, path, report)
    _remove_parts(path)
    return info


def parts_of(path: str) -> list[str]:
    """List the parts for a path, of any version of the object, newest last."""
    directory, base = os.path.split(path)
    pattern = re.compile(re.escape(base) + r"\.[0-9a-f]{32}\.part")
    with os.scandir(directory or ".") as entries:
        found = [(entry.stat().st_mtime_ns, entry.name) for entry in entries if pattern.fullmatch(entry.name)]
    return [os.path.join(directory, name) for _, name in sorted(found)]


def part_path(path: str, etag: str) -> str:
    """Return the path of the part for one version of an object."""
    return f"{path}.{etag if is_checksum(etag) else _NO_ETAG}.part"


def _attempt(request: ObjectRequest, path: str, progress: Progress) -> ObjectInfo:
    with ExitStack() as stack:
        parts = parts_of(path)
        part = stack.enter_context(_Part(parts[-1])) if parts else None
        if part is not None and part.size and part.etag != _NO_ETAG:
            reader = stack.enter_context(ObjectReader(request, part.size, etag=part.etag, verify=False))
        else:
            reader = stack.enter_context(ObjectReader(request, verify=False))
        wanted = part_path(path, reader.info.etag)
        if part is None or part.path != wanted:
            if part is not None:
                os.unlink(part.path)
            part = stack.enter_context(_Part(wanted))
        if part.size != reader.start:
            part.restart()
        progress(part.size)
        _receive(reader, part, progress)
        os.replace(part.path, path)
        return reader.info


def _receive(reader: ObjectReader, part: _Part, progress: Progress) -> None:
    buffer = memoryview(bytearray(BULK_READ_BYTES))
    while count := reader.readinto(buffer):
        part.write(buffer[:count])
        progress(count)
    found = part.hasher.hexdigest()
    if reader.checksum is not None and found != reader.checksum:
        os.unlink(part.path)
        progress(-part.size)
        raise ChecksumMismatch(f"{part.path} has the checksum xxh3-128={found}, not {reader.checksum}, and was deleted")


def _remove_parts(path: str) -> None:
    for part in parts_of(path):
        with suppress(FileNotFoundError):  # another process finished the download
            os.unlink(part)


class _Part:
    """A part file, locked against other processes, with a running hash of its content.

    Its last byte is dropped on opening, so that a complete part (of a process killed before the rename) can be resumed like
    any other.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.etag = path[-37:-5]
        self.hasher = xxhash.xxh3_128()
        self.size = 0
        self._file = open(path, "a+b", buffering=0)

    def __enter__(self) -> _Part:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise Conflict(f"another process is downloading to {self.path}") from None
        self._file.truncate(max(os.fstat(self._file.fileno()).st_size - 1, 0))
        self._file.seek(0)
        buffer = memoryview(bytearray(BULK_READ_BYTES))
        while count := self._file.readinto(buffer):
            self._count(buffer[:count])
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: memoryview) -> None:
        self._count(data)
        while data:
            data = data[self._file.write(data) :]

    def restart(self) -> None:
        """Discard the content."""
        self._file.truncate(0)
        self.hasher.reset()
        self.size = 0

    def _count(self, data: memoryview) -> None:
        self.hasher.update(data)
        self.size += len(data)


# --- Computes the checksum of a local file, in pieces so that Ctrl-C works.


def checksum_of_file(path: str, cancellation: Cancellation) -> str:
    """Return the xxh3-128 of a file in hex. OSError; Cancelled."""
    hasher = xxhash.xxh3_128()
    buffer = memoryview(bytearray(BULK_READ_BYTES))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            cancellation.check()
            hasher.update(buffer[:count])
    return hasher.hexdigest()
