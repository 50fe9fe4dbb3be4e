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
        """Close the complete file: see `close_all`."""
        (error,) = close_all(self._parts, [self], durable=durable, stays_cached=stays_cached)
        if error is not None:
            raise error

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


def close_all(parts: DiskParts, blobs: Sequence[NewBlob], *, durable: bool, stays_cached: bool = True) -> list[OSError | None]:
    """Close complete files; returns what went wrong with each. `durable`: also sync them, with the directories above them; then
    they may be dropped from the page cache, so that what is written in bulk does not drive out what is read."""
    errors: list[OSError | None] = [None] * len(blobs)
    started = time.perf_counter()
    if durable and len(blobs) > 1:
        for blob in blobs:
            _drop_pages(blob)  # those that are not written yet begin to be, so that the disk has all of them to do at once
    for place, blob in enumerate(blobs):
        try:
            if durable:
                parts.filesystem.fdatasync(blob.fd)
                if not stays_cached:
                    _drop_pages(blob)
            fd, blob.fd = blob.fd, -1
            parts.filesystem.close(fd)
        except OSError as error:
            errors[place] = error
    if durable:
        _sync_directories(parts, blobs, errors)
        parts.stats.fsyncs += len(blobs)
        parts.stats.fsync_seconds += time.perf_counter() - started
    return errors


def _drop_pages(blob: NewBlob) -> None:
    with suppress(OSError):  # a file system need not take the hint
        os.posix_fadvise(blob.fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _sync_directories(parts: DiskParts, blobs: Sequence[NewBlob], errors: list[OSError | None]) -> None:
    places: dict[str, list[int]] = {}
    for place, blob in enumerate(blobs):
        if errors[place] is None:
            places.setdefault(blob.path.rpartition("/")[0], []).append(place)
    for directory, some in places.items():
        try:
            parts.directories.sync_chain(directory)
        except OSError as error:
            for place in some:
                errors[place] = error


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
