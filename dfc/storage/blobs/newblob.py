"""A new blob, as `writer` and `whole` create it: a file under a new id, which is completed or discarded, and its row."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from dfc.errors import BadRequest
from dfc.storage import layout
from dfc.storage.parts import DiskParts
from dfc.storage.rows import ObjectRow, Supplied

_CREATE_TRIES: Final = 8


class NewBlob:
    """The file of a new blob: `create`, write to `fd`, `close`; `discard` in any state. The first and last raise OSError."""

    __slots__ = ("_parts", "fd", "id", "path")

    def __init__(self, parts: DiskParts) -> None:
        self._parts = parts
        self.fd = -1  # -1: not open
        self.path = self.id = ""

    def create(self, bucket_id: str, name: str) -> None:
        """Create an empty file, named after the blob id."""
        parts = self._parts
        stem = layout.blob_stem(name)
        tries = _CREATE_TRIES  # an id is taken only if the clock went back, a directory is gone only with its bucket
        while True:
            tries -= 1
            blob_id = parts.clock.next_version()
            path = f"{parts.directories.make(bucket_id, name)}/{stem}@{blob_id}"
            try:
                self.fd = parts.filesystem.create(path)
            except FileExistsError:
                if not tries:
                    raise
            except FileNotFoundError:
                parts.directories.forget(bucket_id)
                if not tries:
                    raise
            else:
                self.path, self.id = path, blob_id
                return

    def close(self, *, durable: bool, stays_cached: bool = True) -> None:
        """Close the complete file. `durable`: also sync it, with the directories above it; then it may be dropped from the page
        cache, so that what is written in bulk does not drive out what is read."""
        parts = self._parts
        started = time.perf_counter()
        if durable:
            parts.filesystem.fdatasync(self.fd)
            if not stays_cached:
                with suppress(OSError):  # a file system need not take the hint
                    os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        fd, self.fd = self.fd, -1
        parts.filesystem.close(fd)
        if durable:
            parts.directories.sync_chain(self.directory)
            _count_syncs(parts, 1, started)

    @property
    def directory(self) -> str:
        """The path of the directory that it is in."""
        return self.path.rpartition("/")[0]

    def discard(self) -> None:
        """Close and remove the file."""
        filesystem = self._parts.filesystem
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with suppress(OSError):
                filesystem.close(fd)
        try:
            if self.path:
                filesystem.unlink(self.path)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._parts.health.count(error, "removing an unfinished blob")


def close_all(parts: DiskParts, blobs: Sequence[NewBlob], *, durable: bool) -> list[OSError | None]:
    """Close complete files; returns what went wrong with each. `durable`: also sync them, with the directories above them, each
    of which is synced once."""
    errors: list[OSError | None] = [None] * len(blobs)
    started, filesystem = time.perf_counter(), parts.filesystem
    for place, blob in enumerate(blobs) if durable else ():
        try:
            filesystem.start_writeback(blob.fd, 0, 0)  # so that the disk has all of them to do at once
        except OSError as error:
            errors[place] = error
    places: dict[str, list[int]] = {}
    for place, blob in enumerate(blobs):
        if errors[place] is not None:
            continue
        try:
            if durable:
                filesystem.fdatasync(blob.fd)
            fd, blob.fd = blob.fd, -1
            filesystem.close(fd)
        except OSError as error:
            errors[place] = error
        else:
            places.setdefault(blob.directory, []).append(place)
    for directory, some in places.items() if durable else ():
        try:
            parts.directories.sync_chain(directory)
        except OSError as error:
            for place in some:
                errors[place] = error
    if durable:
        _count_syncs(parts, len(blobs), started)
    return errors


def _count_syncs(parts: DiskParts, count: int, started: float) -> None:
    parts.stats.fsyncs += count
    parts.stats.fsync_seconds += time.perf_counter() - started


def new_row(bucket_id: str, name: str, blob_id: str, supplied: Supplied, **known: Any) -> ObjectRow:
    """Make the row of a new blob."""
    given = supplied.version
    drawn = "" if given is None else blob_id
    return ObjectRow(bucket_id, name, given or blob_id, attributes=supplied.attributes, drawn=drawn, **known)


def observe(parts: DiskParts, version: str) -> None:
    """Advance the clock past a version from outside. BadRequest if it is not a version, or is from the future."""
    try:
        parts.clock.observe_foreign(version)
    except ValueError as error:
        raise BadRequest(str(error)) from None
