"""Whether this process stood still for a while: it was stopped, its machine was suspended, or its event loop was held up.

A client may have given up a request meanwhile, and made another one elsewhere, before this process saw anything of it. A write
like that must not be carried out any more: it would undo what is newer. The kernel knows whether a client has closed its side
(`has_closed`). Asking it always would do harm to clients that close their sending side and wait for the answer, which looks the
same from here; so it is asked only about requests that a pause may have held up.
"""

from __future__ import annotations

import asyncio
import math
import select
import socket
import time
from collections.abc import Callable
from typing import Final

LOOK_S: Final = 0.1
PAUSE_S: Final = 0.4  # the event loop was held up for so long, or the process stood still
AFTER_S: Final = 1.0  # what is read within so long after a pause may have arrived in it


def _boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # goes on while the machine is suspended


class Pauses:
    """Looks at the clock now and then, from `start` to `stop`. `within` may be called from any thread."""

    def __init__(self, now_s: Callable[[], float] = _boot_s) -> None:
        self._now_s = now_s
        self._looked_s = math.inf
        self._ended_s = -math.inf
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._looked_s = self._now_s()
        self._look(asyncio.get_running_loop())

    def stop(self) -> None:
        self._looked_s = math.inf
        if self._handle is not None:
            self._handle.cancel()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = self._now_s()
        if now_s - self._looked_s > PAUSE_S:
            self._ended_s = now_s
        self._looked_s = now_s
        self._handle = loop.call_later(LOOK_S, self._look, loop)

    def within(self, seconds: float) -> bool:
        """Whether something that was read so many seconds ago may have been held up by a pause, before or after that."""
        now_s = self._now_s()
        return now_s - self._looked_s > PAUSE_S or self._ended_s > now_s - seconds - AFTER_S


def has_closed(connection: socket.socket) -> bool:
    """Whether the other end has closed the connection, or its sending side, even if bytes of it are still to be read."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))
