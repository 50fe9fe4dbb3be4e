"""What homes to come lack, of buckets that get more copies and of slices that move: notes, and reports when it is done."""

from __future__ import annotations

import math
import time
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from dfc.errors import Unavailable
from dfc.placement.roles import homes_to_come, roles_once
from dfc.placement.state import Placement
from dfc.registry.reports import RaisedReport, SliceReadiness, SlicesReport
from dfc.replication import owed
from dfc.storage.copies import NOTED_ROWS
from dfc.storage.disk import Disk
from dfc.storage.rows import later, owed_disk
from dfc.target.copies.ledger import Ledger, noted_for
from dfc.target.copies.rows import PAGE, Row, walk_names
from dfc.target.local import Local

NOTED_AT_ONCE: Final = NOTED_ROWS  # notes, about
REPORT_S: Final = 1.0  # between two reports of the same slices, since the coordinator may have dropped one


class _Needed(NamedTuple):
    """For what notes have to be made: buckets that get more copies, and slices that are copied, with the layouts that they go
    to. `others`: what may make it necessary once more, since another disk decides then, or a disk has lost its notes."""

    raised: frozenset[str]
    copying: frozenset[tuple[int, int]]
    others: tuple[object, ...]

    @classmethod
    def by(cls, placement: Placement) -> _Needed:
        """Made once for each placement: all disks ask again and again."""
        found: _Needed | None = placement.__dict__.get("needed")
        if found is None:
            found = placement.__dict__["needed"] = cls._by(placement)
        return found

    @classmethod
    def _by(cls, placement: Placement) -> _Needed:
        raised = frozenset(each for each, copies in placement.copies.items() if copies.reading < copies.written)
        states = enumerate(placement.slices) if placement.is_moving else ()
        copying = frozenset((number, state.to) for number, state in states if state.to is not None and state.phase == "copying")
        if not raised and not copying:
            return cls(raised, copying, ())
        disks = tuple(sorted((each.id, each.status, each.behind, each.incarnation) for each in placement.disks.values()))
        gone = tuple(sorted((number, spec.gone) for number, spec in placement.layouts.items()))
        return cls(raised, copying, (disks, gone, placement.step if raised else 0))

    def is_covered_by(self, done: _Needed | None) -> bool:
        """Whether notes made for that are enough."""
        if not self.raised and not self.copying:
            return True
        return done is not None and self.copying <= done.copying and (self.raised, self.others) == (done.raised, done.others)


class HomesToCome:
    """The part of one disk in what is made or moved."""

    def __init__(self, local: Local, ledger: Ledger, disk: Disk) -> None:
        self._local = local
        self._ledger = ledger
        self._disk = disk
        self._threads = local.threads(disk)
        self._planned: _Needed | None = None  # for what notes were made
        self._reported: dict[tuple[SliceReadiness, int], list[int]] = {}  # the slices, as they were reported last
        self._reported_s = -math.inf  # when that was

    async def plan(self) -> None:
        """Note what homes of a bucket that gets more copies lack, and homes to come of slices that are copied."""
        placement = self._ledger.placement
        needed = _Needed.by(placement)
        if needed.is_covered_by(self._planned):
            return
        if (needed.raised or needed.copying) and not await self._note_what_is_needed(placement, needed):
            return
        self._planned = needed

    @property
    def is_planned(self) -> bool:
        """Whether notes were made for all that is needed by the map in use."""
        return _Needed.by(self._ledger.placement).is_covered_by(self._planned)

    async def _note_what_is_needed(self, placement: Placement, needed: _Needed) -> bool:
        """Walk over all rows; False if objects move to yet another layout before the end. What was noted by then is not in the
        way."""
        # What was decided by an older map, with one copy, is committed before the walk begins.
        await self._local.until_old_commits_are_done(self._disk)
        if self._ledger.placement.step != placement.step:
            raise Unavailable("the cluster map has changed")
        # What was stored with one copy is not counted among what a power loss may cost while other disks have it.
        await self._threads.go_on(self._disk.sync_relaxed)
        # Without a sync: whoever is started anew makes all of them anew, and reports nothing before.
        note = partial(self._disk.copies.owe, durable=False)
        waiting: list[Row] = []
        async for notes in walk_names(self._threads, self._disk, partial(self._notes_of, placement, needed)):
            waiting += notes
            if len(waiting) >= NOTED_AT_ONCE:
                await self._threads.go_on(note, waiting)
                waiting = []
            if max(self._ledger.placement.layouts) != max(placement.layouts):
                return False
        if waiting:
            await self._threads.go_on(note, waiting)
        return True

    def _notes_of(self, placement: Placement, needed: _Needed, page: list[tuple[str, str]]) -> list[Row]:
        """Notes for the homes to come of those of the names of which this disk is the primary. In a thread."""
        notes: list[Row] = []
        for bucket_id, rows in groupby(page, itemgetter(0)):
            if bucket_id not in needed.raised:
                # There may be a million of these, so no roles are worked out: nobody but homes to come lacks anything.
                moving = homes_to_come(placement, self._disk.id, bucket_id, (name for _, name in rows))
                notes += [(later(each), bucket_id, name) for each, _, name in moving]
                continue
            for _, name in rows:
                found = roles_once(placement, bucket_id, name)
                if found.primary == self._disk.id:
                    lacking = owed.owes_when_planned(placement, found, bucket_id)
                    notes += [(noted_for(found, each), bucket_id, name) for each in lacking]
        return notes

    async def report_raised(self) -> float:
        """Report buckets whose new homes have everything that this disk has."""
        placement = self._ledger.placement
        raising = [(each, copies) for each, copies in placement.copies.items() if copies.reading < copies.wanted]
        if not raising or not self._ledger.settling.is_done or await self._owes_any():
            return 0.0
        # Writes that begin from now on leave a note before they are certain, or have reached the new homes.
        if not await self._ledger.until_over(self._disk.id) or await self._owes_any():
            return 0.0
        for bucket_id, copies in raising:
            if self._ledger.placement.step == placement.step and self.is_planned:
                report = RaisedReport(disk=self._disk.id, bucket_id=bucket_id, copies=copies.written, step=placement.step)
                await self._local.ask_registry("POST", "/v1/node/reports/raised", dict, report)
        return 0.0

    async def report_ready(self) -> float:
        """Report slices whose homes to come have everything that this disk has: at once if there are others than at the last
        time, since a step waits for that."""
        placement = self._ledger.placement
        if not placement.is_moving or not self._ledger.settling.is_done or not await self._ready(placement):
            return 0.0
        # Writes that begin from now on leave a note before they are certain, or have reached the homes to come.
        if not await self._ledger.until_over(self._disk.id):
            return 0.0
        ready = await self._ready(placement)
        if ready == self._reported and time.monotonic() < self._reported_s + REPORT_S:
            return 0.0
        for (readiness, to), slices in ready.items():
            if self._ledger.placement is placement and self.is_planned:
                report = SlicesReport(disk=self._disk.id, slices=slices, readiness=readiness, to=to, step=placement.step)
                await self._local.ask_registry("POST", "/v1/node/reports/ready", dict, report)
        self._reported, self._reported_s = ready, time.monotonic()
        return 0.0 if owed.is_handing_over(placement) else REPORT_S

    async def _ready(self, placement: Placement) -> dict[tuple[SliceReadiness, int], list[int]]:
        """The slices for which this disk has nothing to do, by what that makes them ready for."""
        waiting = {
            number: state
            for number, state in enumerate(placement.slices)
            if state.to is not None and state.phase != "moved" and self._disk.id in placement.layouts[state.at].disks
        }
        owing = await self._owing(placement, set(waiting)) if self._disk.copies.has_notes else set()
        found: dict[tuple[SliceReadiness, int], list[int]] = {}
        for number, state in waiting.items():
            if number not in owing and state.to is not None:
                found.setdefault(("copied" if state.phase == "copying" else "moved", state.to), []).append(number)
        return found

    async def _owing(self, placement: Placement, slices: set[int]) -> set[int]:
        """Those of the slices for whose homes to come there are notes. While there are many, that is soon known of all. A disk
        that was given up is a home to come only of objects with one copy."""
        found = set[int]()
        to_come = {number: placement.layouts[placement.slices[number].to or 0] for number in slices}
        disks = frozenset[str]().union(*(spec.disks for spec in to_come.values()))
        for whom in [*disks, *map(later, disks)]:
            disk = owed_disk(whom)
            names, after = await self._threads.read(self._disk.copies.notes, whom, limit=PAGE)
            while names:
                for bucket_id, name in names:
                    spec = to_come.get(placement.slice_of(bucket_id, name))
                    is_one = placement.copies_of(bucket_id).reading == 1
                    if spec is not None and disk in (spec.disks if is_one else spec.disks - spec.gone):
                        found.add(placement.slice_of(bucket_id, name))
                if found == slices or after is None:
                    break
                names, after = await self._threads.read(self._disk.copies.notes, whom, after, PAGE)
        return found

    async def _owes_any(self) -> bool:
        """Anything but what is to move, for which no bucket waits."""
        return any(owed_disk(whom) == whom for whom in await self._threads.read(self._disk.copies.owed))
