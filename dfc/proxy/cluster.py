"""The proxy's view of the cluster: the current map, owners of objects, registrations, and calls to all targets at once."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from dfc.errors import BucketDeleting, BucketNotFound, Conflict, IdInUse, NoRegistry, NoSpace, TooFewDomains, Unavailable
from dfc.http.peer import ControlClient
from dfc.http.shutdown import end
from dfc.logs import timestamp
from dfc.names import check_bucket_name
from dfc.placement.map import EMPTY_MAP, BucketEntry, ClusterMap, DiskUse, Durability, NodeEntry, usage_of
from dfc.placement.mapped import placement_of, readers_of
from dfc.proxy.heartbeats import Heartbeats, LastHeartbeat, Pushes
from dfc.registry import changes
from dfc.registry.base import Lease, Registry
from dfc.registry.changes import Change, RegistryState
from dfc.registry.messages import CoordinatorReport, Registration, is_known

_log: Final = logging.getLogger("dfc.proxy")
T = TypeVar("T")
RETRY_DOWN_S: Final = 2
VERSION_S: Final = 0.5
FIRST_BEAT_S: Final = 10.0  # targets that run send heartbeats every second; for others it is as long as until they are down
FIRST_LOOK_S: Final = 0.05
FOREIGN_S: Final = 15.0  # for so long it is told that a target of another cluster, or a copy of one of this, has asked
FOREIGN_MAX: Final = 100  # of these targets are remembered
TWIN_ASK_S: Final = 1.0  # for an answer of a target that was heard a moment ago
HEALTH_BYTES_MAX: Final = 4096
NEWEST_S: Final = 3.0  # when the leader of etcd is lost, the next one is there in 2 s


class Cluster:
    """The registry, the calls to targets and their last heartbeats. Owns the registry and closes it.

    `acknowledged` is called with a target's id and the step that it decides by when it has answered a push.
    """

    def __init__(
        self,
        registry: Registry,
        control: ControlClient,
        auto_create: bool,
        expected_targets: int,
        heartbeats: Heartbeats | None = None,
        acknowledged: Callable[[str, int], None] = lambda _node_id, _step: None,
        default_copies: int = 1,
    ) -> None:
        self._registry = registry
        self._heartbeats = heartbeats or Heartbeats()
        self.control = control
        self._auto_create = auto_create
        self.expected_targets = expected_targets
        self.default_copies = default_copies
        self._pushes: set[asyncio.Task[None]] = set()
        self.push = Pushes(control, acknowledged).push
        self._seen = EMPTY_MAP, EMPTY_MAP
        self._foreign: dict[str, tuple[str, float]] = {}
        self._twins: dict[str, tuple[str, float]] = {}
        self._replaced: dict[str, str] = {}  # by node: the process before that of now
        self._returned: dict[str, str] = {}  # by node: that process, if it was heard again
        self._began_s = 0.0  # when the registry was opened, by the loop's clock

    @property
    def map(self) -> ClusterMap:
        """The registry's map, with disk usage from the last heartbeats. Usable from any thread."""
        return self._newest()[1]

    def _newest(self) -> tuple[ClusterMap, ClusterMap]:
        """Return the registry's map, and the same with disk usage. Another thread may replace it at any moment."""
        seen = self._seen
        newest = self._registry.map
        if newest is not seen[0]:
            seen = self._seen = newest, self._heartbeats.overlay(newest)
        return seen

    def is_ready(self) -> bool:
        """Whether the expected number of targets has joined. After that, a target that is down affects only its own objects,
        and targets may be removed: once disks have joined or left while there were objects, it does not matter any more."""
        return bool(self.map.layouts) or len(self.map.targets()) >= self.expected_targets

    def check_ready(self) -> None:
        """Raise Unavailable until the expected targets have joined, since objects would be placed on too few."""
        if not self.is_ready():
            raise Unavailable(
                f"the cluster is not ready: {len(self.map.targets())} of {self.expected_targets} targets have joined"
            )

    def begin(self) -> None:
        """From now on targets can be heard."""
        self._began_s = asyncio.get_running_loop().time()

    async def confirm(self, leadership: Lease) -> None:
        """Wait until all changes before this one are made, of which one of the office before may be on its way. LeaseLost."""
        await self._registry.change(lambda state: state, fence=leadership)

    async def close(self) -> None:
        await self._registry.close()

    @property
    def is_shared(self) -> bool:
        """Whether other proxies may change the map."""
        return self._registry.is_shared

    @property
    def why_registry_silent(self) -> str:
        """Why the registry cannot be read and changed; empty if it can."""
        return self._registry.why_silent

    @property
    def why_registry_unwritten(self) -> str:
        """Why the last change of the registry failed, if that was a moment ago."""
        return self._registry.why_unwritten

    def version(self) -> int:
        """The version of the map that is known here."""
        return self._registry.map.version

    async def newest(self) -> int:
        """Read the map from the registry, and return its version. NoRegistry when it does not answer, or is an old copy."""
        await self._until_all_reported()
        await self._check_age()
        await self._read()
        return self._registry.map.version

    async def _read(self) -> None:
        """Read the map from the registry. NoRegistry."""
        try:
            async with asyncio.timeout(NEWEST_S):
                await self._registry.change(lambda state: state)
        except (Unavailable, TimeoutError) as error:
            raise NoRegistry("the registry does not answer, so this proxy may not know the newest buckets") from error

    async def _until_all_reported(self) -> None:
        """Just after the start, wait for a heartbeat of each target that is up, or for what the coordinator has heard: any of
        them may know that this registry is old, and then nobody need be waited for. NoRegistry while nobody at all has been
        heard, however long: the first change would make versions that targets know with other contents, and whoever comes then
        would not be seen to know more."""
        until_s = self._began_s + FIRST_BEAT_S
        while self.map.targets() and self._heartbeats.newest_version() <= self.version():
            if self.has_reports() and self._heartbeats.has_all(node.id for node in self.map.targets() if node.state == "up"):
                return
            left_s = until_s - asyncio.get_running_loop().time()
            if left_s <= 0 and self._heartbeats.has_any:
                return
            if left_s <= 0:
                raise NoRegistry(
                    "no target has been heard since this proxy was started, and the registry may be an old copy: nothing is"
                    " changed before one is"
                )
            await asyncio.sleep(min(FIRST_LOOK_S, left_s))

    def has_reports(self) -> bool:
        """Whether it is known what version of the map targets have: from one of them, or from the coordinator."""
        return bool(self._heartbeats.newest_version())

    async def _check_age(self) -> None:
        """Check that no target knows a newer map than the registry: otherwise that is an old copy, and a change would make a
        version that they know with other contents. NoRegistry."""
        version = self._heartbeats.newest_version()
        if version > self.version():
            await self.see_version(version)
            if version > self.version() and self.is_shared:
                await self._read()
            if version > self.version():
                raise NoRegistry(
                    f"the registry is an old copy: it has version {self.version()} of the cluster map, and targets know"
                    f" {version}; see `dfc cluster status`"
                )

    async def see_version(self, version: int) -> None:
        """Wait a moment for this version of the map, which another proxy has given to a target."""
        with suppress(TimeoutError, Unavailable):
            async with asyncio.timeout(VERSION_S if self.is_shared else 0):
                await self._registry.watch(version - 1)

    # --- changes

    async def change(self, change: Change, *, fence: Lease | None = None) -> RegistryState:
        """Change the registry; see `Registry.change`. NoRegistry if it is an old copy."""
        await self._until_all_reported()
        await self._check_age()
        return await self._registry.change(change, fence=fence)

    async def create_bucket(
        self, name: str, copies: int, durability: Durability, min_copies: int = 0
    ) -> tuple[BucketEntry, bool]:
        """Create a bucket; return it and whether it is new. BucketConflict if it has other settings, BucketDeleting."""
        new = _new_bucket(name, copies, durability, min_copies)
        bucket = _bucket_of((await self.change(changes.create_bucket(new))).map, name)
        return bucket, bucket.id == new.id

    async def change_bucket(self, name: str, *, fence: Lease | None = None, **fields: object) -> BucketEntry:
        """Replace fields of a bucket. BucketNotFound; LeaseLost if the `fence` has expired."""
        return _bucket_of((await self.change(changes.change_bucket(name, **fields), fence=fence)).map, name)

    async def remove_bucket(self, bucket: BucketEntry, without: Collection[str] = (), *, fence: Lease | None = None) -> None:
        """Remove a bucket whose objects are gone from the registry; these disks may still have some of them."""
        await self.change(changes.remove_bucket(bucket.name, bucket.id, without), fence=fence)

    # --- nodes

    async def hear(self, heartbeat: Registration) -> NodeEntry:
        """Take a registration or heartbeat, and return the node as the registry has it now. Conflict when it is not of this
        cluster, or no node number is left. Unavailable."""
        try:
            changes.check_registration(self.map, heartbeat)
        except Conflict:
            self._note_foreign(heartbeat)
            raise
        cluster_map = self.map
        known = cluster_map.node(heartbeat.node_id)
        self._heartbeats.take(heartbeat, cluster_map.version)  # first, since the node is alive, however long the registry takes
        if not is_known(cluster_map, heartbeat):
            try:
                await self._check_age()
                await self._registry.change(changes.join(heartbeat))  # the first to join is not kept waiting for others
            except Conflict:
                if known is None:
                    self._heartbeats.forget(heartbeat.node_id)
                raise
            except NoSpace as error:  # of this proxy; the node asks again
                raise NoRegistry(error.message) from error
        return self.shown(heartbeat.node_id)[0]

    def _note_foreign(self, heartbeat: Registration) -> None:
        if heartbeat.cluster_id == self.map.cluster_id:
            return
        if heartbeat.node_id not in self._foreign:
            line = "target %s at %s is refused: it is of cluster %s"
            _log.warning(line, heartbeat.node_id, heartbeat.url, heartbeat.cluster_id or "(none)")
        _remember(self._foreign, heartbeat.node_id, heartbeat.cluster_id, self.now_s())

    def foreign(self) -> dict[str, str]:
        """Targets of other clusters that have asked to join a moment ago, with the ids of their clusters."""
        return _lately(self._foreign, self.now_s())

    async def check_id_is_free(self, heartbeat: Registration, lease_s: float) -> None:
        """Raise IdInUse if another process has this id and may act under a lease: a copy of a target's directory must not run
        beside it. A target that was started anew is taken at once, unless it is not certain that the one before has ended:
        Unavailable until its lease is over."""
        node_id = heartbeat.node_id
        last = self._heartbeats.lately(node_id, lease_s)
        if last is None or heartbeat.process in ("", last.process) or not last.process or heartbeat.leaving:
            return
        runs: bool | None = False
        if heartbeat.process == self._replaced.get(node_id):
            # One that was started anew never has the name of a process from before. But a word of that may come late, once.
            runs = True if self._returned.get(node_id) == heartbeat.process else None
            self._returned[node_id] = heartbeat.process
        elif last.url != heartbeat.url and not last.leaving:
            runs = await self._is_answered_by(last.url, node_id)
        if runs is None:
            raise Unavailable(f"target {node_id} was heard at {last.url} a moment ago, and may still run there")
        if runs:
            if node_id not in self.twins():
                _log.error(
                    "target %s runs at %s, and another one with its id at %s is refused", node_id, last.url, heartbeat.url
                )
            _remember(self._twins, node_id, heartbeat.url, self.now_s())
            raise IdInUse(f"target {node_id} runs at {last.url} already: this is a copy of it, see docs/operations.md")
        self._replaced[node_id] = last.process

    async def _is_answered_by(self, url: str, node_id: str) -> bool | None:
        """Whether a target runs at a URL; None: it cannot be told."""
        try:
            async with asyncio.timeout(TWIN_ASK_S):
                _, _, content = await self.control.fetch("GET", f"{url}/v1/health", b"", {}, bytes_max=HEALTH_BYTES_MAX)
            found = msgspec.json.decode(content, type=_Health).id
            return found == node_id if found else None
        except Unavailable as error:
            # Nobody listens there. Whoever hangs, or is cut off from here, may act all the same.
            return False if isinstance(getattr(error.__cause__, "os_error", None), ConnectionRefusedError) else None
        except (TimeoutError, msgspec.DecodeError):
            return None

    def twins(self) -> dict[str, str]:
        """Targets of which copies have asked to join a moment ago, with the addresses of these."""
        return _lately(self._twins, self.now_s())

    def begin_to_lead(self) -> None:
        """This proxy is the coordinator from now on, perhaps after another one: what it has heard before counts no more."""
        if self.is_shared:
            self._heartbeats.begin()

    def tell(self) -> CoordinatorReport:
        """What other proxies want to know of what was heard here."""
        return CoordinatorReport(map=self.map, newest_version=self._heartbeats.newest_version())

    def take_report(self, report: CoordinatorReport) -> None:
        """Take what the coordinator tells, if that is another proxy."""
        self._heartbeats.take_report(report)
        kept = self._registry.map
        self._seen = kept, self._heartbeats.overlay(kept)

    def shown(self, node_id: str) -> tuple[NodeEntry, ClusterMap]:
        """Return a node that has just been heard, and the map with its disk usage. Unavailable if it was removed."""
        kept, newest = self._newest()  # once: a second call might return a later map
        node = newest.node(node_id)
        if node is None:
            raise Unavailable(f"node {node_id} was removed from the cluster while it registered")
        shown = newest.with_use(self._heartbeats.refresh(node))
        self._seen = kept, shown
        return node, shown

    def clock_ahead_s(self, node_id: str) -> float:
        """Return how far a node's wall clock is ahead of most nodes' clocks; negative if it is behind."""
        return self._heartbeats.clock_ahead_s(node_id)

    def heard(self) -> dict[str, LastHeartbeat]:
        """Return what every node has said last, by id."""
        return self._heartbeats.heard()

    def now_s(self) -> float:
        """Return the time by which heartbeats are counted, in seconds since the machine booted."""
        return self._heartbeats.now_s()

    # --- the map at the targets

    async def push_maps(self, _leadership: Lease) -> None:
        """Send every new map to the targets immediately, not only with their next heartbeats: a duty of the coordinator."""
        version = self.map.version
        try:
            while True:
                version = (await self._registry.watch(version)).version
                # Do not wait for a target that does not answer: the next map may be sent at the same time.
                self._push_soon(self.up_targets())
        finally:
            await end(*self._pushes)

    def push_again(self, node_ids: Collection[str]) -> None:
        """Send the map to these targets once more, if they are up; only while `push_maps` runs."""
        nodes = [node for node in self.up_targets() if node.id in node_ids]
        if nodes:
            self._push_soon(nodes)

    def _push_soon(self, nodes: Sequence[NodeEntry]) -> None:
        task = asyncio.create_task(self._push_quietly(nodes))
        self._pushes.add(task)
        task.add_done_callback(self._pushes.discard)

    async def _push_quietly(self, nodes: Sequence[NodeEntry]) -> None:
        cluster_map = self.map
        await asyncio.gather(*(self.push(node, cluster_map) for node in nodes), return_exceptions=True)

    # --- buckets and owners

    def bucket(self, name: str) -> BucketEntry:
        return _bucket_of(self.map, name)

    def check_copies(self, copies: int) -> None:
        """Check that a bucket may have so many copies. TooFewDomains."""
        placed = self.map.placed()
        domains = len({placed[disk].domain for disk in self.map.may_hold_copies()})
        if copies > domains:
            raise TooFewDomains(
                f"{copies} copies need as many failure domains (targets, or what their settings 'zone' and 'host_label' name); "
                f"this cluster has {domains}"
            )

    def check_use(self, disks: Collection[str], use: DiskUse) -> None:
        """Check that enough disks hold objects when these are used otherwise. TooFewDomains."""
        placed = self.map.placed().items()
        used = [owner for disk, owner in placed if (use if disk in disks else owner.disk.use) == "in"]
        left = {owner.domain for owner in used if not owner.disk.evicted}
        needed = max((bucket.goal for bucket in self.map.buckets), default=1)
        if len(left) < needed:
            most = max(self.map.buckets, key=lambda bucket: bucket.goal, default=None)
            what = "objects have to be somewhere" if most is None else f"bucket {most.name} has {needed} copies of each object"
            raise TooFewDomains(
                f"disks of {len(left)} failure domains would be left, but {what}: add disks, or lower its copies, first"
            )

    async def bucket_for_write(self, name: str) -> BucketEntry:
        """Return the bucket; the first write creates it if the settings allow that. TooFewDomains for `default_copies`."""
        self.check_ready()
        found = self.map.bucket(name)
        if found is None:
            if not self._auto_create:
                raise BucketNotFound(f"bucket {name!r} does not exist, and auto_create is off")
            self.check_copies(self.default_copies)
            new = _new_bucket(name, self.default_copies)
            found = _bucket_of((await self.change(changes.ensure_bucket(new))).map, name)
        if found.state == "deleting":
            raise BucketDeleting(f"bucket {name!r} is being deleted")
        return found

    def readers(self, bucket: BucketEntry, name: str) -> list[NodeEntry]:
        """Return the nodes that an object can be read from, in order; Unavailable with Retry-After when there is none."""
        cluster_map = self.map
        found = readers_of(cluster_map, bucket.id, name)
        if found:
            return found
        owner = cluster_map.owner(bucket, name)
        if owner is None:
            raise Unavailable("no storage target has joined yet")
        if cluster_map.is_copied(bucket.id):
            raise Unavailable("all targets that hold this object are down or incomplete", retry_after_s=RETRY_DOWN_S)
        raise Unavailable(f"target {owner.node.id}, which holds this object, is down", retry_after_s=RETRY_DOWN_S)

    def primary(self, bucket: BucketEntry, name: str) -> NodeEntry:
        """Return the node that takes the writes of an object; raises like `readers`."""
        return self.readers(bucket, name)[0]

    def check_free(self, size: int, what: str) -> None:
        """Raise NoSpace when all disks together have less than `size` bytes free, by the last heartbeats."""
        used, capacity = usage_of(self.map.targets())
        if size > capacity - used:
            raise NoSpace(f"out of space: {what} need {size} bytes, all disks together have {capacity - used} free")

    # --- all targets

    def live_targets(self, by: ClusterMap | None = None) -> list[NodeEntry]:
        """Return the targets to ask for a complete answer, `by` a map; Unavailable while one that is needed is down."""
        cover = (by or self.map).cover()
        if cover.missing:
            down = cover.missing[0].id
            raise Unavailable(f"target {down} is down; an answer without it would be incomplete", retry_after_s=RETRY_DOWN_S)
        if not cover.ask:
            raise Unavailable("no storage target has joined yet")
        return list(cover.ask)

    def up_targets(self) -> list[NodeEntry]:
        """Return all targets that are up and decide by the map, also those that hold nothing yet, or nothing any more."""
        return [node for node in self.map.targets() if node.state == "up"]

    def all_targets(self) -> list[NodeEntry]:
        """Return all targets, also those that hold no objects; Unavailable while one is down."""
        targets = self.map.targets()
        down = next((node.id for node in targets if node.state != "up"), None)
        if down is not None:
            raise Unavailable(f"target {down} is down; an answer without it would be incomplete", retry_after_s=RETRY_DOWN_S)
        return targets

    def targets_of(self, bucket_id: str, by: ClusterMap | None = None) -> list[NodeEntry]:
        """Return the targets to ask for a complete answer about the objects of a bucket, `by` a map. Unavailable while some
        objects may have no copy on a disk that can be read."""
        cluster_map = by or self.map
        bucket = cluster_map.bucket_of(bucket_id)
        if bucket is None or not bucket.has_several:
            return self.live_targets(cluster_map)
        in_use = cluster_map.in_use() if bucket.copies == 1 else cluster_map.may_hold_copies()
        disks = [placement_of(cluster_map).disks[disk] for disk in in_use]
        unread = {disk.domain for disk in disks if not disk.is_up or disk.out_of_sync_with}
        if len(unread) >= bucket.copies:
            raise Unavailable(
                f"disks in {len(unread)} failure domains are down or not up to date; an answer might be incomplete",
                retry_after_s=RETRY_DOWN_S,
            )
        return list(cluster_map.cover().ask)

    def counted_share(self, bucket: BucketEntry) -> float:
        """Return which share of a bucket's objects the counters of the targets that are up are of: those whose first replica is
        up and lacks nothing."""
        if not bucket.has_several:
            return 1.0
        in_use = self.map.in_use() if bucket.copies == 1 else self.map.may_hold_copies()
        placement = placement_of(self.map)
        weights = {disk: placement.weight_in(min(placement.layouts), disk) for disk in in_use}
        complete = sum(
            weights[disk] for disk in in_use if placement.disks[disk].is_up and not placement.disks[disk].out_of_sync_with
        )
        return complete / (sum(weights.values()) or 1.0)

    def only_on(self, disk: str) -> int | None:
        """Return how many objects in buckets with one copy a disk had by its last heartbeat; if that did not say it, how many
        objects in all. None: this proxy has not heard either."""
        if all(bucket.copies > 1 for bucket in self.map.buckets):
            return 0
        for heard in self.heard().values():
            for numbers in heard.heartbeat.numbers:
                if numbers.id == disk:
                    return numbers.alone
        report = (each for heard in self.heard().values() for each in heard.heartbeat.disks)
        return next((each.objects for each in report if each.id == disk), 0) or None

    def any_target(self) -> NodeEntry:
        """Return some target that is up, for a question that any can answer. Unavailable when there is none."""
        up = self.map.cover().ask
        if not up:
            raise Unavailable("no storage target is up", retry_after_s=RETRY_DOWN_S)
        return up[0]

    async def ask_all(self, ask: Callable[[NodeEntry], Awaitable[T]], nodes: Sequence[NodeEntry] | None = None) -> list[T]:
        """Ask all targets and return their answers, ordered by target id; the first failure fails the whole."""
        return list(await asyncio.gather(*(ask(node) for node in (self.live_targets() if nodes is None else nodes))))

    async def counts(self, bucket_id: str | None = None, *, incomplete: bool = False) -> dict[str, tuple[int, int]]:
        """Return (objects, bytes) by bucket id for the whole cluster, or only what is needed for one bucket. Unavailable while
        too many disks are down for that, unless it may be `incomplete` and the bucket has copies: see `counted_share`."""

        async def ask(node: NodeEntry) -> dict[str, tuple[int, int]]:
            return await self.control.call("GET", f"{node.url}/v1/node/buckets", dict[str, tuple[int, int]])

        if bucket_id is not None and incomplete and self.map.is_copied(bucket_id):
            nodes: Sequence[NodeEntry] | None = self.map.cover().ask
        else:
            nodes = None if bucket_id is None else self.targets_of(bucket_id)
        return await asyncio.to_thread(_add_up, await self.ask_all(ask, nodes))


def _new_bucket(name: str, copies: int, durability: Durability = "fsync", min_copies: int = 0) -> BucketEntry:
    """Make the entry of a new bucket; the one place that checks its name. BadName."""
    return BucketEntry(
        id=secrets.token_hex(8),
        name=check_bucket_name(name),
        copies=copies,
        min_copies=min_copies,
        durability=durability,
        created=timestamp(time.time()),
    )


def _bucket_of(cluster_map: ClusterMap, name: str) -> BucketEntry:
    """BucketNotFound."""
    found = cluster_map.bucket(name)
    if found is None:
        raise BucketNotFound(f"bucket {name!r} does not exist")
    return found


def _add_up(answers: Sequence[dict[str, tuple[int, int]]]) -> dict[str, tuple[int, int]]:
    """Add up the counts of all targets. Runs in a thread, since every target reports every bucket."""
    total: dict[str, tuple[int, int]] = {}
    for answer in answers:
        for bucket_id, (objects, size) in answer.items():
            before = total.get(bucket_id, (0, 0))
            total[bucket_id] = (before[0] + objects, before[1] + size)
    return total


def _remember(refused: dict[str, tuple[str, float]], node_id: str, what: str, now_s: float) -> None:
    """Note what was refused, and forget the oldest if there is too much of it."""
    refused[node_id] = what, now_s
    while len(refused) > FOREIGN_MAX:
        del refused[next(iter(refused))]


def _lately(refused: dict[str, tuple[str, float]], now_s: float) -> dict[str, str]:
    return {node_id: what for node_id, (what, at_s) in refused.items() if at_s >= now_s - FOREIGN_S}


class _Health(msgspec.Struct, frozen=True):
    id: str = ""
