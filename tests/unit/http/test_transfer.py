"""Bulk transfers over real sockets: whole, slow, stalled, short, cut off, and answered early."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from dfc.errors import BodyTimeout, LengthMismatch
from dfc.http import transfer as module
from dfc.http.transfer import BufferPool, HelperPool, Pace, ReadStalled, Receive, SendFile, Splice, drive, duplicate, wait_ready

MIB = 1 << 20
LARGE = 9 * MIB + 17  # more than any socket buffer, pipe or turn of the tests


@pytest.fixture
def threads():
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def pair():
    """Makes connected TCP sockets: (ours, non-blocking as a server's; the peer's, blocking)."""
    made: list[socket.socket] = []

    def make() -> tuple[socket.socket, socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            peer = socket.create_connection(listener.getsockname(), timeout=20)
            ours, _ = listener.accept()
        ours.setblocking(False)
        made.extend((ours, peer))
        return ours, peer

    yield make
    for connection in made:
        connection.close()


@pytest.fixture
def file(tmp_path):
    """A descriptor of a file with LARGE random bytes, and the bytes."""
    body = os.urandom(LARGE)
    path = tmp_path / "body"
    path.write_bytes(body)
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor, body
    os.close(descriptor)


def read_all(peer: socket.socket, count: int) -> bytes:
    body = bytearray()
    while len(body) < count and (piece := peer.recv(1 << 18)):
        body += piece
    return bytes(body)


def in_thread(function, *arguments):
    return asyncio.get_running_loop().run_in_executor(None, function, *arguments)


@pytest.mark.parametrize(("offset", "count"), [(0, LARGE), (0, 0), (0, 1), (12_345, 6 * MIB), (LARGE - 1, 1), (5, 100)])
async def test_a_file_is_sent_after_the_head(pair, file, threads, offset, count):
    ours, peer = pair()
    descriptor, body = file
    sending = SendFile(ours, b"head", descriptor, offset, count)
    received, _ = await asyncio.gather(in_thread(read_all, peer, count + 4), drive(sending, threads))
    assert received == b"head" + body[offset : offset + count]
    assert sending.moved == count


async def test_many_turns(pair, file, threads, monkeypatch):
    monkeypatch.setattr(module, "TURN_BYTES", 100_000)
    ours, peer = pair()
    descriptor, body = file
    received, _ = await asyncio.gather(
        in_thread(read_all, peer, LARGE), drive(SendFile(ours, b"", descriptor, 0, LARGE), threads)
    )
    assert received == body


async def test_a_file_that_is_too_short(pair, file, threads):
    ours, _ = pair()
    with pytest.raises(OSError, match="the file ends at byte"):
        await drive(SendFile(ours, b"", file[0], LARGE - 100, 101), threads)


async def test_a_reader_that_goes_away(pair, file, threads):
    ours, peer = pair()
    peer.close()
    with pytest.raises(ConnectionError):
        await drive(SendFile(ours, b"head", file[0], 0, LARGE), threads)


async def test_a_reader_that_stalls_is_cut_off_and_holds_no_thread(pair, file):
    with ThreadPoolExecutor(1) as one:
        stalled, _ = pair()
        slow = asyncio.create_task(drive(SendFile(stalled, b"", file[0], 0, LARGE), one, stall_s=0.6))
        begun = time.monotonic()
        ours, peer = pair()
        received, _ = await asyncio.gather(in_thread(read_all, peer, LARGE), drive(SendFile(ours, b"", file[0], 0, LARGE), one))
        assert received == file[1]
        with pytest.raises(ReadStalled):
            await slow
        assert 0.5 < time.monotonic() - begun < 15


async def test_a_slow_reader_is_waited_for(pair, file, threads):
    """It never takes much at once, but never stops for as long as the stall timeout."""
    ours, peer = pair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    sending = asyncio.create_task(drive(SendFile(ours, b"", file[0], 0, 200_000), threads, stall_s=5))
    body = b""
    while len(body) < 200_000:
        body += await in_thread(peer.recv, 20_000)
        await asyncio.sleep(0.01)
    await sending
    assert body == file[1][:200_000]


async def test_a_cancelled_transfer_ends_its_step_first(pair, file, threads):
    ours, _ = pair()
    sending = SendFile(ours, b"", file[0], 0, LARGE)
    task = asyncio.create_task(drive(sending, threads))
    while not sending.moved:  # noqa: ASYNC110  a transfer has no event for it
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    moved = sending.moved
    await asyncio.sleep(0.05)
    assert sending.moved == moved


class Sink:
    """Collects pieces; `fail_at` raises when so many bytes have been stored, or digested."""

    slow_digest = True

    def __init__(self, fail_at: int | None = None, failing: str = "store") -> None:
        self.body, self.digested = bytearray(), bytearray()
        self.ends: list[int] = []
        self.threads: set[int] = set()
        self.fail_at, self.failing = fail_at, failing

    def write(self, piece: memoryview) -> None:
        self.digest(piece)
        self.store(piece)

    def store(self, piece: memoryview) -> None:
        self._take("store", self.body, piece)
        self.ends.append(len(self.body))

    def digest(self, piece: memoryview) -> None:
        self._take("digest", self.digested, piece)

    def _take(self, name: str, into: bytearray, piece: memoryview) -> None:
        self.threads.add(threading.get_ident())
        into += piece
        if name == self.failing and self.fail_at is not None and len(into) >= self.fail_at:
            raise OSError("the disk is broken")


@pytest.fixture(params=["inline", "pipelined"])
def helpers(request, monkeypatch):
    """With and without a second thread for the sink."""
    if request.param == "inline":
        yield None
        return
    monkeypatch.setattr(module, "PIPELINE_AFTER_BYTES", 100_000)
    pool = HelperPool(1, for_all=False)
    yield pool
    pool.close()


@pytest.mark.parametrize("count", [0, 1, 65_537, LARGE])
async def test_a_body_is_received(pair, threads, helpers, count):
    ours, peer = pair()
    body, sink = os.urandom(count), Sink()
    receiving = Receive(ours, count, sink, BufferPool(), helpers)
    await asyncio.gather(in_thread(peer.sendall, body), drive(receiving, threads, pace=Pace(1, 20)))
    assert sink.body == sink.digested == body
    assert receiving.moved == count
    if helpers is not None and count == LARGE:
        assert len(sink.threads) > 1


@pytest.mark.parametrize("for_all", [False, True])
async def test_what_is_digested_quickly_has_a_helper_where_there_are_processors_to_spare(pair, monkeypatch, for_all):
    monkeypatch.setattr(module, "PIPELINE_AFTER_BYTES", 100_000)
    ours, peer = pair()
    body, sink, pool = os.urandom(LARGE), Sink(), HelperPool(1, for_all=for_all)
    sink.slow_digest = False
    with ThreadPoolExecutor(1) as one:
        await asyncio.gather(in_thread(peer.sendall, body), drive(Receive(ours, LARGE, sink, BufferPool(), pool), one))
    pool.close()
    assert sink.body == sink.digested == body
    assert len(sink.threads) == (2 if for_all else 1)


async def test_no_byte_after_the_body_is_taken(pair, threads, helpers):
    ours, peer = pair()
    body, sink = os.urandom(3 * MIB), Sink()
    sending = in_thread(peer.sendall, body + b"GET / HTTP/1.1")
    await drive(Receive(ours, len(body), sink, BufferPool(), helpers), threads)
    await sending
    assert sink.body == body
    ours.setblocking(True)
    assert read_all(ours, 14) == b"GET / HTTP/1.1"


async def test_a_sender_that_goes_away(pair, threads, helpers):
    for end in (lambda peer: peer.shutdown(socket.SHUT_WR), lambda peer: reset(peer)):
        ours, peer = pair()
        sink = Sink()
        sending = in_thread(lambda peer=peer, end=end: (peer.sendall(b"x" * 1_000_000), end(peer)))
        with pytest.raises(LengthMismatch, match="ended"):
            await drive(Receive(ours, 2_000_000, sink, BufferPool(), helpers), threads)
        await sending


def reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    peer.close()


async def test_pieces_end_where_pages_of_the_file_do(pair, threads, helpers):
    ours, peer = pair()
    body, sink = os.urandom(LARGE), Sink()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MIB)
    receiving = Receive(ours, len(body), sink, BufferPool(), helpers, begun=1000)
    await asyncio.gather(in_thread(peer.sendall, body), drive(receiving, threads))
    assert sink.body == sink.digested == body
    # A sender that is held up may end a piece anywhere; the next one ends at a multiple again.
    unit = MIB if helpers is None else MIB // 4
    assert all(end % unit == unit - 1000 or later - end <= unit for end, later in pairwise(sink.ends))
    assert sum(end % unit == unit - 1000 for end in sink.ends) >= (LARGE + 1000) // unit - (
        3 if helpers else 0
    )  # the first one is inline


@pytest.mark.parametrize("failing", ["store", "digest"])
async def test_a_sink_that_fails(pair, threads, helpers, failing):
    ours, peer = pair()
    sink = Sink(fail_at=500_000, failing=failing)
    sending = in_thread(peer.sendall, b"x" * 2_000_000)
    with pytest.raises(OSError, match="the disk is broken"):
        await drive(Receive(ours, LARGE, sink, BufferPool(), helpers), threads)
    reset(ours)
    await asyncio.gather(sending, return_exceptions=True)
    # The helper serves the next upload as if nothing had been.
    ours, peer = pair()
    body, good = os.urandom(1_000_000), Sink()
    await asyncio.gather(in_thread(peer.sendall, body), drive(Receive(ours, len(body), good, BufferPool(), helpers), threads))
    assert good.body == body


async def test_a_sender_that_stalls_times_out_and_holds_no_thread(pair):
    with ThreadPoolExecutor(1) as one:
        ours, peer = pair()
        peer.sendall(b"x" * 1000)
        stalled = asyncio.create_task(drive(Receive(ours, LARGE, Sink(), BufferPool()), one, pace=Pace(1000, 0.5)))
        fast, sender = pair()
        body, sink = os.urandom(LARGE), Sink()
        await asyncio.gather(in_thread(sender.sendall, body), drive(Receive(fast, LARGE, sink, BufferPool()), one))
        assert sink.body == body
        with pytest.raises(BodyTimeout):
            await stalled


async def test_a_sender_below_the_minimum_rate(pair, threads):
    ours, peer = pair()
    stop = asyncio.Event()

    async def drip() -> None:
        while not stop.is_set():
            peer.send(b"x")
            await asyncio.sleep(0.02)

    dripping = asyncio.create_task(drip())
    with pytest.raises(BodyTimeout):
        await drive(Receive(ours, LARGE, Sink(), BufferPool()), threads, pace=Pace(10_000, 0.3))
    stop.set()
    await dripping


async def test_a_sender_above_it(pair, threads):
    ours, peer = pair()
    sink = Sink()
    receiving = asyncio.create_task(drive(Receive(ours, 50_000, sink, BufferPool()), threads, pace=Pace(100, 10.0)))
    for _ in range(50):
        peer.send(b"x" * 1000)
        await asyncio.sleep(0.04)
    await receiving
    assert len(sink.body) == 50_000


def test_buffers_are_lent_and_bounded():
    pool = BufferPool()
    taken = [pool.take() for _ in range(40)]
    assert len({id(buffer) for buffer in taken}) == 40
    for buffer in taken:
        pool.give(buffer)
    again = [pool.take() for _ in range(40)]
    assert len({id(buffer) for buffer in taken} & {id(buffer) for buffer in again}) == module.BUFFERS_KEPT


def test_helpers_are_bounded():
    pool = HelperPool(1)
    helper = pool.take()
    assert helper is not None
    assert pool.take() is None
    pool.give(helper)
    assert pool.take() is helper
    pool.give(helper)
    pool.close()
    assert HelperPool(0).take() is None


@pytest.mark.parametrize(("head", "count"), [(b"", LARGE), (b"head", LARGE), (b"head", 0), (b"x" * 3_000_000, 10), (b"", 1)])
async def test_bytes_are_spliced_from_socket_to_socket(pair, threads, head, count):
    (source, sender), (sink, reader) = pair(), pair()
    body = os.urandom(count)
    moving = Splice(source, sink, head, count)
    _, received, _ = await asyncio.gather(
        in_thread(sender.sendall, body), in_thread(read_all, reader, len(head) + count), drive(moving, threads)
    )
    assert received == head + body
    assert (moving.moved, moving.unsent) == (len(head) + count, 0)
    moving.close()


async def test_splice_takes_no_byte_too_many(pair, threads):
    (source, sender), (sink, reader) = pair(), pair()
    sender.sendall(b"x" * 1000 + b"next")
    moving = Splice(source, sink, b"", 1000)
    await drive(moving, threads)
    moving.close()
    assert read_all(reader, 1000) == b"x" * 1000
    source.setblocking(True)
    assert read_all(source, 4) == b"next"


async def test_a_splice_whose_sender_goes_away(pair, threads):
    for end in (lambda peer: peer.shutdown(socket.SHUT_WR), reset):
        (source, sender), (sink, reader) = pair(), pair()
        moving = Splice(source, sink, b"", LARGE)
        sending = in_thread(lambda sender=sender, end=end: (sender.sendall(b"x" * 1000), end(sender)))
        with pytest.raises(LengthMismatch):
            await drive(moving, threads)
        await sending
        moving.close()
        assert moving.unsent > 0
        reader.close()


async def test_a_splice_whose_reader_goes_away(pair, threads):
    (source, sender), (sink, reader) = pair(), pair()
    sending = in_thread(sender.sendall, b"x" * 5_000_000)
    reset(reader)
    moving = Splice(source, sink, b"", LARGE)
    with pytest.raises(ConnectionError):
        await drive(moving, threads)
    moving.close()
    reset(source)
    await asyncio.gather(sending, return_exceptions=True)


@pytest.mark.parametrize("sent", [0, 1000, 5_000_000])
async def test_an_early_answer_ends_a_watched_splice(pair, threads, sent):
    (source, sender), (sink, reader) = pair(), pair()
    reader.sendall(b"HTTP/1.1 412")
    sending = in_thread(sender.sendall, b"x" * sent)
    moving = Splice(source, sink, b"", LARGE, watch=True)
    await asyncio.wait_for(drive(moving, threads, stall_s=20), 10)
    assert moving.answered_early
    assert moving.unsent > 0
    moving.close()
    reset(source)
    await asyncio.gather(sending, return_exceptions=True)


async def test_an_early_answer_while_the_sender_is_silent(pair, threads):
    (source, _sender), (sink, reader) = pair(), pair()
    moving = Splice(source, sink, b"", LARGE, watch=True)
    task = asyncio.create_task(drive(moving, threads, stall_s=20))
    await asyncio.sleep(0.1)  # so that it waits in the event loop
    assert not task.done()
    reader.sendall(b"HTTP/1.1 507")
    await asyncio.wait_for(task, 10)
    assert moving.answered_early
    moving.close()


async def test_a_splice_that_stalls(pair, threads):
    (source, sender), (sink, _reader) = pair(), pair()
    silent = Splice(source, sink, b"", LARGE)
    with pytest.raises(BodyTimeout):
        await drive(silent, threads, pace=Pace(1000, 0.3))
    silent.close()
    sending = in_thread(sender.sendall, b"x" * LARGE)
    full = Splice(source, sink, b"", LARGE)  # the reader takes nothing: not the sender's fault
    with pytest.raises(BodyTimeout, match="stalled"):
        await drive(full, threads, pace=Pace(100_000, 2.0), stall_s=0.6)
    full.close()
    reset(source)
    await asyncio.gather(sending, return_exceptions=True)


# --- the parts


def test_the_pace_is_measured_over_windows(monkeypatch):
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    pace = Pace(100, 10)
    assert pace.remaining_s(0) == 10
    now = 105.0
    assert pace.remaining_s(0) == 5
    now = 110.0
    assert pace.remaining_s(1000) == 10  # just enough: the next window begins
    now = 120.0
    with pytest.raises(BodyTimeout):
        pace.remaining_s(1999)
    pace.restart(1999)
    now = 129.0
    assert pace.remaining_s(1999) == 1


def test_the_pace_of_a_process_that_stood_still_is_not_its_client_s_fault(monkeypatch):
    """What has arrived meanwhile has not been read yet."""
    now, stood_still = 100.0, True
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    pace = Pace(100, 10, lambda: stood_still)
    now = 130.0
    assert pace.remaining_s(0) == 10
    now, stood_still = 140.0, False
    with pytest.raises(BodyTimeout):
        pace.remaining_s(0)


async def test_waiting_for_descriptors(pair):
    ours, peer = pair()
    assert await wait_ready(((ours.fileno(), select.POLLOUT),), 5)
    assert not await wait_ready(((ours.fileno(), select.POLLIN),), 0.01)
    assert await wait_ready(((ours.fileno(), select.POLLIN), (ours.fileno(), select.POLLOUT)), 5)
    peer.send(b"x")
    assert await wait_ready(((ours.fileno(), select.POLLIN),), 5)


async def test_a_duplicate_outlives_the_original(pair):
    ours, peer = pair()
    with duplicate(ours) as second:
        ours.close()
        second.send(b"x")
        assert peer.recv(1) == b"x"
        assert not os.get_blocking(second.fileno())
