"""How fast one disk sends objects that move to other disks, and whether: as the cluster map says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final

from dfc.limits import MOVE_BYTES_PER_S
from dfc.placement.map import ClusterMap
from dfc.placement.mapped import placement_of
from dfc.placement.roles import Roles
from dfc.placement.state import Placement
from dfc.placement.wanted import is_paused
from dfc.replication.lost import is_given_up
from dfc.replication.owed import are_roles_changing, keeps_behind
from dfc.storage.rows import owed_disk

TURN_S: Final = 1.0  # so much is begun at a time
LOOK_S: Final = 1.0  # between two looks whether the limit is another one by now
SOON_S: Final = 0.01  # until whoever has the next turn has taken it
LATE_S: Final = 2.0  # after which the next one has it
URGENT: Final = 4  # times the limit for copies that were lost, and never less than the limit that there is at first


class MovePace:
    """The limit of one disk. All that has been begun is counted, so that the average is kept; never cuts an object in two.
    Urgent objects are counted for themselves. Those who wait have their turns one after the other."""

    def __init__(self, rate_bytes_per_s: Callable[[], int], now_s: Callable[[], float] = time.monotonic) -> None:
        """`rate_bytes_per_s`: the limit at the moment; 0: none."""
        self._rate = rate_bytes_per_s
        self._now_s = now_s
        self._counted_by = 0  # the limit by which it is known when the disk is free
        self._free_s = {True: 0.0, False: 0.0}  # by whether it is urgent
        self._waiting: dict[bool, dict[str, float]] = {True: {}, False: {}}  # who, in the order of their turns: last asked

    def begin(self, whom: str, sizes: Sequence[int], *, is_urgent: bool) -> int:
        """Say how many of the objects with these sizes, in this order, may be sent to `whom` now, and count them; at least one
        unless none may."""
        rate = self._limit()
        if not rate or not sizes:
            return len(sizes)
        rate = max(URGENT * rate, MOVE_BYTES_PER_S) if is_urgent else rate
        now, waiting = self._now_s(), self._waiting[is_urgent]
        if self._free_s[is_urgent] > now or self._next(waiting, whom, now) != whom:
            waiting[whom] = now
            return 0
        waiting.pop(whom, None)
        count = total = 0
        for size in sizes:
            if count and total + size > TURN_S * rate:
                waiting[whom] = now
                break
            count, total = count + 1, total + size
        self._free_s[is_urgent] = now + total / rate
        return count

    @staticmethod
    def _next(waiting: dict[str, float], whom: str, now: float) -> str:
        """Whose turn it is. One that has not asked for a while has nothing to send any more, or waits for an answer."""
        for each, asked_s in list(waiting.items()):
            if each == whom or now - asked_s <= LATE_S:
                return each
            del waiting[each]
        return whom

    def is_busy(self, whom: str, *, urgent: bool) -> bool:
        """Whether nothing of this kind may be sent to `whom` now."""
        now = self._now_s()
        is_next = self._next(self._waiting[urgent], whom, now) == whom
        return bool(self._limit()) and (self._free_s[urgent] > now or not is_next)

    def wait(self, whom: str, *, urgent: bool) -> None:
        """Have a turn after those who wait already."""
        self._waiting[urgent][whom] = self._now_s()

    async def until_free(self, *, urgent: bool) -> None:
        """Wait until more of what is urgent, or of the rest, may be sent, or a while."""
        if self._limit():
            await asyncio.sleep(min(LOOK_S, max(SOON_S, self._free_s[urgent] - self._now_s())))

    def _limit(self) -> int:
        rate = self._rate()
        if rate != self._counted_by:
            self._counted_by, self._free_s = rate, {True: 0.0, False: 0.0}
        return rate


def rests(cluster_map: ClusterMap, whom: str) -> bool:
    """Whether what is noted for `whom` is not sent now, since moves are paused."""
    placement = placement_of(cluster_map)
    place = placement.disks.get(owed_disk(whom))
    if whom == owed_disk(whom) or not placement.is_moving or not is_paused(cluster_map):
        return False
    return place is None or not _is_awaited(placement, place.id)


def is_limited(placement: Placement, found: Roles, disk: str) -> bool:
    """Whether a row that a disk lacks can wait: the object moves there, and the disk is not read for want of it."""
    return not keeps_behind(found, disk) and not _is_awaited(placement, disk)


class Urgency(IntEnum):
    """Why an object moves: the more urgent, the larger."""

    MOVES = 0
    COPY_LOST = 1  # with a disk that was given up
    ONE_LEFT = 2  # of several copies: the next failure may cost the object


def urgency(placement: Placement, found: Roles) -> Urgency:
    """How urgent it is that an object gets to its homes to come."""
    lost = sum(is_given_up(placement, each) for each in found.homes)
    if not lost:
        return Urgency.MOVES
    return Urgency.COPY_LOST if len(found.homes) - lost > 1 else Urgency.ONE_LEFT


def _is_awaited(placement: Placement, disk: str) -> bool:
    """Whether a disk is behind for want of everything that is noted for it."""
    return bool(placement.disks[disk].behind) and are_roles_changing(placement)
