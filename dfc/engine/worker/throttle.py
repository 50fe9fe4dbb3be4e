"""A speed limit for the bulk bytes of one worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

BURST_S: Final = 0.25  # how much unused time can be saved up


class Throttle:
    """Limits the rate to `bytes_per_s`; 0: no limit."""

    def __init__(
        self,
        bytes_per_s: int,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_s
        self._now_s = now_s
        self._sleep = sleep
        self._free_s = 0.0  # when the bytes taken so far are within the limit

    def take(self, count: int) -> None:
        """Wait until `count` bytes may be moved."""
        if self._rate == 0:
            return
        now = self._now_s()
        begin = max(self._free_s, now - BURST_S)
        self._free_s = begin + count / self._rate
        if self._free_s > now:
            self._sleep(self._free_s - now)
