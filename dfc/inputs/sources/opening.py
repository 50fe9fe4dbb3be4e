"""Open a shard by a URL of any kind, through the cache of whole shards if there is one.

A local cache of whole shards: files named by ETag, in a directory shared by the processes of one machine.

Each shard is fetched once: the first process locks its part file and downloads, the others wait. A file gets its final name
only when complete. When the cache is full, the least recently used files are evicted; processes that have one open can still
read it. Shards without an ETag or a size bypass the cache, and so does everything if the disk is full or the directory is not
writable.

    DIR/0123…cdef.shard      a shard; `.indexed` if a DFC node had checked its headers
    DIR/0123…cdef.part       a download in progress, locked by its process; has its full length from the start
    DIR/lock                 held while files are evicted
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

import xxhash

from dfc.checksum import is_checksum
from dfc.errors import DfcError
from dfc.http.retry import Cancellation
from dfc.inputs.base import Counts, ShardBroken, ShardChanged, ShardRef, ShardUnreadable
from dfc.inputs.sources.local import open_local
from dfc.inputs.sources.streams import DEFAULT_OPTIONS, Stream, StreamOptions, kind_of
from dfc.inputs.sources.web import WebStream
from dfc.limits import INPUT_CACHE_FREE_SHARE, INPUT_CACHE_POLL_S, MIB

_log: Final = logging.getLogger("dfc.inputs")
_COPY_BYTES: Final = 4 * MIB
_SUFFIXES: Final = (".indexed", ".shard")
# Opens a stream over the network, given its first byte and its end (exclusive, or None).
Opener = Callable[[int, int | None], Stream]


@lru_cache(maxsize=16)
def cache_of(directory: str, size_max: int | None) -> ShardCache:
    """The cache of a directory, shared within this process."""
    return ShardCache(directory, size_max=size_max)


class ShardCache:
    """A cache in `directory`, which is created if missing. `size_max` is in bytes; None: the free space except a twentieth.

    Any number of processes and threads may use it at once. `hits` and `misses` count shards, in this process.
    """

    def __init__(self, directory: str | os.PathLike[str], *, size_max: int | None = None) -> None:
        if size_max is not None and size_max < 0:
            raise ValueError(f"the size of a cache must not be negative, not {size_max}")
        self.directory = os.path.abspath(os.path.expanduser(os.fspath(directory)))
        self.size_max = size_max
        self.hits = self.misses = 0
        os.makedirs(self.directory, exist_ok=True)

    def open(
        self,
        url: str,
        opener: Opener,
        *,
        start: int = 0,
        end: int | None = None,
        etag: str | None = None,
        cancellation: Cancellation | None = None,
    ) -> Stream:
        """Open bytes `start` to `end` of a shard. If the `etag` is given, a hit makes no request.

        Raises what the opener raises, ShardChanged if the opened shard has another ETag, Cancelled.
        """
        if not etag:
            with opener(0, 1) as stream:  # one byte, for the headers about the whole
                etag = stream.etag
                if not etag or stream.size is None:
                    return opener(start, end)
        name = _name_of(url, etag)
        found = self._find(name, url, etag, start, end)
        if found is not None:
            self.hits += 1
            found.was_there = True
            return found
        self.misses += 1
        try:
            with self._filling(name, cancellation or Cancellation()) as part:
                if part is not None:
                    self._fetch(part, name, url, etag, opener)
        except _NoRoom as problem:
            _log.warning("%s is read without the cache: %s", url, problem)
        return self._find(name, url, etag, start, end) or opener(start, end)

    def _part(self, name: str) -> str:
        return os.path.join(self.directory, name + ".part")

    def _find(self, name: str, url: str, etag: str, start: int, end: int | None) -> CachedStream | None:
        for suffix in _SUFFIXES:
            path = os.path.join(self.directory, name + suffix)
            try:
                file = open(path, "rb", buffering=0)
            except OSError:
                continue
            with suppress(OSError):
                os.utime(path)  # for evicting the least recently used; a file evicted meanwhile can still be read
            return CachedStream(file, url, etag, suffix == ".indexed", start, end)
        return None

    @contextmanager
    def _filling(self, name: str, cancellation: Cancellation) -> Iterator[Any]:
        """The part file, locked and open, or None if another process has fetched the shard meanwhile. _NoRoom."""
        path = self._part(name)
        while True:
            try:
                file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b", buffering=0)
            except OSError as problem:
                raise _NoRoom(str(problem)) from problem
            with file:
                _lock(file, cancellation)
                if any(os.path.exists(os.path.join(self.directory, name + suffix)) for suffix in _SUFFIXES):
                    with suppress(OSError):
                        if _is_same(file, path):
                            os.unlink(path)
                    yield None
                    return
                if not _is_same(file, path):
                    continue  # the previous holder gave up and removed it
                try:
                    yield file
                finally:
                    with suppress(OSError):
                        if _is_same(file, path):
                            os.unlink(path)
                return

    def _fetch(self, part: Any, name: str, url: str, etag: str, opener: Opener) -> None:
        stream = opener(0, None)
        try:
            if stream.etag != etag:
                raise ShardChanged(f"{url} was replaced: its ETag is {stream.etag}, not {etag}", url=url)
            if stream.size is None:
                raise _NoRoom("its size is unknown")
            self._reserve(part, self._part(name), stream.size)
            _copy(stream, part, url)
            try:
                os.fdatasync(part.fileno())  # a final name must mean a complete file, even after a power loss
                os.replace(self._part(name), os.path.join(self.directory, name + (".indexed" if stream.indexed else ".shard")))
            except OSError as problem:
                raise _NoRoom(str(problem)) from problem
        finally:
            stream.close()

    def _reserve(self, part: Any, path: str, size: int) -> None:
        """Make room for a shard, and reserve it by giving the part file its full length. _NoRoom."""
        try:
            with open(os.path.join(self.directory, "lock"), "ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._evict(size, path)
                os.ftruncate(part.fileno(), 0)
                os.ftruncate(part.fileno(), size)
        except OSError as problem:
            raise _NoRoom(str(problem)) from problem

    def _evict(self, size: int, own: str) -> None:
        files: list[tuple[int, int, str]] = []
        held = written = 0
        with os.scandir(self.directory) as entries:
            for entry in entries:
                if entry.path == own or not entry.name.endswith((*_SUFFIXES, ".part")):
                    continue
                try:
                    status = entry.stat()
                except FileNotFoundError:
                    continue
                if entry.name.endswith(".part") and _remove_abandoned(entry.path):
                    continue
                held += status.st_size
                written += status.st_blocks * 512
                if not entry.name.endswith(".part"):
                    files.append((status.st_mtime_ns, status.st_size, entry.path))
        room = int((shutil.disk_usage(self.directory).free + written) * INPUT_CACHE_FREE_SHARE)
        if self.size_max is not None:
            room = min(room, self.size_max)
        if size > room:
            raise _NoRoom(f"it has {size} bytes, but the cache has room for only {room}")
        for _, freed, path in sorted(files):
            if held + size <= room:
                return
            with suppress(FileNotFoundError):
                os.unlink(path)
            held -= freed
        if held + size > room:
            raise _NoRoom("the cache is full of shards that are being fetched")


class CachedStream(Stream):
    """A part of a cached file. `was_there` means a cache hit."""

    was_there = False

    def __init__(self, file: Any, url: str, etag: str, indexed: bool, start: int, end: int | None) -> None:
        self._file = file
        self.url, self.etag, self.indexed = url, etag, indexed
        self.size = whole = os.fstat(file.fileno()).st_size
        start = min(start, whole)
        self._left = max(0, (whole if end is None else min(end, whole)) - start)
        # The ETag of a DFC object is the checksum of the whole.
        self._hasher = xxhash.xxh3_128() if indexed and self._left == whole and is_checksum(etag) else None
        file.seek(start)

    def readinto(self, buffer: bytearray | memoryview) -> int:
        """Fill the buffer, except at the end; 0 there. A file found to be damaged is removed, with ShardBroken."""
        view = memoryview(buffer)[: self._left]
        done = 0
        while done < len(view):
            try:
                count = self._file.readinto(view[done:])
            except OSError as problem:
                raise ShardUnreadable(f"{self._file.name}, the cached copy of {self.url}: {problem}", url=self.url) from problem
            if not count:
                raise ShardBroken(f"{self._file.name}, the cached copy of {self.url}, is truncated", url=self.url)
            done += count
        self._left -= done
        if self._hasher is not None:
            self._hasher.update(view)
            if not self._left and self._hasher.hexdigest() != self.etag:
                with suppress(OSError):
                    os.unlink(self._file.name)
                message = f"{self._file.name}, the cached copy of {self.url}, was damaged and has been removed"
                raise ShardBroken(message, url=self.url)
        return done

    def close(self) -> None:
        self._file.close()


class _NoRoom(DfcError):
    """A shard cannot be cached: no room, or a disk error."""


def _name_of(url: str, etag: str) -> str:
    """The name of a cached file. A DFC ETag identifies the bytes; others only together with the URL (without its query)."""
    if is_checksum(etag):
        return etag
    parts = urlsplit(url)
    return xxhash.xxh3_128_hexdigest(f"{parts.scheme}://{parts.netloc}{parts.path}\n{etag}".encode())


def _lock(file: Any, cancellation: Cancellation) -> None:
    """Lock a part file, waiting while another process or thread fetches the shard. Cancelled."""
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            cancellation.wait(INPUT_CACHE_POLL_S)


def _copy(stream: Stream, part: Any, url: str) -> None:
    buffer = memoryview(bytearray(_COPY_BYTES))
    total = 0
    while count := stream.readinto(buffer):
        data = buffer[:count]
        total += count
        while data:
            try:
                data = data[os.pwrite(part.fileno(), data, total - len(data)) :]
            except OSError as problem:
                raise _NoRoom(str(problem)) from problem
    if total != stream.size:
        raise ShardBroken(f"{url} has {total} bytes, but the server announced {stream.size}", url=url)


def _is_same(file: Any, path: str) -> bool:
    """Whether the path still names the open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _remove_abandoned(path: str) -> bool:
    """Remove a part file if its process is gone. Returns whether it was removed."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same(file, path):
                os.unlink(path)
            return True
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False


# --- Open a shard by a URL of any kind as a stream that survives broken connections.


def open_stream(
    ref: ShardRef | str,
    *,
    start: int = 0,
    end: int | None = None,
    etag: str | None = None,
    options: StreamOptions = DEFAULT_OPTIONS,
    counts: Counts | None = None,
    cancellation: Cancellation | None = None,
) -> Stream:
    """Open bytes `start` to `end` (exclusive; None: to the last) of a shard, from the first of its URLs that works.

    `etag` is the expected version: ShardChanged if it has changed (servers, not files). `counts` counts retries and bytes
    received. `cancellation` cancels waiting here and later in `readinto`, from any thread. Raises ShardUnreadable if none of
    the URLs can be opened, ValueError for a URL of an unknown kind.
    """
    if options.cache_dir is not None and kind_of(ref if isinstance(ref, str) else ref.url) in ("web", "cluster", "fsspec"):
        past = replace(options, cache_dir=None)

        def opener(start: int, end: int | None) -> Stream:
            return open_stream(ref, start=start, end=end, etag=etag, options=past, counts=counts, cancellation=cancellation)

        cache = cache_of(options.cache_dir, options.cache_bytes)
        url = ref if isinstance(ref, str) else ref.url
        stream = cache.open(url, opener, start=start, end=end, etag=etag, cancellation=cancellation)
        if counts is not None and isinstance(stream, CachedStream) and stream.was_there:
            counts.add(shards_cached=1)
        return stream
    urls = (ref,) if isinstance(ref, str) else tuple(dict.fromkeys((ref.url, *ref.replicas)))
    web = tuple(url for url in urls if kind_of(url) in ("web", "cluster"))
    problems: list[ShardUnreadable] = []
    for url in urls:
        planned = etag if url == urls[0] else None  # other servers make ETags differently
        try:
            if url not in web:
                return open_local(url, start, end, planned, options, counts, cancellation)
            if url == web[0]:
                return WebStream(web, start, end, planned, options, counts, cancellation)
        except ShardUnreadable as problem:
            problems.append(problem)
    if len(problems) == 1:
        raise problems[0]
    raise ShardUnreadable("; ".join(map(str, problems)), url=urls[0])
