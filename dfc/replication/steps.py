"""The coordinator: which placement comes next, and when it may be published.

Two steps that are not neighbours are never in force at the same time: step n + 1 is published only when every target that is up
has acknowledged n, or has been silent for so long that its lease is over. Pure: the caller gives the time, keeps the placement
in the registry, and sends it to the targets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import msgspec

from dfc.placement.roles import Copies, LayoutSpec, Placement, SliceState
from dfc.replication.recovery import is_lost_alone
from dfc.replication.transitions import (
    Change,
    bring_up,
    declare_down,
    forget_removed,
    hand_over,
    is_another,
    mark_out_of_sync,
    put_clean,
    put_copies,
    put_failed,
    start_move,
    want_copies,
)

Readiness = Literal["copied", "moved", "raised"]
"""What a disk reports: that it has no hints left for the new replicas of a slice in the phase `copying` or `moving`, or of a
bucket that gets more copies."""
HANDOVERS_MAX: Final = 64  # slices that are handed over in one step
LAYOUTS_MAX: Final = 4  # in force at once: with so many, another move waits until slices have arrived
LONG_GONE_S: Final = 600.0  # far longer than until relaxed writes are synced: see `bring_up`


class ReadyReport(NamedTuple):
    """A disk reports that a slice can be handed over, or that a bucket has its copies. `to`: the layout, or the copies."""

    readiness: Readiness
    disk: str
    subject: int | str
    to: int


@dataclass(frozen=True)
class _Queued:
    """A change that waits for its step. Two with the same key are one. `always`: it makes a step even if it changes nothing."""

    key: tuple[str, ...]
    change: Change
    always: bool = False


@dataclass(frozen=True, eq=False)
class CopiesWish:
    """Somebody wants objects of a bucket to have so many copies. Each is for one caller, who may take it back."""

    bucket_id: str
    count: int


@dataclass
class _TargetView:
    """What is known of a target since this coordinator began."""

    last_s: float
    acknowledged: int = 0
    process: str = ""


class StepPlanner:
    """What a coordinator knows and decides. `placement` is the one that was published last."""

    def __init__(self, placement: Placement, down_after_s: float, now_s: float, moved_for_s: float = 0.0) -> None:
        """`moved_for_s`: for so long writes go to the old replicas of a slice, too, when it has been handed over. Their new
        primaries take over meanwhile what was on its way; later it would come to nothing, and have to be repeated."""
        self.placement = placement
        self._down_after_s = down_after_s
        self._began_s = now_s
        self._heard: dict[str, _TargetView] = {}
        self._known_s = dict.fromkeys(_present_nodes(placement), now_s)  # since when those are that have not been heard
        self._leaving: set[str] = set()
        self._silent_since: dict[str, float] = {}  # targets that this coordinator has declared down: when they were last heard
        self._queue: list[_Queued] = []
        self._proposed: tuple[Placement, Sequence[_Queued]] | None = None  # the step to be published, and what makes it
        self._reports: set[ReadyReport] = set()
        self._wanted: LayoutSpec | None = None
        self._moved_for_s = moved_for_s
        self._moved_at: dict[int, float] = {}  # by slice: when it was seen to be with its new replicas
        self._wishes: dict[str, CopiesWish] = {}  # by the bucket's id

    # --- what targets say

    def heartbeat(self, node: str, step: int, incarnations: Mapping[str, str], now_s: float, *, process: str = "") -> bool:
        """A target that has this placement, with these disks that can be written: whether it gets a lease. `process` names the
        one that speaks: another one does not know whom its disks were to skip no more, so that earlier reports are withdrawn.

        Disks that have come back are brought up in a later step, and those that it no longer has are `failed`. A disk that is
        another one under its id gets nothing before it was declared down: nobody may take it for the one that was there.
        """
        disks = self.placement.disks_of(node)
        if any(disk.is_up and is_another(disk, incarnations.get(disk.id)) for disk in disks):
            return False
        heard = self._heard.setdefault(node, _TargetView(now_s))
        heard.last_s = now_s
        if heard.process != process:
            heard.process = process
            own = {disk.id for disk in disks}
            self._queue = [each for each in self._queue if each.key[0] != "clean" or each.key[2] not in own]
        self._leaving.discard(node)
        heard.acknowledged = max(heard.acknowledged, step)
        if any(not disk.is_up and disk.id in incarnations and not disk.removing for disk in disks):
            self.queue(("up", node), bring_up(node, dict(incarnations), self._long_gone(node)))
        for disk in disks:
            if disk.is_up and disk.id not in incarnations:
                self.queue(("failed", disk.id), put_failed(disk.id))
        return self.is_up(node)

    def forget_leaving(self) -> None:
        """Targets that leave are not declared down for that: the whole cluster ends."""
        self._leaving.clear()

    def leave(self, node: str) -> None:
        """A target has given up its lease, and is about to end: it is declared down at once. A heartbeat takes that back."""
        if node in self._heard:
            self._leaving.add(node)

    def put_down(self, node: str) -> None:
        """A target may not act, and nobody of it has a lease: it is declared down at once."""
        if self.is_up(node):
            self._leaving.add(node)

    def refresh(self, placement: Placement) -> None:
        """The registry's placement of the same step: disks and buckets that nobody has used yet are added without a step."""
        if placement.step == self.placement.step:
            self.placement = placement

    def acknowledged(self, node: str, step: int) -> None:
        """A target has taken a placement, and nothing that it decided by an older one is under way any more."""
        if node in self._heard:
            self._heard[node].acknowledged = max(self._heard[node].acknowledged, step)

    def mark_out_of_sync(self, primary: str, disk: str) -> None:
        """A primary cannot reach a disk that must have its write. `is_out_of_sync` says when that is so.

        That withdraws the primary's earlier report that the disk is clean, even one that is still on its way: if the disk is
        out of sync already, there is a step without a change, and a report made under an older one counts for nothing.
        """
        is_known = disk in self.placement.disks and primary in self.placement.disks[disk].out_of_sync_with
        self.queue(("out of sync", disk, primary), mark_out_of_sync(disk, primary), always=is_known)
        self._queue = [each for each in self._queue if each.key != ("clean", disk, primary)]

    def is_out_of_sync(self, primary: str, disk: str) -> bool:
        """Whether the disk is out of sync with the primary, or not up, and every target knows."""
        place = self.placement.disks.get(disk)
        is_queued = any(each.key == ("out of sync", disk, primary) for each in self._queue)
        is_so = place is None or not place.is_up or primary in place.out_of_sync_with
        return is_so and not is_queued and self.all_acknowledged

    def report_clean(self, disk: str, caught_up: str, step: int, *, process: str = "") -> bool:
        """`disk` has no hints left for the disk `caught_up`, and will not skip `caught_up` without asking. That counts for the
        next step only: by the one after it, either of the two disks may have been replaced or away. False: the step is out of
        date, or `disk` has asked to skip `caught_up` since, or its target has been started since the report was sent."""
        heard = self._heard.get(self.placement.disks[disk].node)
        is_old = step < self.placement.step or (heard is not None and heard.process != process)
        if is_old or any(each.key == ("out of sync", caught_up, disk) for each in self._queue):
            return False
        self.queue(("clean", caught_up, disk), put_clean(caught_up, disk))
        return True

    def report_ready(self, report: ReadyReport, step: int) -> None:
        """A disk says that a slice can be handed over. What it says under another step counts for nothing, nor while it is out
        of sync: then it may not be the primary of its names, and so has no hints about what their future replicas lack."""
        if step == self.placement.step and _out_of_sync_with(self.placement, report.disk) == frozenset():
            self._reports.add(report)

    def want_layout(self, layout: LayoutSpec | None) -> None:
        """Move all slices to this layout; None: to the newest one. A move to another one that is under way goes on to this one.
        Disks are evicted only while they are away, and if no object is lost by that (`is_lost_alone`): until then nothing
        begins."""
        self._wanted = layout

    def want_copies(self, bucket_id: str, count: int) -> CopiesWish:
        """Give the objects of a bucket so many copies, as soon as that may begin. It takes the place of an earlier wish that
        waits; if it is what the bucket is to have already, nothing is left waiting."""
        wish = self._wishes[bucket_id] = CopiesWish(bucket_id, count)
        return wish

    def withdraw(self, wish: CopiesWish) -> None:
        """Drop a wish that waits, unless another one has taken its place. What has begun goes on."""
        if self._wishes.get(wish.bucket_id) is wish:
            del self._wishes[wish.bucket_id]

    def wishes(self) -> list[CopiesWish]:
        """The wishes that wait."""
        return list(self._wishes.values())

    def queue(self, key: tuple[str, ...], change: Change, *, always: bool = False) -> None:
        """Make this change in one of the next steps, in the place of one with the same key that waits. `always`: it makes a
        step even if it changes nothing."""
        new = _Queued(key, change, always)
        if all(each.key != key for each in self._queue):
            self._queue.append(new)
        self._queue = [new if each.key == key else each for each in self._queue]

    def raised(self) -> dict[str, int]:
        """How many disks have reported, by the id of the bucket, that its objects have the copies that they are getting."""
        return Counter(str(report.subject) for report in self._reports if report.readiness == "raised")

    # --- steps

    def is_up(self, node: str) -> bool:
        """Whether any disk of a target is up."""
        return any(disk.is_up for disk in self.placement.disks_of(node))

    @property
    def is_busy(self) -> bool:
        """Whether changes wait for their step."""
        return bool(self._queue or self._leaving)

    @property
    def all_acknowledged(self) -> bool:
        """Whether all targets that are up have the newest placement."""
        return all(self._acknowledged(node) >= self.placement.step for node in _present_nodes(self.placement))

    def waits_for(self) -> list[str]:
        """The targets that have not acknowledged the newest placement, in order of their ids."""
        return sorted(n for n in _present_nodes(self.placement) if self._acknowledged(n) < self.placement.step)

    def next_step(self, now_s: float, *, may_move: bool = True) -> Placement | None:
        """The placement to publish now, if any. It counts when `published` has been called, after it is durable. Slices change
        their state only if they `may_move`."""
        silent = self._silent(now_s)
        if silent:
            others = _present_nodes(self.placement) - silent
            if any(self._acknowledged(node) < self.placement.step for node in others):
                return None
            return _numbered(self.placement, declare_down(silent)(self.placement))
        if not self.all_acknowledged:
            return None
        while self._queue:
            # All that wait of one kind make one step.
            kind = self._queue[0].key[0]
            these = [each for each in self._queue if each.key[0] == kind]
            changed = self.placement
            for each in these:
                changed = each.change(changed)
            if changed != self.placement or any(each.always for each in these):
                self._proposed = _numbered(self.placement, changed), these
                return self._proposed[0]
            self._drop(these)
        changed = forget_removed(self.placement)
        if changed != self.placement:
            return _numbered(self.placement, changed)
        return self._copies_changed() or (self._moved(now_s) if may_move else None)

    def published(self, placement: Placement) -> None:
        """This is in the registry now, and goes out to the targets."""
        before, self.placement = self.placement, placement
        if self._proposed is not None and self._proposed[0] is placement:
            self._drop(self._proposed[1])
        self._proposed = None
        self._queue = [each for each in self._queue if each.key[0] != "clean"]  # reports of an older step count for nothing
        present = _present_nodes(placement)
        self._leaving &= present
        for node in _present_nodes(before) - present:
            if node in self._heard:
                self._silent_since[node] = self._heard[node].last_s
        for node in present & self._silent_since.keys():
            del self._silent_since[node]
        self._forget_reports(before, placement)

    def _drop(self, these: Sequence[_Queued]) -> None:
        self._queue = [each for each in self._queue if not any(each is one for one in these)]

    def _acknowledged(self, node: str) -> int:
        heard = self._heard.get(node)
        return 0 if heard is None else heard.acknowledged

    def _silent(self, now_s: float) -> set[str]:
        """Targets that are not down and leave, or have not been heard of for `down_after_s`; of these nobody so soon after this
        coordinator began."""
        found = self._leaving & _present_nodes(self.placement)
        if now_s - self._began_s <= self._down_after_s:
            return found
        for node in _present_nodes(self.placement):
            heard = self._heard.get(node)
            since_s = self._known_s.setdefault(node, now_s) if heard is None else heard.last_s
            if now_s - since_s > self._down_after_s:
                found.add(node)
        return found

    def _long_gone(self, node: str) -> list[str]:
        """The disks that had been down for a long time already when a target was last heard before it was declared down. None
        that this coordinator has not declared down itself."""
        since_s = self._silent_since.get(node)
        if since_s is None:
            return []
        nodes = {other for other, at_s in self._silent_since.items() if at_s + self._down_after_s + LONG_GONE_S < since_s}
        return sorted(disk.id for disk in self.placement.disks.values() if disk.node in nodes and disk.status == "down")

    def _forget_reports(self, before: Placement, after: Placement) -> None:
        """Drop reports of disks that went down, are out of sync or marked another one, and of what has moved on."""
        gone = {each.id for each in after.disks.values() if not each.is_in_sync or _out_of_sync_with(before, each.id) is None}
        marked = {
            primary
            for each in after.disks.values()
            for primary in each.out_of_sync_with - (_out_of_sync_with(before, each.id) or set())
        }
        self._reports = {
            report for report in self._reports if report.disk not in gone | marked and _stands(report, before, after)
        }

    def _copies_changed(self) -> Placement | None:
        """The next step of a change of how many copies the objects of a bucket have, if there is one that may be taken."""
        for wish in self.wishes():
            bucket_id, count = wish.bucket_id, wish.count
            now = self.placement.copies_of(bucket_id)
            if now.wanted == count:
                self.withdraw(wish)
            elif now.reading == now.written and (count > 1 or self._is_all_well()):
                return _numbered(self.placement, want_copies(bucket_id, count)(self.placement))
            elif now.reading < now.wanted and count < now.wanted:  # a raise is given up first: it may never end
                return _numbered(self.placement, want_copies(bucket_id, now.reading)(self.placement))
        for bucket_id, copies in self.placement.copies.items():
            if copies.reading < copies.written and (copies.wanted == copies.reading or self._is_raised(bucket_id, copies)):
                return _numbered(self.placement, put_copies(bucket_id, Copies.of(copies.wanted))(self.placement))
        return None

    def _is_all_well(self) -> bool:
        """Whether all disks that hold anything are up and in sync, and none is evicted. Only then may a bucket get down
        to one copy: its disk is read from then on whatever it lacks, since nobody else can have taken a write."""
        if any(spec.gone for spec in self.placement.layouts.values()):
            return False
        return all(self.placement.disks[each].is_in_sync for each in self._placed(with_gone=True))

    def _is_raised(self, bucket_id: str, copies: Copies) -> bool:
        """Whether every disk has reported that the new replicas of the bucket's objects have them. The only copy may be on a
        disk that was evicted; with several, such a disk is passed over, and others would become replicas, so that waits for
        it."""
        if copies.reading == 1 and any(spec.gone for spec in self.placement.layouts.values()):
            return False
        disks = [self.placement.disks[each] for each in self._placed(with_gone=copies.reading == 1)]
        return all(
            disk.is_in_sync and ReadyReport("raised", disk.id, bucket_id, copies.written) in self._reports for disk in disks
        )

    def _placed(self, *, with_gone: bool) -> set[str]:
        """The disks of all layouts in force."""
        specs = self.placement.layouts.values()
        return {each for spec in specs for each in (spec.disks if with_gone else spec.disks - spec.gone)}

    def _moved(self, now_s: float) -> Placement | None:
        """The next step of a move of slices, if there is one and nothing holds it back."""
        placement = self.placement
        newest = placement.layouts[max(placement.layouts)]
        wanted = newest if self._wanted is None or len(placement.layouts) >= LAYOUTS_MAX else self._wanted
        if wanted != newest and self._may_evict(wanted.gone - newest.gone):
            return _numbered(placement, start_move(wanted)(placement))
        ready = [number for number in self._handovers(now_s) if self._is_calm(placement.slices[number])][:HANDOVERS_MAX]
        return _numbered(placement, hand_over(ready)(placement)) if ready else None

    def _may_evict(self, lost: frozenset[str]) -> bool:
        return not any(self.placement.disks[each].is_up for each in lost) and is_lost_alone(self.placement, lost)

    def _is_calm(self, state: SliceState) -> bool:
        """Whether every disk of both layouts that is not passed over is up and in sync."""
        disks = {each for number in (state.at, state.to) if number is not None for each in self.placement.layouts[number].disks}
        return all(self.placement.disks[each].is_in_sync for each in disks - self._passed_over(state))

    def _passed_over(self, state: SliceState) -> frozenset[str]:
        """The disks that a slice does not wait for, since the newest layout gives them up. Not one that is back, while it is a
        replica where the slice is: it may be a primary again, and alone know what future replicas lack. And none where an
        object with one copy may be on its way from or to one of them: then that disk alone has it, or is to have it. In any
        case those that leave for good: what they alone have is lost."""
        at, to = self.placement.layouts[state.at], self.placement.layouts[state.at if state.to is None else state.to]
        gone = self.placement.layouts[max(self.placement.layouts)].gone
        may_lose = gone and not at.ranks_like(to) and any(each.reading == 1 for each in self.placement.copies.values())
        is_back = {each for each in gone - at.gone if self.placement.disks[each].is_up}
        removed = frozenset(each for each in at.gone | to.gone if self.placement.disks[each].removing)
        return removed | (frozenset() if may_lose else gone - is_back)

    def _handovers(self, now_s: float) -> Iterator[int]:
        """Slices that have all the reports that their next phase wants, or have been with their new replicas for a moment."""
        for number, state in enumerate(self.placement.slices):
            if state.phase != "moved":
                self._moved_at.pop(number, None)
            if state.to is None:
                continue
            if state.phase == "moved":
                if now_s - self._moved_at.setdefault(number, now_s) >= self._moved_for_s:
                    yield number
                continue
            disks = self.placement.layouts[state.at].disks - self._passed_over(state)
            readiness: Readiness = "copied" if state.phase == "copying" else "moved"
            if all(ReadyReport(readiness, disk, number, state.to) in self._reports for disk in disks):
                yield number


def _numbered(before: Placement, changed: Placement) -> Placement:
    return msgspec.structs.replace(changed, step=before.step + 1)


def _stands(report: ReadyReport, before: Placement, after: Placement) -> bool:
    """Whether what a report is about is as it was."""
    if isinstance(report.subject, int):
        return after.slices[report.subject] == before.slices[report.subject]
    return after.slices == before.slices and after.copies_of(report.subject) == before.copies_of(report.subject)


def _out_of_sync_with(placement: Placement, disk_id: str) -> frozenset[str] | None:
    """Whom a disk that is up is out of sync with; None if it is not up."""
    disk = placement.disks.get(disk_id)
    return disk.out_of_sync_with if disk is not None and disk.is_up else None


def _present_nodes(placement: Placement) -> set[str]:
    """The targets that are not down: they act by the placement as long as they have a lease."""
    return {disk.node for disk in placement.disks.values() if disk.status != "down"}
