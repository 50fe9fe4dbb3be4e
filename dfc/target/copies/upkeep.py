"""What a target does about copies in the background: pending rows of others, notes, clean reports, surplus rows.

One task for each disk. With nothing to do it looks at flags in memory only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar

from dfc.errors import DfcError, Unavailable
from dfc.placement.mapped import FIRST_LAYOUT
from dfc.placement.roles import roles
from dfc.placement.state import Placement
from dfc.registry.reports import CleanReport, RaisedReport
from dfc.replication import owed
from dfc.replication.owed import Delivery, Resolution
from dfc.storage.blobs.writer import BlobWriter
from dfc.storage.disk import Disk
from dfc.target.copies.ledger import Ledger, has_several, rank_of
from dfc.target.copies.messages import CopyKey, RowState, Told
from dfc.target.copies.peers import Peers
from dfc.target.copies.receiving import CopyReceiver
from dfc.target.copies.settling import Settler
from dfc.target.copies.writing import Writes
from dfc.target.local import Local

_log: Final = logging.getLogger("dfc.target")
WORK_S: Final = 0.5
RETRY_S: Final = 5.0  # after a disk has failed
PAGE: Final = 500  # names that are looked at together
SENT_AT_ONCE: Final = 16  # rows of one disk on their way to those that lack them
Row = tuple[str, str, str]  # bucket id, name and version; or for a note: disk, bucket id and name
T = TypeVar("T")


class Upkeep:
    """The background work of one disk."""

    def __init__(
        self,
        local: Local,
        ledger: Ledger,
        peers: Peers,
        receiver: CopyReceiver,
        writes: Writes,
        settler: Settler,
        disk: Disk,
    ) -> None:
        self._local = local
        self._ledger = ledger
        self._peers = peers
        self._receiver = receiver
        self._writes = writes
        self._settler = settler
        self._disk = disk
        self._threads = local.threads(disk)
        self._seen_pending: set[tuple[str, str, str]] = set()  # at the last look
        self._planned = -1  # the step for which notes were made
        self._cleaned = -1  # the step for which surplus rows were looked for
        self._compared: dict[str, str] = {}  # by disk: the incarnation that was given notes for everything
        self._had_several = True  # rows may be left from before

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await asyncio.sleep(WORK_S)
            try:
                if self._disk.id in self._ledger.unranked and self._local.map.version:
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
        return several or self._had_several or self._disk.copies.has_pending or self._disk.copies.has_notes

    async def _look(self) -> None:
        placement = self._ledger.placement
        if self._planned != placement.step:
            await self._plan()
            self._planned = placement.step
        if self._ledger.settling.is_done:
            await self._settler.drive_pending()
        await self._resolve()
        if self._disk.copies.has_notes:
            await self._deliver()
        await self._report_clean()
        if self._planned == self._ledger.placement.step:
            await self._report_raised()
        is_settled = self._ledger.settling.is_done and not await self._has_deliveries()
        if self._cleaned != placement.step and is_settled and await self._remove_surplus():
            self._cleaned = placement.step
            self._had_several = has_several(placement)

    async def _rank(self) -> None:
        """Give all rows of a rebuilt catalog their ranks."""
        async for page in self._walk():
            ranks = [(each[0], each[1], rank_of(self._ledger.roles(each[0], each[1]), self._disk.id)) for each in page]
            await self._threads.go_on(self._disk.copies.set_ranks, ranks)
        await self._threads.go_on(self._disk.copies.set_ranked_layout, FIRST_LAYOUT)
        self._ledger.unranked.discard(self._disk.id)

    # --- notes to be made

    async def _plan(self) -> None:
        """Note what homes of a bucket that gets more copies lack."""
        placement = self._ledger.placement
        raised = {each for each, copies in placement.copies.items() if copies.reading < copies.written}
        if not raised:
            return
        # What was decided by an older map, with one copy, is committed before the walk begins.
        await self._local.decide_by(self._local.map)
        if self._ledger.placement.step != placement.step:
            raise Unavailable("the cluster map has changed")
        async for page in self._walk():
            notes = []
            for bucket_id, name, _ in page:
                found = self._ledger.roles(bucket_id, name)
                if bucket_id in raised and found.primary == self._disk.id:
                    lacking = owed.owes_when_planned(placement, found, bucket_id)
                    notes += [(each, bucket_id, name) for each in lacking]
            await self._owe(notes)

    async def _compare(self) -> None:
        """To disks that came back empty, everything is owed that they should have."""
        for other in self._ledger.placement.disks.values():
            if not (other.is_up and other.compare and self._disk.id in other.behind):
                continue
            if (
                self._compared.get(other.id) == other.compare
                or not self._ledger.settling.is_done
                or self._ledger.is_writing(self._disk.id)
            ):
                continue
            async for page in self._walk():
                names = [(other.id, bucket_id, name) for bucket_id, name, _ in page]
                await self._owe([each for each in names if other.id in self._ledger.roles(*each[1:]).everywhere])
            self._compared[other.id] = other.compare

    async def _walk(self) -> AsyncIterator[list[Row]]:
        """All objects and tombstones on the disk, page by page."""
        copies = self._disk.copies
        rows, after = await self._threads.read(copies.rows, limit=PAGE)
        while True:
            yield [(row.bucket_id, row.name, row.version) for row in rows]
            if after is None:
                break
            rows, after = await self._threads.read(copies.rows, after, PAGE)
        buried, after = await self._threads.read(copies.tombstones, limit=PAGE)
        while True:
            yield [(bucket_id, name, version) for bucket_id, name, version in buried]
            if after is None:
                return
            buried, after = await self._threads.read(copies.tombstones, after, PAGE)

    async def _owe(self, notes: list[Row]) -> None:
        if notes:
            await self._threads.go_on(self._disk.copies.owe, notes)

    # --- rows that are pending here while another disk is primary

    async def _resolve(self) -> None:
        """Ask the primaries of rows that were pending at the last look already."""
        pending = set(await self._receiver.all_pending(self._disk))
        waiting, self._seen_pending = pending & self._seen_pending, pending
        by_primary: dict[str, list[Row]] = {}
        for row in sorted(waiting):
            primary = self._ledger.roles(row[0], row[1]).primary
            if primary is not None and primary != self._disk.id:
                by_primary.setdefault(primary, []).append(row)
        for primary, rows in by_primary.items():
            for some in _chunks(rows):
                await self._ask_about(primary, some)

    async def _ask_about(self, primary: str, rows: Sequence[Row]) -> None:
        keys = [CopyKey(self._disk.id, bucket_id, name) for bucket_id, name, _ in rows]
        with self._ledger.watching(keys) as has_changed:
            told = await self._peers.states(primary, [CopyKey(primary, *key[1:]) for key in keys])
            for row, key, each in zip(rows, keys, told or (), strict=False):
                if each.speaks:
                    await self._settle_row(row, primary, each.state, partial(has_changed, key))

    async def _settle_row(self, row: Row, primary: str, state: RowState | None, has_changed: Callable[[], bool]) -> None:
        bucket_id, name, version = row
        theirs = None if state is None else state.version
        resolution = owed.resolution(version, theirs, changed=has_changed())
        if resolution is Resolution.CONFIRM:
            await self._threads.go_on(self._disk.copies.confirm, [row])
        if resolution is not Resolution.REVERT:
            return

        def guard() -> None:
            """In the transaction: nothing about the name has come since the question was sent."""
            if has_changed():
                raise Unavailable("a newer row has come meanwhile")

        if state is None or state.is_tombstone:
            await self._threads.go_on(self._revert, bucket_id, name, version, theirs, guard)
            return
        durability = self._local.durability_of(bucket_id)
        writer = await self._peers.fetch(CopyKey(primary, bucket_id, name), state, self._disk, durability)
        if writer is not None:
            await self._threads.go_on(self._revert_to, writer, version, guard)

    def _revert(self, bucket_id: str, name: str, version: str, to: str | None, guard: Callable[[], None]) -> None:
        self._disk.copies.revert(bucket_id, name, version, to, guard=guard)

    def _revert_to(self, writer: BlobWriter, version: str, guard: Callable[[], None]) -> None:
        self._disk.copies.revert_to(writer, version, guard=guard)

    # --- notes to be delivered

    async def _deliver(self) -> None:
        """Give disks what they lack, as far as they can be reached now."""
        for disk_id in await self._threads.read(self._disk.copies.owed_disks):
            place = self._ledger.placement.disks.get(disk_id)
            if place is None:
                await self._threads.go_on(self._disk.copies.forget_disk, disk_id)
            elif place.is_up:
                await self._deliver_to(disk_id)

    async def _has_deliveries(self) -> bool:
        """Whether there are notes for a disk that is up. They do not wait for a walk over all rows."""
        copies, up = self._disk.copies, self._ledger.placement.up
        return copies.has_notes and await self._threads.read(lambda: any(map(copies.owes, up)))

    async def _deliver_to(self, to: str) -> None:
        names, after = await self._threads.read(self._disk.copies.notes, to, limit=PAGE)
        while names:
            for some in _chunks(names, SENT_AT_ONCE):
                await asyncio.gather(*(self._deliver_one(to, bucket_id, name) for bucket_id, name in some))
            if after is None:
                return
            names, after = await self._threads.read(self._disk.copies.notes, to, after, PAGE)

    async def _deliver_one(self, to: str, bucket_id: str, name: str) -> None:
        if not self._local.is_leased:
            return
        copies, key = self._disk.copies, CopyKey(self._disk.id, bucket_id, name)
        placement, spoke = self._ledger.placement, self._ledger.speaks(key)
        state = await self._threads.read(copies.state, bucket_id, name)
        if state is None:
            await self._forgive(to, bucket_id, name, None)
            return
        if self._ledger.placement is not placement or to not in placement.disks:
            return
        found = self._ledger.roles(bucket_id, name)
        delivery = owed.delivery(placement, found, self._disk.id, to)
        if delivery is Delivery.DROP:
            await self._forgive(to, bucket_id, name, None)
        elif delivery is Delivery.ADOPT:
            # Both before and after it was read: what was read counts.
            if spoke and self._ledger.speaks(key) and await self._writes.give(self._disk, key, state, to, "adopt"):
                await self._forgive(to, bucket_id, name, state.version)
        elif delivery is not Delivery.KEEP:
            told = await self._peers.state(CopyKey(to, bucket_id, name))
            if told is None:
                return
            if owed.has_arrived(None if told.state is None else told.state.version, state.version):
                await self._forgive(to, bucket_id, name, state.version)
            elif found.primary is not None:
                await self._peers.hand_over(found.primary, [CopyKey(to, bucket_id, name)])
            elif delivery is Delivery.DIRECT:
                is_pending = copies.is_pending(bucket_id, name)
                await self._writes.give(self._disk, key, state, to, "direct", is_pending=is_pending)

    async def _forgive(self, to: str, bucket_id: str, name: str, version: str | None) -> None:
        await self._threads.go_on(self._disk.copies.forgive, [(to, bucket_id, name, version)])

    # --- reports

    def _is_at_rest(self) -> bool:
        """Whether all names are settled, and no write of which this disk is primary is on its way."""
        return self._ledger.settling.is_done and not self._ledger.is_writing(self._disk.id)

    async def _owes_nothing(self, other: str) -> bool:
        return self._is_at_rest() and not await self._threads.read(self._disk.copies.owes, other)

    async def _report_clean(self) -> None:
        """Report disks that have caught up with this one."""
        await self._compare()
        for other in list(self._ledger.placement.disks.values()):
            placement = self._ledger.placement
            place = placement.disks.get(other.id)
            if place is None or not place.is_up or self._disk.id not in place.behind:
                continue
            if place.compare and self._compared.get(other.id) != place.compare:
                continue
            if not await self._owes_nothing(other.id):
                continue
            self._ledger.cleared[self._disk.id].add(other.id)  # first: from now on its writes are required there again
            settled = await self._peers.is_settled(other.id)
            # A write that was decided without the other disk before that is on its way until its note is committed.
            if settled and await self._owes_nothing(other.id) and self._ledger.placement is placement:
                await self._report(CleanReport(disk=self._disk.id, behind=other.id, step=placement.step))

    async def _report_raised(self) -> None:
        """Report buckets whose new homes have everything that this disk has."""
        placement = self._ledger.placement
        for bucket_id, copies in placement.copies.items():
            if copies.reading >= copies.wanted or not self._is_at_rest():
                continue
            if not await self._threads.read(self._disk.copies.owed_disks):
                await self._report(
                    RaisedReport(disk=self._disk.id, bucket_id=bucket_id, copies=copies.written, step=placement.step)
                )

    async def _report(self, report: CleanReport | RaisedReport) -> None:
        path = "clean" if isinstance(report, CleanReport) else "raised"
        await self._local.ask_registry("POST", f"/v1/cluster/reports/{path}", dict, report)

    # --- surplus

    async def _remove_surplus(self) -> bool:
        """Remove rows of which this disk is no home, once all homes have them; whether nothing is left to be looked at again
        in this step."""
        placement, done = self._ledger.placement, True
        async for page in self._walk():
            surplus = [row for row in page if self._is_surplus(placement, row)]
            candidates = [row for row in surplus if not self._disk.copies.is_pending(row[0], row[1])]
            done = done and len(candidates) == len(surplus)  # the others will be confirmed or undone soon
            for some in _chunks(candidates):
                if not await self._remove(placement, some):
                    done = False
            if self._ledger.placement is not placement or await self._has_deliveries():
                return False
        return done

    def _is_surplus(self, placement: Placement, row: Row) -> bool:
        """Whether a row is, unless it is pending."""
        bucket_id, name, _ = row
        return owed.surplus(placement, roles(placement, bucket_id, name), self._disk.id, pending=False, owes=False)

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

        def guard() -> None:
            if self._ledger.placement is not placement:
                raise Unavailable("the cluster map has changed")

        if gone:
            await self._threads.go_on(self._drop, gone, guard)
        return len(gone) == len(rows)

    def _drop(self, rows: list[Row], guard: Callable[[], None]) -> None:
        self._disk.copies.remove_surplus(rows, guard=guard)


def _holds(told: Told, version: str) -> bool | None:
    """Whether a disk has this version or a newer one, for certain."""
    if not told.is_known:
        return None
    return told.is_certain and told.state is not None and owed.has_arrived(told.state.version, version)


def _chunks(items: Sequence[T], size: int = PAGE) -> Iterator[Sequence[T]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]
