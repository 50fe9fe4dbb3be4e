"""Runs the workers beside a target, for a scheduler elsewhere, in a process of nannies that it restarts when it ends.

The process ends when its standard input is closed, and so with the target, however that ends. It also ends when the
scheduler is gone, and is restarted until there is one. With `jobs_scheduler = coordinator`, heartbeats tell where the scheduler
is, and there are workers only while there is one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from dfc.config import COORDINATOR, Settings, is_loopback
from dfc.engine.link import Link
from dfc.engine.wire import Begin, SchedulerAddress
from dfc.http.shutdown import end

_log: Final = logging.getLogger("dfc.engine")
RESTART_FIRST_S: Final = 0.25
RESTART_MAX_S: Final = 5.0
STEADY_S: Final = 30.0


class WorkersBeside:
    """The workers beside a target. `start` and `stop` them with the node; `directory` is the node's."""

    def __init__(self, settings: Settings, directory: str, node_id: str) -> None:
        self._settings = settings
        self._directory = str(Path(directory).absolute() / "engine")
        self._node_id = node_id
        self._address = "" if settings.jobs_scheduler == COORDINATOR else settings.jobs_scheduler
        self._refused = ""
        self._changed = asyncio.Event()
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
            await end(self._keeper)
        if self._link is not None:
            await self._link.close()

    def follow(self, address: str) -> None:
        """From now on there are workers for the scheduler at this address only; empty: none. One that anybody on the network
        could have set up is refused: workers run what it sends."""
        is_safe = not address or address.startswith("tls:" if self._settings.jobs_tls_ca else "tcp:")
        if is_safe and address.startswith("tcp:"):
            is_safe = is_loopback(SchedulerAddress(address).host)
        if not is_safe:
            if address != self._refused:
                _log.error(
                    "no workers for the scheduler at %s: that needs jobs_tls_ca, jobs_tls_cert and jobs_tls_key", address
                )
            self._refused, address = address, ""
        if address != self._address:
            self._address = address
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def _keep(self) -> None:
        wait_s = RESTART_FIRST_S
        loop = asyncio.get_running_loop()
        while True:
            while not self._address:
                await self._changed.wait()
            begun, address, changed = loop.time(), self._address, self._changed
            try:
                self._link = await Link.open(self._begin(address), lambda _: None, "dfc.engine.nannies")
                await _first_of(self._link.ended(), changed.wait())
                await self._link.close()
            except OSError as error:
                _log.warning("cannot start the workers for jobs: %s", error)
            if loop.time() - begun > STEADY_S or address != self._address:
                wait_s = RESTART_FIRST_S
            if address != self._address:
                continue
            _log.warning("the workers for jobs ended and will be restarted; see %s/engine.log", self._directory)
            await _first_of(asyncio.sleep(wait_s), changed.wait())
            wait_s = min(RESTART_MAX_S, wait_s * 2)

    def _begin(self, address: str) -> Begin:
        return Begin(
            directory=self._directory,
            workers=self._settings.jobs_workers or os.cpu_count() or 1,
            scheduler=SchedulerAddress.of(self._settings, address),
            name=self._node_id,
            host=_listen_host(self._settings, address),
        )


async def _first_of(*some: Coroutine[Any, Any, object]) -> None:
    """Wait until one of these has ended, and cancel the others."""
    tasks = [asyncio.ensure_future(each) for each in some]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end(*tasks)


def _listen_host(settings: Settings, address: str) -> str:
    """The address workers listen on: loopback if the scheduler is there, else the node's; empty: chosen by the route to it."""
    if is_loopback(SchedulerAddress(address).host):
        return "127.0.0.1"
    return "" if settings.host in ("0.0.0.0", "::") or settings.is_loopback() else settings.host
