"""A bound on how many decompressors with a large window live at a time: reads and uploads of xz and zstd shards.

Each keeps a window of up to DECOMPRESS_MEMORY_MAX for as long as its client takes, and clients may take very long.
"""

from __future__ import annotations

import asyncio
from typing import Final

from dfc.errors import Unavailable
from dfc.limits import DECOMPRESSIONS_MAX

LARGE_WINDOW_KINDS: Final = frozenset(("xz", "zst"))  # the others take a few MiB


class Slots:
    """DECOMPRESSIONS_MAX slots; who finds none waits `wait_s` for one."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._free = asyncio.Semaphore(DECOMPRESSIONS_MAX)

    async def take(self, kind: str | None) -> bool:
        """Whether a slot is needed for this kind of shard, which then is to be given back. Unavailable when none gets free."""
        if kind not in LARGE_WINDOW_KINDS:
            return False
        try:
            async with asyncio.timeout(self._wait_s):
                return await self._free.acquire()
        except TimeoutError:
            raise Unavailable(f"too busy: {DECOMPRESSIONS_MAX} xz or zstd shards are being decompressed already") from None

    def give(self) -> None:
        self._free.release()
