"""Check the headers of plain files many at a time, in columns, which is faster than one by one.

Only the size of a member is needed to find the next header, so the rest can wait. A wrong checksum is still an error, a little
later; the members found after it are then discarded.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from struct import Struct
from typing import TYPE_CHECKING, Final

from dfc.limits import TAR_HEADER_BYTES
from dfc.tar.header import FILE, FILE_FLAG, TarError, checksum_matches, stored_sum

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Entry = tuple[bytes, int, int, int, int]
"""Name as stored, type (position in TYPES), offset of the member's first header, offset of its data, size of the data."""

_SPACE: Final = ord(" ")
_NAME_BYTES: Final = 100
_FIELDS: Final = Struct("124x 11s B 20x B 355x")  # size, the byte after it, type
_PREFIX_AT: Final = 345
_LANES: Final = 0x00FF00FF00FF00FF  # every other byte of eight: each sum over a header fits into 16 bits
_LANE_BITS: Final = 16
_SUMMED_ROWS: Final = 256  # at a time, so that intermediate results stay in the cache
_SUM_AT: Final = 148
_SUM_DIGITS: Final = 6  # then a NUL and a space, as nearly all writers do
_SUM_END: Final = 0x0020
_OCTAL_ZEROS: Final = 0x303030303030
_OCTAL_REST: Final = 0xFFFFF8F8F8F8F8F8  # bits that no octal digit has after subtracting "0"


@dataclass(frozen=True, slots=True)
class PlainFiles:
    """Consecutive members that are files with one header each, in columns."""

    names: list[bytes]
    text: NDArray[np.uint8]
    """The names again, (n, longest), filled up with zeros."""
    heads: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, text: NDArray[np.uint8], sizes: NDArray[np.int64], heads: NDArray[np.int64]) -> PlainFiles:
        """Make it from names in columns: at least one, none of them empty."""
        import numpy as np

        text = np.ascontiguousarray(text)
        return cls(text.view(f"S{text.shape[1]}").ravel().tolist(), text, heads, sizes)

    def __len__(self) -> int:
        return len(self.names)

    def fill(self, size: int) -> bool:
        """Whether `size` bytes, from offset 0 on, are exactly these members."""
        ends = self.heads + TAR_HEADER_BYTES + ((self.sizes + 511) & -512)
        return int(self.heads[0]) == 0 and int(ends[-1]) == size and bool((ends[:-1] == self.heads[1:]).all())

    def moved(self, offset: int) -> PlainFiles:
        """The same members, moved by `offset`."""
        return PlainFiles(self.names, self.text, self.heads + offset, self.sizes)

    def entries(self) -> list[Entry]:
        """The members as entries, one by one."""
        data = (self.heads + TAR_HEADER_BYTES).tolist()
        return list(zip(self.names, repeat(FILE), self.heads.tolist(), data, self.sizes.tolist()))


class HeaderBatch:
    """Collects headers with `walk`; `take` checks them and returns the members."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._heads: list[int] = []
        self._sizes: list[int] = []

    def __len__(self) -> int:
        return len(self._heads)

    def walk(self, view: memoryview, start: int, offset: int) -> int:
        """Take the headers of consecutive plain files from archive offset `offset` on, in a view that begins at `start`.
        Returns the offset of the first header that is something else or ends outside the view."""
        at, last = offset - start, len(view) - TAR_HEADER_BYTES
        places: list[int] = []
        sizes: list[int] = []
        fields = _FIELDS.unpack_from
        while at <= last:
            digits, end, flag = fields(view, at)
            if flag != FILE_FLAG or (end and end != _SPACE) or not digits.isdigit():
                break  # another type, or a size in another form
            try:
                size = int(digits, 8)
            except ValueError:
                break
            places.append(at)
            sizes.append(size)
            at += TAR_HEADER_BYTES + ((size + 511) & -512)
        if not places:
            return offset
        # Copied, since the buffer of the view is reused.
        blocks = b"".join([view[place : place + TAR_HEADER_BYTES] for place in places])
        prefixes = blocks[_PREFIX_AT::TAR_HEADER_BYTES]  # the first byte of each; checked here, together, it costs less
        without = len(prefixes) - len(prefixes.lstrip(b"\0"))
        if without < len(places):
            at = places[without]
            blocks = blocks[: without * TAR_HEADER_BYTES]
            del places[without:], sizes[without:]
        self._blocks.append(blocks)
        self._heads += [start + place for place in places] if start else places
        self._sizes += sizes
        return start + at

    def take(self) -> tuple[PlainFiles, int | None]:
        """The members, and the offset of the first header with garbage after the NUL of its name. TarError for the first
        header with a wrong checksum."""
        import numpy as np  # not needed for reading headers one by one

        joined = b"".join(self._blocks)
        heads, sizes = np.array(self._heads, dtype=np.int64), np.array(self._sizes, dtype=np.int64)
        self._blocks, self._heads, self._sizes = [], [], []
        table = np.frombuffer(joined, dtype=np.uint8).reshape(len(heads), TAR_HEADER_BYTES)
        for number in np.flatnonzero(_sums(table) != _stored_sums(table)).tolist():
            block = table[number].tobytes()
            if not checksum_matches(block):
                head = int(heads[number])
                raise TarError("a header has a wrong checksum" if head else "not a tar archive: no header", head)
        text = table[:, :_NAME_BYTES]
        used = text != 0
        lengths = np.where(used.all(axis=1), _NAME_BYTES, used.argmin(axis=1))
        odd = np.flatnonzero(used.sum(axis=1) != lengths)
        text = text[:, : int(lengths.max())]
        if len(odd):
            text = np.where(np.arange(text.shape[1]) < lengths[:, None], text, 0).astype(np.uint8)
        text = np.ascontiguousarray(text)
        names = text.view(f"S{text.shape[1]}").ravel().tolist() if text.shape[1] else [b""] * len(heads)
        return PlainFiles(names, text, heads, sizes), int(heads[odd[0]]) if len(odd) else None


def _sums(table: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The sum of the bytes of each header, including its checksum field as it is."""
    import numpy as np

    words = table.view(np.uint64)
    lanes = np.empty(len(table), dtype=np.uint64)
    for first in range(0, len(table), _SUMMED_ROWS):
        some = words[first : first + _SUMMED_ROWS]
        odd = some >> 8
        odd &= _LANES
        odd += some & _LANES
        np.add.reduce(odd, axis=1, out=lanes[first : first + _SUMMED_ROWS])
    totals = np.zeros(len(table), dtype=np.int64)
    for lane in range(4):
        totals += ((lanes >> (_LANE_BITS * lane)) & 0xFFFF).astype(np.int64)
    return totals


def _stored_sums(table: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The `stored_sum` of each header."""
    import numpy as np

    field = np.ascontiguousarray(table[:, _SUM_AT : _SUM_AT + 8])
    word = field.view(">u8").ravel().astype(np.uint64)
    digits = (word >> 16) - np.uint64(_OCTAL_ZEROS)  # one digit in each of the lower six bytes, if they are digits
    plain = ((digits & _OCTAL_REST) == 0) & ((word & 0xFFFF) == _SUM_END)
    totals = np.full(len(table), _SUM_DIGITS * ord("0") + _SUM_END - 8 * _SPACE, dtype=np.int64)
    for place in range(_SUM_DIGITS):
        digit = ((digits >> (8 * place)) & 7).astype(np.int64)
        totals += (digit << (3 * place)) + digit
    for number in np.flatnonzero(~plain).tolist():
        totals[number] = stored_sum(field[number].tobytes())
    return totals
