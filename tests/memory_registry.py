"""A registry in memory, for many proxies of one process: read, compute, and write only if nobody has written meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from registering import CLUSTER

from dfc.errors import TooLarge, Unavailable
from dfc.placement.map import ClusterMap
from dfc.registry.base import RECORD_BYTES_MAX, Grant, Lease, LeaseLost, LeaseTable, SharedRegistry, check_name
from dfc.registry.changes import Change, RegistryState, check_step


class MemoryStore:
    """What the registries of all proxies share."""

    def __init__(self) -> None:
        self.state = RegistryState(map=ClusterMap(cluster_id=CLUSTER, version=1))
        self.leases = LeaseTable()
        self.changed = asyncio.Event()
        self.records: dict[str, bytes] = {}

    def swap(self, old: RegistryState, new: RegistryState) -> bool:
        """Compare and swap."""
        if self.state is not old:
            return False
        check_step(old, new)
        self.state = new
        self.tell()
        return True

    def tell(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class MemoryRegistry(SharedRegistry):
    """The registry of one proxy. `between` is awaited between each read and the write that follows it."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.between: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0)
        self._closed = False

    @property
    def map(self) -> ClusterMap:
        return self.store.state.map

    async def change(self, change: Change, *, fence: Lease | None = None) -> RegistryState:
        while True:
            self._check_open()
            old = self.store.state
            new = change(old)
            await self.between()
            if fence is not None and not (fence.is_held and self.store.leases.is_valid(fence.grant)):
                raise LeaseLost(f"the lease {fence.grant.name} is over")
            if new is old or self.store.swap(old, new):
                return new

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the registry is closed")

    async def watch(self, after: int) -> ClusterMap:
        self._check_open()
        while self.map.version <= after:
            await self.store.changed.wait()
            self._check_open()
        return self.map

    async def close(self) -> None:
        self._closed = True
        self.store.tell()
        self.store.leases.clear()

    def records(self, prefix: str) -> dict[str, bytes]:
        return {name: value for name, value in self.store.records.items() if name.startswith(prefix)}

    async def keep(self, name: str, value: bytes | None, fence: Lease) -> None:
        self._check_open()
        check_name(name)
        if len(value or b"") > RECORD_BYTES_MAX:
            raise TooLarge("it is too large")
        await self.between()
        if not (fence.is_held and self.store.leases.is_valid(fence.grant)):
            raise LeaseLost(f"the lease {fence.grant.name} is over")
        if value is None:
            self.store.records.pop(name, None)
        else:
            self.store.records[name] = value

    def holders(self, prefix: str) -> list[Grant]:
        return self.store.leases.holders(prefix)

    def held(self, name: str) -> Grant | None:
        return self.store.leases.held(name)

    async def grant_lease(self, name: str, holder: str, ttl_s: float, url: str = "") -> Grant:
        self._check_open()
        return self.store.leases.grant(name, holder, ttl_s, url)

    async def renew_lease(self, grant: Grant) -> bool:
        self._check_open()
        return self.store.leases.renew(grant)

    async def revoke_lease(self, grant: Grant) -> None:
        self.store.leases.revoke(grant)

    async def lease_vacancy(self, name: str) -> None:
        self._check_open()
        await self.store.leases.vacancy(name)
