"""Select the shards of this target that match a shard spec."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from dfc.errors import MapChanging, NotAShard
from dfc.http.shutdown import end
from dfc.http.transfer import to_its_end
from dfc.limits import KIB, LIST_PAGE_MAX, NODE_LIST_SIGN_S, NODE_LIST_SIGNS_MAX
from dfc.names import is_hidden
from dfc.placement.map import BucketEntry
from dfc.placement.mapped import placement_of
from dfc.placement.state import Copies
from dfc.shards import Glob, Prefix, expand
from dfc.storage.disk import Disk
from dfc.storage.rows import ObjectRow
from dfc.tar.index.format import index_kind
from dfc.tar.index.listing import list_keys
from dfc.target.copies.listed import Listed, ListedRows
from dfc.target.copies.storing import CopiedObjects
from dfc.target.local import Local

ROWS_AT_ONCE: Final = 256
KEYS_PIECE_BYTES: Final = 32 * KIB
PIECE_S: Final = 0.2  # that one call in a thread takes, about


class Share(NamedTuple):
    """What a target's part of a bucket follows from, as far as it may lose shards of it: the layout by which each slice is
    read, the number of copies, and its own disks."""

    reading: tuple[int, ...]
    copies: Copies
    disks: tuple[tuple[str, str, str], ...]


class ShardSelection:
    """Finds the rows of this target that match a shard spec, and the keys of their samples."""

    def __init__(self, local: Local, listed: ListedRows, copied: CopiedObjects) -> None:
        self._local = local
        self._listed = listed
        self._copied = copied
        self._expanding = asyncio.Lock()  # a short spec may stand for a million names: one at a time in memory

    @asynccontextmanager
    async def rows(
        self, bucket: BucketEntry, shards: str, *, anything: bool = False, step: int | None = None
    ) -> AsyncIterator[Iterator[tuple[Disk, ObjectRow]]]:
        """Iterate over the matching rows: named shards in their order, others by disk; with `anything` also objects without an
        index. `step`: by which others give their part of the same answer. Who goes on after the context calls `check_share`.

        Raises BadShardSpec, NoLease, MapChanging; for named ones ObjectNotFound, ObjectCorrupt, Unavailable and, unless
        `anything`, NotAShard.
        """
        self._local.check_leased()
        await self._local.check_step(step)
        async with self._expanding:
            selection = await self._local.call(expand, shards)
            if isinstance(selection, list):
                named = await self._local.call(self._named, bucket, selection, anything)
                del selection
                await self._local.check_step(step)
                yield iter(named)
                return
        await self._local.check_step(step)
        listed = [(disk, self._listed.of(disk, bucket.id)) for disk in self._local.in_order()]
        share = self.share(bucket.id)
        yield self._matching(bucket.id, listed, selection, anything)
        self.check_share(bucket.id, share)

    def share(self, bucket_id: str) -> Share:
        """What the part of a bucket's shards follows from that this target lists."""
        placement = placement_of(self._local.map)
        own = [placement.disks[disk.id] for disk in self._local.in_order() if disk.id in placement.disks]
        states = tuple((disk.id, disk.status, disk.incarnation) for disk in own)
        return Share(tuple(each.reading for each in placement.slices), placement.copies_of(bucket_id), states)

    def check_share(self, bucket_id: str, share: Share) -> None:
        """MapChanging if this target may have lost shards, while it listed them, that belonged to its part. That others come
        and go changes who decides about a shard, but not what is here."""
        if self.share(bucket_id) != share:
            raise MapChanging("objects were moved while this target listed them; try again")

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

    def _matching(
        self, bucket_id: str, parts: list[tuple[Disk, Listed]], selection: Glob | Prefix, anything: bool
    ) -> Iterator[tuple[Disk, ObjectRow]]:
        for disk, listed in parts:
            position = ""
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

    async def keys(self, bucket_name: str, shards: str, fields: str, step: int | None = None) -> AsyncIterator[bytes]:
        """Yield the samples of the shards in pieces, one line each (`dfc.tar.index.listing.list_keys`). Named shards must exist
        and have an index."""
        bucket = await self._local.bucket(bucket_name)
        with self._local.certain():
            async with self.rows(bucket, shards, step=step) as rows:
                return _with_signs(self._keys(bucket.id, self.share(bucket.id), rows, fields))

    async def _keys(
        self, bucket_id: str, share: Share, rows: Iterator[tuple[Disk, ObjectRow]], fields: str
    ) -> AsyncGenerator[bytes, None]:
        is_over = False
        while not is_over:
            taken, is_over = await to_its_end(self._local.begin(_next_of, rows))
            for disk, group in groupby(taken, itemgetter(0)):
                pieces = _lines_of(disk, [row for _, row in group], fields)
                async for piece in self._local.threads(disk).iterate(pieces):
                    if piece:
                        yield piece
        self._local.check_leased()  # else the list may lack shards: it is broken off
        self.check_share(bucket_id, share)


def _next_of(rows: Iterator[tuple[Disk, ObjectRow]]) -> tuple[list[tuple[Disk, ObjectRow]], bool]:
    """The next rows, as many as are found in a moment, and whether these are the last."""
    taken, until_s = list[tuple[Disk, ObjectRow]](), time.monotonic() + PIECE_S
    for row in rows:
        taken.append(row)
        if len(taken) == ROWS_AT_ONCE or time.monotonic() > until_s:
            return taken, False
    return taken, True


async def _with_signs(pieces: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """The pieces of a list, and empty lines while the next one takes long: a proxy gives up a target that sends nothing."""
    next_one: asyncio.Future[bytes | None] | None = None
    try:
        while True:
            next_one = asyncio.ensure_future(anext(pieces, None))
            for _ in range(NODE_LIST_SIGNS_MAX):
                if (await asyncio.wait((next_one,), timeout=NODE_LIST_SIGN_S))[0]:
                    break
                yield b"\n"
            piece = await next_one
            if piece is None:
                return
            yield piece
    finally:
        if next_one is not None:
            await end(next_one)
        await pieces.aclose()


def _lines_of(disk: Disk, rows: Sequence[ObjectRow], fields: str) -> Iterator[bytes]:
    """The lines of some shards in pieces, however few a shard has: each piece is a call in a thread, and a turn of the loop.
    Empty ones let others have the thread."""
    begun, until_s = bytearray(), time.monotonic() + PIECE_S
    for row in rows:
        for piece in list_keys(disk.open_index(row), row.name, "key" if fields == "key" else "all"):
            begun += piece
            if len(begun) >= KEYS_PIECE_BYTES or time.monotonic() > until_s:
                yield bytes(begun)
                begun.clear()
                until_s = time.monotonic() + PIECE_S
        if time.monotonic() > until_s:  # a shard may have no keys
            yield bytes(begun)
            begun.clear()
            until_s = time.monotonic() + PIECE_S
    if begun:
        yield bytes(begun)
