"""When the disks of a target are compared with others: when asked, after a pass of the scrubber, and when one has come back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import Final

from dfc.errors import DfcError
from dfc.replication.checked import CheckAsked, TargetCheck
from dfc.replication.comparing import pairs_of
from dfc.storage.disk import Disk
from dfc.target.copies.compare.pair import ComparedWith, PairComparison
from dfc.target.copies.compare.tables import DigestTables
from dfc.target.copies.ledger import Ledger
from dfc.target.copies.peers import Peers
from dfc.target.local import Local
from dfc.wire.status import CheckedDisk, CheckedPair

_log: Final = logging.getLogger("dfc.target")
LOOK_S: Final = 0.5
RETRY_S: Final = 60.0  # until pairs are tried again that could not be compared, unless somebody has asked


class Comparer:
    """Compares one disk of a target at a time. What is asked for goes first, and has everything begin anew."""

    def __init__(self, local: Local, ledger: Ledger, peers: Peers, tables: DigestTables) -> None:
        self._with = ComparedWith(local, ledger, peers, tables)
        self._local = local
        self._ledger = ledger
        self._asked: CheckAsked | None = None
        self._checks: list[CheckedDisk] = []  # of the last time that somebody has asked, by disk
        self._is_begun = True
        self._asked_s = 0.0  # by the monotonic clock, like all times here
        self._due: dict[str, set[str]] = {}  # by disk here: with whom it is to be compared
        self._left: dict[str, dict[str, str]] = {}  # by disk: what could not be compared last time, and why
        self._next_s = 0.0  # not before this
        self._scrubbed: dict[str, float] = {}  # by disk: when the pass ended that was seen last
        self._returning: set[str] = set()  # disks that others owe everything
        self._alarms: dict[tuple[str, str], Counter[str]] = {}  # by pair: by bucket id
        self._doubted: set[str] = set()  # disks that have lost objects
        self._task: asyncio.Task[None] | None = None

    # --- asked

    def ask(self, asked: CheckAsked) -> TargetCheck:
        """Compare all disks now, and give up what is under way. Asked for the same again, it goes on."""
        if self._asked is None or self._asked.check != asked.check:
            self._asked, self._is_begun, self._asked_s = asked, False, time.monotonic()
            self._checks = [CheckedDisk(disk=disk.id, node=self._local.node_id) for disk in self._local.in_order()]
            if self._task is not None:
                self._task.cancel()
        return self.status()

    def status(self) -> TargetCheck:
        """How far that is."""
        if self._asked is None:
            return TargetCheck()
        return TargetCheck(self._asked.check, self._asked.began_us, self._asked.buckets, self._checks)

    # --- work

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                try:
                    self._notice()
                except Exception:
                    _log.exception("cannot tell which copies are to be compared; trying again")
                if not self._is_begun or (self._due and time.monotonic() >= self._next_s):
                    self._task = asyncio.create_task(self._work())
                    await asyncio.wait((self._task,))
        finally:
            if self._task is not None:
                self._task.cancel()
                with suppress(asyncio.CancelledError):
                    await self._task

    def _notice(self) -> None:
        """See what has become due."""
        placement = self._ledger.placement
        for disk in self._local.in_order():
            scrubbed_s = disk.copies.scrubbed_s
            if scrubbed_s != self._scrubbed.setdefault(disk.id, scrubbed_s) and disk.id in placement.disks:
                self._scrubbed[disk.id] = scrubbed_s
                self._add(disk.id, pairs_of(placement, disk.id))
        owed = {place.id for place in placement.disks.values() if place.compare}
        for back in self._returning - owed:
            for disk in self._local.in_order():
                if disk.id in placement.disks and back in placement.disks:
                    homes = pairs_of(placement, disk.id)
                    self._add(disk.id, homes if disk.id == back else [back] if back in homes else [])
        self._returning = owed

    def _add(self, disk_id: str, homes: Collection[str]) -> None:
        if homes:
            self._due.setdefault(disk_id, set()).update(homes)

    async def _work(self) -> None:
        try:
            if not self._is_begun:
                self._is_begun = True
                await self._as_asked()
            else:
                await self._as_due()
        except DfcError as error:
            _log.info("copies are not compared: %s", error.message)
        except Exception:
            _log.exception("comparing copies has failed")
            self._next_s = time.monotonic() + RETRY_S

    async def _as_asked(self) -> None:
        asked, since_s = self._asked, self._asked_s
        assert asked is not None
        for check in self._checks:
            disk = self._local.disks[check.disk]
            await self._compare(disk, check, None, frozenset(asked.buckets), since_s)
            if not asked.buckets and not _left(check):
                self._due.pop(disk.id, None)

    async def _as_due(self) -> None:
        """Compare one disk. Pairs that cannot be compared now are tried again later."""
        disk_id, homes = next(iter(self._due.items()))
        disk = self._local.disks.get(disk_id)
        check = CheckedDisk(disk=disk_id, node=self._local.node_id)
        if disk is not None:
            await self._compare(disk, check, homes, frozenset(), time.monotonic())
        self._due.pop(disk_id)
        left = _left(check)
        if left:
            self._due[disk_id] = set(left)  # the last one now: others have their turns
            self._next_s = time.monotonic() + RETRY_S
        if left and left == self._left.get(disk_id):
            return  # as was said before
        self._left[disk_id], total = left, _total(check.pairs)
        _log.info(
            "disk %s was compared with %d others: %d objects, %d differed, %d repaired, %d set aside, %d contradict it%s",
            disk_id,
            len(check.pairs) - len(left),
            total.rows,
            total.differing,
            total.repaired + total.under_way,
            total.set_aside,
            total.alarms,
            f"; not compared: {'; '.join(sorted(set(left.values())))}" if left else "",
        )

    async def _compare(
        self, disk: Disk, check: CheckedDisk, homes: Collection[str] | None, buckets: frozenset[str], since_s: float
    ) -> None:
        """Compare a disk with these others; None: with all."""
        placement = self._ledger.placement
        check.state = "running"
        try:
            check.rows_total = (await self._local.threads(disk).read(disk.totals))[0]
            found = pairs_of(placement, disk.id) if disk.id in placement.disks else []
            wanted = found if homes is None else [each for each in found if each in homes]
            check.pairs_total = len(wanted)
            for home in wanted:
                comparison = PairComparison(self._with, disk, check, home, buckets)
                pair = await comparison.compare(since_s)
                check.pairs = [*check.pairs, pair]
                is_doubted = bool(comparison.lost) and await self._is_doubted(disk, comparison.lost.total())
                if not pair.not_compared:
                    alarms = comparison.alarms if is_doubted else comparison.alarms + comparison.lost
                    self._remember(disk, home, buckets, alarms)
                if is_doubted:
                    check.pairs_total = len(check.pairs)
                    return  # the others have to wait until it has everything again
        finally:
            check.state = "done"

    async def _is_doubted(self, disk: Disk, lost: int) -> bool:
        """Have a disk taken for one in doubt that has lost objects which others have: whether that is so. Only once while this
        process runs, since it takes the disk out of use for a while, and a second time would hardly help more."""
        if disk.id in self._doubted:
            return False
        self._doubted.add(disk.id)
        _log.error(
            "disk %s has lost %d objects that others have, or more: it is in doubt, and not used until it has everything again",
            disk.id,
            lost,
        )
        await self._local.threads(disk).go_on(partial(disk.doubt, 0, loses_alone=False))
        return True

    def _remember(self, disk: Disk, home: str, buckets: frozenset[str], alarms: Counter[str]) -> None:
        """What was found of these buckets takes the place of what was found of them before."""
        before = self._alarms.get((disk.id, home), Counter[str]())
        kept = {bucket_id: count for bucket_id, count in before.items() if buckets and bucket_id not in buckets}
        self._alarms[disk.id, home] = Counter({**kept, **alarms})
        known = self._ledger.placement.disks
        self._alarms = {pair: each for pair, each in self._alarms.items() if each and pair[1] in known}
        disk.copies.note_alarms(sum(each.total() for (owner, _), each in self._alarms.items() if owner == disk.id))


def _left(check: CheckedDisk) -> dict[str, str]:
    """Why homes were not compared."""
    return {pair.home: pair.not_compared for pair in check.pairs if pair.not_compared}


def _total(pairs: Collection[CheckedPair]) -> CheckedPair:
    total = CheckedPair(home="")
    for pair in pairs:
        for each in ("rows", "differing", "repaired", "under_way", "set_aside", "alarms"):
            setattr(total, each, getattr(total, each) + getattr(pair, each))
    return total
