"""The interface of registries: the cluster map, and leases."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol

import msgspec

from dfc.errors import BadName, BadRequest, Conflict, DfcError, TooLarge, Unavailable
from dfc.placement.map import ClusterMap
from dfc.registry.changes import Change, RegistryState

# --- Leases: a name that one holder has for a limited time and keeps by renewing it. Leadership is such a lease.
#
# A holder counts the time from sending its request, the registry from receiving it; so a holder knows that its lease has
# expired before another can get it. The clock runs while a machine is suspended, and cannot be set.

_log: Final = logging.getLogger("dfc.registry")
RENEW_SHARE: Final = 1 / 3  # a lease is renewed after this share of its time: two attempts may be lost
REVOKE_S: Final = 1.0  # to give a lease back; if that takes longer, it expires by itself
RETRY_SHARE: Final = 1 / 10  # the share of its time between attempts to renew, after one has failed
LEASE_NAME_CHARS_MAX: Final = 128
LEASE_S_MIN: Final = 0.1
LEASE_S_MAX: Final = 3600.0
# Lower case, since they become keys of other stores; segments, none of them empty or made of dots alone.
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]*(?:/[a-z0-9][a-z0-9._-]*)*")
_HOLDER: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


def boot_s() -> float:
    """Return the seconds since the machine booted, including time suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseHeld(Conflict):
    """Another holder, named in the message, has the lease. 409."""


class LeaseLost(Unavailable):
    """The lease has expired, so what was to be done under it was not done. 503."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A lease as the registry knows it. Its `token` is unique for all time. `url`: where its holder can be reached, if it has
    said that."""

    name: str
    holder: str
    ttl_s: float
    token: int
    url: str = ""


class LeaseStore(Protocol):
    """What leases need from a registry. All methods may raise Unavailable; then it is unknown whether the call took effect."""

    async def grant_lease(self, name: str, holder: str, ttl_s: float, url: str = "") -> Grant:
        """Give the name to a holder for `ttl_s` seconds. LeaseHeld."""

    async def renew_lease(self, grant: Grant) -> bool:
        """Restart the lease's time; False when it has expired, for good."""

    async def revoke_lease(self, grant: Grant) -> None:
        """End the lease early; does nothing when it has expired."""

    async def lease_vacancy(self, name: str) -> None:
        """Wait until the name is free. Another holder may take it before the caller does."""


def check_name(name: str) -> None:
    """Raise BadName for a name that no registry accepts for a lease or a record."""
    if len(name) > LEASE_NAME_CHARS_MAX or not _NAME.fullmatch(name):
        raise BadName(
            f"invalid lease name {name[:80]!r}: it must be segments [a-z0-9][a-z0-9._-]* separated by '/', "
            f"{LEASE_NAME_CHARS_MAX} characters in all"
        )


def check_lease(name: str, holder: str, ttl_s: float) -> None:
    """Raise BadName or BadRequest for a lease that no registry accepts."""
    check_name(name)
    if not _HOLDER.fullmatch(holder):
        raise BadName(f"invalid lease holder {holder[:80]!r}: it must match [A-Za-z0-9._-]{{1,64}}")
    if not LEASE_S_MIN <= ttl_s <= LEASE_S_MAX:
        raise BadRequest(f"a lease must last {LEASE_S_MIN} to {LEASE_S_MAX} s, not {ttl_s}")


class Lease:
    """A lease as its holder sees it. `lost` is set as soon as it has, or may have, expired."""

    def __init__(self, grant: Grant, until_s: float, clock_s: Callable[[], float]) -> None:
        self.grant: Final = grant
        self.lost: Final = asyncio.Event()
        self._until_s = until_s
        self._clock_s = clock_s

    @property
    def is_held(self) -> bool:
        """Whether no one else can have it now. Checks the clock, so a process that was stopped notices immediately."""
        return not self.lost.is_set() and self._clock_s() < self._until_s

    async def keep(self, store: LeaseStore) -> None:
        """Renew it until it is lost."""
        wait_s = self.grant.ttl_s * RENEW_SHARE
        try:
            while True:
                await asyncio.sleep(max(0.0, min(wait_s, self._until_s - self._clock_s())))
                if not self.is_held:
                    return
                asked_s = self._clock_s()
                try:
                    async with asyncio.timeout(self._until_s - asked_s):
                        if not await store.renew_lease(self.grant):
                            return
                except TimeoutError:
                    return
                except Exception as error:
                    _log.warning("the lease %s could not be renewed: %s", self.grant.name, error)
                    wait_s = self.grant.ttl_s * RETRY_SHARE
                    continue
                self._until_s, wait_s = asked_s + self.grant.ttl_s, self.grant.ttl_s * RENEW_SHARE
        finally:
            self.lost.set()


@asynccontextmanager
async def hold(
    store: LeaseStore, name: str, holder: str, ttl_s: float, clock_s: Callable[[], float] = boot_s, url: str = ""
) -> AsyncIterator[Lease]:
    """Hold a lease within the context: it is renewed all the time and given back at the end. LeaseHeld; Unavailable."""
    check_lease(name, holder, ttl_s)
    asked_s = clock_s()
    # If this is cancelled, the registry may have granted a lease that nobody knows of; it expires by itself.
    grant = await store.grant_lease(name, holder, ttl_s, url)
    lease = Lease(grant, asked_s + ttl_s, clock_s)
    keeper = asyncio.create_task(lease.keep(store))
    try:
        yield lease
    finally:
        keeper.cancel()
        lease.lost.set()
        try:
            with suppress(DfcError, TimeoutError):  # if it cannot be given back, it expires by itself
                async with asyncio.timeout(REVOKE_S):
                    await store.revoke_lease(grant)
        finally:
            await asyncio.wait((keeper,))


@asynccontextmanager
async def elected(
    store: LeaseStore, name: str, holder: str, ttl_s: float, clock_s: Callable[[], float] = boot_s, url: str = ""
) -> AsyncIterator[Lease]:
    """Like `hold`, but wait while another holder has it, however long."""
    async with AsyncExitStack() as stack:
        while True:
            try:
                lease = await stack.enter_async_context(hold(store, name, holder, ttl_s, clock_s, url))
                break
            except LeaseHeld:
                await store.lease_vacancy(name)
        yield lease


@dataclass
class _Held:
    """A lease that was granted, and an event for those who wait for its end."""

    grant: Grant
    until_s: float
    freed: asyncio.Event = field(default_factory=asyncio.Event)


class LeaseTable:
    """The leases of a registry within one process. They are not stored, since their holders end with the process.

    For the event loop only, except `is_valid`, which any thread may call.
    """

    def __init__(self, clock_s: Callable[[], float] = boot_s) -> None:
        self._clock_s = clock_s
        self._held: dict[str, _Held] = {}
        self._last_token = 0

    def grant(self, name: str, holder: str, ttl_s: float, url: str = "") -> Grant:
        """Grant a lease. LeaseHeld."""
        now_s = self._clock_s()
        self._held = {each: held for each, held in self._held.items() if now_s < held.until_s}
        found = self._held.get(name)
        if found is not None:
            raise LeaseHeld(f"the lease {name} is held by {found.grant.holder}")
        self._last_token += 1
        grant = Grant(name=name, holder=holder, ttl_s=ttl_s, token=self._last_token, url=url)
        self._held[name] = _Held(grant, now_s + ttl_s)
        return grant

    def held(self, name: str) -> Grant | None:
        """Who has a lease."""
        found = self._held.get(name)
        return found.grant if found is not None and self._clock_s() < found.until_s else None

    def holders(self, prefix: str) -> list[Grant]:
        """Who has the leases whose names begin so."""
        found = (self.held(name) for name in self._held if name.startswith(prefix))
        return [grant for grant in found if grant is not None]

    def is_valid(self, grant: Grant) -> bool:
        return self._find(grant) is not None

    def _find(self, grant: Grant) -> _Held | None:
        found = self._held.get(grant.name)
        return found if found is not None and found.grant == grant and self._clock_s() < found.until_s else None

    def renew(self, grant: Grant) -> bool:
        found = self._find(grant)
        if found is None:
            return False
        found.until_s = self._clock_s() + grant.ttl_s
        return True

    def revoke(self, grant: Grant) -> None:
        found = self._find(grant)
        if found is not None:
            del self._held[grant.name]
            found.freed.set()

    def clear(self) -> None:
        """End all leases."""
        held, self._held = self._held, {}
        for each in held.values():
            each.freed.set()

    async def vacancy(self, name: str) -> None:
        while (found := self._held.get(name)) is not None and (left_s := found.until_s - self._clock_s()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await found.freed.wait()


# --- The interface of registries, which keep the cluster map and grant leases.
#
# Everything that waits may be cancelled, and leaves nothing behind. If the caller of a change is cancelled or gets Unavailable,
# the change may or may not have been made.

RECORD_BYTES_MAX: Final = 65_536
JOBS_KEPT_MAX: Final = 1000  # jobs that are over, in the registry; older ones stay in the journals that know them
JOBS: Final = "jobs/"  # what the names of records of jobs begin with
EPOCHS: Final = "epochs/"  # of records of how far disks have come
UNWRITTEN_S: Final = 30.0  # for which a change that could not be written is told of, unless one is written
CLOSED: Final = "the registry is closed: this proxy is shutting down"


class Registry(ABC):
    """A registry, used by one event loop: `open` it first. After `close`, everything but `map` raises Unavailable."""

    kind: ClassVar[str] = "embedded"
    is_shared: ClassVar[bool] = False
    """Whether other processes may change the registry, so that the newest map that is known here may not be the newest."""

    def __init__(self) -> None:
        self._closed = False
        self._changed = asyncio.Event()  # of a change of the map; another one after each

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(CLOSED)

    def _tell(self) -> None:
        """Wake those who wait for a change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

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

    async def watch(self, after: int) -> ClusterMap:
        """Wait for a map with a version higher than `after`; return the newest, perhaps skipping versions."""
        self._check_open()
        while self.map.version <= after:
            await self._changed.wait()
            self._check_open()
        return self.map

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
        """See `dfc.registry.base.LeaseStore` for this and the next three methods."""

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
