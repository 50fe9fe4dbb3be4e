"""Resumable downloads: data is kept in `NAME.ETAG.part` and renamed to NAME once it is complete and verified.

The etag in the name of the part tells which version of the object it belongs to; no other state is needed.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

import xxhash

from dfc.checksum import is_checksum
from dfc.client.reader import BULK_READ_BYTES, ObjectReader, ObjectRequest
from dfc.errors import ChecksumMismatch, Conflict
from dfc.wire.objects import ObjectInfo

_NO_ETAG: Final = "0" * 32
Progress = Callable[[int], None]


def download(request: ObjectRequest, path: str, *, resume: bool = True, progress: Progress | None = None) -> ObjectInfo:
    """Download an object to the file `path`, replacing it. `progress` gets byte counts, including those of a resumed part.

    If the checksum is wrong at the end, the part is deleted and the download is retried once from the start. Raises
    ChecksumMismatch, Conflict if another process downloads to the same path, OSError of the local disk, and the node's error.
    """
    if not resume:
        _remove_parts(path)
    try:
        info = _attempt(request, path, progress or _ignore)
    except ChecksumMismatch:
        info = _attempt(request, path, progress or _ignore)
    _remove_parts(path)
    return info


def parts_of(path: str) -> list[str]:
    """List the parts for a path, of any version of the object, newest last."""
    directory, base = os.path.split(path)
    pattern = re.compile(re.escape(base) + r"\.[0-9a-f]{32}\.part")
    found = []
    with os.scandir(directory or ".") as entries:
        for entry in entries:
            if pattern.fullmatch(entry.name):
                found.append((entry.stat().st_mtime_ns, os.path.join(directory, entry.name)))
    return [part for _, part in sorted(found)]


def part_path(path: str, etag: str) -> str:
    """Return the path of the part for one version of an object."""
    return f"{path}.{etag if is_checksum(etag) else _NO_ETAG}.part"


def _attempt(request: ObjectRequest, path: str, progress: Progress) -> ObjectInfo:
    with ExitStack() as stack:
        parts = parts_of(path)
        part = stack.enter_context(_Part(parts[-1])) if parts else None
        if part is not None and part.size and part.etag != _NO_ETAG:
            reader = stack.enter_context(ObjectReader(request, part.size, etag=part.etag, verify=False))
        else:
            reader = stack.enter_context(ObjectReader(request, verify=False))
        wanted = part_path(path, reader.info.etag)
        if part is None or part.path != wanted:
            if part is not None:
                os.unlink(part.path)
            part = stack.enter_context(_Part(wanted))
        if part.size != reader.start:
            part.restart()
        progress(part.size)
        _receive(reader, part, progress)
        os.replace(part.path, path)
        return reader.info


def _receive(reader: ObjectReader, part: _Part, progress: Progress) -> None:
    buffer = memoryview(bytearray(BULK_READ_BYTES))
    while count := reader.readinto(buffer):
        part.write(buffer[:count])
        progress(count)
    found = part.hasher.hexdigest()
    if reader.checksum is not None and found != reader.checksum:
        os.unlink(part.path)
        progress(-part.size)
        raise ChecksumMismatch(f"{part.path} has the checksum xxh3-128={found}, not {reader.checksum}, and was deleted")


def _remove_parts(path: str) -> None:
    for part in parts_of(path):
        try:
            os.unlink(part)
        except FileNotFoundError:
            pass  # another process finished the download


def _ignore(count: int) -> None:
    pass


class _Part:
    """A part file, locked against other processes, with a running hash of its content.

    Its last byte is dropped on opening, so that a complete part (of a process killed before the rename) can be resumed like
    any other.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.etag = path[-37:-5]
        self.hasher = xxhash.xxh3_128()
        self.size = 0
        self._file = open(path, "a+b", buffering=0)

    def __enter__(self) -> _Part:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise Conflict(f"another process is downloading to {self.path}") from None
        self._file.truncate(max(os.fstat(self._file.fileno()).st_size - 1, 0))
        self._file.seek(0)
        buffer = memoryview(bytearray(BULK_READ_BYTES))
        while count := self._file.readinto(buffer):
            self._count(buffer[:count])
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: memoryview) -> None:
        self._count(data)
        while data:
            data = data[self._file.write(data) :]

    def restart(self) -> None:
        """Discard the content."""
        self._file.truncate(0)
        self.hasher.reset()
        self.size = 0

    def _count(self, data: memoryview) -> None:
        self.hasher.update(data)
        self.size += len(data)
