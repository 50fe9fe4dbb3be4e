"""Merge the bytes of several sources into one socket, in a given order of runs, with one buffer: a transfer for `drive`.

A source yields its own bytes in order; it may be a socket, which is polled, or files, which are read directly.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from dfc.http.transfer import TURN_BYTES, Wait, is_trickle
from dfc.limits import BATCH_WINDOW_BYTES, TRANSFER_POLL_S

Run = tuple[int, int]  # number of a source, bytes to take from it


class ByteSource(Protocol):
    """A source of bytes. `fill` puts the next bytes at the beginning of `view`; 0: none are ready, wait for `event`."""

    @property
    def event(self) -> tuple[int, int]: ...
    def fill(self, view: memoryview) -> int: ...


class SourceBroke(ConnectionError):
    """A source ended early or failed. Its bytes so far have been taken; another source may continue in its place."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(why)
        self.number = number


class SocketSource:
    """Exactly `count` bytes of a non-blocking socket, of which `begun` have already been read."""

    def __init__(self, connection: socket.socket, begun: bytes, count: int) -> None:
        self._socket = connection
        self._begun = memoryview(begun)
        self._left = count
        self.event = (connection.fileno(), select.POLLIN)

    @property
    def left(self) -> int:
        """Bytes still to be read."""
        return self._left

    def take(self, count: int) -> None:
        """Note that someone else has read `count` bytes from the socket."""
        self._left -= count

    def fill(self, view: memoryview) -> int:
        if self._begun:
            count = min(len(view), len(self._begun))
            view[:count] = self._begun[:count]
            self._begun = self._begun[count:]
        else:
            try:
                count = self._socket.recv_into(view[: self._left])
            except BlockingIOError:
                return 0
            if not count:
                raise ConnectionError("connection closed")
        self._left -= count
        return count


class JoinedSource:
    """The bytes of several sockets in a given order of runs, as one source. `number` is that of the socket it reads from."""

    def __init__(self, sources: Sequence[SocketSource], runs: Sequence[Run]) -> None:
        self._sources = sources
        self._runs = iter([run for run in runs if run[1]])
        self.left = sum(size for _, size in runs)
        self.number, self._left = next(self._runs, (0, 0))

    @property
    def event(self) -> tuple[int, int]:
        return self._sources[self.number].event

    def fill(self, view: memoryview) -> int:
        if not self._left:
            self.number, self._left = next(self._runs, (self.number, 0))
        count = self._sources[self.number].fill(view[: self._left])
        self._left -= count
        self.left -= count
        return count


class Merge:
    """Sends to a socket: a head, then runs of bytes from sources, then a tail."""

    def __init__(
        self, sink: socket.socket, head: bytes, sources: Sequence[ByteSource], runs: Iterable[Run], tail: bytes = b""
    ) -> None:
        """The caller may replace entries of `sources` after SourceBroke."""
        self.sources = list(sources)
        self._sink = sink
        self._runs: Iterator[Run] = iter(runs)
        self._source = self._left = 0  # of the current run
        self._tail = tail
        self._memory = memoryview(bytearray(BATCH_WINDOW_BYTES))
        self._ready = memoryview(head)  # not sent yet
        self._poll = select.poll()
        self._poll.register(sink, select.POLLOUT)
        self._wait: Final = Wait(((sink.fileno(), select.POLLOUT),))
        self._ended = False
        self.moved = 0

    def step(self) -> Wait | None:
        started_s, turn_start, turn_end = time.monotonic(), self.moved, self.moved + TURN_BYTES
        while True:
            while self._ready:
                if self.moved >= turn_end:
                    return Wait(())
                try:
                    sent = self._sink.send(self._ready)
                except BlockingIOError:
                    if is_trickle(started_s, self.moved - turn_start) or not self._poll.poll(TRANSFER_POLL_S * 1000):
                        return self._wait
                    continue
                self._ready = self._ready[sent:]
                self.moved += sent
            if self._ended:
                return None
            if (wait := self._gather()) is not None:
                return wait

    def _gather(self) -> Wait | None:
        """Fill the buffer with the bytes that are ready; returns a Wait when there are none."""
        memory, filled = self._memory, 0
        try:
            while filled < len(memory):
                if not self._left:
                    run = next(self._runs, None)
                    if run is None:
                        self._ended = True
                        break
                    self._source, self._left = run
                    continue
                count = self._fill(memory[filled : filled + self._left])
                if not count:
                    if filled or self._poll_source():
                        break
                    return Wait((self.sources[self._source].event,), for_source=True)
                filled += count
                self._left -= count
        finally:
            # Even if a source broke: the bytes before that are sent.
            self._ready = memory[:filled]
        if self._ended and self._tail:
            self._ready = memoryview(bytes(self._ready) + self._tail)
        return None

    def _fill(self, view: memoryview) -> int:
        try:
            return self.sources[self._source].fill(view)
        except OSError as error:
            raise SourceBroke(self._source, str(error)) from error

    def _poll_source(self) -> bool:
        """Whether the source has bytes after a short wait here."""
        poll = select.poll()
        poll.register(*self.sources[self._source].event)
        return bool(poll.poll(TRANSFER_POLL_S * 1000))
