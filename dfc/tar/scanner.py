"""The push parser of tars, and the check of many headers at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from struct import Struct
from typing import TYPE_CHECKING, Final
from zlib import adler32

from dfc.checksum import Buffer
from dfc.limits import TAR_HEADER_BYTES, TAR_META_BYTES_MAX, TAR_META_CHAIN_MAX, TAR_SPARSE_MAP_BYTES_MAX
from dfc.tar.header import (
    DIRECTORY,
    FILE,
    FILE_FLAG,
    NO_PAX_FIELDS,
    OTHER,
    PAX_FLAG,
    SPARSE,
    TYPE_OF_FLAG,
    TYPES_WITHOUT_DATA,
    ZERO_BLOCK,
    PaxFields,
    StoredSums,
    TarError,
    check_name,
    check_size,
    checksum_matches,
    has_plain_records,
    has_rubbish,
    header_name,
    is_plain_pax,
    names_members,
    padded,
    parse_long_name,
    parse_pax,
    parse_size,
    stored_sum,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# --- Check the headers of plain files many at a time, in columns, which is faster than one by one.
#
# Only the size of a member is needed to find the next header, so the rest can wait. A wrong checksum is still an error, a
# little later; the members found after it are then discarded.

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


# --- The push parser: it takes an archive in pieces of any size and finds its members and their offsets.
#
# It does no I/O and holds at most one header, one long-name body and the entries of the last piece. `next` and `want` say which
# bytes it needs, so that a reader that can seek skips the bodies. The first problem is raised as TarError; after it the scanner
# must not be used. What other readers silently ignore is not a problem but an oddity, listed by `oddities`.

_LONG_NAME: Final = ord("L")
_GLOBAL_PAX: Final = ord("g")
_LABEL: Final = ord("V")  # GNU's volume label, which is not a member
_ACL: Final = ord("A")
_PAX: Final = frozenset(b"xX")  # Solaris writes X
_META: Final = frozenset(b"xXgLKAV")
_LONE: Final = frozenset((_GLOBAL_PAX, _LABEL))  # they belong to no member, so an archive may end after them
_SPARSE_FLAG: Final = ord("S")
_WINDOW_BYTES: Final = 8 * 1024  # copied out of a mutable buffer in one go: many small members
_WINDOW_BYTES_LARGE: Final = 1024  # or, while members are large, one header and a bit
_BATCH_HEADERS_MIN: Final = 1024  # checked together, if allowed
_ZEROS: Final = bytes(64 * 1024)
_RUBBISH: Final = "data after the NUL of a name is ignored"


def _octal(digits: bytes) -> int:
    try:
        return int(digits, 8)
    except ValueError:
        return -1


class Scanner:
    """Finds members: `feed` it everything, or `take` just the `want` bytes at `next`; collect the entries; then `finish`.

    `take_files`: called with the preceding entries and then members that are files with one header each, in columns; those are
    not returned as entries, and may come with a later piece or with `finish`. This makes an index a sixth cheaper.
    """

    def __init__(self, *, take_files: Callable[[list[Entry], PlainFiles], None] | None = None) -> None:
        self._take_files = take_files
        self._batch = None if take_files is None else HeaderBatch()
        self.next = 0  # offset in the archive of the next wanted byte
        self.want = TAR_HEADER_BYTES
        self.fed = 0  # bytes of the archive seen so far
        self.ended = False  # a zero block was found: no members after it
        self.last_name = b""
        self._entries: list[Entry] = []
        self._partial = bytearray()
        self._take: Callable[[bytes], None] = self._header
        self._plain = True  # the next header stands alone: nothing overrides its fields
        self._window = _WINDOW_BYTES
        self._sums = StoredSums()
        self._end = 0  # offset of the first zero block, once `ended`
        self._after_end: int | None = None  # offset of the first byte after it that is not zero
        self._odd: dict[str, int] = {}  # oddities found before the end, and where first
        self._meta_flag = self._meta_size = self._meta_offset = 0
        self._sparse_member = (b"", 0, 0)
        self._head: int | None = None  # offset of the first header before the next member
        self._chain = 0  # how many such headers there are, including access control lists
        self._long_name = b""
        self._pax: PaxFields = NO_PAX_FIELDS

    def feed(self, data: Buffer) -> list[Entry]:
        """Take a piece; returns the entries whose headers are now complete, in archive order. Raises TarError."""
        view = memoryview(data)
        if view.itemsize != 1 or view.ndim != 1:
            view = view.cast("B")
        start = self.fed
        size = len(view)
        self.fed = start + size
        while not self.ended:
            at = self.next + len(self._partial) - start
            if at >= size:
                break
            if self._partial or size - at < self.want:
                self._partial += view[at : at + self.want - len(self._partial)]
                if len(self._partial) < self.want:
                    break
                chunk = bytes(self._partial)
                self._partial.clear()
                self._check_batch()
                self._take(chunk)
            elif not self._plain:
                self._take(bytes(view[at : at + self.want]))
            elif self._batch is None:
                self._scan(view, start)
            else:
                self.next = self._batch.walk(view, start, self.next)
                if self.next + TAR_HEADER_BYTES <= self.fed:
                    self._check_batch()
                    self._scan(view, start)
        if self.ended and self.fed > self.next:
            self._look_after_end(view[max(0, self.next - start) :])
        if self._batch is not None and len(self._batch) >= _BATCH_HEADERS_MIN:
            self._check_batch()
        return self._collect()

    def pass_over(self, size: int, files: PlainFiles) -> bool:
        """Accept the next `size` bytes as these members, whose heads count from here; returns False and does nothing if no
        member can begin here or no columns are wanted."""
        if self._take_files is None or self.ended or not self._plain or self.next != self.fed or self._partial:
            return False
        self._check_batch()
        before = self._collect()
        start = self.fed
        self.fed = self.next = start + size
        self.last_name = files.names[-1]
        self._take_files(before, files.moved(start))
        return True

    def take(self, chunk: bytes) -> list[Entry]:
        """Like `feed`, for a reader that skips: takes the `want` bytes at `next`; fewer, or none, only at the end."""
        self.fed = self.next + len(chunk)
        if self.ended:
            self._look_after_end(memoryview(chunk))
            self.next = self.fed
        elif len(chunk) == self.want:
            self._take(chunk)
        else:
            self._partial[:] = chunk
        return self._collect()

    def finish(self, *, strict: bool = False) -> list[Entry]:
        """End the archive; returns the remaining entries. Raises TarError if it is truncated. `strict`: also if the end blocks
        are missing or followed by data: in what a node sends, that means a broken connection."""
        self._check_batch()
        entries = self._collect()
        if not self.ended:
            if self.next > self.fed:
                name = self.last_name[:80].decode(errors="replace")
                raise TarError(f"the archive ends inside member {name!r}", self.fed, truncated=True)
            is_header = self._take == self._header
            # Part of a zero block is what is left of a truncated end; GNU tar ignores it, too.
            if (self.fed > self.next and (any(self._partial) or not self.next)) or not is_header:
                raise TarError("the archive ends inside a header", self.fed, truncated=True)
            if self._chain:
                raise TarError("the archive ends after a long-name or pax header", self.fed, truncated=True)
        if strict and (self.unended or self._after_end is not None):
            raise TarError(*self.oddities[len(self._odd)])
        return entries

    @property
    def unended(self) -> bool:
        """After `finish`: whether the archive lacks one or both zero blocks at its end."""
        return not self.ended or (self._after_end or self.fed) < self._end + 2 * TAR_HEADER_BYTES

    @property
    def oddities(self) -> list[tuple[str, int]]:
        """After `finish`: irregularities that do not keep readers from listing the members; sentences and offsets."""
        found = list(self._odd.items())
        if not self.ended:
            found.append(("the archive has no end blocks; it may have been truncated between two members", self.fed))
        elif self.unended:
            found.append(("the archive has one zero block at its end instead of two", self._end))
        if self._after_end is not None:
            found.append(("data after the end of the archive is ignored", self._after_end))
        return found

    def _collect(self) -> list[Entry]:
        entries = self._entries
        if entries:
            self.last_name = entries[-1][0]
            self._entries = []
        return entries

    def _check_batch(self) -> None:
        if self._batch:
            assert self._take_files is not None
            files, rubbish = self._batch.take()
            if rubbish is not None:
                self._odd.setdefault(_RUBBISH, rubbish)
            before = self._collect()
            self.last_name = files.names[-1]
            self._take_files(before, files)

    def _scan(self, view: memoryview, start: int) -> None:
        """The hot loop over `view`, which begins at archive offset `start` and holds the next header.

        It handles headers of files, and pax headers with nothing but times, as Python's tarfile writes before every member;
        everything else goes to `_header`. What it parses is copied into `window`, once for many small members.
        """
        window, base = b"", self.next  # and its offset in the archive
        position, last = 0, -1  # in the window: where to continue, and where the last header may begin
        end = start + len(view) - TAR_HEADER_BYTES
        width = self._window
        head: int | None = None  # offset of a pax header just passed
        sums = self._sums
        append = self._entries.append
        while True:
            if position > last:
                if position > 2 * _WINDOW_BYTES:
                    width = _WINDOW_BYTES_LARGE
                elif position:
                    width = _WINDOW_BYTES
                base += position
                if base > end:
                    break
                window = bytes(view[base - start : base - start + width])
                position, last = 0, len(window) - TAR_HEADER_BYTES
            block = window[position : position + TAR_HEADER_BYTES]
            total = sums[block[148:156]]
            digits = block[124:135]
            if (
                (adler32(block[:256]) & 0xFFFF) + (adler32(block[256:]) & 0xFFFF) - 2 == total
                and digits.isdigit()
                and block[135] in b" \0"
                and (size := _octal(digits)) >= 0
            ):
                flag = block[156]
                offset = base + position
                after = position + TAR_HEADER_BYTES + ((size + 511) & -512)
                if (flag == FILE_FLAG or flag == 0) and not block[345]:  # without a prefix
                    name = block[:100].rstrip(b"\0")
                    if 0 in name:
                        name = name.partition(b"\0")[0]
                        self._odd.setdefault(_RUBBISH, offset)
                    if flag or name[-1:] != b"/":
                        append((name, FILE, offset if head is None else head, offset + TAR_HEADER_BYTES, size))
                        head = None
                        position = after
                        continue
                elif (
                    flag == PAX_FLAG
                    and head is None
                    and size <= TAR_META_BYTES_MAX
                    and after <= len(window)
                    and (
                        has_plain_records(window, position + TAR_HEADER_BYTES, position + TAR_HEADER_BYTES + size)
                        or is_plain_pax(window, position + TAR_HEADER_BYTES, position + TAR_HEADER_BYTES + size)
                    )
                ):
                    head = offset
                    position = after
                    continue
            self._leave(base + position, head)
            head = None
            self._header(block)
            if not self._plain:
                self._window = width
                return
            position = self.next - base
        self._window = width
        self._leave(base, head)

    def _leave(self, offset: int, head: int | None) -> None:
        """Continue at `offset`; a pax header at `head` belongs to the member there."""
        self.next = offset
        if head is not None:
            self._head, self._chain, self._plain = head, 1, False

    def _header(self, block: bytes) -> None:
        offset = self.next
        if block == ZERO_BLOCK:
            self._end_of_archive(offset)
            return
        if not checksum_matches(block):
            raise TarError("a header has a wrong checksum" if offset else "not a tar archive: no header", offset)
        flag = block[156]
        if flag in _META:
            self._start_meta(flag, parse_size(block[124:136], offset))
        else:
            self._member(block, flag)

    def _end_of_archive(self, offset: int) -> None:
        if self._chain:
            raise TarError("the archive ends after a long-name or pax header", offset, truncated=True)
        self._end = offset
        self._plain = False
        self.ended = True
        self.next = offset + TAR_HEADER_BYTES
        self.want = len(_ZEROS)

    def _start_meta(self, flag: int, size: int) -> None:
        offset = self.next
        if size > TAR_META_BYTES_MAX:
            raise TarError(f"a long-name or pax header has more than {TAR_META_BYTES_MAX} bytes", offset)
        # An access control list is not sent with its sample: other tar readers take it for a file.
        if flag not in _LONE and flag != _ACL and self._head is None:
            self._head = offset
        if flag not in _LONE or self._chain:  # any number of global headers alone is fine
            self._chain += 1
            if self._chain > TAR_META_CHAIN_MAX:
                raise TarError(f"a member has more than {TAR_META_CHAIN_MAX} long-name and pax headers", offset)
        self._meta_flag, self._meta_size, self._meta_offset = flag, size, offset
        self._expect(offset + TAR_HEADER_BYTES, padded(size), self._meta_body, plain=False)
        if size == 0:
            self._meta_body(b"")

    def _meta_body(self, chunk: bytes) -> None:
        body = chunk[: self._meta_size]
        offset = self._meta_offset
        if self._meta_flag == _LONG_NAME:
            self._long_name = parse_long_name(body, offset)
        elif self._meta_flag in _PAX:
            self._pax = parse_pax(body, offset)
            if self._long_name:
                self._pax = self._pax._replace(path=None)  # of two names the first one counts
        elif self._meta_flag == _GLOBAL_PAX and names_members(body):
            self._odd.setdefault("names and sizes in a global pax header are ignored", offset)
        elif self._meta_flag == _ACL:
            self._odd.setdefault("Solaris access control lists are ignored", offset)
        elif self._meta_flag == _LABEL:
            self._odd.setdefault("the volume label is not listed as a member", offset)
        self._expect(self.next + len(chunk), TAR_HEADER_BYTES, self._header, plain=not self._chain)

    def _member(self, block: bytes, flag: int) -> None:
        offset = self.next
        pax = self._pax
        name = check_name(pax.path or self._long_name or header_name(block), offset)
        if has_rubbish(block):
            self._odd.setdefault(_RUBBISH, offset)
        member_type = TYPE_OF_FLAG.get(flag, OTHER)
        if flag == 0 and name.endswith(b"/"):
            member_type = DIRECTORY  # V7 had no type for it
        elif pax.sparse and member_type == FILE:
            member_type = SPARSE
        size = parse_size(block[124:136], offset)
        if pax.size is not None:
            size = check_size(pax.size, offset)
        elif member_type in TYPES_WITHOUT_DATA:
            size = 0
        head = offset if self._head is None else self._head
        self._head, self._chain, self._long_name, self._pax = None, 0, b"", NO_PAX_FIELDS
        if flag == _SPARSE_FLAG and block[482]:
            self._sparse_member = (name, head, size)
            self._expect(offset + TAR_HEADER_BYTES, TAR_HEADER_BYTES, self._sparse_map, plain=False)
        else:
            self._add(name, member_type, head, offset + TAR_HEADER_BYTES, size)

    def _sparse_map(self, chunk: bytes) -> None:
        """Take another block of a GNU sparse map; the data follows the last one."""
        self.next += TAR_HEADER_BYTES
        name, head, size = self._sparse_member
        if self.next - head > TAR_SPARSE_MAP_BYTES_MAX:
            raise TarError(f"a sparse map has more than {TAR_SPARSE_MAP_BYTES_MAX} bytes", head)
        if not chunk[504]:
            self._add(name, SPARSE, head, self.next, check_size(size, self.next))

    def _add(self, name: bytes, member_type: int, head: int, offset: int, size: int) -> None:
        self._entries.append((name, member_type, head, offset, size))
        self._expect(offset + padded(size), TAR_HEADER_BYTES, self._header, plain=True)

    def _expect(self, offset: int, want: int, take: Callable[[bytes], None], *, plain: bool) -> None:
        self.next, self.want, self._take, self._plain = offset, want, take, plain

    def _look_after_end(self, view: memoryview) -> None:
        """Find the first non-zero byte after the end; after that, ignore everything."""
        for start in range(0, 0 if self._after_end is not None else len(view), len(_ZEROS)):
            piece = view[start : start + len(_ZEROS)]
            if not _ZEROS.startswith(piece):
                self._after_end = self.fed - len(view) + start + next(i for i, byte in enumerate(piece) if byte)
                return
