"""Pull readers: iterate over the members of a stream, or read one member of a stored shard. Bounded memory."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import BinaryIO, cast

from dfc.checksum import Buffer
from dfc.limits import DECOMPRESS_CHUNK_BYTES
from dfc.tar.compression import CompressionError, open_decompressed
from dfc.tar.header import FILE, TYPES, TarError
from dfc.tar.index.format import Member
from dfc.tar.samples import split_key
from dfc.tar.scanner import Entry, Scanner


class MemberData(io.RawIOBase):
    """The data of one member, readable until the next member is requested."""

    def __init__(self, source: BinaryIO, member: Member) -> None:
        self._source = source
        self._member = member
        self.left = member.size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:  # type: ignore[override]
        """Read like any raw file. TarError when the archive ends inside the member."""
        view = memoryview(buffer).cast("B")
        data = _read(self._source, min(len(view), self.left, DECOMPRESS_CHUNK_BYTES), self._at)
        if not data and len(view) and self.left:
            raise TarError(f"the archive ends inside member {self._member.name[:80]!r}", self._at, truncated=True)
        view[: len(data)] = data
        self.left -= len(data)
        return len(data)

    def readall(self) -> bytes:
        """Read the rest of the data, in as few reads as possible. TarError as above."""
        pieces = []
        while self.left:
            data = _read(self._source, min(self.left, DECOMPRESS_CHUNK_BYTES), self._at)
            if not data:
                raise TarError(f"the archive ends inside member {self._member.name[:80]!r}", self._at, truncated=True)
            self.left -= len(data)
            pieces.append(data)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    @property
    def _at(self) -> int:
        return self._member.offset + self._member.size - self.left


def iterate_members(source: BinaryIO, kind: str = "tar", *, strict: bool = False) -> Iterator[tuple[Member, MemberData]]:
    """Iterate over members and their data; data that is not read is skipped. Reads `source` to its end.

    Raises TarError where the archive is broken; `strict`: also when its end blocks are missing or something follows them.
    """
    stream = source if kind == "tar" else cast(BinaryIO, open_decompressed(source, kind))
    scanner = Scanner()
    whole = True
    while whole:
        want = scanner.want
        chunk = _read_up_to(stream, want, scanner.next)
        whole = len(chunk) == want
        for entry in scanner.take(chunk):
            member = member_of(entry)
            data = MemberData(stream, member)
            yield member, data
            left = scanner.next - (member.offset + member.size - data.left)
            _skip(stream, left, scanner, member)
    scanner.finish(strict=strict)


def member_of(entry: Entry) -> Member:
    """Convert a scanner's entry to the form used by the index."""
    name, member_type, _, offset, size = entry
    text = name.decode(errors="replace")
    key, extension = (split_key(text) if member_type == FILE else None) or (None, None)
    return Member(text, key, extension, offset, size, TYPES[member_type])


def read_member_range(source: BinaryIO, kind: str, offset: int, size: int) -> Iterator[bytes]:
    """Read `size` bytes of the (uncompressed) archive from `offset`, in chunks; a compressed one is decompressed up to there.

    TarError when the archive ends before that.
    """
    if kind == "tar":
        stream = source
        source.seek(offset)
    else:
        stream = cast(BinaryIO, open_decompressed(source, kind))
        at = 0
        while at < offset:
            data = _read(stream, min(offset - at, DECOMPRESS_CHUNK_BYTES), at)
            if not data:
                raise TarError("the archive ends before the member", at, truncated=True)
            at += len(data)
    end = offset + size
    while offset < end:
        data = _read(stream, min(end - offset, DECOMPRESS_CHUNK_BYTES), offset)
        if not data:
            raise TarError("the archive ends inside the member", offset, truncated=True)
        yield data
        offset += len(data)


def _skip(stream: BinaryIO, size: int, scanner: Scanner, member: Member) -> None:
    while size:
        data = _read(stream, min(size, DECOMPRESS_CHUNK_BYTES), scanner.next - size)
        if not data:
            raise TarError(f"the archive ends inside member {member.name[:80]!r}", scanner.next - size, truncated=True)
        size -= len(data)


def _read_up_to(stream: BinaryIO, size: int, at: int) -> bytes:
    """Read `size` bytes, or what is left; pipes make short reads."""
    data = _read(stream, size, at)
    while len(data) < size and (more := _read(stream, size - len(data), at)):
        data += more
    return data


def _read(stream: BinaryIO, size: int, at: int) -> bytes:
    try:
        return stream.read(size) or b""
    except CompressionError as error:
        raise TarError(str(error), at, truncated=error.truncated) from None
