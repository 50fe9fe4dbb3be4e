"""How fast one disk sends objects that move to other disks: as the cluster map says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from dfc.placement.roles import Roles
from dfc.placement.state import Placement
from dfc.replication.owed import are_roles_changing, keeps_behind

TURN_S: Final = 1.0  # so much is begun at a time
LOOK_S: Final = 1.0  # between two looks whether the limit is another one by now
URGENT: Final = 4  # times the limit for objects that have fewer copies than they should


class MovePace:
    """The limit of one disk. All that has been begun is counted, so that the average is kept; never cuts an object in two."""

    def __init__(self, rate_bytes_per_s: Callable[[], int], now_s: Callable[[], float] = time.monotonic) -> None:
        """`rate_bytes_per_s`: the limit at the moment; 0: none."""
        self._rate = rate_bytes_per_s
        self._now_s = now_s
        self._counted_by = 0  # the limit by which it is known when the disk is free
        self._free_s = 0.0

    def begin(self, sizes: Sequence[int], *, is_urgent: bool) -> int:
        """Say how many of the objects with these sizes, in this order, may be sent now, and count them; at least one unless
        none may."""
        rate = self._limit() * (URGENT if is_urgent else 1)
        if not rate:
            return len(sizes)
        now = self._now_s()
        if self._free_s > now:
            return 0
        count = total = 0
        for size in sizes:
            if count and total + size > TURN_S * rate:
                break
            count, total = count + 1, total + size
        self._free_s = now + total / rate
        return count

    async def until_free(self) -> None:
        """Wait until more may be sent, or a while."""
        if self._limit():
            await asyncio.sleep(min(LOOK_S, max(0.0, self._free_s - self._now_s())))

    def _limit(self) -> int:
        rate = self._rate()
        if rate != self._counted_by:
            self._counted_by, self._free_s = rate, 0.0
        return rate


def can_wait(placement: Placement, found: Roles, disk: str) -> bool:
    """Whether a row that a disk lacks can wait: the object moves there, and the disk is not read for want of it."""
    is_awaited = placement.disks[disk].behind and are_roles_changing(placement)
    return not keeps_behind(found, disk) and not is_awaited


def is_urgent(placement: Placement, found: Roles, bucket_id: str) -> bool:
    """Whether an object has fewer copies than it should."""
    return len(found.readers) < placement.copies_of(bucket_id).reading
