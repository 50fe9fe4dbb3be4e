"""Settling: before this target serves names of which a step has made it the primary, it learns what others have of them."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from dfc.errors import DfcError
from dfc.placement.map import ClusterMap
from dfc.placement.mapped import placement_of
from dfc.storage.catalog.copies import AdoptVerdict
from dfc.storage.rows import Standing
from dfc.target.copies.ledger import Ledger, has_several, rank_of
from dfc.target.copies.messages import CopyKey, PendingCopy, PendingTold
from dfc.target.copies.peers import Peers
from dfc.target.copies.receiving import CopyReceiver
from dfc.target.copies.writing import Writes
from dfc.target.local import Local

_log: Final = logging.getLogger("dfc.target")
RETRY_S: Final = 0.2


class Settler:
    """Settles this target's names after each step, in one task: a newer step makes it begin again."""

    def __init__(self, local: Local, ledger: Ledger, peers: Peers, receiver: CopyReceiver, writes: Writes) -> None:
        self._local = local
        self._ledger = ledger
        self._peers = peers
        self._receiver = receiver
        self._writes = writes
        self._task: asyncio.Task[None] | None = None
        self._has_disks = False

    def take(self, new: ClusterMap) -> None:
        """A map that is about to be used. Its step is settled at once if no object can have copies."""
        placement, settling = placement_of(new), self._ledger.settling
        if placement.step == settling.step and not self._bears_news(new):
            settling.refresh(placement)
            return
        self._ledger.take(placement)
        if not has_several(placement):
            for node in settling.to_ask():
                settling.answered(node, placement.step)
            settling.finish()
        elif self._has_disks:
            self._begin()

    def _bears_news(self, new: ClusterMap) -> bool:
        """Whether the first bucket with copies is in a map whose step is settled already."""
        return has_several(placement_of(new)) and not has_several(self._ledger.placement)

    def start(self) -> None:
        """The disks are open: settle the step of the map that is in use."""
        self._has_disks = True
        if not self._ledger.settling.is_done:
            self._begin()

    async def stop(self) -> None:
        """Give up what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _begin(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(self._settle())

    async def _settle(self) -> None:
        while True:
            try:
                await asyncio.sleep(0)  # the map is in use by then
                if await self._try():
                    return
            except DfcError as error:
                _log.warning("cannot settle step %d yet: %s", self._ledger.settling.step, error.message)
            except Exception:
                _log.exception("settling failed; trying again")
            await asyncio.sleep(RETRY_S)

    async def _try(self) -> bool:
        """Ask all who have not answered; whether everything is settled."""
        settling, step = self._ledger.settling, self._ledger.settling.step
        await self._local.decide_by(self._local.map)
        for disk in self._local.in_order():  # rows that another disk of this target has
            await self._adopt_all(await self._receiver.pending_on(disk, self._local.node_id))
        nodes = [node for node in self._local.map.nodes if node.id in settling.to_ask()]
        told = await asyncio.gather(*(self._peers.pending(node, step) for node in nodes))
        for node, answer in zip(nodes, told, strict=True):
            if answer is not None and await self._take(answer):
                settling.answered(node.id, step)
        if settling.to_ask():
            return False
        await self.drive_pending()
        settling.finish()
        return settling.is_done

    async def _take(self, answer: PendingTold) -> bool:
        if answer.map is not None:
            self._local.take_map(answer.map)
            return False
        return await self._adopt_all(answer.rows)

    async def _adopt_all(self, rows: list[PendingCopy]) -> bool:
        """Adopt pending rows of names whose primary is here; whether all that are wanted have come."""
        return all([await self._adopt(row) for row in rows])

    async def _adopt(self, row: PendingCopy) -> bool:
        key, state = row.key, row.state
        own = self._ledger.own_primary(self._ledger.roles(key.bucket_id, key.name))
        if own is None or own == key.disk:
            return True
        disk = self._local.disks[own]
        threads, name = self._local.threads(disk), (key.bucket_id, key.name)
        present = await threads.read(disk.copies.state, *name)
        newer = present is None or present.version < state.version
        if not self._ledger.settling.adopts(*name, own, newer=newer):
            return True
        self._ledger.arrived(CopyKey(own, *name))

        def decide(now: str | None) -> AdoptVerdict:
            found = self._ledger.roles(*name)
            wanted = found.primary == own and self._ledger.settling.adopts(*name, own, newer=now is None or now < state.version)
            return AdoptVerdict(taken=wanted, commits=wanted, standing=Standing(rank_of(found, own), pending=True))

        if state.is_tombstone:
            await threads.go_on(disk.copies.adopt_tombstone, *name, state.version, decide)
            return True
        writer = await self._peers.fetch(key, state, disk, self._local.durability_of(key.bucket_id))
        if writer is None:
            return False
        await threads.go_on(disk.copies.adopt, writer, decide)
        return True

    async def drive_pending(self) -> None:
        """Bring every pending row of which a disk here is primary to the others."""
        for disk in self._local.in_order():
            for bucket_id, name, version in await self._receiver.all_pending(disk):
                key = CopyKey(disk.id, bucket_id, name)
                if self._ledger.roles(bucket_id, name).primary == disk.id and self._writes.wants(key, version):
                    self._writes.drive(disk, key, version)
