"""Read a part of a shard, decompressed, ahead of its parser: in pieces that wait in a bounded number of slots."""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final, NamedTuple
from weakref import WeakSet

from dfc.errors import DfcError
from dfc.handover import HandOver
from dfc.http.retry import Cancellation, Cancelled
from dfc.inputs.base import LOG, Counts, InputError, ShardBroken, ShardRef, ShardShort, ShardUnreadable
from dfc.inputs.sources.opening import open_stream
from dfc.inputs.sources.streams import Stream, StreamOptions, shown
from dfc.limits import INPUT_BUFFER_BYTES, INPUT_BUFFER_BYTES_MIN, MIB, TAR_HEADER_BYTES
from dfc.tar.compression import CompressionError, Decompressor, kind_of_bytes
from dfc.tar.header import TarError, checksum_matches

_FAST_S: Final = 0.02  # after a faster read, read more at a time
_SLOW_S: Final = 0.1  # after a slower one, read less
_COMPRESSED_READ_BYTES: Final = 1 * MIB
_COMPRESSED_BUFFERS: Final = 3  # of that size: one being decompressed, one being filled, one waiting
_DECOMPRESSED_BYTES: Final = 1 * MIB  # output of a call. Measured: 256 KiB to 1 MiB are equal, more is 10 % slower
_Received = HandOver[bytearray, tuple[bytearray, int] | Exception]
_COMPRESSED_NAMES: Final = (".tgz", ".gz", ".zst", ".lz4", ".bz2", ".tbz2", ".xz", ".txz")


class ShardRange(NamedTuple):
    """The part of a shard to read, by offsets in the uncompressed archive."""

    ref: ShardRef
    start: int
    end: int | None
    etag: str | None


class Opened(NamedTuple):
    """The facts of a shard once it is open; handed over before its first piece."""

    url: str
    etag: str
    indexed: bool


class Slot:
    """The right to hand over one piece, with a buffer that is allocated on first use."""

    def __init__(self) -> None:
        self._buffer: bytearray | None = None

    @property
    def buffer(self) -> bytearray:
        if self._buffer is None:
            self._buffer = bytearray(INPUT_BUFFER_BYTES)
        return self._buffer


class Piece(NamedTuple):
    """Consecutive bytes: the first `size` bytes of each buffer. Give the slot back to the lane after use."""

    parts: list[tuple[bytes | bytearray, int]]
    slot: Slot

    @property
    def size(self) -> int:
        return sum(size for _, size in self.parts)


# The number of a segment, and what comes next of it: Opened, a piece, its end (None) or an error.
Item = tuple[int, Opened | Piece | Exception | None]


@dataclass
class LaneSegment:
    """One segment for a lane to read."""

    number: int
    extent: ShardRange
    cancellation: Cancellation = field(default_factory=Cancellation)
    stream: Stream | None = None  # the open stream

    def cancel(self) -> None:
        """Cancel reading, from any thread and whatever it waits for."""
        self.cancellation.cancel()
        stream = self.stream
        if stream is not None:
            stream.abort()

    @contextmanager
    def reading(self, stream: Stream) -> Iterator[None]:
        """A context in which the stream is read; it is closed at the end."""
        with stream:
            self.stream = stream
            try:
                self.cancellation.check()  # `cancel` may have been called before the stream was set
                yield
            finally:
                self.stream = None


class FreeSlots:
    """The free slots of a lane, for one job."""

    def __init__(self, hand: HandOver[Slot, Item], cancellation: Cancellation) -> None:
        self._hand = hand
        self._cancellation = cancellation
        self.took_s = 0.0  # the duration of the last read

    def take(self) -> Slot:
        """Wait for a free slot. Raises Cancelled."""
        slot = self._hand.room()
        if slot is None:
            raise Cancelled
        if self._cancellation.is_set:
            self._hand.give_back(slot)
            raise Cancelled
        return slot

    def fill(self, stream: Stream, amount: int) -> Piece:
        """Read `amount` bytes into a free slot; fewer, or none, at the end."""
        slot = self.take()
        begun = monotonic()
        try:
            size = stream.readinto(memoryview(slot.buffer)[:amount])
        except BaseException:
            self._hand.give_back(slot)
            raise
        self.took_s = monotonic() - begun
        return Piece([(slot.buffer, size)], slot)

    def give_back(self, piece: Piece) -> None:
        self._hand.give_back(piece.slot)


def read_pieces(
    job: LaneSegment, options: StreamOptions, counts: Counts, hand: HandOver[Slot, Item]
) -> Iterator[Opened | Piece]:
    """Open a shard and yield `Opened`, then its decompressed bytes in pieces, each in a free slot of `hand`.

    Raises InputError, TarError, CompressionError, and Cancelled.
    """
    slots = FreeSlots(hand, job.cancellation)
    ref, start, end, etag = job.extent
    name = ref.url.partition("?")[0].lower()
    direct = not name.endswith(_COMPRESSED_NAMES)
    while True:
        job.cancellation.check()
        first, stop = (start, end) if direct else (0, None)
        try:
            stream = open_stream(
                ref, start=first, end=stop, etag=etag, options=options, counts=counts, cancellation=job.cancellation
            )
        except ShardShort:
            if not first:
                raise
            direct = False
            continue
        with job.reading(stream):
            piece = slots.fill(stream, INPUT_BUFFER_BYTES_MIN)
            (buffer, size), *_ = piece.parts
            head = bytes(buffer[: min(size, TAR_HEADER_BYTES)])
            kind = kind_of_bytes(head, name) if first == 0 else None
            if direct and not _is_direct(head, kind, job.extent):
                slots.give_back(piece)
                direct = False  # it is compressed, despite its name: offsets in the archive are not offsets in the file
                continue
            yield Opened(stream.url, stream.etag, stream.indexed)
            if direct and kind is None:
                yield piece
                yield from _plain(stream, slots)
            else:
                begin = bytes(buffer[:size])
                slots.give_back(piece)
                with closing(_raw(stream, begin)) as chunks:
                    decompressed = _decompressed(chunks, kind, ref.url) if kind else map(bytes, chunks)
                    yield from _gathered(_cut(decompressed, start, end), slots, hand)
            return


def _is_direct(head: bytes, kind: str | None, extent: ShardRange) -> bool:
    """Whether the bytes read from `start` are the archive itself, uncompressed."""
    if extent.start:
        return len(head) == TAR_HEADER_BYTES and (checksum_matches(head) or not any(head))
    return kind is None or extent.end is None


def _plain(stream: Stream, slots: FreeSlots) -> Iterator[Piece]:
    """Read pieces, larger ones the faster the connection is."""
    amount = INPUT_BUFFER_BYTES_MIN
    while True:
        piece = slots.fill(stream, amount)
        if not piece.size:
            slots.give_back(piece)
            return
        if slots.took_s < _FAST_S:
            amount = min(amount * 4, INPUT_BUFFER_BYTES)
        elif slots.took_s > _SLOW_S:
            amount = max(amount // 2, INPUT_BUFFER_BYTES_MIN)
        yield piece


def _raw(stream: Stream, begin: bytes) -> Generator[memoryview, None, None]:
    """Yield the bytes already read, then the rest. Each part is valid until the next one is requested.

    A separate thread receives while the previous bytes are decompressed, which takes a whole core. Measured: 10 % faster.
    """
    if len(begin) < INPUT_BUFFER_BYTES_MIN:  # a whole small shard
        yield memoryview(begin)
        rest = bytearray(INPUT_BUFFER_BYTES_MIN)
        while size := stream.readinto(rest):
            yield memoryview(rest)[:size]
        return
    hand: _Received = HandOver(bytearray(_COMPRESSED_READ_BYTES) for _ in range(_COMPRESSED_BUFFERS))
    thread = threading.Thread(target=_receive, args=(stream, hand), name="dfc-inputs-ahead", daemon=True)
    thread.start()
    ended = False
    try:
        yield memoryview(begin)
        while (found := hand.take()) is not None:
            if isinstance(found, Exception):
                ended = True
                raise found
            buffer, size = found
            yield memoryview(buffer)[:size]
            hand.give_back(buffer)
        ended = True
    finally:
        hand.close()
        if not ended:
            stream.abort()
        thread.join()  # before the stream is closed


def _receive(stream: Stream, hand: _Received) -> None:
    while (buffer := hand.room()) is not None:
        try:
            size = stream.readinto(buffer)
        except Exception as problem:
            hand.give(problem)
            return
        if not size:
            hand.end()
            return
        hand.give((buffer, size))


def _decompressed(chunks: Iterable[memoryview], kind: str, url: str) -> Iterator[bytes]:
    # Decompress without a limit on the ratio: the memory is bounded, and the consumer stops when it wants.
    decompressor = Decompressor(kind, limited=False, chunk_bytes=_DECOMPRESSED_BYTES)
    for chunk in chunks:
        yield from decompressor.feed(chunk)
    decompressor.finish()
    if decompressor.ignored_from is not None:
        LOG.warning("%s: ignored the bytes after the %s stream, at offset %d", shown(url), kind, decompressor.ignored_from)


def _cut(chunks: Iterable[bytes], start: int, end: int | None) -> Iterator[bytes]:
    """Cut the bytes from `start` to `end` out of a sequence of chunks."""
    at = 0
    for chunk in chunks:
        after = at + len(chunk)
        if after > start:
            piece = chunk[max(0, start - at) : len(chunk) if end is None else max(0, end - at)]
            if piece:
                yield piece
        at = after
        if end is not None and at >= end:
            return
    if at < start:
        raise TarError(f"the archive has only {at} bytes", start, truncated=True)


def _gathered(chunks: Iterable[bytes], slots: FreeSlots, hand: HandOver[Slot, Item]) -> Iterator[Piece]:
    """Put several chunks into each slot, so that compressed shards are read ahead as far as others.

    If the consumer is waiting, hand over at once: it parses one chunk quickly and then releases the GIL to this thread.
    """
    parts: list[tuple[bytes | bytearray, int]] = []
    size = 0
    try:
        for chunk in chunks:
            parts.append((chunk, len(chunk)))
            size += len(chunk)
            if size >= INPUT_BUFFER_BYTES or hand.is_empty:
                yield Piece(parts, slots.take())
                parts, size = [], 0
    except Exception:
        if parts:
            yield Piece(parts, slots.take())  # the bytes before the error
        raise
    if parts:
        yield Piece(parts, slots.take())


# --- Threads that read segments ahead of the parser.
#
# A lane is one thread with its read-ahead buffers. It reads its segments one after the other as far as it has free buffers, and
# hands over pieces; each segment ends with an end mark or an error. The threads do not depend on their consumer: they end when
# the lane is closed, whatever they wait for, and at the latest when the interpreter exits. Cleanup after that may need a lock,
# and a thread frozen by the interpreter never releases one.

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
    `dfc.inputs.tensorflow` ends those that must not wait.
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
