"""The threads of one disk. No disk shares a thread with another, so one that hangs holds up nobody but those who want it.

Reads, writes, bytes going out and bytes coming in have pools of their own: small uploads wait in theirs for the commit of
their group, and a sync that takes long stops no read. A disk that has too many calls under way refuses more of them, since
each holds a connection and perhaps a body.

A call in a thread cannot be broken off. Whoever awaits one may be cancelled all the same; the call then runs to its end, and
what it opened is closed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar

from dfc.errors import Unavailable
from dfc.http.shutdown import ends_in_time
from dfc.http.transfer import to_its_end
from dfc.limits import DISK_CALLS_MAX, DISK_READ_THREADS, DISK_WRITE_THREADS, STOP_CLOSE_S
from dfc.storage.disk import Disk
from dfc.target.families import DiskReport, report_on

_log: Final = logging.getLogger("dfc.target")
T = TypeVar("T")


class FileRange(NamedTuple):
    """`size` bytes of an open file from `offset`, and a short `tail` behind them. Whoever has it closes the file.

    `threads` wait for the file; `on_error` is told, in one of them, of bytes that cannot be read: `(error, offset)`.
    """

    file: int
    offset: int
    size: int
    threads: ThreadPoolExecutor
    on_error: Callable[[OSError, int], object]
    tail: bytes = b""


class Pieces(NamedTuple):
    """Bytes that are made while they are sent. Whoever has them calls `close` after the last one, or instead of it."""

    chunks: AsyncIterator[bytes]
    close: Callable[[], None]


# What somebody asked to read: at hand, in a file, or still to be made.
Content = bytes | FileRange | Pieces


async def shielded(future: Future[T]) -> T:
    """What the call gives. It comes to its end also when nobody waits for it; its error is nobody's then, and is no leak."""
    waited = asyncio.wrap_future(future)
    waited.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(waited)


class _Pool:
    """Threads for calls of one kind, which are counted."""

    def __init__(self, threads: int, name: str, disk_id: str) -> None:
        self.threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._disk_id = disk_id
        self._lock = threading.Lock()
        self._under_way = 0

    def submit(self, function: Callable[..., T], arguments: Any, named: Any = None, *, bounded: bool = True) -> Future[T]:
        with self._lock:
            if bounded and self._under_way >= DISK_CALLS_MAX:
                raise Unavailable(f"disk {self._disk_id} is overloaded: {DISK_CALLS_MAX} calls are waiting for it")
            self._under_way += 1
        try:
            future = self.threads.submit(function, *arguments, **(named or {}))
        except BaseException:
            self._ended()
            raise
        future.add_done_callback(self._ended)
        return future

    def _ended(self, _: object = None) -> None:
        with self._lock:
            self._under_way -= 1


class DiskThreads:
    """Made in a thread, for the event loop; `close` blocks."""

    def __init__(self, disk: Disk, transfer_threads: int) -> None:
        self._disk = disk
        name = disk.id[:8]
        self._reads = _Pool(DISK_READ_THREADS, f"read-{name}", disk.id)
        self._writes = _Pool(DISK_WRITE_THREADS, f"write-{name}", disk.id)
        self._watch = ThreadPoolExecutor(1, thread_name_prefix=f"watch-{name}")
        self.sending = ThreadPoolExecutor(transfer_threads, thread_name_prefix=f"send-{name}")
        self.receiving = ThreadPoolExecutor(transfer_threads, thread_name_prefix=f"receive-{name}")
        self._asked: asyncio.Future[DiskReport] | None = None
        self._last_report = report_on(disk)

    def close(self, *shared: ThreadPoolExecutor) -> bool:
        """Wait for the calls under way, also those in pools that disks share, but not for ever; whether all have ended."""
        pools = (*shared, self._reads.threads, self._writes.threads, self._watch, self.sending, self.receiving)

        def wait() -> None:
            for pool in pools:
                pool.shutdown(wait=True)

        return ends_in_time(wait, STOP_CLOSE_S)

    # --- calls

    async def read(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run a call that reads. Unavailable when too many are under way already."""
        return await asyncio.wrap_future(self._reads.submit(function, arguments, named))

    async def write(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run a call that changes something; the same."""
        return await asyncio.wrap_future(self._writes.submit(function, arguments, named))

    async def go_on(self, function: Callable[..., T], *arguments: Any) -> T:
        """The next step of a change that has begun: it is not refused, and comes to its end also when nobody waits for it."""
        return await shielded(self._writes.submit(function, arguments, bounded=False))

    async def open(self, function: Callable[..., T], *arguments: Any, release: Callable[[T], object], **named: Any) -> T:
        """Run a call that opens something for reading; `release` closes it when nobody is there to take it any more."""
        return await self._opened(self._reads.submit(function, arguments, named), release)

    async def begin(self, function: Callable[..., T], *arguments: Any, release: Callable[[T], object], **named: Any) -> T:
        """The same for something that is to be written."""
        return await self._opened(self._writes.submit(function, arguments, named), release)

    async def iterate(self, iterator: Iterator[bytes]) -> AsyncIterator[bytes]:
        """The pieces of a blocking iterator, each made in a thread. Cancelled, it ends when the piece under way is made:
        what the iterator reads from may be closed then."""
        loop = asyncio.get_running_loop()
        while (piece := await to_its_end(loop.run_in_executor(self._reads.threads, next, iterator, None))) is not None:
            yield piece

    async def report(self, timeout_s: float) -> DiskReport:
        """What the disk says of itself, asked in a thread of its own. When it does not answer in time, what it said last,
        with the state "failed". While one such call hangs, no other is begun."""
        if self._asked is None or self._asked.done():
            self._asked = asyncio.get_running_loop().run_in_executor(self._watch, report_on, self._disk)
        asked = self._asked  # when this goes on, somebody else may have asked again
        done, _ = await asyncio.wait((asked,), timeout=timeout_s)
        if done:
            self._last_report = asked.result()
        elif self._last_report.state == "up":
            _log.warning("disk %s does not answer", self._disk.id)
            self._last_report = self._last_report._replace(state="failed")
        return self._last_report

    async def _opened(self, future: Future[T], release: Callable[[T], object]) -> T:
        try:
            return await shielded(future)
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: self._release(done, release))
            raise

    def _release(self, done: Future[T], release: Callable[[T], object]) -> None:
        """Runs where the call ended, or on the loop when it had ended before; closing may take a moment."""
        if not done.cancelled() and done.exception() is None:
            self._writes.submit(release, (done.result(),), bounded=False)
