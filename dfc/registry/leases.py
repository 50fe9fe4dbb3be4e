"""Leases: a name that one holder has for a time, and keeps as long as it renews it. Who leads is such a name.

A holder counts its time from the sending of what was answered, the registry from the receipt: so a holder knows that it has
lost a name before anybody else can have it. The clock goes on while a machine is suspended, and no one can set it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final, Protocol

import msgspec

from dfc.errors import BadName, BadRequest, Conflict, DfcError, Unavailable

_log: Final = logging.getLogger("dfc.registry")
RENEW_SHARE: Final = 1 / 3  # of its time after which a lease is renewed: two attempts may be lost
REVOKE_S: Final = 1.0  # to give a lease back; what takes longer is left to its time
RETRY_SHARE: Final = 1 / 10  # of its time between two attempts to renew, when one has failed
LEASE_NAME_CHARS_MAX: Final = 128
LEASE_S_MIN: Final = 0.1
LEASE_S_MAX: Final = 3600.0
# Lower case, since they become keys of other stores; segments, none of them empty or made of dots alone.
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]*(?:/[a-z0-9][a-z0-9._-]*)*")
_HOLDER: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


def boot_s() -> float:
    """Seconds since the machine was started, those in which it was suspended as well."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseHeld(Conflict):
    """Another holder, named in the message, has it. 409."""


class LeaseLost(Unavailable):
    """What was to be done under a lease is not done, since the lease is over. 503."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A lease as the registry knows it. No two have the same `token`, in whatever time."""

    name: str
    holder: str
    ttl_s: float
    token: int


class LeaseStore(Protocol):
    """What leases need of a registry. All may raise Unavailable, and then it is not known whether it was done."""

    async def grant_lease(self, name: str, holder: str, ttl_s: float) -> Grant:
        """Give the name to a holder for `ttl_s` seconds. LeaseHeld."""
        ...

    async def renew_lease(self, grant: Grant) -> bool:
        """Begin its time anew; False when it is over, for good."""
        ...

    async def revoke_lease(self, grant: Grant) -> None:
        """End it before its time; nothing when it is over."""
        ...

    async def lease_vacancy(self, name: str) -> None:
        """Wait until nobody has the name. Somebody else may have it again before the caller has asked for it."""
        ...


def check_lease(name: str, holder: str, ttl_s: float) -> None:
    """BadName or BadRequest for what no registry takes."""
    if len(name) > LEASE_NAME_CHARS_MAX or not _NAME.fullmatch(name):
        raise BadName(
            f"invalid lease name {name[:80]!r}: it must be segments [a-z0-9][a-z0-9._-]* separated by '/', "
            f"{LEASE_NAME_CHARS_MAX} characters in all"
        )
    if not _HOLDER.fullmatch(holder):
        raise BadName(f"invalid lease holder {holder[:80]!r}: it must match [A-Za-z0-9._-]{{1,64}}")
    if not LEASE_S_MIN <= ttl_s <= LEASE_S_MAX:
        raise BadRequest(f"a lease must last {LEASE_S_MIN} to {LEASE_S_MAX} s, not {ttl_s}")


class Lease:
    """A lease in the hands of its holder. `lost` is set as soon as it is known to be over, or may be."""

    def __init__(self, grant: Grant, until_s: float, clock_s: Callable[[], float]) -> None:
        self.grant: Final = grant
        self.lost: Final = asyncio.Event()
        self._until_s = until_s
        self._clock_s = clock_s

    @property
    def is_held(self) -> bool:
        """Whether nobody else can have it now. Asks the clock: a process that was stopped knows before its tasks run again."""
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
    store: LeaseStore, name: str, holder: str, ttl_s: float, clock_s: Callable[[], float] = boot_s
) -> AsyncIterator[Lease]:
    """Have a lease within the context, renewed all the while and given back at its end. LeaseHeld; Unavailable."""
    check_lease(name, holder, ttl_s)
    asked_s = clock_s()
    # If this is cancelled on its way, the registry may have given what nobody knows of: its time ends by itself.
    grant = await store.grant_lease(name, holder, ttl_s)
    lease = Lease(grant, asked_s + ttl_s, clock_s)
    keeper = asyncio.create_task(lease.keep(store))
    try:
        yield lease
    finally:
        keeper.cancel()
        lease.lost.set()
        try:
            with suppress(DfcError, TimeoutError):  # who cannot give it back leaves it to its time
                async with asyncio.timeout(REVOKE_S):
                    await store.revoke_lease(grant)
        finally:
            await asyncio.wait((keeper,))


@asynccontextmanager
async def elected(
    store: LeaseStore, name: str, holder: str, ttl_s: float, clock_s: Callable[[], float] = boot_s
) -> AsyncIterator[Lease]:
    """Like `hold`, but wait while another holder has it, however long."""
    async with AsyncExitStack() as stack:
        while True:
            try:
                lease = await stack.enter_async_context(hold(store, name, holder, ttl_s, clock_s))
                break
            except LeaseHeld:
                await store.lease_vacancy(name)
        yield lease


class _Held:
    """A lease that was given, and who waits for its end."""

    def __init__(self, grant: Grant, until_s: float) -> None:
        self.grant = grant
        self.until_s = until_s
        self.freed = asyncio.Event()


class LeaseTable:
    """The leases of a registry that lives in one process. Nothing of it is kept: its holders end with the process.

    Used by the event loop alone; `is_valid` by any thread.
    """

    def __init__(self, clock_s: Callable[[], float] = boot_s) -> None:
        self._clock_s = clock_s
        self._held: dict[str, _Held] = {}
        self._last_token = 0

    def grant(self, name: str, holder: str, ttl_s: float) -> Grant:
        """LeaseHeld."""
        now_s = self._clock_s()
        self._held = {each: held for each, held in self._held.items() if now_s < held.until_s}
        found = self._held.get(name)
        if found is not None:
            raise LeaseHeld(f"the lease {name} is held by {found.grant.holder}")
        self._last_token += 1
        grant = Grant(name=name, holder=holder, ttl_s=ttl_s, token=self._last_token)
        self._held[name] = _Held(grant, now_s + ttl_s)
        return grant

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
        """End all of them."""
        held, self._held = self._held, {}
        for each in held.values():
            each.freed.set()

    async def vacancy(self, name: str) -> None:
        while (found := self._held.get(name)) is not None and (left_s := found.until_s - self._clock_s()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await found.freed.wait()
