"""The interface of registries, which keep the cluster map and grant leases.

Everything that waits may be cancelled, and leaves nothing behind. If the caller of a change is cancelled or gets Unavailable,
the change may or may not have been made.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from typing import ClassVar, Final

from dfc.errors import TooLarge
from dfc.placement.map import ClusterMap
from dfc.registry.changes import Change, RegistryState
from dfc.registry.leases import Grant, Lease, check_name, elected, hold

RECORD_BYTES_MAX: Final = 65_536
JOBS_KEPT_MAX: Final = 1000  # jobs that are over, in the registry; older ones stay in the journals that know them
JOBS: Final = "jobs/"  # what the names of records of jobs begin with
EPOCHS: Final = "epochs/"  # of records of how far disks have come
UNWRITTEN_S: Final = 30.0  # for which a change that could not be written is told of, unless one is written


class Registry(ABC):
    """A registry, used by one event loop: `open` it first. After `close`, everything but `map` raises Unavailable."""

    kind: ClassVar[str] = "embedded"
    is_shared: ClassVar[bool] = False
    """Whether other processes may change the registry, so that the newest map that is known here may not be the newest."""

    @property
    def latency_s(self) -> float | None:
        """How long the last question to a registry elsewhere took; None: it is here."""
        return None

    @property
    def why_silent(self) -> str:
        """Why the registry cannot be read and changed, as far as is known here; empty if it can."""
        return ""

    _unwritten: tuple[float, str] = (-math.inf, "")

    @property
    def why_unwritten(self) -> str:
        """Why a change could not be written a moment ago; empty if the last one was."""
        failed_s, why = self._unwritten
        return why if time.monotonic() - failed_s < UNWRITTEN_S else ""

    def _note_written(self, why_not: str = "") -> None:
        """Remember that a change was written, or why it was not. From any thread."""
        self._unwritten = time.monotonic(), why_not

    async def open(self) -> None:  # noqa: B027  # one that is open from the beginning has nothing to do
        """Read the state. OperatorError when that is not possible."""

    @property
    @abstractmethod
    def map(self) -> ClusterMap:
        """The newest map known here, without waiting. For the map that is in force everywhere, make a change that changes
        nothing."""

    @abstractmethod
    async def change(self, change: Change, *, fence: Lease | None = None) -> RegistryState:
        """Apply a pure function (`dfc.registry.changes`) to the current state, atomically.

        The function is called again if someone else changed the state meanwhile. When this returns, the result is durable and
        in `map` here; the return value is that result, not what others made of it since. If the function raises, nothing is
        changed. Nothing is changed either if the `fence` has expired: LeaseLost. Unavailable.
        """

    @abstractmethod
    async def watch(self, after: int) -> ClusterMap:
        """Wait for a map with a version higher than `after`; return the newest, perhaps skipping versions."""

    @abstractmethod
    async def close(self) -> None:
        """Close the registry; waiting callers get Unavailable. Bounded in time."""

    # --- records: small values by name, beside the state, which a lease holder writes

    @abstractmethod
    def records(self, prefix: str) -> dict[str, bytes]:
        """The records whose names begin so, as far as is known here, without waiting. Who has just got a lease sees all that
        was written under it before."""

    @abstractmethod
    async def keep(self, name: str, value: bytes | None, fence: Lease) -> None:
        """Write a record, or delete it, under a lease; it is durable when this returns. `name`: as for leases. LeaseLost, with
        nothing changed, when the lease has expired; TooLarge for more than RECORD_BYTES_MAX; Unavailable."""

    # --- leases

    @abstractmethod
    def held(self, name: str) -> Grant | None:
        """Who has a lease, as far as is known here, without waiting; None: nobody."""

    @abstractmethod
    def holders(self, prefix: str) -> list[Grant]:
        """Who has the leases whose names begin so, as far as is known here, without waiting."""

    def lease(self, name: str, holder: str, ttl_s: float, url: str = "") -> AbstractAsyncContextManager[Lease]:
        """Hold a lease exclusively within the context. It becomes free `ttl_s` after its holder last renewed it. `url`: where
        the holder can be reached, for those who ask who has it.

        LeaseHeld, naming the holder; BadName or BadRequest for a name or time that is not allowed; Unavailable.
        """
        return hold(self, name, holder, ttl_s, url=url)

    def elect(self, name: str, holder: str, ttl_s: float, url: str = "") -> AbstractAsyncContextManager[Lease]:
        """Like `lease`, but wait while another holder has it. The holder is the leader until `lost`."""
        return elected(self, name, holder, ttl_s, url=url)

    @abstractmethod
    async def grant_lease(self, name: str, holder: str, ttl_s: float, url: str = "") -> Grant:
        """See `dfc.registry.leases.LeaseStore` for this and the next three methods."""

    @abstractmethod
    async def renew_lease(self, grant: Grant) -> bool: ...

    @abstractmethod
    async def revoke_lease(self, grant: Grant) -> None: ...

    @abstractmethod
    async def lease_vacancy(self, name: str) -> None: ...


def check_record(name: str, value: bytes | None) -> None:
    """Raise BadName or TooLarge for what no registry accepts as a record."""
    check_name(name)
    if value is not None and len(value) > RECORD_BYTES_MAX:
        raise TooLarge(f"a record may have {RECORD_BYTES_MAX} bytes, not {len(value)}")


class SharedRegistry(Registry):
    """A registry that several proxies use at a time."""

    is_shared = True
