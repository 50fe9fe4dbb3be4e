"""Headers of plain files, checked many at a time: in columns, which costs less than one after the other.

To find the next header only the size of a member is needed, so that the rest can wait. A wrong checksum is an error all the
same, a little later: whatever was passed over on the way to it counts for nothing then.
"""

from __future__ import annotations

from itertools import repeat
from typing import Final

from dfc.limits import TAR_HEADER_BYTES
from dfc.tar.header import FILE, TarError, checksum_matches, stored_sum

Entry = tuple[bytes, int, int, int, int]
"""Name as stored, type (position in TYPES), offset of the member's first header, offset of its data, size of the data."""

_FILE_FLAG: Final = ord("0")
_SUMS_MAX: Final = 8192  # remembered checksum fields; sums of plain headers lie within a few thousand
_NAME_BYTES: Final = 100
_LANES: Final = 0x00FF00FF00FF00FF  # every other byte of eight: their sums over a header fit into 16 bits each
_LANE_BITS: Final = 16


class HeaderBatch:
    """`walk` takes headers, `take` checks them and gives the entries."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._heads: list[int] = []
        self._sizes: list[int] = []
        self._sums: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def walk(self, view: memoryview, start: int, offset: int) -> int:
        """Take the headers of plain files that follow each other from archive offset `offset` on, in a view that begins at
        `start`. The offset of the first one that is something else, or ends outside of the view."""
        last = start + len(view) - TAR_HEADER_BYTES
        blocks, heads, sizes = self._blocks, self._heads, self._sizes
        while offset <= last:
            at = offset - start
            block = bytes(view[at : at + TAR_HEADER_BYTES])
            digits = block[124:135]
            if block[156] != _FILE_FLAG or block[345] or block[135] not in b" \0" or not digits.isdigit():
                break  # of another type, with a prefix, or with a size in another form
            try:
                size = int(digits, 8)
            except ValueError:
                break
            blocks.append(block)
            heads.append(offset)
            sizes.append(size)
            offset += TAR_HEADER_BYTES + ((size + 511) & -512)
        return offset

    def take(self) -> tuple[list[Entry], int | None]:
        """The entries, and the offset of the first header with rubbish behind the NUL of its name. TarError for the first
        header with a wrong checksum."""
        import numpy as np  # who only reads headers one by one does without it

        blocks, heads, sizes = self._blocks, self._heads, self._sizes
        self._blocks, self._heads, self._sizes = [], [], []
        joined = b"".join(blocks)
        words = np.frombuffer(joined, dtype=np.uint64).reshape(len(blocks), -1)
        lanes = (words & _LANES).sum(axis=1) + ((words >> 8) & _LANES).sum(axis=1)
        totals = sum(((lanes >> (_LANE_BITS * lane)) & 0xFFFF).astype(np.int64) for lane in range(4))
        stored = [self._stored(block[148:156]) for block in blocks]
        for number in np.flatnonzero(totals != np.array(stored)).tolist():
            if not checksum_matches(blocks[number]):
                raise TarError(
                    "a header has a wrong checksum" if heads[number] else "not a tar archive: no header", heads[number]
                )
        names = np.ndarray(len(blocks), dtype=f"S{_NAME_BYTES}", buffer=joined, strides=(TAR_HEADER_BYTES,)).tolist()
        rubbish = None
        if b"\0" in b"".join(names):
            rubbish = next(head for head, name in zip(heads, names, strict=True) if 0 in name)
            names = [name.partition(b"\0")[0] for name in names]
        offsets = [head + TAR_HEADER_BYTES for head in heads]
        return list(zip(names, repeat(FILE), heads, offsets, sizes)), rubbish

    def _stored(self, field: bytes) -> int:
        total = self._sums.get(field)
        if total is None:
            if len(self._sums) >= _SUMS_MAX:
                self._sums.clear()
            total = self._sums[field] = stored_sum(field)
        return total
