"""What the state of a cluster is worked out from, and estimates of moves, copies and stops. Pure but for the first."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple

import msgspec

from dfc.placement.map import ClusterMap, NodeEntry
from dfc.placement.mapped import placement_of
from dfc.placement.roles import Placement, roles
from dfc.proxy.heartbeats import LastHeartbeat
from dfc.registry.messages import DiskNumbers
from dfc.replication.recovery import are_roles_changing, is_calm
from dfc.wire.status import MissingCopies


@dataclass(frozen=True, kw_only=True)
class StateFacts:
    """Everything at one moment.

    `last_heartbeats`: the targets that this proxy has heard, by id. `leads`: whether it is the coordinator. `waits_for`:
    targets that have not acknowledged the step of the map, which was taken `waits_s` ago. `listening_s`: for how long this
    proxy has been able to hear anybody. `raised`: by bucket id, how many disks have given the new replicas of its objects
    everything. `may_move`: no job is active, so that slices may change their state. `wall_s`: the time in seconds since 1970.
    `registry_silent`: why the registry cannot be read and changed, if it cannot. `foreign`: targets of other clusters that ask
    to join, with the ids of these clusters."""

    map: ClusterMap
    last_heartbeats: Mapping[str, LastHeartbeat]
    leads: bool
    expected_targets: int
    listening_s: float
    waits_for: Sequence[str] = ()
    waits_s: float = 0.0
    raised: Mapping[str, int] | None = None
    may_move: bool = True
    wall_s: float = 0.0
    registry_silent: str = ""
    foreign: Mapping[str, str] = field(default_factory=dict)
    twins: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def placement(self) -> Placement:
        """The placement of the map."""
        return placement_of(self.map)

    @cached_property
    def numbers(self) -> dict[str, DiskNumbers]:
        """What the last heartbeats say about disks, by id; also of targets that are down by now."""
        return {each.id: each for last in self.last_heartbeats.values() for each in last.heartbeat.numbers}

    def hints_for(self, disk: str, *, later: bool = False) -> int | None:
        """How much a disk lacks by the hints of others, or also what it is to have `later`, since objects move to it; None:
        nobody who has hints for it has been heard."""
        heartbeats = [last.heartbeat for last in self.last_heartbeats.values() if last.heartbeat.numbers]
        is_all = later or are_roles_changing(self.placement)
        found = [each.hints.get(disk, 0) + (each.hints_later.get(disk, 0) if is_all else 0) for each in heartbeats]
        return sum(found) if found else None


# --- How fast objects are moved, and how long it may take, from how many are left at times.

WINDOW_S: Final = 60.0  # the speed is that of the last minute
LEAST_S: Final = 4.0  # after which there is a speed


class _Sample(NamedTuple):
    at_s: float
    hints: int


class MoveProgress:
    """What is left of one move, as it was told."""

    def __init__(self) -> None:
        self._to: int | None = None
        self._samples = deque[_Sample]()

    def note(self, now_s: float, to: int | None, hints: int | None) -> None:
        """Take what is left of the move to a layout; None if there is no move, or it is not known."""
        if to is None or hints is None or to != self._to:
            self._samples.clear()
            self._to = to
        if hints is not None and to is not None:
            self._samples.append(_Sample(now_s, hints))
        while len(self._samples) > 2 and self._samples[1].at_s <= now_s - WINDOW_S:
            self._samples.popleft()

    @property
    def per_s(self) -> float | None:
        """How many fewer objects and deletes are left each second; None while that is not known. New hints come while
        targets look for what has to be copied, and by uploads."""
        if len(self._samples) < 2:
            return None
        first, last = self._samples[0], self._samples[-1]
        if last.at_s - first.at_s < LEAST_S:
            return None
        return max(0.0, (first.hints - last.hints) / (last.at_s - first.at_s))

    @property
    def eta_s(self) -> float | None:
        """In how many seconds all may be copied, if it goes on like this."""
        per_s = self.per_s
        return self._samples[-1].hints / per_s if per_s else None


# --- How many objects lack copies or cannot be read: from what targets have counted, and else estimated. Pure.

DRAWN: Final = 1000  # made-up names, by whose replicas shares are estimated


class _Shares(msgspec.Struct, frozen=True):
    one_left: float
    missing: float
    unavailable: float


def count_copies(facts: StateFacts) -> MissingCopies:
    """Count. While targets count after a step, and for objects none of whose disks is up, an estimate has to do."""
    placement = facts.placement
    if is_calm(placement):
        return MissingCopies()
    alone, first, is_unsure = _objects(facts)
    shares = _shares(placement)
    if shares is None:
        return MissingCopies(unavailable=alone, estimated=is_unsure and alone > 0)
    unavailable = round(shares.unavailable * first)
    numbers = [facts.numbers.get(disk.id) for disk in placement.disks.values() if disk.is_up]
    counted = [each for each in numbers if each is not None and each.counted_step == placement.step]
    if len(counted) == len(numbers):
        one_left, missing, is_estimate = sum(each.one_left for each in counted), sum(each.missing for each in counted), False
    else:
        one_left, missing, is_estimate = round(shares.one_left * first), round(shares.missing * first), True
    return MissingCopies(
        one_left=one_left,
        missing=missing,
        unavailable=alone + unavailable,
        estimated=is_estimate or unavailable > 0 or (is_unsure and alone > 0),
    )


def _objects(facts: StateFacts) -> tuple[int, int, bool]:
    """Return the number of objects with one copy on disks that are down, that of objects which should have several, and whether
    some disk has not said it: a proxy that has started since knows only how many rows a disk had that is down."""
    fewest = min((bucket.copies for bucket in facts.map.buckets), default=1)
    alone = first = 0
    is_unsure = False
    for disk_id, owner in facts.map.placed().items():
        numbers, is_down = facts.numbers.get(disk_id), facts.placement.disks[disk_id].status == "down"
        if numbers is not None:
            first += numbers.first
            alone += numbers.alone if is_down else 0
        elif fewest > 1:
            first, is_unsure = first + owner.disk.objects // fewest, True
        else:
            alone, is_unsure = alone + (owner.disk.objects if is_down else 0), True
    return alone, first, is_unsure


def _shares(placement: Placement) -> _Shares | None:
    """Estimate which shares of the objects with several copies are in trouble, by the bucket with the fewest of them; None if
    no bucket has several."""
    # Objects that are getting their second copy are counted by their first replica, as those with one are.
    several = {bucket_id: copies for bucket_id, copies in placement.copies.items() if copies.reading > 1}
    if not several:
        return None
    bucket_id, copies = min(several.items(), key=lambda item: item[1].reading)
    one_left = missing = unavailable = 0
    for number in range(DRAWN):
        found = roles(placement, bucket_id, f"drawn-{number}")
        there = len(found.readers)
        unavailable += there == 0
        one_left += there == 1
        missing += 0 < there < copies.reading
    return _Shares(one_left / DRAWN, missing / DRAWN, unavailable / DRAWN)


# --- What could not be read any more if a target were stopped now. Pure.


class StopImpact(msgspec.Struct, frozen=True):
    """How many objects could not be read without a node; none: it may be stopped. `estimated`: about so many."""

    node: str
    unreadable: int = 0
    estimated: bool = False


def without(facts: StateFacts, node: NodeEntry) -> StopImpact:
    """Work out what only this target has that can be read now. Never too few: where an estimate is needed and says none, it is
    one."""
    if node.state != "up" or not {disk.id for disk in node.disks} & set(facts.map.in_use()):
        return StopImpact(node.id)
    single = any(bucket.copies == 1 for bucket in facts.map.buckets)
    numbers = [facts.numbers.get(disk.id) for disk in node.disks]
    alone = sum(each.alone for each in numbers if each is not None) if single else 0
    is_unsure = single and None in numbers
    risky = _risky(facts, node)
    if not risky:
        return StopImpact(node.id, max(alone, int(is_unsure)), is_unsure)
    later = count_copies(_stopped(facts, node))
    lost = later.unavailable - count_copies(facts).unavailable
    has_any = any(each is None or each.first for each in facts.numbers.values()) or not facts.numbers
    return StopImpact(node.id, max(lost, alone, int(has_any)), True)


def _risky(facts: StateFacts, node: NodeEntry) -> bool:
    """Whether some object with several copies may have no other that can be read. The copies of each are in as many failure
    domains, so as long as fewer of these are unreadable, each object is readable."""
    placement = facts.placement
    used = {disk for disk in facts.map.may_hold_copies() if disk in placement.disks}
    own = {disk.id for disk in node.disks}
    places = [placement.disks[disk] for disk in used]
    unread = {place.domain for place in places if place.id in own or not place.is_up or place.out_of_sync_with}
    several = [bucket.copies for bucket in facts.map.buckets if bucket.copies > 1]
    return bool(several) and len(unread) >= min(several)


def _stopped(facts: StateFacts, node: NodeEntry) -> StateFacts:
    """The facts of when the target is down."""
    step = max(1, facts.map.step)
    disks = tuple(msgspec.structs.replace(disk, down_step=disk.down_step or step) for disk in node.disks)
    down = msgspec.structs.replace(node, state="down", disks=disks)
    nodes = tuple(down if each.id == node.id else each for each in facts.map.nodes)
    return replace(facts, map=msgspec.structs.replace(facts.map, nodes=nodes))
