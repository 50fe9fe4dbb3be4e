"""What a primary must know before it serves, what disks lack, and when a disk is evicted. Pure.

Peering: what a target does before it serves names of which a step has made it the primary.

The primary before may have begun writes of those names, so others may hold rows that are not confirmed. The target asks every
other target that is up for its pending rows; a target that is asked takes the step first, and so commits nothing more for the
previous primary. When all have answered, the names are served, each as soon as its pending row is replicated.

A row that is slow to come, or cannot be had, keeps only its own name waiting. In the end it may be given up: every row that was
acknowledged is at every reader, so also at the new primary, which is one. What only others have was never acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from enum import Enum
from typing import Final, TypeVar

from dfc.placement.roles import DiskPlace, LayoutSpec, Placement, Roles, roles

SINCE_MAX: Final = 16  # steps since everything was peered, after which what was peered before counts no more
N = TypeVar("N", bound=Hashable)
V = TypeVar("V", str, tuple[int, int])


def counts(placement: Placement, found: Roles, disk: str) -> bool:
    """Whether a pending row on this disk is told to a new primary: a reader's, or that of another member which is in sync,
    such as the primary before while a name is handed over. A disk that is out of sync may have it from a write that was
    never acknowledged, and after which others were; it will ask the primary, and take what that has."""
    return disk in found.readers or (disk in found.members and not placement.disks[disk].out_of_sync_with)


def still_pending(before: Mapping[N, V], now: Mapping[N, V]) -> dict[N, V]:
    """Those of the versions that were pending `before`, by their names, which still keep a disk from being clean. One that has
    given way to a newer version does not: that is of a write which came after the question, and whoever decided it without this
    disk asks the same again when it is over. One that has given way to an older version does, as long as that is pending."""
    return {name: version for name, version in before.items() if name in now and now[name] <= version}


class Peering:
    """Which names are peered here. The target tells it every placement that it takes, in order of their steps."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._since: tuple[Placement, ...] = ()
        """The last placement under which everything was peered, and those that have followed, but for the newest one. Empty if
        that is too long ago, or one of them is not known: then nothing is peered before everything is."""
        self._placement: Placement | None = None
        self._answered: set[str] = set()
        self._done = True
        self._told: set[tuple[str, str]] = set()  # names whose rows were told of in this step, and have not come yet
        self._expected: set[tuple[str, str]] = set()  # those that are not peered although all others are

    def take(self, placement: Placement) -> None:
        """A newer placement: everybody has to be asked again."""
        before = self._placement
        if before is None or placement.step != before.step + 1:
            self._since = ()
        elif self._done:
            self._since = (before,)
        elif self._since:
            self._since = (*self._since, before) if len(self._since) < SINCE_MAX else ()
        self._done = False  # only now, and before the placement: other threads ask what is peered
        self._placement, self._answered, self._told = placement, set(), set()

    def expect(self, bucket_id: str, name: str) -> None:
        """A pending row of this name is to be adopted, and has not come yet: the name is not peered until `has_come`."""
        self._told.add((bucket_id, name))

    def has_come(self, bucket_id: str, name: str) -> None:
        """The row is here and on its way to the others, or was given up."""
        self._told.discard((bucket_id, name))
        self._expected.discard((bucket_id, name))

    def refresh(self, placement: Placement) -> None:
        """The placement of the same step: buckets and disks that nobody has used yet are added without one."""
        if self._placement is not None and placement.step == self._placement.step:
            self._placement = placement

    @property
    def step(self) -> int:
        """The step of the peering that runs, or ran last."""
        return 0 if self._placement is None else self._placement.step

    @property
    def is_done(self) -> bool:
        """Whether all names are peered, except those whose pending rows have not come yet."""
        return self._done

    def to_ask(self) -> set[str]:
        """Targets whose pending rows are not known yet."""
        if self._placement is None or self._done:
            return set()
        up = {disk.node for disk in self._placement.disks.values() if disk.is_up}
        return up - {self._node} - self._answered

    def answered(self, node: str, step: int) -> None:
        """A target has given its pending rows, and those to be adopted are lacking. One that answered for another step is asked
        again."""
        if self._placement is not None and step == self._placement.step:
            self._answered.add(node)

    def finish(self) -> bool:
        """Call when nobody is left to ask and the pending rows of this target's own names are on their way. True once."""
        if self._done or self._placement is None or self.to_ask():
            return False
        self._expected = set(self._told)  # first, since other threads ask what is peered
        self._done = True
        return True

    def adopts(self, bucket_id: str, name: str, primary: str, *, newer: bool) -> bool:
        """Whether this disk, the primary, takes a pending row that another target told of: a `newer` one of a name that is not
        served yet. What has been served has an order already, and an older write must not come into it."""
        return newer and not self.is_peered(bucket_id, name, primary)

    def is_peered(self, bucket_id: str, name: str, primary: str) -> bool:
        """Whether a name may be served whose primary is this disk of this target: it was its primary already when everything
        was peered, and has been in every step since then. If another one was meanwhile, that may have begun writes."""
        if (bucket_id, name) in self._expected:
            return False
        if self._done:
            return True
        since, now = self._since, self._placement
        if not since or now is None:
            return False
        return all(_knew(each, now, bucket_id) and roles(each, bucket_id, name).primary == primary for each in since)


def _knew(peered: Placement, now: Placement, bucket_id: str) -> bool:
    """Whether roles by the older placement mean something for a bucket. A bucket that it does not have seems to have one copy,
    whose disk decides even if it is out of sync; that is so only if there is one copy to be read to this day."""
    return bucket_id in peered.copies or now.copies_of(bucket_id).reading == 1


# --- Rows that disks lack: to whom a row goes, when a hint may be dropped, when a disk is clean, and which rows are excess.
#
# A hint on disk X says "disk Y should get my row of this name". The primary delivers; any other holder makes sure that either Y
# has the row or the primary knows. A hint is dropped only when Y has said that it has this version or a newer one.


class Delivery(Enum):
    """What a holder does with a hint."""

    KEEP = "keep"  # nothing can be done now
    DROP = "drop"  # nobody needs it any more
    ADOPT = "adopt"  # as the primary: send the row; dropped when the disk has it
    ASK = "ask"  # ask the disk for its version; if that is older, tell the primary
    DIRECT = "direct"  # ask the disk for its version; if that is older, send the row, pending as it is: there is no primary


def delivery(placement: Placement, found: Roles, holder: str, disk: str) -> Delivery:
    """What the holder of a hint does about the disk that lacks a row, by the roles for that name."""
    if found.primary is not None and disk not in found.everywhere:
        return Delivery.DROP  # also while it is away: it was evicted, or its objects have been moved
    if not placement.disks[disk].is_up:
        return Delivery.KEEP
    if found.primary is None:
        return Delivery.DIRECT
    return Delivery.ADOPT if found.primary == holder else Delivery.ASK


def hints_after_commit(placement: Placement, found: Roles, holder: str) -> list[str]:
    """Replicas for which a member makes a hint about a row that it commits, since its primary may be the next to die: those
    that cannot have it yet, or serve nothing before they have caught up."""
    return [each for each in found.replicas if each != holder and not placement.disks[each].is_in_sync]


def hints_when_planned(placement: Placement, found: Roles, bucket_id: str) -> list[str]:
    """The future replicas for which the primary makes a hint about a row: by the layout that a slice moves to, or of a bucket
    that gets more copies."""
    complete = found.replicas[: placement.copies_of(bucket_id).reading]
    return [each for each in found.everywhere if each not in complete]


def keeps_out_of_sync(found: Roles, disk: str) -> bool:
    """Whether a disk that lacks a row is out of sync with whoever has the hint. Not if it is only to become a replica: nobody
    reads the row there before all hints are delivered (`StepPlanner`), and otherwise a target that is restarted in the middle
    of a move would not be read for as long as that takes."""
    return disk in found.replicas or disk in found.members


def are_roles_changing(placement: Placement) -> bool:
    """Whether a disk that was to become a replica may be a member by now: then all hints keep it out of sync."""
    return is_handing_over(placement) or any(copies.reading != copies.written for copies in placement.copies.values())


def is_handing_over(placement: Placement) -> bool:
    """Whether slices are on their last steps to other replicas."""
    return any(state.phase in ("moving", "moved") for state in placement.slices)


class Resolution(Enum):
    """What becomes of a row that is pending here, once its primary has said what it has."""

    KEEP = "keep"  # ask again later
    CONFIRM = "confirm"  # it counts
    REVERT = "revert"  # take the primary's row instead, or none
    OFFER = "offer"  # keep it: the primary takes it when the job that publishes it asks for that


def resolution(own: V, theirs: V | None, *, changed: bool, replicated: bool = True, published: bool = False) -> Resolution:
    """What becomes of a row that is pending here, when its primary says that it has `theirs` (None: no row). `changed`:
    something about the name arrived here after the question was sent, or the row is no longer pending, so the answer may be
    older than that. `replicated`: no write of the name is on its way at the primary. `published`: ours is an output of a job
    that is not over.

    An acknowledged row is at the primary, and a primary that is peered takes no row of others any more; so a different one
    there means that ours was never acknowledged, also if ours is newer. If the primary's is on its way it may be waiting for
    this disk, which refuses an older row than it has: then that one is taken instead, and is pending in its turn.

    A job that is published only goes forward: what its primary lacks is never undone, and gives way only to what is newer and
    replicated. It may take effect at any time until the job has succeeded, so it does not matter what the primary has
    acknowledged meanwhile, unless that is newer."""
    if changed or (not replicated and (published or theirs in (own, None))):
        return Resolution.KEEP
    if theirs == own:
        return Resolution.CONFIRM
    return Resolution.OFFER if published and (theirs is None or theirs < own) else Resolution.REVERT


def is_excess(placement: Placement, found: Roles, holder: str, *, pending: bool, is_hinted: bool) -> bool:
    """Whether a row here may go once every replica has said that it holds this version or a newer one: this disk is no replica
    by any layout that matters, all replicas are readers, and the row here is neither `pending` nor has a hint on this disk
    (`is_hinted`)."""
    return (
        not pending
        and not is_hinted
        and found.everywhere == found.replicas  # nothing moves
        and holder not in found.replicas
        and found.primary is not None
        and all(placement.disks[each].is_in_sync for each in found.replicas)
    )


def may_remove(answers: Collection[bool | None]) -> bool:
    """Whether an excess row goes: every replica has answered that it holds this version or a newer one, for certain."""
    return all(answers)


def has_arrived(theirs: V | None, own: V) -> bool:
    """Whether a hint may be dropped, by the version that the disk says it has."""
    return theirs is not None and theirs >= own


# --- Disks that are lost, perhaps for good: when they may be evicted, so that their objects get other replicas. Pure.
#
# A disk that is evicted stays in its layouts, among those that are `gone`: objects with one copy stay there, unavailable. When
# it comes back, what it has of others is of no use any more, and may be older than the tombstones that are kept: it drops all
# that is not its own (`is_stale`), and only then gets objects again, like a disk that is new.


def is_lost_alone(placement: Placement, lost: Collection[str]) -> bool:
    """Whether every object of several copies has one that may be read without these disks, so they may be evicted.

    They are all in one failure domain, and no copies of an object share one. By every layout there is another domain, and all
    disks there are up and lack nothing. Objects with one copy have none elsewhere: they stay where they are, unavailable.
    """
    if not lost:
        return True
    domains = {placement.disks[each].domain for each in lost}
    return len(domains) == 1 and all(_has_all_without(placement, spec, *domains) for spec in placement.layouts.values())


def _has_all_without(placement: Placement, spec: LayoutSpec, domain: str) -> bool:
    others = [placement.disks[each] for each in spec.disks - spec.gone if placement.disks[each].domain != domain]
    return bool(others) and all(disk.is_in_sync for disk in others)


def next_to_evict(placement: Placement, away: Collection[str]) -> frozenset[str]:
    """Which of the disks that are away for long are evicted next: all in one failure domain that hold something; none if
    objects would be lost."""
    holding = {each for spec in placement.layouts.values() for each in spec.disks - spec.gone}
    by_domain: dict[str, set[str]] = {}
    for each in holding.intersection(away):
        by_domain.setdefault(placement.disks[each].domain, set()).add(each)
    found = (lost for _, lost in sorted(by_domain.items()) if is_lost_alone(placement, lost))
    return frozenset(next(found, ()))


def is_evicted(placement: Placement, disk_id: str) -> bool:
    """Whether a disk has been evicted, by the layout to which everything comes."""
    return disk_id in placement.layouts[max(placement.layouts)].gone


def is_restoring(placement: Placement) -> bool:
    """Whether objects get copies on other disks in the place of those that the newest layout gives up."""
    gone = placement.layouts[max(placement.layouts)].gone
    return any(gone & spec.disks - spec.gone for spec in placement.layouts.values())


def is_out(placement: Placement, disk_id: str) -> bool:
    """Whether a disk has been evicted by all layouts: it has taken part in nothing but writes of one copy since then."""
    specs = [spec for spec in placement.layouts.values() if disk_id in spec.disks]
    return bool(specs) and all(disk_id in spec.gone for spec in specs)


def is_no_replica(placement: Placement, disk_id: str) -> bool:
    """Whether a disk is a replica of no object with several copies, by any layout in force."""
    return all(disk_id not in spec.disks - spec.gone for spec in placement.layouts.values())


def needs_tombstones(placement: Placement) -> bool:
    """Whether a disk may have an object that was deleted while it had no part in that, so that only a tombstone tells it so.

    That is one that is away or out of sync, unless it was evicted: then it drops all that is not its own. And one to which
    objects were to move that go elsewhere now: what it has of them is removed as excess when the move is over. The number of
    copies does not matter, since there may have been more of them, or another layout, when the disk went away."""
    are_replicas = any(copies.reading == 1 < copies.written for copies in placement.copies.values())  # see `roles`
    here = [disk for disk in placement.disks.values() if are_replicas or not is_out(placement, disk.id)]
    return placement.is_moving or any(not disk.is_in_sync for disk in here)


def is_stale(placement: Placement, found: Roles, disk_id: str) -> bool:
    """Whether a row on a disk that was evicted may go once the primary has answered, whatever it has: the disk is no replica of
    the name. All that it had acknowledged was at others when it was evicted, and since then it has taken part in nothing."""
    return is_evicted(placement, disk_id) and found.primary is not None and disk_id not in found.everywhere


# --- How many copies there are of an object, as far as its primary knows. Pure.


def is_calm(placement: Placement) -> bool:
    """Whether all disks are up and lack nothing, so that every object has all its copies."""
    return all(disk.is_in_sync for disk in placement.disks.values())


def copies_left(placement: Placement, found: Roles, holder: str, hinted_disks: Collection[str], wanted: int) -> int:
    """How many of the `wanted` copies of an object are on disks that are up, by the hints of its primary `holder`:
    `hinted_disks` are the disks that lack it.

    A handoff replica is counted if the object was written while a replica was away, which the hint for that replica shows. If
    others are away, too, one of them may have been the handoff replica, so none is counted: the number is rather too low than
    too high."""
    replicas = found.replicas[:wanted]
    there = sum(each == holder or _has_it(placement.disks[each], holder, hinted_disks) for each in replicas)
    away = {each for each in replicas if not placement.disks[each].is_up}
    if not away.isdisjoint(hinted_disks) and all(disk.is_up or disk.id in away for disk in placement.disks.values()):
        there += len(found.handoffs)
    return min(there, wanted)


def _has_it(place: DiskPlace, holder: str, hinted_disks: Collection[str]) -> bool:
    """Whether a replica has an object. One that came back empty may lack what has no hint yet."""
    return place.is_up and place.id not in hinted_disks and not (place.compare and holder in place.out_of_sync_with)
