"""Where the records of members lie: by the ordinal of a member, and of those that belong to no sample."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from dfc.limits import MIB
from dfc.tar.header import DIRECTORY
from dfc.tar.index.file import IndexFile
from dfc.tar.index.format import RECORD, IndexCorrupt
from dfc.tar.samples import NO_KEY

if TYPE_CHECKING:
    from numpy.typing import NDArray

_READ_BYTES: Final = 4 * MIB
_CELLS: Final = 1 << 16
_RECORD_TAIL: Final = Struct("=HHB")  # bytes of the name, characters of the key, type
_TAIL_AT: Final = RECORD.size - _RECORD_TAIL.size


def nth_position(file: IndexFile, start: int, count: int, number: int, end: int) -> int:
    """Return the smallest but `number` of the `count` positions in the column at `start`, all of them below `end`. They are in
    the order of hashes, and records are in archive order.

    Reads the column twice, in pieces: first to count how many positions lie in which part of the file, then for those in the
    part that is wanted.
    """
    import numpy as np  # only for the few that ask for the middle of a list

    width = end // _CELLS + 1
    counts = np.zeros(_CELLS + 1, dtype=np.int64)
    for piece in _pieces(file, start, count):
        counts += np.bincount(np.minimum(piece // width, _CELLS).astype(np.int64), minlength=_CELLS + 1)
    before = np.cumsum(counts)
    cell = int(np.searchsorted(before, number, side="right"))
    left = number - (int(before[cell - 1]) if cell else 0)
    found = np.concatenate([piece[piece // width == cell] for piece in _pieces(file, start, count)])
    if left >= len(found):  # positions beyond the end, in a damaged index
        return end
    found.partition(left)
    return int(found[left])


def _pieces(file: IndexFile, start: int, count: int) -> Iterator[NDArray[Any]]:
    import numpy as np

    for first in range(0, count, _READ_BYTES // 8):
        size = min(_READ_BYTES, 8 * (count - first))
        yield np.frombuffer(file.read_through(start + 8 * first, size), dtype="=u8")


def unsampled_records(data: bytes, end: int) -> Iterator[int]:
    """Yield where the records of members of no sample begin, without directories, among those that begin before `end` in
    `data`; then, negative, where the next record begins. `data` begins with a record and has all of the last one.
    IndexCorrupt."""
    at, last, unpack, size = 0, len(data) - RECORD.size, _RECORD_TAIL.unpack_from, RECORD.size
    while at < end:
        if at > last:
            raise IndexCorrupt("a record of an index cannot be read", at)
        name_bytes, key_chars, kind = unpack(data, at + _TAIL_AT)
        if key_chars == NO_KEY and kind != DIRECTORY:
            yield at
        at += size + name_bytes
    yield -at
