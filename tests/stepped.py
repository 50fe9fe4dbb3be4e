"""The coordinator of a cluster whose targets are told apart by numbers, and take what is pushed to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from memory_registry import MemoryRegistry, MemoryStore
from registering import said
from registry_conformance import end

from dfc.errors import Unavailable
from dfc.placement.map import ClusterMap
from dfc.placement.mapped import placement_of
from dfc.placement.roles import SLICES
from dfc.proxy.cluster import Cluster
from dfc.proxy.duties import Registrations, Steps
from dfc.proxy.heartbeats import Heartbeats
from dfc.registry.base import Lease, Registry
from dfc.registry.changes import take_step
from dfc.registry.messages import MapTaken, Registered, SlicesReport
from dfc.replication.transitions import declare_down

DOWN_S = 10.0
LEASE_S = 8.0


class Refused(Exception):
    """Of a connection, as aiohttp says it."""

    os_error = ConnectionRefusedError()


class Proxy:
    """A proxy over a registry in memory, with targets that take what is pushed to them unless they are `deaf`."""

    wall_s = 1_700_000_000.0

    def __init__(
        self, store: MemoryStore, registry: Registry | None = None, *, expected: int = 1, default_copies: int = 1
    ) -> None:
        self.store = store
        self.seconds = 1000.0
        self.deaf: set[str] = set()
        self.told: dict[str, ClusterMap] = {}  # the map of each target
        self.registry = registry or MemoryRegistry(store)
        heartbeats = Heartbeats(wall_s=lambda: self.wall_s, clock_s=lambda: self.seconds)
        self.cluster = Cluster(
            self.registry, self, True, expected, heartbeats, lambda *told: self.steps.acknowledged(*told), default_copies
        )
        self.steps = Steps(self.cluster, DOWN_S)
        self.registrations = Registrations(self.cluster, self.steps, DOWN_S)

    async def call(self, method, url, kind, *, body=None, headers=None):
        name = url.removeprefix("http://").split("/")[0]
        if name in self.deaf:
            await asyncio.Event().wait()
        if url.endswith("/v1/node/buckets"):
            return {self.cluster.bucket("b").id: (30, 3000)}
        self.told[name] = ClusterMap.decode(bytes(body))
        return MapTaken(self.told[name].version, self.told[name].step)

    async def fetch(self, method, url, body, headers, *, bytes_max):
        """Targets that are not deaf say who they are."""
        name = url.removeprefix("http://").split("/")[0]
        if name in self.deaf:
            raise Unavailable(f"cannot reach {url}") from Refused()
        return 503, "application/json", b'{"ready": false, "id": "%b"}' % name.partition(":")[0].encode()

    async def beat(self, number: int, disks: tuple[object, ...] = (), **fields: object) -> Registered:
        """A heartbeat of a target, by what it was told last."""
        name = f"t{number}"
        known = self.told.get(name)
        if known is not None:
            fields = {"map_version": known.version, "step": known.step, **fields}
        answer = await self.registrations.register(said(name, disks or (f"d{number}",), **{"url": f"http://{name}", **fields}))
        if answer.map is not None:
            self.told[name] = answer.map
        return answer

    async def beats(self, *numbers: int) -> None:
        for number in numbers:
            await self.beat(number)

    def states(self) -> list[str]:
        return [node.state for node in self.cluster.map.nodes]


@asynccontextmanager
async def doing(registry: Registry, *duties: Callable[[Lease], Awaitable[Any]], office: str = "other") -> AsyncIterator[None]:
    """An office is held meanwhile, and these are its duties."""
    async with registry.elect(office, "p1", 60) as lease:
        tasks = [asyncio.ensure_future(duty(lease)) for duty in duties]
        try:
            yield
        finally:
            await end(*tasks)


async def mark_down(cluster: Cluster, *nodes: str) -> None:
    before = placement_of(cluster.map)
    after = msgspec.structs.replace(declare_down(set(nodes))(before), step=before.step + 1)
    await cluster.change(take_step(before, after, cluster.map.nodes))


def phases(proxy) -> set[str]:
    return {state.phase for state in placement_of(proxy.cluster.map).slices}


async def report(proxy, *disks: str, slices: int = SLICES) -> None:
    """What these disks report when they have no hints."""
    placement = placement_of(proxy.cluster.map)
    for disk in disks:
        ready = {"copied": [], "moved": []}
        for number, state in list(enumerate(placement.slices))[:slices]:
            if state.phase in ("copying", "moving"):
                ready["copied" if state.phase == "copying" else "moved"].append(number)
        for readiness, numbers in ready.items():
            proxy.steps.report_ready(
                SlicesReport(disk=disk, slices=numbers, readiness=readiness, to=max(placement.layouts), step=placement.step)
            )
    await asyncio.sleep(0.02)


async def move_all(proxy: Proxy, *numbers: int, is_over: Callable[[], bool]) -> None:
    """Time passes, and these targets report all moves that are wanted, until that is over."""
    for _ in range(300):
        proxy.seconds += 0.3
        await proxy.beats(*numbers)
        await report(proxy, *(f"d{number}" for number in numbers))
        if is_over():
            return
    raise AssertionError("it is never over")
