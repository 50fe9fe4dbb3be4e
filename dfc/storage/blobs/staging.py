"""Staged outputs of jobs on a disk, and files of workers that become such.

Publishing: the job ends (nothing more can be staged) → every blob gets the footer of an object and is synced → one transaction
turns all rows into objects. If it is interrupted, it is simply repeated; before that transaction nothing is visible, after it
everything is.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from dfc.checksum import ExpectedChecksums
from dfc.errors import BadRequest, LengthMismatch, ObjectCorrupt, ObjectNotFound, ServerTrouble, TooLarge, Unavailable
from dfc.filesystem import pwrite_all, remove_if_there
from dfc.limits import DEPOSIT_LINE_BYTES_MAX
from dfc.storage import layout
from dfc.storage.blobs.deposit import Deposited, is_deposit
from dfc.storage.blobs.reader import find_damage
from dfc.storage.blobs.writer import BlobWriter
from dfc.storage.catalog.changes import (
    DiscardJob,
    EndJob,
    MarkStaged,
    Publish,
    Published,
    StagedName,
    StagedRow,
    StagedTotal,
    StandingOf,
    find_staged,
    has_ended,
    staged_rows,
    staged_totals,
)
from dfc.storage.parts import DiskParts
from dfc.storage.rows import ALONE, Durability, ObjectRow
from dfc.tar.header import TarError
from dfc.tar.index.builder import IndexSummary
from dfc.tar.index.format import HEADER_BYTES, IndexCorrupt, decode_header, encode_header, index_kind

# From this many blobs on, one sync of the whole file system is cheaper than an fdatasync for each.
_SYNC_ALL_FROM: Final = 64


class Staging:
    """The staged blobs of one disk. Thread-safe."""

    def __init__(self, parts: DiskParts) -> None:
        self._parts = parts
        self._verified: set[str] = set()  # ids of blobs from an earlier boot that were found sound
        self._publishing = threading.Lock()

    # --- reading

    def has_ended(self, job: str) -> bool:
        """Whether the job was published or discarded on this disk; remembered for a while."""
        return has_ended(self._parts.catalog, job)

    def find(self, bucket_id: str, name: str, owner: StagedName) -> StagedRow:
        """Find a staged row to read. Raises ObjectNotFound; ObjectCorrupt if a restart of the machine lost its bytes."""
        found = find_staged(self._parts.catalog, bucket_id, name, owner)
        if found is None:
            raise ObjectNotFound(f"job {owner.job} has not staged {name!r}")
        self._require_sound(found)
        return found

    def path(self, staged: StagedRow) -> str:
        """The path of the blob; its bytes are the first `row.size` of the file."""
        return self._parts.path(staged.row)

    def open(self, staged: StagedRow) -> int:
        """Open the blob for reading; the caller closes the descriptor. ObjectNotFound if it has been replaced or dropped."""
        parts = self._parts
        try:
            fd = parts.filesystem.open(parts.path(staged.row))
            if os.fstat(fd).st_size >= staged.row.size:
                return fd
            parts.filesystem.close(fd)
        except FileNotFoundError:
            raise ObjectNotFound(f"{staged.row.name!r} is no longer staged") from None
        except OSError as error:
            raise parts.health.translate(error, "opening a staged blob") from error
        raise ObjectCorrupt(f"the staged bytes of {staged.row.name!r} have the wrong length")

    def read_failed(self, error: OSError, offset: int) -> ServerTrouble:
        """Report that a staged blob cannot be read at an offset; the job will fail or write it again. Returns what to raise."""
        return self._parts.health.translate(error, f"reading a staged blob at byte {offset}")

    def totals(self) -> dict[str, StagedTotal]:
        """The totals of what each job has staged."""
        return staged_totals(self._parts.catalog)

    def outputs(self, job: str) -> list[StagedRow]:
        """What a job has staged that is to become objects."""
        return [entry for entry in staged_rows(self._parts.catalog, job) if not entry.owner.temporary]

    # --- ends of jobs

    def prepare(self, job: str) -> list[ObjectRow]:
        """Check and sync every blob that is to become an object; returns their rows.

        After this, publishing can fail only if the disk itself does. Raises ObjectCorrupt, StorageFailed.
        """
        entries = self.outputs(job)
        self._sync([entry for entry in entries if entry.boot is not None])
        for entry in entries:
            self._require_sound(entry)
        if any(entry.boot is not None for entry in entries):
            self._parts.committer.submit(MarkStaged(job))
        return [entry.row for entry in entries]

    def publish(
        self, job: str, is_open: Callable[[str], bool], standing: StandingOf = lambda _row, _pending: ALONE
    ) -> Published:
        """Turn all rows of a job into objects, and drop temporary ones. Idempotent: the second time nothing is left to do.

        `is_open` says whether objects may be put into a bucket, given its id, and `standing` how an object is recorded; if
        either raises, nothing is published. Raises ObjectCorrupt when a blob is no longer sound; StorageFailed, NoSpace.
        """
        parts = self._parts
        with self._publishing:
            parts.committer.submit(EndJob(job, parts.clock))
            entries = self.outputs(job)
            for entry in entries:
                self._require_sound(entry)
            for entry in entries:
                self._write_footer(entry)
            self._sync(entries)
            done = parts.committer.submit(Publish(job, (entry.row for entry in entries), is_open, standing))
        parts.discard(done.garbage)
        return done

    def discard(self, job: str) -> int:
        """Drop everything that a job has staged; returns the number of blobs. Idempotent; works on a full disk."""
        parts = self._parts
        garbage = parts.committer.submit(DiscardJob(job, parts.clock))
        parts.discard(garbage)
        return len(garbage)

    def _require_sound(self, entry: StagedRow) -> None:
        """ObjectCorrupt if the blob was never synced, the machine has been restarted since, and the bytes are lost."""
        parts = self._parts
        if entry.boot in (None, parts.boot) or entry.row.blob_id in self._verified:
            return
        try:
            # It may have either footer: publishing may have been interrupted.
            damage = find_damage(parts.filesystem, parts.path(entry.row), entry.row, footer=b"", longer=True)
        except OSError as error:
            raise parts.health.translate(error, "verifying a staged blob") from error
        if damage is not None:
            raise ObjectCorrupt(f"the staged bytes of {entry.row.name!r} did not survive a restart of the machine: {damage}")
        self._verified.add(entry.row.blob_id)

    def _write_footer(self, entry: StagedRow) -> None:
        """Write the footer of an object. If interrupted, the row still has everything needed to write it again."""
        row, filesystem = entry.row, self._parts.filesystem
        footer = layout.row_footer(row)
        try:
            fd = filesystem.open(self._parts.path(row), write=True)
            try:
                if os.fstat(fd).st_size < row.size:
                    raise ObjectCorrupt(f"the staged bytes of {row.name!r} have the wrong length")
                pwrite_all(filesystem, fd, footer, row.size)
                filesystem.truncate(fd, row.size + len(footer))
            finally:
                filesystem.close(fd)
        except FileNotFoundError:
            raise ObjectCorrupt(f"the staged bytes of {row.name!r} are gone") from None
        except OSError as error:
            raise self._parts.health.translate(error, "writing a footer") from error

    def _sync(self, entries: Iterable[StagedRow]) -> None:
        """Sync blobs and their names."""
        parts, rows = self._parts, [entry.row for entry in entries]
        try:
            if len(rows) >= _SYNC_ALL_FROM:
                parts.filesystem.sync_all(parts.root)
                return
            for row in rows:
                fd = parts.filesystem.open(parts.path(row))
                try:
                    parts.filesystem.fdatasync(fd)
                finally:
                    parts.filesystem.close(fd)
            for directory in sorted({layout.blob_directory(parts.root, row.bucket_id, row.name) for row in rows}):
                parts.directories.sync_chain(directory)
        except FileNotFoundError:
            raise ObjectCorrupt("a staged blob is gone") from None
        except OSError as error:
            raise parts.health.translate(error, "syncing staged blobs") from error


# --- The target's half of a local output: it adopts the worker's file as the new blob, before the first byte is written.
#
# The other half is `dfc.storage.blobs.deposit`. Whatever is cheap to check is checked: that the file is a regular file in the
# disk's directory for temporary files, has no other name, and has the stated length, and that the header of the index names
# this blob. The checksum is taken from the worker; scrubbing compares it with the bytes later.


class AdoptingWriter(BlobWriter):
    """A `BlobWriter` for a file that a worker writes: instead of the bytes, it is given the worker's description of them."""

    def __init__(
        self,
        parts: DiskParts,
        bucket_id: str,
        name: str,
        deposit: str,
        *,
        size: int | None,
        durability: Durability,
        staged: StagedName | None = None,
    ) -> None:
        """Take over the file. Raises BadRequest, Unavailable if it does not exist, NoSpace, TooLarge, StorageFailed."""
        if not is_deposit(deposit):
            raise BadRequest(f"invalid deposit name: {deposit[:80]!r}")
        if size is not None:
            parts.space.require(size)  # but do not claim it: while the file is written, it would count twice
        self._deposit = f"{parts.root}/{layout.TEMPORARY}/{deposit}"
        self._announced = size
        self._said = bytearray()
        self._leftovers: tuple[str, ...] = ()  # the worker's files that may still have their original names
        kind = index_kind(name)
        if kind not in (None, "tar"):
            raise BadRequest(f"{name!r} is a compressed shard: upload it instead of depositing it")
        self._index_path = self._deposit + layout.INDEX_SUFFIX
        self._is_shard = kind is not None
        super().__init__(parts, bucket_id, name, size=None, expected=ExpectedChecksums(), durability=durability, staged=staged)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes of the worker's description. Raises TooLarge."""
        with self._working("adopting a blob"):
            self._said += data
            if len(self._said) > DEPOSIT_LINE_BYTES_MAX:
                raise TooLarge(f"the description of a deposit has more than {DEPOSIT_LINE_BYTES_MAX} bytes")

    store = write

    def digest(self, data: bytes | bytearray | memoryview) -> None:
        """Do nothing: `write` takes everything."""

    def _create(self, kind: str | None) -> None:
        filesystem = self._parts.filesystem
        self._blob.create(self._bucket_id, self._name)
        try:
            found = os.lstat(self._deposit)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_uid != os.geteuid():
                raise BadRequest("a deposit must be a regular file with one name, owned by the user that the target runs as")
            self._leftovers = (self._deposit, self._index_path)
            filesystem.rename(self._deposit, self._blob.path)  # over the empty file that was just created
        except FileNotFoundError:
            raise Unavailable("the deposit does not exist") from None
        opened = filesystem.open(self._blob.path, write=True)
        empty, self._blob.fd = self._blob.fd, opened
        filesystem.close(empty)

    def _describe(self) -> ObjectRow:
        try:
            said = msgspec.json.decode(self._said, type=Deposited)
        except msgspec.MsgspecError as error:
            raise BadRequest(f"cannot decode the description of the deposit: {error}") from None
        if said.errno:
            raise OSError(said.errno, os.strerror(said.errno))
        if not said.checksum or (self._is_shard and said.index is None and said.problem is None):
            raise BadRequest("the description of the deposit lacks its checksum or its index summary")
        length = os.fstat(self._blob.fd).st_size
        if length != said.size or self._announced not in (None, said.size):
            announced = "" if self._announced is None else f"; {self._announced} were announced"
            raise LengthMismatch(f"the deposit should have {said.size} bytes, but the file has {length}{announced}")
        if said.size > self._limit():
            self._refuse_length(said.size)
        self._received = said.size
        return self._row_of(said.checksum, self._adopt_index(said) if self._is_shard else None)

    def _adopt_index(self, said: Deposited) -> IndexSummary | TarError:
        """Write the blob's version into the index and move it beside the blob. BadRequest if it belongs to another blob."""
        filesystem, found = self._parts.filesystem, said.index
        if said.problem is not None:
            return TarError(*said.problem)
        assert found is not None
        try:
            fd = filesystem.open(self._index_path, write=True)
            try:
                header = decode_header(filesystem.pread(fd, HEADER_BYTES, 0))
                counts = (header.members, header.samples, header.repeated_keys, header.dropped)
                told = (found.members, found.samples, found.repeated_keys, found.dropped)
                if (header.size, header.checksum, *counts) != (said.size, said.checksum, *told):
                    raise BadRequest("the index belongs to another deposit")
                if os.fstat(fd).st_size != header.file_size:
                    raise BadRequest("the index is incomplete")
                pwrite_all(filesystem, fd, encode_header(header._replace(version=self.version)), 0)
            finally:
                filesystem.close(fd)
            filesystem.rename(self._index_path, self._blob.path + layout.INDEX_SUFFIX)
        except (FileNotFoundError, IndexCorrupt) as error:
            raise BadRequest(f"the index of the deposit is missing or damaged: {error}") from None
        return IndexSummary(*told, found.warnings)

    def _remove(self) -> None:
        super()._remove()
        try:
            remove_if_there(self._parts.filesystem, self._leftovers)
            if self._blob.path:
                remove_if_there(self._parts.filesystem, (self._blob.path + layout.INDEX_SUFFIX,))
        except OSError as error:
            self._parts.health.count(error, "removing an unfinished deposit")
