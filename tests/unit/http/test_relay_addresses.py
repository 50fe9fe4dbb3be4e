"""The relay to a proxy of several addresses: what goes on to the next one, and what is sent only once."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import pytest
from doors import BlackHole, NoDoor
from one_face import relaying
from scripted_node import Upstream, always, answer

from dfc.addresses import Addresses
from dfc.http.peer import ControlClient

METHODS = ("GET", "PUT", "POST", "DELETE")


class Proxies(NamedTuple):
    """`alive` answers 200 to all; `fickle` takes a request and ends the connection."""

    alive: Upstream
    fickle: Upstream

    def asked(self) -> dict[str, list[str]]:
        """The methods of their requests."""
        return {name: [head.partition(" ")[0] for head in node.heads] for name, node in self._asdict().items()}


@pytest.fixture
async def proxies() -> AsyncIterator[Proxies]:
    async with Upstream() as alive, Upstream() as fickle:
        alive.scripts = [always(alive, answer())]
        fickle.scripts = [lambda reader, _: fickle.request(reader)]
        yield Proxies(alive, fickle)


@pytest.fixture
async def ask(proxies: Proxies) -> AsyncIterator[Callable[..., object]]:
    """Ask a server that relays to addresses."""
    addresses = Addresses(())
    async with relaying(lambda: addresses, *METHODS, connect_s=10.0, answer_s=10.0) as client:

        async def ask(method: str, to: Addresses, body: bytes | None = None) -> int:
            nonlocal addresses
            addresses = to
            return (await client.request(method, "/b/x", content=body)).status_code

        yield ask


@pytest.mark.parametrize("body", [None, b"small", bytes(1_000_000)], ids=["none", "small", "large"])
@pytest.mark.parametrize("kind", [NoDoor, BlackHole])
async def test_where_nobody_listens_the_next_one_is_asked(
    ask, proxies: Proxies, kind: type[NoDoor], body: bytes | None
) -> None:
    begun_s = time.monotonic()
    with kind() as dead:
        addresses = Addresses((dead.url, proxies.alive.url))
        for _ in range(3):
            assert await ask("PUT" if body else "GET", addresses, body) == 200
        assert addresses.in_order() == [proxies.alive.url, dead.url]
    assert len(proxies.asked()["alive"]) == 3
    assert time.monotonic() - begun_s < 5  # one of ten seconds, or three of one, would take longer


@pytest.mark.parametrize("method", METHODS)
async def test_what_was_sent_goes_on_only_if_it_reads(ask, proxies: Proxies, method: str) -> None:
    addresses = Addresses((proxies.fickle.url, proxies.alive.url))
    reads = method == "GET"
    assert await ask(method, addresses, None if reads else b"body") == (200 if reads else 503)
    assert proxies.asked() == {"fickle": [method], "alive": [method] if reads else []}


@pytest.mark.parametrize("body", [b"small", bytes(1_000_000)], ids=["small", "large"])
async def test_the_next_try_of_a_write_begins_with_another_address(ask, proxies: Proxies, body: bytes) -> None:
    addresses = Addresses((proxies.fickle.url, proxies.alive.url))
    assert await ask("PUT", addresses, body) == 503
    assert await ask("PUT", addresses, body) == 200
    assert proxies.asked() == {"fickle": ["PUT"], "alive": ["PUT"]}


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
