"""Damaged rows of this target's disks: their bytes are fetched from a disk that has them whole, and verified first."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from dfc.errors import DfcError, Unavailable
from dfc.http.shutdown import end
from dfc.storage.catalog.copies import AdoptVerdict
from dfc.storage.disk import Disk
from dfc.storage.rows import NameState, Standing
from dfc.target.copies.ledger import Ledger, rank_of
from dfc.target.copies.messages import CopyKey, RowState, state_of
from dfc.target.copies.peers import Peers
from dfc.target.local import Local

_log: Final = logging.getLogger("dfc.target")
AGAIN_S: Final = 60.0  # after nobody had the bytes
MENDED_AT_ONCE: Final = 8  # on all disks: each fetches a body


class Mender:
    """Mends rows. Whoever needs the same one waits for the same attempt, which goes on when they leave."""

    def __init__(self, local: Local, ledger: Ledger, peers: Peers) -> None:
        self._local = local
        self._ledger = ledger
        self._peers = peers
        self._running: dict[CopyKey, asyncio.Task[bool]] = {}
        self._next_s: dict[tuple[CopyKey, str], float] = {}  # by name and version: no try before this, by the loop's clock
        self._forget_s = 0.0  # when to drop those that are due
        self._slots = asyncio.Semaphore(MENDED_AT_ONCE)
        self._is_closed = False

    async def close(self) -> None:
        """Give up what is under way, and begin nothing more."""
        self._is_closed = True
        await end(*self._running.values())

    async def mend(self, disk: Disk, key: CopyKey) -> bool:
        """Fetch the bytes of a damaged object on a disk here from another one that has the same version; whether they are sound
        now. If nobody has them, the log says so, and they are looked for again after a while. StorageFailed; Unavailable."""
        task = self._running.get(key)
        if task is None:
            if self._is_closed:
                raise Unavailable("the target is being stopped")
            task = self._running[key] = asyncio.create_task(self._mend(disk, key))
            task.add_done_callback(lambda ended: self._ended(key, ended))
        return await asyncio.shield(task)

    def _ended(self, key: CopyKey, task: asyncio.Task[bool]) -> None:
        self._running.pop(key, None)
        if not task.cancelled():
            task.exception()  # whoever waited for it may have left

    async def _mend(self, disk: Disk, key: CopyKey) -> bool:
        damaged = await self._local.threads(disk).read(disk.copies.state, key.bucket_id, key.name)
        if damaged is None or damaged.row is None or not damaged.row.quarantined:
            return damaged is not None  # replaced or mended meanwhile
        mark, now_s = (key, damaged.version), asyncio.get_running_loop().time()
        if now_s < self._next_s.get(mark, 0.0):
            return False
        async with self._slots:
            source = await self._from_any(disk, key, damaged)
        if source is not None:
            disk.copies.note_mended()
            _log.info("the damaged bytes of %s on disk %s were replaced by those of disk %s", key.name, key.disk, source)
            return True
        self._wait(mark, now_s)
        lacking = await self._local.threads(disk).read(disk.copies.owed_to, key.bucket_id, key.name)
        _log.error(
            "object %s on disk %s is damaged, and no other disk has its bytes%s; upload the object again, or delete it",
            key.name,
            key.disk,
            f": disk {', '.join(sorted(lacking))} cannot get it" if lacking else "",
        )
        return False

    def _wait(self, mark: tuple[CopyKey, str], now_s: float) -> None:
        """Do not look for these bytes again for a while."""
        if now_s >= self._forget_s:
            self._forget_s = now_s + AGAIN_S
            self._next_s = {each: at_s for each, at_s in self._next_s.items() if at_s > now_s}
        self._next_s[mark] = now_s + AGAIN_S

    async def _from_any(self, disk: Disk, key: CopyKey, damaged: NameState) -> str | None:
        """The disk whose bytes were taken; None: there is none."""
        found, wanted = self._ledger.roles(key.bucket_id, key.name), state_of(damaged)
        for other in dict.fromkeys((*found.readers, *found.everywhere, *found.standins)):
            if other != key.disk and await self._mend_from(disk, CopyKey(other, key.bucket_id, key.name), wanted):
                return other
        return None

    async def _mend_from(self, disk: Disk, source: CopyKey, wanted: RowState) -> bool:
        told = await self._peers.state(source)
        if told is None or told.is_damaged or told.state != wanted:
            return False
        writer = await self._peers.fetch(source, wanted, disk, self._local.durability_of(source.bucket_id))
        if writer is None:
            return False
        rank = rank_of(self._ledger.roles(source.bucket_id, source.name), disk.id)

        def decide(present: str | None) -> AdoptVerdict:
            """The row stays what it is: pending if it was, and replaced by nothing if it is another one by now."""
            return AdoptVerdict(taken=present == wanted.version, standing=Standing(rank, pending=True))

        try:
            outcome = await self._local.threads(disk).go_on(disk.copies.adopt, writer, decide)
        except DfcError as error:
            _log.warning("cannot mend %s on disk %s: %s", source.name, disk.id, error.message)
            return False
        return outcome.stored
