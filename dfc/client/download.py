"""Downloads into files: what has arrived stays in `NAME.ETAG.part` and is continued; the name appears when all is verified.

The etag in the name of the part says which version of the object it belongs to, so that nothing else needs to be remembered.
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
from dfc.client.models import ObjectInfo
from dfc.client.reader import BULK_READ_BYTES, ObjectReader, ObjectRequest
from dfc.errors import ChecksumMismatch, Conflict

_NO_ETAG: Final = "0" * 32
Progress = Callable[[int], None]


def download(request: ObjectRequest, path: str, *, resume: bool = True, progress: Progress | None = None) -> ObjectInfo:
    """Store an object as the file `path`, replacing what is there. `progress` gets bytes, also those that a part had.

    A checksum that is wrong at the end throws the part away and is tried once more from the start. Raises ChecksumMismatch,
    Conflict when another process downloads to the same path, OSError of the local disk, and what the node says.
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
    """The parts that belong to a path, of whatever version of the object, the newest last."""
    directory, base = os.path.split(path)
    pattern = re.compile(re.escape(base) + r"\.[0-9a-f]{32}\.part")
    found = []
    with os.scandir(directory or ".") as entries:
        for entry in entries:
            if pattern.fullmatch(entry.name):
                found.append((entry.stat().st_mtime_ns, os.path.join(directory, entry.name)))
    return [part for _, part in sorted(found)]


def part_path(path: str, etag: str) -> str:
    """Where the bytes of one version of an object are kept until they are complete."""
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
        raise ChecksumMismatch(f"{part.path} arrived with xxh3-128={found}, not {reader.checksum}; it was thrown away")


def _remove_parts(path: str) -> None:
    for part in parts_of(path):
        try:
            os.unlink(part)
        except FileNotFoundError:
            pass  # another process has finished


def _ignore(count: int) -> None:
    pass


class _Part:
    """A part file, locked against other processes, with the running hash of what is in it.

    The last byte is taken off on opening: a part that is complete, its process killed before the rename, can then be continued
    like any other.
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
        """Throw away what is there."""
        self._file.truncate(0)
        self.hasher.reset()
        self.size = 0

    def _count(self, data: memoryview) -> None:
        self.hasher.update(data)
        self.size += len(data)
