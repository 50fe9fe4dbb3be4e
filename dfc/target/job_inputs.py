"""Answer the tasks of jobs about inputs on this target: which shards exist, the paths of their blobs, and their indexes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from dfc.errors import NotAShard, PreconditionFailed, TooLarge
from dfc.jobs.tasks import InputShard, encode_blocks
from dfc.limits import JOB_INPUT_SHARDS_MAX
from dfc.names import ObjectPath
from dfc.storage.catalog.staged import StagedName
from dfc.storage.disk import Disk
from dfc.storage.layout import INDEX_SUFFIX
from dfc.storage.rows import ObjectRow, RowChanged
from dfc.tar.header import TarError
from dfc.tar.index.format import HEADER_BYTES, IndexHeader, decode_header
from dfc.target.copies.storing import CopiedObjects
from dfc.target.local import Local
from dfc.target.selection import ShardSelection
from dfc.target.staging import OutputName
from dfc.target.threads import FileRange


class _Found(NamedTuple):
    """A blob and its path."""

    disk: Disk
    row: ObjectRow
    path: str


@dataclass(frozen=True)
class BlobPaths:
    """The paths of a blob and its index on this machine; `index_path` is None if there is no index."""

    path: str
    index_path: str | None
    size: int
    version: str


class JobInputs:
    """The inputs of jobs that this target holds."""

    def __init__(self, local: Local, selection: ShardSelection, copied: CopiedObjects) -> None:
        self._local = local
        self._selection = selection
        self._copied = copied

    # --- which

    async def shards(self, bucket_name: str, shards: str, *, anything: bool, step: int | None = None) -> bytes:
        """Return this target's shards that match a spec, as blocks of InputShard (`dfc.jobs.tasks.encode_blocks`). `step`: by
        which other targets give theirs; MapChanging.

        Named shards of this target must exist. Unless `anything`, they must have an index, and patterns select only shards that
        have one.
        """
        bucket = await self._local.bucket(bucket_name)
        with self._local.certain():
            async with self._selection.rows(bucket, shards, anything=anything, step=step) as rows:
                found = await self._local.call(self._encode, bucket.name, rows)
        self._local.check_leased()
        return found

    def _encode(self, bucket: str, rows: Iterator[tuple[Disk, ObjectRow]]) -> bytes:
        """Encode block by block, so that only the encoded bytes of all shards are in memory."""
        content, shards = bytearray(), (self._shard(bucket, disk, row) for disk, row in rows)
        for block in encode_blocks(islice(shards, JOB_INPUT_SHARDS_MAX)):
            content += block
        if next(shards, None) is not None:
            raise TooLarge(f"a job may read at most {JOB_INPUT_SHARDS_MAX} shards")
        return bytes(content)

    def _shard(self, bucket: str, disk: Disk, row: ObjectRow) -> InputShard:
        node = self._local.node_id
        if row.samples is None or row.members is None:
            return InputShard.unread(bucket, row.name, row.version, row.checksum, row.size, node)
        index = _header_of(disk.index_path(row), row)
        if index is not None:
            facts = (index.archive_size, index.repeated_keys, index.dropped, index.kind)
        else:
            try:
                built = disk.open_index(row)
            except RowChanged as change:
                return self._shard(bucket, disk, change.row)
            facts = (built.archive_size, built.repeated_keys, built.dropped, built.kind)
        size, repeated, dropped, kind = facts
        return InputShard(
            bucket, row.name, row.version, row.checksum, row.size, size, row.samples, row.members, repeated, dropped, kind, node
        )

    # --- where

    async def locate(self, what: ObjectPath | OutputName, version: str | None) -> BlobPaths:
        """Return the paths of an object or staged output for a worker on the same machine, which checks that it can see the
        file. PreconditionFailed for another version, BadName."""
        if isinstance(what, OutputName):
            found = await self._find(what.path, version, what.owner())
        else:
            found = await self._find(what, version)
        has_index = found.row.samples is not None
        return BlobPaths(found.path, found.path + INDEX_SUFFIX if has_index else None, found.row.size, found.row.version)

    async def index(self, path: ObjectPath, version: str | None) -> FileRange:
        """Open the index of a shard, rebuilding it if it is missing or damaged. PreconditionFailed for another version."""
        found = await self._find(path, version)
        threads = self._local.threads(found.disk)
        file = await threads.open(_open_index, found, release=os.close)
        return FileRange(file, 0, os.fstat(file).st_size, threads.sending, found.disk.index_failed)

    async def _find(self, path: ObjectPath, version: str | None, staged: StagedName | None = None) -> _Found:
        bucket = await self._local.bucket(path.bucket)
        disk = self._local.own_disk(bucket, path.name) if staged is not None else self._local.reader_disk(bucket, path.name)
        with self._local.certain():
            if staged is not None:
                entry = await self._local.threads(disk).read(disk.staging.find, bucket.id, path.name, staged)
                row, where = entry.row, disk.staging.path(entry)
            else:
                row = await self._local.threads(disk).read(self._copied.lookup, disk, bucket.id, path.name)
                where = disk.blob_path(row)
        if version not in (None, row.version):
            raise PreconditionFailed(f"{path.name!r} was replaced: its version is now {row.version}")
        return _Found(disk, row, where)


def _open_index(found: _Found) -> int:
    if _header_of(found.path + INDEX_SUFFIX, found.row) is None:
        if found.row.samples is None:
            raise NotAShard(f"{found.row.name!r} has no tar index")
        try:
            found.disk.rebuild_index(found.row)
        except RowChanged as change:
            raise PreconditionFailed(f"{found.row.name!r} was replaced: its version is now {change.row.version}") from None
    return found.disk.open_index_file(found.row)


def _header_of(path: str, row: ObjectRow) -> IndexHeader | None:
    """Read only the header of an index; None when it is missing, damaged or of another blob."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        header = decode_header(os.pread(file, HEADER_BYTES, 0))
    except (OSError, TarError):
        return None
    finally:
        os.close(file)
    return header if (header.version, header.size, header.checksum) == (row.version, row.size, row.checksum) else None
