"""The steps of placement: which targets and disks may read and write. A duty of the coordinator, around the planner of
`dfc.replication.steps`, which decides; here the registry is changed and targets are heard.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from dfc.errors import BucketNotFound, NotFound, Unavailable
from dfc.placement.map import ClusterMap
from dfc.placement.mapped import placement_of
from dfc.placement.state import Placement
from dfc.placement.wanted import is_paused, wanted_layout
from dfc.proxy.cluster import Cluster
from dfc.registry.changes import StepOvertaken, take_step
from dfc.registry.leases import Lease
from dfc.registry.registration import Registration
from dfc.registry.reports import CleanReport, SlicesReport
from dfc.replication.steps import ReadyReport, StepPlanner

_log: Final = logging.getLogger("dfc.proxy")
LOOK_S: Final = 0.5  # between two looks at who is silent; targets that have not acknowledged the last step get it again
BEHIND_S: Final = 15.0  # how long a primary waits here until a disk is behind it
MOVED_FOR_S: Final = 0.5  # see `StepPlanner`
UP_WAIT_S: Final = 1.0  # how long the answer to a target that is back waits for the step that takes it in


class _Speaker(NamedTuple):
    """The process of a target that sent the last heartbeat, and the newest wall clock that any of them has told."""

    process: str
    now_us: int


class Steps:
    """The planner of this proxy while it is the coordinator."""

    def __init__(self, cluster: Cluster, down_after_s: float) -> None:
        self._cluster = cluster
        self._down_after_s = down_after_s
        self._planner: StepPlanner | None = None
        self._leadership: Lease | None = None
        self._stepped_s = 0.0  # when this coordinator took its last step
        self._going: frozenset[str] = frozenset()  # targets that are being declared down
        self._taking: Placement | None = None  # a step that is being stored, or perhaps was: the registry has not said yet
        self.may_move: Callable[[], bool] = lambda: True
        self.before_leading: Callable[[], None] = lambda: None  # called before anybody gets a lease from this coordinator
        self._is_last = False
        self._speakers: dict[str, _Speaker] = {}  # by the id of the target, since this proxy began
        self._changed = asyncio.Event()
        self._stepped = asyncio.Event()  # set, and replaced, with each step

    @property
    def leads(self) -> bool:
        """Whether this proxy is the coordinator now."""
        return self._leadership is not None and self._leadership.is_held

    def heard(self, said: Registration) -> bool:
        """Take a heartbeat; whether the target may act now. False unless this proxy is the coordinator."""
        planner = self._planner
        if planner is None or not self.leads or said.starting or said.node_id in self._going:
            return False
        planner.refresh(placement_of(self._cluster.map))
        if said.leaving:
            if not self._is_last and self._speaks_now(said):
                planner.leave(said.node_id)
                self._changed.set()
            return False
        before = self._speakers.get(said.node_id)
        self._speakers[said.node_id] = _Speaker(said.process, max(said.now_us, 0 if before is None else before.now_us))
        incarnations = {disk.id: disk.incarnation for disk in said.disks if disk.state == "up"}
        may_act = planner.heartbeat(said.node_id, said.step, incarnations, self._cluster.now_s(), process=said.process)
        if planner.is_busy:
            self._changed.set()
        return may_act

    def end_with_all(self) -> None:
        """This is the last proxy, and it stops: who leaves now, or has just said so, is part of the same end."""
        self._is_last = True
        if self._planner is not None:
            self._planner.forget_leaving()

    def put_down(self, said: Registration) -> None:
        """A target that speaks may not act, and the process that might have is gone: it is declared down at once."""
        if self._planner is not None and self.leads:
            self._planner.refresh(placement_of(self._cluster.map))
            self._planner.put_down(said.node_id)
            self._changed.set()

    def _speaks_now(self, said: Registration) -> bool:
        """Whether this comes from the process that sends the heartbeats of its target. The network may deliver what one said at
        its end after the next one has a lease, and that one must not be declared down. In doubt it has to be silent first."""
        speaker = self._speakers.get(said.node_id)
        if speaker is not None and (said.process != speaker.process or 0 < said.now_us < speaker.now_us):
            _log.info("target %s says that it leaves, but not the process that was heard last: ignored", said.node_id)
            return False
        return True

    def acknowledged(self, node_id: str, step: int) -> None:
        """A target has answered a push: it decides by this step, and by no older one any more."""
        if self._planner is not None:
            self._planner.acknowledged(node_id, step)
            self._changed.set()

    async def put_behind(self, primary: str, disk: str) -> ClusterMap:
        """Put a disk behind a primary that cannot reach it, and return the map when all targets decide by it. Unavailable."""
        planner = self._leading()
        self._check_disks(planner, primary, disk)
        planner.mark_behind(primary, disk)
        self._changed.set()
        try:
            async with asyncio.timeout(BEHIND_S):
                while not planner.is_behind(primary, disk):
                    await self._wait_for_change()
        except TimeoutError:
            raise Unavailable(f"not all targets know yet that disk {disk} may lack writes") from None
        return self._cluster.map

    def report_clean(self, said: CleanReport) -> None:
        """By this step, a disk owes nothing to another one. Unavailable when that is out of date."""
        planner = self._leading()
        self._check_disks(planner, said.disk, said.behind)
        if not planner.report_clean(said.disk, said.behind, said.step, process=said.process):
            raise Unavailable(f"the report of step {said.step} is out of date: the cluster is at step {planner.placement.step}")
        self._changed.set()

    def unacknowledged(self) -> tuple[list[str], float]:
        """Return the targets that have not acknowledged the last step, and how many seconds ago that was; nobody unless this
        proxy is the coordinator."""
        if self._planner is None or not self.leads:
            return [], 0.0
        return self._planner.waits_for(), self._cluster.now_s() - self._stepped_s

    def raised(self) -> dict[str, int]:
        """Return by bucket id how many disks have given the new homes of its objects everything that they have."""
        return {} if self._planner is None else self._planner.raised()

    def report_raised(self, disk: str, bucket_id: str, copies: int, step: int) -> None:
        """By this step, `disk` owes nothing to the new homes of a bucket's objects."""
        planner = self._leading()
        self._check_disks(planner, disk)
        planner.report_ready(ReadyReport("raised", disk, bucket_id, copies), step)
        self._changed.set()

    def report_ready(self, said: SlicesReport) -> None:
        """By this step, a disk owes nothing to the homes to come of some slices."""
        planner = self._leading()
        self._check_disks(planner, said.disk)
        for number in said.slices:
            planner.report_ready(ReadyReport(said.readiness, said.disk, number, said.to), said.step)
        self._changed.set()

    async def change_copies(self, bucket_id: str, count: int) -> None:
        """Have the objects of a bucket get so many copies. Returns when the map says so; they are made or removed later.
        BucketNotFound; Unavailable unless this proxy is the coordinator, and if it cannot begin now: then it will not later."""
        planner = self._leading()
        wish = planner.want_copies(bucket_id, count)
        self._changed.set()
        try:
            async with asyncio.timeout(BEHIND_S):
                while not self._is_wanted(bucket_id, count):
                    await self._wait_for_change()
        except TimeoutError:
            raise Unavailable(self._why_unwanted(bucket_id, count)) from None
        finally:
            planner.withdraw(wish)  # nobody is told that it failed and sees it happen later

    def _is_wanted(self, bucket_id: str, count: int) -> bool:
        """Whether the map says that so many copies are wanted, and the step that is being stored, if any, does too."""
        cluster_map = self._cluster.map
        if cluster_map.bucket_of(bucket_id) is None:
            raise BucketNotFound("the bucket was deleted meanwhile")
        coming = placement_of(cluster_map) if self._taking is None else self._taking
        return placement_of(cluster_map).copies_of(bucket_id).wanted == count == coming.copies_of(bucket_id).wanted

    def _why_unwanted(self, bucket_id: str, count: int) -> str:
        """Return what to tell somebody who has waited in vain."""
        if self._taking is not None and self._taking.copies_of(bucket_id).wanted == count:
            return "the registry has not answered yet whether the number of copies is changed; look at the bucket in a while"
        now = placement_of(self._cluster.map).copies_of(bucket_id).wanted
        well = "; to get down to one copy, all disks must also be up and lack nothing" if count == 1 else ""
        return (
            f"objects are to have {now} {'copy' if now == 1 else 'copies'} as before, since that cannot be changed now:"
            f" all targets that are up must have acknowledged the last step{well}. Try again then"
        )

    def _leading(self) -> StepPlanner:
        if self._planner is None or not self.leads:
            raise Unavailable("this proxy is not the coordinator of its cluster at the moment", retry_after_s=1)
        self._planner.refresh(placement_of(self._cluster.map))
        return self._planner

    @staticmethod
    def _check_disks(planner: StepPlanner, *disks: str) -> None:
        for disk in disks:
            if disk not in planner.placement.disks:
                raise NotFound(f"disk {disk[:80]} is not in placement")

    async def _wait_for_change(self) -> None:
        """Wait until a step is taken or acknowledged."""
        stepped = self._stepped
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S / 10):
                await stepped.wait()

    async def until_up(self, node_id: str) -> None:
        """Wait a moment for the step that takes in a target which is back."""
        with suppress(TimeoutError):
            async with asyncio.timeout(UP_WAIT_S):
                while self._planner is not None and not self._planner.is_up(node_id):
                    await self._stepped.wait()

    async def run(self, leadership: Lease) -> None:
        """Take one step after the other. Silence of targets counts from now at the earliest, since the previous coordinator may
        have heard them."""
        # A step of the office before may still be on its way to the disk; nobody gets a lease by a placement that it overtakes.
        await self._cluster.confirm(leadership)
        self._taking = None
        self._cluster.begin_to_lead()
        self.before_leading()
        placement = placement_of(self._cluster.map)
        self._planner = planner = StepPlanner(placement, self._down_after_s, self._cluster.now_s(), MOVED_FOR_S)
        self._leadership = leadership
        self._stepped_s = self._cluster.now_s()
        try:
            while True:
                self._changed.clear()
                if not await self._take_one(planner, leadership):
                    await self._wait(planner)
        finally:
            self._planner = self._leadership = None

    async def _take_one(self, planner: StepPlanner, leadership: Lease) -> bool:
        """Take the next step, if there is one that may be taken. StepOvertaken when the registry is at a later step than the
        planner: a step counts whose publication seemed to fail, so planning has to begin anew."""
        now = placement_of(self._cluster.map)
        if now.step > planner.placement.step:
            raise StepOvertaken(f"step {planner.placement.step} was planned from, but the registry is at step {now.step}")
        planner.refresh(now)
        for wish in planner.wishes():
            if self._cluster.map.bucket_of(wish.bucket_id) is None:  # it was deleted meanwhile
                planner.withdraw(wish)
        planner.want_layout(wanted_layout(self._cluster.map))
        may_move = self.may_move() and not is_paused(self._cluster.map)
        before, new = planner.placement, planner.next_step(self._cluster.now_s(), may_move=may_move)
        if new is None:
            return False
        self._going, self._taking = frozenset(_down(new) - _down(before)), new
        seen = [node for node in self._cluster.map.nodes if node.id in self._going]
        try:
            await self._cluster.change(take_step(before, new, seen), fence=leadership)
        except StepOvertaken:
            self._taking = None
            await asyncio.sleep(LOOK_S / 10)  # this proxy may not have heard of the other change yet
            return True
        finally:
            self._going = frozenset()
        self._taking = None
        planner.published(new)
        self._stepped_s = self._cluster.now_s()
        stepped, self._stepped = self._stepped, asyncio.Event()
        stepped.set()
        _log_step(before, new)
        return True

    async def _wait(self, planner: StepPlanner) -> None:
        try:
            async with asyncio.timeout(LOOK_S):
                await self._changed.wait()
        except TimeoutError:
            self._cluster.push_again(planner.waits_for())


def _down(placement: Placement) -> set[str]:
    return {disk.node for disk in placement.disks.values() if disk.status == "down"}


def _log_step(before: Placement, new: Placement) -> None:
    for node in sorted(_down(new) - _down(before)):
        _log.warning("target %s leaves, or sends no heartbeats: marked down", node)
    for node in sorted(_down(before) - _down(new)):
        _log.info("target %s is back", node)
    for disk in new.disks.values():
        if disk.is_up and not disk.behind and before.disks[disk.id].behind:
            _log.info("disk %s of target %s has caught up", disk.id, disk.node)
        if disk.status == "failed" and before.disks[disk.id].status == "up":
            _log.warning("disk %s of target %s cannot be written any more: it is marked failed", disk.id, disk.node)
