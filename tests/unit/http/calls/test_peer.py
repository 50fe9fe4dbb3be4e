"""The pool of connections to other nodes."""

from __future__ import annotations

import asyncio
import socket

import pytest

from dfc.http.calls import peer
from dfc.http.calls.peer import PeerPool


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
