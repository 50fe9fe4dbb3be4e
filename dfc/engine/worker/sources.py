"""Reads objects from files on this machine; see `dfc.engine.worker.remote` for other machines."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from dfc.engine.worker.throttle import Throttle
from dfc.errors import ObjectCorrupt
from dfc.limits import MIB

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

STREAM_BYTES: Final = 1 * MIB
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", None)
AHEAD_BYTES: Final = 16 * MIB  # how far ahead ranges are announced to the kernel (WILLNEED)


class BlobSource:
    """A blob on this machine: its first `size` bytes, which a footer follows. The descriptor belongs to the cache."""

    def __init__(self, descriptor: int, size: int, label: str, throttle: Throttle) -> None:
        self.size = size
        self._descriptor = descriptor
        self._label = label
        self._throttle = throttle

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self._throttle.take(len(buffer))
        self._fill(offset, buffer)

    def _fill(self, offset: int, buffer: memoryview) -> None:
        if offset < 0 or offset + len(buffer) > self.size:
            raise ObjectCorrupt(f"{self._label} has only {self.size} bytes; {offset + len(buffer)} are needed")
        while buffer:
            count = os.preadv(self._descriptor, [buffer], offset)
            if count == 0:
                raise ObjectCorrupt(f"{self._label} ends early, at byte {offset}")
            offset, buffer = offset + count, buffer[count:]

    def read_ranges(self, ranges: Sequence[tuple[int, int]], buffer: memoryview) -> None:
        whole = list(joined(ranges))
        at = announced = ahead = 0
        for offset, size in whole:
            while len(whole) > 1 and announced < len(whole) and ahead <= at + AHEAD_BYTES:
                start, count = whole[announced]
                os.posix_fadvise(self._descriptor, start, count, os.POSIX_FADV_WILLNEED)
                announced, ahead = announced + 1, ahead + count
            self.read_into(offset, buffer[at : at + size])
            at += size
        check_filled(at, buffer)

    def read_scattered(self, offsets: Sequence[int], sizes: Sequence[int], places: Sequence[int], buffer: memoryview) -> None:
        self._throttle.take(sum(sizes))
        at = self._read_at_hand(offsets, sizes, places, buffer)
        if at < len(sizes) - 1:  # flash reads many ranges in parallel
            for offset, size in zip(offsets[at:], sizes[at:], strict=True):
                os.posix_fadvise(self._descriptor, offset, size, os.POSIX_FADV_WILLNEED)
        for offset, size, place in zip(offsets[at:], sizes[at:], places[at:], strict=True):
            self._fill(offset, buffer[place : place + size])

    def _read_at_hand(self, offsets: Sequence[int], sizes: Sequence[int], places: Sequence[int], buffer: memoryview) -> int:
        """Read what is in the page cache; return the number of the first range that would block."""
        if _NOWAIT is None or min(offsets, default=0) < 0:  # for this call -1 means the file's position
            return 0
        descriptor, preadv, end = self._descriptor, os.preadv, self.size
        try:
            for number, (offset, size, place) in enumerate(zip(offsets, sizes, places, strict=True)):
                if offset + size > end or preadv(descriptor, [buffer[place : place + size]], offset, _NOWAIT) != size:
                    return number
        except OSError:  # not cached, or not supported by the file system; a real error will occur again
            return number
        return len(sizes)

    def open(self) -> BinaryIO:
        os.posix_fadvise(self._descriptor, 0, self.size, os.POSIX_FADV_SEQUENTIAL)
        return cast(BinaryIO, io.BufferedReader(_FileStream(self), STREAM_BYTES))

    def file(self) -> int | None:
        return self._descriptor

    def close(self) -> None:
        """Do nothing: the descriptor stays open for the next task."""


class _FileStream(io.RawIOBase):
    def __init__(self, source: BlobSource) -> None:
        super().__init__()
        self._source = source
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")[: self._source.size - self._position]
        self._source.read_into(self._position, view)
        self._position += len(view)
        return len(view)


def joined(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Merge adjacent (offset, size) pairs."""
    start = stop = -1
    for offset, size in ranges:
        if offset == stop:
            stop += size
            continue
        if start >= 0:
            yield start, stop - start
        start, stop = offset, offset + size
    if start >= 0:
        yield start, stop - start


def check_filled(count: int, buffer: memoryview) -> None:
    if count != len(buffer):
        raise ValueError(f"the buffer has {len(buffer)} bytes, but the ranges have {count}")
