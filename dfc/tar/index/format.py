"""The format of an index file, its entries, and reads of its pages.

An index file is stored beside its shard, and derived from it alone.

    header           512 bytes: magic, which blob this belongs to, counts, where the records end, checksums
    records          one per member, in archive order: RECORD, then the name in UTF-8
    block checksums  xxh3-64 of each INDEX_BLOCK_BYTES of the records (the last block may be shorter)
    member hashes    sorted xxh3-64 of the names    · member positions  of their records, in the same order
    sample hashes    sorted xxh3-64 of the keys     · sample numbers    in the same order
    samples          SAMPLE, one per sample, in archive order

Everything from the block checksums on is 8-byte aligned and covered by one xxh3-64 in the header, which ends in its own.
Numbers are in the machine's byte order (little-endian everywhere that matters): an index is never moved, it is rebuilt.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, NamedTuple, NoReturn

import msgspec
import xxhash

from dfc.limits import INDEX_BLOCK_BYTES
from dfc.tar.header import TarError

MAGIC: Final = 0x0158444954434644  # "DFCTIDX" and a 1: also detects a foreign byte order
FORMAT: Final = 1
HEADER_BYTES: Final = 512
TEXT_BYTES_MAX: Final = 64  # limit of the version and of the checksum of the blob
KINDS: Final = ("tar", "gz", "zst", "lz4", "bz2", "xz")

# Offset and size of the data, bytes of headers before the data, bytes of the name, characters of the key, type.
RECORD: Final = Struct("=QQIHHB")
# Offset of the first header, position of the first record.
SAMPLE: Final = Struct("=QQ")
_HEADER: Final = Struct("=QIIQQQQQQQQ64p64p")
_CHECKED: Final = Struct("=Q")


class IndexCorrupt(TarError):
    """An index file is truncated, foreign or damaged: rebuild it from the blob. `offset` is in the index file."""


class IndexHeader(NamedTuple):
    """The header of an index; sizes in bytes."""

    kind: str
    size: int  # of the blob
    archive_size: int  # of the uncompressed archive
    members: int
    samples: int
    repeated_keys: int
    dropped: int
    records_end: int
    tables_checksum: int
    version: str
    checksum: str

    @property
    def block_count(self) -> int:
        return -(-(self.records_end - HEADER_BYTES) // INDEX_BLOCK_BYTES)

    @property
    def tables_start(self) -> int:
        return (self.records_end + 7) & -8

    @property
    def members_start(self) -> int:
        """Where the member hashes begin."""
        return self.tables_start + 8 * self.block_count

    @property
    def keys_start(self) -> int:
        """Where the sample hashes begin."""
        return self.members_start + 16 * self.members

    @property
    def samples_start(self) -> int:
        return self.keys_start + 16 * self.samples

    @property
    def file_size(self) -> int:
        return self.samples_start + SAMPLE.size * self.samples


def encode_header(header: IndexHeader) -> bytes:
    """Encode a header as 512 bytes; ValueError if the version or checksum is longer than its field."""
    texts = [header.version.encode(), header.checksum.encode()]
    if any(len(text) >= TEXT_BYTES_MAX for text in texts):
        raise ValueError(f"version and checksum must have fewer than {TEXT_BYTES_MAX} bytes")
    packed = _HEADER.pack(MAGIC, FORMAT, KINDS.index(header.kind), *header[1:9], *texts)
    padded = packed.ljust(HEADER_BYTES - _CHECKED.size, b"\0")
    return padded + _CHECKED.pack(xxhash.xxh3_64_intdigest(padded))


def decode_header(data: bytes) -> IndexHeader:
    """Decode a header; IndexCorrupt if it is not of this format or has a wrong checksum."""
    if len(data) != HEADER_BYTES:
        raise IndexCorrupt("an index file is shorter than its header", len(data))
    magic, number, kind, *numbers, version, checksum = _HEADER.unpack_from(data)
    if magic != MAGIC or number != FORMAT:
        raise IndexCorrupt(f"not an index of format {FORMAT}", 0)
    if _CHECKED.unpack_from(data, HEADER_BYTES - _CHECKED.size) != (
        xxhash.xxh3_64_intdigest(data[: HEADER_BYTES - _CHECKED.size]),
    ):
        raise IndexCorrupt("the header of an index fails its checksum", 0)
    try:
        header = IndexHeader._make((KINDS[kind], *numbers, version.decode(), checksum.decode()))
    except (IndexError, UnicodeDecodeError):
        raise IndexCorrupt("the header of an index cannot be read", 0) from None
    if header.records_end < HEADER_BYTES:
        raise IndexCorrupt("the header of an index cannot be read", 0)
    return header


ENDINGS: Final = {
    ".tar": "tar",
    ".tgz": "gz",
    ".tar.gz": "gz",
    ".tar.zst": "zst",
    ".tar.lz4": "lz4",
    ".tar.bz2": "bz2",
    ".tar.xz": "xz",
}


def index_kind(object_name: str) -> str | None:
    """The kind of a shard by its name: `tar` or a compression; None if it is not named like a shard."""
    name = object_name.lower()
    return next((kind for ending, kind in ENDINGS.items() if name.endswith(ending)), None)


class Member(msgspec.Struct, frozen=True, gc=False):
    """One member. `offset` is that of its data in the (uncompressed) archive, `size` that of the data, in bytes.

    `key` and `ext` are None for a member of no sample; `type` is one of `dfc.tar.header.TYPES`.
    """

    name: str
    key: str | None
    ext: str | None
    offset: int
    size: int
    type: str


class Sample(msgspec.Struct, frozen=True):
    """Adjacent members with the same key. `start` to `end`: their bytes in the archive, including headers and padding.

    Members that belong to no sample may lie between them: `pieces` are the starts and ends of the sample's own bytes.
    """

    key: str
    number: int
    start: int
    end: int
    members: tuple[Member, ...]
    pieces: tuple[tuple[int, int], ...]


# --- Read an open index file with `pread`, and keep the most recently used pages in memory.
#
# An index is never mapped: a disk error under a mapped page, or another process that truncates the file, is SIGBUS, which kills
# the whole process with all its disks. Here the former is an OSError, the latter IndexCorrupt.

PAGE_BYTES: Final = 4096  # what a lookup needs of each table; reading 64 KiB instead costs ten times as much
_AHEAD_BYTES: Final = 64 * 1024
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", None)
_FILES: Final = itertools.count()
_PAGE_NUMBER_BITS: Final = 52

Read = Callable[[int, int], bytes]
"""`read(start, size)`: exactly those bytes, within the file's length. IndexCorrupt if the file was truncated, OSError."""
_PRead = Callable[[int, int], bytes]  # size, offset: like os.pread


class NotAtHand(Exception):
    """The bytes may have to be read from a disk: try again in a thread."""


class PageCache:
    """A cache of pages, shared by indexes and limited in bytes; evicts the oldest. Thread-safe; lookups need no lock."""

    def __init__(self, bytes_max: int) -> None:
        self._pages_max = max(1, bytes_max // PAGE_BYTES)
        self._pages: dict[int, bytes] = {}
        self._lock = threading.Lock()
        self.get = self._pages.get

    def keep(self, key: int, page: bytes) -> None:
        with self._lock:
            self._pages[key] = page
            while len(self._pages) > self._pages_max:
                del self._pages[next(iter(self._pages))]

    def __len__(self) -> int:
        return len(self._pages)


class _Descriptor:
    """A descriptor closed with its last reference. A reading thread holds one, so the number cannot be reused meanwhile."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class IndexFile:
    """An open index file, read from any thread. `translate` converts read errors. After `close`, reads raise ValueError."""

    def __init__(self, descriptor: int, cache: PageCache, translate: Callable[[OSError], Exception] | None = None) -> None:
        """Take ownership of the descriptor."""
        self._descriptor: _Descriptor | None = _Descriptor(descriptor)
        self._cache = cache
        self._cached: Callable[[int], bytes | None] = cache.get
        self._translate = translate
        # No other file's pages ever have these keys, even long after this one is closed.
        self._first_key = next(_FILES) << _PAGE_NUMBER_BITS
        self.length = os.fstat(descriptor).st_size

    def close(self) -> None:
        self._cached = lambda _key: None
        self._descriptor = None

    def read(self, start: int, size: int) -> bytes:
        """Read through the cache; see `Read`."""
        at = start % PAGE_BYTES
        if at + size <= PAGE_BYTES:
            page = self._cached(self._first_key + start // PAGE_BYTES)
            if page is not None:
                return page[at : at + size]
        return self._paged(start, size, self._pread)

    def read_at_hand(self, start: int, size: int) -> bytes:
        """Read without ever waiting for the disk; raises NotAtHand."""
        at = start % PAGE_BYTES
        if at + size <= PAGE_BYTES:
            page = self._cached(self._first_key + start // PAGE_BYTES)
            if page is not None:
                return page[at : at + size]
        return self._paged(start, size, self._pread_at_hand)

    def read_through(self, start: int, size: int) -> bytes:
        """Read past the cache, for data that is read once; see `Read`."""
        return self._whole(start, size, self._pread)

    def read_many(self, starts: Sequence[int], sizes: Sequence[int]) -> bytes:
        """Read parts of the file and join them; past the cache."""
        held = self._held()
        number, pread = held.number, os.pread
        try:
            data = b"".join([pread(number, size, start) for start, size in zip(starts, sizes, strict=True)])
        except OSError as error:
            self._raise(error)
        if len(data) == sum(sizes):
            return data
        return b"".join([self.read_through(start, size) for start, size in zip(starts, sizes, strict=True)])

    def ahead(self) -> Read:
        """A `Read` with a read-ahead of 64 KiB, for one thread that reads in order; past the cache."""
        first, held = 0, b""

        def read(start: int, size: int) -> bytes:
            nonlocal first, held
            at = start - first
            if at < 0 or at + size > len(held):
                first, at = start, 0
                held = self.read_through(start, max(size, min(_AHEAD_BYTES, self.length - start)))
            return held[at : at + size]

        return read

    def _paged(self, start: int, size: int, pread: _PRead) -> bytes:
        number, at = divmod(start, PAGE_BYTES)
        if at + size > PAGE_BYTES:
            if size > PAGE_BYTES:
                return self._whole(start, size, pread)
            head = PAGE_BYTES - at
            return self._page(number, pread)[at:] + self._page(number + 1, pread)[: size - head]
        return self._page(number, pread)[at : at + size]

    def _page(self, number: int, pread: _PRead) -> bytes:
        page = self._cached(self._first_key + number)
        if page is None:
            start = number * PAGE_BYTES
            page = self._whole(start, min(PAGE_BYTES, self.length - start), pread)
            self._cache.keep(self._first_key + number, page)
        return page

    def _whole(self, start: int, size: int, pread: _PRead) -> bytes:
        data = pread(size, start)
        while len(data) != size:  # short at the end of the file, or before an unreadable place
            more = pread(size - len(data), start + len(data))
            if not more:
                raise IndexCorrupt("an index file was truncated while it was open", start + len(data))
            data += more
        return data

    def _pread(self, size: int, start: int) -> bytes:
        held = self._held()
        try:
            return os.pread(held.number, size, start)
        except OSError as error:
            self._raise(error)

    def _pread_at_hand(self, size: int, start: int) -> bytes:
        if _NOWAIT is None:
            raise NotAtHand
        buffer = bytearray(size)
        try:
            count = os.preadv(self._held().number, (buffer,), start, _NOWAIT)
        except OSError:
            raise NotAtHand from None
        if count != size:
            raise NotAtHand  # a part is not cached, or not in the file: a thread finds out
        return bytes(buffer)

    def _held(self) -> _Descriptor:
        held = self._descriptor
        if held is None:
            raise ValueError("the index is closed")
        return held

    def _raise(self, error: OSError) -> NoReturn:
        if self._translate is None:
            raise error
        raise self._translate(error) from error
