"""Helper threads for fast uploads: one thread receives and writes while a second one hashes and indexes the same bytes.

Receiving and writing are two copies by the kernel, and most of the work. There are half as many helpers as processors: with
more uploads than that, all processors are busy anyway, and an upload does everything in its own thread.

A helper has a cost: the bytes move from one processor's cache to another's, and the two threads compete for the interpreter.
On two processors an upload of 256 MiB took 300 ms of processor time with a helper and 240 without, and was 10 % slower next to
its own client. Indexing a shard that must be decompressed is slow enough that a helper always pays off.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final

from dfc.handover import HandOver
from dfc.limits import TRANSFER_BUFFER_BYTES

PROCESSORS: Final = os.cpu_count() or 1
HELPERS_MAX: Final = PROCESSORS // 2
PROCESSORS_TO_SPARE: Final = PROCESSORS >= 4  # not measured beyond two
BUFFERS: Final = 3  # one being filled, one being written, one to even out the difference
BUFFER_BYTES: Final = 4 * TRANSFER_BUFFER_BYTES  # a few milliseconds of work, since each hand-over switches threads twice


class SinkHelper:
    """A thread that feeds buffers to a sink in the order in which they are handed over."""

    def __init__(self) -> None:
        self._sink: Callable[[memoryview], object] | None = None
        self._error: BaseException | None = None
        self._buffers: HandOver[bytearray, tuple[bytearray, int]] = HandOver(bytearray(BUFFER_BYTES) for _ in range(BUFFERS))
        self._thread = threading.Thread(target=self._run, name="transfer-sink", daemon=True)
        self._thread.start()

    def begin(self, sink: Callable[[memoryview], object]) -> None:
        self._sink, self._error = sink, None

    def buffer(self) -> bytearray:
        """Wait for a free buffer and return it. Raises what the sink has raised."""
        buffer = self._next()
        if self._error is not None:
            self._buffers.give_back(buffer)
            raise self._error
        return buffer

    def hand_over(self, buffer: bytearray, size: int) -> None:
        """Feed the first `size` bytes of a buffer to the sink; 0 only gives the buffer back."""
        self._buffers.give((buffer, size))

    def settle(self) -> None:
        """Wait until the sink has processed everything. Raises what it has raised."""
        for buffer in [self._next() for _ in range(BUFFERS)]:
            self._buffers.give_back(buffer)
        error, self._sink, self._error = self._error, None, None
        if error is not None:
            raise error

    def close(self) -> None:
        self._buffers.end()
        self._thread.join()

    def _next(self) -> bytearray:
        buffer = self._buffers.room()
        assert buffer is not None  # `close` ends the sink's thread only, not the side that fills the buffers
        return buffer

    def _run(self) -> None:
        while (item := self._buffers.take()) is not None:
            buffer, size = item
            try:
                if size and self._error is None and self._sink is not None:
                    # In one call: hashing releases the interpreter's lock, and taking it back makes the other thread wait.
                    with memoryview(buffer) as view:
                        self._sink(view[:size])
            except BaseException as error:
                self._error = error
            self._buffers.give_back(buffer)


class HelperPool:
    """A pool of helpers, lent for one step of a transfer."""

    def __init__(self, count_max: int = HELPERS_MAX, *, for_all: bool = PROCESSORS_TO_SPARE) -> None:
        """`for_all`: use helpers for all sinks, not only those whose `digest` is slow."""
        self.for_all = for_all
        self._count_max = count_max
        self._lock = threading.Lock()
        self._free: list[SinkHelper] = []
        self._made = 0

    def take(self) -> SinkHelper | None:
        """Return a helper, or None when all are in use."""
        with self._lock:
            if self._free:
                return self._free.pop()
            if self._made >= self._count_max:
                return None
            self._made += 1
        return SinkHelper()

    def give(self, helper: SinkHelper) -> None:
        with self._lock:
            self._free.append(helper)

    def close(self) -> None:
        """Stop the threads; all helpers must have been given back."""
        for helper in self._free:
            helper.close()
        self._free.clear()
