"""Answers to batch reads: the length of each item where it is told, then the bytes of all."""

from __future__ import annotations

import io
from array import array
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from dfc.batch.preamble import decode_preamble, little_endian, preamble_bytes
from dfc.errors import ObjectCorrupt, Unreachable
from dfc.http.calls.blocking import Response

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class BatchReader(io.RawIOBase):
    """The tar of one batch read, as it comes. Raises `Unreachable` when it breaks off: what was read is then not all.

    `lengths` are the bytes of each item when they were asked for (no end of an archive follows the last), else empty.
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
        """Read as many bytes as the view has. Unreachable when so many do not come."""
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
    """The reader of an answer that begins with the lengths of so many items, as nodes tell them to clients.

    Unreachable when the connection breaks, ObjectCorrupt when they do not fit the rest.
    """
    return _begun(answer, count, lambda take: little_endian(array("Q", bytes(take(8 * count)))))


def read_preamble(answer: Response, count: int) -> BatchReader:
    """The same for an answer as nodes give it to each other (`/v1/node/batch`)."""
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
        with suppress(ValueError):  # also those of msgspec
            reader.lengths = read(take)
        reader.size = answer.length or 0
        if len(reader.lengths) != count or sum(reader.lengths) != reader.size:
            raise ObjectCorrupt("the lengths in a batch answer do not add up to its size")
    except BaseException:
        reader.close()
        raise
    return reader
