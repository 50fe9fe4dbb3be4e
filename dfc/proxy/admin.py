"""The use cases of a proxy: administration of the cluster, and all of them bundled for its faces."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

from dfc.errors import Conflict, DfcError, NotFound, Unavailable, WouldLoseObjects
from dfc.logs import timestamp
from dfc.placement.map import ClusterMap, NodeEntry, RebalanceEntry
from dfc.placement.mapped import placement_of
from dfc.proxy.buckets import Buckets
from dfc.proxy.cluster import Cluster
from dfc.proxy.duties import LostDisks, Registrations, Steps
from dfc.proxy.facts import StopImpact
from dfc.proxy.jobs.service import AnyJobs, Operations
from dfc.proxy.objects import Listings, Objects, ProxyBatches, SampleKeys
from dfc.proxy.rates import ClusterRates, NodeDetails
from dfc.proxy.samples import SampleSearch, ShardViews
from dfc.proxy.status import StateWatch
from dfc.registry.changes import drop_disk, expect_by, remove_lost, remove_node, set_rebalance, use_disks, weigh_disks
from dfc.registry.messages import CoordinatorReport, Registered, Registration
from dfc.replication.compare import CheckRequest, TargetCheck
from dfc.wire.status import CheckedDisk, CheckedTotals, ClusterCheck, ClusterStatus


class ProxyHealth(NamedTuple):
    """Health of the proxy. `ready`: the expected targets have joined. `targets`: their number by state."""

    ready: bool
    node_id: str
    map_version: int
    targets: dict[str, int]


class Administration:
    """The requests of operators, and of nodes that join."""

    def __init__(
        self, cluster: Cluster, registrations: Registrations, steps: Steps, lost: LostDisks, state: StateWatch, node_id: str
    ) -> None:
        self._cluster = cluster
        self.steps = steps
        self.lost = lost
        self._registrations = registrations
        self._state = state
        self._node_id = node_id

    def health(self) -> ProxyHealth:
        cluster_map = self._cluster.map
        return ProxyHealth(self._cluster.is_ready(), self._node_id, cluster_map.version, dict(_states(cluster_map)))

    def cluster_map(self) -> ClusterMap:
        """Return the cluster map with the usage of all disks."""
        return self._cluster.map

    def heard(self) -> CoordinatorReport:
        """Return what other proxies want to know of what targets have said here."""
        return self._cluster.tell()

    async def see_newest(self) -> None:
        """Read the map from the registry, which another proxy may have changed. NoRegistry."""
        if self._cluster.is_shared:
            await self._cluster.newest()

    async def state(self) -> ClusterStatus:
        """Return how the cluster is, and what is wrong with it."""
        return await self._state.look()

    async def without(self, node_id: str) -> StopImpact:
        """Return what could not be read without a node: nothing. StillNeeded, NotFound."""
        return await self._state.without(node_id)

    async def register(self, said: Registration) -> Registered:
        """Take a node's registration, which is also its heartbeat. See `Registrations.register`."""
        return await self._registrations.register(said)

    async def use(self, kind: Literal["disk", "node"], subject: str, use: Literal["in", "out"]) -> list[str]:
        """Give objects to a disk, or to all disks of a target, or none any more; return the ids of the disks. The objects are
        moved in the background. NotFound; TooFewDomains if too few disks were left for the copies of a bucket; Conflict if one
        of the disks is being removed for good."""
        disks = self._disks_that_stay(kind, subject)
        self._cluster.check_use(disks, use)
        await self._cluster.change(use_disks(disks, use))
        return disks

    async def weigh(self, kind: Literal["disk", "node"], subject: str, weight: float) -> dict[str, float]:
        """Give a disk another weight; or the disks of a target, in proportion, so that they have this one together: those that
        are not drained, unless all are. Returns the weights of these disks. Objects are moved in the background. NotFound;
        BadRequest if one of several disks would get a weight outside the limits."""
        disks = self._disks_that_stay(kind, subject)
        placed = self._cluster.map.placed()
        used = [disk for disk in disks if placed[disk].disk.use != "out"] or disks
        state = await self._cluster.change(weigh_disks(used, weight))
        return {disk.id: disk.goal for node in state.map.nodes for disk in node.disks if disk.id in used}

    async def expect_down(self, node_id: str, seconds: int) -> str:
        """Expect a target to be down for a while: it is not evicted before that is over. Returns until when. NotFound."""
        self._disks_of("node", node_id)
        until_s = int(time.time()) + seconds
        await self._cluster.change(expect_by(node_id, until_s if seconds else 0))
        return timestamp(until_s)

    def _disks_of(self, kind: Literal["disk", "node"], subject: str) -> list[str]:
        found = _named(self._cluster.map, kind, subject)
        if not found:
            raise NotFound(f"there is no {'disk' if kind == 'disk' else 'target with disks'} {subject[:80]} in this cluster")
        return found

    def _disks_that_stay(self, kind: Literal["disk", "node"], subject: str) -> list[str]:
        disks, placed = self._disks_of(kind, subject), self._cluster.map.placed()
        leaving = [disk for disk in disks if placed[disk].disk.removing]
        if leaving:
            raise Conflict(f"disk {leaving[0]} is lost, and being removed for good")
        return disks

    async def remove(self, kind: Literal["disk", "node"], subject: str, *, accept_loss: bool = False) -> list[str]:
        """Forget a disk, or a target, that is stopped.

        One that holds no objects any more is forgotten at once. One that was evicted, or with `accept_loss` one that is away,
        is removed for good: everything is moved to a layout without it in the background. Returns the ids of disks for which
        that is so. NotFound; Conflict; TooFewDomains; WouldLoseObjects unless `accept_loss`.
        """
        lost = self._lost_disks(kind, subject)
        if not lost:
            await self._cluster.change(drop_disk(subject) if kind == "disk" else remove_node(subject))
            return []
        placed = self._cluster.map.placed()
        early = [disk for disk in lost if not placed[disk].disk.evicted]
        if early and not accept_loss:
            raise Conflict(
                f"disk {early[0]} may hold objects, and has not been evicted: bring it back and drain it, wait until it is"
                " evicted, or accept the loss of what it alone has"
            )
        self._cluster.check_use(lost, "out")
        counts = [self._cluster.only_on(disk) for disk in lost]
        if None in counts and not accept_loss:
            raise WouldLoseObjects(
                f"how many objects in buckets with one copy are on disk {', '.join(lost)} and nowhere else is not known, since"
                " this proxy has not heard of it since its start: bring it back if you can, or accept the loss"
            )
        losses = sum(count or 0 for count in counts)
        if losses and not accept_loss:
            raise WouldLoseObjects(
                f"{losses} objects in buckets with one copy are on disk {', '.join(lost)} and nowhere else, by its last"
                " heartbeat: bring it back if you can, or accept the loss"
            )
        await self._cluster.change(remove_lost(lost))
        return lost

    def _lost_disks(self, kind: Literal["disk", "node"], subject: str) -> list[str]:
        """The disks that may hold objects, if none of these is up. What they hold cannot be moved away."""
        cluster_map = self._cluster.map
        placed, up = cluster_map.placed(), placement_of(cluster_map).up
        used = {disk for layout in cluster_map.layouts for disk in layout.disks} if cluster_map.layouts else set(placed)
        disks = _named(cluster_map, kind, subject)
        if not cluster_map.buckets or not used.intersection(disks) or up.intersection(disks):
            return []
        return disks

    async def rebalance(self, paused: bool | None, rate_bytes_per_s: int | None) -> RebalanceEntry:
        """Pause or resume moves, or set how fast they are; what is None stays. Returns what holds from now on."""
        return (await self._cluster.change(set_rebalance(paused, rate_bytes_per_s))).map.rebalance

    async def start_scrub(self) -> None:
        """Start scrubbing every disk. Unavailable while a target is down."""
        await self._cluster.ask_all(lambda node: self._cluster.control.call("POST", f"{node.url}/v1/node/scrub", dict))

    async def scrub_status(self) -> list[dict[str, Any]]:
        """Return the scrub status of every disk. Unavailable while a target is down."""
        found = await self._cluster.ask_all(lambda node: self._cluster.control.call("GET", f"{node.url}/v1/node/scrub", dict))
        return [disk for each in found for disk in each["disks"]]

    def families(self) -> Iterable[Metric]:
        """Return the cluster's metrics."""
        cluster_map = self._cluster.map
        yield GaugeMetricFamily("dfc_map_version", "Version of the cluster map", cluster_map.version)
        yield GaugeMetricFamily("dfc_map_step", "Step of the placement in the cluster map", cluster_map.step)
        nodes = GaugeMetricFamily("dfc_nodes", "Targets by state", labels=("state",))
        counts = _states(cluster_map)
        for state in ("up", "down"):
            nodes.add_metric((state,), counts[state])
        yield nodes
        yield GaugeMetricFamily("dfc_buckets", "Buckets", len(cluster_map.buckets))
        yield from self._state.families()


def _states(cluster_map: ClusterMap) -> Counter[str]:
    return Counter(node.state for node in cluster_map.nodes if node.role == "target")


def _named(cluster_map: ClusterMap, kind: Literal["disk", "node"], subject: str) -> list[str]:
    """The ids of the disk, or of the disks of the target, with this id; none if there is none."""
    placed = cluster_map.placed().items()
    return sorted(disk for disk, owner in placed if subject == (disk if kind == "disk" else owner.node.id))


# --- Copies compared with each other, cluster-wide: begun on all targets, and what they have found put together.
#
# Nothing is kept here: each target remembers what it was asked for last, so any proxy can say how far that is.

ANSWER_S: Final = 5.0  # for a target; one that does not answer is told of, and holds up nobody
DOWN_ANSWER_S: Final = 1.0


class ClusterChecks:
    """Begins comparisons, and says what they have found."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def begin(self, buckets: Sequence[str]) -> str:
        """Begin to compare what all disks have of these buckets, or of all if none is named, in place of what was begun before.
        Returns by what it is known. BucketNotFound; Unavailable if no target answers."""
        ids = tuple(self._cluster.bucket(name).id for name in dict.fromkeys(buckets))
        asked = CheckRequest(secrets.token_hex(8), time.time_ns() // 1000, ids)
        replies = await asyncio.gather(*(self._ask("POST", node, asked) for node in self._cluster.up_targets()))
        if not any(each is not None for each in replies):
            raise Unavailable("no target answers: nothing can be compared")
        return asked.check

    async def status(self) -> ClusterCheck:
        """How far the newest one is that any target knows."""
        targets = self._cluster.map.targets()
        replies = await asyncio.gather(*(self._ask("GET", node) for node in targets))
        newest = max((each for each in replies if each is not None), key=lambda each: each.began_us, default=None)
        if newest is None or not newest.check:
            return ClusterCheck()
        disks = [disk for node, each in zip(targets, replies, strict=True) for disk in self._disks(newest.check, node, each)]
        is_running = any(disk.state in ("waiting", "running") for disk in disks)
        names = {bucket.id: bucket.name for bucket in self._cluster.map.buckets}
        return ClusterCheck(
            check=newest.check,
            state="running" if is_running else "done",
            began=timestamp(newest.began_us / 1e6),
            buckets=tuple(names.get(each, each) for each in newest.buckets),
            totals=_total(disks),
            disks=tuple(disks),
        )

    async def _ask(self, method: str, node: NodeEntry, asked: CheckRequest | None = None) -> TargetCheck | None:
        """None: it does not answer."""
        try:
            # One that is down may run, and be about to come back: if what it has lost was found, it is down for a moment.
            async with asyncio.timeout(ANSWER_S if node.state == "up" else DOWN_ANSWER_S):
                return await self._cluster.control.call(method, f"{node.url}/v1/node/check", TargetCheck, body=asked)
        except (DfcError, TimeoutError):
            return None

    def _disks(self, check: str, node: NodeEntry, reply: TargetCheck | None) -> list[CheckedDisk]:
        if reply is not None and reply.check == check:
            return reply.disks
        if node.state != "up":
            why = f"target {node.id} is down"
        elif reply is None:
            why = f"target {node.id} does not answer"
        else:
            why = f"target {node.id} has not heard of this, or was started since"
        placed = self._cluster.map.placed()
        return [CheckedDisk(disk=disk.id, node=node.id, state="unknown", why=why) for disk in node.disks if disk.id in placed]


def _total(disks: Sequence[CheckedDisk]) -> CheckedTotals:
    total = CheckedTotals(pairs=sum(disk.pairs_total for disk in disks))
    for pair in (pair for disk in disks for pair in disk.pairs):
        total.pairs_compared += not pair.not_compared
        for each in ("rows", "differing", "repaired", "under_way", "set_aside", "alarms"):
            setattr(total, each, getattr(total, each) + getattr(pair, each))
    return total


@dataclass(frozen=True)
class ProxyServices:
    """The use cases of one proxy."""

    objects: Objects
    buckets: Buckets
    listings: Listings
    keys: SampleKeys
    batches: ProxyBatches
    jobs: AnyJobs
    admin: Administration
    checks: ClusterChecks
    shards: ShardViews
    operations: Operations
    rates: ClusterRates
    nodes: NodeDetails
    search: SampleSearch
