"""Blobs written: small ones at once, others while they arrive, and the commit that makes them objects.

A new blob is a file under a new id, which is completed or discarded, and its row."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from dfc.checksum import BodyHasher, Buffer, ExpectedChecksums, checksum_of
from dfc.errors import BadRequest, DfcError, LengthMismatch, NoSpace, TooLarge, Unavailable
from dfc.filesystem import FileSystem, pwrite_all, write_all
from dfc.storage import layout
from dfc.storage.catalog.changes import Change, KeepStaged, Put, PutOutcome, StagedName
from dfc.storage.catalog.commit import OutcomeUnknown
from dfc.storage.parts import DiskParts, IndexWriter
from dfc.storage.rows import (
    ALWAYS,
    GOOD,
    NOTHING,
    UNSYNCED,
    Durability,
    ObjectRow,
    OtherCondition,
    Precondition,
    PutResult,
    Supplied,
    check_attributes,
)
from dfc.tar.header import TarError
from dfc.tar.index.builder import IndexSummary
from dfc.tar.index.format import index_kind

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


# --- Write out a file while it grows, so that the sync at its end is short.


class Writeback:
    """Starts writing out each piece of a growing file and, if the file is to be durable, waits for the piece before. So at most
    two pieces are unwritten at any time, while one is always on its way to the medium."""

    def __init__(self, filesystem: FileSystem, piece_bytes: int, durable: bool) -> None:
        self._filesystem = filesystem
        self._piece_bytes = piece_bytes
        self._durable = durable
        self._waited = 0
        self.started = 0
        """Bytes for which writing has started."""

    def is_due(self, size: int) -> bool:
        """Whether the file has grown by a whole piece since the last one."""
        return size - self.started >= self._piece_bytes

    def start(self, fd: int, size: int) -> None:
        """Start writing out the bytes since the last call. Raises OSError, also for the previous piece."""
        start, self.started = self.started, size
        self._filesystem.start_writeback(fd, start, size - start)
        if self._durable and start > self._waited:
            self._filesystem.start_writeback(fd, self._waited, start - self._waited, wait=True)
            self._waited = start


# --- One upload: a new blob, hashed and indexed as it arrives, and the commit that makes it the object, or another change.
#
# Until `commit` returns, the old object is served. `abort` always leaves no file and no descriptor; it runs automatically when
# a method raises. Another thread may call it at any time: while bytes are being written it takes effect after that, and once
# `commit` has begun only the commit decides: then it takes effect if the commit leaves the upload as it was.


class UploadOutcome(Protocol):
    """The outcome of the change that ends an upload."""

    @property
    def stored(self) -> bool:
        """False: the new blob is garbage."""

    @property
    def garbage(self) -> tuple[ObjectRow, ...]:
        """Rows whose blobs nothing refers to any more."""


E = TypeVar("E", bound=UploadOutcome)


def check_upload(parts: DiskParts, bucket_id: str, supplied: Supplied) -> None:
    """Raise StorageFailed if the disk takes no uploads, BadName or BadRequest if it does not take this one."""
    parts.health.require_writable()
    layout.check_bucket_id(bucket_id)
    check_attributes(supplied.attributes)


class BlobWriter:
    """Writes one upload, made by `Disk.begin_put`: `write`* → `finish` → `commit`; `abort` at any time, from any thread."""

    def __init__(
        self,
        parts: DiskParts,
        bucket_id: str,
        name: str,
        *,
        size: int | None,
        expected: ExpectedChecksums,
        durability: Durability,
        staged: StagedName | None = None,
        supplied: Supplied = NOTHING,
        stays_cached: bool = True,
    ) -> None:
        """Claim the space and create the blob. Raises NoSpace, TooLarge, StorageFailed, BadRequest."""
        if size is not None and size > parts.options.object_bytes_max:
            raise TooLarge(f"the object is larger than the limit of {parts.options.object_bytes_max} bytes")
        self._parts = parts
        self._bucket_id = bucket_id
        self._name = name
        self._size = size
        self._durable, self._stays_cached = durability == "fsync", stays_cached
        self._supplied = supplied
        self._staged = None if staged is None else staged._replace(job=layout.check_job_id(staged.job))
        self._hasher = BodyHasher(expected)
        self._received = self._digested = 0
        self._writeback = Writeback(parts.filesystem, parts.options.writeback_bytes, self._durable)
        self._blob = NewBlob(parts)
        kind = index_kind(name)
        self._slow_digest = kind not in (None, "tar")
        self._index: IndexWriter | None = None
        self._row: ObjectRow | None = None
        self._lock = threading.Lock()
        self._busy = 0  # threads working on the blob
        self._committing = self._aborted = self._ended = False
        if supplied.version is not None:
            observe(parts, supplied.version)
        self._claimed = 0 if size is None else size
        _claim(parts, self._claimed)
        try:
            self._create(kind)
        except OSError as error:
            self.abort()
            raise parts.health.translate(error, "creating a blob") from error
        except BaseException:
            self.abort()
            raise

    @property
    def version(self) -> str:
        """The version that the object will have."""
        return self._supplied.version or self._blob.id

    @property
    def slow_digest(self) -> bool:
        """Whether the shard must be decompressed for its index, which takes longer than storing it."""
        return self._slow_digest

    @property
    def received(self) -> int:
        """Bytes of the body received so far."""
        return self._received

    def open_again(self) -> int:
        """Open the blob's file for reading what has been received, and return the descriptor, which the caller closes.
        OSError, also after an abort."""
        return self._parts.filesystem.open(self._blob.path)

    def write(self, data: Buffer) -> None:
        """Write the next bytes of the body. Raises LengthMismatch, TooLarge, NoSpace or StorageFailed."""
        self.digest(data)
        self.store(data)

    def store(self, data: Buffer) -> None:
        """One half of `write`: write the bytes to the file. Another thread may do the other half at the same time."""
        with self._working("writing a blob"):
            received = self._received + len(data)
            if received > self._limit():
                self._refuse_length(received)
            write_all(self._parts.filesystem, self._blob.fd, data)
            self._received = received
            if self._writeback.is_due(received):
                self._flush()

    def digest(self, data: Buffer) -> None:
        """The other half of `write`: hash and index the bytes. It must have all stored bytes before `finish`."""
        with self._working("indexing a blob"):
            self._hasher.update(data)
            if self._index is not None:
                self._index.feed(data)
            self._digested += len(data)

    def finish(self) -> ObjectRow:
        """Check the complete body, close the blob with its footer and make it durable.

        Returns the row that `commit` will store. Raises LengthMismatch, ChecksumMismatch, NoSpace or StorageFailed.
        """
        with self._working("finishing a blob"):
            row = self._describe()
            footer = layout.row_footer(row) if self._staged is None else layout.staged_footer(row, *self._staged)
            pwrite_all(self._parts.filesystem, self._blob.fd, footer, row.size)
            self._blob.close(durable=self._durable, stays_cached=self._stays_cached)
        self._row = row
        return row

    def commit(self, precondition: Precondition = ALWAYS) -> PutResult:
        """Make the blob the object, or an output staged for its job; blocks until that is durable (or, if relaxed, visible to
        every reader).

        Raises PreconditionFailed, Overtaken, JobCancelled, what the guard raises, NoSpace or StorageFailed; then nothing has
        changed. After OtherCondition it may be called again.
        """
        staged = self._staged

        def change(row: ObjectRow) -> Change[PutOutcome]:
            return Put(row, precondition) if staged is None else KeepStaged(row, staged, precondition)

        row, outcome = self.commit_as(change)
        return PutResult(row, outcome.replaced, row.warnings, outcome.committed)

    def commit_as(self, change: Callable[[ObjectRow], Change[E]]) -> tuple[ObjectRow, E]:
        """Commit the change that is made of the finished blob's row; returns that row and the outcome. Raises what it raises;
        then nothing has changed, and the blob is removed, except after OtherCondition."""
        row = self._row
        with self._lock:
            if row is None or ((self._committing or self._ended) and not self._aborted):
                raise RuntimeError("call commit once, after finish")
            if self._aborted:
                raise Unavailable("the upload was aborted")
            self._committing = True  # from now on an abort must not touch what may already be the object
        parts, keeps = self._parts, False
        try:
            outcome = parts.committer.submit(change(row))
        except OutcomeUnknown:
            raise  # decided when the disk is next opened, so both blobs stay
        except Exception as error:
            keeps = self._keeps(error)
            if not keeps:
                self._remove()
            raise
        finally:
            if not keeps:
                self._end()
        parts.stats.puts += 1
        parts.stats.put_bytes += row.size
        parts.discard(outcome.garbage if outcome.stored else (*outcome.garbage, row))
        return row, outcome

    def abort(self) -> None:
        """Discard the upload. Idempotent; does nothing once `commit` has begun. Never waits for another thread."""
        with self._lock:
            if self._ended or self._aborted:
                return
            self._aborted = True
            if self._busy or self._committing:
                return  # that thread cleans up when it is done: until then it uses the blob
            self._ended = True
        self._clean_up()

    def _keeps(self, error: Exception) -> bool:
        """End a commit that has changed nothing: whether the upload is as it was, since it may be committed otherwise."""
        with self._lock:
            self._committing = self._aborted or not isinstance(error, OtherCondition)
            return not self._committing

    def _end(self) -> None:
        with self._lock:
            self._ended = True
        self._release(self._claimed)

    @contextmanager
    def _working(self, doing: str) -> Iterator[None]:
        """Mark a thread as working on the blob. An error aborts the upload, and so does an `abort` in the meantime."""
        with self._lock:
            if self._aborted or self._ended or self._committing:
                raise Unavailable("the upload was aborted")
            self._busy += 1
        failed = True
        try:
            yield
            failed = False
        except OSError as error:
            raise self._parts.health.translate(error, doing) from error
        finally:
            with self._lock:
                self._busy -= 1
                self._aborted = aborted = self._aborted or failed
                last = aborted and not self._busy
                self._ended = self._ended or last
            if last:
                self._clean_up()
        if aborted:
            raise Unavailable("the upload was aborted")

    def _clean_up(self) -> None:
        self._release(self._claimed)
        self._remove()

    def _remove(self) -> None:
        self._blob.discard()
        try:
            if self._index is not None:
                self._index.abort()
        except OSError as error:
            self._parts.health.count(error, "removing an unfinished index")

    def _limit(self) -> int:
        return self._parts.options.object_bytes_max if self._size is None else self._size

    def _refuse_length(self, received: int) -> None:
        if self._size is None:
            raise TooLarge(f"the object is larger than the limit of {self._parts.options.object_bytes_max} bytes")
        what = "at least " if received > self._size else ""
        raise LengthMismatch(f"expected {self._size} bytes, received {what}{received}")

    def _create(self, kind: str | None) -> None:
        """Create the blob and, for a shard, its index. Raises OSError."""
        parts = self._parts
        self._blob.create(self._bucket_id, self._name)
        if kind is not None:
            path, temporary = self._blob.path + layout.INDEX_SUFFIX, f"{parts.root}/{layout.TEMPORARY}"
            self._index = IndexWriter(parts.filesystem, path, kind, temporary)

    def _flush(self) -> None:
        start = self._writeback.started
        self._writeback.start(self._blob.fd, self._received)
        if self._size is None:
            self._parts.space.require_room()
        else:
            self._release(self._received - start)

    def _release(self, size: int) -> None:
        size = min(size, self._claimed)
        self._claimed -= size
        self._parts.space.release(size)

    def _describe(self) -> ObjectRow:
        """The row of the received bytes. Raises LengthMismatch, ChecksumMismatch."""
        if self._size is not None and self._received != self._size:
            self._refuse_length(self._received)
        if self._digested != self._received:
            raise ValueError(f"{self._received} bytes were stored, {self._digested} of them hashed")
        checksum = self._hasher.finish()
        found = None if self._index is None else self._index.finish(self.version, self._received, checksum)
        return self._row_of(checksum, found)

    def _row_of(self, checksum: str, found: IndexSummary | TarError | None) -> ObjectRow:
        """Make the row; `found` is the index summary, or why there is no index."""
        samples = members = None
        warnings: tuple[str, ...] = ()
        if isinstance(found, TarError):
            warnings = (str(found),)
            self._parts.stats.indexes_broken += 1
        elif found is not None:
            samples, members, warnings = found.samples, found.members, found.warnings
            self._parts.stats.indexes_built += 1
            self._parts.stats.indexed_members += members
        state = GOOD if self._durable else UNSYNCED
        return new_row(
            self._bucket_id,
            self._name,
            self._blob.id,
            self._supplied,
            size=self._received,
            checksum=checksum,
            samples=samples,
            members=members,
            warnings=warnings,
            state=state,
        )


def _claim(parts: DiskParts, size: int) -> None:
    try:
        parts.space.claim(size)
    except NoSpace:
        # The space of large blobs that were just replaced or deleted may not be free yet.
        parts.discarder.wait()
        parts.space.claim(size)


# --- Store whole small objects: the same steps as those of `BlobWriter`, in the same order, and little else.
#
# Many small uploads are limited by the interpreter, so this path has one write, no writer object and no tar index. What comes
# together is stored together, in one thread: switching between threads costs more than all of these steps.


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
    writer = BlobWriter(parts, bucket_id, name, size=len(body), expected=expected, durability=durability, supplied=supplied)
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
