"""Surplus rows of a disk: it is no home of those objects, and all their homes have them. Rules: `dfc.replication.owed`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from dfc.placement.roles import homes_of, roles_once
from dfc.placement.state import Placement
from dfc.replication import owed
from dfc.storage.disk import Disk
from dfc.target.copies.ledger import Ledger, PlacementChanged
from dfc.target.copies.messages import CopyKey, Told
from dfc.target.copies.peers import Peers
from dfc.target.copies.rows import Row, chunks, walk
from dfc.target.local import Local

AGAIN_S: Final = 5.0  # after a pass that has left some: each walks over all rows of the disk
AGAIN_S_MAX: Final = 300.0  # after many that have removed nothing: the pause doubles
PAUSE_SHARE: Final = 3.0  # between two pages: so many times as long as the page took


class _Found(NamedTuple):
    """Rows of a page, and whether others are pending that are surplus but for that."""

    rows: list[Row]
    some_pending: bool


class SurplusRows:
    """Removes them from one disk."""

    def __init__(self, local: Local, ledger: Ledger, peers: Peers, disk: Disk) -> None:
        self._ledger = ledger
        self._peers = peers
        self._disk = disk
        self._threads = local.threads(disk)
        self._cleaned = -1  # the step for which nothing is left
        self._tried = -1  # the step of the last pass
        self._next_s = 0.0  # no pass of the same step begins before this, by the loop's clock
        self._again_s = AGAIN_S

    async def remove(self, placement: Placement, is_wanted_elsewhere: Callable[[], Awaitable[bool]]) -> bool:
        """Make a pass, unless one is not due or the disk has something more urgent to do; whether it has left nothing to be
        looked at again in this step."""
        now_s = asyncio.get_running_loop().time()
        if self._cleaned == placement.step or (self._tried == placement.step and now_s < self._next_s):
            return False
        if await is_wanted_elsewhere():
            return False
        if self._tried != placement.step:
            self._again_s = AGAIN_S
        self._tried, self._next_s = placement.step, now_s + self._again_s
        is_done, removed, begun_s = True, 0, time.monotonic()
        async for found in walk(self._threads, self._disk, partial(self._choose, placement)):
            is_done = is_done and not found.some_pending  # those will be confirmed or undone soon
            for some in chunks(found.rows):
                try:
                    gone = await self._remove(placement, some)
                except PlacementChanged:
                    return False  # what is surplus now, the next pass finds
                is_done, removed = is_done and gone == len(some), removed + gone
            if self._ledger.placement is not placement or await is_wanted_elsewhere():
                return False
            await asyncio.sleep(PAUSE_SHARE * (time.monotonic() - begun_s))
            begun_s = time.monotonic()
        self._again_s = AGAIN_S if removed else min(2 * self._again_s, AGAIN_S_MAX)
        self._next_s = asyncio.get_running_loop().time() + self._again_s
        if is_done:
            self._cleaned = placement.step
        return is_done

    def _choose(self, placement: Placement, page: list[Row]) -> _Found:
        """The surplus rows of a page. In a thread of the disk."""
        # Roles are worked out only where the homes leave it open.
        complete = {disk.id for disk in placement.disks.values() if disk.is_up and not disk.behind}
        homes = [(row, homes_of(placement, row[0], row[1])) for row in page]
        surplus = [
            row
            for row, found in homes
            if self._disk.id not in found
            and complete.issuperset(found)
            and owed.surplus(placement, roles_once(placement, row[0], row[1]), self._disk.id, pending=False, owes=False)
        ]
        rows = [row for row in surplus if not self._disk.copies.is_pending(row[0], row[1])]
        return _Found(rows, len(rows) < len(surplus))

    async def _remove(self, placement: Placement, rows: Sequence[Row]) -> int:
        """Remove those of the rows that all homes have; how many that were."""
        by_home: dict[str, list[Row]] = {}
        for row in rows:
            for home in homes_of(placement, row[0], row[1]):
                by_home.setdefault(home, []).append(row)
        answers: dict[Row, list[bool | None]] = {row: [] for row in rows}
        for home, asked in by_home.items():
            told = await self._peers.states(home, [CopyKey(home, bucket_id, name) for bucket_id, name, _ in asked])
            for at, row in enumerate(asked):
                answers[row].append(None if told is None else _holds(told[at], row[2]))
        gone = [row for row, told_of in answers.items() if owed.may_remove(told_of)]
        if gone:
            await self._threads.go_on(self._drop, gone, partial(self._ledger.require, placement))
        return len(gone)

    def _drop(self, rows: list[Row], guard: Callable[[], None]) -> None:
        self._disk.copies.remove_surplus(rows, guard=guard)


def _holds(told: Told, version: str) -> bool | None:
    """Whether a disk has this version or a newer one, for certain, and can give its bytes."""
    if not told.is_known:
        return None
    return told.is_certain and not told.is_damaged and told.state is not None and owed.has_arrived(told.state.version, version)
