"""Read the pieces of a batch, from files and from text made here, in order, a window at a time.

Within a window each file is read in order of offset, whatever order was requested. All work on pieces is done on columns of
numbers; for a single piece there is only one `preadv` into its place in the window.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dfc.errors import DfcError, StorageFailed, Unavailable
from dfc.limits import BATCH_OPEN_SHARDS_MAX, BATCH_WINDOW_BYTES
from dfc.storage.rows import RowChanged

Integers = NDArray[np.int64]
# Maps the error of a file that cannot be read, and the offset, to the error to raise.
ReadFailed = Callable[[OSError, int], DfcError]
TEXT = -1  # instead of a file's number: the piece is from the text
COLD_PIECE_S = 50e-6  # a piece in memory takes 4 µs, one that must come from flash 80 µs or more


class Files:
    """The files of one request, by number; opened when needed, and the oldest closed when there are many."""

    def __init__(self) -> None:
        self._openers: list[Callable[[], int]] = []
        self._failed: list[ReadFailed] = []
        self._open: dict[int, int] = {}
        self._kept: list[IO[Any]] = []

    def add(self, opener: Callable[[], int], failed: ReadFailed) -> int:
        """Add a file and return its number. It is opened immediately if there is room, so that its content cannot change."""
        self._openers.append(opener)
        self._failed.append(failed)
        number = len(self._openers) - 1
        if len(self._open) < BATCH_OPEN_SHARDS_MAX:
            self._open[number] = opener()
        return number

    def replace(self, number: int, file: IO[Any]) -> None:
        """Replace one of the shards by a file that was made for this request."""
        opened = self._open.pop(number, None)
        if opened is not None:
            os.close(opened)
        self._kept.append(file)
        self._failed[number] = lambda error, _: StorageFailed(f"cannot read a decompressed shard: {error.strerror}")
        self._openers[number] = lambda: os.dup(file.fileno())

    def failed(self, number: int, offset: int, error: OSError) -> DfcError:
        """Return the error to raise for a file that cannot be read at an offset."""
        return self._failed[number](error, offset)

    def descriptor(self, number: int) -> int:
        found = self._open.get(number)
        if found is None:
            try:
                found = self._open[number] = self._openers[number]()
            except RowChanged as change:
                raise Unavailable(f"{change.row.name!r} was replaced while it was being read") from None
        return found

    def trim(self) -> None:
        """Close the files that were opened first, down to BATCH_OPEN_SHARDS_MAX."""
        for number in list(self._open)[: max(0, len(self._open) - BATCH_OPEN_SHARDS_MAX)]:
            os.close(self._open.pop(number))

    def close(self) -> None:
        while self._open:
            with suppress(OSError):
                os.close(self._open.popitem()[1])
        for file in self._kept:
            file.close()
        self._kept.clear()


class PieceSource:
    """The bytes of n pieces: `sizes[i]` bytes from `offsets[i]` of file `numbers[i]`, or of `text` where that is TEXT.

    A ByteSource of `dfc.batch.gather` that is always ready.
    """

    event = (-1, 0)  # never waited for

    def __init__(self, files: Files, text: bytes, numbers: Integers, offsets: Integers, sizes: Integers) -> None:
        keep = np.flatnonzero(sizes)
        numbers, offsets, sizes = numbers[keep], offsets[keep], sizes[keep]
        if len(sizes):
            # Adjacent pieces that are also adjacent in their file become one.
            follows = (numbers[1:] == numbers[:-1]) & (offsets[1:] == offsets[:-1] + sizes[:-1])
            first = np.concatenate(([0], np.flatnonzero(~follows) + 1))
            numbers, offsets, sizes = numbers[first], offsets[first], np.add.reduceat(sizes, first)
        self._files = files
        self._text = memoryview(text)
        self._numbers, self._offsets = numbers, offsets
        self._ends = np.cumsum(sizes)  # in the stream
        self._next = 0  # the piece at `_position`
        self._position = 0
        self._cold = False  # whether the last window had to come from the disks
        self._advised = 0  # the kernel was told about all pieces before this one
        self._window: memoryview | None = None
        self._ready = memoryview(b"")

    @property
    def left(self) -> int:
        """The number of bytes still to come."""
        return (int(self._ends[-1]) if len(self._ends) else 0) - self._position + len(self._ready)

    def fill(self, view: memoryview) -> int:
        """Read as much as fits into the view. Blocking. Raises DfcError when a shard can no longer be read."""
        if not self._ready:
            if len(view) * 2 >= BATCH_WINDOW_BYTES or len(view) >= self.left:
                return self._read(view)
            # Only a little is requested at a time, but reading is fastest in large windows.
            if self._window is None:
                self._window = memoryview(bytearray(BATCH_WINDOW_BYTES))
            self._ready = self._window[: self._read(self._window)]
        count = min(len(view), len(self._ready))
        view[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _read(self, view: memoryview) -> int:
        """Read the next bytes of the stream into the view: whole pieces, or a part of a larger one."""
        start, first = self._position, self._next
        stop = int(np.searchsorted(self._ends, start + len(view), side="right"))  # pieces before it end within the view
        begun = int(self._ends[first - 1]) if first else 0  # where the piece at `start` begins
        if stop == first:
            number, offset = int(self._numbers[first]), int(self._offsets[first]) + start - begun
            self._copy(number, offset, view)
            self._position += len(view)
            return len(view)
        ends = self._ends[first:stop] - start
        begins = np.concatenate(([0], ends[:-1]))
        offsets = self._offsets[first:stop].copy()
        offsets[0] += start - begun
        numbers = self._numbers[first:stop]
        order = np.lexsort((offsets, numbers))
        if self._cold:
            self._announce(stop + (stop - first))
        started = time.perf_counter()
        self._copy_all(view, numbers[order], offsets[order].tolist(), begins[order].tolist(), ends[order].tolist())
        self._cold = time.perf_counter() - started > COLD_PIECE_S * len(order)
        self._position, self._next = int(self._ends[stop - 1]), stop
        self._files.trim()
        return int(ends[-1])

    def _announce(self, stop: int) -> None:
        """Tell the kernel which pieces come next, in this window and the one after, so that it fetches many at a time."""
        first = max(self._next, self._advised)
        self._advised = stop = min(stop, len(self._ends))
        begins = np.concatenate(([0], self._ends))[first:stop]
        sizes = (self._ends[first:stop] - begins).tolist()
        for number, offset, size in zip(
            self._numbers[first:stop].tolist(), self._offsets[first:stop].tolist(), sizes, strict=True
        ):
            if number != TEXT:
                os.posix_fadvise(self._files.descriptor(number), offset, size, os.POSIX_FADV_WILLNEED)

    def _copy_all(self, view: memoryview, numbers: Integers, offsets: list[int], begins: list[int], ends: list[int]) -> None:
        """Copy pieces, given in order of file and offset, each to its place in the view."""
        preadv = os.preadv
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(offsets)]
        for low, high in pairwise(cuts):
            number = int(numbers[low])
            if number == TEXT:
                for at in range(low, high):
                    begin, end, offset = begins[at], ends[at], offsets[at]
                    view[begin:end] = self._text[offset : offset + end - begin]
                continue
            descriptor = self._files.descriptor(number)
            offset = 0
            try:
                for offset, begin, end in zip(offsets[low:high], begins[low:high], ends[low:high], strict=True):
                    if preadv(descriptor, (view[begin:end],), offset) != end - begin:
                        self._copy(number, offset, view[begin:end])
            except OSError as error:
                raise self._files.failed(number, offset, error) from error

    def _copy(self, number: int, offset: int, view: memoryview) -> None:
        if number == TEXT:
            view[:] = self._text[offset : offset + len(view)]
            return
        descriptor, filled = self._files.descriptor(number), 0
        try:
            while filled < len(view):
                count = os.preadv(descriptor, (view[filled:],), offset + filled)
                if not count:
                    raise OSError(errno.ENODATA, f"the blob ends at byte {offset + filled}")
                filled += count
        except OSError as error:
            raise self._files.failed(number, offset + filled, error) from error
