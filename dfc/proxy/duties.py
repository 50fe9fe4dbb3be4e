"""The duties of a coordinator: steps of placement, disks that are evicted or taken in, registrations and leases.

Which steps are taken is decided by the planner of `dfc.replication.steps`; here the registry is changed and targets are heard.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from dfc.errors import BucketNotFound, NoRegistry, NotFound, Unavailable
from dfc.limits import STOP_CLOSE_S
from dfc.placement.map import ClusterMap, NodeEntry
from dfc.placement.mapped import is_paused, placement_of, wanted_layout
from dfc.placement.roles import Placement
from dfc.proxy.cluster import Cluster
from dfc.registry.base import EPOCHS, RECORD_BYTES_MAX, Lease, Registry
from dfc.registry.changes import StepOvertaken, forget_removed_disks, forgettable, mark_evicted, take_step, use_disks
from dfc.registry.messages import CleanReport, ClearedReport, Registered, Registration, SlicesReport
from dfc.replication.recovery import is_evicted, next_to_evict
from dfc.replication.steps import ReadyReport, StepPlanner
from dfc.replication.transitions import life_of
from dfc.replication.write import lease_s

_log: Final = logging.getLogger("dfc.proxy")
LOOK_S: Final = 0.5  # between two looks at who is silent; targets that have not acknowledged the last step get it again
OUT_OF_SYNC_S: Final = 15.0  # how long a primary waits here until a disk is out of sync with it
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

    def heard(self, heartbeat: Registration) -> bool:
        """Take a heartbeat; whether the target may act now. False unless this proxy is the coordinator."""
        planner = self._planner
        if planner is None or not self.leads or heartbeat.starting or heartbeat.node_id in self._going:
            return False
        planner.refresh(placement_of(self._cluster.map))
        if heartbeat.leaving:
            if not self._is_last and self._speaks_now(heartbeat):
                planner.leave(heartbeat.node_id)
                self._changed.set()
            return False
        before = self._speakers.get(heartbeat.node_id)
        self._speakers[heartbeat.node_id] = _Speaker(
            heartbeat.process, max(heartbeat.now_us, 0 if before is None else before.now_us)
        )
        incarnations = {disk.id: disk.incarnation for disk in heartbeat.disks if disk.state == "up"}
        may_act = planner.heartbeat(
            heartbeat.node_id, heartbeat.step, incarnations, self._cluster.now_s(), process=heartbeat.process
        )
        if planner.is_busy:
            self._changed.set()
        return may_act

    def end_with_all(self) -> None:
        """This is the last proxy, and it stops: who leaves now, or has just said so, is part of the same end."""
        self._is_last = True
        if self._planner is not None:
            self._planner.forget_leaving()

    def put_down(self, heartbeat: Registration) -> None:
        """A target that speaks may not act, and the process that might have is gone: it is declared down at once."""
        if self._planner is not None and self.leads:
            self._planner.refresh(placement_of(self._cluster.map))
            self._planner.put_down(heartbeat.node_id)
            self._changed.set()

    def _speaks_now(self, heartbeat: Registration) -> bool:
        """Whether this comes from the process that sends the heartbeats of its target. The network may deliver what one said at
        its end after the next one has a lease, and that one must not be declared down. In doubt it has to be silent first."""
        speaker = self._speakers.get(heartbeat.node_id)
        if speaker is not None and (heartbeat.process != speaker.process or 0 < heartbeat.now_us < speaker.now_us):
            _log.info("target %s says that it leaves, but not the process that was heard last: ignored", heartbeat.node_id)
            return False
        return True

    def acknowledged(self, node_id: str, step: int) -> None:
        """A target has answered a push: it decides by this step, and by no older one any more."""
        if self._planner is not None:
            self._planner.acknowledged(node_id, step)
            self._changed.set()

    async def mark_out_of_sync(self, primary: str, disk: str) -> ClusterMap:
        """Mark a disk out of sync with a primary that cannot reach it, and return the map when all targets decide by it.
        Unavailable."""
        planner = self._leading()
        self._check_disks(planner, primary, disk)
        planner.mark_out_of_sync(primary, disk)
        self._changed.set()
        try:
            async with asyncio.timeout(OUT_OF_SYNC_S):
                while not planner.is_out_of_sync(primary, disk):
                    await self._wait_for_change()
        except TimeoutError:
            raise Unavailable(f"not all targets know yet that disk {disk} may lack writes") from None
        return self._cluster.map

    def report_clean(self, report: CleanReport) -> None:
        """By this step, a disk has no hints left for another one. Unavailable when that is out of date."""
        planner = self._leading()
        self._check_disks(planner, report.disk, report.caught_up)
        if not planner.report_clean(report.disk, report.caught_up, report.step, process=report.process):
            raise Unavailable(
                f"the report of step {report.step} is out of date: the cluster is at step {planner.placement.step}"
            )
        self._changed.set()

    def unacknowledged(self) -> tuple[list[str], float]:
        """Return the targets that have not acknowledged the last step, and how many seconds ago that was; nobody unless this
        proxy is the coordinator."""
        if self._planner is None or not self.leads:
            return [], 0.0
        return self._planner.waits_for(), self._cluster.now_s() - self._stepped_s

    def raised(self) -> dict[str, int]:
        """Return by bucket id how many disks have given the new replicas of its objects everything that they have."""
        return {} if self._planner is None else self._planner.raised()

    def report_raised(self, disk: str, bucket_id: str, copies: int, step: int) -> None:
        """By this step, `disk` has no hints left for the new replicas of a bucket's objects."""
        planner = self._leading()
        self._check_disks(planner, disk)
        planner.report_ready(ReadyReport("raised", disk, bucket_id, copies), step)
        self._changed.set()

    def report_ready(self, report: SlicesReport) -> None:
        """By this step, a disk has no hints left for the future replicas of some slices."""
        planner = self._leading()
        self._check_disks(planner, report.disk)
        for number in report.slices:
            planner.report_ready(ReadyReport(report.readiness, report.disk, number, report.to), report.step)
        self._changed.set()

    async def change_copies(self, bucket_id: str, count: int) -> None:
        """Have the objects of a bucket get so many copies. Returns when the map says so; they are made or removed later.
        BucketNotFound; Unavailable unless this proxy is the coordinator, and if it cannot begin now: then it will not later."""
        planner = self._leading()
        wish = planner.want_copies(bucket_id, count)
        self._changed.set()
        try:
            async with asyncio.timeout(OUT_OF_SYNC_S):
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
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S / 10):
                await self._stepped.wait()

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
        if disk.is_up and not disk.out_of_sync_with and before.disks[disk.id].out_of_sync_with:
            _log.info("disk %s of target %s has caught up", disk.id, disk.node)
        if disk.status == "failed" and before.disks[disk.id].status == "up":
            _log.warning("disk %s of target %s cannot be written any more: it is marked failed", disk.id, disk.node)


# --- Disks that are away for too long are evicted: objects with several copies get other replicas. A duty of the coordinator.
#
# Which may be evicted, and what follows, is in `dfc.replication.recovery`. The map says which are, so a restart changes
# nothing.


class LostDisks:
    """Gives up disks that are away for `out_after_s`; 0: none. For how long they are is counted from when this coordinator
    began at the earliest. None of a target that somebody expects to be back."""

    def __init__(self, cluster: Cluster, out_after_s: float, wall_s: Callable[[], float] = time.time) -> None:
        self._cluster = cluster
        self._out_after_s = out_after_s
        self._wall_s = wall_s
        self._away: dict[str, float] = {}  # since when, by the clock of the cluster

    async def run(self, leadership: Lease) -> None:
        """Look for them until cancelled."""
        self._away = {}
        while True:
            await asyncio.sleep(LOOK_S)
            if forgettable(self._cluster.map):
                removed = ", ".join(sorted(forgettable(self._cluster.map)))
                await self._cluster.change(forget_removed_disks, fence=leadership)
                _log.info("removed for good, since lost: disk %s", removed)
            early = self._back_early()
            if early:
                await self._cluster.change(mark_evicted(early, evicted=False), fence=leadership)
            lost = self._lost()
            if lost:
                await self._cluster.change(mark_evicted(lost, evicted=True), fence=leadership)
                _log.warning("evicted, since away for %.0f s: disk %s", self._out_after_s, ", ".join(lost))

    def _back_early(self) -> list[str]:
        """Disks that are back before anything came of it."""
        placement, placed = placement_of(self._cluster.map), self._cluster.map.placed()
        found = [disk for disk, owner in placed.items() if owner.disk.evicted and disk in placement.up]
        return [disk for disk in found if not is_evicted(placement, disk)]

    def _lost(self) -> list[str]:
        """Disks that are to be evicted now: of one failure domain."""
        cluster_map, now_s, wall_s = self._cluster.map, self._cluster.now_s(), self._wall_s()
        placement = placement_of(cluster_map)
        away = sorted(placement.disks.keys() - placement.up)
        placed = cluster_map.placed()
        self._away = {disk: now_s if _is_expected(placed[disk].node, wall_s) else self._away.get(disk, now_s) for disk in away}
        if not self._out_after_s or all(bucket.copies == 1 for bucket in cluster_map.buckets):
            return []
        due = [disk for disk, since_s in self._away.items() if now_s - since_s > self._out_after_s]
        return sorted(next_to_evict(placement, [disk for disk in due if not placed[disk].disk.evicted]))

    async def report_cleared(self, report: ClearedReport) -> None:
        """A disk that was evicted is back, and by this step it has nothing that does not belong there: it gets objects again.
        NotFound; Unavailable when the step is out of date."""
        placement = placement_of(self._cluster.map)
        if report.disk not in placement.disks:
            raise NotFound(f"disk {report.disk} is not in placement")
        if report.step != placement.step:
            raise Unavailable(f"step {report.step} is out of date: the cluster is at step {placement.step}")
        if is_evicted(placement, report.disk):
            await self._cluster.change(mark_evicted([report.disk], evicted=False, step=report.step))
            _log.info("disk %s, which was evicted, is back and gets objects again", report.disk)


def _is_expected(node: NodeEntry, wall_s: float) -> bool:
    """Whether a target is down that somebody expects to be back. A disk that fails while its target runs is another matter."""
    return node.state == "down" and node.expected_by > wall_s


# --- Which disks objects are to be placed among: new ones are taken in. A duty of the coordinator; `Steps` moves the objects.


class Rebalancing:
    """Takes in new disks: `join_wait_s` after the first of them has joined, so that objects are moved once for all that join
    together; None: somebody has to say so."""

    def __init__(self, cluster: Cluster, join_wait_s: float | None) -> None:
        self._cluster = cluster
        self._join_wait_s = join_wait_s

    async def run(self, leadership: Lease) -> None:
        """Look for them until cancelled."""
        since_s: float | None = None
        while True:
            await asyncio.sleep(LOOK_S)
            new = self._new_disks()
            if not new or self._join_wait_s is None:
                since_s = None
                continue
            since_s = self._cluster.now_s() if since_s is None else since_s
            if self._cluster.now_s() >= since_s + self._join_wait_s:
                await self._cluster.change(use_disks(new, "in"), fence=leadership)
                _log.info("objects are moved to %d new %s: %s", len(new), "disk" if len(new) == 1 else "disks", ", ".join(new))
                since_s = None

    def _new_disks(self) -> list[str]:
        """Those that can be used."""
        placed = self._cluster.map.placed().items()
        return [
            disk
            for disk, owner in placed
            if owner.disk.use == "new" and (owner.node.state, owner.disk.state, owner.disk.down_step) == ("up", "up", 0)
        ]


# --- How far each disk has come, as targets report it: a disk that says less later was put back to an earlier state.
#
# Kept in the memory of the coordinator, and every few seconds in the registry, for the one after it. See `Disk.tell_epoch`.

KEEP_S: Final = 10.0
LAST_S: Final = STOP_CLOSE_S / 2  # for the last time, when the registry may be silent
ENTRY_BYTES_MAX: Final = 160  # of a disk in a record


class DiskEpoch(msgspec.Struct, frozen=True, array_like=True):
    """What was reported last of a disk: what is on it, how far it had come, by which process, and when by its wall clock."""

    disk: str
    incarnation: str
    epoch: int
    process: str
    now_us: int = 0

    def is_of(self, other: DiskEpoch) -> bool:
        """Whether both are of one life of a disk: each doubt has another incarnation, but the epoch goes on."""
        return self.disk == other.disk and life_of(self.incarnation) == life_of(other.incarnation)


def older(known: Mapping[str, DiskEpoch], reported: list[DiskEpoch]) -> dict[str, int]:
    """The disks that have come less far than is `known` of them, and how far that was. Pure.

    A process counts on from where its disk was when it opened that, so the first number of another one is higher than all that
    came before it. Of one process, numbers may arrive in any order; but one that is said later and is lower is of a machine
    that was put back as it ran. What has another life has another story.
    """
    found = dict[str, int]()
    for each in reported:
        before = known.get(each.disk)
        if before is None or not each.is_of(before):
            continue
        is_new = before.process != each.process
        if each.epoch <= before.epoch if is_new else each.epoch < before.epoch and each.now_us > before.now_us > 0:
            found[each.disk] = before.epoch
    return found


class DiskEpochs:
    """What the coordinator knows of disks. `cluster_map` gives the map of now."""

    def __init__(self, registry: Registry, cluster_map: Callable[[], ClusterMap]) -> None:
        self._registry = registry
        self._map = cluster_map
        self._known: dict[str, DiskEpoch] = {}
        self._kept: dict[str, bytes] = {}  # records as they are in the registry, as far as this proxy has written or read them

    def begin(self) -> None:
        """This proxy is the coordinator from now on: others may have heard more meanwhile."""
        self._kept = self._registry.records(EPOCHS)
        for name, record in self._kept.items():
            try:
                found = msgspec.json.decode(record, type=list[DiskEpoch])
            except msgspec.DecodeError as error:
                _log.error("the record %s of the registry cannot be read, and is not used: %s", name, error)
                continue
            for each in found:
                before = self._known.get(each.disk)
                if before is None or not each.is_of(before) or before.epoch < each.epoch:
                    self._known[each.disk] = each

    def check(self, heartbeat: Registration) -> dict[str, int]:
        """Take what a target says of its disks; return those that were put back, and how far they had come before."""
        told = [
            DiskEpoch(disk.id, disk.incarnation, heartbeat.epochs[disk.id], heartbeat.process, heartbeat.now_us)
            for disk in heartbeat.disks
            if heartbeat.epochs.get(disk.id)
        ]
        found = older(self._known, told)
        for each in told:
            before = self._known.get(each.disk)
            is_late = before is not None and each.is_of(before) and before.epoch > each.epoch
            if each.disk not in found and not is_late:
                self._known[each.disk] = each
        return found

    async def run(self, leadership: Lease) -> None:
        """Keep what is known in the registry, again and again; a last time when this proxy stops, unless that takes long."""
        try:
            while True:
                await asyncio.sleep(KEEP_S)
                await self._keep(leadership)
        finally:
            if leadership.is_held:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_S):
                        await self._keep(leadership)

    async def _keep(self, leadership: Lease) -> None:
        """Write what has changed: a record for each node, by its number. When it was heard changes all the time, and stays out
        of that."""
        placed = {f"{EPOCHS}{node.number}": [disk.id for disk in node.disks] for node in self._map().nodes if node.disks}
        for name, disks in placed.items():
            known = [msgspec.structs.replace(self._known[each], now_us=0) for each in disks if each in self._known]
            record = msgspec.json.encode(known[: RECORD_BYTES_MAX // ENTRY_BYTES_MAX])
            if known and self._kept.get(name) != record:
                await self._registry.keep(name, record, leadership)
                self._kept[name] = record
        for name in self._kept.keys() - placed.keys():
            await self._registry.keep(name, None, leadership)
            del self._kept[name]


# --- Registrations and heartbeats of targets, and the leases that answer them.

CLOCK_AHEAD_S_MAX: Final = 3600.0  # a target whose clock is further ahead of the others gets no lease


class Registrations:
    """Takes what targets say of themselves."""

    def __init__(
        self,
        cluster: Cluster,
        steps: Steps,
        down_after_s: float,
        scheduler: Callable[[], str] = str,
        advertised: Callable[[], str] = str,
        check_epochs: Callable[[Registration], dict[str, int]] = lambda _said: {},
    ) -> None:
        """`scheduler` tells by what workers reach the scheduler of jobs that this proxy runs; empty: it runs none.
        `advertised`: where clients reach this proxy. `check_epochs` finds disks that were put back to an earlier state."""
        self._cluster = cluster
        self._steps = steps
        self._lease_s = lease_s(down_after_s)
        self._scheduler = scheduler
        self._advertised = advertised
        self._check_epochs = check_epochs

    async def register(self, heartbeat: Registration) -> Registered:
        """Process a registration or heartbeat. Conflict when the node is not of this cluster, or no node number is left;
        IdInUse when it is a copy of one that runs.

        Most heartbeats change only disk usage, and then nothing waits for the registry.
        """
        cluster, steps = self._cluster, self._steps
        if not steps.leads and cluster.why_registry_silent:
            # Another proxy may be the coordinator by now: the target asks that.
            raise NoRegistry("the registry does not answer, so this proxy cannot be the coordinator, nor find it")
        if heartbeat.map_version > cluster.map.version:
            await cluster.see_version(heartbeat.map_version)
        await cluster.check_id_is_free(heartbeat, self._lease_s)
        node = await cluster.hear(heartbeat)
        older = self._check_epochs(heartbeat) if steps.leads and not heartbeat.starting and not heartbeat.leaving else {}
        why_older = _why_older(heartbeat, older)
        if why_older and (older or cluster.map.has_copies):
            may_act = False
            steps.put_down(heartbeat)  # others take over until it may act again
        else:
            may_act = steps.heard(heartbeat)
            if node.state == "down" and steps.leads and not heartbeat.starting and not heartbeat.leaving:
                await steps.until_up(node.id)
                may_act = steps.heard(heartbeat)
        node, shown = cluster.shown(heartbeat.node_id)
        lease, why_none = (0.0, why_older)
        if not why_older and not heartbeat.starting and not heartbeat.leaving:
            lease, why_none = self._lease(node, heartbeat.map_version, shown.version, may_act)
        return Registered(
            node_number=node.number,
            map=shown if heartbeat.map_version != shown.version else None,
            lease_s=lease,
            why_no_lease=why_none,
            is_shared=cluster.is_shared,
            jobs_scheduler=self._scheduler() if steps.leads else "",
            proxy_url=self._advertised(),
            older=older,
        )

    def _lease(self, node: NodeEntry, map_version: int, version: int, may_act: bool) -> tuple[float, str]:
        """Return for how long a node that was heard just now may act, and if it may not, why."""
        if node.state != "up":
            return 0.0, ""
        ahead_s = self._cluster.clock_ahead_s(node.id)
        if ahead_s > CLOCK_AHEAD_S_MAX:
            # Versions follow the newest clock, so all nodes would soon count from its time.
            return 0.0, f"its clock is {ahead_s / 3600:.1f} h ahead of most nodes; set the clock that is wrong"
        if map_version > version:
            # It would go on with that map until the registry's has passed it, perhaps knowing buckets that nobody else knows.
            return 0.0, (
                f"its map has version {map_version}, but the registry is at {version}; if that stays so, the registry is an old"
                " copy (docs/operations.md, 'A registry that is lost')"
            )
        if not self._steps.leads:
            return 0.0, "no proxy is the coordinator of the cluster at the moment"
        return (self._lease_s, "") if may_act else (0.0, "its disks are not those of the cluster map any more, or are down")


def _why_older(heartbeat: Registration, older: Mapping[str, int]) -> str:
    """Why a target whose disks were put back to an earlier state may not act; empty if it may.

    What other disks have of their objects they are given. What only they had is lost, and may seem never to have been there:
    then somebody has to accept that first.
    """
    if older:
        return f"disk {min(older)} was put back to an earlier state: it has come less far than was reported before"
    if heartbeat.unaccepted and not heartbeat.leaving:
        return (
            f"disk {min(heartbeat.unaccepted)} was put back to an earlier state: objects with one copy are lost or old there."
            " Stop the target, put back a newer state if there is one, run `dfc disk accept` on its directory and start it"
            " again"
        )
    return ""
