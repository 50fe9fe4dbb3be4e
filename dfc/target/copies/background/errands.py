"""What a disk has to do with other disks, each a task of its own: one that does not answer holds up nobody else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from dfc.errors import DfcError
from dfc.http.shutdown import end

_log: Final = logging.getLogger("dfc.target")
RETRY_S: Final = 5.0  # after an error


class Errands:
    """The errands of one disk, by their names: what to do, and for whom."""

    def __init__(self, disk_id: str) -> None:
        self._disk_id = disk_id
        self._running: dict[tuple[str, ...], asyncio.Task[None]] = {}
        self._next_s: dict[tuple[str, ...], float] = {}  # not to begin again before this, by the loop's clock

    def begin(self, name: tuple[str, ...], work: Callable[[], Awaitable[float]]) -> None:
        """Begin an errand, unless it is running, or not due again. `work` returns in how many seconds it is."""
        now_s = asyncio.get_running_loop().time()
        if name not in self._running and self._next_s.get(name, now_s) <= now_s:
            self._next_s = {each: at_s for each, at_s in self._next_s.items() if at_s > now_s}
            self._running[name] = asyncio.create_task(self._run(name, work))

    async def idle(self, timeout_s: float) -> None:
        """Wait until none is running, but no longer than this."""
        until_s = asyncio.get_running_loop().time() + timeout_s
        while self._running and (left_s := until_s - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(tuple(self._running.values()), timeout=left_s)

    async def stop(self) -> None:
        """Give up what is under way."""
        await end(*self._running.values())
        self._running.clear()  # a task that was cancelled before it began has not done so

    async def _run(self, name: tuple[str, ...], work: Callable[[], Awaitable[float]]) -> None:
        pause_s = RETRY_S
        try:
            pause_s = await work()
        except DfcError as error:
            _log.info("copies on disk %s: %s: %s", self._disk_id, " ".join(name), error.message)
        except Exception:
            _log.exception("copies on disk %s: %s: trying again", self._disk_id, " ".join(name))
        finally:
            self._next_s[name] = asyncio.get_running_loop().time() + pause_s
            self._running.pop(name, None)
