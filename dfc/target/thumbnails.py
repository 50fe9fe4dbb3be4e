"""Small pictures at a target: made by confined processes, kept in memory, one or many in an answer."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Final, NamedTuple

from dfc.errors import DfcError, MemberNotFound, NotAPicture, Unavailable
from dfc.http.shutdown import end_threads, in_time
from dfc.jobs.data import images
from dfc.jobs.data.images import MissingLibrary
from dfc.jobs.sandbox.parent import SampleFailed, Sandbox, UserCodeRefused
from dfc.limits import (
    STOP_CLOSE_S,
    THUMBNAIL_IDLE_S,
    THUMBNAIL_INPUT_BYTES_MAX,
    THUMBNAIL_MEMORY_BYTES,
    THUMBNAIL_OUTPUT_BYTES_MAX,
    THUMBNAIL_PICTURES,
    THUMBNAIL_PROCESSES,
    THUMBNAIL_QUEUE_MAX,
    THUMBNAIL_S,
    THUMBNAILS_AHEAD,
    THUMBNAILS_KEPT_BYTES,
)
from dfc.storage.rows import RowChanged
from dfc.tar.samples import END_OF_ARCHIVE, member_header, padding

# --- The processes that make pictures small. They are confined like those that run user code: what they decode is untrusted.

NICE: Final = 10  # whoever reads shards comes first


@dataclass
class _Process:
    sandbox: Sandbox
    made: int = 0
    used_s: float = 0.0  # when it was last used, by the monotonic clock


class PictureProcesses:
    """Processes that wait for pictures. All methods block, and may be called in any thread; a process ends with the thread that
    started it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._busy: list[_Process] = []
        self._directory = ""
        self._closed = False

    def make(self, data: bytes, pixels: int) -> bytes | str:
        """Make a picture small: a JPEG, or why there is none. Unavailable if no process can be started."""
        process = self._take()
        ends = True
        try:
            asked = images.request(data, pixels)
            (sample,) = process.sandbox.call(asked.seed, asked.sample)
            ends = process.made >= THUMBNAIL_PICTURES
            refused = sample.fields.get(images.REFUSED)
            if refused is not None:
                return refused.decode("utf-8", "replace")
            return sample.fields[images.PICTURE]
        except SampleFailed as error:
            return f"the picture cannot be made small: {error}"
        except (KeyError, ValueError):
            return "the picture cannot be made small: its process sent an invalid reply"
        except (UserCodeRefused, OSError) as error:
            raise Unavailable(f"no process for pictures could be started: {error}") from error
        finally:
            self._give(process, ends=ends)

    def end_idle(self, idle_s: float) -> bool:
        """End those that have waited for so long; whether there are others left."""
        now_s = time.monotonic()
        with self._lock:
            old = [each for each in self._idle if now_s - each.used_s >= idle_s]
            self._idle = [each for each in self._idle if each not in old]
            is_any_left = bool(self._idle or self._busy)
            directory = "" if is_any_left else self._directory
            if not is_any_left:
                self._directory = ""
        for each in old:
            each.sandbox.close()
        if directory:
            shutil.rmtree(directory, ignore_errors=True)
        return is_any_left

    def close(self) -> None:
        """End all, also in the middle of a picture."""
        with self._lock:
            self._closed = True
            busy = list(self._busy)
        for each in busy:
            each.sandbox.interrupt()
        self.end_idle(0.0)

    def _take(self) -> _Process:
        with self._lock:
            if self._closed:
                raise Unavailable("the node stops")
            if self._idle:
                process = self._idle.pop()
            else:
                self._directory = self._directory or tempfile.mkdtemp(prefix="dfc-pictures-")
                process = _Process(_sandbox(self._directory))
            self._busy.append(process)
        process.made += 1
        return process

    def _give(self, process: _Process, *, ends: bool) -> None:
        with self._lock:
            self._busy.remove(process)
            ends = ends or self._closed
            if not ends:
                process.used_s = time.monotonic()
                self._idle.append(process)
        if ends:
            process.sandbox.close()


def _sandbox(directory: str) -> Sandbox:
    return Sandbox(
        directory,
        lambda: None,
        own=images.__name__,
        nice=NICE,
        timeout_s=THUMBNAIL_S,
        calls=THUMBNAIL_PICTURES,
        memory_bytes=THUMBNAIL_MEMORY_BYTES,
        file_bytes=THUMBNAIL_INPUT_BYTES_MAX,
        reply_bytes_max=THUMBNAIL_OUTPUT_BYTES_MAX,
    )


# --- Gives out small pictures: from memory, or by having them made, each once however many want it.

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
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(THUMBNAIL_IDLE_S, self._end_idle)
        return made

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


class WantedPicture(NamedTuple):
    """The small picture of the sample with this ordinal. `read` gives the bytes of the whole one."""

    number: int
    key: PictureKey
    read: Callable[[], Awaitable[bytes]]


class NoPicture(NamedTuple):
    """Why the sample with this ordinal has none."""

    number: int
    error: MemberNotFound


async def pictures_tar(
    thumbnails: Thumbnails, wanted: Sequence[WantedPicture | NoPicture], error_json: Callable[[DfcError], bytes]
) -> AsyncGenerator[bytes]:
    """Yield a tar with a member for each that is wanted, in this order: `NUMBER.jpg`, or `NUMBER.error.json` with what
    `error_json` makes of the error. All that is at hand comes in one piece. Of the others a few are waited for at a time, so
    that no page keeps the pictures of another from being made. Raises what `Thumbnails.get` raises, but for NotAPicture."""
    tasks: dict[int, asyncio.Task[bytes]] = {}
    pieces: list[bytes] = []
    ahead = 0
    try:
        for at, each in enumerate(wanted):
            while ahead < len(wanted) and len(tasks) < THUMBNAILS_AHEAD:
                if (begun := _begun(thumbnails, wanted[ahead])) is not None:
                    tasks[ahead] = begun
                ahead += 1
            task = tasks.get(at)
            if task is not None and not task.done() and pieces:
                yield b"".join(pieces)
                pieces = []
            try:
                name, content = f"{each.number:06d}.jpg", await _content(thumbnails, each, task)
            except (NotAPicture, MemberNotFound) as error:
                name, content = f"{each.number:06d}.error.json", error_json(error)
            pieces += (member_header(name, len(content)), content, padding(len(content)))
            tasks.pop(at, None)
        yield b"".join([*pieces, END_OF_ARCHIVE])
    finally:
        for task in tasks.values():
            task.cancel()


def _begun(thumbnails: Thumbnails, each: WantedPicture | NoPicture) -> asyncio.Task[bytes] | None:
    """Begin to wait for a picture that is not at hand."""
    if isinstance(each, NoPicture) or thumbnails.is_at_hand(each.key):
        return None
    task = asyncio.create_task(thumbnails.get(each.key, each.read))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits for it any more
    return task


async def _content(thumbnails: Thumbnails, each: WantedPicture | NoPicture, task: asyncio.Task[bytes] | None) -> bytes:
    """A picture, for which `task` waits if it was not at hand."""
    if isinstance(each, NoPicture):
        raise each.error
    try:
        return await (thumbnails.get(each.key, each.read) if task is None else task)
    except RowChanged as error:
        raise Unavailable(f"{error.row.name!r} was replaced meanwhile; try again") from None
