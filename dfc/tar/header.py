"""Decode one 512-byte tar header, one long-name body or one pax body. Pure functions over bytes, all of them bounded.

Supported: V7, USTAR, GNU (long names, base-256 numbers, sparse), pax (extended and global headers), star and Solaris. Formats:
POSIX.1-2017 pax "ustar Interchange Format" and GNU tar manual "Basic Tar Format". Where writers deviate, a field is read as
libarchive and GNU tar read it (docs/decisions/0013). What neither can read is a TarError that gives the offset.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, NoReturn
from zlib import adler32

from dfc.limits import TAR_HEADER_BYTES, TAR_MEMBER_NAME_BYTES_MAX

ZERO_BLOCK: Final = bytes(TAR_HEADER_BYTES)
FILE_FLAG: Final = ord("0")
PAX_FLAG: Final = ord("x")
ARCHIVE_BYTES_MAX: Final = (1 << 63) - 1  # offsets are stored as 64 bits and must fit an off_t

# Member types; the position in TYPES is what an index stores.
TYPES: Final = ("file", "directory", "symlink", "hardlink", "sparse", "character", "block", "fifo", "other")
FILE, DIRECTORY, SYMLINK, HARDLINK, SPARSE, CHARACTER, BLOCK, FIFO, OTHER = range(len(TYPES))

TYPE_OF_FLAG: Final = {
    ord("0"): FILE,
    0: FILE,  # V7 and old GNU
    ord("7"): FILE,  # "contiguous", a file everywhere
    ord("1"): HARDLINK,
    ord("2"): SYMLINK,
    ord("3"): CHARACTER,
    ord("4"): BLOCK,
    ord("5"): DIRECTORY,
    ord("6"): FIFO,
    ord("S"): SPARSE,
}
# POSIX: the size of these does not count blocks that follow (for directories it is a hint of space to reserve).
TYPES_WITHOUT_DATA: Final = frozenset((HARDLINK, SYMLINK, CHARACTER, BLOCK, DIRECTORY, FIFO))

_HIGH_BYTES: Final = bytes(range(128))
# Blanks, digits, then a blank or a NUL; old tars left arbitrary memory contents after that.
_OCTAL: Final = re.compile(rb"[ \t]*([0-7]{1,24})(?:[ \0]|\Z)")
# A pax header without any of these changes nothing in an index.
_PAX_WANTED: Final = re.compile(rb"path=|size=|GNU\.sparse\.")
_PAX_LENGTH_DIGITS: Final = 12
_GNU_MAGIC: Final = b"ustar  \0"
_REMEMBERED_MAX: Final = 8192  # checksum fields: plain headers have a few thousand different ones


def _pattern_of_plain_records() -> re.Pattern[bytes]:
    """A regex that matches, in one go, records of up to 99 bytes with correct lengths and irrelevant keys, such as the times
    that tarfile, GNU tar and star write before every member. What it does not match is parsed record by record."""
    tens = []
    for ten in (2, 3, 1, 4, 5, 6, 7, 8, 9):  # times are the most common
        lengths = "|".join(f"{unit} .{{{10 * ten + unit - 4}}}" for unit in range(10))
        tens.append(f"{ten}(?:{lengths})")
    return re.compile(rf"(?:(?=.. (?!path=|size=|GNU\.sparse\.)[^=\n]++=)(?:{'|'.join(tens)})\n)*".encode())


# `has_plain_records(data, start, end)`: a fast check that covers most of `is_plain_pax`; the hot loops try it first.
has_plain_records: Final = _pattern_of_plain_records().fullmatch


def padded(size: int) -> int:
    """The size rounded up to whole blocks."""
    return (size + TAR_HEADER_BYTES - 1) & -TAR_HEADER_BYTES


class TarError(Exception):
    """The archive is broken, or not an archive. `offset` is in bytes of the uncompressed archive; `truncated` says that bytes
    are missing at its end."""

    def __init__(self, message: str, offset: int, *, truncated: bool = False) -> None:
        super().__init__(f"{message} at offset {offset}")
        self.message = message
        self.offset = offset
        self.truncated = truncated


class PaxFields(NamedTuple):
    """The records of a pax header that change the position or the name of a member; None where it has none."""

    path: bytes | None
    size: int | None
    sparse: bool


NO_PAX_FIELDS: Final = PaxFields(None, None, False)


def byte_sum(block: bytes) -> int:
    """The sum of the 512 bytes. adler32 keeps 1 + the sum modulo 65,521, which 256 bytes (at most 65,280) never reach."""
    return (adler32(block[:256]) & 0xFFFF) + (adler32(block[256:]) & 0xFFFF) - 2


def stored_sum(field: bytes) -> int:
    """The sum that all 512 bytes of a header with this checksum field must have, or -1 if it is not an octal number.

    The checksum counts its own field as eight spaces; this sum counts the field's real bytes.
    """
    digits = field.partition(b"\0")[0].strip(b" ")
    if not digits.isdigit():
        return -1
    try:
        return int(digits, 8) - 8 * 32 + sum(field)
    except ValueError:
        return -1


class StoredSums(dict[bytes, int]):
    """A cache of `stored_sum` by checksum field, for hot loops; with `find`, of another function of the field."""

    def __init__(self, find: Callable[[bytes], int] = stored_sum) -> None:
        self._find = find

    def __missing__(self, field: bytes) -> int:
        if len(self) >= _REMEMBERED_MAX:
            self.clear()
        self[field] = found = self._find(field)
        return found


def checksum_matches(block: bytes) -> bool:
    """Whether the header checksum is right, as a sum of unsigned or (old tars) of signed bytes."""
    expected = stored_sum(block[148:156])
    if expected < 0:
        return False
    total = byte_sum(block)
    # The field's own bytes are octal digits, spaces and NULs, so none of them is among the high ones.
    return expected in (total, total - 256 * len(block.translate(None, _HIGH_BYTES)))


def parse_size(field: bytes, offset: int) -> int:
    """Parse a size field: octal, or GNU's base-256; `offset` is that of the header. Raises TarError."""
    if field[0] & 0x80:
        if field[0] & 0x40:
            raise TarError("a member has a negative size", offset)
        size = int.from_bytes(field, "big") & ((1 << (8 * len(field) - 1)) - 1)
    elif found := _OCTAL.match(field):
        size = int(found[1], 8)
    else:
        digits = field.partition(b"\0")[0].strip(b" ")
        if not digits:
            return 0
        raise TarError("a member has a negative size" if digits.startswith(b"-") else "a member's size is not a number", offset)
    return check_size(size, offset)


def check_size(size: int, offset: int) -> int:
    """Check and return a size; TarError if the member would end beyond any possible archive."""
    if size > ARCHIVE_BYTES_MAX - offset - 2 * TAR_HEADER_BYTES:
        raise TarError("a member has an impossible size", offset)
    return size


def _decimal(digits: bytes, offset: int) -> int:
    # int() alone would accept signs, underscores and blanks, and any number of digits in quadratic time.
    if not digits.isdigit() or len(digits) > 24:
        raise TarError("a member's size is not a number", offset)
    return int(digits)


def is_posix(block: bytes) -> bool:
    """Whether a header has POSIX fields. GNU's differ; V7 and star's first format have no magic here."""
    return block[257:262] == b"ustar" and block[257:265] != _GNU_MAGIC


def header_name(block: bytes) -> bytes:
    """The name in the header, with the prefix of POSIX headers.

    A field ends at its first NUL, whatever follows: old tars left garbage there, star has 131 bytes of prefix and then times.
    """
    name = block[:100].partition(b"\0")[0]
    if block[345] and is_posix(block):
        prefix = block[345:500].partition(b"\0")[0]
        return prefix + name if prefix.endswith(b"/") else prefix + b"/" + name
    return name


def has_rubbish(block: bytes) -> bool:
    """Whether anything but zeros, or the times that star keeps there, follows the end of the name or of the prefix."""
    if block[:100].partition(b"\0")[2].strip(b"\0"):
        return True
    rest = block[345:500].partition(b"\0")[2] if block[345] and is_posix(block) else b""
    return bool(rest.strip(b"\0")) and not (block[475] == 0 and block[476:477].isdigit())


def check_name(name: bytes, offset: int) -> bytes:
    """Check and return a name; TarError if it is too long or contains a NUL (where every other reader would cut it)."""
    if len(name) > TAR_MEMBER_NAME_BYTES_MAX:
        raise TarError(f"a member's name has more than {TAR_MEMBER_NAME_BYTES_MAX} bytes", offset)
    if 0 in name:
        raise TarError("a member's name contains a NUL", offset)
    return name


def parse_long_name(body: bytes, offset: int) -> bytes:
    """Parse the body of a GNU 'L' header: a name up to the first NUL."""
    name = body.partition(b"\0")[0]
    if not name:
        raise TarError("a long name is empty", offset)
    return check_name(name, offset)


def parse_pax(body: bytes, offset: int) -> PaxFields:
    """Parse the records `LENGTH KEY=VALUE\\n` of a pax header; the last one of each key counts. Raises TarError."""
    path = sparse_path = size = None
    sparse = False
    for key, value in _pax_records(body, offset):
        if key == b"path":
            path = value
        elif key == b"size":
            size = value
        elif key.startswith(b"GNU.sparse."):
            sparse = True
            if key == b"GNU.sparse.name":
                sparse_path = value
    name = sparse_path or path
    return PaxFields(
        check_name(name, offset) if name else None,  # an empty value cancels the record
        check_size(_decimal(size, offset), offset) if size else None,
        sparse,
    )


def is_plain_pax(data: bytes | bytearray | memoryview, start: int, end: int) -> bool:
    """Whether the pax header with its body in `data`, from `start` to `end`, is valid and changes nothing in an index."""
    if has_plain_records(data, start, end):
        return True
    if _PAX_WANTED.search(data, start, end):
        return False
    try:
        _pax_records(bytes(data[start:end]), 0)
    except TarError:
        return False  # parse_pax raises it with the offset
    return True


def names_members(body: bytes) -> bool:
    """Whether a global pax header sets names or sizes, which would apply to every member after it."""
    return _PAX_WANTED.search(body) is not None


def _pax_records(body: bytes, offset: int) -> list[tuple[bytes, bytes]]:
    records = []
    position = 0
    while position < len(body):
        space = body.find(b" ", position, position + _PAX_LENGTH_DIGITS)
        digits = body[position:space] if space > 0 else b""
        if not digits.isdigit():
            if body[position] == 0 and not body[position:].rstrip(b"\0"):
                break  # some writers pad within the stated size
            _bad_pax(offset)
        end = position + int(digits)
        if not space + 2 < end <= len(body) or body[end - 1] != 10:
            _bad_pax(offset)
        key, equals, value = body[space + 1 : end - 1].partition(b"=")
        if not equals:
            _bad_pax(offset)
        records.append((key, value))
        position = end
    return records


def _bad_pax(offset: int) -> NoReturn:
    raise TarError("a pax header cannot be read", offset)
