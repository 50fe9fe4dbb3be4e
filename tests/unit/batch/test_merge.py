"""Runs of bytes from sockets and memory to one socket: order, breaks that are repaired, waits, ends."""

from __future__ import annotations

import random
import select
import socket
from contextlib import suppress

import pytest

from dfc.batch.gather import Merge, SocketSource, SourceBroke
from dfc.limits import BATCH_WINDOW_BYTES


class Memory:
    """A source that gives its bytes in pieces of at most so many."""

    event = (-1, 0)

    def __init__(self, data: bytes, piece: int = 1 << 30) -> None:
        self.data, self.piece = data, piece

    def fill(self, view):
        count = min(len(view), len(self.data), self.piece)
        view[:count] = self.data[:count]
        self.data = self.data[count:]
        return count


@pytest.fixture
def pair():
    """A non-blocking end and one to look at; both closed afterwards."""
    made = []

    def make():
        near, far = socket.socketpair()
        near.setblocking(False)
        far.settimeout(10)
        made.extend((near, far))
        return near, far

    yield make
    for end in made:
        end.close()


def run(transfer, far, *, mend=None, feed=lambda: None):
    """Step to the end; everything that came out."""
    out = bytearray()
    far.setblocking(False)
    while True:
        try:
            wait = transfer.step()
        except SourceBroke as broke:
            mend(broke.number)
            continue
        with suppress(BlockingIOError):
            while piece := far.recv(1 << 20):
                out += piece
        if wait is None:
            return bytes(out)
        if wait.for_source:
            feed()


@pytest.mark.parametrize("seed", range(6))
def test_runs_come_in_their_order(pair, seed):
    draw = random.Random(seed)
    wholes = [draw.randbytes(draw.randrange(3 * BATCH_WINDOW_BYTES)) for _ in range(3)]
    taken, runs, expected = [0, 0, 0], [], b""
    while left := [number for number in range(3) if taken[number] < len(wholes[number])]:
        number = draw.choice(left)
        size = min(len(wholes[number]) - taken[number], draw.choice((0, 1, 700, 100_000, 2_000_000)))
        runs.append((number, size))
        expected += wholes[number][taken[number] : taken[number] + size]
        taken[number] += size
    near, far = pair()
    sources = [Memory(whole, draw.choice((50_000, 1 << 30))) for whole in wholes]
    transfer = Merge(near, b"head", sources, runs, b"tail")
    assert run(transfer, far) == b"head" + expected + b"tail"
    assert transfer.moved == len(expected) + 8


def test_nothing_at_all(pair):
    for runs in ([], [(0, 0)], [(0, 0), (0, 0)]):
        near, far = pair()
        assert run(Merge(near, b"h", [Memory(b"")], runs, b"t"), far) == b"ht"
        near, far = pair()
        assert run(Merge(near, b"h", [Memory(b"")], runs), far) == b"h"


def test_a_socket_is_waited_for(pair):
    near, far = pair()
    source, sender = pair()
    pieces = [b"b" * 10, b"c" * 5]
    transfer = Merge(near, b"", [Memory(b"xy"), SocketSource(source, b"a" * 3, 18)], [(0, 1), (1, 18), (0, 1)], b".")
    assert run(transfer, far, feed=lambda: sender.sendall(pieces.pop(0))) == b"x" + b"a" * 3 + b"b" * 10 + b"c" * 5 + b"y."
    assert not pieces


def test_a_socket_gives_no_more_than_it_should(pair):
    source, sender = pair()
    sender.sendall(b"0123456789")
    mine = SocketSource(source, b"", 4)
    view = memoryview(bytearray(100))
    assert mine.event == (source.fileno(), select.POLLIN)
    assert (mine.fill(view), bytes(view[:4]), mine.left) == (4, b"0123", 0)
    assert source.recv(100) == b"456789"


def test_a_broken_source_is_mended_where_it_stopped(pair):
    near, far = pair()
    whole = random.Random(1).randbytes(300_000)
    source, sender = pair()
    sender.sendall(whole[:100_000])
    sender.shutdown(socket.SHUT_WR)
    broken = SocketSource(source, b"", len(whole))
    transfer = Merge(near, b"", [Memory(b"12"), broken], [(0, 1), (1, 250_000), (0, 1), (1, 50_000)])
    repaired = []

    def mend(number):
        repaired.append(number)
        transfer.sources[number] = Memory(whole[len(whole) - broken.left :])

    assert run(transfer, far, mend=mend) == b"1" + whole[:250_000] + b"2" + whole[250_000:]
    assert repaired == [1]


def test_a_sink_that_is_gone(pair):
    near, far = pair()
    far.close()
    transfer = Merge(near, b"", [Memory(b"x" * 1000)], [(0, 1000)])
    with pytest.raises(ConnectionError):
        transfer.step()
