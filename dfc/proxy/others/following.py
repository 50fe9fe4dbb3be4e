"""What a proxy that is not the coordinator knows of disks: how full they are, by what the coordinator has heard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from dfc.errors import DfcError
from dfc.placement.map import ClusterMap
from dfc.proxy.cluster import Cluster

_log: Final = logging.getLogger("dfc.proxy")
LOOK_S: Final = 2.0


class Following:
    """Asks the coordinator from `start` to `stop`, while that is another proxy, whose URL `elsewhere` returns."""

    def __init__(self, cluster: Cluster, elsewhere: Callable[[], str | None]) -> None:
        self._cluster = cluster
        self._elsewhere = elsewhere
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
            url = self._elsewhere()
            if url is not None:
                try:
                    found = await self._cluster.control.call("GET", f"{url}/v1/cluster", ClusterMap)
                    if self._elsewhere() == url:  # otherwise this proxy may hear targets by now
                        self._cluster.take_told(found)
                except DfcError as error:
                    _log.info("cannot ask the coordinator how full disks are: %s", error.message)
                except Exception:
                    _log.exception("asking the coordinator how full disks are failed; trying again")
            await asyncio.sleep(LOOK_S)
