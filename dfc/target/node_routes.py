"""What other nodes ask of a target, under `/v1/node/`: pages, counts, keys, maps, removal of buckets, scrubbing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from dfc.errors import Conflict, NotAShard
from dfc.http.answers import Answer, StreamAnswer, json_answer
from dfc.http.common import page_limit
from dfc.http.exchange import Exchange
from dfc.http.transfer import to_its_end
from dfc.limits import CLUSTER_MAP_BYTES_MAX, LIST_PAGE_MAX
from dfc.names import is_hidden
from dfc.pages import merge_pages
from dfc.placement.map import BucketEntry, ClusterMap
from dfc.shards import Glob, Prefix, expand
from dfc.storage.disk import Disk
from dfc.storage.rows import ObjectRow
from dfc.storage.upkeep.scrub import Scrubber
from dfc.tar.index import index_kind
from dfc.tar.index.listing import list_keys
from dfc.target.listing import list_page
from dfc.target.local import Local
from dfc.wire import MSGPACK, NDJSON

_log: Final = logging.getLogger("dfc.target")


class ShardSelection:
    """Finds the rows of this target that a shard spec stands for."""

    def __init__(self, local: Local) -> None:
        self._local = local
        self._expanding = asyncio.Lock()  # a short spec may stand for a million names: one at a time in memory

    @asynccontextmanager
    async def rows(
        self, bucket: BucketEntry, shards: str, *, anything: bool = False
    ) -> AsyncIterator[Iterator[tuple[Disk, ObjectRow]]]:
        """Named ones in their order, others by disk; with `anything` also objects without an index.

        Raises BadShardSpec; for named ones ObjectNotFound, ObjectCorrupt and, unless `anything`, NotAShard.
        """
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
            disk = self._local.owned_disk(bucket, name)
            if disk is None:
                continue
            row = disk.lookup(bucket.id, name)
            if row.samples is None and not anything:
                raise NotAShard(f"{name!r} has no tar index{': ' + row.warnings[0] if row.warnings else ''}")
            rows.append((disk, row))
        return rows

    def _matching(self, bucket_id: str, selection: Glob | Prefix, anything: bool) -> Iterator[tuple[Disk, ObjectRow]]:
        for disk in (self._local.disks[disk_id] for disk_id in sorted(self._local.disks)):
            position = ""
            while page := disk.list(bucket_id, prefix=selection.prefix, start_after=position, limit=LIST_PAGE_MAX):
                position = page[-1].name
                for row in page:
                    indexed = row.samples is not None and index_kind(row.name) is not None
                    if is_hidden(row.name, selection.prefix):
                        continue
                    if (indexed or anything) and selection.matches(row.name):
                        yield disk, row


class InternalRoutes:
    """Handlers of the node-to-node routes."""

    def __init__(self, local: Local, scrubbers: dict[str, Scrubber], selection: ShardSelection) -> None:
        self._local = local
        self._scrubbers = scrubbers
        self._selection = selection

    def _disks(self) -> list[Disk]:
        return [self._local.disks[disk_id] for disk_id in sorted(self._local.disks)]

    async def objects(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        query = exchange.query_parameters(None)
        asked = (query.get("bucket_id", ""), query.get("prefix", ""), query.get("start_after", ""), query.get("delimiter", ""))
        limit = page_limit(query)
        page = merge_pages(await self._local.of_each(lambda disk: list_page(disk, *asked, limit)), limit)
        return Answer(200, msgspec.msgpack.encode(page), [("Content-Type", MSGPACK)])

    async def buckets(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        total: dict[str, tuple[int, int]] = {}
        for counts in await self._local.of_each(_counts):
            for bucket_id, more in counts.items():
                before = total.get(bucket_id, (0, 0))
                total[bucket_id] = (before[0] + more[0], before[1] + more[1])
        return json_answer(total)

    async def remove_bucket(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Delete what is left of a bucket that the map calls `deleting`."""
        bucket = next((b for b in self._local.map.buckets if b.id == parameters[0]), None)
        if bucket is not None and bucket.state != "deleting":
            raise Conflict(f"the bucket {bucket.name!r} is not being deleted")
        removed = 0
        for disk in self._disks():
            removed += await self._local.threads(disk).write(disk.remove_bucket, parameters[0])
        return json_answer({"removed": removed})

    async def take_map(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Decide by this map from now on. Answered when no commit that was decided by an older one is under way."""
        new: ClusterMap = await exchange.json(ClusterMap, CLUSTER_MAP_BYTES_MAX)
        if self._local.take_map(new):
            await asyncio.gather(*(self._local.threads(disk).write(disk.settle) for disk in self._disks()))
        return json_answer({"version": self._local.map.version})

    # --- keys

    async def samples(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """The samples of this target's shards that a spec names, a line each. Named shards must be there and have an index."""
        query = exchange.query_parameters(None)
        bucket = await self._local.bucket(query.get("bucket", ""))
        fields = query.get("fields", "")
        async with self._selection.rows(bucket, query.get("shards", "")) as rows:
            return StreamAnswer(200, self._keys(rows, fields), [("Content-Type", NDJSON)])

    async def _keys(self, rows: Iterator[tuple[Disk, ObjectRow]], fields: str) -> AsyncIterator[bytes]:
        while (entry := await to_its_end(self._local.begin(next, rows, None))) is not None:
            disk, row = entry
            threads = self._local.threads(disk)
            index = await threads.read(disk.open_index, row)
            async for piece in threads.iterate(list_keys(index, row.name, "key" if fields == "key" else "all")):
                yield piece

    # --- scrubbing

    async def start_scrub(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        for scrubber in self._scrubbers.values():
            scrubber.request_pass()
        return json_answer({"started": True}, 202)

    async def scrub_status(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        return json_answer({"disks": await self._local.of_each(self._scrub_status)})

    def _scrub_status(self, disk: Disk) -> dict[str, Any]:
        names = {bucket.id: bucket.name for bucket in self._local.map.buckets}
        progress = self._scrubbers[disk.id].progress
        quarantined = [
            {"bucket": names.get(q.bucket_id, q.bucket_id), "object": q.name, "version": q.version, "reason": q.reason}
            for q in disk.quarantined()
        ]
        return {
            "disk": disk.id,
            "node": self._local.node_id,
            "state": progress.state,
            "bytes_done": progress.bytes_done,
            "bytes_total": progress.bytes_total,
            "errors": progress.errors,
            "quarantined": quarantined,
        }


def _counts(disk: Disk) -> dict[str, tuple[int, int]]:
    return {bucket_id: disk.counts(bucket_id) for bucket_id in disk.bucket_ids()}
