"""Threads that read segments ahead of the parser.

A lane is one thread with its read-ahead buffers. It reads its segments one after the other as far as it has free buffers, and
hands over pieces; each segment ends with an end mark or an error. The threads do not depend on their consumer: they end when
the lane is closed, whatever they wait for, and at the latest when the interpreter exits. Cleanup after that may need a lock,
and a thread frozen by the interpreter never releases one.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from functools import cache
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final
from weakref import WeakSet

from dfc.errors import DfcError
from dfc.handover import HandOver
from dfc.http.calls.retry import Cancelled
from dfc.inputs.base import Counts, InputError, ShardBroken, ShardUnreadable
from dfc.inputs.shards.pieces import Item, LaneSegment, Opened, Piece, Slot, read_pieces
from dfc.inputs.sources.streams import StreamOptions
from dfc.inputs.sources.urls import shown
from dfc.limits import MIB
from dfc.tar.compression import CompressionError
from dfc.tar.header import TarError

_EXIT_S: Final = 2.0  # how long to wait for the lanes at exit
_PROGRAM_ENDS: Final = threading.Event()
_LANES: Final = WeakSet["Lane"]()  # those with a thread


class Lane:
    """One reading thread, started with its first job. A single consumer adds jobs and takes items."""

    def __init__(self, options: StreamOptions, counts: Counts, slots: int) -> None:
        self._options = options
        self._counts = counts
        self._jobs: SimpleQueue[LaneSegment | None] = SimpleQueue()
        self._hand: HandOver[Slot, Item] = HandOver(Slot() for _ in range(slots))
        self._held: deque[Item] = deque()
        self._open: dict[int, LaneSegment] = {}
        self._thread: threading.Thread | None = None
        self._closed = False
        self._process = os.getpid()

    def add(self, job: LaneSegment) -> None:
        """Read this segment after those that were added before."""
        self._open[job.number] = job
        self._jobs.put(job)
        if self._thread is None and not self._closed:
            _keep_memory()
            arguments = (self._jobs, self._hand, self._options, self._counts)
            thread = threading.Thread(target=_work, args=arguments, name="dfc-inputs-ahead", daemon=True)
            thread.start()
            self._thread = thread  # now: who closes from another thread cannot join one that was not started
            _LANES.add(self)

    def take(self, number: int) -> Opened | Piece | Exception | None:
        """The next item of this segment; the rest of earlier segments is dropped. Cancelled if the lane was closed.

        RuntimeError in a process forked from the one that began to read.
        """
        if os.getpid() != self._process:
            raise RuntimeError("reading shards cannot continue after a fork: start reading in the new process")
        while True:
            given = self._held.popleft() if self._held else self._hand.take()
            if given is None:
                raise Cancelled("the reader was closed")
            found, item = given
            if found == number:
                if item is None or isinstance(item, Exception):
                    del self._open[number]
                return item
            if isinstance(item, Piece):
                self.give_back(item)

    def give_back(self, piece: Piece) -> None:
        self._hand.give_back(piece.slot)

    def abandon(self, number: int) -> None:
        """Drop the rest of this segment, so that the thread goes on with the next one."""
        job = self._open.pop(number, None)
        if job is None:
            return
        job.cancel()
        try:
            while not self._held:
                given = self._hand.take_ready()
                if given is None:
                    self._hand.end()  # for the next take
                    return
                found, item = given
                if found > number:
                    self._held.append(given)
                elif isinstance(item, Piece):
                    self.give_back(item)
        except Empty:
            pass

    def close(self) -> None:
        """End the thread, wherever it waits, and a waiting `take`. Does nothing in a forked child."""
        if self._closed or os.getpid() != self._process:
            return  # the sockets and the thread belong to the parent
        self._closed = True
        self._jobs.put(None)
        self._hand.close()
        for job in list(self._open.values()):
            job.cancel()
        if not _PROGRAM_ENDS.is_set():
            self._hand.end()

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has ended."""
        if self._thread is not None and self._thread is not threading.current_thread() and os.getpid() == self._process:
            self._thread.join(timeout_s)


def close_lanes() -> None:
    """End every reading thread of the program. Waiting consumers get Cancelled."""
    for lane in list(_LANES):
        lane.close()


@atexit.register
def _close_all() -> None:
    """Close all lanes at interpreter exit.

    Waiting consumers keep waiting: if they woke up now, the interpreter could freeze them while they hold locks.
    `dfc.inputs.foreign` ends those that must not wait.
    """
    _PROGRAM_ENDS.set()
    lanes = list(_LANES)
    for lane in lanes:
        lane.close()
    end = monotonic() + _EXIT_S
    for lane in lanes:
        lane.join(max(0.0, end - monotonic()))


@cache
def _keep_memory() -> None:
    """Make the C library reuse freed blocks of up to 24 MiB, instead of returning their pages to the kernel each time.

    glibc raises its `M_MMAP_THRESHOLD` when the first large block is freed; this block is never touched.
    Measured: 15 % less CPU for samples of 100 kB.
    """
    bytes(24 * MIB)


def _work(jobs: SimpleQueue[LaneSegment | None], hand: HandOver[Slot, Item], options: StreamOptions, counts: Counts) -> None:
    while (job := jobs.get()) is not None:
        try:
            for item in read_pieces(job, options, counts, hand):
                hand.give((job.number, item))
        except Exception as problem:
            if _PROGRAM_ENDS.is_set():
                return
            hand.give((job.number, as_input_error(problem, job.extent.ref.url)))
        else:
            hand.give((job.number, None))


def as_input_error(problem: Exception, url: str) -> Exception:
    """Convert an error of a shard to an InputError. Cancelled and programming errors stay as they are."""
    if isinstance(problem, (InputError, Cancelled)) or not isinstance(problem, (DfcError, OSError, CompressionError, TarError)):
        return problem
    kind = ShardBroken if isinstance(problem, (CompressionError, TarError)) else ShardUnreadable
    found = kind(f"{shown(url)}: {problem}", url=url)
    found.__cause__ = problem
    return found
