"""The relay to a proxy of several addresses: what goes on to the next one, and what is sent only once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from doors import BlackHole, NoDoor
from one_face import serving

from dfc.addresses import Addresses
from dfc.config import Settings
from dfc.http.faces import Route
from dfc.http.peer import ControlClient, PeerPool
from dfc.http.relay import Relay

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
METHODS = ("GET", "PUT", "POST", "DELETE")


class Proxies:
    """`alive` answers 200 to all; `fickle` takes a request and ends the connection. `asked` has their methods."""

    def __init__(self) -> None:
        self.alive = self.fickle = ""
        self.asked: dict[str, list[str]] = {"alive": [], "fickle": []}
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        self.alive, self.fickle = [await self._serve(name) for name in ("alive", "fickle")]

    async def _serve(self, name: str) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                for line in head.lower().split("\r\n"):
                    if line.startswith("content-length: "):
                        await reader.readexactly(int(line.partition(" ")[2]))
                self.asked[name].append(head.partition(" ")[0])
                if name == "alive":
                    writer.write(OK)
            except asyncio.IncompleteReadError:
                pass
            finally:
                writer.close()

        self._servers.append(await asyncio.start_server(serve, "127.0.0.1", 0))
        return f"http://127.0.0.1:{self._servers[-1].sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        for server in self._servers:
            server.close()


@pytest.fixture
async def proxies() -> AsyncIterator[Proxies]:
    made = Proxies()
    await made.start()
    yield made
    made.stop()


@pytest.fixture
async def ask(proxies: Proxies) -> AsyncIterator[Callable[..., object]]:
    """Ask a server that relays to addresses."""
    pool = PeerPool(10.0)
    relay, addresses = Relay(pool, 10.0), Addresses(())

    async def forward(exchange, parameters):
        return await relay.forward(exchange, addresses)

    route = Route("/", dict.fromkeys(METHODS, forward), query=None)
    server = serving(Settings(port=0, access_log=False, drain_timeout_s=2.0), [], route)
    server.bind()
    await server.serve()
    url = f"http://127.0.0.1:{server.port}"

    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as client:

        async def ask(method: str, to: Addresses, body: bytes | None = None) -> int:
            nonlocal addresses
            addresses = to
            return (await client.request(method, "/b/x", content=body)).status_code

        yield ask
    await server.stop()
    pool.close()


@pytest.mark.parametrize("body", [None, b"small", bytes(1_000_000)], ids=["none", "small", "large"])
@pytest.mark.parametrize("kind", [NoDoor, BlackHole])
async def test_where_nobody_listens_the_next_one_is_asked(
    ask, proxies: Proxies, kind: type[NoDoor], body: bytes | None
) -> None:
    begun_s = time.monotonic()
    with kind() as dead:
        addresses = Addresses((dead.url, proxies.alive))
        for _ in range(3):
            assert await ask("PUT" if body else "GET", addresses, body) == 200
        assert addresses.in_order() == [proxies.alive, dead.url]
    assert len(proxies.asked["alive"]) == 3
    assert time.monotonic() - begun_s < 5  # one of ten seconds, or three of one, would take longer


@pytest.mark.parametrize("method", METHODS)
async def test_what_was_sent_goes_on_only_if_it_reads(ask, proxies: Proxies, method: str) -> None:
    addresses = Addresses((proxies.fickle, proxies.alive))
    reads = method == "GET"
    assert await ask(method, addresses, None if reads else b"body") == (200 if reads else 503)
    assert proxies.asked["fickle"] == [method]
    assert proxies.asked["alive"] == ([method] if reads else [])


@pytest.mark.parametrize("body", [b"small", bytes(1_000_000)], ids=["small", "large"])
async def test_the_next_try_of_a_write_begins_with_another_address(ask, proxies: Proxies, body: bytes) -> None:
    addresses = Addresses((proxies.fickle, proxies.alive))
    assert await ask("PUT", addresses, body) == 503
    assert await ask("PUT", addresses, body) == 200
    assert proxies.asked == {"fickle": ["PUT"], "alive": ["PUT"]}


async def test_nobody_answers(ask) -> None:
    with NoDoor() as one, NoDoor() as two:
        assert await ask("GET", Addresses((one.url, two.url))) == 503
        assert await ask("POST", Addresses((one.url, two.url)), b"body") == 503


async def test_control_calls_connect_within_a_limit() -> None:
    control = ControlClient("", 30.0)
    begun_s = time.monotonic()
    try:
        with BlackHole() as hole:
            for long in (False, True):
                with pytest.raises(Exception, match="cannot reach"):
                    await control.fetch("GET", hole.url, b"", {}, long=long, limit_s=0.2)
        assert time.monotonic() - begun_s < 10
    finally:
        await control.close()
