"""The body of an upload on its way to the other disks while it is still being received.

Each stream follows the blob's file at the primary as it grows: the bytes come from the page cache, by sendfile, and a slow disk
never holds up the client. What has arrived there whole waits for its row (`dfc.target.copies.receive`). A disk to which there
was no stream, because too many were under way or its target was away, gets one when the blob is finished: before the commit,
since from then on reads wait. A stream that fails costs time only: the row then brings the body with it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, NamedTuple

from dfc.checksum import Buffer
from dfc.errors import DfcError, Unreachable
from dfc.http.blocking import Upload
from dfc.http.retry import Cancellation, cancelled_by
from dfc.http.shutdown import end_threads
from dfc.http.transfer import BodySink
from dfc.limits import MIB, SMALL_BODY_BYTES, TEE_STREAMS_MAX
from dfc.placement.map import Durability
from dfc.storage.blobs.writer import BlobWriter
from dfc.target.copies.messages import CopyKey
from dfc.target.copies.peers import Peers

PIECE_BYTES: Final = MIB  # sent at a time, unless the sender is slow
PIECE_S: Final = 0.5  # after which less is sent
LOOK_S: Final = 0.2  # between two looks at who is still up
FINISHED_S: Final = 10.0  # when the body is complete here, a stream that does not move for so long is given up
DROP_THREADS: Final = 4


@dataclass(eq=False)
class _Stream:
    """To one disk. `moved_s`: when a piece was last sent; `is_there`: the disk has the body; `is_refused`: it is not to be sent
    the body again."""

    url: str
    key: CopyKey
    cancellation: Cancellation = field(default_factory=Cancellation)
    moved_s: float = 0.0
    is_there: bool = False
    is_refused: bool = False
    running: asyncio.Future[None] | None = None

    @property
    def has_ended(self) -> bool:
        return self.running is None or self.running.done()


class Tees:
    """The streams of one target, which share its threads."""

    def __init__(self, peers: Peers) -> None:
        self.peers = peers
        self._threads = ThreadPoolExecutor(TEE_STREAMS_MAX, thread_name_prefix="tee")
        self._drops = ThreadPoolExecutor(DROP_THREADS, thread_name_prefix="tee-drop")
        self._running: dict[asyncio.Future[None], BodyTee] = {}
        self._is_closed = False

    def begin(
        self, writer: BlobWriter, size: int | None, others: Callable[[], Iterable[CopyKey]], durability: Durability
    ) -> BodyTee:
        """Begin to send the body of an upload, of `size` bytes if that is known, to those of these disks that other targets
        have."""
        tee = BodyTee(self, writer, size, others, durability)
        tee.begin()
        return tee

    def has_room(self, count: int) -> bool:
        """Whether so many streams may begin."""
        return not self._is_closed and len(self._running) + count <= TEE_STREAMS_MAX

    def run(self, tee: BodyTee, call: Callable[[], None]) -> asyncio.Future[None]:
        """Run a stream in a thread."""
        running = asyncio.get_running_loop().run_in_executor(self._threads, call)
        self._running[running] = tee
        running.add_done_callback(self._running.pop)
        return running

    def drop(self, call: Callable[[], None]) -> None:
        """Have a body dropped."""
        with suppress(RuntimeError):  # the target is stopping
            self._drops.submit(call)

    async def close(self) -> None:
        """Give up what is under way. The calls of the peers have been cancelled already."""
        self._is_closed = True
        for tee in set(self._running.values()):
            tee.give_up(at_once=True)
        await end_threads(self._drops, "dropped bodies")
        await end_threads(self._threads, "bodies on their way")


class BodyTee:
    """One upload: a sink for its body, and the streams that follow it."""

    def __init__(
        self, tees: Tees, writer: BlobWriter, size: int | None, others: Callable[[], Iterable[CopyKey]], durability: Durability
    ) -> None:
        self._tees = tees
        self._peers = tees.peers
        self._writer = writer
        self._size = size
        self._others = others
        self._durability = durability
        self._streams: list[_Stream] = []
        self._progress = threading.Condition()
        self._stored = self._told = 0
        self._given_up = False

    @property
    def running(self) -> int:
        """The number of streams under way."""
        return sum(not each.has_ended for each in self._streams)

    @property
    def sink(self) -> BodySink:
        """Where the body is fed in."""
        return _Sink(self._writer, self._note)

    def _note(self) -> None:
        stored = self._writer.received
        if stored - self._told >= PIECE_BYTES or (self._size is not None and stored >= self._size):
            with self._progress:
                self._stored = self._told = stored
                self._progress.notify_all()

    def received(self) -> None:
        """All of the body is in the blob."""
        with self._progress:
            self._stored = self._writer.received
            if self._size is None:
                self._size = self._stored
            self._progress.notify_all()

    # --- on the loop

    def begin(self) -> bool:
        """Begin a stream to each disk that lacks the body and might take it; False if there is no room for them."""
        streams = self._missing_streams()
        if not self._tees.has_room(len(streams)):
            return False
        for each in streams:
            self._streams.append(each)
            each.running = self._tees.run(self, lambda each=each: self._send(each))  # type: ignore[misc]
        return True

    def _missing_streams(self) -> list[_Stream]:
        """Streams to the disks that take part by now, are up and answer."""
        tried = {each.key for each in self._streams if each.is_there or each.is_refused or not each.has_ended}
        nodes = [(key, self._peers.up_node_of(key.disk)) for key in self._others() if key not in tried]
        silent = self._peers.reached.silent()
        return [_Stream(node.url, key) for key, node in nodes if node is not None and key.disk not in silent]

    async def finished(self) -> None:
        """The blob is finished: wait until every disk that is up has the body, as long as it moves."""
        await self._until_ended()
        if self._writer.received > SMALL_BODY_BYTES and self._missing_streams():  # a smaller one goes with its row
            until_s = monotonic() + FINISHED_S
            while not (has_begun := self.begin()) and monotonic() < until_s:  # noqa: ASYNC110  # by the streams of others
                await asyncio.sleep(LOOK_S)
            if has_begun:
                await self._until_ended()

    async def _until_ended(self) -> None:
        """Wait for streams that move to targets that are up, and end those that do not move."""
        begun_s = monotonic()
        while waiting := [each for each in self._streams if not each.has_ended and self._is_up(each) and not each.is_refused]:
            await asyncio.wait([each.running for each in waiting if each.running is not None], timeout=LOOK_S)
            for each in waiting:
                if not each.has_ended and monotonic() - max(begun_s, each.moved_s) >= FINISHED_S:
                    self._end(each)

    def _end(self, stream: _Stream) -> None:
        stream.is_refused = True
        self._peers.reached.heard(stream.key.disk, answers=False)
        stream.cancellation.cancel()

    def give_up(self, *, at_once: bool = False) -> None:
        """The upload has failed or does not count. The others drop what they have, some time later if asking them fails. With
        `at_once` nothing more is sent."""
        if at_once:
            for each in self._streams:
                each.cancellation.cancel()
        with self._progress:  # a stream that gets there after this drops the body itself
            self._given_up = True
            there = [each for each in self._streams if each.is_there]
            self._progress.notify_all()
        for each in there:
            self._tees.drop(lambda each=each: self._drop(each))  # type: ignore[misc]

    # --- in a thread for each stream

    def _is_up(self, to: _Stream) -> bool:
        return self._peers.up_node_of(to.key.disk) is not None

    def _send(self, to: _Stream) -> None:
        try:
            with cancelled_by(to.cancellation):
                is_there = self._follow(to)
        except Unreachable:
            self._peers.reached.heard(to.key.disk, answers=False)
            return
        except (DfcError, OSError):  # OSError: the upload has been aborted, or its disk fails
            to.is_refused = True
            return
        with self._progress:
            to.is_there, was_given_up = is_there, self._given_up
        if is_there and was_given_up:
            self._drop(to)

    def _follow(self, to: _Stream) -> bool:
        """Send the body as it comes; whether the disk has all of it."""
        if self._size is None:  # as long as it may be small, its row can bring it
            stored = self._until_stored(to, SMALL_BODY_BYTES)
            if stored is None or stored <= SMALL_BODY_BYTES:
                return False
        file = self._writer.open_again()
        try:
            upload = self._peers.begin_body(to.url, to.key, self._writer.version, self._durability, self._size)
            try:
                return self._send_all(to, file, upload)
            except BaseException:
                upload.abort()
                raise
        finally:
            os.close(file)

    def _send_all(self, to: _Stream, file: int, upload: Upload) -> bool:
        sent = 0
        while (stored := self._until_stored(to, sent)) is not None and stored > sent:
            count = min(PIECE_BYTES, stored - sent)
            if not upload.send_parts([(b"", file, sent, count)]):
                to.is_refused = True
                break
            sent += count
            to.moved_s = monotonic()
        if stored is None or to.is_refused:
            upload.abort()
            return False
        with closing(upload.finish()) as answer:
            self._peers.reached.heard(to.key.disk, answers=True)
            to.is_refused = answer.status != 200
        return not to.is_refused

    def _drop(self, to: _Stream) -> None:
        with suppress(DfcError):
            self._peers.drop_body(to.url, to.key, self._writer.version)

    def _until_stored(self, to: _Stream, sent: int) -> int | None:
        """Wait for more bytes than have been sent; how many there are: no more than were sent, at the end. None: the upload is
        given up, or the other target is not up any more."""
        with self._progress:
            while not self._given_up and self._is_up(to):
                stored = self._progress.wait_for(lambda: self._given_up or self._piece_after(sent), PIECE_S)
                self._stored = self._writer.received
                if not self._given_up and (stored or self._stored > sent):
                    return max(sent, self._stored)
        return None

    def _piece_after(self, sent: int) -> bool:
        """Whether a whole piece is there, or all that comes."""
        return self._stored >= sent + PIECE_BYTES or (self._size is not None and self._stored >= self._size)


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
