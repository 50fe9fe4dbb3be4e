"""Settling: what a target does before it serves names of which a step has made it the primary.

The primary before may have begun writes of those names, so others may hold rows that are not confirmed. The target asks every
other target that is up for its pending rows; a target that is asked takes the step first, and so commits nothing more for the
previous primary. When all have answered, the names are served, each as soon as its pending row is certain.

A row that is slow to come, or cannot be had, keeps only its own name waiting. In the end it may be given up: every row that was
acknowledged is at every reader, so also at the new primary, which is one. What only others have was never acknowledged.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final, TypeVar

from dfc.placement.roles import Roles, roles
from dfc.placement.state import Placement

SINCE_MAX: Final = 16  # steps since everything was settled, after which what was settled before counts no more
N = TypeVar("N", bound=Hashable)
V = TypeVar("V", str, tuple[int, int])


def counts(placement: Placement, found: Roles, disk: str) -> bool:
    """Whether a pending row on this disk is told to a new primary: a reader's, or that of another member which is behind
    nobody, such as the primary before while a name is handed over. A disk that is behind may have it from a write that was
    never acknowledged, and after which others were; it will ask the primary, and take what that has."""
    return disk in found.readers or (disk in found.members and not placement.disks[disk].behind)


def still_pending(before: Mapping[N, V], now: Mapping[N, V]) -> dict[N, V]:
    """Those of the versions that were pending `before`, by their names, which still keep a disk from being clean. One that has
    given way to a newer version does not: that is of a write which came after the question, and whoever decided it without this
    disk asks the same again when it is over. One that has given way to an older version does, as long as that is pending."""
    return {name: version for name, version in before.items() if name in now and now[name] <= version}


class Settling:
    """Which names are settled here. The target tells it every placement that it takes, in order of their steps."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._since: tuple[Placement, ...] = ()
        """The last placement under which everything was settled, and those that have followed, but for the newest one. Empty if
        that is too long ago, or one of them is not known: then nothing is settled before everything is."""
        self._placement: Placement | None = None
        self._answered: set[str] = set()
        self._done = True
        self._told: set[tuple[str, str]] = set()  # names whose rows were told of in this step, and have not come yet
        self._lacking: set[tuple[str, str]] = set()  # those that are not settled although all others are

    def take(self, placement: Placement) -> None:
        """A newer placement: everybody has to be asked again."""
        before = self._placement
        if before is None or placement.step != before.step + 1:
            self._since = ()
        elif self._done:
            self._since = (before,)
        elif self._since:
            self._since = (*self._since, before) if len(self._since) < SINCE_MAX else ()
        self._done = False  # only now, and before the placement: other threads ask what is settled
        self._placement, self._answered, self._told = placement, set(), set()

    def lack(self, bucket_id: str, name: str) -> None:
        """A pending row of this name is to be adopted, and has not come yet: the name stays unsettled until `has_come`."""
        self._told.add((bucket_id, name))

    def has_come(self, bucket_id: str, name: str) -> None:
        """The row is here and on its way to the others, or was given up."""
        self._told.discard((bucket_id, name))
        self._lacking.discard((bucket_id, name))

    def refresh(self, placement: Placement) -> None:
        """The placement of the same step: buckets and disks that nobody has used yet are added without one."""
        if self._placement is not None and placement.step == self._placement.step:
            self._placement = placement

    @property
    def step(self) -> int:
        """The step that is being settled, or was settled last."""
        return 0 if self._placement is None else self._placement.step

    @property
    def is_done(self) -> bool:
        """Whether all names are settled, except those whose pending rows have not come yet."""
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
        self._lacking = set(self._told)  # first, since other threads ask what is settled
        self._done = True
        return True

    def adopts(self, bucket_id: str, name: str, primary: str, *, newer: bool) -> bool:
        """Whether this disk, the primary, takes a pending row that another target told of: a `newer` one of a name that is not
        served yet. What has been served has an order already, and an older write must not come into it."""
        return newer and not self.is_settled(bucket_id, name, primary)

    def is_settled(self, bucket_id: str, name: str, primary: str) -> bool:
        """Whether a name may be served whose primary is this disk of this target: it was its primary already when everything
        was settled, and has been in every step since then. If another one was meanwhile, that may have begun writes."""
        if (bucket_id, name) in self._lacking:
            return False
        if self._done:
            return True
        since, now = self._since, self._placement
        if not since or now is None:
            return False
        return all(_knew(each, now, bucket_id) and roles(each, bucket_id, name).primary == primary for each in since)


def _knew(settled: Placement, now: Placement, bucket_id: str) -> bool:
    """Whether roles by the older placement mean something for a bucket. A bucket that it does not have seems to have one copy,
    whose disk decides even if it is behind; that is so only if there is one copy to be read to this day."""
    return bucket_id in settled.copies or now.copies_of(bucket_id).reading == 1
