"""Counts the objects that lack copies, for heartbeats: one task for each disk, which counts those of which it is the primary.

While all disks are up and complete there is nothing to count. Else the catalog is walked, in the threads of its disk and with
long pauses: after each step, and again from time to time, since writes and deletes change the numbers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from dfc.errors import DfcError
from dfc.placement.roles import homes_of, roles_once
from dfc.placement.state import Placement
from dfc.replication.left import copies_left, is_calm
from dfc.storage.catalog.copyreads import START, Position
from dfc.storage.disk import Disk
from dfc.target.copies.ledger import Ledger, has_several
from dfc.target.families import CopiesCounted
from dfc.target.local import Local

_log: Final = logging.getLogger("dfc.target")
LOOK_S: Final = 0.5
PAGE: Final = 500
PAUSE_SHARE: Final = 3.0  # between two pages: so many times as long as the page took
RECOUNT_S: Final = 15.0
RECOUNT_SHARE: Final = 10.0  # before it is counted again: so many times as long as counting took
RETRY_S: Final = 5.0


class CopyCounter:
    """The counting of one disk; the result is in `Local.counted`."""

    def __init__(self, local: Local, ledger: Ledger, disk: Disk) -> None:
        self._local = local
        self._ledger = ledger
        self._disk = disk
        self._threads = local.threads(disk)
        self._again_s = 0.0

    async def run(self) -> None:
        """Count until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except DfcError as error:
                _log.info("cannot count the copies on disk %s: %s", self._disk.id, error.message)
                await asyncio.sleep(RETRY_S)
            except Exception:
                _log.exception("cannot count the copies on disk %s; trying again", self._disk.id)
                await asyncio.sleep(RETRY_S)

    async def look(self) -> None:
        """Count if that is due."""
        placement, last = self._ledger.placement, self._local.counted.get(self._disk.id)
        is_new = last is None or last.step != placement.step
        if not placement.disks or not (is_new or time.monotonic() >= self._again_s):
            return
        begun_s = time.monotonic()
        found = (0, 0)
        if has_several(placement) and not is_calm(placement):
            walked = await self._walk(placement)
            if walked is None:
                return
            found = walked
        owed = await self._threads.read(self._disk.copies.owed_disks)
        self._local.counted[self._disk.id] = CopiesCounted(placement.step, *found, owed)
        ended_s = time.monotonic()
        self._again_s = ended_s + max(RECOUNT_S, RECOUNT_SHARE * (ended_s - begun_s))

    async def _walk(self, placement: Placement) -> tuple[int, int] | None:
        """Return how many objects have one copy left, and how many lack one. None: there is a newer step."""
        one_left = missing = 0
        after: Position | None = START
        while after is not None:
            begun_s = time.monotonic()
            ones, lacking, after = await self._threads.read(self._count_page, placement, after)
            one_left, missing = one_left + ones, missing + lacking
            if self._ledger.placement.step != placement.step:
                return None
            await asyncio.sleep(PAUSE_SHARE * (time.monotonic() - begun_s))
        return one_left, missing

    def _count_page(self, placement: Placement, after: Position) -> tuple[int, int, Position | None]:
        """Count those of one page. In a thread of the disk."""
        copies, one_left, missing = self._disk.copies, 0, 0
        complete = {disk.id for disk in placement.disks.values() if disk.is_up and not disk.behind}
        rows, following = copies.rows(after, PAGE)
        for row in rows:
            wanted = placement.copies_of(row.bucket_id).reading
            if wanted < 2 or complete.issuperset(homes_of(placement, row.bucket_id, row.name)):
                continue
            found = roles_once(placement, row.bucket_id, row.name)
            if found.primary != self._disk.id:
                continue
            left = copies_left(placement, found, self._disk.id, copies.owed_to(row.bucket_id, row.name), wanted)
            one_left += left == 1
            missing += left < wanted
        return one_left, missing, following
