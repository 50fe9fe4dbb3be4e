"""A local cache of whole shards: files named by ETag in a directory that processes of one machine share.

A shard that is wanted is fetched once: whoever comes first locks its part file and downloads, the others wait for it. A file
appears under its name only when all of it is there, so what has a name is whole. The least recently used go first when the
bound is reached; readers of a file that goes keep what they have open. What has no ETag or no size is read past the cache,
and so is everything when the disk is full or the directory cannot be written.

    DIR/0123…cdef.shard      a shard; `.indexed` when a DFC node had checked its headers
    DIR/0123…cdef.part       being fetched, locked by whoever does it, as long as the whole from the start
    DIR/lock                 held while room is made
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

import xxhash

from dfc.checksum import is_checksum
from dfc.errors import DfcError
from dfc.http.calls.retry import Cancellation
from dfc.inputs.base import ShardBroken, ShardChanged, ShardUnreadable
from dfc.inputs.sources.streams import Stream
from dfc.limits import INPUT_CACHE_FREE_SHARE, INPUT_CACHE_POLL_S, MIB

_log: Final = logging.getLogger("dfc.inputs")
_COPY_BYTES: Final = 4 * MIB
_SUFFIXES: Final = (".indexed", ".shard")
# Opens a stream over the network: its first byte, and its end (exclusive) or None.
Opener = Callable[[int, int | None], Stream]


@lru_cache(maxsize=16)
def cache_of(directory: str, size_max: int | None) -> ShardCache:
    """That of a directory, the same for all of this process."""
    return ShardCache(directory, size_max=size_max)


class ShardCache:
    """`directory` is made when it is not there. `size_max`: bytes; None: what is free there but for a twentieth.

    Good in any number of processes and threads at a time. `hits` and `misses` count shards, in this process.
    """

    def __init__(self, directory: str | os.PathLike[str], *, size_max: int | None = None) -> None:
        if size_max is not None and size_max < 0:
            raise ValueError(f"a cache of {size_max} bytes")
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
        """Bytes `start` to `end` of a shard. With the `etag` known beforehand nothing is asked of the server on a hit.

        Raises what the opener raises, ShardChanged when what it opens has another ETag, Cancelled.
        """
        if not etag:
            with opener(0, 1) as stream:  # one byte, and what the server says of the whole
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
            _log.warning("%s is read past the cache: %s", url, problem)
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
                os.utime(path)  # the clock of what goes first; a file that has gone meanwhile is good all the same
            return CachedStream(file, url, etag, suffix == ".indexed", start, end)
        return None

    @contextmanager
    def _filling(self, name: str, cancellation: Cancellation) -> Iterator[Any]:
        """The part file, locked and open, or None when somebody else has fetched the shard meanwhile. _NoRoom."""
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
                    continue  # whoever had it has given up and removed it
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
                raise ShardChanged(f"{url} has the ETag {stream.etag}, not {etag}", url=url)
            if stream.size is None:
                raise _NoRoom("its size is not known")
            self._reserve(part, self._part(name), stream.size)
            _copy(stream, part, url)
            try:
                os.fdatasync(part.fileno())  # a name must never stand for less than the whole, whatever happens to the machine
                os.replace(self._part(name), os.path.join(self.directory, name + (".indexed" if stream.indexed else ".shard")))
            except OSError as problem:
                raise _NoRoom(str(problem)) from problem
        finally:
            stream.close()

    def _reserve(self, part: Any, path: str, size: int) -> None:
        """Make room for a shard, and take it by the length of its part file. _NoRoom."""
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
            raise _NoRoom(f"it has {size} bytes, the cache room for {room}")
        for _, freed, path in sorted(files):
            if held + size <= room:
                return
            with suppress(FileNotFoundError):
                os.unlink(path)
            held -= freed
        if held + size > room:
            raise _NoRoom("all room is taken by shards that are being fetched")


class CachedStream(Stream):
    """A part of a cached file. `was_there`: it had not to be fetched."""

    was_there = False

    def __init__(self, file: Any, url: str, etag: str, indexed: bool, start: int, end: int | None) -> None:
        self._file = file
        self.url, self.etag, self.indexed = url, etag, indexed
        self.size = whole = os.fstat(file.fileno()).st_size
        start = min(start, whole)
        self._left = max(0, (whole if end is None else min(end, whole)) - start)
        # The ETag of a node is the checksum of the whole.
        self._hasher = xxhash.xxh3_128() if indexed and self._left == whole and is_checksum(etag) else None
        file.seek(start)

    def readinto(self, buffer: bytearray | memoryview) -> int:
        """Fill the buffer, except at the end; 0 there. A file that turns out to be damaged there is removed: ShardBroken."""
        view = memoryview(buffer)[: self._left]
        done = 0
        while done < len(view):
            try:
                count = self._file.readinto(view[done:])
            except OSError as problem:
                raise ShardUnreadable(f"{self._file.name}, cached of {self.url}: {problem}", url=self.url) from problem
            if not count:
                raise ShardBroken(f"{self._file.name}, cached of {self.url}, ends early", url=self.url)
            done += count
        self._left -= done
        if self._hasher is not None:
            self._hasher.update(view)
            if not self._left and self._hasher.hexdigest() != self.etag:
                with suppress(OSError):
                    os.unlink(self._file.name)
                raise ShardBroken(f"{self._file.name}, cached of {self.url}, was damaged; it is removed", url=self.url)
        return done

    def close(self) -> None:
        self._file.close()


class _NoRoom(DfcError):
    """A shard cannot be kept: no room, or no working disk."""


def _name_of(url: str, etag: str) -> str:
    """An ETag of DFC's says what the bytes are; any other one only together with the URL (a signature in its query apart)."""
    if is_checksum(etag):
        return etag
    parts = urlsplit(url)
    return xxhash.xxh3_128_hexdigest(f"{parts.scheme}://{parts.netloc}{parts.path}\n{etag}".encode())


def _lock(file: Any, cancellation: Cancellation) -> None:
    """Wait for the lock of a part file as long as another process, or thread, fetches the shard. Cancelled."""
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
        raise ShardBroken(f"{url} has {total} bytes, not the {stream.size} that were announced", url=url)


def _is_same(file: Any, path: str) -> bool:
    """Whether the path still names the file that is open."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _remove_abandoned(path: str) -> bool:
    """Whether a part was left behind by a process that is gone; it is removed then."""
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
