"""Select the shards of this target that match a shard spec."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from dfc.errors import NotAShard
from dfc.http.transfer import to_its_end
from dfc.limits import LIST_PAGE_MAX
from dfc.names import is_hidden
from dfc.placement.map import BucketEntry
from dfc.shards import Glob, Prefix, expand
from dfc.storage.disk import Disk
from dfc.storage.rows import ObjectRow
from dfc.tar.index.format import index_kind
from dfc.tar.index.listing import list_keys
from dfc.target.copies.listed import ListedRows
from dfc.target.copies.storing import CopiedObjects
from dfc.target.local import Local


class ShardSelection:
    """Finds the rows of this target that match a shard spec, and the keys of their samples."""

    def __init__(self, local: Local, listed: ListedRows, copied: CopiedObjects) -> None:
        self._local = local
        self._listed = listed
        self._copied = copied
        self._expanding = asyncio.Lock()  # a short spec may stand for a million names: one at a time in memory

    @asynccontextmanager
    async def rows(
        self, bucket: BucketEntry, shards: str, *, anything: bool = False
    ) -> AsyncIterator[Iterator[tuple[Disk, ObjectRow]]]:
        """Iterate over the matching rows: named shards in their order, others by disk; with `anything` also objects without an
        index.

        Raises BadShardSpec, NoLease; for named ones ObjectNotFound, ObjectCorrupt, Unavailable and, unless `anything`,
        NotAShard.
        """
        self._local.check_leased()
        async with self._expanding:
            selection = await self._local.call(expand, shards)
            if isinstance(selection, list):
                named = await self._local.call(self._named, bucket, selection, anything)
                del selection
                yield iter(named)
                return
        yield self._matching(bucket.id, selection, anything)

    def _named(self, bucket: BucketEntry, names: list[str], anything: bool) -> list[tuple[Disk, ObjectRow]]:
        rows = []
        for name in names:
            disk = self._local.primary_disk(bucket, name)
            if disk is None:
                continue
            row = self._copied.lookup(disk, bucket.id, name)
            if row.samples is None and not anything:
                raise NotAShard(f"{name!r} has no tar index{': ' + row.warnings[0] if row.warnings else ''}")
            rows.append((disk, row))
        return rows

    def _matching(self, bucket_id: str, selection: Glob | Prefix, anything: bool) -> Iterator[tuple[Disk, ObjectRow]]:
        for disk in self._local.in_order():
            position, listed = "", self._listed.of(disk, bucket_id)
            while page := disk.list(
                bucket_id, prefix=selection.prefix, start_after=position, limit=LIST_PAGE_MAX, ranks=listed.ranks
            ):
                position = page[-1].name
                for row in page:
                    if listed.wanted is not None and not listed.wanted(row.name):
                        continue
                    indexed = row.samples is not None and index_kind(row.name) is not None
                    if is_hidden(row.name, selection.prefix):
                        continue
                    if (indexed or anything) and selection.matches(row.name):
                        yield disk, row

    # --- keys

    async def keys(self, bucket_name: str, shards: str, fields: str) -> AsyncIterator[bytes]:
        """Yield the samples of the shards in pieces, one line each (`dfc.tar.index.listing.list_keys`). Named shards must exist
        and have an index."""
        bucket = await self._local.bucket(bucket_name)
        with self._local.certain():
            async with self.rows(bucket, shards) as rows:
                return self._keys(rows, fields)

    async def _keys(self, rows: Iterator[tuple[Disk, ObjectRow]], fields: str) -> AsyncIterator[bytes]:
        while (entry := await to_its_end(self._local.begin(next, rows, None))) is not None:
            disk, row = entry
            threads = self._local.threads(disk)
            index = await threads.read(disk.open_index, row)
            async for piece in threads.iterate(list_keys(index, row.name, "key" if fields == "key" else "all")):
                yield piece
        self._local.check_leased()  # else the list may lack shards: it is broken off
