"""What a target answers others that compare their copies with its own: digests, and rows."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from dfc.errors import DfcError
from dfc.http.shutdown import end
from dfc.placement.roles import Placement
from dfc.replication.compare import Pair, SliceDigests, compared_buckets, fold, shared, why_not_compared
from dfc.storage.catalog.copyreads import START, Position
from dfc.storage.disk import Disk
from dfc.storage.rows import NameState
from dfc.target.copies.ledger import Ledger
from dfc.target.copies.messages import (
    AsideReply,
    AsideRequest,
    CopyKey,
    DigestsReply,
    DigestsRequest,
    LookReply,
    LooksReply,
    LooksRequest,
    PairRequest,
    SharedNamesReply,
    SharedNamesRequest,
    UnknownRow,
)
from dfc.target.copies.peers import Peers
from dfc.target.copies.receive import CopyReceiver
from dfc.target.local import TargetState

# --- The digests of all pairs that a disk takes part in, by one walk over its catalog, for all that ask for them.

PAGE: Final = 500  # rows; some 10 ms in the thread, and the event loop has its turns meanwhile
PAUSE_SHARE: Final = 1.0  # between two pages: so many times as long as the page took
ABANDON_S: Final = 30.0  # a walk whose result nobody has asked for any more for so long is given up


class DigestTable:
    """The digests of a disk's pairs in some buckets by one step, and how many rows are in them. Complete when its walk is."""

    def __init__(self, placement: Placement, buckets: frozenset[str], begun_s: float) -> None:
        self.placement = placement
        self.buckets = buckets
        self.begun_s = begun_s  # by the monotonic clock, like all times here
        self.rows_read = 0
        self.pairs: dict[Pair, SliceDigests] = {}

    def of(self, primary: str, replica: str) -> SliceDigests:
        """The digests of a pair."""
        return self.pairs.get((primary, replica)) or SliceDigests()


class _Walk:
    def __init__(self, table: DigestTable) -> None:
        self.table = table
        self.asked_s = time.monotonic()
        self.task: asyncio.Task[bool] | None = None


class DigestTables:
    """The tables of this target's disks: one for each, made when it is asked for. One disk is walked at a time."""

    def __init__(self, local: TargetState, ledger: Ledger) -> None:
        self._local = local
        self._ledger = ledger
        self._made: dict[str, DigestTable] = {}
        self._walks: dict[str, _Walk] = {}
        self._turn = asyncio.Lock()

    async def close(self) -> None:
        """Give up the walks."""
        await end(*(walk.task for walk in self._walks.values() if walk.task is not None))

    def look(self, disk: Disk, placement: Placement, wanted: frozenset[str], since_s: float) -> DigestTable | None:
        """The table of a disk for these buckets by a walk that began after a moment; None while it is being made: ask again.
        Raises what has ended the walk: StorageFailed."""
        walk = self._walks.get(disk.id)
        if walk is not None and walk.task is not None and walk.task.done():
            self._walks.pop(disk.id)
            if walk.task.result():  # raises
                self._made[disk.id] = walk.table
            walk = None
        table = self._made.get(disk.id)
        if table is not None and self._fits(table, placement, wanted) and table.begun_s >= since_s:
            return table
        if walk is None:
            walk = self._walks[disk.id] = _Walk(DigestTable(placement, wanted, time.monotonic()))
            walk.task = asyncio.create_task(self._run(disk, walk))
        elif self._fits(walk.table, placement, wanted):
            walk.asked_s = time.monotonic()
        return None

    @staticmethod
    def _fits(table: DigestTable, placement: Placement, wanted: frozenset[str]) -> bool:
        return table.placement.step == placement.step and table.buckets == wanted

    def rows_read(self, disk_id: str) -> int:
        """How far the walk of a disk is, or the last one was."""
        walk, table = self._walks.get(disk_id), self._made.get(disk_id)
        return walk.table.rows_read if walk is not None else table.rows_read if table is not None else 0

    async def _run(self, disk: Disk, walk: _Walk) -> bool:
        """Whether all rows are in the table."""
        table, threads = walk.table, self._local.threads(disk)
        async with self._turn:
            table.begun_s = time.monotonic()
            after: Position | None = START
            while after is not None:
                begun_s = time.monotonic()
                count, after = await threads.read(_read_page, disk, table, after)
                table.rows_read += count
                if self._ledger.placement.step != table.placement.step or begun_s - walk.asked_s > ABANDON_S:
                    return False
                await asyncio.sleep(PAUSE_SHARE * (time.monotonic() - begun_s))
        return True


def _read_page(disk: Disk, table: DigestTable, after: Position) -> tuple[int, Position | None]:
    """Add a page of rows to a table. In a thread of the disk; nobody reads the table before all pages are in it."""
    rows, then = disk.copies.compared(after, PAGE)
    fold(table.placement, disk.id, rows, compared_buckets(table.placement, table.buckets), table.pairs)
    return len(rows), then


_log: Final = logging.getLogger("dfc.target")
RANGE_ROWS: Final = 2000  # read for one answer: less than a megabyte with usual names


class _Refused(Exception):
    """The pair cannot be compared now; `why`, or by another step."""

    def __init__(self, why: str = "", *, has_changed: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.has_changed = has_changed


class CompareAnswers:
    """The answers of one target, about disks that are replicas of objects whose primaries ask."""

    def __init__(self, local: TargetState, ledger: Ledger, peers: Peers, receiver: CopyReceiver, tables: DigestTables) -> None:
        self._local = local
        self._ledger = ledger
        self._peers = peers
        self._receiver = receiver
        self._tables = tables

    async def digests(self, request: DigestsRequest) -> DigestsReply:
        """The digests, or that they are being made. Unavailable."""
        try:
            disk, placement = await self._open(request.pair)
            since_s = time.monotonic() - request.age_s
            table = self._tables.look(disk, placement, frozenset(request.buckets), since_s)
        except _Refused as refused:
            return DigestsReply(why=refused.why, has_changed=refused.has_changed)
        except DfcError as error:
            return DigestsReply(why=f"disk {request.pair.replica} cannot be read: {error.message}")
        if table is None:
            return DigestsReply()
        digests = table.of(request.pair.primary, request.pair.replica)
        return DigestsReply(digests.folds.tobytes(), digests.counts.tobytes())

    async def names(self, request: SharedNamesRequest) -> SharedNamesReply:
        """A page of the names that the pair shares. Unavailable, StorageFailed."""
        try:
            disk, placement = await self._open(request.pair)
            return await self._local.threads(disk).read(_read_names, disk, placement, request)
        except _Refused as refused:
            return SharedNamesReply(why=refused.why, has_changed=refused.has_changed)

    async def looks(self, request: LooksRequest) -> LooksReply:
        """What the replica has of names. Unavailable, StorageFailed."""
        try:
            disk, _ = await self._open(request.pair)
        except _Refused as refused:
            return LooksReply(why=refused.why, has_changed=refused.has_changed)
        states = await self._local.threads(disk).read(disk.copies.states, request.names)
        return LooksReply([self._look(disk, name, state) for name, state in zip(request.names, states, strict=True)])

    def _look(self, disk: Disk, name: tuple[str, str], state: NameState | None) -> LookReply:
        is_sure = not disk.copies.is_pending(*name) and CopyKey(disk.id, *name) not in self._ledger.in_doubt
        if state is None:
            return LookReply(is_sure=is_sure)
        return LookReply(state.version, "" if state.row is None else state.row.checksum, is_sure)

    async def set_aside(self, request: AsideRequest) -> AsideReply:
        """Set rows aside of which the primary says that it knows nothing: it is asked again. Unavailable, StorageFailed."""
        try:
            disk, placement = await self._open(request.pair)
        except _Refused as refused:
            return AsideReply(why=refused.why, has_changed=refused.has_changed)
        reply = await self._peers.states(request.pair.primary, [row.key(request.pair.primary) for row in request.rows])
        rows = [row for row, each in zip(request.rows, reply or (), strict=False) if each.knows_nothing]
        return AsideReply(await self._local.threads(disk).go_on(self._set_aside, disk, placement, rows))

    def _set_aside(self, disk: Disk, placement: Placement, rows: Sequence[UnknownRow]) -> list[tuple[str, str]]:
        """In a thread of the disk. PlacementChanged."""
        gone, guard = list[tuple[str, str]](), partial(self._ledger.require, placement)
        for row in rows:
            if not self._local.map.has_bucket(row.bucket_id):
                continue  # its rows go by themselves
            paths = disk.copies.set_aside([(row.bucket_id, row.name, row.version)], guard=guard)
            if paths:
                gone.append((row.bucket_id, row.name))
                disk.copies.note_set_aside()
                _log.error(
                    "disk %s had object %s of bucket %s, version %s, of which its primary knows nothing: the bytes are in %s"
                    " for a while",
                    disk.id,
                    row.name,
                    row.bucket_id,
                    row.version,
                    ", ".join(paths),
                )
        return gone

    async def _open(self, request: PairRequest) -> tuple[Disk, Placement]:
        """The replica of a pair, and the placement by which it is compared. _Refused, Unavailable."""
        await self._receiver.catch_up(request.sender)
        placement = self._ledger.placement
        if placement.step != request.step:
            raise _Refused(has_changed=True)
        why = why_not_compared(placement, request.primary, request.replica)
        if why:
            raise _Refused(why)
        if not self._local.is_leased:
            raise _Refused(f"the target of disk {request.replica} has no lease")
        disk = self._local.disks.get(request.replica)
        if disk is None:
            raise _Refused(f"disk {request.replica} is not at its target")
        return disk, placement


def _read_names(disk: Disk, placement: Placement, request: SharedNamesRequest) -> SharedNamesReply:
    """In a thread of the disk."""
    rows = disk.copies.compared_range(request.bucket_id, request.after, request.upto, RANGE_ROWS)
    digests = shared(placement, (request.pair.primary, request.pair.replica), rows, request.slices)
    return SharedNamesReply(digests, rows[-1].name if len(rows) == RANGE_ROWS else None)
