"""Read the answers to batch reads: the length of each item if requested, then the bytes of all."""

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
