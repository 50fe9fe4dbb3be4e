"""The copies of a target, put together: started when its disks are open, and stopped before they are closed."""

from __future__ import annotations

import asyncio

from dfc.config import Settings
from dfc.http.peer import ControlClient
from dfc.http.shutdown import end
from dfc.placement.map import ClusterMap
from dfc.target.copies.answers import CompareAnswers, DigestTables
from dfc.target.copies.compare import Comparer
from dfc.target.copies.ledger import Ledger, ListedRows
from dfc.target.copies.objects import CopiedObjects, Repairer
from dfc.target.copies.peering import PeeringLoop
from dfc.target.copies.peers import Peers
from dfc.target.copies.receive import CopyReceiver, Prepared
from dfc.target.copies.tee import Tees
from dfc.target.copies.upkeep import Upkeep
from dfc.target.copies.walks import CopyCounter
from dfc.target.copies.writes import Writes
from dfc.target.local import TargetState
from dfc.target.publishing import Publications


class TargetCopies:
    """Everything a target does about copies."""

    def __init__(self, local: TargetState, control: ControlClient, settings: Settings) -> None:
        self._local = local
        self.ledger = Ledger(local)
        self.peers = Peers(local, control, settings.token)
        self.tees = Tees(self.peers)
        self.prepared = Prepared(local)
        self.receiver = CopyReceiver(local, self.ledger, self.prepared)
        self.writes = Writes(local, self.ledger, self.peers)
        self.peering_loop = PeeringLoop(local, self.ledger, self.peers, self.receiver, self.writes)
        self.repairer = Repairer(local, self.ledger, self.peers)
        self.objects = CopiedObjects(local, self.ledger, self.peers, self.tees, self.writes, self.repairer, settings.hold_s)
        self.publications = Publications(local, self.ledger, self.peers, self.receiver, self.writes, self.objects)
        self.listed = ListedRows(local, self.ledger)
        self._tables = DigestTables(local, self.ledger)
        self.answers = CompareAnswers(local, self.ledger, self.peers, self.receiver, self._tables)
        self.comparer = Comparer(local, self.ledger, self.peers, self._tables)
        self._upkeep: list[asyncio.Task[None]] = []
        local.before_map = self._take_map

    def _take_map(self, new: ClusterMap) -> None:
        self.peering_loop.take(new)
        self.prepared.take_map(new)

    def start(self) -> None:
        """The disks are open."""
        self.ledger.ranked = {disk.id: disk.copies.ranked_layout for disk in self._local.in_order()}
        self.ledger.keep_tombstones(self.ledger.placement)  # it may have come before the disks were open
        self.peering_loop.start()
        for disk in self._local.in_order():
            upkeep = Upkeep(
                self._local, self.ledger, self.peers, self.receiver, self.writes, self.peering_loop, self.repairer, disk
            )
            self._upkeep.append(asyncio.create_task(upkeep.run()))
            self._upkeep.append(asyncio.create_task(CopyCounter(self._local, self.ledger, disk).run()))
        self._upkeep.append(asyncio.create_task(self.comparer.run()))

    async def stop(self) -> None:
        """Stop; what is under way goes on after the next start."""
        await end(*self._upkeep)
        await self._tables.close()
        await self.peering_loop.stop()
        await self.publications.close()
        await self.writes.close()
        await self.repairer.close()
        await self.peers.close()
        await self.tees.close()
        await self.prepared.close()
