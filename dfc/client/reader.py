"""A stored object as a raw file: `readinto` fills large buffers from the socket; a broken connection is resumed where it broke.

What was read from the first to the last byte is compared with the object's checksum before the last piece is handed out.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Final

import xxhash

from dfc.checksum import CHECKSUM_NAME
from dfc.client.exchange import ObjectCalls
from dfc.client.models import ObjectInfo, object_info
from dfc.client.routing import Query
from dfc.errors import ChecksumMismatch, NotSeekable, PreconditionFailed
from dfc.http.calls.blocking import Broken, Response
from dfc.http.calls.problems import Headers, retry_after_s
from dfc.limits import MIB
from dfc.wire import CHECKSUM_HEADER

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BULK_READ_BYTES: Final = 1 * MIB  # measured: 3.1 GB/s with verification; 256 KiB gives 1.9, 4 MiB 2.7
_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_CHECKSUM: Final = re.compile(r"[0-9a-f]{32}")


class ObjectRequest:
    """What to read: an object, or a part of a shard named by the query. Opens answers from any byte on."""

    def __init__(self, calls: ObjectCalls, bucket: str, name: str, query: Query = ()) -> None:
        self.calls = calls
        self.bucket = bucket
        self.name = name
        self.query = query

    def open(self, start: int = 0, end: int | None = None, etag: str | None = None) -> Response:
        """Bytes `start` to `end` (exclusive; None: to the last); with an etag, the whole when the object is another by now."""
        headers: dict[str, str] = {}
        if start or end is not None:
            headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
            if etag:
                headers["If-Range"] = f'"{etag}"'
        return self.calls.call("GET", self.bucket, self.name, query=self.query, headers=headers)

    def __str__(self) -> str:
        return f"{self.bucket}/{self.name}" + "".join(f" {key}={value}" for key, value in self.query)


class ObjectReader(io.RawIOBase):
    """An unbuffered, seekable reader of one object or a range of it; positions count from the object's first byte.

    `info` tells its name, size and etag as they were when it was opened; when the object is replaced meanwhile and the
    connection breaks, PreconditionFailed is raised. What can only be read whole (a member of a compressed shard) has a size of
    -1, and gives NotSeekable for a range.
    `checksum` is the xxh3-128 that the whole must have, None if the node does not tell.
    """

    def __init__(
        self, request: ObjectRequest, start: int = 0, length: int | None = None, *, etag: str | None = None, verify: bool = True
    ) -> None:
        super().__init__()
        self._request = request
        wanted_end = None if length is None else start + length
        self._answer: Response | None = None
        answer = request.open(start, wanted_end, etag)
        self.start, size = _extent(answer)
        self.info: ObjectInfo = object_info(request.bucket, request.name, answer.headers, size)
        self._position = self.start
        self._end = size if wanted_end is None or size < 0 else min(wanted_end, size)
        if answer.status != 206 and (start or length is not None) and etag is None:
            answer.close()
            raise NotSeekable(f"{request} can only be read whole")
        self._answer = answer
        self._attempt = 0
        self.checksum = _checksum_in(answer.headers, self.info.etag)
        whole = self.start == 0 and self._end == size
        self._hasher = xxhash.xxh3_128() if verify and whole and self.checksum else None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._end >= 0

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """The next read begins a new request there; the checksum is not verified any more."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._end}[whence]
        position = base + offset
        if position < 0 or self._end < 0:
            raise io.UnsupportedOperation(f"cannot seek to {position} in {self._request}")
        if position != self._position:
            self._position = position
            self._hasher = None
            self._drop_answer()
        return position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill the buffer, except at the end; 0 there.

        Raises ChecksumMismatch with the last bytes, Unreachable when it breaks off and cannot be resumed.
        """
        view = memoryview(buffer).cast("B")
        if self._end >= 0:
            view = view[: max(self._end - self._position, 0)]
        if not view or (self._answer is None and self._end < 0):
            return 0
        count = self._fill(view)
        self._position += count
        if self._hasher is not None:
            self._hasher.update(view[:count])
            if self._position == self._end:
                self._verify()
        return count

    def readall(self) -> bytes:
        """The rest; its memory is taken once, when the size is known."""
        if self._end < 0:
            pieces = []
            while piece := self.read(BULK_READ_BYTES):
                pieces.append(piece)
            return b"".join(pieces)
        # BytesIO hands its buffer out without a copy, which bytes(bytearray) cannot.
        whole = io.BytesIO(bytes(max(self._end - self._position, 0)))
        with whole.getbuffer() as view:
            at = 0
            while at < len(view):
                at += self.readinto(view[at : at + BULK_READ_BYTES])
        return whole.getvalue()

    def close(self) -> None:
        if not self.closed:
            self._drop_answer()
        super().close()

    def _fill(self, view: memoryview) -> int:
        while True:
            if self._answer is None:
                self._answer = self._reopen()
            try:
                count = self._answer.readinto(view)
            except Broken as problem:
                self._answer = None
                self._wait(problem)
            else:
                self._attempt = 0
                if count == 0:
                    self._answer = None
                return count

    def _wait(self, problem: Broken) -> None:
        policy = self._request.calls.policy
        if self._end < 0 or self._attempt >= policy.retries:
            raise problem
        self._request.calls.wait(policy.delay_s(self._attempt, retry_after_s(problem)))
        self._attempt += 1

    def _reopen(self) -> Response:
        etag = self.info.etag
        answer = self._request.open(self._position, self._end, etag)
        start, size = _extent(answer)
        found = object_info("", "", answer.headers, size)
        if start == self._position and size == self.info.size and found.etag == etag:
            return answer
        answer.close()
        raise PreconditionFailed(f"{self._request} was replaced while it was read")

    def _verify(self) -> None:
        assert self._hasher is not None
        found = self._hasher.hexdigest()
        self._hasher = None
        if found != self.checksum:
            raise ChecksumMismatch(f"{self._request} arrived with xxh3-128={found}, not {self.checksum}")

    def _drop_answer(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.close()

    def __del__(self) -> None:
        # A reader that is forgotten gives its connection back; RawIOBase would only call close() without a word.
        try:
            self.close()
        except Exception:
            pass


def _extent(answer: Response) -> tuple[int, int]:
    """First byte of the answer, and size of the whole object (-1: not known)."""
    if answer.status == 206:
        match = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range") or "")
        if match is None:
            answer.close()
            raise Broken("a partial answer without a Content-Range")
        return int(match[1]), int(match[3])
    length = answer.headers.get("Content-Length")
    return 0, int(length) if length is not None and length.isdigit() else -1


def _checksum_in(headers: Headers, etag: str) -> str | None:
    """From `X-DFC-Checksum`, else from an ETag of that form."""
    kind, _, value = (headers.get(CHECKSUM_HEADER) or "").partition("=")
    if kind == CHECKSUM_NAME and _CHECKSUM.fullmatch(value):
        return value
    return etag if _CHECKSUM.fullmatch(etag) else None
