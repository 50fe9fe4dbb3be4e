"""Read an object like a raw file: `readinto` fills buffers straight from the socket and resumes after broken connections, at
another node if the object has copies.

An object that is read from start to end is compared with its checksum before the last piece is returned.
"""

from __future__ import annotations

import io
import re
from collections.abc import Collection
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

from dfc.checksum import is_checksum
from dfc.errors import ChecksumMismatch, NotSeekable, PreconditionFailed
from dfc.http.calls.blocking import Broken, Response
from dfc.http.calls.problems import Headers
from dfc.http.calls.retry import Retries
from dfc.limits import MIB
from dfc.reach.facts import checksum_in, described, etag_in
from dfc.reach.objects import ObjectCalls
from dfc.reach.reading import CopyReader
from dfc.reach.routing import Query
from dfc.wire import SAMPLES_HEADER
from dfc.wire.objects import ObjectInfo

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

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
