"""One result for all who want it at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from math import inf
from typing import Generic, TypeVar

from dfc.errors import Unavailable

T = TypeVar("T")


class SharedCall(Generic[T]):
    """A call that is made once, however many wait for its result, which is good for `fresh_s` seconds from its begin.

    It belongs to nobody who waits: one who is cancelled leaves the others waiting, and when all are, it goes on for who comes
    next. Its error goes to all who wait, and is not kept. `clock_s` is replaced by tests."""

    def __init__(
        self, make: Callable[[], Awaitable[T]], fresh_s: float = inf, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._make = make
        self._fresh_s = fresh_s
        self._clock_s = clock_s
        self._begun_s = 0.0
        self._task: asyncio.Task[T] | None = None
        self._ended = False

    async def get(self) -> T:
        """Return a fresh result. What the call raises; Unavailable after `stop`, unless the last result is fresh."""
        task = self._task
        if task is None or (task.done() and (self._clock_s() - self._begun_s >= self._fresh_s or _has_failed(task))):
            if self._ended:
                raise Unavailable("this node stops")
            self._begun_s = self._clock_s()
            task = self._task = asyncio.create_task(self._run())
            task.add_done_callback(_has_failed)  # looks at the error of a call for which nobody waits any more
        await asyncio.wait((task,))  # which leaves it alone if this is cancelled
        if task.cancelled():
            raise Unavailable("this node stops")
        return task.result()

    async def _run(self) -> T:
        return await self._make()

    async def stop(self) -> None:
        """Give up the call that is under way, and make no other."""
        self._ended = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))


def _has_failed(task: asyncio.Task[T]) -> bool:
    return task.cancelled() or task.exception() is not None
