"""The body of an upload on its way to the other disks while it is still being received.

Each stream follows the blob's file at the primary as it grows: the bytes come from the page cache, by sendfile, and a slow disk
never holds up the client. What has arrived there whole waits for its row (`dfc.target.copies.prepared`). A stream that fails,
or is not begun because too many are under way, costs time only: the row then brings the body with it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Final, NamedTuple

from dfc.checksum import Buffer
from dfc.errors import DfcError
from dfc.http.calls.retry import Cancellation, cancelled_by
from dfc.http.shutdown import end_threads
from dfc.http.transfer import BodySink
from dfc.limits import MIB, TEE_STREAMS_MAX
from dfc.placement.map import Durability
from dfc.storage.blobs.writer import BlobWriter
from dfc.target.copies.messages import CopyKey
from dfc.target.copies.peers import Peers

PIECE_BYTES: Final = MIB  # sent at a time, unless the sender is slow
PIECE_S: Final = 0.5  # after which less is sent
LOOK_S: Final = 0.2  # between two looks at who is still up
FINISHED_S: Final = 10.0  # after the last byte, an upload waits no longer for the others: rows bring what is not there
DROP_THREADS: Final = 4


class Tees:
    """The streams of one target, which share its threads."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._threads = ThreadPoolExecutor(TEE_STREAMS_MAX, thread_name_prefix="tee")
        self._drops = ThreadPoolExecutor(DROP_THREADS, thread_name_prefix="tee-drop")
        self._tees: set[BodyTee] = set()

    def begin(self, writer: BlobWriter, size: int, keys: Iterable[CopyKey], durability: Durability) -> BodyTee | None:
        """Begin to send the body of an upload, of `size` bytes, to disks of other targets; None: to none of them."""
        streams = [stream for key in keys if (stream := self._stream_to(key, durability)) is not None]
        if not streams or sum(each.running for each in self._tees) + len(streams) > TEE_STREAMS_MAX:
            return None
        tee = BodyTee(self._peers, self._threads, self._drops, writer, size, streams)
        self._tees.add(tee)
        tee.when_over(lambda: self._tees.discard(tee))
        return tee

    def _stream_to(self, key: CopyKey, durability: Durability) -> _Stream | None:
        node = self._peers.up_node_of(key.disk)
        return None if node is None else _Stream(node.url, key, durability)

    async def close(self) -> None:
        """Give up what is under way. The calls of the peers have been cancelled already."""
        for tee in list(self._tees):
            tee.give_up(at_once=True)
        await end_threads(self._drops, "dropped bodies")
        await end_threads(self._threads, "bodies on their way")


class _Stream(NamedTuple):
    url: str
    key: CopyKey
    durability: Durability


class BodyTee:
    """One upload: a sink for its body, and the streams that follow it."""

    def __init__(
        self,
        peers: Peers,
        threads: ThreadPoolExecutor,
        drops: ThreadPoolExecutor,
        writer: BlobWriter,
        size: int,
        streams: Iterable[_Stream],
    ) -> None:
        self._peers = peers
        self._drops = drops
        self._cancellation = Cancellation()
        self._writer = writer
        self._size = size
        self._progress = threading.Condition()
        self._stored = self._told = 0
        self._given_up = False
        loop = asyncio.get_running_loop()
        self._running = {each: loop.run_in_executor(threads, self._send, each) for each in streams}

    @property
    def running(self) -> int:
        """The number of streams under way."""
        return sum(not each.done() for each in self._running.values())

    def when_over(self, call: Callable[[], object]) -> None:
        """Call when all streams have ended."""
        for each in self._running.values():
            each.add_done_callback(lambda _: call() if not self.running else None)

    @property
    def sink(self) -> BodySink:
        """Where the body is fed in."""
        return _Sink(self._writer, self._note)

    def _note(self) -> None:
        stored = self._writer.received
        if stored - self._told >= PIECE_BYTES or stored >= self._size:
            with self._progress:
                self._stored = self._told = stored
                self._progress.notify_all()

    async def finished(self) -> None:
        """The body is complete here: wait, not for long, until every disk that is still up has it or its stream has failed."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + FINISHED_S
        while waiting := [each for to, each in self._running.items() if not each.done() and self._is_up(to)]:
            if loop.time() >= end_s:
                self._cancellation.cancel()
                return
            await asyncio.wait(waiting, timeout=LOOK_S)

    def give_up(self, *, at_once: bool = False) -> None:
        """The upload has failed or does not count. The others drop what they have, some time later if asking them fails. With
        `at_once` nothing more is sent."""
        if at_once:
            self._cancellation.cancel()
        with self._progress:
            self._given_up = True
            self._progress.notify_all()
        for to, running in self._running.items():
            if running.done() and not running.cancelled() and running.exception() is None and running.result():
                with suppress(RuntimeError):  # the target is stopping
                    self._drops.submit(self._drop, to)

    def _is_up(self, to: _Stream) -> bool:
        return self._peers.up_node_of(to.key.disk) is not None

    # --- in a thread for each stream

    def _send(self, to: _Stream) -> bool:
        """Send the body to a disk; whether that has it now."""
        try:
            file = self._writer.open_again()
        except OSError:  # the upload has been aborted
            return False
        try:
            with cancelled_by(self._cancellation):
                is_there = self._follow(to, file)
        except DfcError:
            return False  # the row brings the body with it
        finally:
            os.close(file)
        if is_there and self._given_up:
            self._drop(to)
        return is_there

    def _follow(self, to: _Stream, file: int) -> bool:
        upload, sent = self._peers.begin_body(to.url, to.key, self._writer.version, to.durability, self._size), 0
        try:
            while sent < self._size:
                stored = self._until_stored(to, sent)
                if stored is None or not upload.send_parts([(b"", file, sent, stored - sent)]):
                    upload.abort()
                    return False
                sent = stored
            with closing(upload.finish()) as answer:
                return answer.status == 200
        except BaseException:
            upload.abort()
            raise

    def _drop(self, to: _Stream) -> None:
        with suppress(DfcError):
            self._peers.drop_body(to.url, to.key, self._writer.version)

    def _until_stored(self, to: _Stream, sent: int) -> int | None:
        """Wait for more bytes than have been sent; how many there are. None: the upload is given up, or the other target is not
        up any more."""
        wanted = min(self._size, sent + PIECE_BYTES)
        with self._progress:
            while not self._given_up and self._is_up(to):
                self._progress.wait_for(lambda: self._given_up or self._stored >= wanted, PIECE_S)
                self._stored = self._writer.received
                if not self._given_up and self._stored > sent:
                    return self._stored
        return None


class _Sink(NamedTuple):
    """The blob at the primary, with somebody who looks on."""

    writer: BlobWriter
    note: Callable[[], None]

    @property
    def slow_digest(self) -> bool:
        return self.writer.slow_digest

    def write(self, data: Buffer, /) -> None:
        self.writer.write(data)
        self.note()

    def store(self, data: Buffer, /) -> None:
        self.writer.store(data)
        self.note()

    def digest(self, data: Buffer, /) -> None:
        self.writer.digest(data)
