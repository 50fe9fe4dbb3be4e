"""Peering: before this target serves names of which a step has made it the primary, it learns what others have of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from dfc.errors import DfcError
from dfc.http.shutdown import end
from dfc.placement.map import ClusterMap, NodeEntry
from dfc.placement.mapped import placement_of
from dfc.storage.catalog.copies import AdoptVerdict
from dfc.storage.disk import Disk
from dfc.storage.rows import Standing
from dfc.target.copies.ledger import Ledger, has_several, rank_of
from dfc.target.copies.messages import CopyKey, PendingCopy, PendingPosition, Sender
from dfc.target.copies.peers import Peers
from dfc.target.copies.receive import CopyReceiver
from dfc.target.copies.walks import Row, chunks
from dfc.target.copies.writes import Writes
from dfc.target.local import TargetState

_log: Final = logging.getLogger("dfc.target")
RETRY_S: Final = 0.2
FETCH_TRIES: Final = 3  # then a row is given up
FETCHES_MAX: Final = 16  # rows that are fetched at a time
DRIVEN_IN_A_ROW: Final = 200  # pending rows that are looked at before other work gets its turn


class PeeringLoop:
    """Peers this target's names after each step, in one task: a newer step makes it begin again."""

    def __init__(self, local: TargetState, ledger: Ledger, peers: Peers, receiver: CopyReceiver, writes: Writes) -> None:
        self._local = local
        self._ledger = ledger
        self._peers = peers
        self._receiver = receiver
        self._writes = writes
        self._task: asyncio.Task[None] | None = None
        self._has_disks = False
        self._rows: dict[tuple[str, str], dict[CopyKey, PendingCopy]] = {}  # to be adopted, by name: where they are

    def take(self, new: ClusterMap) -> None:
        """A map that is about to be used. Its step is peered at once if no object can have copies."""
        placement, peering = placement_of(new), self._ledger.peering
        # The first bucket with copies may be in a map whose step is peered already.
        bears_news = has_several(placement) and not has_several(self._ledger.placement)
        if placement.step == peering.step and not bears_news:
            self._ledger.refresh(placement)
            return
        self._ledger.take(placement)
        if not has_several(placement):
            for node in peering.to_ask():
                peering.answered(node, placement.step)
            peering.finish()
        elif self._has_disks:
            self._begin()

    def start(self) -> None:
        """The disks are open: peer for the step of the map that is in use."""
        self._has_disks = True
        if not self._ledger.peering.is_done:
            self._begin()

    async def stop(self) -> None:
        """Give up what is under way."""
        if self._task is not None:
            await end(self._task)

    def _begin(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(self._peer())

    async def _peer(self) -> None:
        self._rows = {}
        while True:
            try:
                await asyncio.sleep(0)  # the map is in use by then
                if await self._try():
                    break
            except DfcError as error:
                _log.warning("cannot peer for step %d yet: %s", self._ledger.peering.step, error.message)
            except Exception:
                _log.exception("peering failed; trying again")
            await asyncio.sleep(RETRY_S)
        slots = asyncio.Semaphore(FETCHES_MAX)
        await asyncio.gather(*(self._bring(slots, name, list(rows.values())) for name, rows in self._rows.items()))
        self._rows = {}

    async def _try(self) -> bool:
        """Ask all who have not answered; whether all have, and their rows are known."""
        peering, step = self._ledger.peering, self._ledger.peering.step
        nodes = [node for node in self._local.map.nodes if node.id in peering.to_ask()]
        replies = await asyncio.gather(self._ask_here(), *(self._ask(node, step) for node in nodes))
        if peering.to_ask() or not all(replies):
            return False
        await self.drive_pending()
        peering.finish()
        return peering.is_done

    async def _ask_here(self) -> bool:
        """Note the rows that another disk of this target has; whether that is all of them."""
        after: PendingPosition | None = None
        while True:
            answer = await self._receiver.pending(Sender(self._local.node_id, 0), self._ledger.peering.step, after)
            await self._note(answer.rows)
            after = answer.after
            if after is None:
                return answer.map is None

    async def _ask(self, node: NodeEntry, step: int) -> bool:
        """Note the rows of another target, page by page; whether that is all of them."""
        after: PendingPosition | None = None
        while True:
            answer = await self._peers.pending(node, step, after)
            if answer is None:
                return False
            if answer.map is not None:
                self._local.take_map(answer.map)
                return False
            await self._note(answer.rows)
            after = answer.after
            if after is None:
                self._ledger.peering.answered(node.id, step)
                return True

    async def _note(self, rows: list[PendingCopy]) -> None:
        """Note which rows are to be adopted: those that are newer than what is here, of names that are not served yet."""
        by_disk: dict[str, list[PendingCopy]] = {}
        for row in rows:
            own = self._ledger.own_primary(self._ledger.roles(row.key.bucket_id, row.key.name))
            if own is not None and own != row.key.disk:
                by_disk.setdefault(own, []).append(row)
        for own, some in by_disk.items():
            disk, names = self._local.disks[own], [(row.key.bucket_id, row.key.name) for row in some]
            states = await self._local.threads(disk).read(disk.copies.states, names)
            for name, row, here in zip(names, some, states, strict=True):
                newer = here is None or here.version < row.state.version
                if self._ledger.peering.adopts(*name, own, newer=newer):
                    self._ledger.peering.expect(*name)
                    self._rows.setdefault(name, {})[row.key] = row

    async def _bring(self, slots: asyncio.Semaphore, name: tuple[str, str], rows: list[PendingCopy]) -> None:
        """Adopt the newest row of a name that can be had, and bring it to the others; then the name is served."""
        async with slots:
            for row in sorted(rows, key=lambda each: each.state.version, reverse=True):
                if await self._adopt_soon(row):
                    break
            else:
                _log.error("%s: a write of which nobody can give the bytes is given up; it was not acknowledged", name[1])
        own = self._ledger.own_primary(self._ledger.roles(*name))
        if own is not None:
            key, version = CopyKey(own, *name), self._local.disks[own].copies.pending_version(*name)
            if version is not None and self._writes.wants(key, version):
                self._writes.drive_later(self._local.disks[own], key, version)
        self._ledger.peering.has_come(*name)

    async def _adopt_soon(self, row: PendingCopy) -> bool:
        for attempt in range(FETCH_TRIES):
            if attempt:
                await asyncio.sleep(RETRY_S * 2**attempt)
            try:
                if await self._adopt(row):
                    return True
            except DfcError as error:
                _log.warning("cannot adopt %s yet: %s", row.key.name, error.message)
            except Exception:
                _log.exception("adopting %s failed", row.key.name)
        return False

    async def _adopt(self, row: PendingCopy) -> bool:
        """Adopt a row; whether it is here now, or is not wanted any more."""
        key, state = row.key, row.state
        own = self._ledger.own_primary(self._ledger.roles(key.bucket_id, key.name))
        if own is None:
            return True
        disk = self._local.disks[own]
        threads, name = self._local.threads(disk), (key.bucket_id, key.name)
        self._ledger.arrived(CopyKey(own, *name))

        def decide(now: str | None) -> AdoptVerdict:
            found = self._ledger.roles(*name)
            wanted = found.primary == own and self._ledger.peering.adopts(*name, own, newer=now is None or now < state.version)
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
            step = self._ledger.placement.step
            await self.drive(disk, await self._receiver.own_pending(disk), step)

    async def drive(self, disk: Disk, rows: Sequence[Row], step: int) -> None:
        """Bring those rows to the others that are still pending; by this step, the disk is their primary. There may be very
        many, so requests and heartbeats get their turn in between."""
        for some in chunks(rows, DRIVEN_IN_A_ROW):
            if self._ledger.placement.step != step:
                return  # whose primary it is by now is for the next look to find out
            for bucket_id, name, version in some:
                key = CopyKey(disk.id, bucket_id, name)
                if disk.copies.pending_version(bucket_id, name) == version and self._writes.wants(key, version):
                    self._writes.drive_later(disk, key, version)
            await asyncio.sleep(0)
