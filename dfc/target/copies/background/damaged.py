"""Damaged objects of one disk that have copies elsewhere: found by the scrubber or a read, and mended in the background."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from dfc.errors import DfcError
from dfc.storage.catalog.copyreads import START, Position
from dfc.storage.disk import Disk
from dfc.target.copies.ledger import Ledger
from dfc.target.copies.mending import Mender
from dfc.target.copies.messages import CopyKey
from dfc.target.copies.rows import PAGE, chunks
from dfc.target.local import Local

AGAIN_S: Final = 2.0  # until they are looked at again
PAUSE_SHARE: Final = 9.0  # or so many times as long as a look took
TRIED_AT_ONCE: Final = 16


class DamagedRows:
    """The damaged objects of a disk."""

    def __init__(self, local: Local, ledger: Ledger, mender: Mender, disk: Disk) -> None:
        self._local = local
        self._ledger = ledger
        self._mender = mender
        self._disk = disk

    async def mend(self) -> float:
        """Try to mend each of them once; returns in how many seconds to look again at those that are left."""
        begun_s, is_done = time.monotonic(), True
        after: Position | None = START
        while after is not None:
            names, after = await self._local.threads(self._disk).read(self._disk.copies.damaged, after, PAGE)
            for some in chunks(names, TRIED_AT_ONCE):
                outcomes = await asyncio.gather(*(self._mend(*name) for name in some), return_exceptions=True)
                is_done = is_done and all(outcome is True for outcome in outcomes)
                for outcome in outcomes:
                    if isinstance(outcome, BaseException) and not isinstance(outcome, DfcError):
                        raise outcome
        return 0.0 if is_done else max(AGAIN_S, PAUSE_SHARE * (time.monotonic() - begun_s))

    async def _mend(self, bucket_id: str, name: str) -> bool:
        """Mend one, unless there can be no copy of it; whether it is sound now."""
        found = self._ledger.roles(bucket_id, name)
        if not self._local.map.is_copied(bucket_id) or not {*found.everywhere, *found.standins} - {self._disk.id}:
            return False
        return await self._mender.mend(self._disk, CopyKey(self._disk.id, bucket_id, name))
