"""A node and its engine: which one it is, its process, and the workers beside a target."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from dfc.config import COORDINATOR, Settings, is_loopback
from dfc.engine.base import EngineLost, WorkerSettings, decode_answer
from dfc.engine.environment import (
    FROM_ENGINE,
    Begin,
    Cancel,
    Done,
    Listening,
    RunRequest,
    SchedulerAddress,
    WorkerSlots,
    dask_environment,
    frame,
    read_frame,
)
from dfc.http.shutdown import end

_log: Final = logging.getLogger("dfc.engine")
LOG_NAME: Final = "engine.log"
END_S: Final = 5.0  # it normally ends within milliseconds; after this time it is killed


class Link:
    """One engine process. When it ends, for whatever reason, its pending tasks raise EngineLost."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, take_slots: Callable[[int], None]) -> None:
        self._process = process
        self._log = log
        self._take_slots = take_slots
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self.address = ""  # of the scheduler that it runs for workers elsewhere
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, begin: Begin, take_slots: Callable[[int], None], module: str = "dfc.engine.host") -> Link:
        """Start the process. Its messages, and Dask's, go to `engine.log` in its directory, which is overwritten."""
        directory = Path(begin.directory)
        directory.mkdir(parents=True, exist_ok=True)
        log = directory / LOG_NAME
        # Readable by the owner only: Dask's messages may quote arguments, which include the token.
        with open(log, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                module,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=file,
                env=dask_environment(os.environ),
                start_new_session=True,  # its own process group, so that it can end all of it
            )
        link = cls(process, log, take_slots)
        link._send(frame(begin))
        return link

    @property
    def is_alive(self) -> bool:
        return not self._reading.done()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def run(self, task: bytes, near: str | None) -> bytes:
        """Run a task and return the worker's answer, encoded. EngineLost."""
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            if not self.is_alive:
                raise EngineLost(self._last_words())
            self._send(frame(RunRequest(number, task, near)))
            return await answer
        except asyncio.CancelledError:
            self._send(frame(Cancel(number)))
            raise
        finally:
            self._waiting.pop(number, None)

    async def ended(self) -> None:
        """Wait until the process ends by itself."""
        await asyncio.shield(self._reading)

    async def close(self) -> None:
        """End the process and everything it started."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), END_S)
        except TimeoutError:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, 9)
            await self._process.wait()
        await self._reading
        if self._process.stdin is not None:
            with suppress(OSError, TimeoutError):  # without this, Python 3.11.2 logs the error of a broken pipe
                await asyncio.wait_for(self._process.stdin.wait_closed(), END_S)

    def _send(self, data: bytes) -> None:
        # No drain: tasks are small, and the service limits how many are pending.
        if self._process.stdin is not None and not self._process.stdin.is_closing():
            with suppress(OSError, RuntimeError):
                self._process.stdin.write(data)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while (data := await read_frame(self._process.stdout)) is not None:
            message = FROM_ENGINE.decode(data)
            if isinstance(message, WorkerSlots):
                self._take_slots(message.count)
            elif isinstance(message, Listening):
                self.address = message.address
            elif (answer := self._waiting.get(message.number)) is not None and not answer.done():
                if isinstance(message, Done):
                    answer.set_result(message.answer)
                else:
                    answer.set_exception(EngineLost(message.reason))
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(EngineLost(self._last_words()))

    def _last_words(self) -> str:
        with suppress(OSError):
            lines = self._log.read_text(errors="replace").splitlines()
            if lines:
                return f"the engine process ended: {lines[-1][:300]}"
        return "the engine process ended"


class LinkedEngine:
    """An `Engine` in a child process; `begin` configures it."""

    def __init__(self, begin: Begin, idle_s: float) -> None:
        self._begin = begin
        self._idle_s = idle_s
        self._slots = max(1, begin.workers)
        self._link: Link | None = None
        self._opening = asyncio.Lock()
        self._running = 0
        self._ending: asyncio.TimerHandle | None = None
        self._closed = False
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def pid(self) -> int | None:
        """The id of the engine process, while there is one."""
        return self._link.pid if self._link is not None and self._link.is_alive else None

    @property
    def address(self) -> str:
        """By what workers beside targets reach the scheduler that runs here; empty: none does at the moment."""
        return self._link.address if self._link is not None and self._link.is_alive else ""

    async def start(self) -> None:
        """Do nothing: the settings have been checked when they were loaded."""

    async def run(self, task: bytes, near: str | None) -> bytes:
        self._running += 1
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        try:
            link = await self._open()
            return decode_answer(await link.run(task, near))
        finally:
            self._running -= 1
            if self._running == 0 and not self._closed:
                self._ending = asyncio.get_running_loop().call_later(self._idle_s, self._end_idle)

    async def close(self) -> None:
        self._closed = True
        if self._ending is not None:
            self._ending.cancel()
        async with self._opening:
            link, self._link = self._link, None
        if link is not None:
            await link.close()
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _open(self) -> Link:
        async with self._opening:
            if self._closed:
                raise EngineLost("this node is stopping")
            if self._link is None or not self._link.is_alive:
                if self._link is not None:
                    _log.warning("the engine process ended unexpectedly; restarting it")
                    await self._link.close()
                self._link = await Link.open(self._begin, self._take_slots)
            return self._link

    def _take_slots(self, count: int) -> None:
        self._slots = max(1, count)

    def _end_idle(self) -> None:
        link, self._link, self._ending = self._link, None, None
        if link is not None and self._running == 0:
            closing = asyncio.create_task(link.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        elif link is not None:
            self._link = link


# --- Chooses the engine by the proxy's settings: the cluster's Dask scheduler, or processes on this machine.
#
# On one machine, this is a Dask `LocalCluster`, started for the first task and ended when idle. Its scheduler and nannies live
# in a child process of the proxy (`dfc.engine.host`), not in a thread. Importing Dask alone holds the interpreter for half a
# second, and its scheduler takes a millisecond of Python per task; in a thread, both would block the proxy's event loop. A
# child takes 60 MB and frees them when it ends, while the proxy would stay that much larger. When the proxy is killed, the
# child's standard input is closed, and the child ends with all its workers. Everything listens on 127.0.0.1 without TLS: anyone
# who can log in to the machine can reach it (docs/operations.md).
#
# In a cluster, the scheduler is a process of its own, with a worker beside each target that reads its disks directly. The proxy
# has only a client, in a child process for the same reasons. A scheduler that is not on loopback needs mutual TLS, because Dask
# unpickles what its peers send: anyone who can connect can run code. A node does not start with other settings (`dfc.config`).
#
# With several proxies that one process is one too many. Then the child of the coordinator runs the scheduler itself, for the
# first task, and heartbeats tell the targets where (`dfc.engine.link`). The next coordinator has one of its own.


def open_engine(settings: Settings, directory: str, proxy_url: str) -> LinkedEngine:
    """Make the engine for these settings. `directory` is the proxy's; its folder `engine/` gets a log, and scratch space for
    workers on this machine. `proxy_url` is the URL at which nodes reach the proxy."""
    scheduler, serves = None, settings.jobs_scheduler == COORDINATOR
    if serves:
        scheduler = SchedulerAddress.at(settings, urlsplit(proxy_url).hostname or "127.0.0.1")
    elif settings.jobs_scheduler:
        scheduler = SchedulerAddress.of(settings)
    begin = Begin(
        directory=str(Path(directory).absolute() / "engine"),
        workers=0 if settings.jobs_scheduler else settings.jobs_workers or os.cpu_count() or 1,
        settings=WorkerSettings.of(settings, proxy_url).encode(),
        scheduler=scheduler,
        host=settings.host if serves else "",
        serves=serves,
    )
    return LinkedEngine(begin, settings.jobs_engine_idle_s)


# --- Runs the workers beside a target, for a scheduler elsewhere, in a process of nannies that it restarts when it ends.
#
# The process ends when its standard input is closed, and so with the target, however that ends. It also ends when the scheduler
# is gone, and is restarted until there is one. With `jobs_scheduler = coordinator`, heartbeats tell where the scheduler is, and
# there are workers only while there is one.

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
