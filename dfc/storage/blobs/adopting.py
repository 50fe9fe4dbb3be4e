"""The target's half of a local output: it adopts the worker's file as the new blob, before the first byte is written.

The other half is `dfc.storage.blobs.deposit`. Whatever is cheap to check is checked: that the file is a regular file in the
disk's directory for temporary files, has no other name, and has the stated length, and that the header of the index names this
blob. The checksum is taken from the worker; scrubbing compares it with the bytes later.
"""

from __future__ import annotations

import os
import stat

import msgspec

from dfc.checksum import ExpectedChecksums
from dfc.errors import BadRequest, LengthMismatch, TooLarge, Unavailable
from dfc.filesystem import pwrite_all, remove_if_there
from dfc.limits import DEPOSIT_LINE_BYTES_MAX
from dfc.storage import layout
from dfc.storage.blobs.deposit import Deposited, is_deposit
from dfc.storage.blobs.writer import BlobWriter
from dfc.storage.catalog.staged import StagedName
from dfc.storage.parts import DiskParts
from dfc.storage.rows import Durability, ObjectRow
from dfc.tar.header import TarError
from dfc.tar.index.builder import IndexSummary
from dfc.tar.index.format import HEADER_BYTES, IndexCorrupt, decode_header, encode_header, index_kind


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

    # --- inside

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
