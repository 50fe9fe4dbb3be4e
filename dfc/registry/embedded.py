"""The embedded registry, for a cluster with one proxy, in a file on the proxy's disk (`dfc.registry.file`).

Blocking calls go through one thread, which puts all changes in one order. Leases live in this process, since no other can have
the file open.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from dfc.database import is_full
from dfc.errors import NoRegistry, NoSpace, Unavailable
from dfc.http.shutdown import end_threads, in_time
from dfc.placement.map import ClusterMap
from dfc.registry.base import Registry, check_record
from dfc.registry.changes import Change, RegistryState
from dfc.registry.file import RegistryFile
from dfc.registry.leases import Grant, Lease, LeaseLost, LeaseTable

T = TypeVar("T")


class EmbeddedRegistry(Registry):
    """A registry in an open registry file, which it owns and closes."""

    def __init__(self, file: RegistryFile) -> None:
        self._file = file
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="registry")
        self._leases = LeaseTable()
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def map(self) -> ClusterMap:
        return self._file.state.map

    async def change(self, change: Change, *, fence: Lease | None = None) -> RegistryState:
        def fenced(state: RegistryState) -> RegistryState:
            self._check_fence(fence)
            return change(state)

        return await self._write(lambda: self._file.apply(fenced))

    def _check_fence(self, fence: Lease | None) -> None:
        """LeaseLost. Changes by later leaders come after the one that is made now: they are behind it in the thread's queue."""
        if fence is not None and not (fence.is_held and self._leases.is_valid(fence.grant)):
            raise LeaseLost(f"the lease {fence.grant.name} of {fence.grant.holder} has expired")

    async def _write(self, write: Callable[[], T]) -> T:
        """Change the file, in its thread."""
        self._check_open()
        loop = asyncio.get_running_loop()

        def apply() -> T:
            before = self._file.state
            try:
                return write()
            except sqlite3.OperationalError as error:
                why = f"the registry's file cannot be written: {error}"
                self._note_written(why)
                raise (NoSpace if is_full(error) else NoRegistry)(why) from error
            finally:
                if self._file.state is not before:
                    self._note_written()
                    # Notify from here: the caller may have been cancelled although the change was made.
                    with suppress(RuntimeError):  # the loop is closed already
                        loop.call_soon_threadsafe(self._tell)

        waiting = loop.run_in_executor(self._thread, apply)
        try:
            await asyncio.wait((waiting,))
        except asyncio.CancelledError:
            waiting.cancel()
            raise
        if waiting.cancelled():  # dropped by `close` before its turn came
            raise self._ended()
        return waiting.result()

    def _check_open(self) -> None:
        if self._closed:
            raise self._ended()

    @staticmethod
    def _ended() -> Unavailable:
        return Unavailable("the registry is closed: this proxy is shutting down")

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def watch(self, after: int) -> ClusterMap:
        self._check_open()
        while self.map.version <= after:
            await self._changed.wait()
            self._check_open()
        return self.map

    async def close(self) -> None:
        self._closed = True
        self._tell()
        self._leases.clear()
        if await end_threads(self._thread, "the registry"):
            await in_time(self._file.close, "the registry")

    # --- records

    def records(self, prefix: str) -> dict[str, bytes]:
        return {name: value for name, value in self._file.records.items() if name.startswith(prefix)}

    async def keep(self, name: str, value: bytes | None, fence: Lease) -> None:
        check_record(name, value)

        def write() -> None:
            self._check_fence(fence)
            self._file.keep(name, value)

        await self._write(write)

    # --- leases

    def held(self, name: str) -> Grant | None:
        return self._leases.held(name)

    def holders(self, prefix: str) -> list[Grant]:
        return self._leases.holders(prefix)

    async def grant_lease(self, name: str, holder: str, ttl_s: float, url: str = "") -> Grant:
        self._check_open()
        return self._leases.grant(name, holder, ttl_s, url)

    async def renew_lease(self, grant: Grant) -> bool:
        self._check_open()
        return self._leases.renew(grant)

    async def revoke_lease(self, grant: Grant) -> None:
        self._leases.revoke(grant)

    async def lease_vacancy(self, name: str) -> None:
        self._check_open()
        await self._leases.vacancy(name)
