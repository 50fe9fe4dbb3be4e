"""Read an open index file with `pread`, and keep the most recently used pages in memory.

An index is never mapped: a disk error under a mapped page, or another process that truncates the file, is SIGBUS, which kills
the whole process with all its disks. Here the former is an OSError, the latter IndexCorrupt.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from dfc.tar.index.format import IndexCorrupt

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
        self._cached = _forgotten
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
                raise _cut_short(start + len(data))
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


def _forgotten(_key: int) -> None:
    """Replaces the cache's `get` once a file is closed."""


def _cut_short(length: int) -> IndexCorrupt:
    return IndexCorrupt("an index file was truncated while it was open", length)
