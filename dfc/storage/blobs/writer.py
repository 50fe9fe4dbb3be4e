"""One upload: a new blob, hashed and indexed as it arrives, and the commit that makes it the object, or another change.

Until `commit` returns, the old object is served. `abort` always leaves no file and no descriptor; it runs automatically when
a method raises. Another thread may call it at any time: while bytes are being written it takes effect after that, and once
`commit` has begun only the commit decides: then it takes effect if the commit leaves the upload as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from dfc.attributes import check_attributes
from dfc.checksum import BodyHasher, Buffer, ExpectedChecksums
from dfc.errors import LengthMismatch, NoSpace, TooLarge, Unavailable
from dfc.filesystem import pwrite_all, write_all
from dfc.storage import layout
from dfc.storage.blobs.indexes import IndexWriter
from dfc.storage.blobs.newblob import NewBlob, new_row, observe
from dfc.storage.blobs.writeback import Writeback
from dfc.storage.catalog.changes import Change, Put, PutOutcome
from dfc.storage.catalog.commit import OutcomeUnknown
from dfc.storage.catalog.staged import KeepStaged, StagedName
from dfc.storage.parts import DiskParts
from dfc.storage.preconditions import ALWAYS, OtherCondition, Precondition
from dfc.storage.rows import GOOD, NOTHING, UNSYNCED, Durability, ObjectRow, PutResult, Supplied
from dfc.tar.header import TarError
from dfc.tar.index.builder import IndexSummary
from dfc.tar.index.format import index_kind


class UploadOutcome(Protocol):
    """The outcome of the change that ends an upload."""

    @property
    def stored(self) -> bool:
        """False: the new blob is garbage."""

    @property
    def garbage(self) -> tuple[ObjectRow, ...]:
        """Rows whose blobs nothing refers to any more."""


E = TypeVar("E", bound=UploadOutcome)


def begin_upload(
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
) -> BlobWriter:
    """See `Disk.begin_put`."""
    check_upload(parts, bucket_id, supplied)
    return BlobWriter(
        parts,
        bucket_id,
        name,
        size=size,
        expected=expected,
        durability=durability,
        staged=staged,
        supplied=supplied,
        stays_cached=stays_cached,
    )


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

    # --- inside

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
