"""What tasks of jobs ask of the target that holds their inputs: which shards there are, where they lie, and their indexes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

from dfc.errors import BadRequest, NotAShard, PreconditionFailed, TooLarge, Unavailable
from dfc.http.answers import Answer, FileAnswer, json_answer
from dfc.http.common import flag
from dfc.http.exchange import Exchange
from dfc.jobs.tasks import InputShard, encode_blocks
from dfc.limits import JOB_INPUT_SHARDS_MAX
from dfc.names import check_bucket_name, check_object_name
from dfc.storage.catalog.staged import StagedName
from dfc.storage.disk import Disk
from dfc.storage.layout import INDEX_SUFFIX, check_job_id
from dfc.storage.rows import ObjectRow, RowChanged
from dfc.tar.index import TarError
from dfc.tar.index.format import HEADER_BYTES, IndexHeader, decode_header
from dfc.target.local import Local
from dfc.target.node_routes import ShardSelection
from dfc.wire import MSGPACK, OCTETS

SHARDS_QUERY: Final = frozenset(("bucket", "shards", "any"))
LOCATE_QUERY: Final = frozenset(("bucket", "object", "version", "job", "temporary"))
INDEX_QUERY: Final = frozenset(("bucket", "object", "version"))


class _Found(NamedTuple):
    """A blob and where it lies."""

    disk: Disk
    row: ObjectRow
    path: str


class SourceRoutes:
    """Handlers of `/v1/node/shards`, `/v1/node/locate` and `/v1/node/index`."""

    def __init__(self, local: Local, selection: ShardSelection) -> None:
        self._local = local
        self._selection = selection

    # --- which

    async def shards(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """This target's part of a shard spec, as blocks of InputShard (`dfc.jobs.tasks.encode_blocks`).

        Named shards of this target must be there; without `any=1` each must have an index, and patterns take those that do.
        """
        query = exchange.query_parameters(SHARDS_QUERY)
        anything = flag(query, "any")
        bucket = await self._local.bucket(query.get("bucket", ""))
        async with self._selection.rows(bucket, query.get("shards", ""), anything=anything) as rows:
            content = await self._local.call(self._encode, bucket.name, rows)
        return Answer(200, content, [("Content-Type", MSGPACK)])

    def _encode(self, bucket: str, rows: Iterator[tuple[Disk, ObjectRow]]) -> bytes:
        """A block at a time: only bytes of all of them are ever in memory."""
        content, shards = bytearray(), (self._shard(bucket, disk, row) for disk, row in rows)
        for block in encode_blocks(islice(shards, JOB_INPUT_SHARDS_MAX)):
            content += block
        if next(shards, None) is not None:
            raise TooLarge(f"a job reads at most {JOB_INPUT_SHARDS_MAX} shards")
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

    async def locate(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Paths for a worker on the same machine, which checks for itself that it sees the file."""
        found = await self._find(exchange.query_parameters(LOCATE_QUERY))
        has_index = found.row.samples is not None
        return json_answer(
            {
                "path": found.path,
                "index_path": found.path + INDEX_SUFFIX if has_index else None,
                "size": found.row.size,
                "version": found.row.version,
            }
        )

    async def index(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """The bytes of the index of a shard; it is built again first when it is missing or damaged."""
        found = await self._find(exchange.query_parameters(INDEX_QUERY))
        threads = self._local.threads(found.disk)
        file = await threads.open(_open_index, found, release=os.close)
        headers = [("Content-Type", OCTETS)]
        return FileAnswer(200, file, 0, os.fstat(file).st_size, headers, threads.sending, found.disk.index_failed)

    async def _find(self, query: Mapping[str, str]) -> _Found:
        for name in ("bucket", "object"):
            if name not in query:
                raise BadRequest(f"{name} is missing")
        name = check_object_name(query["object"])
        bucket = await self._local.bucket(check_bucket_name(query["bucket"]))
        disk = self._local.owned_disk(bucket, name)
        if disk is None:
            raise Unavailable("this target does not hold the object by its map; the map may be changing")
        if "job" in query:
            owner = StagedName(check_job_id(query["job"]), flag(query, "temporary"))
            entry = await self._local.threads(disk).read(disk.staging.find, bucket.id, name, owner)
            row, path = entry.row, disk.staging.path(entry)
        else:
            row = await self._local.threads(disk).read(disk.lookup, bucket.id, name)
            path = disk.blob_path(row)
        if query.get("version", row.version) != row.version:
            raise PreconditionFailed(f"{name!r} has the version {row.version} by now")
        return _Found(disk, row, path)


def _open_index(found: _Found) -> int:
    if _header_of(found.path + INDEX_SUFFIX, found.row) is None:
        if found.row.samples is None:
            raise NotAShard(f"{found.row.name!r} has no tar index")
        try:
            found.disk.rebuild_index(found.row)
        except RowChanged as change:
            raise PreconditionFailed(f"{found.row.name!r} has the version {change.row.version} by now") from None
    try:
        return found.disk.parts.filesystem.open(found.path + INDEX_SUFFIX)
    except OSError as error:
        raise found.disk.parts.health.translate(error, "opening an index") from error


def _header_of(path: str, row: ObjectRow) -> IndexHeader | None:
    """What an index says of its shard, without reading the rest; None when it is missing, damaged or of another blob."""
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
