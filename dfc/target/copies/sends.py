"""One row on its way to several disks at once: each answer counts as it comes, so that nobody waits for the slowest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from dfc.http.shutdown import end
from dfc.replication.write import Writing
from dfc.storage.rows import NameState

AGAIN_S: Final = 0.3  # until a disk that has refused or not answered is asked again: it may be about to get its lease
AGAIN_S_MAX: Final = 1.0


class Sends:
    """What is under way for one write. `send` says whether a disk has the row now."""

    def __init__(self, writing: Writing, send: Callable[[str, NameState], Awaitable[bool]]) -> None:
        self._writing = writing
        self._send = send
        self._running: dict[asyncio.Task[bool], str] = {}
        self._pauses: dict[str, float] = {}  # by disk: after its next failure

    @property
    def under_way(self) -> bool:
        """Whether anybody is still to answer."""
        return bool(self._running)

    def begin(self, disks: Iterable[str], state: NameState) -> None:
        """Send the row to these disks."""
        for each in disks:
            self._running[asyncio.create_task(self._attempt(each, state))] = each

    async def _attempt(self, to: str, state: NameState) -> bool:
        """A failure is told after a pause. So whatever is sent next is of that time, not of the time before the pause."""
        if await self._send(to, state):
            return True
        pause_s = self._pauses.get(to, AGAIN_S)
        self._pauses[to] = min(AGAIN_S_MAX, 2 * pause_s)
        await asyncio.sleep(pause_s)
        return False

    async def answered(self, timeout_s: float) -> bool:
        """Wait for the first answers and note them; False if none comes in time."""
        done, _ = await asyncio.wait(self._running, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            to, taken = self._running.pop(task), task.result()
            (self._writing.committed if taken else self._writing.failed)(to)
        return bool(done)

    async def close(self) -> None:
        """Give up what is under way. A body that is being sent goes on to its end in its thread; a row that arrives all the
        same is pending there until its disk has asked the primary."""
        await end(*self._running)
