"""Walks over all rows of a disk: pending, excess, left from before, to be counted, to be copied to future replicas.

Rows of a disk, read page by page in threads, since there may be many: those that are pending, and all of them."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar

from dfc.errors import DfcError, Unavailable
from dfc.placement.roles import Placement, future_replicas, replicas_of, roles, roles_once
from dfc.registry.messages import ClearedReport, RaisedReport, SliceReadiness, SlicesReport
from dfc.replication import recovery
from dfc.replication.recovery import copies_left, counts, is_calm, is_evicted, is_stale
from dfc.storage.catalog.copyreads import START, Position, RankedRow
from dfc.storage.copies import HINTED_ROWS
from dfc.storage.disk import Disk
from dfc.storage.rows import hinted_disk, later
from dfc.target.copies.ledger import Ledger, PlacementChanged, has_several, hint_key
from dfc.target.copies.messages import CopyKey, NameReply, PendingCopy, state_of
from dfc.target.copies.peers import Peers
from dfc.target.local import TargetState
from dfc.target.threads import CopiesCounted, DiskThreads

PENDING_PAGE: Final = 1000
PAGE: Final = 500  # names that are looked at together
Row = tuple[str, str, str]  # bucket id, name and version; or for a hint: disk, bucket id and name
T = TypeVar("T")


class PendingHere(NamedTuple):
    """A version that is not known to count, and the disk that is the primary of its name."""

    bucket_id: str
    name: str
    version: str
    primary: str | None


def all_pending(disk: Disk, placement: Placement) -> list[PendingHere]:
    """Everything that is pending on a disk. Blocking."""
    found: list[PendingHere] = []
    after: Position | None = START
    while after is not None:
        rows, after = disk.copies.pending(after, PENDING_PAGE)
        found += [PendingHere(*row, roles(placement, row.bucket_id, row.name).primary) for row in rows]
    return found


class PendingRows(NamedTuple):
    """What is pending on a disk: rows of which it is the primary itself, `others` with another primary, and those of them that
    have been `waiting`, by their primaries."""

    own: list[Row]
    others: set[Row]
    waiting: dict[str, list[Row]]


def pending_rows(disk: Disk, placement: Placement, before: Collection[Row]) -> PendingRows:
    """Everything that is pending on a disk; `before`: what was at the last look. Blocking, and long if there are many."""
    found = PendingRows([], set(), {})
    for each in all_pending(disk, placement):
        row: Row = each[:3]
        if each.primary == disk.id:
            found.own.append(row)
        else:
            found.others.add(row)
            if each.primary is not None and row in before:
                found.waiting.setdefault(each.primary, []).append(row)
    return found


def own_pending(disk: Disk, placement: Placement) -> list[Row]:
    """Those of which the disk is the primary itself. Blocking."""
    return [each[:3] for each in all_pending(disk, placement) if each.primary == disk.id]


def told_of(disk: Disk, placement: Placement, node: str, after: Position) -> tuple[list[PendingCopy], Position | None]:
    """The next page of the rows on a disk of which a node hears while it peers: of names whose primary is there. Not those
    whose bytes are damaged, since nobody can have them from here. And the `after` of the page that follows. Blocking."""
    position: Position | None = after
    found: list[PendingCopy] = []
    while position is not None and not found:
        rows, position = disk.copies.pending(position, PENDING_PAGE)
        names = [(row.bucket_id, row.name) for row in rows if _concerns(disk, placement, node, row.bucket_id, row.name)]
        versions = {(row.bucket_id, row.name): row.version for row in rows}
        for name, state in zip(names, disk.copies.states(names), strict=True):
            is_damaged = state is not None and state.row is not None and state.row.quarantined
            if state is not None and state.version == versions[name] and not is_damaged:
                found.append(PendingCopy(CopyKey(disk.id, *name), state_of(state)))
    return found, position


def _concerns(disk: Disk, placement: Placement, node: str, bucket_id: str, name: str) -> bool:
    found = roles(placement, bucket_id, name)
    return found.primary is not None and placement.disks[found.primary].node == node and counts(placement, found, disk.id)


async def walk(threads: DiskThreads, disk: Disk, choose: Callable[[list[Row]], T]) -> AsyncIterator[T]:
    """What `choose` makes of each page of all objects and tombstones on a disk. It runs in a thread, as the roles of so many
    names would hold up the event loop."""
    for read in (disk.copies.rows, disk.copies.tombstones):
        async for chosen in _pages(threads, read, lambda page: choose([(row[0], row[1], row[2]) for row in page])):
            yield chosen


async def walk_names(threads: DiskThreads, disk: Disk, choose: Callable[[list[tuple[str, str]]], T]) -> AsyncIterator[T]:
    """The same of their bucket ids and names alone."""
    for read in (disk.copies.object_names, disk.copies.tombstone_names):
        async for chosen in _pages(threads, read, choose):
            yield chosen


async def walk_ranked(threads: DiskThreads, disk: Disk, choose: Callable[[list[RankedRow]], T]) -> AsyncIterator[T]:
    """The same of all objects, with their ranks."""
    async for chosen in _pages(threads, disk.copies.rows, choose):
        yield chosen


async def _pages(
    threads: DiskThreads, read: Callable[..., tuple[list[Any], Position | None]], choose: Callable[[list[Any]], T]
) -> AsyncIterator[T]:
    def page(after: Position) -> tuple[T, Position | None]:
        rows, then = read(after, limit=PAGE)
        return choose(rows), then

    after: Position | None = START
    while after is not None:
        chosen, after = await threads.read(page, after)
        yield chosen


def chunks(items: Sequence[T], size: int = PAGE) -> Iterator[Sequence[T]]:
    """The items, at most so many at a time."""
    for at in range(0, len(items), size):
        yield items[at : at + size]


# --- Excess rows of a disk: it is no replica of those objects, and all their replicas have them. Rules:
# `dfc.replication.recovery`.

EXCESS_AGAIN_S: Final = 5.0  # after a pass that has left some: each walks over all rows of the disk
EXCESS_AGAIN_S_MAX: Final = 300.0  # after many that have removed nothing: the pause doubles
EXCESS_PAUSE_SHARE: Final = 3.0  # between two pages: so many times as long as the page took


class _Found(NamedTuple):
    """Rows of a page, and whether others are pending that are excess but for that."""

    rows: list[Row]
    some_pending: bool


class ExcessRows:
    """Removes them from one disk."""

    def __init__(self, local: TargetState, ledger: Ledger, peers: Peers, disk: Disk) -> None:
        self._ledger = ledger
        self._peers = peers
        self._disk = disk
        self._threads = local.threads(disk)
        self._cleaned = -1  # the step for which nothing is left
        self._tried = -1  # the step of the last pass
        self._next_s = 0.0  # no pass of the same step begins before this, by the loop's clock
        self._again_s = EXCESS_AGAIN_S

    async def remove(self, placement: Placement, is_wanted_elsewhere: Callable[[], Awaitable[bool]]) -> bool:
        """Make a pass, unless one is not due or the disk has something more urgent to do; whether it has left nothing to be
        looked at again in this step."""
        now_s = asyncio.get_running_loop().time()
        if self._cleaned == placement.step or (self._tried == placement.step and now_s < self._next_s):
            return False
        if await is_wanted_elsewhere():
            return False
        if self._tried != placement.step:
            self._again_s = EXCESS_AGAIN_S
        self._tried, self._next_s = placement.step, now_s + self._again_s
        is_done, removed, begun_s = True, 0, time.monotonic()
        async for found in walk(self._threads, self._disk, partial(self._choose, placement)):
            is_done = is_done and not found.some_pending  # those will be confirmed or undone soon
            for some in chunks(found.rows):
                try:
                    gone = await self._remove(placement, some)
                except PlacementChanged:
                    return False  # what is excess now, the next pass finds
                is_done, removed = is_done and gone == len(some), removed + gone
            if self._ledger.placement is not placement or await is_wanted_elsewhere():
                return False
            await asyncio.sleep(EXCESS_PAUSE_SHARE * (time.monotonic() - begun_s))
            begun_s = time.monotonic()
        self._again_s = EXCESS_AGAIN_S if removed else min(2 * self._again_s, EXCESS_AGAIN_S_MAX)
        self._next_s = asyncio.get_running_loop().time() + self._again_s
        if is_done:
            self._cleaned = placement.step
        return is_done

    def _choose(self, placement: Placement, page: list[Row]) -> _Found:
        """The excess rows of a page. In a thread of the disk."""
        # Roles are worked out only where the replicas leave it open.
        complete = {disk.id for disk in placement.disks.values() if disk.is_in_sync}
        replicas = [(row, replicas_of(placement, row[0], row[1])) for row in page]
        excess = [
            row
            for row, found in replicas
            if self._disk.id not in found
            and complete.issuperset(found)
            and recovery.is_excess(
                placement, roles_once(placement, row[0], row[1]), self._disk.id, pending=False, is_hinted=False
            )
        ]
        rows = [row for row in excess if not self._disk.copies.is_pending(row[0], row[1])]
        return _Found(rows, len(rows) < len(excess))

    async def _remove(self, placement: Placement, rows: Sequence[Row]) -> int:
        """Remove those of the rows that all replicas have; how many that were."""
        by_replica: dict[str, list[Row]] = {}
        for row in rows:
            for replica in replicas_of(placement, row[0], row[1]):
                by_replica.setdefault(replica, []).append(row)
        answers: dict[Row, list[bool | None]] = {row: [] for row in rows}
        for replica, asked in by_replica.items():
            reply = await self._peers.states(replica, [CopyKey(replica, bucket_id, name) for bucket_id, name, _ in asked])
            for at, row in enumerate(asked):
                answers[row].append(None if reply is None else _holds(reply[at], row[2]))
        gone = [row for row, told_of in answers.items() if recovery.may_remove(told_of)]
        if gone:
            guard = partial(self._ledger.require, placement)
            await self._threads.go_on(partial(self._disk.copies.remove_excess, gone, guard=guard))
        return len(gone)


def _holds(reply: NameReply, version: str) -> bool | None:
    """Whether a disk has this version or a newer one, for certain, and can give its bytes."""
    if not reply.is_known:
        return None
    return (
        reply.is_replicated
        and not reply.is_damaged
        and reply.state is not None
        and recovery.has_arrived(reply.state.version, version)
    )


# --- Rows of a disk that was evicted and is back: all that do not belong there are dropped. Rules: `dfc.replication.recovery`.

STALE_AGAIN_S: Final = 2.0  # after a pass
STALE_PAUSE_SHARE: Final = 1.0  # between two pages: so many times as long as the page took


class StaleRows:
    """Drops them from one disk, and says so when none is left."""

    def __init__(self, local: TargetState, ledger: Ledger, peers: Peers, disk: Disk) -> None:
        self._local = local
        self._ledger = ledger
        self._peers = peers
        self._disk = disk
        self._threads = local.threads(disk)

    def is_due(self, placement: Placement) -> bool:
        """Whether the disk was evicted, is back, and lacks nothing any more of what belongs there."""
        place = placement.disks.get(self._disk.id)
        return place is not None and place.is_up and not place.out_of_sync_with and is_evicted(placement, self._disk.id)

    async def drop(self) -> float:
        """Make a pass over all rows; returns in how many seconds to make another one."""
        placement, left, begun_s = self._ledger.placement, 0, time.monotonic()
        if not self.is_due(placement):
            return 0.0
        async for rows in walk(self._threads, self._disk, partial(self._choose, placement)):
            for some in chunks(rows):
                left += len(some) - await self._drop(placement, some)
            if self._ledger.placement.step != placement.step:
                return 0.0  # a map of the same step only adds buckets and disks that nobody has used yet
            await asyncio.sleep(STALE_PAUSE_SHARE * (time.monotonic() - begun_s))
            begun_s = time.monotonic()
        if not left:
            report = ClearedReport(disk=self._disk.id, step=placement.step)
            await self._local.ask_registry("POST", "/v1/node/reports/cleared", dict, report)
        return STALE_AGAIN_S

    def _choose(self, placement: Placement, page: list[Row]) -> list[Row]:
        """The rows of a page that do not belong here. In a thread of the disk."""
        away = [row for row in page if self._disk.id not in replicas_of(placement, row[0], row[1])]
        return [row for row in away if self._disk.id not in roles_once(placement, row[0], row[1]).everywhere]

    async def _drop(self, placement: Placement, rows: Sequence[Row]) -> int:
        """Drop those of the rows about which their primaries have answered; how many that were."""
        by_primary: dict[str, list[Row]] = {}
        for row in rows:
            found = roles_once(placement, row[0], row[1])
            if found.primary is not None and is_stale(placement, found, self._disk.id):
                by_primary.setdefault(found.primary, []).append(row)
        gone = list[Row]()
        for primary, asked in by_primary.items():
            reply = await self._peers.states(primary, [CopyKey(primary, bucket_id, name) for bucket_id, name, _ in asked])
            gone += [row for row, each in zip(asked, reply or (), strict=False) if each.decides]
        if not gone:
            return 0
        guard = partial(self._require, placement.step)
        return await self._threads.go_on(partial(self._disk.copies.remove_excess, gone, guard=guard))

    def _require(self, step: int) -> None:
        if self._ledger.placement.step != step:
            raise PlacementChanged("the cluster map has changed")


# --- Counts the objects that lack copies, for heartbeats: one task for each disk, which counts those of which it is the
# primary.
#
# While all disks are up and complete there is nothing to count. Else the catalog is walked, in the threads of its disk and with
# long pauses: after each step, and again from time to time, since writes and deletes change the numbers.

_log: Final = logging.getLogger("dfc.target")
LOOK_S: Final = 0.5
COUNTING_PAUSE_SHARE: Final = 3.0  # between two pages: so many times as long as the page took
RECOUNT_S: Final = 15.0
RECOUNT_SHARE: Final = 10.0  # before it is counted again: so many times as long as counting took
RETRY_S: Final = 5.0


class CopyCounter:
    """The counting of one disk; the result is in `TargetState.counted`."""

    def __init__(self, local: TargetState, ledger: Ledger, disk: Disk) -> None:
        self._local = local
        self._ledger = ledger
        self._disk = disk
        self._threads = local.threads(disk)
        self._again_s = 0.0

    async def run(self) -> None:
        """Count until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except DfcError as error:
                _log.info("cannot count the copies on disk %s: %s", self._disk.id, error.message)
                await asyncio.sleep(RETRY_S)
            except Exception:
                _log.exception("cannot count the copies on disk %s; trying again", self._disk.id)
                await asyncio.sleep(RETRY_S)

    async def look(self) -> None:
        """Count if that is due."""
        placement, last = self._ledger.placement, self._local.counted.get(self._disk.id)
        is_new = last is None or last.step != placement.step
        if not placement.disks or not (is_new or time.monotonic() >= self._again_s):
            return
        begun_s = time.monotonic()
        is_needed = has_several(placement) and not is_calm(placement)
        found = await self._walk(placement) if is_needed else (0, 0)
        if found is None:
            return
        hints = await self._threads.read(self._disk.copies.hint_counts)
        self._local.counted[self._disk.id] = CopiesCounted(placement.step, *found, hints)
        ended_s = time.monotonic()
        self._again_s = ended_s + max(RECOUNT_S, RECOUNT_SHARE * (ended_s - begun_s))

    async def _walk(self, placement: Placement) -> tuple[int, int] | None:
        """Return how many objects have one copy left, and how many lack one. None: there is a newer step."""
        one_left, missing, begun_s = 0, 0, time.monotonic()
        async for ones, fewer in walk_ranked(self._threads, self._disk, partial(self._count_page, placement)):
            one_left, missing = one_left + ones, missing + fewer
            if self._ledger.placement.step != placement.step:
                return None
            await asyncio.sleep(COUNTING_PAUSE_SHARE * (time.monotonic() - begun_s))
            begun_s = time.monotonic()
        return one_left, missing

    def _count_page(self, placement: Placement, page: list[RankedRow]) -> tuple[int, int]:
        """Count those of one page. In a thread of the disk."""
        copies, one_left, missing = self._disk.copies, 0, 0
        complete = {disk.id for disk in placement.disks.values() if disk.is_in_sync}
        for row in page:
            wanted = placement.copies_of(row.bucket_id).reading
            if wanted < 2 or complete.issuperset(replicas_of(placement, row.bucket_id, row.name)):
                continue
            found = roles_once(placement, row.bucket_id, row.name)
            if found.primary != self._disk.id:
                continue
            left = copies_left(placement, found, self._disk.id, copies.hinted_disks(row.bucket_id, row.name), wanted)
            one_left += left == 1
            missing += left < wanted
        return one_left, missing


# --- What future replicas lack, of buckets that get more copies and of slices that move: hints, and reports when it is done.

HINTS_AT_ONCE: Final = HINTED_ROWS  # hints, about
REPORT_S: Final = 1.0  # between two reports of the same slices, since the coordinator may have dropped one


class _Needed(NamedTuple):
    """What needs hints: buckets that get more copies, and slices that are copied, with the layouts that they go
    to. `others`: what may make it necessary once more, since another disk decides then, or a disk has lost its hints."""

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
        disks = tuple(
            sorted((each.id, each.status, each.out_of_sync_with, each.incarnation) for each in placement.disks.values())
        )
        gone = tuple(sorted((number, spec.gone) for number, spec in placement.layouts.items()))
        return cls(raised, copying, (disks, gone, placement.step if raised else 0))

    def is_covered_by(self, done: _Needed | None) -> bool:
        """Whether hints made for that are enough."""
        if not self.raised and not self.copying:
            return True
        return done is not None and self.copying <= done.copying and (self.raised, self.others) == (done.raised, done.others)


class FutureReplicas:
    """The part of one disk in what is made or moved."""

    def __init__(self, local: TargetState, ledger: Ledger, disk: Disk) -> None:
        self._local = local
        self._ledger = ledger
        self._disk = disk
        self._threads = local.threads(disk)
        self._planned: _Needed | None = None  # what hints were made for
        self._reported: dict[tuple[SliceReadiness, int], list[int]] = {}  # the slices, as they were reported last
        self._reported_s = -math.inf  # when that was

    async def plan(self) -> None:
        """Note what replicas of a bucket that gets more copies lack, and future replicas of slices that are copied."""
        placement = self._ledger.placement
        needed = _Needed.by(placement)
        if needed.is_covered_by(self._planned):
            return
        if (needed.raised or needed.copying) and not await self._hint_what_is_needed(placement, needed):
            return
        self._planned = needed

    @property
    def is_planned(self) -> bool:
        """Whether hints were made for all that needs them by the map in use."""
        return _Needed.by(self._ledger.placement).is_covered_by(self._planned)

    async def _hint_what_is_needed(self, placement: Placement, needed: _Needed) -> bool:
        """Walk over all rows; False if objects move to yet another layout before the end. The hints made by then are not in the
        way."""
        # What was decided by an older map, with one copy, is committed before the walk begins.
        await self._local.until_old_commits_are_done(self._disk)
        if self._ledger.placement.step != placement.step:
            raise Unavailable("the cluster map has changed")
        # What was stored with one copy is not counted among what a power loss may cost while other disks have it.
        await self._threads.go_on(self._disk.sync_relaxed)
        # Without a sync: whoever is started anew makes all of them anew, and reports nothing before.
        hint = partial(self._disk.copies.add_hints, durable=False)
        waiting: list[Row] = []
        async for hints in walk_names(self._threads, self._disk, partial(self._hints_of, placement, needed)):
            waiting += hints
            if len(waiting) >= HINTS_AT_ONCE:
                await self._threads.go_on(hint, waiting)
                waiting = []
            if max(self._ledger.placement.layouts) != max(placement.layouts):
                return False
        if waiting:
            await self._threads.go_on(hint, waiting)
        return True

    def _hints_of(self, placement: Placement, needed: _Needed, page: list[tuple[str, str]]) -> list[Row]:
        """Notes for the future replicas of those of the names of which this disk is the primary. In a thread."""
        hints: list[Row] = []
        for bucket_id, rows in groupby(page, itemgetter(0)):
            if bucket_id not in needed.raised:
                # There may be a million of these, so no roles are worked out: nobody but future replicas lacks anything.
                moving = future_replicas(placement, self._disk.id, bucket_id, (name for _, name in rows))
                hints += [(later(each), bucket_id, name) for each, _, name in moving]
                continue
            for _, name in rows:
                found = roles_once(placement, bucket_id, name)
                if found.primary == self._disk.id:
                    missing = recovery.hints_when_planned(placement, found, bucket_id)
                    hints += [(hint_key(found, each), bucket_id, name) for each in missing]
        return hints

    async def report_raised(self) -> float:
        """Report buckets whose new replicas have everything that this disk has."""
        placement = self._ledger.placement
        raising = [(each, copies) for each, copies in placement.copies.items() if copies.reading < copies.wanted]
        if not raising or not self._ledger.peering.is_done or await self._has_urgent_hints():
            return 0.0
        # Writes that begin from now on leave a hint before they are replicated, or have reached the new replicas.
        if not await self._ledger.until_over(self._disk.id) or await self._has_urgent_hints():
            return 0.0
        for bucket_id, copies in raising:
            if self._ledger.placement.step == placement.step and self.is_planned:
                report = RaisedReport(disk=self._disk.id, bucket_id=bucket_id, copies=copies.written, step=placement.step)
                await self._local.ask_registry("POST", "/v1/node/reports/raised", dict, report)
        return 0.0

    async def report_ready(self) -> float:
        """Report slices whose future replicas have everything that this disk has: at once if there are others than at the last
        time, since a step waits for that."""
        placement = self._ledger.placement
        if not placement.is_moving or not self._ledger.peering.is_done or not await self._ready(placement):
            return 0.0
        # Writes that begin from now on leave a hint before they are replicated, or have reached the future replicas.
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
        return 0.0 if recovery.is_handing_over(placement) else REPORT_S

    async def _ready(self, placement: Placement) -> dict[tuple[SliceReadiness, int], list[int]]:
        """The slices for which this disk has nothing to do, by what that makes them ready for."""
        waiting = {
            number: state
            for number, state in enumerate(placement.slices)
            if state.to is not None and state.phase != "moved" and self._disk.id in placement.layouts[state.at].disks
        }
        hinted = await self._hinted_slices(placement, set(waiting)) if self._disk.copies.has_hints else set()
        found: dict[tuple[SliceReadiness, int], list[int]] = {}
        for number, state in waiting.items():
            if number not in hinted and state.to is not None:
                found.setdefault(("copied" if state.phase == "copying" else "moved", state.to), []).append(number)
        return found

    async def _hinted_slices(self, placement: Placement, slices: set[int]) -> set[int]:
        """Those of the slices for whose future replicas there are hints. While there are many, that is soon known of all. A
        disk that was evicted is a future replica only of objects with one copy."""
        found = set[int]()
        to_come = {number: placement.layouts[placement.slices[number].to or 0] for number in slices}
        disks = frozenset[str]().union(*(spec.disks for spec in to_come.values()))
        for whom in [*disks, *map(later, disks)]:
            disk = hinted_disk(whom)
            after: Position | None = START
            while after is not None and found != slices:
                names, after = await self._threads.read(self._disk.copies.hints, whom, after, PAGE)
                for bucket_id, name in names:
                    spec = to_come.get(placement.slice_of(bucket_id, name))
                    is_one = placement.copies_of(bucket_id).reading == 1
                    if spec is not None and disk in (spec.disks if is_one else spec.disks - spec.gone):
                        found.add(placement.slice_of(bucket_id, name))
        return found

    async def _has_urgent_hints(self) -> bool:
        """Anything but what is to move, for which no bucket waits."""
        return any(hinted_disk(whom) == whom for whom in await self._threads.read(self._disk.copies.hinted))
