"""What a proxy that is not the coordinator knows of targets, by what the coordinator has heard: how full their disks are, and
whether they know a newer map than the registry."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from dfc.errors import DfcError
from dfc.http.shutdown import Looping
from dfc.proxy.cluster import Cluster
from dfc.registry.reports import HeardByCoordinator

_log: Final = logging.getLogger("dfc.proxy")
LOOK_S: Final = 2.0
FIRST_LOOK_S: Final = 0.1  # at first, until it is known what targets know, since new buckets wait for that
FIRST_LOOKS_S: Final = 5.0  # for so long


class Following(Looping):
    """Asks the coordinator from `start` to `stop`, while that is another proxy, whose URL `elsewhere` returns."""

    def __init__(self, cluster: Cluster, elsewhere: Callable[[], str | None]) -> None:
        self._cluster = cluster
        self._elsewhere = elsewhere

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + FIRST_LOOKS_S
        while True:
            url = self._elsewhere()
            if url is not None:
                try:
                    found = await self._cluster.control.call("GET", f"{url}/v1/node/heard", HeardByCoordinator)
                    if self._elsewhere() == url:  # otherwise this proxy may hear targets by now
                        self._cluster.take_told(found)
                except DfcError as error:
                    _log.info("cannot ask the coordinator what it has heard of targets: %s", error.message)
                except Exception:
                    _log.exception("asking the coordinator what it has heard of targets failed; trying again")
            is_soon = loop.time() < until_s and not self._cluster.has_heard()
            await asyncio.sleep(FIRST_LOOK_S if is_soon else LOOK_S)
