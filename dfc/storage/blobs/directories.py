"""Directories of blobs: created on demand, and synced once for all threads that wait for the same one.

A name in a directory is durable after an fsync of the directory that began after the name was created. Threads that ask while
an fsync is running share the next one.
"""

from __future__ import annotations

import threading
from typing import Final

from dfc.filesystem import FileSystem
from dfc.storage.layout import OBJECTS, bucket_directory, fan_directory

_KNOWN_MAX: Final = 65_536  # directories, 256 per bucket: 20 MiB; forgotten ones are created and synced again


class _Sync:
    """One fsync of one directory, pending or running."""

    __slots__ = ("done", "error")

    def __init__(self) -> None:
        self.done = threading.Lock()  # held until the fsync is over; much cheaper than an Event
        self.done.acquire()
        self.error: OSError | None = None

    def wait(self) -> None:
        with self.done:
            pass


class Directories:
    """Creates and syncs the blob directories of a disk. Thread-safe."""

    def __init__(self, root: str, filesystem: FileSystem) -> None:
        self._root = root
        self._filesystem = filesystem
        self._lock = threading.Lock()
        self._made: set[str] = set()
        self._durable: set[str] = set()
        self._running: dict[str, _Sync] = {}
        self._next: dict[str, _Sync] = {}

    def make(self, bucket_id: str, name: str) -> str:
        """Create the directory for the blobs of an object, if needed, and return its path."""
        bucket = bucket_directory(self._root, bucket_id)
        path = f"{bucket}/{fan_directory(name)}"
        if path not in self._made:
            self._make(bucket)
            self._make(path)
            with self._lock:
                if len(self._made) >= _KNOWN_MAX:
                    self._made.clear()
                    self._durable.clear()
                self._made.add(path)
        return path

    def _make(self, path: str) -> None:
        try:
            self._filesystem.make_directory(path)
        except FileExistsError:
            pass

    def forget(self, bucket_id: str) -> None:
        """Forget the bucket's directories, which may be gone: create and sync them again when they are needed."""
        prefix = bucket_directory(self._root, bucket_id)
        with self._lock:
            for known in (self._made, self._durable):
                known.difference_update([path for path in known if path == prefix or path.startswith(prefix + "/")])

    def sync_chain(self, directory: str) -> None:
        """Make the names in a blob directory durable, and also, once per process, the directory itself and its parent."""
        self.sync(directory)
        if directory in self._durable:
            return
        bucket = directory.rpartition("/")[0]
        self.sync(bucket)
        if bucket not in self._durable:
            self.sync(f"{self._root}/{OBJECTS}")
        with self._lock:
            self._durable.update((directory, bucket))

    def sync(self, path: str) -> None:
        """Wait for an fsync of the directory that began after this call. Raises the OSError of that fsync."""
        with self._lock:
            running = self._running.get(path)
            mine = self._next.get(path) if running is not None else None
            leader = mine is None
            if mine is None:
                mine = _Sync()
                (self._running if running is None else self._next)[path] = mine
        if running is not None and leader:
            running.wait()
        if leader:
            self._lead(path, mine)
        else:
            mine.wait()
        if mine.error is not None:
            raise mine.error

    def _lead(self, path: str, sync: _Sync) -> None:
        with self._lock:
            # From here on, new callers must wait for the next one.
            if self._next.get(path) is sync:
                del self._next[path]
            self._running[path] = sync
        try:
            self._filesystem.sync_directory(path)
        except OSError as error:
            sync.error = error
        finally:
            with self._lock:
                if self._running.get(path) is sync:
                    del self._running[path]
            sync.done.release()
