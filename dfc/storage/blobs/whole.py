"""Store whole small objects: the same steps as `dfc.storage.blobs.writer`, in the same order, and little else.

Many small uploads are limited by the interpreter, so this path has one write, no writer object and no tar index. What comes
together is stored together, in one thread: switching between threads costs more than all of these steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple

from dfc.checksum import BodyHasher, ExpectedChecksums, checksum_of
from dfc.errors import DfcError
from dfc.filesystem import write_all
from dfc.storage import layout
from dfc.storage.blobs.newblob import NewBlob, close_all, new_row, observe
from dfc.storage.blobs.writer import E, begin_upload, check_upload
from dfc.storage.catalog.changes import Change
from dfc.storage.catalog.commit import OutcomeUnknown
from dfc.storage.parts import DiskParts
from dfc.storage.rows import GOOD, UNSYNCED, Durability, ObjectRow, Supplied
from dfc.tar.index.format import index_kind


class SmallUpload(NamedTuple, Generic[E]):
    """A whole object, and the change that is made of its row."""

    bucket_id: str
    name: str
    body: bytes
    expected: ExpectedChecksums
    supplied: Supplied
    change: Callable[[ObjectRow], Change[E]]


class _Written(NamedTuple):
    blob: NewBlob
    row: ObjectRow


def store_small(parts: DiskParts, upload: SmallUpload[E], durability: Durability) -> tuple[ObjectRow, E]:
    """Store an object and commit the change that is made of its row; returns that row and the outcome. A shard, which needs an
    index, takes the way of larger uploads."""
    if index_kind(upload.name) is not None:
        return _store_shard(parts, upload, durability)
    blob, row = written = _write(parts, upload, durability)
    try:
        blob.close(durable=durability == "fsync")
    except OSError as error:
        raise _given_up(parts, blob, error) from error
    except BaseException:
        blob.discard()
        raise
    (outcome,) = parts.committer.submit_all((upload.change(row),))
    outcome = _ended(parts, upload, written, outcome)
    if isinstance(outcome, Exception):
        raise outcome
    return row, outcome


def store_several(
    parts: DiskParts, uploads: Sequence[SmallUpload[E]], durability: Durability
) -> list[tuple[ObjectRow, E] | Exception]:
    """The same for several at once: for each, what it returns or raises. They share a commit and the syncs of directories; a
    shard, which shares nothing, keeps the others waiting."""
    found: dict[int, tuple[ObjectRow, E] | Exception] = {}
    written: dict[int, _Written] = {}
    for place, upload in enumerate(uploads):
        try:
            if index_kind(upload.name) is None:
                written[place] = _write(parts, upload, durability)
            else:
                found[place] = _store_shard(parts, upload, durability)
        except Exception as error:
            found[place] = _kept(error)
    found |= _close(parts, written, durable=durability == "fsync")
    left = {place: each for place, each in written.items() if place not in found}
    outcomes = parts.committer.submit_all([uploads[place].change(each.row) for place, each in left.items()])
    for (place, each), outcome in zip(left.items(), outcomes, strict=True):
        ended = _ended(parts, uploads[place], each, outcome)
        found[place] = ended if isinstance(ended, Exception) else (each.row, ended)
    return [found[place] for place in range(len(uploads))]


def _store_shard(parts: DiskParts, upload: SmallUpload[E], durability: Durability) -> tuple[ObjectRow, E]:
    bucket_id, name, body, expected, supplied, change = upload
    check_upload(parts, bucket_id, supplied)
    writer = begin_upload(parts, bucket_id, name, size=len(body), expected=expected, durability=durability, supplied=supplied)
    writer.write(body)
    writer.finish()
    return writer.commit_as(change)


def _write(parts: DiskParts, upload: SmallUpload[E], durability: Durability) -> _Written:
    """Write a blob, which is still to be closed. On any failure, no file and no descriptor is left behind."""
    bucket_id, name, body, expected, supplied, _ = upload
    check_upload(parts, bucket_id, supplied)
    checksum = _checksum(body, expected)
    parts.space.require(len(body))
    if supplied.version is not None:
        observe(parts, supplied.version)
    blob = NewBlob(parts)
    try:
        blob.create(bucket_id, name)
    except OSError as error:
        raise parts.health.translate(error, "creating a blob") from error
    state = GOOD if durability == "fsync" else UNSYNCED
    row = new_row(bucket_id, name, blob.id, supplied, size=len(body), checksum=checksum, state=state)
    try:
        write_all(parts.filesystem, blob.fd, body + layout.row_footer(row))
    except OSError as error:
        blob.discard()
        raise parts.health.translate(error, "writing a blob") from error
    except BaseException:
        blob.discard()
        raise
    return _Written(blob, row)


def _close(parts: DiskParts, written: dict[int, _Written], *, durable: bool) -> dict[int, Exception]:
    """Close the blobs; returns what went wrong. Those of which something did are discarded."""
    try:
        errors = close_all(parts, [each.blob for each in written.values()], durable=durable)
    except BaseException:
        for each in written.values():
            each.blob.discard()
        raise
    return {
        place: _kept(_given_up(parts, each.blob, error))
        for (place, each), error in zip(written.items(), errors, strict=True)
        if error is not None
    }


def _given_up(parts: DiskParts, blob: NewBlob, error: OSError) -> Exception:
    """Discard a blob after an error; returns what to raise."""
    blob.discard()
    return parts.health.translate(error, "writing a blob")


def _kept(error: Exception) -> Exception:
    """An error that is returned. One that we expect leaves behind where it was: its frames hold the bodies of all."""
    if isinstance(error, DfcError):
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)
    return error


def _ended(parts: DiskParts, upload: SmallUpload[E], written: _Written, outcome: E | Exception) -> E | Exception:
    """After the commit: count the upload, and discard what it has replaced. If the commit has failed, the blob is removed."""
    if isinstance(outcome, Exception):
        if not isinstance(outcome, OutcomeUnknown):  # else decided when the disk is next opened, so both blobs stay
            written.blob.discard()
        return outcome
    parts.stats.puts += 1
    parts.stats.put_bytes += len(upload.body)
    garbage = outcome.garbage if outcome.stored else (*outcome.garbage, written.row)
    if garbage:
        parts.discard(garbage)
    return outcome


def _checksum(body: bytes, expected: ExpectedChecksums) -> str:
    if expected.xxh3_128 is None and expected.md5 is None:
        return checksum_of(body)
    hasher = BodyHasher(expected)
    hasher.update(body)
    return hasher.finish()
