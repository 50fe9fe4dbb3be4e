"""What a target answers others that compare what its disks have with what theirs, the primaries, have."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from dfc.errors import DfcError
from dfc.placement.state import Placement
from dfc.replication.comparing import shared, why_not_compared
from dfc.storage.disk import Disk
from dfc.storage.rows import NameState
from dfc.target.copies.compare.questions import (
    AsideAsked,
    AsideTold,
    DigestsAsked,
    DigestsTold,
    LooksAsked,
    LooksTold,
    LookTold,
    PairAsked,
    SharedNamesAsked,
    SharedNamesTold,
    UnknownRow,
)
from dfc.target.copies.compare.tables import DigestTables
from dfc.target.copies.ledger import Ledger
from dfc.target.copies.messages import CopyKey, Told
from dfc.target.copies.peers import Peers
from dfc.target.copies.receiving import CopyReceiver
from dfc.target.local import Local

_log: Final = logging.getLogger("dfc.target")
RANGE_ROWS: Final = 2000  # read for one answer: less than a megabyte with usual names


class _Refused(Exception):
    """The pair cannot be compared now; `why`, or by another step."""

    def __init__(self, why: str = "", *, has_changed: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.has_changed = has_changed


class CompareAnswers:
    """The answers of one target, about disks that are homes of objects whose primaries ask."""

    def __init__(self, local: Local, ledger: Ledger, peers: Peers, receiver: CopyReceiver, tables: DigestTables) -> None:
        self._local = local
        self._ledger = ledger
        self._peers = peers
        self._receiver = receiver
        self._tables = tables

    async def digests(self, asked: DigestsAsked) -> DigestsTold:
        """The digests, or that they are being made. Unavailable."""
        try:
            disk, placement = await self._open(asked.pair)
            since_s = time.monotonic() - asked.age_s
            table = self._tables.look(disk, placement, frozenset(asked.buckets), since_s)
        except _Refused as refused:
            return DigestsTold(why=refused.why, has_changed=refused.has_changed)
        except DfcError as error:
            return DigestsTold(why=f"disk {asked.pair.home} cannot be read: {error.message}")
        if table is None:
            return DigestsTold()
        digests = table.of(asked.pair.primary, asked.pair.home)
        return DigestsTold(digests.folds.tobytes(), digests.counts.tobytes())

    async def names(self, asked: SharedNamesAsked) -> SharedNamesTold:
        """A page of the names that the pair shares. Unavailable, StorageFailed."""
        try:
            disk, placement = await self._open(asked.pair)
            return await self._local.threads(disk).read(_read_names, disk, placement, asked)
        except _Refused as refused:
            return SharedNamesTold(why=refused.why, has_changed=refused.has_changed)

    async def looks(self, asked: LooksAsked) -> LooksTold:
        """What the home has of names. Unavailable, StorageFailed."""
        try:
            disk, _ = await self._open(asked.pair)
        except _Refused as refused:
            return LooksTold(why=refused.why, has_changed=refused.has_changed)
        states = await self._local.threads(disk).read(disk.copies.states, asked.names)
        return LooksTold([self._look(disk, name, state) for name, state in zip(asked.names, states, strict=True)])

    def _look(self, disk: Disk, name: tuple[str, str], state: NameState | None) -> LookTold:
        is_sure = not disk.copies.is_pending(*name) and CopyKey(disk.id, *name) not in self._ledger.uncertain
        if state is None:
            return LookTold(is_sure=is_sure)
        return LookTold(state.version, "" if state.row is None else state.row.checksum, is_sure)

    async def set_aside(self, asked: AsideAsked) -> AsideTold:
        """Set rows aside of which the primary says that it knows nothing: it is asked again. Unavailable, StorageFailed."""
        try:
            disk, placement = await self._open(asked.pair)
        except _Refused as refused:
            return AsideTold(why=refused.why, has_changed=refused.has_changed)
        told = await self._peers.states(asked.pair.primary, [row.key(asked.pair.primary) for row in asked.rows])
        rows = [row for row, each in zip(asked.rows, told or (), strict=False) if _knows_nothing(each)]
        gone = await self._local.threads(disk).go_on(self._set_aside, disk, placement, rows)
        return AsideTold(gone)

    def _set_aside(self, disk: Disk, placement: Placement, rows: Sequence[UnknownRow]) -> list[tuple[str, str]]:
        """In a thread of the disk. PlacementChanged."""
        gone, guard = list[tuple[str, str]](), partial(self._ledger.require, placement)
        for row in rows:
            bucket = self._local.map.bucket_of(row.bucket_id)
            if bucket is None or bucket.state == "deleting":
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

    async def _open(self, asked: PairAsked) -> tuple[Disk, Placement]:
        """The home of a pair, and the placement by which it is compared. _Refused, Unavailable."""
        await self._receiver.catch_up(asked.sender)
        placement = self._ledger.placement
        if placement.step != asked.step:
            raise _Refused(has_changed=True)
        why = why_not_compared(placement, asked.primary, asked.home)
        if why:
            raise _Refused(why)
        if not self._local.is_leased:
            raise _Refused(f"the target of disk {asked.home} has no lease")
        disk = self._local.disks.get(asked.home)
        if disk is None:
            raise _Refused(f"disk {asked.home} is not at its target")
        return disk, placement


def _read_names(disk: Disk, placement: Placement, asked: SharedNamesAsked) -> SharedNamesTold:
    """In a thread of the disk."""
    rows = disk.copies.compared_range(asked.bucket_id, asked.after, asked.upto, RANGE_ROWS)
    digests = shared(placement, (asked.pair.primary, asked.pair.home), rows, asked.slices)
    return SharedNamesTold(digests, rows[-1].name if len(rows) == RANGE_ROWS else None)


def _knows_nothing(told: Told) -> bool:
    """Whether a primary says for certain that there is nothing of a name."""
    return told.is_known and told.state is None and told.speaks and told.is_certain
