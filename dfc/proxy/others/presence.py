"""Which proxies there are: each holds a lease with its id and its address for as long as it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from dfc.errors import DfcError
from dfc.registry.base import Registry
from dfc.registry.leases import Grant

_log: Final = logging.getLogger("dfc.proxy")
PREFIX: Final = "proxies/"
LEASE_S: Final = 10.0
RETRY_S: Final = 1.0


class Presence:
    """Says that this proxy runs, from `start` to `stop`. `url`: where other nodes reach it."""

    def __init__(self, registry: Registry, node_id: str, url: Callable[[], str]) -> None:
        self._registry = registry
        self._node_id = node_id
        self._url = url
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop; safe before `start`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        while True:
            try:
                name = PREFIX + self._node_id.lower()
                async with self._registry.elect(name, self._node_id, LEASE_S, self._url()) as lease:
                    await lease.lost.wait()
            except DfcError as error:
                _log.info("cannot tell the other proxies that this one runs: %s", error.message)
            except Exception:
                _log.exception("telling the other proxies that this one runs failed; trying again")
            await asyncio.sleep(RETRY_S)

    def proxies(self) -> list[Grant]:
        """The proxies that run, as far as is known here."""
        return sorted(self._registry.holders(PREFIX), key=lambda grant: grant.holder)
