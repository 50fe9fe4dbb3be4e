"""A blob that is being made, by `writer` or by `whole`: its file under a new id, closed for good or discarded, and its row."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, Final

from dfc.errors import BadRequest
from dfc.storage import layout
from dfc.storage.parts import DiskParts
from dfc.storage.rows import ObjectRow, Supplied

_CREATE_TRIES: Final = 8


class NewBlob:
    """The file: `create`, then write to `fd`, then `close`; `discard` in any state. OSError from the first and the last."""

    __slots__ = ("_parts", "fd", "id", "path")

    def __init__(self, parts: DiskParts) -> None:
        self._parts = parts
        self.fd = -1  # while it is open
        self.path = self.id = ""

    def create(self, bucket_id: str, name: str) -> None:
        """An empty file; its name has the blob id."""
        parts = self._parts
        stem = layout.blob_stem(name)
        tries = _CREATE_TRIES  # an id is taken only when the clock went back, a directory gone only with its bucket
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

    def close(self, durable: bool) -> None:
        """It is complete, with its footer. `durable`: and on the medium, with the directories above it."""
        parts = self._parts
        if durable:
            started = time.perf_counter()
            parts.filesystem.fdatasync(self.fd)
        fd, self.fd = self.fd, -1
        parts.filesystem.close(fd)
        if durable:
            parts.directories.sync_chain(self.path.rpartition("/")[0])
            parts.stats.fsyncs += 1
            parts.stats.fsync_seconds += time.perf_counter() - started

    def discard(self) -> None:
        """Leave no descriptor and no file."""
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


def new_row(bucket_id: str, name: str, blob_id: str, supplied: Supplied, **known: Any) -> ObjectRow:
    """The row of a new blob."""
    given = supplied.version
    drawn = "" if given is None else blob_id
    return ObjectRow(bucket_id, name, given or blob_id, attributes=supplied.attributes, drawn=drawn, **known)


def observe(parts: DiskParts, version: str) -> None:
    """Let the clock follow a version from outside. BadRequest when it is none, or of a time to come."""
    try:
        parts.clock.observe_foreign(version)
    except ValueError as error:
        raise BadRequest(str(error)) from None
