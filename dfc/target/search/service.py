"""Search the indexes of this target's shards for samples by their keys."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from dfc.errors import DfcError
from dfc.keysearch import ELSEWHERE, SearchAsked, SearchPart, joined
from dfc.limits import SEARCH_THREADS, TARGET_SEARCHES_MAX
from dfc.placement.map import BucketEntry
from dfc.storage.disk import Disk
from dfc.target.copies.storing import CopiedObjects
from dfc.target.local import NOT_HERE, Local
from dfc.target.search.walk import IndexWalk
from dfc.wire.objects import UnsearchedShard

END_S: Final = 0.25  # after its time is over, for what is searched at that moment to come to its end
WALK_SHARDS_MIN: Final = 32  # fewer are not worth another thread


class OwnSearches:
    """Searches among the shards of this target."""

    def __init__(self, local: Local, copied: CopiedObjects) -> None:
        self._local = local
        self._copied = copied
        self._turns = asyncio.Semaphore(TARGET_SEARCHES_MAX)

    async def search(self, asked: SearchAsked) -> SearchPart:
        """Return what was found within the time that was given; threads may go on for a moment. If this is cancelled, they end
        soon. BucketNotFound, NoLease."""
        until_s = time.monotonic() + asked.budget_s
        bucket = await self._local.bucket(asked.bucket)
        try:
            async with asyncio.timeout(until_s - time.monotonic()):
                await self._turns.acquire()
        except TimeoutError:
            return SearchPart(stopped="time", reached=asked.begin(asked.shards[0])) if asked.shards else SearchPart()
        try:
            placed, failed = await self._local.call(self._place, bucket, asked.shards)
            walks = self._walks(bucket, placed, asked, until_s)
            await self._walk(walks, until_s)
        finally:
            self._turns.release()
        self._local.check_leased()  # else what was found may be old, and what was not found may be there
        return await asyncio.to_thread(joined, [*(walk.part() for walk in walks), SearchPart(failed=failed)], asked.limit)

    def _place(self, bucket: BucketEntry, shards: list[str]) -> tuple[dict[Disk, list[str]], list[UnsearchedShard]]:
        """The disks from which the shards may be read, and those that are not here."""
        placed: dict[Disk, list[str]] = {}
        failed = []
        for shard in shards:
            try:
                disk = self._local.owned_disk(bucket, shard)
            except DfcError as error:
                failed.append(UnsearchedShard(shard, error.code, error.message))
                continue
            if disk is None:
                failed.append(UnsearchedShard(shard, ELSEWHERE, NOT_HERE))
            else:
                placed.setdefault(disk, []).append(shard)
        return placed, failed

    def _walks(self, bucket: BucketEntry, placed: dict[Disk, list[str]], asked: SearchAsked, until_s: float) -> list[IndexWalk]:
        """Each thread takes a share of the shards of a disk, in order. Looking through keys keeps a processor busy, not a disk:
        that gets one."""
        found = []
        for disk, shards in placed.items():
            ways = max(1, min(SEARCH_THREADS, len(shards) // WALK_SHARDS_MIN)) if asked.query.is_exact else 1
            found += [
                IndexWalk(disk, bucket.id, shards[first::ways], asked, until_s, self._copied.lookup) for first in range(ways)
            ]
        return found

    async def _walk(self, walks: list[IndexWalk], until_s: float) -> None:
        tasks = [asyncio.create_task(self._local.threads(walk.disk).read(walk.run)) for walk in walks]
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=max(0.0, until_s - time.monotonic()) + END_S)
            errors = [task.exception() for task in tasks if task.done()]
        finally:
            for walk in walks:
                walk.stop()
            for task in tasks:
                task.cancel()  # one that has begun goes on in its thread until it sees that it was stopped
        for error in errors:
            if error is not None:  # Unavailable: its disk has too many calls under way
                raise error
