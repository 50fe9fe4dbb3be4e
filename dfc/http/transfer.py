"""Bulk bytes between sockets and files, in threads: received, hashed, sent."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, NamedTuple, Protocol, TypeVar

from dfc.errors import BodyTimeout, LengthMismatch
from dfc.handover import HandOver
from dfc.limits import MIB, PIPE_BYTES, RECEIVE_BUFFER_BYTES, TRANSFER_BUFFER_BYTES, TRANSFER_POLL_S

# --- Helper threads for fast uploads: one thread receives and writes while a second one hashes and indexes the same bytes.
#
# Receiving and writing are two copies by the kernel, and most of the work. There are half as many helpers as processors: with
# more uploads than that, all processors are busy anyway, and an upload does everything in its own thread.
#
# A helper has a cost: the bytes move from one processor's cache to another's, and the two threads compete for the interpreter.
# On two processors an upload of 256 MiB took 300 ms of processor time with a helper and 240 without, and was 10 % slower next
# to its own client. Indexing a shard that must be decompressed is slow enough that a helper always pays off.

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


# --- Move bulk bytes between sockets and files in threads, with sendfile, splice and large receives.
#
# A transfer works on a duplicate of the connection's socket, in steps that run in a thread. A step ends when all bytes are
# moved, or when the socket is not ready for `TRANSFER_POLL_S`: then the event loop waits for it instead of a thread. The
# sockets stay non-blocking throughout, since a duplicate shares that flag with the connection.

T = TypeVar("T")
EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE))  # no fault of the program, and soon over
STALL_S: Final = 60.0  # without a byte, by default
SENDFILE_BYTES: Final = 2 * MIB  # per call, as in nginx: with 8 MiB a single stream was usually 5 to 15 % slower
SENDFILE_BYTES_MAX: Final = 16 * MIB  # calls grow to this while the client takes everything: eight streams cost 7 % less
TURN_BYTES: Final = 64 * MIB  # after this many bytes, a step gives its thread to another transfer
PIPELINE_AFTER_BYTES: Final = 4 * MIB
SLOW_STEP_S: Final = TRANSFER_POLL_S
SLOW_STEP_BYTES: Final = 128 * 1024  # the event loop waits for a peer that moves less than this in SLOW_STEP_S
BUFFERS_KEPT: Final = 16
_F_SETPIPE_SZ: Final = 1031  # fcntl.F_SETPIPE_SZ


class ReadStalled(ConnectionError):
    """The client did not take a byte within the stall timeout."""


class Wait(NamedTuple):
    """A step's request to wait until one of the descriptors is ready (select.POLLIN or POLLOUT), then to be called again.

    `for_source`: it waits for the sender of the bytes.
    """

    events: tuple[tuple[int, int], ...]
    for_source: bool = False


class Transfer(Protocol):
    """A transfer of bytes. `step` blocks a thread briefly; it returns None when done."""

    moved: int

    def step(self) -> Wait | None: ...


class Pace:
    """The minimum rate of an upload: at least `rate` bytes a second must arrive, averaged over windows of `grace_s` seconds."""

    def __init__(self, rate_bytes_per_s: float, grace_s: float, stood_still: Callable[[], bool] = lambda: False) -> None:
        """`stood_still`: whether this process did a moment ago, and has not read yet what has arrived."""
        self._stood_still = stood_still
        self._needed = rate_bytes_per_s * grace_s
        self._grace_s = grace_s
        self._window_end = time.monotonic() + grace_s
        self._window_start_bytes = 0

    def restart(self, moved: int) -> None:
        """Begin a new window, because we held up the sender."""
        self._window_end = time.monotonic() + self._grace_s
        self._window_start_bytes = moved

    def extend(self, seconds: float) -> None:
        """Extend the window by the time in which we did not read, so that the sender could not send."""
        self._window_end += seconds

    def remaining_s(self, moved: int) -> float:
        """Return the seconds left in this window; BodyTimeout when a window ended below the rate."""
        now = time.monotonic()
        if now >= self._window_end:
            if moved - self._window_start_bytes < self._needed and not self._stood_still():
                raise BodyTimeout("the body arrived slower than the minimum rate")
            self.restart(moved)
        return self._window_end - now


async def wait_ready(events: tuple[tuple[int, int], ...], timeout_s: float | None) -> bool:
    """Wait in the event loop until one descriptor is ready; False after the timeout."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    for descriptor, event in events:
        (loop.add_reader if event == select.POLLIN else loop.add_writer)(descriptor, wake)
    try:
        async with asyncio.timeout(timeout_s):
            await ready
        return True
    except TimeoutError:
        return False
    finally:
        for descriptor, event in events:
            (loop.remove_reader if event == select.POLLIN else loop.remove_writer)(descriptor)


class ByteMeter:
    """Counts bytes while they move: those of a long transfer in the seconds in which they move, not at its end. For the event
    loop; the threads of transfers do nothing for it."""

    def __init__(self) -> None:
        self._counted = 0
        self._moving: dict[Transfer, int] = {}  # how far each was when it began to count

    def add(self, size: int) -> None:
        self._counted += size

    def begin(self, transfer: Transfer) -> None:
        """Count what a transfer moves from now on."""
        self._moving[transfer] = transfer.moved

    def end(self, transfer: Transfer) -> int:
        """Count it no longer; return how much it has moved meanwhile."""
        moved = transfer.moved - self._moving.pop(transfer)
        self._counted += moved
        return moved

    def total(self) -> int:
        """Return how many bytes have moved so far."""
        return self._counted + sum(transfer.moved - before for transfer, before in self._moving.items())


async def drive(transfer: Transfer, threads: ThreadPoolExecutor, *, pace: Pace | None = None, stall_s: float = STALL_S) -> None:
    """Run a transfer to its end. BodyTimeout below the pace; ReadStalled when nothing moves for `stall_s` seconds."""
    loop = asyncio.get_running_loop()
    stall_end = 0.0
    while True:
        before = transfer.moved
        # The thread uses the caller's descriptors: they may be closed only after the step has ended.
        wait = await to_its_end(loop.run_in_executor(threads, transfer.step))
        if wait is None:
            return
        now = loop.time()
        moved = transfer.moved - before
        if moved or not stall_end:
            stall_end = now + stall_s
        if not wait.events:
            continue
        if 0 < moved < SLOW_STEP_BYTES:
            await asyncio.sleep(TRANSFER_POLL_S)  # let small pieces gather, or each would cost two thread switches
        limit_s = stall_end - now
        if pace is not None and wait.for_source:
            limit_s = min(limit_s, pace.remaining_s(transfer.moved))
        elif pace is not None:
            pace.restart(transfer.moved)
        if not await wait_ready(wait.events, max(0.0, limit_s)) and loop.time() >= stall_end:
            raise BodyTimeout("the body has stalled") if pace is not None else ReadStalled("the client has stalled")


async def to_its_end(work: asyncio.Future[T]) -> T:
    """Wait for the result of a call in a thread. If cancelled, raise only once the thread is done: until then the descriptors
    and buffers that it uses must stay as they are."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait((work,))
        if not work.cancelled():
            work.exception()  # retrieved, so that asyncio does not log that it never was
        raise


def is_trickle(started_s: float, moved: int) -> bool:
    """Whether a step that has to wait has moved so little that it should free its thread: a trickle must not occupy one."""
    return moved < SLOW_STEP_BYTES and time.monotonic() - started_s > SLOW_STEP_S


def duplicate(connection: socket.socket) -> socket.socket:
    """Return a second descriptor of the same open socket, which the caller closes."""
    return socket.socket(fileno=os.dup(connection.fileno()))


class SendFile:
    """Sends a response head, then `count` bytes of a file from `offset`, to a socket."""

    def __init__(self, sink: socket.socket, head: bytes, file: int, offset: int, count: int) -> None:
        self._sink, self._head, self._file = sink, memoryview(head), file
        self.offset, self._remaining = offset, count  # in the file: of the next byte to send
        self._poll = select.poll()
        self._poll.register(sink, select.POLLOUT)
        self._wait = Wait(((sink.fileno(), select.POLLOUT),))
        self.moved = 0

    def step(self) -> Wait | None:
        """Send some. ConnectionError is about the client, any other OSError about the file (or the network)."""
        started_s, turn_start, turn_end = time.monotonic(), self.moved, self.moved + TURN_BYTES
        sink, file, call = self._sink.fileno(), self._file, SENDFILE_BYTES
        while self._head or self._remaining:
            if self.moved >= turn_end:
                return Wait(())
            try:
                if self._head:
                    more = socket.MSG_MORE if self._remaining else 0
                    self._head = self._head[self._sink.send(self._head, more) :]
                    continue
                sent = os.sendfile(sink, file, self.offset, min(self._remaining, call))
                call = min(2 * call, SENDFILE_BYTES_MAX) if sent == call else SENDFILE_BYTES
            except BlockingIOError:
                if is_trickle(started_s, self.moved - turn_start) or not self._poll.poll(TRANSFER_POLL_S * 1000):
                    return self._wait
                continue
            if not sent:
                raise OSError(errno.ENODATA, f"the file ends at byte {self.offset}")
            self.offset += sent
            self._remaining -= sent
            self.moved += sent
        return None


class BufferPool:
    """A pool of receive buffers, lent for one step, so that idle uploads hold none."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []

    def take(self) -> bytearray:
        try:
            return self._free.pop()
        except IndexError:
            return bytearray(RECEIVE_BUFFER_BYTES)

    def give(self, buffer: bytearray) -> None:
        if len(self._free) < BUFFERS_KEPT:
            self._free.append(buffer)


class BodySink(Protocol):
    """A consumer of a body. It gets all bytes either by `write`, or by both `store` and `digest`, which two threads call at
    the same time, each in order. Pieces have up to 1 MiB."""

    @property
    def slow_digest(self) -> bool:
        """Whether `digest` takes longer than `store`."""
        ...

    def write(self, data: memoryview, /) -> None: ...
    def store(self, data: memoryview, /) -> None: ...
    def digest(self, data: memoryview, /) -> None: ...


class Receive:
    """Receives exactly `count` bytes from a socket into `sink`, which already has the first `begun` bytes of the body.

    As long as the sender keeps up, pieces end at multiples of their size in the body: writing whole pages to a file is 10 %
    less work. In a fast upload a helper may hash and index while this thread receives and stores.
    """

    def __init__(
        self,
        source: socket.socket,
        count: int,
        sink: BodySink,
        buffers: BufferPool,
        helpers: HelperPool | None = None,
        *,
        begun: int = 0,
    ) -> None:
        self._source, self._remaining, self._sink = source, count, sink
        self._buffers, self._helpers = buffers, helpers
        self._begun = begun
        self._poll = select.poll()
        self._poll.register(source, select.POLLIN)
        self._wait = Wait(((source.fileno(), select.POLLIN),), for_source=True)
        self.moved = 0

    def step(self) -> Wait | None:
        helpers = self._helpers
        if helpers is None or not (helpers.for_all or self._sink.slow_digest):
            return self._inline(TURN_BYTES)
        # A helper pays off only in long uploads: after the first megabytes, and if many are still to come.
        helper = helpers.take() if self.moved >= PIPELINE_AFTER_BYTES <= self._remaining else None
        if helper is None:
            return self._inline(TURN_BYTES if self.moved else PIPELINE_AFTER_BYTES)
        try:
            return self._pipelined(helper)
        finally:
            helpers.give(helper)

    def _inline(self, limit: int) -> Wait | None:
        buffer = self._buffers.take()
        try:
            with memoryview(buffer) as view:
                end, started, turn_start = self.moved + limit, time.monotonic(), self.moved
                while self._remaining:
                    if self.moved >= end:
                        return Wait(())
                    size, idle = self._fill(view, RECEIVE_BUFFER_BYTES)
                    if size:
                        self._sink.write(view[:size])
                    if idle and self._is_slow(started, turn_start):
                        return self._wait
            return None
        finally:
            self._buffers.give(buffer)

    def _pipelined(self, helper: SinkHelper) -> Wait | None:
        helper.begin(self._sink.digest)
        try:
            wait = self._store(helper)
        except BaseException:
            with suppress(Exception):  # the error raised below says more
                helper.settle()
            raise
        helper.settle()
        return wait

    def _store(self, helper: SinkHelper) -> Wait | None:
        end, started, turn_start = self.moved + TURN_BYTES, time.monotonic(), self.moved
        while self._remaining and self.moved < end:
            buffer, idle, filled = helper.buffer(), False, 0
            try:
                # Stored piece by piece, while the piece is in this processor's cache; handed over as a whole.
                with memoryview(buffer) as view:
                    while self._remaining and not idle and filled < len(view):
                        size, idle = self._fill(view[filled : filled + TRANSFER_BUFFER_BYTES], TRANSFER_BUFFER_BYTES)
                        if size:
                            self._sink.store(view[filled : filled + size])
                        filled += size
            finally:
                helper.hand_over(buffer, filled)
            if idle and self._is_slow(started, turn_start):
                return self._wait
        return Wait(()) if self._remaining else None

    def _fill(self, view: memoryview, unit: int) -> tuple[int, bool]:
        """Receive up to the next multiple of `unit`, or what fits; return how much, and whether the sender is out of data."""
        filled = 0
        wanted = min(len(view), unit - (self._begun + self.moved) % unit)
        until_s = time.monotonic() + TRANSFER_POLL_S  # a trickle must not occupy this thread
        while self._remaining and filled < wanted:
            size = self._receive(view[filled:wanted])
            if not size and (not filled or time.monotonic() >= until_s or not self._poll.poll(TRANSFER_POLL_S * 1000)):
                return filled, True
            filled += size
            self._remaining -= size
            self.moved += size
        return filled, False

    def _receive(self, view: memoryview) -> int:
        """Receive once and return the number of bytes; 0 when there are none at the moment."""
        try:
            size = self._source.recv_into(view, min(self._remaining, len(view)))
        except BlockingIOError:
            return 0
        except ConnectionError:
            size = 0
        if not size:
            raise LengthMismatch(f"the body ended {self._remaining} bytes early")
        return size

    def _is_slow(self, started: float, turn_start: int) -> bool:
        """With no data ready, wait briefly here; whether the event loop should wait instead."""
        return is_trickle(started, self.moved - turn_start) or not self._poll.poll(TRANSFER_POLL_S * 1000)


class Splice:
    """Sends some bytes from memory, then moves `count` bytes from one socket to another through a pipe, inside the kernel.

    With `watch` the transfer also ends when the sink's peer sends an early answer; `unsent` is then the number of bytes that
    were not sent. Close with `close()`.
    """

    def __init__(self, source: socket.socket, sink: socket.socket, head: bytes, count: int, *, watch: bool = False) -> None:
        self._source, self._sink, self._head = source, sink, memoryview(head)
        self._remaining, self._in_pipe = count, 0
        self._read_end, self._write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with suppress(OSError):  # over the user's limit of pipe pages: the default of 64 KiB works too, but slower
            fcntl.fcntl(self._write_end, _F_SETPIPE_SZ, PIPE_BYTES)
        self._watch = ((sink.fileno(), select.POLLIN),) if watch else ()
        self.answered_early = False
        self.moved = 0

    @property
    def unsent(self) -> int:
        return len(self._head) + self._remaining + self._in_pipe

    def close(self) -> None:
        os.close(self._read_end)
        os.close(self._write_end)

    def step(self) -> Wait | None:
        started_s, turn_start, turn_end = time.monotonic(), self.moved, self.moved + TURN_BYTES
        while self._head or self._remaining or self._in_pipe:
            if self.moved >= turn_end:
                return Wait(())
            blocked = self._send_head() if self._head else self._move()
            if blocked is None:
                continue
            timeout_s = 0.0 if is_trickle(started_s, self.moved - turn_start) else TRANSFER_POLL_S
            if (wait := self._blocked(blocked, timeout_s)) is not None:
                return None if self.answered_early else wait
        return None

    def _send_head(self) -> tuple[int, int] | None:
        try:
            sent = self._sink.send(self._head, socket.MSG_MORE if self._remaining else 0)
        except BlockingIOError:
            return self._sink.fileno(), select.POLLOUT
        self._head = self._head[sent:]
        self.moved += sent
        return None

    def _move(self) -> tuple[int, int] | None:
        """Move one round through the pipe; return the descriptor to wait for if neither side could move."""
        flags = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK
        taken = given = 0
        if self._remaining and self._in_pipe < PIPE_BYTES:
            try:
                taken = self._take(flags)
                self._remaining -= taken
                self._in_pipe += taken
            except BlockingIOError:
                pass  # nothing has arrived, or the pipe is full: then the other side decides
        if self._in_pipe:
            more = os.SPLICE_F_MORE if self._remaining else 0
            try:
                given = os.splice(self._read_end, self._sink.fileno(), self._in_pipe, flags=flags | more)
                self._in_pipe -= given
                self.moved += given
            except BlockingIOError:
                return None if taken else (self._sink.fileno(), select.POLLOUT)
        return None if taken or given else (self._source.fileno(), select.POLLIN)

    def _take(self, flags: int) -> int:
        try:
            taken = os.splice(self._source.fileno(), self._write_end, min(self._remaining, PIPE_BYTES), flags=flags)
        except ConnectionError:
            taken = 0
        if not taken:
            raise LengthMismatch(f"the body ended {self._remaining} bytes early")
        return taken

    def _blocked(self, event: tuple[int, int], timeout_s: float) -> Wait | None:
        """Wait briefly in the thread; return a Wait if the event loop has to wait, or if an early answer has come."""
        poll = select.poll()
        poll.register(*event)
        for descriptor, wanted in self._watch:
            poll.register(descriptor, wanted | (event[1] if descriptor == event[0] else 0))
        ready = poll.poll(timeout_s * 1000)
        if self._watch and any(fd == self._watch[0][0] and got & (select.POLLIN | select.POLLHUP) for fd, got in ready):
            self.answered_early = True
            return Wait(())
        return None if ready and timeout_s else Wait((event, *self._watch), for_source=event[1] == select.POLLIN)
