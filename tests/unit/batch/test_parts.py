"""Parts of a batch at another node: whatever goes wrong before the part is there, its connection is closed at once."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import pytest

from dfc.batch.items import BatchItem, encode_preamble
from dfc.batch.peers import PeerParts
from dfc.errors import Unavailable
from dfc.http.peer import PeerPool

ITEMS = [BatchItem(bucket="b", object="x")]


class Owner:
    """A node that answers every request with the same bytes, and says when the other end has closed."""

    def __init__(self, body: bytes, length: int) -> None:
        self._head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length
        self._body = body
        self.answered = asyncio.Event()
        self.closed = asyncio.Event()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self._head + self._body)
        self.answered.set()
        with suppress(OSError):
            while await reader.read(1000):
                pass
        self.closed.set()
        writer.close()

    async def stop(self) -> None:
        self._server.close()
        await self._server.wait_closed()


@pytest.fixture
async def open_at() -> AsyncIterator[Callable[..., object]]:
    """Begins to open a part at an owner that answers with a body; gives both."""
    owners, pool = [], PeerPool(5.0)

    async def begin(body: bytes, length: int) -> tuple[Owner, asyncio.Task[object]]:
        owner = Owner(body, length)
        owners.append(owner)
        url = await owner.start()
        parts = PeerParts(pool, "", lambda _: url)
        return owner, asyncio.create_task(parts.open("t1", ITEMS, "fail"))

    gc.disable()  # an exception that is held keeps the frames that it came through, and what they hold
    yield begin
    gc.enable()
    pool.close()
    for owner in owners:
        await owner.stop()


async def test_a_cancelled_opening_closes_its_connection(open_at) -> None:
    whole = encode_preamble((5).to_bytes(8, "little"), {})
    owner, task = await open_at(whole[:-1], len(whole) + 5)
    await owner.answered.wait()
    await asyncio.sleep(0.05)  # until it waits for the rest; before that, closing it is the business of another line
    task.cancel()
    (result,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(result, asyncio.CancelledError)
    async with asyncio.timeout(20):
        await owner.closed.wait()


@pytest.mark.parametrize("lengths", [b"", (4).to_bytes(8, "little"), b"12345678" * 2])
async def test_an_answer_that_makes_no_sense_closes_its_connection(open_at, lengths: bytes) -> None:
    whole = encode_preamble(lengths, {})
    owner, task = await open_at(whole, len(whole) + 5)
    (result,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(result, Unavailable)
    async with asyncio.timeout(20):
        await owner.closed.wait()
