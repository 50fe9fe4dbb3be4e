"""The state of the cluster at a proxy: for `GET /v1/cluster/status`, and for its metrics.

It is worked out every few seconds even if nobody asks, so that it is known since when there is a problem.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric

from dfc.errors import NotFound, StillNeeded
from dfc.http.shutdown import Looping
from dfc.logs import timestamp
from dfc.placement.mapped import is_paused, is_waiting
from dfc.proxy.cluster import Cluster
from dfc.proxy.coordinator import PREFIX as PROXIES
from dfc.proxy.duties import Steps
from dfc.proxy.facts import MoveProgress, StateFacts, StopImpact, count_copies, without
from dfc.proxy.troubles import KINDS, SEVERITIES, Trouble, find_troubles, move_waits_for
from dfc.registry.base import Registry
from dfc.wire.status import ClusterProblem, ClusterStatus, MissingCopies, Move, OutOfSyncDisk, RaisedBucket, RunningProxy

_log: Final = logging.getLogger("dfc.proxy")
WATCH_S: Final = 2.0
FRESH_S: Final = 0.2  # those who ask more often get the last answer again
DOCS: Final = "docs/operations.md"
Health = Literal["ok", "degraded", "read_only", "unavailable"]


class StateWatch(Looping):
    """Works out the state. `elsewhere`: the URL of another proxy that is the coordinator, and does that instead. `clock_s` and
    `wall_s` are replaced by tests."""

    def __init__(
        self,
        cluster: Cluster,
        steps: Steps,
        node_id: str,
        registry: Registry,
        elsewhere: Callable[[], str | None] = lambda: None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._steps = steps
        self._node_id = node_id
        self._registry = registry
        self._elsewhere = elsewhere
        self._clock_s = clock_s
        self._wall_s = wall_s
        self._began_s = clock_s()
        self._led = False
        self._since: dict[tuple[str, str], str] = {}
        self._facts: StateFacts | None = None
        self._progress = MoveProgress()
        self._last: ClusterStatus | None = None
        self._looked_s = 0.0
        self._looking = asyncio.Lock()

    def start(self) -> None:
        """Begin to watch; from now on targets can be heard."""
        self._began_s = self._clock_s()
        super().start()

    async def _run(self) -> None:
        while True:
            try:
                if self._elsewhere() is None:
                    await self.look()
                else:  # the coordinator knows more
                    self._facts = self._last = None
            except Exception:
                _log.exception("cannot work out the state of the cluster; trying again")
            await asyncio.sleep(WATCH_S)

    async def look(self) -> ClusterStatus:
        """Return the state of now, or of a moment ago."""
        async with self._looking:
            if self._last is None or self._clock_s() - self._looked_s >= FRESH_S:
                facts = self._gather()
                # In a thread: of a large cluster, roles of many names are computed.
                tally, troubles = await asyncio.to_thread(_survey, facts)
                self._facts, self._last = facts, self._show(facts, tally, troubles)
                self._looked_s = self._clock_s()
            return self._last

    async def without(self, node_id: str) -> StopImpact:
        """Work out what could not be read without a target; StillNeeded if anything, or for the only proxy. NotFound."""
        proxies = {grant.holder for grant in self._registry.holders(PROXIES)}
        if node_id in proxies:
            if len(proxies) == 1:
                raise StillNeeded(f"{node_id} is the only proxy that runs: without it nothing can be written")
            return StopImpact(node_id)
        facts = self._gather()
        node = facts.map.node(node_id)
        if node is None:
            raise NotFound(f"there is no target and no proxy {node_id[:80]} in this cluster")
        found = await asyncio.to_thread(without, facts, node)
        if found.unreadable:
            about = "about " if found.estimated else ""
            raise StillNeeded(f"{about}{found.unreadable} objects could not be read without target {node_id}")
        return found

    def _gather(self) -> StateFacts:
        waits_for, waits_s = self._steps.unacknowledged()
        leads = self._steps.leads
        if leads and not self._led:  # from now on targets can be heard
            self._began_s = self._clock_s()
        self._led = leads
        return StateFacts(
            map=self._cluster.map,
            last_heartbeats=self._cluster.heard(),
            leads=leads,
            expected_targets=self._cluster.expected_targets,
            listening_s=self._clock_s() - self._began_s,
            waits_for=waits_for,
            waits_s=waits_s,
            raised=self._steps.raised(),
            may_move=self._steps.may_move(),
            wall_s=self._wall_s(),
            registry_silent=self._cluster.why_registry_silent or self._cluster.why_registry_unwritten,
            foreign=self._cluster.foreign(),
            twins=self._cluster.twins(),
        )

    def _show(self, facts: StateFacts, tally: MissingCopies, troubles: list[Trouble]) -> ClusterStatus:
        now = timestamp(self._wall_s())
        self._since = {
            (each.code, each.subject): each.since or self._since.get((each.code, each.subject), now) for each in troubles
        }
        return ClusterStatus(
            health=health_of(facts, troubles),
            step=facts.map.step,
            map_version=facts.map.version,
            coordinator=self._node_id if facts.leads else None,
            registry=self._registry.kind,
            registry_latency_s=self._registry.latency_s,
            proxies=tuple(RunningProxy(id=grant.holder, url=grant.url) for grant in self._registry.holders(PROXIES)),
            problems=tuple(_shown(each, self._since) for each in troubles),
            copies=tally,
            out_of_sync=_out_of_sync(facts, self._since),
            raising=_raising(facts),
            rebalance=self._move(facts),
            rebalance_waits=is_waiting(facts.map),
        )

    def _move(self, facts: StateFacts) -> Move | None:
        """What is moved, if anything is, and how fast."""
        move = _move(facts)
        if move is None:
            self._progress.note(self._clock_s(), None, None)
            return None
        self._progress.note(self._clock_s(), move.to, move.hints)
        return msgspec.structs.replace(move, repair_rate=self._progress.per_s, eta_s=self._progress.eta_s)

    def families(self) -> Iterable[Metric]:
        """Return the metrics of the state, as it was last worked out."""
        yield GaugeMetricFamily("dfc_coordinator", "1: this proxy is the coordinator", 1 if self._steps.leads else 0)
        state, facts = self._last, self._facts
        if state is None or facts is None:
            return
        problems = GaugeMetricFamily("dfc_problems", "Problems of the cluster by severity", labels=("severity",))
        counts = Counter(each.severity for each in state.problems)
        for severity in SEVERITIES:
            problems.add_metric((severity,), counts[severity])
        yield problems
        tally = state.copies
        yield GaugeMetricFamily("dfc_objects_one_replica_left", "Objects with one copy left of several", tally.one_left)
        yield GaugeMetricFamily("dfc_objects_under_replicated", "Objects with fewer copies than wanted", tally.missing)
        yield GaugeMetricFamily("dfc_objects_unavailable", "Objects without a copy that can be read", tally.unavailable)
        yield GaugeMetricFamily("dfc_disks_out_of_sync", "Disks that may lack writes and are not read", len(state.out_of_sync))
        waiting = len(facts.waits_for)
        yield GaugeMetricFamily("dfc_step_waits_for_targets", "Targets that have not acknowledged the step of the map", waiting)
        heartbeat = GaugeMetricFamily("dfc_heartbeat_age_seconds", "Time since a target was last heard", labels=("node",))
        clock = GaugeMetricFamily("dfc_clock_ahead_seconds", "Wall clock ahead of most nodes' clocks", labels=("node",))
        for node_id, heard in sorted(facts.last_heartbeats.items()):
            heartbeat.add_metric((node_id,), heard.age_s)
            clock.add_metric((node_id,), heard.clock_ahead_s)
        yield heartbeat
        yield clock


def _survey(facts: StateFacts) -> tuple[MissingCopies, list[Trouble]]:
    tally = count_copies(facts)
    return tally, find_troubles(facts, tally)


def health_of(facts: StateFacts, troubles: Iterable[Trouble]) -> Health:
    """Return what the cluster as a whole can do."""
    codes = {each.code for each in troubles if each.severity != "info"}
    if codes & {"no_target_up", "cluster_not_ready"}:
        return "unavailable"
    disks = [disk for disk in facts.placement.disks.values() if disk.is_up]
    is_full = [facts.numbers[disk.id].is_full for disk in disks if disk.id in facts.numbers]
    if "no_coordinator" in codes or not disks or (len(is_full) == len(disks) and all(is_full)):
        return "read_only"
    return "degraded" if codes else "ok"


def _shown(trouble: Trouble, since: Mapping[tuple[str, str], str]) -> ClusterProblem:
    kind = KINDS[trouble.code]
    return ClusterProblem(
        code=trouble.code,
        severity=kind.severity,
        subject=trouble.subject,
        since=since[trouble.code, trouble.subject],
        message=trouble.message,
        what_to_do=kind.what_to_do,
        docs=f"{DOCS}#{trouble.code}",
    )


def _out_of_sync(facts: StateFacts, since: Mapping[tuple[str, str], str]) -> tuple[OutOfSyncDisk, ...]:
    places = [place for place in facts.placement.disks.values() if place.is_up and place.out_of_sync_with]
    return tuple(
        OutOfSyncDisk(
            disk=place.id,
            node=place.node,
            out_of_sync_with=tuple(sorted(place.out_of_sync_with)),
            since=since.get(("disk_out_of_sync", place.id), ""),
            hints=facts.hints_for(place.id),
        )
        for place in sorted(places, key=lambda place: place.id)
    )


def _raising(facts: StateFacts) -> tuple[RaisedBucket, ...]:
    disks, done = len(facts.placement.disks), facts.raised or {}
    return tuple(
        RaisedBucket(
            bucket=bucket.name, copies=bucket.copies, copies_wanted=bucket.goal, disks_done=done.get(bucket.id, 0), disks=disks
        )
        for bucket in facts.map.buckets
        if bucket.goal > bucket.copies
    )


def _move(facts: StateFacts) -> Move | None:
    """What is moved, if anything is."""
    placement = facts.placement
    if not placement.is_moving:
        return None
    to, before = max(placement.layouts), min(placement.layouts)
    coming, leaving = placement.layouts[to].disks, placement.layouts[before].disks
    slices = Counter(state.phase for state in placement.slices)
    hints = [facts.hints_for(disk, later=True) for disk in coming]
    reweighed = (each for each in coming & leaving if placement.weight_in(to, each) != placement.weight_in(before, each))
    return Move(
        to=to,
        slices={phase: slices[phase] for phase in ("done", "copying", "moving", "moved")},
        disks_in=tuple(sorted(coming - leaving)),
        disks_out=tuple(sorted(leaving - coming)),
        disks_lost=tuple(sorted(placement.layouts[to].gone - placement.layouts[before].gone)),
        disks_weighed=tuple(sorted(reweighed)),
        hints=None if None in hints else sum(count or 0 for count in hints),
        waits_for=tuple(move_waits_for(facts)),
        paused=is_paused(facts.map),
    )
