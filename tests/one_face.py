"""Servers of tests that need no more than a few handlers: one face, with DFC's own way of asking for the token."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from dfc.config import Settings
from dfc.http.faces import Face, Route, TokenAccess
from dfc.http.peer import PeerPool
from dfc.http.relay import Relay
from dfc.http.server import NodeServer

CALM = Settings(port=0, access_log=False, drain_timeout_s=2.0)


def serving(settings: Settings, routes: Sequence[Route], rest: Route) -> NodeServer:
    """A server of these routes; `rest` gets all paths that are not under `/v1`."""
    face = Face("test", routes, TokenAccess(settings).check, segments=frozenset(("v1",)), rest=rest)
    return NodeServer(settings, [face])


@asynccontextmanager
async def client_of(server: NodeServer) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the server, which runs meanwhile."""
    server.bind()
    await server.serve()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False, timeout=30) as client:
            yield client
    finally:
        await server.stop()


@asynccontextmanager
async def relaying(
    where: Callable[[], Any], *methods: str, settings: Settings = CALM, connect_s: float = 5.0, answer_s: float = 3.0
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server that relays everything to `where()`."""
    pool = PeerPool(connect_s)
    relay = Relay(pool, answer_s)

    async def forward(exchange: Any, parameters: Any) -> Any:
        return await relay.forward(exchange, where())

    async with client_of(serving(settings, [], Route("/", dict.fromkeys(methods, forward), query=None))) as client:
        yield client
    pool.close()
