"""The registry: where the cluster map is kept and agreed upon. One face for all of them, whatever keeps the data.

Everything that waits may be cancelled, and leaves nothing behind. A change whose caller is cancelled, or is told that the
registry is unavailable, may have been made or not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager

from dfc.placement.map import ClusterMap
from dfc.registry.changes import Change, RegistryState
from dfc.registry.leases import Grant, Lease, elected, hold


class Registry(ABC):
    """Used by one event loop. After `close`, everything but `map` raises Unavailable."""

    @property
    @abstractmethod
    def map(self) -> ClusterMap:
        """The newest map that is known here; costs nothing. A change that changes nothing tells what is so everywhere."""

    @abstractmethod
    async def change(self, change: Change, *, fence: Lease | None = None) -> RegistryState:
        """Apply a pure function (`dfc.registry.changes`) to what is there, as one step that nobody else comes into.

        It is called again if somebody else has changed something meanwhile. When this returns, its result is durable, and in
        `map` here; returned is that result, not what others made of it since. What the function raises is raised, and nothing
        is changed. Under a `fence` that is over nothing is changed either: LeaseLost. Unavailable.
        """

    @abstractmethod
    async def watch(self, after: int) -> ClusterMap:
        """Wait for a map whose version is higher than `after`: the newest one, versions in between may be left out."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of what is open; those who wait get Unavailable. Bounded in time."""

    # --- leases

    def lease(self, name: str, holder: str, ttl_s: float) -> AbstractAsyncContextManager[Lease]:
        """Have a name alone, within the context. `ttl_s` after the last sign of life of its holder it is free for others.

        LeaseHeld, naming the holder; BadName or BadRequest for a name or time that is not allowed; Unavailable.
        """
        return hold(self, name, holder, ttl_s)

    def elect(self, name: str, holder: str, ttl_s: float) -> AbstractAsyncContextManager[Lease]:
        """Like `lease`, but wait for it while another holder has it. Whoever has it leads, until `lost`."""
        return elected(self, name, holder, ttl_s)

    @abstractmethod
    async def grant_lease(self, name: str, holder: str, ttl_s: float) -> Grant:
        """These four are for `dfc.registry.leases`, whose LeaseStore says what they do."""

    @abstractmethod
    async def renew_lease(self, grant: Grant) -> bool: ...

    @abstractmethod
    async def revoke_lease(self, grant: Grant) -> None: ...

    @abstractmethod
    async def lease_vacancy(self, name: str) -> None: ...
