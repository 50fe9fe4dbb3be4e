"""Rows of a disk that was given up and is back: all that do not belong there are dropped. Rules: `dfc.replication.lost`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from dfc.placement.roles import homes_of, roles_once
from dfc.placement.state import Placement
from dfc.registry.reports import ClearedReport
from dfc.replication.lost import is_given_up, is_useless
from dfc.storage.disk import Disk
from dfc.target.copies.ledger import Ledger, PlacementChanged
from dfc.target.copies.messages import CopyKey
from dfc.target.copies.peers import Peers
from dfc.target.copies.rows import Row, chunks, walk
from dfc.target.local import Local

AGAIN_S: Final = 2.0  # after a pass
PAUSE_SHARE: Final = 1.0  # between two pages: so many times as long as the page took


class UselessRows:
    """Drops them from one disk, and says so when none is left."""

    def __init__(self, local: Local, ledger: Ledger, peers: Peers, disk: Disk) -> None:
        self._local = local
        self._ledger = ledger
        self._peers = peers
        self._disk = disk
        self._threads = local.threads(disk)

    def is_due(self, placement: Placement) -> bool:
        """Whether the disk was given up, is back, and lacks nothing any more of what belongs there."""
        place = placement.disks.get(self._disk.id)
        return place is not None and place.is_up and not place.behind and is_given_up(placement, self._disk.id)

    async def drop(self) -> float:
        """Make a pass over all rows; returns in how many seconds to make another one."""
        placement, left, begun_s = self._ledger.placement, 0, time.monotonic()
        if not self.is_due(placement):
            return 0.0
        async for rows in walk(self._threads, self._disk, partial(self._choose, placement)):
            for some in chunks(rows):
                left += len(some) - await self._drop(placement, some)
            if self._ledger.placement.step != placement.step:
                return 0.0  # a map of the same step only adds buckets and disks that nobody has used yet
            await asyncio.sleep(PAUSE_SHARE * (time.monotonic() - begun_s))
            begun_s = time.monotonic()
        if not left:
            report = ClearedReport(disk=self._disk.id, step=placement.step)
            await self._local.ask_registry("POST", "/v1/node/reports/cleared", dict, report)
        return AGAIN_S

    def _choose(self, placement: Placement, page: list[Row]) -> list[Row]:
        """The rows of a page that do not belong here. In a thread of the disk."""
        away = [row for row in page if self._disk.id not in homes_of(placement, row[0], row[1])]
        return [row for row in away if self._disk.id not in roles_once(placement, row[0], row[1]).everywhere]

    async def _drop(self, placement: Placement, rows: Sequence[Row]) -> int:
        """Drop those of the rows about which their primaries have answered; how many that were."""
        by_primary: dict[str, list[Row]] = {}
        for row in rows:
            found = roles_once(placement, row[0], row[1])
            if found.primary is not None and is_useless(placement, found, self._disk.id):
                by_primary.setdefault(found.primary, []).append(row)
        gone = list[Row]()
        for primary, asked in by_primary.items():
            told = await self._peers.states(primary, [CopyKey(primary, bucket_id, name) for bucket_id, name, _ in asked])
            gone += [row for row, each in zip(asked, told or (), strict=False) if each.decides]
        if not gone:
            return 0
        return await self._threads.go_on(self._remove, gone, partial(self._require, placement.step))

    def _require(self, step: int) -> None:
        if self._ledger.placement.step != step:
            raise PlacementChanged("the cluster map has changed")

    def _remove(self, rows: list[Row], guard: Callable[[], None]) -> int:
        return self._disk.copies.remove_surplus(rows, guard=guard)
