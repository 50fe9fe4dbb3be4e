"""The pool of connections to other nodes, and one call for all who wait."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from scripted_node import Script, Upstream, always, answer

from dfc.errors import NotFound, Unavailable
from dfc.http import peer
from dfc.http.peer import AnswerTooLong, ControlClient, PeerPool, SharedCall
from dfc.http.retry import RemoteError


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


async def test_connections_that_nobody_takes_are_closed_in_time(listener, monkeypatch):
    monkeypatch.setattr(peer, "IDLE_S", 0.1)
    pool = PeerPool(5)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    opened = [await pool.open(url) for _ in range(3)]
    others = [listener.accept()[0] for _ in opened]
    for connection in opened:
        pool.give_back(connection)
    try:
        for other in others:
            other.setblocking(False)
            async with asyncio.timeout(20):
                assert await asyncio.get_running_loop().sock_recv(other, 1) == b""  # closed from our side
        assert pool._idle == {}
        assert pool._sweeping is None
    finally:
        pool.close()
        for other in others:
            other.close()


async def test_a_connection_in_use_again_and_again_is_kept(listener):
    pool = PeerPool(5)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    first = await pool.open(url)
    for _ in range(3):
        pool.give_back(first)
        again = await pool.open(url)
        assert again.reused
        assert again.socket is first.socket
        first = again
    first.close()
    pool.close()
    assert pool._sweeping is None


# --- nodes that lie


@pytest.fixture
async def liar(upstream):
    """A node that answers as a test says, and a client for calls to it."""
    control = ControlClient("", 1.0)
    yield upstream, control
    await control.close()


def endless(upstream: Upstream, head: bytes, piece: bytes) -> Script:
    async def script(reader, writer):
        await upstream.head(reader)
        writer.write(head)
        while True:
            writer.write(piece)
            await writer.drain()

    return script


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1000\r\n" + b"x" * 0x1000 + b"\r\n"),
        (b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n", b"1000\r\n" + b"x" * 0x1000 + b"\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000000000\r\n\r\n", b"x" * 0x1000),
        (b"HTTP/1.1 200 OK\r\n", b"A: " + b"b" * 1000 + b"\r\n"),
        (b"HTTP/1.1 200 OK\r\nA: ", b"b" * 0x1000),
        (b"HTTP/1.1 200 ", b"b" * 0x1000),
    ],
)
async def test_an_answer_without_an_end_is_not_read_for_ever(liar, head, piece):
    node, control = liar
    node.scripts = [endless(node, head, piece)]
    with tracked() as most:
        async with asyncio.timeout(20):
            with pytest.raises(Unavailable):
                await control.call("GET", f"{node.url}/x", dict, bytes_max=1_000_000)
        assert most() < 20_000_000


async def test_steps_before_an_answer_that_never_comes_end_in_time(liar, monkeypatch):
    monkeypatch.setattr(peer, "LONG_ANSWER_S", 1.0)
    node, control = liar
    node.scripts = [endless(node, b"", b"HTTP/1.1 102 Processing\r\n\r\n")]
    for ask in (
        control.call("GET", f"{node.url}/x", dict),
        control.call("GET", f"{node.url}/x", dict, long=True),
        control.open_stream(f"{node.url}/x"),
    ):
        async with asyncio.timeout(20):
            with pytest.raises(Unavailable):
                await ask


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/msgpack", b"\xa2\xff\xff"),
        ("application/msgpack", b"\x81\xa1a"),
        ("application/msgpack", b"\xdd\xff\xff\xff\xff"),
        ("application/json", b'{"a": "\xff"}'),
        ("application/json", b"[" * 100_000),
        ("application/json", b"[1]"),
    ],
)
async def test_an_answer_that_nobody_would_give_is_no_error_of_ours(liar, kind, body):
    node, control = liar
    node.scripts = [always(node, answer("200 OK", body, f"Content-Type: {kind}\r\n"))]
    with pytest.raises(Unavailable, match="unexpected answer"):
        await control.call("GET", f"{node.url}/x", dict[str, str])


@pytest.mark.parametrize("status", [600, 999])
async def test_an_error_with_a_status_that_http_does_not_have(liar, status):
    node, control = liar
    node.scripts = [always(node, answer(f"{status} Odd", b"{}"))]
    with pytest.raises(RemoteError) as caught:
        await control.call("GET", f"{node.url}/x", dict)
    assert caught.value.status == 502


@contextmanager
def tracked() -> Iterator[Callable[[], int]]:
    """How many bytes of memory were in use at most, of those that Python has allocated since."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def test_no_more_of_an_answer_is_read_than_the_caller_takes(liar):
    node, control = liar
    node.scripts = [always(node, answer("200 OK", b'"' + b"x" * 999_998 + b'"'))]
    assert len(await control.call("GET", f"{node.url}/x", str, bytes_max=1_000_000)) == 999_998
    with pytest.raises(AnswerTooLong):
        await control.call("GET", f"{node.url}/x", str, bytes_max=999_999)


class Calls:
    """A call that ends when the test says so."""

    def __init__(self) -> None:
        self.count, self.now_s = 0, 0.0
        self.going_on = asyncio.Event()
        self.error: Exception | None = None
        self.shared = SharedCall(self._call, 1.0, lambda: self.now_s)

    async def _call(self) -> int:
        self.count += 1
        await self.going_on.wait()
        if self.error is not None:
            raise self.error
        return self.count


async def test_many_who_wait_are_one_call() -> None:
    calls = Calls()
    waiting = [asyncio.create_task(calls.shared.get()) for _ in range(50)]
    await asyncio.sleep(0)
    calls.going_on.set()
    assert await asyncio.gather(*waiting) == [1] * 50
    calls.now_s = 0.9
    assert await calls.shared.get() == 1
    calls.now_s = 1.0
    assert await calls.shared.get() == 2


async def test_who_is_cancelled_leaves_the_others_waiting() -> None:
    calls = Calls()
    first, second = (asyncio.create_task(calls.shared.get()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    calls.now_s = 5.0  # whoever comes now waits for the same call
    third = asyncio.create_task(calls.shared.get())
    await asyncio.sleep(0)
    calls.going_on.set()
    assert (await second, await third, calls.count) == (1, 1, 1)


async def test_a_call_goes_on_when_all_have_left_and_its_error_is_nobodys() -> None:
    calls = Calls()
    calls.error = NotFound("lost")
    only = asyncio.create_task(calls.shared.get())
    await asyncio.sleep(0)
    only.cancel()
    await asyncio.wait((only,))
    calls.going_on.set()
    for _ in range(3):
        await asyncio.sleep(0)
    calls.error = None
    assert await calls.shared.get() == 2  # a failed call is not kept, however fresh


async def test_an_error_is_everybodys() -> None:
    calls = Calls()
    calls.error = NotFound("lost")
    calls.going_on.set()
    found = await asyncio.gather(calls.shared.get(), calls.shared.get(), return_exceptions=True)
    assert [type(each) for each in found] == [NotFound, NotFound]
    assert calls.count == 1


async def test_a_result_is_kept_for_ever_unless_it_is_said_how_long() -> None:
    calls = Calls()
    calls.going_on.set()
    kept = SharedCall(calls.shared.get, clock_s=lambda: calls.now_s)
    calls.error = NotFound("lost")
    for _ in range(2):
        with pytest.raises(NotFound):  # but not an error
            await kept.get()
    calls.error, before = None, calls.count
    assert await kept.get() == before + 1
    calls.now_s = 1e9
    assert await kept.get() == before + 1


async def test_many_who_leave_and_come_are_one_call() -> None:
    calls = Calls()
    for _ in range(20):
        leaving = asyncio.create_task(calls.shared.get())
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait((leaving,))
    last = asyncio.create_task(calls.shared.get())
    await asyncio.sleep(0)
    calls.going_on.set()
    assert (await last, calls.count) == (1, 1)


async def test_the_end() -> None:
    calls = Calls()
    waiting = asyncio.create_task(calls.shared.get())
    await asyncio.sleep(0)
    await calls.shared.stop()
    for each in (waiting, calls.shared.get()):
        with pytest.raises(Unavailable, match="stops"):
            await each
    await Calls().shared.stop()


async def test_what_is_fresh_at_the_end_may_be_had() -> None:
    calls = Calls()
    calls.going_on.set()
    assert await calls.shared.get() == 1
    await calls.shared.stop()
    assert await calls.shared.get() == 1
    calls.now_s = 1.0
    with pytest.raises(Unavailable, match="stops"):
        await calls.shared.get()
