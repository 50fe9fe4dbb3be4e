"""Samples in tars: which members form one, and how archives of them are written.

The rule is shared by the index, the readers and the tools that cut shards. The key is the path up to the first dot of the base
name, the extension is the rest in lower case. Hidden base names, names of the form `__meta__` and names without an extension
belong to no sample; they do not separate the members around them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import TracebackType
from typing import BinaryIO, Final

from dfc.checksum import Buffer
from dfc.limits import KIB, SAMPLE_RECORDS_MAX, TAR_HEADER_BYTES, TAR_MEMBER_NAME_BYTES_MAX
from dfc.tar.header import ARCHIVE_BYTES_MAX, FILE, byte_sum

NO_KEY: Final = 0xFFFF  # for a member of no sample; names are shorter
_META_NAME: Final = re.compile(r"__[^/]*__(?:$|/)")
_META_NAME_BYTES: Final = re.compile(_META_NAME.pattern.encode())


def split_key(name: str) -> tuple[str, str] | None:
    """`dir/a.b.JPG` → (`dir/a`, `b.jpg`), or None for a name that belongs to no sample.

    Same as `^((?:.*/|)[^.]+)[.]([^/]*)$` on names whose base name does not begin with a dot.
    """
    base = name.rfind("/") + 1
    dot = name.find(".", base)
    if dot <= base or (name[:2] == "__" and _META_NAME.match(name)):
        return None
    return name[:dot], name[dot + 1 :].lower()


def key_bytes(name: bytes | bytearray) -> int:
    """Like `split_key`, for a name as stored: the number of bytes of the key, which a dot follows; -1 if in no sample."""
    base = name.rfind(b"/") + 1
    dot = name.find(b".", base)
    return -1 if dot <= base or (name[:2] == b"__" and _META_NAME_BYTES.match(name)) else dot


class SampleGrouper:
    """Cuts a sequence of members into samples: adjacent members with the same key are one sample.

    A repeated extension begins a new sample with the same key (WebDataset raises there): no member is lost,
    and the index counts the key as repeated. So does a sample that would span more than SAMPLE_RECORDS_MAX members.
    """

    __slots__ = ("_extensions", "_key", "_records")

    def __init__(self) -> None:
        self._key: str | None = None
        self._extensions: set[str] = set()
        self._records = 0  # members since the first of the current sample, including it

    @property
    def key(self) -> str | None:
        """The key of the current sample."""
        return self._key

    def go_on(self, key: str, extensions: set[str], records: int) -> None:
        """Continue after members were grouped elsewhere: the last sample has these extensions, and `records` members so far."""
        self._key, self._extensions, self._records = key, extensions, records

    def starts_sample(self, name: str) -> bool:
        """Take the next file of an archive; True if it is the first of a new sample."""
        return bool(self.cut((name,), (FILE,))[1])

    def cut(self, names: Sequence[str], types: Sequence[int]) -> tuple[list[int], list[int]]:
        """Take the next members; returns how many characters of each name are its key (or NO_KEY), and which of them, from 0,
        begin a new sample."""
        chars: list[int] = []
        starts: list[int] = []
        key, extensions = self._key, self._extensions
        first = -self._records
        index = -1
        for index, name in enumerate(names):
            start, _, extension = name.partition(".")
            if "/" in extension or start[-1:] in ("", "/") or len(start) == len(name) or name[:2] == "__" or types[index]:
                # Not a file, or a name whose first dot may not end the key: the full rule, which takes twice the time.
                parts = None if types[index] else split_key(name)
                if parts is None:
                    chars.append(NO_KEY)
                    continue
                start, extension = parts
            chars.append(len(start))
            extension = extension.lower()
            if start == key and extension not in extensions and index - first < SAMPLE_RECORDS_MAX:
                extensions.add(extension)
            else:
                key = start
                extensions = {extension}
                first = index
                starts.append(index)
        self._key, self._extensions = key, extensions
        self._records = index + 1 - first
        return chars, starts


# --- Write archives whose bytes depend only on names and contents: USTAR, or GNU where a name or a size does not fit.
#
# Every header has mode 0644, owner 0, mtime 0 and no owner names, so that equal samples give equal bytes.

END_OF_ARCHIVE: Final = bytes(2 * TAR_HEADER_BYTES)
_OCTAL_SIZE_MAX: Final = 8**11 - 1
_MODE_AND_OWNER: Final = b"0000644\x000000000\x000000000\x00"
_MTIME: Final = b"00000000000\x00"
_BLANK_CHECKSUM: Final = b" " * 8
_USTAR: Final = b"ustar\x0000"
_GNU: Final = b"ustar  \0"
_JOINED_BYTES_MAX: Final = 16 * KIB  # copying this much costs less than two more calls to write
_PADDING: Final = bytes(TAR_HEADER_BYTES)


def padding(size: int) -> bytes:
    """The zeros between `size` bytes of data and the next header."""
    return _PADDING[: -size % TAR_HEADER_BYTES]


def member_header(name: str, size: int) -> bytes:
    """The header blocks before the data of a file: one, or three and more for a name that does not fit.

    ValueError for a name that is empty, has a NUL, is longer than readers accept or is not UTF-8, and for a negative size.
    """
    encoded = name.encode()
    if not encoded or b"\0" in encoded or len(encoded) > TAR_MEMBER_NAME_BYTES_MAX:
        raise ValueError(f"invalid name for a tar member: {name[:80]!r}")
    if not 0 <= size <= ARCHIVE_BYTES_MAX // 2:
        raise ValueError(f"invalid size for a tar member: {size}")
    magic = _USTAR if size <= _OCTAL_SIZE_MAX else _GNU
    if len(encoded) <= 100:
        return _header(encoded, size, b"0", magic)
    # GNU readers ignore the prefix in a header with GNU's magic, which the base-256 size needs.
    parts = _split(encoded) if magic == _USTAR else None
    if parts is not None:
        return _header(parts[1], size, b"0", magic, parts[0])
    body = encoded + b"\0"
    long_name = _header(b"././@LongLink", len(body), b"L", _GNU) + body + padding(len(body))
    return long_name + _header(encoded[:100], size, b"0", _GNU)


def _split(name: bytes) -> tuple[bytes, bytes] | None:
    """Split a name at a slash into a prefix of at most 155 bytes and a name of at most 100; None if that is impossible."""
    slash = name.find(b"/", max(1, len(name) - 101), 156)
    if slash < 0 or slash == len(name) - 1:
        return None
    return name[:slash], name[slash + 1 :]


def _header(name: bytes, size: int, flag: bytes, magic: bytes, prefix: bytes = b"") -> bytes:
    digits = b"%011o\0" % size if size <= _OCTAL_SIZE_MAX else b"\x80" + size.to_bytes(11, "big")
    before = name.ljust(100, b"\0") + _MODE_AND_OWNER + digits + _MTIME
    after = (flag + bytes(100) + magic + bytes(80) + prefix).ljust(TAR_HEADER_BYTES - 156, b"\0")
    return b"%b%06o\0 %b" % (before, byte_sum(before + _BLANK_CHECKSUM + after), after)


class TarWriter:
    """Writes members to a file object in order; `close` ends the archive and leaves the file open."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._closed = False
        self.size = 0  # bytes written so far

    def add(self, name: str, data: Buffer) -> None:
        """Write a member."""
        size = len(data)
        if size <= _JOINED_BYTES_MAX:
            self._write(b"".join((member_header(name, size), data, padding(size))))
            return
        self._write(member_header(name, size))
        self._write(data)
        self._write(padding(size))

    def close(self) -> None:
        """Write the two zero blocks. Idempotent."""
        if not self._closed:
            self._closed = True
            self._write(END_OF_ARCHIVE)

    def __enter__(self) -> TarWriter:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:  # an aborted archive must not look complete
            self.close()

    def _write(self, data: Buffer) -> None:
        self._file.write(data)
        self.size += len(data)
