"""A whole small object in one call: the same steps as `dfc.storage.writer`, in the same order, with little else.

Many small uploads are bound by the interpreter, so this path has one write, no writer object and no tar index.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

from dfc.checksum import BodyHasher, ExpectedChecksums, checksum_of
from dfc.filesystem import write_all
from dfc.storage import layout
from dfc.storage.commit import OutcomeUnknown
from dfc.storage.operations import Put
from dfc.storage.parts import DiskParts
from dfc.storage.rows import GOOD, UNSYNCED, Durability, ObjectRow, Precondition, PutResult

_CREATE_TRIES: Final = 8


def put_whole(
    parts: DiskParts,
    bucket_id: str,
    name: str,
    body: bytes,
    expected: ExpectedChecksums,
    durability: Durability,
    precondition: Precondition,
) -> PutResult:
    """Store `body`; see `Disk.put_small`. Whatever fails, no file and no descriptor is left."""
    checksum = _checksum(body, expected)
    parts.space.require(len(body))
    durable = durability == "fsync"
    try:
        fd, path, row = _create(parts, bucket_id, name, len(body), checksum, GOOD if durable else UNSYNCED)
    except OSError as error:
        raise parts.health.translate(error, "creating a blob") from error
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
    """A new, empty blob file: descriptor, path and the version that is in its name. Raises OSError."""
    stem = layout.blob_stem(name)
    tries = _CREATE_TRIES  # a version is taken only when the clock went back, a directory gone only with its bucket
    while True:
        tries -= 1
        version = parts.clock.next_version()
        path = f"{parts.directories.make(bucket_id, name)}/{stem}@{version}"
        try:
            return parts.filesystem.create(path), path, version
        except FileExistsError:
            if not tries:
                raise
        except FileNotFoundError:
            parts.directories.forget(bucket_id)
            if not tries:
                raise


def _checksum(body: bytes, expected: ExpectedChecksums) -> str:
    if expected.xxh3_128 is None and expected.md5 is None:
        return checksum_of(body)
    hasher = BodyHasher(expected)
    hasher.update(body)
    return hasher.finish()


def _create(parts: DiskParts, bucket_id: str, name: str, size: int, checksum: str, state: int) -> tuple[int, str, ObjectRow]:
    fd, path, version = create_blob(parts, bucket_id, name)
    return fd, path, ObjectRow(bucket_id, name, version, size, checksum, None, None, (), state)


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
