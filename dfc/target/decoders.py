"""Limit the decompressors with large windows that run at a time, for reads and uploads of xz and zstd shards.

Each keeps a window of up to DECOMPRESS_MEMORY_MAX in memory for as long as its client takes, which may be very long.
"""

from __future__ import annotations

import asyncio
from typing import Final

from dfc.errors import Unavailable
from dfc.limits import DECOMPRESSIONS_MAX

LARGE_WINDOW_KINDS: Final = frozenset(("xz", "zst"))  # the others take a few MiB


class Slots:
    """DECOMPRESSIONS_MAX slots; a caller waits up to `wait_s` for a free one."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._free = asyncio.Semaphore(DECOMPRESSIONS_MAX)

    async def take(self, kind: str | None) -> bool:
        """Take a slot if this kind of shard needs one; whether it does, to be given back. Unavailable when none is free."""
        if kind not in LARGE_WINDOW_KINDS:
            return False
        try:
            async with asyncio.timeout(self._wait_s):
                return await self._free.acquire()
        except TimeoutError:
            raise Unavailable(f"too busy: {DECOMPRESSIONS_MAX} xz or zstd shards are being decompressed already") from None

    def give(self) -> None:
        self._free.release()
