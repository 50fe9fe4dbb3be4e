"""What a target knows about names whose objects have copies, and which of its rows it lists.

Which names are peered, which have a write on its way, who was cleared: all of it is in memory. After a restart, the marks of
pending rows on the disks and the other targets tell the rest.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cached_property
from typing import Final, Literal, NamedTuple

from dfc.errors import Unavailable
from dfc.listing.pages import Row
from dfc.placement.map import BucketEntry
from dfc.placement.mapped import FIRST_LAYOUT, placement_of
from dfc.placement.roles import Placement, Roles, roles
from dfc.replication.recovery import Peering, is_calm, is_handing_over, keeps_out_of_sync, needs_tombstones
from dfc.replication.write import ReadVerdict, Refusal, marked_just_now, reading, refusal
from dfc.storage.disk import Disk
from dfc.storage.rows import ALONE, NO_REPLICA, OtherCondition, Standing, later
from dfc.target.copies.messages import CopyKey
from dfc.target.local import TargetState

BUSY: Final = "another write of this object is on its way"
STEP_LOOK_S: Final = 0.1  # between two looks at the map while writes are waited for
CALM_S: Final = 3600.0  # until rows that are excess are gone as well, after all disks have caught up


def has_several(placement: Placement) -> bool:
    """Whether any object may be on more than one disk."""
    return placement.is_moving or any(max(each) > 1 for each in placement.copies.values())


def rank_of(found: Roles, disk: str) -> int:
    """Which replica of an object a disk is, for its catalog."""
    return found.replicas.index(disk) if disk in found.replicas else NO_REPLICA


def hint_key(found: Roles, disk: str) -> str:
    """The key of the hint that a disk lacks an object with these roles: the disk, or the disk `later`."""
    return disk if keeps_out_of_sync(found, disk) else later(disk)


class NotPeered(OtherCondition):
    """A write came to its commit when the map had just changed, and what others have of the name was not known yet."""


class PlacementChanged(Unavailable):
    """What was found out by an older placement may not hold any more."""


class _Ending:
    """The writes that somebody waits for: those that are `left`."""

    def __init__(self, left: set[CopyKey]) -> None:
        self.left = left
        self.over = asyncio.Event()

    def free(self, key: CopyKey) -> None:
        """The write of a name is over."""
        self.left.discard(key)
        if not self.left:
            self.over.set()


class Ledger:
    """For the event loop, except where a method says otherwise."""

    def __init__(self, local: TargetState) -> None:
        self._local = local
        self.in_doubt: set[CopyKey] = set()
        self.cleared: defaultdict[str, set[str]] = defaultdict(set)  # by disk: those that it has reported clean
        self._marked: dict[str, set[str]] = {}  # by disk: those that the newest step has marked out of sync with it
        self._taken = False  # whether any placement was taken
        self._watched: dict[CopyKey, int] = {}  # by name: how often something about it has arrived
        self.ranked: dict[str, int] = {}  # by disk: the layout by which its rows have their ranks; 0: some have none yet
        self._held: set[CopyKey] = set()
        self._freed: dict[CopyKey, list[asyncio.Future[None]]] = {}
        self._endings: set[_Ending] = set()  # of those that wait for writes
        self.wakers: set[asyncio.Event] = set()  # set when a step is taken that hands slices over

    @cached_property
    def peering(self) -> Peering:
        """Which names are peered here. The target knows its id before it takes its first map."""
        return Peering(self._local.node_id)

    # --- roles

    @property
    def placement(self) -> Placement:
        """The placement of the map in use. Usable from any thread."""
        return placement_of(self._local.map)

    def require(self, placement: Placement) -> None:
        """Check inside a transaction that nothing is decided by a newer placement yet. PlacementChanged."""
        if self.placement is not placement:
            raise PlacementChanged("the cluster map has changed")

    def roles(self, bucket_id: str, name: str) -> Roles:
        """Who does what for a name. Usable from any thread."""
        return roles(self.placement, bucket_id, name)

    def is_ranked(self, disk: str) -> bool:
        """Whether the ranks of the rows on a disk are those of the layout in force. Usable from any thread."""
        return self.ranked.get(disk, FIRST_LAYOUT) == self.placement.stable_layout

    def required_too(self, disk: str) -> set[str]:
        """The disks that a write of this disk must reach although they are out of sync with it."""
        return self.cleared[disk] | self._marked.get(disk, set())

    def passed_over(self, disk: str, other: str, step: int) -> None:
        """The coordinator has said that by this step all know that `other` is out of sync with `disk`."""
        self.cleared[disk].discard(other)
        if self.placement.step == step:
            self._marked.get(disk, set()).discard(other)

    def take(self, placement: Placement) -> None:
        """A new placement is about to be used."""
        before = self.placement if self._taken else None
        self._marked = {disk: marked_just_now(before, placement, disk) for disk in self._local.disks}
        self._taken = True
        for disk, cleared in self.cleared.items():
            cleared.intersection_update(
                {each.id for each in placement.disks.values() if each.is_up and disk in each.out_of_sync_with}
            )
        self.peering.take(placement)
        self.keep_tombstones(placement)
        if is_handing_over(placement):
            for waker in self.wakers:
                waker.set()

    def refresh(self, placement: Placement) -> None:
        """The placement of the same step is about to be used: buckets have come or gone, or disks that are in no layout."""
        if placement.disks.keys() != self.placement.disks.keys():  # one that was away may have been removed
            self.keep_tombstones(placement)
        self.peering.refresh(placement)

    def keep_tombstones(self, placement: Placement) -> None:
        """Have the disks here keep all tombstones until a while after the last one that may be needed. No I/O."""
        until_s = math.inf if needs_tombstones(placement) else time.monotonic() + CALM_S
        for disk in self._local.in_order():
            disk.copies.keep_tombstones_until(until_s)

    def is_peered(self, bucket_id: str, name: str, disk: str) -> bool:
        """Whether a name may be served whose primary is this disk. Usable from any thread."""
        return self.peering.is_peered(bucket_id, name, disk)

    def own_primary(self, found: Roles) -> str | None:
        """The disk of this target that is primary, if one is."""
        return found.primary if found.primary in self._local.disks else None

    def verdict(self, found: Roles, key: CopyKey, *, pending: bool) -> ReadVerdict:
        """What to do with a read at a disk of this target."""
        peered = self.is_peered(key.bucket_id, key.name, key.disk)
        return reading(found, key.disk, peered=peered, in_doubt=key in self.in_doubt, pending=pending)

    def speaks(self, key: CopyKey) -> bool:
        """Whether what a disk has of a name is what counts: it decides about it, and no write is on its way."""
        return self.decides(key) and key not in self.in_doubt

    def decides(self, key: CopyKey) -> bool:
        """Whether a disk decides about a name: it is the primary, may act, and has learned what others have."""
        return (
            self._local.is_leased
            and self.roles(key.bucket_id, key.name).primary == key.disk
            and self.is_peered(key.bucket_id, key.name, key.disk)
        )

    @contextmanager
    def watching(self, keys: Sequence[CopyKey]) -> Iterator[Callable[[CopyKey], bool]]:
        """In this context, what is yielded says whether something about a name has arrived since the beginning. It may be
        called from any thread."""
        before = {key: self._watched.setdefault(key, 0) for key in keys}
        try:
            yield lambda key: self._watched.get(key) != before[key]
        finally:
            for key in keys:
                self._watched.pop(key, None)

    def arrived(self, key: CopyKey) -> None:
        """Something about a name arrives."""
        if key in self._watched:
            self._watched[key] += 1

    async def until_over(self, disk: str) -> bool:
        """Wait until no write is on its way any more that is on its way now, of names of which a disk is primary: whether that
        has come about. Others may be by then, so it comes about however many there are. Not if the placement changes."""
        # Committers add to them meanwhile.
        placement, ending = self.placement, _Ending({key for key in tuple(self.in_doubt) if key.disk == disk})
        self._endings.add(ending)
        try:
            while ending.left and self.placement is placement:
                with suppress(TimeoutError):
                    async with asyncio.timeout(STEP_LOOK_S):
                        await ending.over.wait()
        finally:
            self._endings.remove(ending)
        return self.placement is placement

    # --- writes

    def guard(self, bucket: BucketEntry, key: CopyKey, marked: set[CopyKey]) -> Standing:
        """The check inside the transaction of a write at the primary, in the committer's thread: raises to refuse it, else says
        how its row is recorded. `marked` gets the name if that becomes in doubt with it."""
        if key in marked:  # by this write: a transaction that found the disk full is tried again
            marked.discard(key)
            self.in_doubt.discard(key)
        self._local.check_leased(commits=True)
        self._local.check_bucket(bucket)
        found = self.roles(key.bucket_id, key.name)
        peered = self.is_peered(key.bucket_id, key.name, key.disk)
        refused = refusal(found, key.disk, leased=True, peered=peered, in_doubt=key in self.in_doubt)
        if refused is not None:
            raise _refused(refused)
        rank = rank_of(found, key.disk)
        if not found.writers and not found.everywhere[1:]:
            return Standing(rank)  # nobody else takes part: it counts when it is committed
        self.in_doubt.add(key)
        marked.add(key)
        return Standing(rank, pending=True)

    def guard_published(self, bucket: BucketEntry, key: CopyKey, marked: set[CopyKey], *, pending: bool) -> Standing:
        """The same for an output of a job. With one copy it is published by this disk alone. If another disk is the primary by
        now, this one keeps it pending, and offers it; but not while something else is `pending` here, which may be undone."""
        if not bucket.has_several:
            return ALONE
        found = self.roles(key.bucket_id, key.name)
        if found.primary == key.disk:
            return self.guard(bucket, key, marked)
        if pending:
            raise Unavailable("it is not known yet whether another write of an output's name counts; try again")
        self._local.check_bucket(bucket)
        self._local.check_leased(commits=True)
        return Standing(rank_of(found, key.disk), pending=True)

    @asynccontextmanager
    async def hold(self, key: CopyKey, until_s: float) -> AsyncIterator[None]:
        """Wait until no write of a name is on its way, and keep other writes from beginning their commit. `until_s`: by the
        loop's clock. Unavailable."""
        await self._until_freed(key, lambda: key in self.in_doubt or key in self._held, until_s)
        self._held.add(key)
        try:
            yield
        finally:
            self._held.discard(key)
            self._tell(key)

    async def until_replicated(self, key: CopyKey, until_s: float) -> None:
        """Wait until no write of a name is on its way. Unavailable."""
        await self._until_freed(key, lambda: key in self.in_doubt, until_s)

    async def _until_freed(self, key: CopyKey, is_busy: Callable[[], bool], until_s: float) -> None:
        try:
            async with asyncio.timeout_at(until_s):
                while is_busy():
                    freed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._freed.setdefault(key, []).append(freed)
                    await freed
        except TimeoutError:
            raise Unavailable(f"{BUSY}; try again") from None

    def free(self, key: CopyKey) -> None:
        """The write of a name is replicated, or none of this target's any more."""
        self.in_doubt.discard(key)
        for ending in self._endings:
            ending.free(key)
        self._tell(key)

    def _tell(self, key: CopyKey) -> None:
        for freed in self._freed.pop(key, ()):
            if not freed.done():
                freed.set_result(None)


def _refused(refused: Refusal) -> Exception:
    if refused is Refusal.NOT_PRIMARY:
        return Unavailable("the cluster map changed during the upload; try again")
    if refused is Refusal.NOT_PEERED:
        return NotPeered("the cluster map has just changed, and this target does not know yet what others have; try again")
    return Unavailable(f"{BUSY}; try again")


# --- Which rows of a disk a target lists: those of objects of which the disk is primary, so that each object is listed once.

SCAN_ROWS: Final = 1000  # read at a time while some are left out


class Listed(NamedTuple):
    """The rows to be listed: of these `ranks`, and if there is a `wanted`, only names for which that is true."""

    ranks: Literal["first", "all"]
    wanted: Callable[[str], bool] | None = None

    def tuples(self, disk: Disk, bucket_id: str, *, prefix: str, start_after: str, after_prefix: bool, limit: int) -> list[Row]:
        """`Disk.list_tuples` of these rows; fewer than `limit` only at the end. Blocking."""
        found: list[Row] = []
        while len(found) < limit:
            count = limit if self.wanted is None else max(SCAN_ROWS, limit - len(found))
            page = disk.list_tuples(
                bucket_id, prefix=prefix, start_after=start_after, after_prefix=after_prefix, limit=count, ranks=self.ranks
            )
            if self.wanted is None:
                return page
            found += [row for row in page if self.wanted(row[0])]
            if len(page) < count:
                break
            start_after, after_prefix = page[-1][0], False
        return found[:limit]


FIRST: Final = Listed("first")


class ListedRows:
    """Decides for each disk of a target."""

    def __init__(self, local: TargetState, ledger: Ledger) -> None:
        self._local = local
        self._ledger = ledger

    def of(self, disk: Disk, bucket_id: str) -> Listed:
        """The rows of a bucket on a disk that are listed now. Usable from any thread."""
        placement = self._ledger.placement
        if self._ledger.is_ranked(disk.id) and _is_calm(placement, bucket_id):
            return FIRST
        return Listed("all", lambda name: roles(placement, bucket_id, name).primary == disk.id)

    def are_counted(self, disk: Disk) -> bool:
        """Whether the counters of a disk, which go by ranks, are by the layout in force. Usable from any thread."""
        return self._ledger.is_ranked(disk.id) and not self._ledger.placement.is_moving


def _is_calm(placement: Placement, bucket_id: str) -> bool:
    """Whether the first replica of each object is its primary, so that ranks tell it. With one copy it always is."""
    copies = placement.copies_of(bucket_id)
    if placement.is_moving:
        return False
    if copies.reading == 1:
        return True
    return is_calm(placement)
