"""Gives out small pictures: from memory, or by having them made, each once however many want it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Final, NamedTuple

from dfc.errors import NotAPicture, Unavailable
from dfc.http.shutdown import end_threads, in_time
from dfc.jobs.shards.images import MissingLibrary
from dfc.limits import (
    STOP_CLOSE_S,
    THUMBNAIL_IDLE_S,
    THUMBNAIL_INPUT_BYTES_MAX,
    THUMBNAIL_PROCESSES,
    THUMBNAIL_QUEUE_MAX,
    THUMBNAILS_KEPT_BYTES,
)
from dfc.target.thumbnails.processes import PictureProcesses

_ENTRY_BYTES: Final = 500  # of memory, besides the picture


class PictureKey(NamedTuple):
    """A small picture: of bytes in a blob, which never change, with so many pixels on its longer side."""

    blob: str
    offset: int
    size: int
    pixels: int


class KeptPictures:
    """The pictures that were made last, and why others could not be made, in a bounded amount of memory."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._found: OrderedDict[PictureKey, bytes | str] = OrderedDict()

    def get(self, key: PictureKey) -> bytes | str | None:
        found = self._found.get(key)
        if found is not None:
            self._found.move_to_end(key)
        return found

    def put(self, key: PictureKey, made: bytes | str) -> None:
        before = self._found.pop(key, None)
        self._bytes += len(made) + _ENTRY_BYTES - (0 if before is None else len(before) + _ENTRY_BYTES)
        self._found[key] = made
        while self._bytes > self._bytes_max:
            _, oldest = self._found.popitem(last=False)
            self._bytes -= len(oldest) + _ENTRY_BYTES


@dataclass
class _Making:
    """A picture that is wanted. `task` makes it, for so many that are `waiting`."""

    task: asyncio.Future[bytes | str]
    waiting: int = 0
    has_begun: bool = False


class Thumbnails:
    """Small pictures of members. For the event loop; its threads and processes are started when the first one is wanted."""

    def __init__(self, processes: PictureProcesses | None = None, kept_bytes: int = THUMBNAILS_KEPT_BYTES) -> None:
        self._processes = processes or PictureProcesses()
        self._threads = ThreadPoolExecutor(THUMBNAIL_PROCESSES, thread_name_prefix="pictures")
        self._kept = KeptPictures(kept_bytes)
        self._making: dict[PictureKey, _Making] = {}
        self._free = asyncio.Semaphore(THUMBNAIL_PROCESSES)
        self._idle: asyncio.TimerHandle | None = None
        self._closed = False

    def is_at_hand(self, key: PictureKey) -> bool:
        """Whether nobody has to wait for a picture: it was made already, or it is known that there is none."""
        return self._kept.get(key) is not None

    def has_picture(self, key: PictureKey) -> bool:
        """Whether a picture was made already."""
        return isinstance(self._kept.get(key), bytes)

    def check(self) -> None:
        """Raise what `get` would raise if another picture was wanted: MissingLibrary, or Unavailable if too many are."""
        if not has_library():
            raise MissingLibrary("small pictures need Pillow at this target: pip install Pillow")
        if self._closed or len(self._making) >= THUMBNAIL_QUEUE_MAX:
            raise Unavailable(f"too busy: {THUMBNAIL_QUEUE_MAX} pictures are waited for already")

    async def get(self, key: PictureKey, read: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return a JPEG. `read` gives the bytes of the whole picture, if they are needed. NotAPicture, MissingLibrary,
        Unavailable if too many are waited for, and what `read` raises."""
        found = self._kept.get(key)
        if found is None and key.size > THUMBNAIL_INPUT_BYTES_MAX:
            found = f"a picture of {key.size} bytes is too large to be made small: {THUMBNAIL_INPUT_BYTES_MAX} at most"
        if found is None:
            found = await self._made(key, read)
        if isinstance(found, str):
            raise NotAPicture(found)
        return found

    async def _made(self, key: PictureKey, read: Callable[[], Awaitable[bytes]]) -> bytes | str:
        making = self._making.get(key)
        if making is None:
            self.check()
            making = self._begin(key, read)
        making.waiting += 1
        try:
            return await asyncio.shield(making.task)
        except asyncio.CancelledError:
            if making.task.cancelled():  # and not this request
                raise Unavailable("the node stops") from None
            raise
        finally:
            making.waiting -= 1
            # A page that was left asks for nothing any more: its pictures must not keep others waiting.
            if not making.waiting and not making.has_begun and making.task.cancel():
                self._forget(key, making)

    def _begin(self, key: PictureKey, read: Callable[[], Awaitable[bytes]]) -> _Making:
        making = _Making(asyncio.get_running_loop().create_future())
        making.task = asyncio.create_task(self._make(key, read, making))
        self._making[key] = making

        def over(task: asyncio.Future[bytes | str]) -> None:
            self._forget(key, making)
            if not task.cancelled():
                task.exception()  # for which perhaps nobody waits any more

        making.task.add_done_callback(over)
        return making

    def _forget(self, key: PictureKey, making: _Making) -> None:
        if self._making.get(key) is making:
            del self._making[key]

    async def _make(self, key: PictureKey, read: Callable[[], Awaitable[bytes]], making: _Making) -> bytes | str:
        # The bytes are read when a process is free for them, so that no more than two pictures are in memory.
        async with self._free:
            making.has_begun = True
            data = await read()
            made = await asyncio.get_running_loop().run_in_executor(self._threads, self._processes.make, data, key.pixels)
        self._kept.put(key, made)
        self._end_when_idle()
        return made

    def _end_when_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(THUMBNAIL_IDLE_S, self._end_idle)

    def _end_idle(self) -> None:
        self._idle = None
        if not self._closed:
            self._threads.submit(self._processes.end_idle, THUMBNAIL_IDLE_S / 2)

    async def close(self) -> None:
        """Make no more pictures, and end the processes; who waits for one is answered 503."""
        self._closed = True
        if self._idle is not None:
            self._idle.cancel()
        for making in list(self._making.values()):
            making.task.cancel()
        await in_time(self._processes.close, "the processes for pictures", STOP_CLOSE_S)
        await end_threads(self._threads, "the threads for pictures")


@cache
def _has_library() -> bool:
    return find_spec("PIL") is not None


def has_library() -> bool:
    """Whether pictures can be decoded here. Looked up until it is there."""
    found = _has_library()
    if not found:
        _has_library.cache_clear()
    return found
