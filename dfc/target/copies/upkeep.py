"""What a target does about copies in the background, disk by disk."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from dfc.errors import DfcError, Unavailable
from dfc.http.shutdown import end
from dfc.placement.roles import DiskPlace, Placement, roles_once
from dfc.registry.messages import CleanReport
from dfc.replication import recovery
from dfc.replication.recovery import Resolution, are_roles_changing, is_handing_over, is_no_replica
from dfc.storage.catalog.copyreads import START, Position, RankedRow
from dfc.storage.disk import Disk
from dfc.storage.rows import hinted_disk, later
from dfc.target.copies.deliveries import Deliveries
from dfc.target.copies.ledger import Ledger, has_several, hint_key, rank_of
from dfc.target.copies.messages import CopyKey, NameReply
from dfc.target.copies.objects import Repairer
from dfc.target.copies.peering import PeeringLoop
from dfc.target.copies.peers import Peers
from dfc.target.copies.receive import CopyReceiver
from dfc.target.copies.walks import PAGE, ExcessRows, FutureReplicas, Row, StaleRows, chunks, walk_names, walk_ranked
from dfc.target.copies.writes import Writes
from dfc.target.local import TargetState

# --- What a disk has to do with other disks, each a task of its own: one that does not answer holds up nobody else.

_log: Final = logging.getLogger("dfc.target")
RETRY_S: Final = 5.0  # after an error


class PeerTasks:
    """The background tasks of one disk, by their names: what to do, and for whom."""

    def __init__(self, disk_id: str) -> None:
        self._disk_id = disk_id
        self._running: dict[tuple[str, ...], asyncio.Task[None]] = {}
        self._next_s: dict[tuple[str, ...], float] = {}  # not to begin again before this, by the loop's clock

    def begin(self, name: tuple[str, ...], work: Callable[[], Awaitable[float]]) -> None:
        """Begin a task, unless it is running, or not due again. `work` returns in how many seconds it is."""
        now_s = asyncio.get_running_loop().time()
        if name not in self._running and self._next_s.get(name, now_s) <= now_s:
            self._next_s = {each: at_s for each, at_s in self._next_s.items() if at_s > now_s}
            self._running[name] = asyncio.create_task(self._run(name, work))

    async def idle(self, timeout_s: float) -> None:
        """Wait until none is running, but no longer than this."""
        until_s = asyncio.get_running_loop().time() + timeout_s
        while self._running and (left_s := until_s - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(tuple(self._running.values()), timeout=left_s)

    async def stop(self) -> None:
        """Give up what is under way."""
        await end(*self._running.values())
        self._running.clear()  # a task that was cancelled before it began has not done so

    async def _run(self, name: tuple[str, ...], work: Callable[[], Awaitable[float]]) -> None:
        pause_s = RETRY_S
        try:
            pause_s = await work()
        except DfcError as error:
            _log.info("copies on disk %s: %s: %s", self._disk_id, " ".join(name), error.message)
        except Exception:
            _log.exception("copies on disk %s: %s: trying again", self._disk_id, " ".join(name))
        finally:
            self._next_s[name] = asyncio.get_running_loop().time() + pause_s
            self._running.pop(name, None)


# --- Damaged objects of one disk that have copies elsewhere: found by the scrubber or a read, and repaired in the background.

DAMAGED_AGAIN_S: Final = 2.0  # until they are looked at again
DAMAGED_PAUSE_SHARE: Final = 9.0  # or so many times as long as a look took
TRIED_AT_ONCE: Final = 16


class DamagedRows:
    """The damaged objects of a disk."""

    def __init__(self, local: TargetState, ledger: Ledger, repairer: Repairer, disk: Disk) -> None:
        self._local = local
        self._ledger = ledger
        self._repairer = repairer
        self._disk = disk

    async def repair(self) -> float:
        """Try to repair each of them once; returns in how many seconds to look again at those that are left."""
        begun_s, is_done = time.monotonic(), True
        after: Position | None = START
        while after is not None:
            names, after = await self._local.threads(self._disk).read(self._disk.copies.damaged, after, PAGE)
            for some in chunks(names, TRIED_AT_ONCE):
                outcomes = await asyncio.gather(*(self._repair(*name) for name in some), return_exceptions=True)
                is_done = is_done and all(outcome is True for outcome in outcomes)
                for outcome in outcomes:
                    if isinstance(outcome, BaseException) and not isinstance(outcome, DfcError):
                        raise outcome
        return 0.0 if is_done else max(DAMAGED_AGAIN_S, DAMAGED_PAUSE_SHARE * (time.monotonic() - begun_s))

    async def _repair(self, bucket_id: str, name: str) -> bool:
        """Repair one, unless there can be no copy of it; whether it is sound now."""
        found = self._ledger.roles(bucket_id, name)
        if not self._local.map.is_copied(bucket_id) or not {*found.everywhere, *found.handoffs} - {self._disk.id}:
            return False
        return await self._repairer.repair(self._disk, CopyKey(self._disk.id, bucket_id, name))


# --- What a target does about copies in the background: pending rows of others, hints, damaged and excess rows, clean reports.
#
# One task for each disk. With nothing to do it looks at flags in memory only. What needs answers of other disks is done in
# tasks, one for each of them.

WORK_S: Final = 0.5  # between two looks at what there is to do
SOON_S: Final = 0.05  # while slices are handed over, since each step waits for reports; and at least
PATIENCE_S: Final = 0.5  # for tasks, which go on after that
AGAIN_S: Final = 2.0  # until a disk that has not answered is asked again
DELIVERIES_MAX: Final = 50  # in a row, before a report
PAUSE_SHARE: Final = 3.0  # between two looks at pending rows: so many times as long as one took


class Upkeep:
    """The background work of one disk."""

    def __init__(
        self,
        local: TargetState,
        ledger: Ledger,
        peers: Peers,
        receiver: CopyReceiver,
        writes: Writes,
        peering_loop: PeeringLoop,
        repairer: Repairer,
        disk: Disk,
    ) -> None:
        self._local = local
        self._ledger = ledger
        self._peers = peers
        self._receiver = receiver
        self._writes = writes
        self._peering_loop = peering_loop
        self._disk = disk
        self._threads = local.threads(disk)
        self._seen_pending: set[tuple[str, str, str]] = set()  # at the last look
        self._coming = FutureReplicas(local, ledger, disk)
        self._excess = ExcessRows(local, ledger, peers, disk)
        self._deliveries = Deliveries(local, ledger, peers, writes, repairer, disk)
        self._stale = StaleRows(local, ledger, peers, disk)
        self._damaged = DamagedRows(local, ledger, repairer, disk)
        self._peer_tasks = PeerTasks(disk.id)
        self._wake = asyncio.Event()
        self._compared: dict[str, str] = {}  # by disk: the incarnation for which there are hints for everything
        self._had_several = True  # rows may be left from before

    async def run(self) -> None:
        """Work until cancelled."""
        self._ledger.wakers.add(self._wake)
        try:
            await self._work()
        finally:
            self._ledger.wakers.discard(self._wake)
            await self._peer_tasks.stop()

    async def _work(self) -> None:
        while True:
            await asyncio.sleep(SOON_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(SOON_S if is_handing_over(self._ledger.placement) else WORK_S):
                    await self._wake.wait()
            self._wake.clear()
            try:
                if not self._ledger.is_ranked(self._disk.id) and self._local.map.version:
                    await self._rank()
                if self._local.is_leased and self._may_have_work():
                    await self._look()
            except DfcError as error:
                _log.info("copies on disk %s: %s", self._disk.id, error.message)
                await asyncio.sleep(RETRY_S)
            except Exception:
                _log.exception("copies on disk %s: trying again", self._disk.id)
                await asyncio.sleep(RETRY_S)

    def _may_have_work(self) -> bool:
        several = has_several(self._ledger.placement)
        self._had_several = self._had_several or several
        return several or self._had_several or self._disk.copies.has_pending or self._disk.copies.has_hints

    async def _look(self) -> None:
        placement = self._ledger.placement
        await self._coming.plan()
        if self._disk.copies.has_pending or self._seen_pending:
            self._peer_tasks.begin(("pending rows",), self._see_to_pending)
        if self._disk.copies.has_hints:
            await self._deliver()
        if self._disk.copies.has_damaged:
            self._peer_tasks.begin(("damaged rows",), self._damaged.repair)
        await self._peer_tasks.idle(PATIENCE_S)
        self._report_clean()
        if self._coming.is_planned:
            self._peer_tasks.begin(("raised report",), self._coming.report_raised)
            self._peer_tasks.begin(("ready report",), self._coming.report_ready)
        if self._stale.is_due(placement):
            self._peer_tasks.begin(("stale rows",), self._stale.drop)
        self._peer_tasks.begin(("excess rows",), partial(self._remove_excess, placement))
        await self._peer_tasks.idle(PATIENCE_S)

    async def _remove_excess(self, placement: Placement) -> float:
        if any(disk.is_up and disk.out_of_sync_with for disk in placement.disks.values()):
            return 0.0  # a walk over all rows, after each step, would keep those that catch up from doing so
        if self._ledger.peering.is_done and await self._excess.remove(placement, self._has_deliveries):
            self._had_several = has_several(placement)
        return 0.0

    async def _rank(self) -> None:
        """Give all rows their ranks by the layout in force: those of a rebuilt catalog, or after a move."""
        layout = self._ledger.placement.stable_layout
        if layout is None:
            return

        def ranks_of(page: list[RankedRow]) -> list[tuple[str, str, int]]:
            placement = self._ledger.placement
            named = [(each[:2], each.rank, rank_of(roles_once(placement, *each[:2]), self._disk.id)) for each in page]
            return [(*name, rank) for name, before, rank in named if rank != before]

        async for ranks in walk_ranked(self._threads, self._disk, ranks_of):
            if self._ledger.placement.stable_layout != layout:
                return
            await self._threads.go_on(self._disk.copies.set_ranks, ranks)
        if self._ledger.placement.stable_layout == layout:
            await self._threads.go_on(self._disk.copies.set_ranked_layout, layout)
            self._ledger.ranked[self._disk.id] = layout

    # --- disks that came back empty or in doubt

    async def _compare(self, other: DiskPlace) -> bool:
        """A disk that came back empty or in doubt needs hints for everything that it should have. Whether it has them by
        now."""
        if other.compare and self._compared.get(other.id) != other.compare:
            if not await self._ledger.until_over(self._disk.id):
                return False
            async for hints in walk_names(self._threads, self._disk, partial(self._belonging_to, other.id)):
                if hints:
                    await self._threads.go_on(self._disk.copies.add_hints, hints)
            self._compared[other.id] = other.compare
        return True

    def _belonging_to(self, disk: str, page: list[tuple[str, str]]) -> list[Row]:
        """Notes about those of the names that another disk should have. In a thread."""
        placement = self._ledger.placement
        named = [(name, roles_once(placement, *name)) for name in page]
        return [(hint_key(found, disk), *name) for name, found in named if disk in found.everywhere]

    # --- rows that are pending here

    async def _see_to_pending(self) -> float:
        """Bring those of which this disk is primary to the others. Ask the primaries of those that were pending at the last
        look already."""
        begun_s, step, is_peered = time.monotonic(), self._ledger.placement.step, self._ledger.peering.is_done
        pending = await self._receiver.pending_here(self._disk, self._seen_pending)
        took_s = time.monotonic() - begun_s
        if is_peered:
            await self._peering_loop.drive(self._disk, pending.own, step)
        self._seen_pending = pending.others
        for primary, rows in pending.waiting.items():
            self._peer_tasks.begin(("pending rows of", primary), partial(self._ask_about, primary, rows))
        return PAUSE_SHARE * took_s

    async def _ask_about(self, primary: str, rows: Sequence[Row]) -> float:
        for some in chunks(rows):
            if not await self._ask_about_some(primary, some):
                return AGAIN_S
        return 0.0

    async def _ask_about_some(self, primary: str, rows: Sequence[Row]) -> bool:
        """Do what follows from the answer of a primary; whether there is one."""
        keys = [CopyKey(self._disk.id, bucket_id, name) for bucket_id, name, _ in rows]
        with self._ledger.watching(keys) as has_changed:
            reply = await self._peers.states(primary, [CopyKey(primary, *key[1:]) for key in keys])
            for row, key, each in zip(rows, keys, reply or (), strict=False):
                if each.decides:
                    await self._resolve_row(row, primary, each, partial(has_changed, key))
        return reply is not None

    async def _resolve_row(self, row: Row, primary: str, reply: NameReply, has_changed: Callable[[], bool]) -> None:
        (bucket_id, name, version), state = row, reply.state
        theirs = None if state is None else state.version
        # One that is on its way there may wait for this disk, which refuses it as long as it has a newer row.
        pending = not reply.speaks
        published = bool(self._disk.copies.publisher(bucket_id, name))
        resolution = recovery.resolution(version, theirs, changed=has_changed(), replicated=reply.speaks, published=published)
        if resolution is Resolution.CONFIRM:
            await self._threads.go_on(self._disk.copies.confirm, [row])
        if resolution is not Resolution.REVERT:
            return

        def guard() -> None:
            """In the transaction: nothing about the name has come since the question was sent."""
            if has_changed():
                raise Unavailable("a newer row has come meanwhile")

        if state is None or state.is_tombstone:
            await self._threads.go_on(partial(self._disk.copies.revert, *row, theirs, guard=guard, pending=pending))
            return
        durability = self._local.durability_of(bucket_id)
        writer = await self._peers.fetch(CopyKey(primary, bucket_id, name), state, self._disk, durability)
        if writer is not None:
            # A tombstone that is undone has no rank that the object could keep.
            rank = rank_of(self._ledger.roles(bucket_id, name), self._disk.id)
            revert_to = self._disk.copies.revert_to
            await self._threads.go_on(partial(revert_to, writer, version, guard=guard, rank=rank, pending=pending))

    # --- hints to be delivered

    async def _deliver(self) -> None:
        """Begin to give disks what they lack, each in a task of its own, and to drop hints for those that are away and no
        longer replicas."""
        placement = self._ledger.placement
        for whom in await self._threads.read(self._disk.copies.hinted):
            place = placement.disks.get(hinted_disk(whom))
            if place is None:
                await self._threads.go_on(self._disk.copies.forget_disk, whom)
            elif place.is_up or is_no_replica(placement, place.id):
                self._peer_tasks.begin(("deliveries to", whom), partial(self._deliver_to, whom))

    async def _deliver_to(self, whom: str) -> float:
        """Give a disk what it lacks, and look at once what can be reported if that was all."""
        pause_s = await self._deliveries.deliver(whom)
        if not self._disk.copies.has_hints:
            self._wake.set()
        return pause_s

    async def _has_deliveries(self) -> bool:
        """Whether there are hints for a disk that is up. They do not wait for a walk over all rows."""
        copies, up = self._disk.copies, self._ledger.placement.up
        return copies.has_hints and any(hinted_disk(whom) in up for whom in await self._threads.read(copies.hinted))

    def _report_clean(self) -> None:
        """Begin to report disks that have caught up with this one, each in a task of its own."""
        for other in list(self._ledger.placement.disks.values()):
            if other.is_up and self._disk.id in other.out_of_sync_with:
                self._peer_tasks.begin(("clean report of", other.id), partial(self._report_clean_of, other.id))

    async def _report_clean_of(self, other: str) -> float:
        placement, cleared = self._ledger.placement, self._ledger.cleared[self._disk.id]
        place = placement.disks.get(other)
        if place is None or not place.is_up or self._disk.id not in place.out_of_sync_with or not self._ledger.peering.is_done:
            return 0.0
        if not await self._compare(place) or await self._still_has_hints(other) or self._ledger.placement is not placement:
            return 0.0
        cleared.add(other)  # first: writes that are decided from now on are required there again
        is_clean = await self._peers.is_resolved(other)
        # Those that were decided without the other disk have left their hints when they are over.
        if not is_clean or not await self._ledger.until_over(self._disk.id) or await self._still_has_hints(other):
            return 0.0
        if self._ledger.placement is placement and other in cleared:
            report = CleanReport(disk=self._disk.id, caught_up=other, step=placement.step, process=self._local.process)
            await self._local.ask_registry("POST", "/v1/node/reports/clean", dict, report)
        return 0.0

    async def _still_has_hints(self, other: str) -> bool:
        """Whether a disk lacks rows however soon it is seen to. As a member of writes of others, this one makes hints for it
        all the time that it has had by the time it is asked; a moment without any would hardly come by itself."""
        for _ in range(DELIVERIES_MAX):
            whom, names = other, await self._hints(other)
            if not names and are_roles_changing(self._ledger.placement):
                whom = later(other)
                names = await self._hints(whom)
            if not names:
                return False
            if self._deliveries.has_just_tried(whom, names) or await self._deliveries.deliver(whom):
                break
        return True

    async def _hints(self, whom: str) -> list[tuple[str, str]]:
        names, _ = await self._threads.read(self._disk.copies.hints, whom, limit=PAGE)
        return names
