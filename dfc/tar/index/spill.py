"""Tables larger than memory: append to them, spill to unnamed temporary files, write out in order. Memory is bounded.

The files are created unlinked, so a crash leaves nothing behind.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Callable, Iterable
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

from dfc.checksum import Buffer
from dfc.limits import INDEX_FLUSH_BYTES, INDEX_RUN_ROWS, INDEX_SORT_ROWS

Column = npt.NDArray[np.uint64]
Sink = Callable[[Buffer], None]
_ROW_BYTES: Final = 8
_READ_ROWS_MIN: Final = 256


def write_all(file: BinaryIO, data: Buffer) -> None:
    """Write everything, even to an unbuffered file that makes short writes."""
    view = memoryview(data).cast("B")
    while len(view):
        written = file.write(view)
        view = view[written:]


def read_at(fd: int, size: int, offset: int) -> bytes:
    """Read exactly `size` bytes at `offset`; OSError if the file is shorter."""
    pieces = []
    while size > 0:
        piece = os.pread(fd, size, offset)
        if not piece:
            raise OSError("a temporary file is shorter than what was written to it")
        pieces.append(piece)
        size -= len(piece)
        offset += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class Spill:
    """A queue of bytes, kept in the order in which they were appended."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._file: BinaryIO | None = None
        self._buffer = bytearray()
        self.size = 0

    def append(self, data: Buffer) -> None:
        self._buffer += data
        self.size += len(data)
        if len(self._buffer) >= INDEX_FLUSH_BYTES:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._directory, buffering=0)
            write_all(self._file, self._buffer)
            self._buffer = bytearray()

    def copy_to(self, sink: Sink) -> None:
        """Pass everything to `sink` in pieces of at most INDEX_FLUSH_BYTES."""
        if self._file is not None:
            spilled = self.size - len(self._buffer)
            for offset in range(0, spilled, INDEX_FLUSH_BYTES):
                sink(read_at(self._file.fileno(), min(INDEX_FLUSH_BYTES, spilled - offset), offset))
        if self._buffer:
            sink(self._buffer)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._buffer = bytearray()


class HashTable:
    """A table of rows (hash, value), 64 bits each, sorted by hash; rows with equal hashes keep their order.

    Runs of INDEX_RUN_ROWS are sorted in memory and spilled; `write` merges them in blocks of INDEX_SORT_ROWS rows together.
    """

    def __init__(self, directory: str) -> None:
        self._hashes = array("Q")
        self._values = array("Q")
        self.repeated = 0  # rows that repeat the hash of an earlier row, known after `write`
        self.first_repeated: int | None = None  # the smallest value among them
        self._directory = directory
        self._file: BinaryIO | None = None
        self._runs: list[int] = []  # rows in each; in the file, a run is its hashes, then its values
        self._last_hash: int | None = None

    def append(self, hashes: Iterable[int], values: Iterable[int]) -> None:
        """Append as many hashes as values; a few thousand at most."""
        self._hashes.extend(hashes)
        self._values.extend(values)
        if len(self._hashes) >= INDEX_RUN_ROWS:
            self._spill_run()

    def _spill_run(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._directory, buffering=0)
        hashes, values = self._sorted_rest()
        self._runs.append(len(hashes))
        write_all(self._file, hashes.view(np.uint8).data)
        write_all(self._file, values.view(np.uint8).data)

    def write(self, sink: Sink) -> int:
        """Pass all hashes, then all values to `sink`; returns the number of rows."""
        values = Spill(self._directory)
        try:
            if not self._runs:
                rest = self._sorted_rest()
                self._emit(*rest, sink, values)
                total = len(rest[0])
            else:
                total = self._merge(sink, values)
            values.copy_to(sink)
        finally:
            values.close()
            self.close()
        return total

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._hashes, self._values, self._runs = array("Q"), array("Q"), []

    def _sorted_rest(self) -> tuple[Column, Column]:
        hashes = np.frombuffer(self._hashes, dtype=np.uint64)
        values = np.frombuffer(self._values, dtype=np.uint64)
        order = np.argsort(hashes, kind="stable")
        result = hashes[order], values[order]
        self._hashes, self._values = array("Q"), array("Q")
        return result

    def _merge(self, sink: Sink, values_out: Spill) -> int:
        assert self._file is not None
        fd = self._file.fileno()
        rows_read = max(_READ_ROWS_MIN, INDEX_SORT_ROWS // (len(self._runs) + 1))
        cursors = []
        offset = 0
        for rows in self._runs:
            cursors.append(_Cursor(fd, offset, rows, rows_read))
            offset += 2 * rows * _ROW_BYTES
        rest = self._sorted_rest()
        cursors.append(_Cursor.of(*rest))
        while cursors := [cursor for cursor in cursors if cursor.fill()]:
            # No run can still yield a hash below the smallest of the last hashes in memory: write all below.
            threshold = min(cursor.hashes[-1] for cursor in cursors)
            taken = [cursor.take_below(threshold) for cursor in cursors]
            hashes = np.concatenate([hashes for hashes, _ in taken])
            if len(hashes):
                values = np.concatenate([values for _, values in taken])
                order = np.argsort(hashes, kind="stable")
                self._emit(hashes[order], values[order], sink, values_out)
            # Rows with the threshold hash may extend beyond memory: take run after run, to keep their order.
            for cursor in cursors:
                while cursor.fill():
                    hashes, values = cursor.take_equal(threshold)
                    if not len(hashes):
                        break
                    self._emit(hashes, values, sink, values_out)
        return sum(self._runs) + len(rest[0])

    def _emit(self, hashes: Column, values: Column, sink: Sink, values_out: Spill) -> None:
        """Pass on sorted rows, counting those that repeat the previous hash."""
        if not len(hashes):
            return
        repeats = np.empty(len(hashes), dtype=bool)
        repeats[0] = self._last_hash == int(hashes[0])
        np.equal(hashes[1:], hashes[:-1], out=repeats[1:])
        if repeats.any():
            self.repeated += int(np.count_nonzero(repeats))
            first = int(values[repeats].min())
            self.first_repeated = first if self.first_repeated is None else min(self.first_repeated, first)
        self._last_hash = int(hashes[-1])
        sink(hashes.view(np.uint8).data)
        values_out.append(values.view(np.uint8).data)


class _Cursor:
    """The rest of one sorted run, with a few rows in memory."""

    __slots__ = ("_fd", "_hashes_at", "_rows_read", "_unread", "_values_at", "hashes", "values")

    def __init__(self, fd: int, offset: int, rows: int, rows_read: int) -> None:
        self._fd = fd
        self._hashes_at = offset
        self._values_at = offset + rows * _ROW_BYTES
        self._rows_read = rows_read
        self._unread = rows
        self.hashes: Column = np.empty(0, dtype=np.uint64)
        self.values: Column = self.hashes

    @classmethod
    def of(cls, hashes: Column, values: Column) -> _Cursor:
        """Make a cursor for a run that is wholly in memory."""
        cursor = cls(-1, 0, 0, 0)
        cursor.hashes, cursor.values = hashes, values
        return cursor

    def fill(self) -> bool:
        """Load rows until at least half the memory limit is used; False when the run is exhausted."""
        if self._unread and 2 * len(self.hashes) <= self._rows_read:
            rows = min(self._rows_read - len(self.hashes), self._unread)
            self.hashes = np.concatenate((self.hashes, self._read(self._hashes_at, rows)))
            self.values = np.concatenate((self.values, self._read(self._values_at, rows)))
            self._hashes_at += rows * _ROW_BYTES
            self._values_at += rows * _ROW_BYTES
            self._unread -= rows
        return len(self.hashes) > 0

    def _read(self, offset: int, rows: int) -> Column:
        return np.frombuffer(read_at(self._fd, rows * _ROW_BYTES, offset), dtype=np.uint64)

    def take_below(self, limit: np.uint64) -> tuple[Column, Column]:
        return self._take(int(np.searchsorted(self.hashes, limit, side="left")))

    def take_equal(self, value: np.uint64) -> tuple[Column, Column]:
        return self._take(int(np.searchsorted(self.hashes, value, side="right")))

    def _take(self, count: int) -> tuple[Column, Column]:
        taken = self.hashes[:count], self.values[:count]
        self.hashes, self.values = self.hashes[count:], self.values[count:]
        return taken
