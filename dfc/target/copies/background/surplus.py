"""Surplus rows of a disk: it is no home of those objects, and all their homes have them. Rules: `dfc.replication.owed`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from dfc.placement.roles import roles
from dfc.placement.state import Placement
from dfc.replication import owed
from dfc.storage.disk import Disk
from dfc.target.copies.ledger import Ledger
from dfc.target.copies.messages import CopyKey, Told
from dfc.target.copies.peers import Peers
from dfc.target.copies.rows import Row, chunks, walk
from dfc.target.local import Local

AGAIN_S: Final = 5.0  # after a pass that has left some: each walks over all rows of the disk


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

    async def remove(self, placement: Placement, is_wanted_elsewhere: Callable[[], Awaitable[bool]]) -> bool:
        """Make a pass, unless one is not due or the disk has something more urgent to do; whether it has left nothing to be
        looked at again in this step."""
        now_s = asyncio.get_running_loop().time()
        if self._cleaned == placement.step or (self._tried == placement.step and now_s < self._next_s):
            return False
        if await is_wanted_elsewhere():
            return False
        self._tried, self._next_s = placement.step, now_s + AGAIN_S
        is_done = True
        async for found in walk(self._threads, self._disk, partial(self._choose, placement)):
            is_done = is_done and not found.some_pending  # those will be confirmed or undone soon
            for some in chunks(found.rows):
                is_done = await self._remove(placement, some) and is_done
            if self._ledger.placement is not placement or await is_wanted_elsewhere():
                return False
        self._next_s = asyncio.get_running_loop().time() + AGAIN_S
        if is_done:
            self._cleaned = placement.step
        return is_done

    def _choose(self, placement: Placement, page: list[Row]) -> _Found:
        surplus = [
            row
            for row in page
            if owed.surplus(placement, roles(placement, row[0], row[1]), self._disk.id, pending=False, owes=False)
        ]
        rows = [row for row in surplus if not self._disk.copies.is_pending(row[0], row[1])]
        return _Found(rows, len(rows) < len(surplus))

    async def _remove(self, placement: Placement, rows: Sequence[Row]) -> bool:
        """Remove those of the rows that all homes have; whether that was all of them."""
        by_home: dict[str, list[Row]] = {}
        for row in rows:
            for home in roles(placement, row[0], row[1]).homes:
                by_home.setdefault(home, []).append(row)
        answers: dict[Row, list[bool | None]] = {row: [] for row in rows}
        for home, asked in by_home.items():
            told = await self._peers.states(home, [CopyKey(home, bucket_id, name) for bucket_id, name, _ in asked])
            for at, row in enumerate(asked):
                answers[row].append(None if told is None else _holds(told[at], row[2]))
        gone = [row for row, told_of in answers.items() if owed.may_remove(told_of)]
        if gone:
            await self._threads.go_on(self._drop, gone, partial(self._ledger.require, placement))
        return len(gone) == len(rows)

    def _drop(self, rows: list[Row], guard: Callable[[], None]) -> None:
        self._disk.copies.remove_surplus(rows, guard=guard)


def _holds(told: Told, version: str) -> bool | None:
    """Whether a disk has this version or a newer one, for certain."""
    if not told.is_known:
        return None
    return told.is_certain and told.state is not None and owed.has_arrived(told.state.version, version)
