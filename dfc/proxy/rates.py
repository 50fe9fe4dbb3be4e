"""The figures of all nodes: collected, aligned second by second, and what each node is."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple

from dfc.errors import BadRequest, DfcError, NotFound, Unavailable
from dfc.http.node import NodeInfo
from dfc.http.peer import SharedCall
from dfc.http.rates import COLUMNS, DISK, NodeSeconds, SecondsRing, Value
from dfc.limits import STATS_KEPT_S, STATS_POINTS_MAX, STATS_VALUES_MAX
from dfc.logs import timestamp
from dfc.proxy.cluster import Cluster
from dfc.proxy.coordinator import Presence
from dfc.wire.status import ClusterStats, NodeFigures

# --- The last seconds of many nodes side by side: aligned by how long ago they were, and in points that an answer has room for.
# No I/O.

EARLY_S = 0.5  # the last second of a node that has just answered ended up to so much more than a second ago
NodeKind = Literal["target", "proxy"]


class NodeMirror:
    """What is known here of a node's seconds. `answered_s`: when it told them last, by the clock of this node."""

    def __init__(self, node_id: str, kind: NodeKind) -> None:
        self.id = node_id
        self.kind: NodeKind = kind
        self.ring = SecondsRing()
        self.boot = ""
        self.answered_s: float | None = None
        self.age_s = 0.0  # of its last second when it answered
        self.silent = False
        self.why = ""

    def last(self, name: str, count: int, now_s: float) -> list[Value]:
        """Return the values of the last `count` seconds before now, the newest last."""
        gone = count if self.answered_s is None else math.floor(max(0.0, now_s - self.answered_s + self.age_s - EARLY_S))
        gone = min(gone, count)
        return self.ring.last(name, count - gone) + [None] * gone

    def stats(self, seconds: int, step_s: int, now_s: float) -> NodeFigures:
        """Return the figures of the last seconds."""
        count = step_s * math.ceil(seconds / step_s)

        def series(name: str) -> list[Value]:
            return coarse(self.last(name, count, now_s), step_s)

        return NodeFigures(
            id=self.id,
            kind=self.kind,
            silent=self.silent,
            silent_s=round(now_s - self.answered_s, 1) if self.silent and self.answered_s is not None else None,
            why=self.why if self.silent else "",
            disks={name.removeprefix(DISK): series(name) for name in self.ring.columns if name.startswith(DISK)},
            **{name: series(name) for name in COLUMNS},
        )


def coarse(values: Sequence[Value], step_s: int) -> list[Value]:
    """Return the means of as many values each; their number is a multiple of that."""
    return list(values) if step_s == 1 else [mean(values[at : at + step_s]) for at in range(0, len(values), step_s)]


def mean(values: Sequence[Value]) -> Value:
    """Return the mean of those that are known, None if none is."""
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 3) if known else None


def step_for(seconds: int, series: int) -> int:
    """Return how many seconds are one point in an answer with so many series."""
    points = max(1, min(STATS_POINTS_MAX, STATS_VALUES_MAX // max(1, series)))
    return math.ceil(seconds / points)


# --- The figures of all nodes, second by second: every node keeps its own, and a proxy collects them while somebody looks.

_log: Final = logging.getLogger("dfc.proxy")
EVERY_S: Final = 1.0
WAIT_S: Final = 1.0  # for nodes that answered when they were asked last
SILENT_WAIT_S: Final = 0.1  # after that, for the others
ASK_S: Final = 3.0  # after which one is asked anew
FORGET_S: Final = 120.0  # without anybody who looks


class _PolledNode(NamedTuple):
    id: str
    kind: NodeKind
    url: str


class ClusterRates:
    """Collects the figures of all nodes, once a second at most however many look. `own` gives those of this node, which has
    the id `node_id`, from after a second of a start on. `clock_s` and `wall_s` are replaced by tests."""

    def __init__(
        self,
        cluster: Cluster,
        presence: Presence,
        own: Callable[[str, int], NodeSeconds],
        node_id: str,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._presence = presence
        self._own = own
        self._node_id = node_id
        self._clock_s = clock_s
        self._wall_s = wall_s
        self._mirrors: dict[str, NodeMirror] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._collecting = SharedCall(self._collect, EVERY_S, clock_s)
        self._forgetting: asyncio.TimerHandle | None = None

    async def series(self, seconds: int, only: str | None = None) -> ClusterStats:
        """Return the figures of all nodes over the last seconds, or of one `only`. BadRequest for fewer seconds than 1 or more
        than STATS_KEPT_S; NotFound."""
        if not 1 <= seconds <= STATS_KEPT_S:
            raise BadRequest(f"seconds must be between 1 and {STATS_KEPT_S}")
        now_s, until_s, mirrors = await self._collecting.get()
        if only is not None:
            mirrors = [mirror for mirror in mirrors if mirror.id == only]
            if not mirrors:
                raise no_node(only)
        step_s = step_for(seconds, sum(len(list(mirror.ring.columns)) for mirror in mirrors))
        nodes = []
        for mirror in mirrors:
            nodes.append(mirror.stats(seconds, step_s, now_s))
            await asyncio.sleep(0)  # there may be a thousand nodes, a millisecond each
        return ClusterStats(seconds=seconds, step_s=step_s, until=timestamp(until_s), nodes=tuple(nodes))

    async def stop(self) -> None:
        """Ask nobody any more."""
        await self._collecting.stop()
        if self._forgetting is not None:
            self._forgetting.cancel()
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        if asking:
            await asyncio.wait(asking)

    def _forget_task(self, node_id: str, _task: asyncio.Task[None]) -> None:
        self._asking.pop(node_id, None)

    def _nodes(self) -> list[_PolledNode]:
        """All nodes but this one."""
        targets = [_PolledNode(node.id, "target", node.url) for node in self._cluster.map.targets()]
        proxies = [_PolledNode(grant.holder, "proxy", grant.url) for grant in self._presence.proxies() if grant.url]
        return [node for node in (*targets, *proxies) if node.id != self._node_id]

    def url_of(self, node_id: str) -> str:
        """The URL of another node. NotFound."""
        for node in self._nodes():
            if node.id == node_id:
                return node.url
        raise no_node(node_id)

    async def _collect(self) -> tuple[float, float, list[NodeMirror]]:
        """Ask all nodes at once; return when that was, by this node's clock and in seconds since 1970, and what is known of
        each. One that does not answer in time is silent, and holds up the next collections no more."""
        nodes = self._nodes()
        known = {node.id: self._mirrors.get(node.id) or NodeMirror(node.id, node.kind) for node in nodes}
        own = self._mirrors.get(self._node_id) or NodeMirror(self._node_id, "proxy")
        self._mirrors = {self._node_id: own, **known}
        for node in nodes:
            if node.id not in self._asking:
                task = self._asking[node.id] = asyncio.create_task(self._ask(node, known[node.id]))
                task.add_done_callback(partial(self._forget_task, node.id))
        _take(own, self._own(own.boot, own.ring.newest), self._clock_s())
        await self._wait_for([mirror for mirror in known.values() if not mirror.silent], WAIT_S)
        await self._wait_for(list(known.values()), SILENT_WAIT_S)
        for node_id in self._asking.keys() & known.keys():
            if not known[node_id].silent:
                known[node_id].silent, known[node_id].why = True, f"no answer within {WAIT_S:g} s"
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = asyncio.get_running_loop().call_later(FORGET_S, lambda: self._mirrors.clear())
        return self._clock_s(), self._wall_s(), list(self._mirrors.values())

    async def _wait_for(self, mirrors: list[NodeMirror], timeout_s: float) -> None:
        asking = [self._asking[mirror.id] for mirror in mirrors if mirror.id in self._asking]
        if asking:
            await asyncio.wait(asking, timeout=timeout_s)

    async def _ask(self, node: _PolledNode, mirror: NodeMirror) -> None:
        """Ask a node for its seconds after those that are known here."""
        since = f"?since={mirror.boot}.{mirror.ring.newest}" if mirror.boot else ""
        try:
            async with asyncio.timeout(ASK_S):
                reply = await self._cluster.control.call("GET", f"{node.url}/v1/node/seconds{since}", NodeSeconds)
            if reply.id != node.id:
                mirror.silent, mirror.why = True, f"another node answers at {node.url}: {reply.id[:80]}"
                return
            _take(mirror, reply, self._clock_s())
        except DfcError as error:
            mirror.silent, mirror.why = True, error.message
        except TimeoutError:
            mirror.silent, mirror.why = True, f"no answer within {ASK_S:g} s"
        except Exception:
            _log.exception("asking %s for its figures failed", node.id)
            mirror.silent, mirror.why = True, "asking it failed; see the log of this proxy"


def no_node(node_id: str) -> NotFound:
    return NotFound(f"there is no node {node_id[:80]!r} in this cluster")


def _take(mirror: NodeMirror, reply: NodeSeconds, now_s: float) -> None:
    if reply.boot != mirror.boot:  # it was started anew, and counts from 0 again
        mirror.ring, mirror.boot = SecondsRing(), reply.boot
    mirror.ring.take(reply)
    mirror.answered_s, mirror.age_s = now_s, reply.age_s
    mirror.silent, mirror.why = False, ""


ANSWER_S: Final = 5.0  # a target waits for disks that do not answer, but not for so long


class NodeDetails:
    """Asks nodes what they are, each one itself. `own` tells it of this one, which has the id `node_id`."""

    def __init__(self, cluster: Cluster, rates: ClusterRates, own: Callable[[], Awaitable[NodeInfo]], node_id: str) -> None:
        self._cluster = cluster
        self._rates = rates
        self._own = own
        self._node_id = node_id

    async def about(self, node_id: str) -> NodeInfo:
        """Return what a target or a proxy is. NotFound; Unavailable if it does not answer, with the time of its last heartbeat
        if it is a target."""
        if node_id == self._node_id:
            return await self._own()
        url = self._rates.url_of(node_id)
        try:
            async with asyncio.timeout(ANSWER_S):
                found = await self._cluster.control.call("GET", f"{url}/v1/node/info", NodeInfo)
        except (Unavailable, TimeoutError):
            raise Unavailable(f"{node_id} does not answer{self._heard(node_id)}", retry_after_s=1) from None
        if found.id != node_id:
            raise Unavailable(f"another node answers at {url}: {found.id[:80]}")
        return found

    def _heard(self, node_id: str) -> str:
        """When a target was heard last, as far as it is known here."""
        node = next((node for node in self._cluster.map.targets() if node.id == node_id), None)
        return f"; its last heartbeat was at {node.last_heartbeat}" if node is not None and node.last_heartbeat else ""
