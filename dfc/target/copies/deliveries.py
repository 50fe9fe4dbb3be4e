"""What other disks lack of one disk, on its way to them, and how fast it may go."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import partial
from typing import Final, NamedTuple

from dfc.clock import version_us
from dfc.limits import MOVE_BYTES_PER_S
from dfc.placement.map import ClusterMap
from dfc.placement.mapped import is_paused, placement_of
from dfc.placement.roles import Placement, Roles
from dfc.replication import recovery
from dfc.replication.recovery import Delivery, are_roles_changing, is_evicted, is_restoring, keeps_out_of_sync
from dfc.storage.catalog.copyreads import START, Position
from dfc.storage.disk import Disk
from dfc.storage.rows import NameState, hinted_disk
from dfc.target.copies.ledger import Ledger, PlacementChanged
from dfc.target.copies.messages import CopyKey, Kind, NameReply
from dfc.target.copies.objects import Repairer
from dfc.target.copies.peers import Peers
from dfc.target.copies.walks import PAGE
from dfc.target.copies.writes import Writes
from dfc.target.local import TargetState

# --- How fast one disk sends objects that move to other disks, and whether: as the cluster map says.

TURN_S: Final = 1.0  # so much is begun at a time
LOOK_S: Final = 1.0  # between two looks whether the limit is another one by now
SOON_S: Final = 0.01  # until whoever has the next turn has taken it
LATE_S: Final = 2.0  # after which the next one has it
URGENT: Final = 4  # times the limit for copies that were lost, and never less than the limit that there is at first


class MovePace:
    """The limit of one disk. All that has been begun is counted, so that the average is kept; never cuts an object in two.
    Urgent objects are counted for themselves. Those who wait have their turns one after the other."""

    def __init__(self, rate_bytes_per_s: Callable[[], int], now_s: Callable[[], float] = time.monotonic) -> None:
        """`rate_bytes_per_s`: the limit at the moment; 0: none."""
        self._rate = rate_bytes_per_s
        self._now_s = now_s
        self._counted_by = 0  # the limit by which it is known when the disk is free
        self._free_s = {True: 0.0, False: 0.0}  # by whether it is urgent
        self._waiting: dict[bool, dict[str, float]] = {True: {}, False: {}}  # who, in the order of their turns: last asked

    def begin(self, whom: str, sizes: Sequence[int], *, is_urgent: bool) -> int:
        """Say how many of the objects with these sizes, in this order, may be sent to `whom` now, and count them; at least one
        unless none may."""
        rate = self._limit()
        if not rate or not sizes:
            return len(sizes)
        rate = max(URGENT * rate, MOVE_BYTES_PER_S) if is_urgent else rate
        now, waiting = self._now_s(), self._waiting[is_urgent]
        if self._free_s[is_urgent] > now or self._next(waiting, whom, now) != whom:
            waiting[whom] = now
            return 0
        waiting.pop(whom, None)
        count = total = 0
        for size in sizes:
            if count and total + size > TURN_S * rate:
                waiting[whom] = now
                break
            count, total = count + 1, total + size
        self._free_s[is_urgent] = now + total / rate
        return count

    @staticmethod
    def _next(waiting: dict[str, float], whom: str, now: float) -> str:
        """Whose turn it is. One that has not asked for a while has nothing to send any more, or waits for an answer."""
        for each, asked_s in list(waiting.items()):
            if each == whom or now - asked_s <= LATE_S:
                return each
            del waiting[each]
        return whom

    def is_busy(self, whom: str, *, urgent: bool) -> bool:
        """Whether nothing of this kind may be sent to `whom` now."""
        now = self._now_s()
        is_next = self._next(self._waiting[urgent], whom, now) == whom
        return bool(self._limit()) and (self._free_s[urgent] > now or not is_next)

    def wait(self, whom: str, *, urgent: bool) -> None:
        """Have a turn after those who wait already."""
        self._waiting[urgent][whom] = self._now_s()

    async def until_free(self, *, urgent: bool) -> None:
        """Wait until more of what is urgent, or of the rest, may be sent, or a while."""
        if self._limit():
            await asyncio.sleep(min(LOOK_S, max(SOON_S, self._free_s[urgent] - self._now_s())))

    def _limit(self) -> int:
        rate = self._rate()
        if rate != self._counted_by:
            self._counted_by, self._free_s = rate, {True: 0.0, False: 0.0}
        return rate


def rests(cluster_map: ClusterMap, whom: str) -> bool:
    """Whether hints for `whom` are not delivered now, since moves are paused."""
    placement = placement_of(cluster_map)
    place = placement.disks.get(hinted_disk(whom))
    if whom == hinted_disk(whom) or not placement.is_moving or not is_paused(cluster_map):
        return False
    return place is None or not _is_awaited(placement, place.id)


def is_limited(placement: Placement, found: Roles, disk: str) -> bool:
    """Whether a row that a disk lacks can wait: the object moves there, and the disk is not read for want of it."""
    return not keeps_out_of_sync(found, disk) and not _is_awaited(placement, disk)


class Urgency(IntEnum):
    """Why an object moves: the more urgent, the larger."""

    MOVES = 0
    COPY_LOST = 1  # with a disk that was evicted
    ONE_LEFT = 2  # of several copies: the next failure may cost the object


def urgency(placement: Placement, found: Roles) -> Urgency:
    """How urgent it is that an object gets to its future replicas."""
    lost = sum(is_evicted(placement, each) for each in found.replicas)
    if not lost:
        return Urgency.MOVES
    return Urgency.COPY_LOST if len(found.replicas) - lost > 1 else Urgency.ONE_LEFT


def _is_awaited(placement: Placement, disk: str) -> bool:
    """Whether a disk is out of sync until all hints for it are delivered."""
    return bool(placement.disks[disk].out_of_sync_with) and are_roles_changing(placement)


# --- What other disks lack of one disk's rows, on its way to them, by the hints on this disk.

AGAIN_S: Final = 2.0  # until a disk that has not answered is asked again
SENT_FIRST: Final = 16  # hints that are seen to before it is known whether a disk answers
SENT_AT_ONCE: Final = 64  # and afterwards
LEFT_MAX: Final = PAGE  # names that are remembered, the first ones: for each disk that lacks any
DELIVERED_AT_ONCE: Final = 256  # rows on their way to all disks


class _HintedRow(NamedTuple):
    """A name here, and what is here of it. `version` None: nothing."""

    key: CopyKey
    state: NameState | None

    @property
    def version(self) -> str | None:
        return None if self.state is None else self.state.version

    @property
    def size(self) -> int:
        return 0 if self.state is None or self.state.row is None else self.state.row.size

    @property
    def written_us(self) -> int:
        return 0 if self.state is None else version_us(self.state.version)


class _Batch:
    """Some names. `limited`: those of the rows that move, with how urgent they are; `put_off`: the names of those that may not
    be sent yet, likewise. `least`: what is less urgent than that is not sent."""

    def __init__(self, least: Urgency = Urgency.MOVES) -> None:
        self.least = least
        self.limited: dict[CopyKey, Urgency] = {}
        self.put_off: list[tuple[tuple[str, str], Urgency]] = []


class _Waiting:
    """The names of one pass that may not be sent yet, the first ones of each urgency. `top`: no name is more urgent."""

    def __init__(self, top: Urgency) -> None:
        self.top, self.met = top, Urgency.MOVES
        self._names: dict[Urgency, list[tuple[str, str]]] = {each: [] for each in Urgency}

    def add(self, put_off: Iterable[tuple[tuple[str, str], Urgency]]) -> None:
        for name, how in put_off:
            self.met = max(self.met, how)
            if how >= self.top or len(self._names[how]) < LEFT_MAX:
                self._names[how].append(name)

    @property
    def is_full(self) -> bool:
        """Whether to read no more names. Less urgent ones do not count: they do not keep the others waiting, and have their
        time after that."""
        return sum(len(names) for how, names in self._names.items() if how >= self.top) >= LEFT_MAX

    @property
    def first(self) -> Urgency:
        """How urgent the most urgent ones are."""
        return max((how for how, names in self._names.items() if names), default=Urgency.MOVES)

    def take(self) -> list[tuple[str, str]]:
        """Some of the most urgent ones."""
        names = self._names[self.first]
        some, names[:] = names[:SENT_AT_ONCE], names[SENT_AT_ONCE:]
        return some


class Deliveries:
    """The deliveries of one disk."""

    def __init__(
        self, local: TargetState, ledger: Ledger, peers: Peers, writes: Writes, repairer: Repairer, disk: Disk
    ) -> None:
        self._local = local
        self._ledger = ledger
        self._peers = peers
        self._writes = writes
        self._disk = disk
        self._threads = local.threads(disk)
        self._repairer = repairer
        self._slots = asyncio.Semaphore(DELIVERED_AT_ONCE)
        self._layout, self._since_us = 0, 0
        self._pace = MovePace(lambda: local.map.rebalance.rate_bytes_per_s)
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tops: dict[str, tuple[int, Urgency]] = {}  # by disk: the newest layout, and how urgent names were then
        self._left: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)  # by disk: names whose hints stayed last time

    async def deliver(self, whom: str) -> float:
        """Deliver the hints for a disk, or for it `later`, until it answers nothing any more; returns in how many seconds
        to begin again. Whoever comes while that is done already waits for its turn."""
        async with self._turns[whom]:
            return await self._deliver_all(whom)

    def has_just_tried(self, whom: str, names: Iterable[tuple[str, str]]) -> bool:
        """Whether hints about any of these names have stayed when they were seen to last: somebody else has to do something
        first."""
        return not self._left[whom].isdisjoint(names)

    async def _deliver_all(self, whom: str) -> float:
        self._left[whom].clear()
        to, names, count = hinted_disk(whom), list[tuple[str, str]](), SENT_FIRST
        after: Position | None = START
        layouts = self._ledger.placement.layouts.keys()
        waiting = _Waiting(self._top(whom, max(layouts)))
        while not rests(self._local.map, whom):
            if self._ledger.placement.layouts.keys() != layouts:
                return 0.0  # other objects move now, and what is urgent may be another matter
            if not names and after is not None and not waiting.is_full:
                names, after = await self._threads.read(self._disk.copies.hints, whom, after, PAGE)
            elif not names:
                urgent, names = bool(waiting.first), waiting.take()
                await self._pace.until_free(urgent=urgent)
            if not names and after is None:
                self._tops[whom] = (max(layouts), waiting.met)
                return 0.0
            some, names = names[:count], names[count:]
            before = self._peers.reached.of(to)
            if len(self._left[whom]) < LEFT_MAX:
                self._left[whom].update(some)
            waiting.add((await self._deliver(whom, some, waiting.first)).put_off)
            if self._peers.reached.of(to).is_silent_since(before):
                break
            count = SENT_AT_ONCE
        return AGAIN_S

    def _top(self, whom: str, newest: int) -> Urgency:
        """How urgent names for a disk may be: as at the last pass, if the newest layout is the same. Copies that were lost are
        made anew before anything else moves, those of which one is left first."""
        if not is_restoring(self._ledger.placement):
            return Urgency.MOVES
        layout, met = self._tops.get(whom, (0, Urgency.ONE_LEFT))
        return met if layout == newest else Urgency.ONE_LEFT

    async def _deliver(self, whom: str, names: Sequence[tuple[str, str]], least: Urgency = Urgency.MOVES) -> _Batch:
        """See to the hints about some names: what belongs together shares its questions. What moves and is less urgent than
        `least` is put off."""
        batch, to = _Batch(least), hinted_disk(whom)
        if not self._local.is_leased:
            return batch
        keys, placement = [CopyKey(self._disk.id, *name) for name in names], self._ledger.placement
        spoke = {key for key in keys if self._ledger.speaks(key)}
        states = await self._threads.read(self._disk.copies.states, names)
        if self._ledger.placement is not placement or to not in placement.disks:
            return batch
        needless, adopted, asked = list[_HintedRow](), list[_HintedRow](), defaultdict[str | None, list[_HintedRow]](list)
        busy = {urgent: self._pace.is_busy(whom, urgent=urgent) for urgent in (True, False)}
        for each in map(_HintedRow, keys, states):
            found = self._ledger.roles(*each.key[1:])
            delivery = recovery.delivery(placement, found, self._disk.id, to)
            if each.state is None or delivery is Delivery.DROP:
                needless.append(each)
            elif delivery is Delivery.ADOPT:
                # Both before and after it was read: what was read counts.
                if each.key in spoke and self._ledger.speaks(each.key):
                    if whom != to and is_limited(placement, found, to) and each.written_us < self._moving_since_us(placement):
                        batch.limited[each.key] = urgency(placement, found)
                    how = batch.limited.get(each.key)
                    if how is not None and (busy[bool(how)] or 0 < how < least):
                        batch.put_off.append((each.key[1:], how))
                    else:
                        adopted.append(each)
            elif delivery is not Delivery.KEEP:
                asked[found.primary].append(each)
        for urgent in {bool(how) for _, how in batch.put_off}:
            self._pace.wait(whom, urgent=urgent)
        await self._drop_hints(placement, whom, needless)
        await _all(
            self._adopt(placement, whom, adopted, batch),
            *(self._ask(placement, whom, primary, rows) for primary, rows in asked.items()),
        )
        return batch

    def _moving_since_us(self, placement: Placement) -> int:
        """Since when this disk knows of the newest layout. What is written later is not limited: otherwise a move would not end
        while writers are faster."""
        newest = max(placement.layouts)
        if newest != self._layout:
            self._layout, self._since_us = newest, time.time_ns() // 1000
        return self._since_us

    # --- as the primary

    async def _adopt(self, placement: Placement, whom: str, rows: Sequence[_HintedRow], batch: _Batch) -> None:
        """Send rows that count, and drop the hints about those that the disk has now. It may have been there before, and have
        many of them already: no bytes are sent of what it says that it has."""
        if not rows:
            return
        to = hinted_disk(whom)
        reply = await self._replies(to, rows)
        answered = [(row, each) for row, each in zip(rows, reply or (), strict=False) if each.is_known]
        missing = [row for row, each in answered if each.is_damaged or not _has(each, row)]
        sent = self._within_limit(whom, missing, batch)
        outcomes = await asyncio.gather(*(self._give(row, to, "adopt") for row in sent), return_exceptions=True)
        given = {row for row, outcome in zip(sent, outcomes, strict=True) if outcome is True}
        await self._drop_hints(placement, whom, [row for row, _ in answered if row not in missing or row in given])
        _raise_first(outcomes)

    def _within_limit(self, whom: str, rows: Sequence[_HintedRow], batch: _Batch) -> list[_HintedRow]:
        """Those of the rows that may be sent now; the others are put off."""
        sent = [row for row in rows if row.key not in batch.limited]
        for how in sorted(Urgency, reverse=True):
            moving = [row for row in rows if batch.limited.get(row.key) == how]
            count = self._pace.begin(whom, [row.size for row in moving], is_urgent=bool(how))
            sent += moving[:count]
            batch.put_off += [(row.key[1:], how) for row in moving[count:]]
        return sent

    async def _give(self, row: _HintedRow, to: str, kind: Kind) -> bool:
        """Send a row to a disk that lacks it; whether that has it now. Damaged bytes are repaired, for the next look."""
        state = row.state
        assert state is not None
        is_pending = kind == "direct" and self._disk.copies.is_pending(*row.key[1:])
        async with self._slots:
            if await self._writes.give(self._disk, row.key, state, to, kind, is_pending=is_pending, is_missing=kind == "adopt"):
                return True
        if state.row is not None and state.row.quarantined:
            await self._repairer.repair(self._disk, row.key)
        return False

    # --- as another holder

    async def _ask(self, placement: Placement, whom: str, primary: str | None, rows: Sequence[_HintedRow]) -> None:
        """Ask the disk what it has of names with this primary. What it lacks, the primary is told, or (None) it gets directly;
        then it is asked again."""
        to = hinted_disk(whom)
        reply = await self._replies(to, rows)
        answered = [(row, each) for row, each in zip(rows, reply or (), strict=False) if each.is_known]
        await self._drop_hints(placement, whom, [row for row, each in answered if _has(each, row)])
        missing = [row for row, each in answered if not _has(each, row)]
        if primary is None:
            await _all(*(self._give(row, to, "direct") for row in missing))
        elif missing:
            await self._hand_over(placement, whom, primary, missing)

    async def _replies(self, disk: str, rows: Sequence[_HintedRow]) -> list[NameReply] | None:
        return await self._peers.states(disk, [CopyKey(disk, *row.key[1:]) for row in rows])

    async def _hand_over(self, placement: Placement, whom: str, primary: str, rows: Sequence[_HintedRow]) -> None:
        """Tell the primary what the disk lacks, except rows of objects that were deleted so long ago that no tombstone is left
        of them: these go, and the hints about them.

        An acknowledged row, or what came after it, is at the primary. One that is peered and says for certain that it has
        nothing does not lack it; whatever comes here of the name after the question has another version.
        """
        resolved = [row for row in rows if not self._disk.copies.is_pending(*row.key[1:])]
        reply = await self._replies(primary, resolved) if resolved else None
        forgotten = [row for row, each in zip(resolved, reply or (), strict=False) if each.knows_nothing]
        if forgotten:
            await self._drop_hints(placement, whom, forgotten)
            versions = [(*row.key[1:], row.version) for row in forgotten if row.version is not None]
            remove = partial(self._disk.copies.remove_excess, versions, guard=partial(self._ledger.require, placement))
            with suppress(PlacementChanged):
                await self._threads.go_on(remove)
        left = [row for row in rows if row not in forgotten]
        if left:
            await self._peers.hand_over(primary, [CopyKey(hinted_disk(whom), *row.key[1:]) for row in left])

    async def _drop_hints(self, placement: Placement, whom: str, rows: Iterable[_HintedRow]) -> None:
        """Drop hints, unless the name or the placement is another one by now: then there may be a new reason for them."""
        hints = [(whom, *row.key[1:], row.version) for row in rows]
        if hints:
            with suppress(PlacementChanged):
                await self._threads.go_on(self._disk.copies.drop_hints, hints, partial(self._ledger.require, placement))
                self._left[whom].difference_update(hint[1:3] for hint in hints)


def _has(reply: NameReply, row: _HintedRow) -> bool:
    """Whether the hint about a row may go."""
    return recovery.has_arrived(None if reply.state is None else reply.state.version, row.version or "")


async def _all(*work: Awaitable[object]) -> None:
    """Wait for all of them, then raise the first error, if there is one."""
    _raise_first(await asyncio.gather(*work, return_exceptions=True))


def _raise_first(outcomes: Iterable[object]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
