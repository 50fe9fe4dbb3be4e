"""Store a whole small object in one call: the same steps as `dfc.storage.blobs.writer`, in the same order, and little else.

Many small uploads are limited by the interpreter, so this path has one write, no writer object and no tar index.
"""

from __future__ import annotations

from collections.abc import Callable

from dfc.checksum import BodyHasher, ExpectedChecksums, checksum_of
from dfc.filesystem import write_all
from dfc.storage import layout
from dfc.storage.blobs.newblob import NewBlob, new_row, observe
from dfc.storage.blobs.writer import E, begin_upload, check_upload
from dfc.storage.catalog.changes import Change
from dfc.storage.catalog.commit import OutcomeUnknown
from dfc.storage.parts import DiskParts
from dfc.storage.rows import GOOD, UNSYNCED, Durability, ObjectRow, Supplied
from dfc.tar.index.format import index_kind


def store_small(
    parts: DiskParts,
    bucket_id: str,
    name: str,
    body: bytes,
    expected: ExpectedChecksums,
    durability: Durability,
    supplied: Supplied,
    change: Callable[[ObjectRow], Change[E]],
) -> tuple[ObjectRow, E]:
    """Store `body` and commit the change that is made of its row; returns that row and the outcome. A shard, which needs an
    index, takes the way of larger uploads."""
    if index_kind(name) is None:
        check_upload(parts, bucket_id, supplied)
        return _store_whole(parts, bucket_id, name, body, expected, durability, supplied, change)
    writer = begin_upload(parts, bucket_id, name, size=len(body), expected=expected, durability=durability, supplied=supplied)
    writer.write(body)
    writer.finish()
    return writer.commit_as(change)


def _store_whole(
    parts: DiskParts,
    bucket_id: str,
    name: str,
    body: bytes,
    expected: ExpectedChecksums,
    durability: Durability,
    supplied: Supplied,
    change: Callable[[ObjectRow], Change[E]],
) -> tuple[ObjectRow, E]:
    """On any failure, no file and no descriptor is left behind."""
    checksum = _checksum(body, expected)
    parts.space.require(len(body))
    durable = durability == "fsync"
    if supplied.version is not None:
        observe(parts, supplied.version)
    blob = NewBlob(parts)
    try:
        blob.create(bucket_id, name)
    except OSError as error:
        raise parts.health.translate(error, "creating a blob") from error
    row = new_row(bucket_id, name, blob.id, supplied, size=len(body), checksum=checksum, state=GOOD if durable else UNSYNCED)
    try:
        write_all(parts.filesystem, blob.fd, body + layout.row_footer(row))
        blob.close(durable)
    except OSError as error:
        blob.discard()
        raise parts.health.translate(error, "writing a blob") from error
    except BaseException:
        blob.discard()
        raise
    try:
        outcome = parts.committer.submit(change(row))
    except OutcomeUnknown:
        raise  # decided when the disk is next opened, so both blobs stay
    except Exception:
        blob.discard()
        raise
    parts.stats.puts += 1
    parts.stats.put_bytes += len(body)
    garbage = outcome.garbage if outcome.stored else (*outcome.garbage, row)
    if garbage:
        parts.discard(garbage)
    return row, outcome


def _checksum(body: bytes, expected: ExpectedChecksums) -> str:
    if expected.xxh3_128 is None and expected.md5 is None:
        return checksum_of(body)
    hasher = BodyHasher(expected)
    hasher.update(body)
    return hasher.finish()
