"""The push parser: it takes an archive in pieces of any size and finds its members and their offsets.

It does no I/O and holds at most one header, one long-name body and the entries of the last piece. `next` and `want` say which
bytes it needs, so that a reader that can seek skips the bodies. The first problem is raised as TarError; after it the scanner
must not be used. What other readers silently ignore is not a problem but an oddity, listed by `oddities`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
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
)
from dfc.tar.headerbatch import Entry, HeaderBatch, PlainFiles

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
        self._reset_chain()
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

    def _reset_chain(self) -> None:
        self._head = None
        self._chain = 0
        self._long_name = b""
        self._pax = NO_PAX_FIELDS

    def _look_after_end(self, view: memoryview) -> None:
        """Find the first non-zero byte after the end; after that, ignore everything."""
        for start in range(0, 0 if self._after_end is not None else len(view), len(_ZEROS)):
            piece = view[start : start + len(_ZEROS)]
            if not _ZEROS.startswith(piece):
                self._after_end = self.fed - len(view) + start + next(i for i, byte in enumerate(piece) if byte)
                return
