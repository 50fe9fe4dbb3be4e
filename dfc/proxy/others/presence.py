"""Which proxies there are: each holds a lease with its id and its address for as long as it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from dfc.errors import DfcError
from dfc.http.shutdown import Looping
from dfc.registry.base import Registry
from dfc.registry.leases import Grant

_log: Final = logging.getLogger("dfc.proxy")
PREFIX: Final = "proxies/"
LEASE_S: Final = 10.0
RETRY_S: Final = 1.0


class Presence(Looping):
    """Says that this proxy runs, from `start` to `stop`. `url`: where other nodes reach it."""

    def __init__(self, registry: Registry, node_id: str, url: Callable[[], str]) -> None:
        self._registry = registry
        self._node_id = node_id
        self._url = url

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
