"""A whole small object in one call: the same steps as `dfc.storage.blobs.writer`, in the same order, with little else.

Many small uploads are bound by the interpreter, so this path has one write, no writer object and no tar index.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, Final

from dfc.checksum import BodyHasher, ExpectedChecksums, checksum_of
from dfc.errors import BadRequest
from dfc.filesystem import write_all
from dfc.storage import layout
from dfc.storage.catalog.changes import Put
from dfc.storage.catalog.commit import OutcomeUnknown
from dfc.storage.parts import DiskParts
from dfc.storage.rows import GOOD, UNSYNCED, Durability, ObjectRow, Precondition, PutResult, Supplied

_CREATE_TRIES: Final = 8


def put_whole(
    parts: DiskParts,
    bucket_id: str,
    name: str,
    body: bytes,
    expected: ExpectedChecksums,
    durability: Durability,
    precondition: Precondition,
    supplied: Supplied,
) -> PutResult:
    """Store `body`; see `Disk.put_small`. Whatever fails, no file and no descriptor is left."""
    checksum = _checksum(body, expected)
    parts.space.require(len(body))
    durable = durability == "fsync"
    if supplied.version is not None:
        observe(parts, supplied.version)
    try:
        fd, path, blob_id = create_blob(parts, bucket_id, name)
    except OSError as error:
        raise parts.health.translate(error, "creating a blob") from error
    row = new_row(bucket_id, name, blob_id, supplied, size=len(body), checksum=checksum, state=GOOD if durable else UNSYNCED)
    try:
        _fill(parts, fd, path, body + layout.row_footer(row), durable)
    except OSError as error:
        _remove(parts, path)
        raise parts.health.translate(error, "writing a blob") from error
    except BaseException:
        _remove(parts, path)
        raise
    try:
        outcome = parts.committer.submit(Put(row, precondition))
    except OutcomeUnknown:
        raise  # the next opening of the disk decides, so both blobs stay
    except Exception:
        _remove(parts, path)
        raise
    parts.stats.puts += 1
    parts.stats.put_bytes += len(body)
    garbage = outcome.garbage if outcome.stored else (row,)
    if garbage:
        parts.discard(garbage)
    return PutResult(row, outcome.replaced)


def create_blob(parts: DiskParts, bucket_id: str, name: str) -> tuple[int, str, str]:
    """A new, empty blob file: descriptor, path and the blob id that is in its name. Raises OSError."""
    stem = layout.blob_stem(name)
    tries = _CREATE_TRIES  # an id is taken only when the clock went back, a directory gone only with its bucket
    while True:
        tries -= 1
        blob_id = parts.clock.next_version()
        path = f"{parts.directories.make(bucket_id, name)}/{stem}@{blob_id}"
        try:
            return parts.filesystem.create(path), path, blob_id
        except FileExistsError:
            if not tries:
                raise
        except FileNotFoundError:
            parts.directories.forget(bucket_id)
            if not tries:
                raise


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


def _checksum(body: bytes, expected: ExpectedChecksums) -> str:
    if expected.xxh3_128 is None and expected.md5 is None:
        return checksum_of(body)
    hasher = BodyHasher(expected)
    hasher.update(body)
    return hasher.finish()


def _fill(parts: DiskParts, fd: int, path: str, data: bytes, durable: bool) -> None:
    try:
        write_all(parts.filesystem, fd, data)
        if durable:
            started = time.perf_counter()
            parts.filesystem.fdatasync(fd)
    except BaseException:
        with suppress(OSError):
            parts.filesystem.close(fd)
        raise
    parts.filesystem.close(fd)
    if durable:
        parts.directories.sync_chain(path.rpartition("/")[0])
        parts.stats.fsyncs += 1
        parts.stats.fsync_seconds += time.perf_counter() - started


def _remove(parts: DiskParts, path: str) -> None:
    try:
        parts.filesystem.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        parts.health.count(error, "removing an unfinished blob")
