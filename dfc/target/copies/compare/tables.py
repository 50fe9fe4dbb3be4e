"""The digests of all pairs that a disk takes part in, by one walk over its catalog, for all that ask for them."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from dfc.http.shutdown import end
from dfc.placement.state import Placement
from dfc.replication.comparing import Pair, SliceDigests, compared_buckets, fold
from dfc.storage.catalog.copyreads import START, Position
from dfc.storage.disk import Disk
from dfc.target.copies.ledger import Ledger
from dfc.target.local import Local

PAGE: Final = 500  # rows; some 10 ms in the thread, and the event loop has its turns meanwhile
PAUSE_SHARE: Final = 1.0  # between two pages: so many times as long as the page took
ABANDON_S: Final = 30.0  # a walk whose result nobody has asked for any more for so long is given up


class DigestTable:
    """The digests of a disk's pairs in some buckets by one step, and how many rows are in them. Complete when its walk is."""

    def __init__(self, placement: Placement, buckets: frozenset[str], begun_s: float) -> None:
        self.placement = placement
        self.buckets = buckets
        self.begun_s = begun_s  # by the monotonic clock, like all times here
        self.rows_read = 0
        self.pairs: dict[Pair, SliceDigests] = {}

    def of(self, primary: str, home: str) -> SliceDigests:
        """The digests of a pair."""
        return self.pairs.get((primary, home)) or SliceDigests()


class _Walk:
    def __init__(self, table: DigestTable) -> None:
        self.table = table
        self.asked_s = time.monotonic()
        self.task: asyncio.Task[bool] | None = None


class DigestTables:
    """The tables of this target's disks: one for each, made when it is asked for. One disk is walked at a time."""

    def __init__(self, local: Local, ledger: Ledger) -> None:
        self._local = local
        self._ledger = ledger
        self._made: dict[str, DigestTable] = {}
        self._walks: dict[str, _Walk] = {}
        self._turn = asyncio.Lock()

    async def close(self) -> None:
        """Give up the walks."""
        await end(*(walk.task for walk in self._walks.values() if walk.task is not None))

    def look(self, disk: Disk, placement: Placement, wanted: frozenset[str], since_s: float) -> DigestTable | None:
        """The table of a disk for these buckets by a walk that began after a moment; None while it is being made: ask again.
        Raises what has ended the walk: StorageFailed."""
        walk = self._walks.get(disk.id)
        if walk is not None and walk.task is not None and walk.task.done():
            self._walks.pop(disk.id)
            if walk.task.result():  # raises
                self._made[disk.id] = walk.table
            walk = None
        table = self._made.get(disk.id)
        if table is not None and self._fits(table, placement, wanted) and table.begun_s >= since_s:
            return table
        if walk is None:
            walk = self._walks[disk.id] = _Walk(DigestTable(placement, wanted, time.monotonic()))
            walk.task = asyncio.create_task(self._run(disk, walk))
        elif self._fits(walk.table, placement, wanted):
            walk.asked_s = time.monotonic()
        return None

    @staticmethod
    def _fits(table: DigestTable, placement: Placement, wanted: frozenset[str]) -> bool:
        return table.placement.step == placement.step and table.buckets == wanted

    def rows_read(self, disk_id: str) -> int:
        """How far the walk of a disk is, or the last one was."""
        walk, table = self._walks.get(disk_id), self._made.get(disk_id)
        return walk.table.rows_read if walk is not None else table.rows_read if table is not None else 0

    async def _run(self, disk: Disk, walk: _Walk) -> bool:
        """Whether all rows are in the table."""
        table, threads = walk.table, self._local.threads(disk)
        async with self._turn:
            table.begun_s = time.monotonic()
            after: Position | None = START
            while after is not None:
                begun_s = time.monotonic()
                count, after = await threads.read(_read_page, disk, table, after)
                table.rows_read += count
                if self._ledger.placement.step != table.placement.step or begun_s - walk.asked_s > ABANDON_S:
                    return False
                await asyncio.sleep(PAUSE_SHARE * (time.monotonic() - begun_s))
        return True


def _read_page(disk: Disk, table: DigestTable, after: Position) -> tuple[int, Position | None]:
    """Add a page of rows to a table. In a thread of the disk; nobody reads the table before all pages are in it."""
    rows, then = disk.copies.compared(after, PAGE)
    fold(table.placement, disk.id, rows, compared_buckets(table.placement, table.buckets), table.pairs)
    return len(rows), then
