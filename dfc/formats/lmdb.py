"""LMDB: one `data.mdb`, key → msgpack of {extension: bytes}, in the order of the keys' bytes.

Written by the lmdb library (an extra) in LMDB 0.9's format, which every version reads. Read by a walker of our own, since the
library maps a file and follows whatever pointers it holds: a broken one would end the process. Source of the layout: mdb.c of
LMDB 0.9 (`MDB_meta`, `MDB_page`, `MDB_node`), 64 bits, little-endian.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any, Final

from dfc.errors import Conflict
from dfc.formats.base import FormatError, Readable, SampleData, fields_in_order, need, pack_fields, sample_of, unpack_fields
from dfc.limits import JOB_MEMBER_BYTES_MAX

FILE_NAME: Final = "data.mdb"
KEY_BYTES_MAX: Final = 511  # of LMDB as it is compiled everywhere
_MAP_BYTES: Final = 64 << 20  # to begin with; doubled when it is full
_TRANSACTION_BYTES: Final = 16 << 20


class LmdbWriter:
    """Writes `data.mdb` into a directory; `finish` closes it. `close` abandons it, and does nothing after `finish`."""

    def __init__(self, directory: str) -> None:
        need("lmdb")
        import lmdb

        self.path = os.path.join(directory, FILE_NAME)
        self._full: type[Exception] = lmdb.MapFullError
        self._map_bytes = _MAP_BYTES
        self._pending: list[tuple[bytes, bytes]] = []
        self._pending_bytes = 0
        # No lock file and no syncing: nobody else has it open, and it is copied from here before it counts.
        self._environment: Any = lmdb.open(
            self.path, map_size=_MAP_BYTES, subdir=False, lock=False, sync=False, metasync=False, lib_version=0
        )

    def add(self, sample: SampleData) -> None:
        """Conflict for a key that is too long or already present."""
        key = sample.key.encode()
        if len(key) > KEY_BYTES_MAX:
            raise Conflict(f"the key {sample.key[:80]!r}… has {len(key)} bytes; LMDB takes {KEY_BYTES_MAX}")
        value = pack_fields(sample)
        self._pending.append((key, value))
        self._pending_bytes += len(value)
        if self._pending_bytes >= _TRANSACTION_BYTES:
            self._flush()

    def finish(self) -> None:
        self._flush()
        self.close()

    def close(self) -> None:
        self._environment.close()

    def _flush(self) -> None:
        while not self._put_pending():
            self._map_bytes *= 2
            self._environment.set_mapsize(self._map_bytes)
        self._pending.clear()
        self._pending_bytes = 0

    def _put_pending(self) -> bool:
        """False when the map is full; nothing was written then."""
        try:
            with self._environment.begin(write=True) as transaction:
                for key, value in self._pending:
                    if not transaction.put(key, value, overwrite=False):
                        raise Conflict(f"the key {key.decode()[:80]!r} occurs twice, which LMDB cannot store")
        except self._full:
            return False
        return True


# --- reading

_PAGE_HEAD: Final = 16
_MAGIC: Final = 0xBEEFC0DE
_FORMAT: Final = 1
_META: Final = struct.Struct("<IIQQ 48s 48s QQ")  # magic, format, address, map size, free db, main db, last page, transaction
# Pad (in the free db: page size), flags, depth, pages of 3 kinds, entries, root.
_DATABASE: Final = struct.Struct("<IHH QQQQ Q")
_NODE: Final = struct.Struct("<HHHH")  # low and high half of a size or page, flags, key size
_NO_ROOT: Final = 0xFFFFFFFFFFFFFFFF
_BRANCH, _LEAF, _OVERFLOW = 0x01, 0x02, 0x04
_BIG_DATA, _SUB_DATABASE, _DUPLICATES = 0x01, 0x02, 0x04
_DUPSORT: Final = 0x04
_DEPTH_MAX: Final = 32  # LMDB's own bound


class _Walker:
    """The pages of one file. Each page of a tree is visited at most once, so that a cycle cannot loop for ever."""

    def __init__(self, source: Readable, file: str) -> None:
        self._source, self._file = source, file
        self.page_size = self._page_size()
        self.root = self._root()
        self._visited = 0

    def leaves(self, number: int, depth: int = 0) -> Iterator[tuple[bytes, bytes, int]]:
        """(key, value, offset of the page) of all entries below a page, in order."""
        offset = number * self.page_size
        self._visit(1, offset)
        if depth > _DEPTH_MAX:
            raise FormatError(self._file, "its pages form a loop", offset)
        page = self._read(offset, self.page_size)
        stored, _, flags, lower, upper = struct.unpack_from("<QHHHH", page)
        if stored != number or not flags & (_BRANCH | _LEAF) or not _PAGE_HEAD <= lower <= upper <= self.page_size:
            raise FormatError(self._file, "not a page of a tree", offset)
        for at in struct.unpack_from(f"<{(lower - _PAGE_HEAD) // 2}H", page, _PAGE_HEAD):
            if not lower <= at <= self.page_size - _NODE.size:
                raise FormatError(self._file, "an entry lies outside its page", offset)
            low, high, node_flags, key_size = _NODE.unpack_from(page, at)
            data_at = at + _NODE.size + key_size
            if data_at > self.page_size:
                raise FormatError(self._file, "a key lies outside its page", offset)
            if flags & _BRANCH:
                yield from self.leaves(low | high << 16 | node_flags << 32, depth + 1)
                continue
            if node_flags & (_SUB_DATABASE | _DUPLICATES):
                raise FormatError(self._file, "named databases and duplicate keys are not supported", offset)
            value = self._value(page, data_at, low | high << 16, node_flags, offset)
            yield page[at + _NODE.size : data_at], value, offset

    def _visit(self, pages: int, offset: int) -> None:
        """Count pages: those of a sound file, of large values too, are named once each."""
        self._visited += pages
        if self._visited * self.page_size > self._source.size:
            raise FormatError(self._file, "its pages form a loop, or one is used twice", offset)

    def _value(self, page: bytes, at: int, size: int, flags: int, offset: int) -> bytes:
        if not flags & _BIG_DATA:
            if at + size > self.page_size:
                raise FormatError(self._file, "a value lies outside its page", offset)
            return page[at : at + size]
        if at + 8 > self.page_size or size > JOB_MEMBER_BYTES_MAX:
            raise FormatError(self._file, "a value lies outside its page, or is too large to be changed in memory", offset)
        (number,) = struct.unpack_from("<Q", page, at)
        start = number * self.page_size
        stored, _, overflow, pages = struct.unpack_from("<QHHI", self._read(start, _PAGE_HEAD))
        if stored != number or not overflow & _OVERFLOW or _PAGE_HEAD + size > pages * self.page_size:
            raise FormatError(self._file, "not an overflow page", start)
        self._visit(pages, start)
        return self._read(start + _PAGE_HEAD, size)

    def _page_size(self) -> int:
        meta = self._meta(0)
        if meta is None:
            raise FormatError(self._file, "not an LMDB file of format 1 (LMDB 0.9)", 0)
        size: int = _DATABASE.unpack(meta[4])[0]
        if size not in (1 << bits for bits in range(9, 17)):
            raise FormatError(self._file, f"invalid page size: {size} bytes", 0)
        return size

    def _root(self) -> int | None:
        """The root page of the main database, from the meta page of the later transaction; None when it is empty."""
        metas = [meta for meta in (self._meta(0), self._meta(self.page_size)) if meta is not None]
        _, flags, _, _, _, _, _, root = _DATABASE.unpack(max(metas, key=lambda meta: meta[7])[5])
        if flags & _DUPSORT:
            raise FormatError(self._file, "LMDB files with duplicate keys are not supported", 0)
        return None if root == _NO_ROOT else root

    def _meta(self, offset: int) -> tuple[Any, ...] | None:
        meta = _META.unpack(self._read(offset + _PAGE_HEAD, _META.size))
        return meta if meta[:2] == (_MAGIC, _FORMAT) else None

    def _read(self, offset: int, size: int) -> bytes:
        if offset + size > self._source.size:
            raise FormatError(self._file, "the file ends before a page that it refers to", offset)
        buffer = bytearray(size)
        self._source.read_into(offset, memoryview(buffer))
        return bytes(buffer)


def read_lmdb(source: Readable, file: str) -> Iterator[SampleData]:
    """The samples of a `data.mdb` in the order of keys. FormatError, with the offset, for a broken or unsupported file."""
    walker = _Walker(source, file)
    if walker.root is None:
        return
    for number, (key, value, offset) in enumerate(walker.leaves(walker.root)):
        try:
            text = key.decode()
        except UnicodeDecodeError:
            raise FormatError(file, f"the key {key[:80]!r} is not UTF-8", offset) from None
        yield sample_of(file, number, text, fields_in_order(unpack_fields(file, value, offset)), offset)
