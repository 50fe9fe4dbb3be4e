"""Live figures: what changes on a page while it is looked at, collected once a second however many look."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from dfc.errors import DfcError
from dfc.http.calls.once import SharedCall

EVERY_S: Final = 1.0
STREAM_S: Final = 15.0


class Figures(NamedTuple):
    """What is shown at one moment. `shape`: another value means that there is more or less to show than before, so that the
    page has to be rendered anew; `values` are texts by the names of their places on pages."""

    shape: str
    values: Mapping[str, str]


class LiveFeed:
    """Sends figures to browsers. `collect` returns those of now; `elsewhere` the URL of another proxy that has them, if one
    has. `clock_s` is replaced by tests."""

    def __init__(
        self,
        collect: Callable[[], Awaitable[Figures]],
        elsewhere: Callable[[], str | None] = lambda: None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._collect = collect
        self._elsewhere = elsewhere
        self._clock_s = clock_s
        self._collecting = SharedCall(self._collected, EVERY_S, clock_s)
        self._ending = asyncio.Event()
        self.streams = 0

    def end(self) -> None:
        """End all streams: the node stops."""
        self._ending.set()

    async def stop(self) -> None:
        """Collect nothing any more; call it after the last request."""
        await self._collecting.stop()

    async def now(self) -> bytes:
        """Return the figures as JSON, at most EVERY_S old. DfcError when they cannot be had."""
        return (await self._collecting.get())[1]

    async def figures(self) -> Figures:
        """Return the figures, at most EVERY_S old. DfcError when they cannot be had."""
        return (await self._collecting.get())[0]

    async def _collected(self) -> tuple[Figures, bytes]:
        figures = await self._collect()
        return figures, msgspec.json.encode({"shape": figures.shape, "values": figures.values})

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield server-sent events for a while, after which browsers ask again: they may have come through another proxy, which
        cannot end the stream when it stops. While there are no figures, the stream says why, and goes on."""
        self.streams += 1
        try:
            yield b"retry: 500\n\n"
            until_s = self._clock_s() + STREAM_S
            while not self._ending.is_set() and self._clock_s() < until_s and self._elsewhere() is None:
                try:
                    yield b"event: figures\ndata: %b\n\n" % await self.now()
                except DfcError as error:
                    yield b"event: silence\ndata: %b\n\n" % msgspec.json.encode(error.message)
                with suppress(TimeoutError):
                    async with asyncio.timeout(EVERY_S):
                        await self._ending.wait()
        finally:
            self.streams -= 1
