"""The node's side of its engine process: starts it for the first task, talks to it, ends it when idle."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from dfc.engine.answers import decode_answer
from dfc.engine.base import EngineLost
from dfc.engine.environment import dask_environment
from dfc.engine.wire import FROM_ENGINE, Begin, Cancel, Done, Listening, Lost, RunRequest, WorkerSlots, frame, read_frame

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
                continue
            if isinstance(message, Listening):
                self.address = message.address
                continue
            answer = self._waiting.get(message.number)
            if answer is None or answer.done():
                continue
            if isinstance(message, Done):
                answer.set_result(message.answer)
            elif isinstance(message, Lost):
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
