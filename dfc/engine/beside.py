"""Runs the workers beside a target, for an external scheduler, in a process of nannies that it restarts when it ends.

The process ends when its standard input is closed, and so with the target, however that ends. It also ends when the
scheduler is gone, and is restarted until there is one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from dfc.config import Settings, is_loopback
from dfc.engine.link import Link
from dfc.engine.wire import Begin, SchedulerAddress

_log: Final = logging.getLogger("dfc.engine")
RESTART_FIRST_S: Final = 0.25
RESTART_MAX_S: Final = 5.0
STEADY_S: Final = 30.0


class WorkersBeside:
    """The workers beside a target. `start` and `stop` them with the node; `directory` is the node's."""

    def __init__(self, settings: Settings, directory: str, node_id: str) -> None:
        self._begin = Begin(
            directory=str(Path(directory).absolute() / "engine"),
            workers=settings.jobs_workers or os.cpu_count() or 1,
            scheduler=SchedulerAddress.of(settings),
            name=node_id,
            host=_listen_host(settings),
        )
        self._keeper: asyncio.Task[None] | None = None
        self._link: Link | None = None

    @property
    def pid(self) -> int | None:
        """The id of the process, while there is one."""
        return self._link.pid if self._link is not None and self._link.is_alive else None

    def start(self) -> None:
        self._keeper = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        if self._link is not None:
            await self._link.close()

    async def _keep(self) -> None:
        wait_s = RESTART_FIRST_S
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            try:
                self._link = await Link.open(self._begin, lambda _: None, "dfc.engine.nannies")
                await self._link.ended()
                await self._link.close()
            except OSError as error:
                _log.warning("cannot start the workers for jobs: %s", error)
            if loop.time() - begun > STEADY_S:
                wait_s = RESTART_FIRST_S
            _log.warning("the workers for jobs ended and will be restarted; see %s/engine.log", self._begin.directory)
            await asyncio.sleep(wait_s)
            wait_s = min(RESTART_MAX_S, wait_s * 2)


def _listen_host(settings: Settings) -> str:
    """The address workers listen on: loopback if the scheduler is there, else the node's; empty: chosen by the route to it."""
    address = SchedulerAddress.of(settings).host
    if is_loopback(address):
        return "127.0.0.1"
    return "" if settings.host in ("0.0.0.0", "::") or settings.is_loopback() else settings.host
