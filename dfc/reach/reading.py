"""Reads that resume where a connection broke: of one object, and of batches.

Those of an object go on at another node if it has copies. Each reader decides whom to ask, and for how long.
"""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import xxhash

from dfc.batch.items import decode_preamble, little_endian, preamble_bytes
from dfc.errors import ObjectCorrupt, Unreachable
from dfc.http.blocking import Broken, Response
from dfc.limits import KIB

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

PROGRESS_BYTES: Final = 64 * KIB  # an answer that delivered this much before it broke off was worth asking for


class ResumingReader(ABC):
    """Base class of readers of the bytes from `_position` to `_end` (exclusive; None: to the last). One thread at a time.

    `_connect` sets `_size`, the size of the object, when an answer states it. After the errors in `_handed_out`, the bytes
    read before them are handed out, and the next call meets the error again; after all others they are read again.
    """

    # A base class, not a separate object that is given these functions: in a reference cycle, a forgotten reader would keep its
    # connection until the next garbage collection.
    _handed_out: type[Exception] | tuple[()] = ()
    _answer: Response | None = None
    _size: int | None = None
    _hasher: xxhash.xxh3_128 | None = None
    _checksum = ""

    def __init__(self, position: int, end: int | None) -> None:
        super().__init__()
        self._position = position
        self._end = end
        self._continue_with(None)

    @abstractmethod
    def _connect(self) -> Response | None:
        """Return an answer whose next byte is at `_position`, of the same version, after as many tries as needed; None at the
        very end of the object."""

    @abstractmethod
    def _broke(self, problem: Broken, gained: int) -> bool:
        """Handle an answer that ended early after `gained` bytes: wait before a retry; return False or raise to give up."""

    def _goes_on(self, answer: Response, gained: int) -> bool:
        """Whether to connect again at once, without `_broke`, after an answer that ended early after `gained` bytes."""
        return False

    def _mismatch(self, found: str) -> Exception:
        """The error for bytes that do not match `_checksum`; for readers that call `_verify`."""
        raise NotImplementedError

    def _verify(self, checksum: str) -> None:
        """Compare the bytes from here to the end with this xxh3-128."""
        self._checksum = checksum
        self._hasher = xxhash.xxh3_128()

    def _continue_with(self, answer: Response | None) -> Response | None:
        self._answer = answer
        self._process = os.getpid()
        self._begun_at = self._position
        return answer

    def _fill(self, view: memoryview) -> int:
        """Fill the view, or less at the end; 0 when nothing is left. Raises what the methods above raise."""
        if self._end is not None:
            view = view[: max(self._end - self._position, 0)]
        done, begin = 0, self._position
        try:
            while done < len(view) and (count := self._some(view[done:])):
                done += count
        except BaseException as problem:
            if not done or not isinstance(problem, self._handed_out):
                # The caller does not get these bytes, so the next call must read them again.
                self._drop()
                self._position = begin
                raise
        if self._hasher is not None:
            self._hasher.update(view[:done])
            if self._position == self._end:
                found = self._hasher.hexdigest()
                self._hasher = None
                if found != self._checksum:
                    raise self._mismatch(found)
        return done

    def _some(self, view: memoryview) -> int:
        while True:
            answer = self._answer or self._continue_with(self._connect())
            try:
                count = 0 if answer is None else answer.receive(view)
                if count == 0 and answer is not None:
                    self._check_end(answer)
            except Broken as problem:
                assert answer is not None
                self._answer = None
                gained = self._position - self._begun_at
                if not self._goes_on(answer, gained) and not self._broke(problem, gained):
                    raise
                continue
            if count == 0:
                self._end = self._position
            self._position += count
            return count

    def _check_end(self, answer: Response) -> None:
        if self._size is not None and self._position < self._size:
            raise Broken(f"the body ended at byte {self._position} of {self._size}")
        if self._size is None and answer.status == 206:
            # A server may send less than requested, and this one does not state the size.
            raise Broken(f"a partial answer ended at byte {self._position}; the full size is unknown")

    def _drop(self) -> None:
        """Drop the connection; the next read opens another. In a forked child it belongs to the parent."""
        answer, self._answer = self._answer, None
        if answer is not None:
            if os.getpid() == self._process:
                answer.close()
            else:
                answer.forget()


class CopyReader(ResumingReader):
    """Base class of readers of objects that may have several copies: where an answer breaks off, the next node goes on at once.

    `_passed` are the URLs of the answers that broke off since the reader last got on; their nodes are to be asked last.
    """

    _passed: tuple[str, ...] = ()

    @abstractmethod
    def _has_other(self, passed: Collection[str]) -> bool:
        """Whether a node can be asked that none of these URLs belongs to."""

    def _goes_on(self, answer: Response, gained: int) -> bool:
        if answer.url in self._passed and gained < PROGRESS_BYTES:
            self._passed = ()  # it was asked again although it comes last, so all others refuse
            return False
        passed = (answer.url,) if gained >= PROGRESS_BYTES else (*self._passed, answer.url)
        goes_on = self._has_other(passed)
        self._passed = passed if goes_on else ()  # if all have broken off, all get another turn after a wait
        return goes_on


# --- Read the answers to batch reads: the length of each item if requested, then the bytes of all.


class BatchReader(io.RawIOBase):
    """Reads the tar of one batch read as it arrives. Raises `Unreachable` if the connection closes before the end.

    `lengths` are the bytes of each item if they were requested (then no end-of-archive blocks follow the last), else empty.
    """

    def __init__(self, answer: Response) -> None:
        super().__init__()
        self._answer = answer
        self.lengths: array[int] = array("Q")
        self.size = answer.length or 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        return self._answer.readinto(memoryview(buffer).cast("B"))

    def fill(self, view: memoryview | bytearray) -> None:
        """Fill the view. Raises Unreachable if the answer ends before that."""
        view, at = memoryview(view), 0
        while at < len(view):
            count = self._answer.readinto(view[at:])
            if not count:
                raise Unreachable("connection closed in the middle of a batch read")
            at += count

    def close(self) -> None:
        if not self.closed:
            self._answer.close()
        super().close()


def read_lengths(answer: Response, count: int) -> BatchReader:
    """Open an answer that begins with the lengths of `count` items, in the form for clients.

    Raises Unreachable when the connection breaks, ObjectCorrupt when the lengths do not match the rest.
    """
    return _begun(answer, count, lambda take: little_endian(array("Q", bytes(take(8 * count)))))


def read_preamble(answer: Response, count: int) -> BatchReader:
    """Open an answer in the form that nodes use among themselves (`/v1/node/batch`); raises like `read_lengths`."""
    size = answer.length or 0
    return _begun(answer, count, lambda take: decode_preamble(take(preamble_bytes(take(4), size)))[0])


def _begun(answer: Response, count: int, read: Callable[[Callable[[int], bytearray]], array[int]]) -> BatchReader:
    reader = BatchReader(answer)

    def take(size: int) -> bytearray:
        if size > (answer.length or 0):
            raise ValueError("more than there is")
        content = bytearray(size)
        reader.fill(content)
        return content

    try:
        with suppress(ValueError):  # including msgspec's
            reader.lengths = read(take)
        reader.size = answer.length or 0
        if len(reader.lengths) != count or sum(reader.lengths) != reader.size:
            raise ObjectCorrupt("the lengths in a batch answer do not add up to its size")
    except BaseException:
        reader.close()
        raise
    return reader
