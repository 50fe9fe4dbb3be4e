"""Writes through a real relay, behind which answers are lost."""

from __future__ import annotations

import asyncio

import pytest
from doors import NoDoor
from fake_node import FakeCluster, quicken
from one_face import serving

from dfc.client import AsyncClient
from dfc.config import Settings
from dfc.errors import NotFound, PreconditionFailed
from dfc.http.faces import Route
from dfc.http.peer import PeerPool
from dfc.http.relay import Relay


async def test_a_write_whose_answer_a_relay_lost_is_known_to_have_been_done(fake: FakeCluster) -> None:
    pool = PeerPool(10.0)
    relay = Relay(pool, 10.0)

    async def forward(exchange, parameters):
        return await relay.forward(exchange, fake.url)

    methods = dict.fromkeys(("GET", "PUT", "DELETE"), forward)
    routes = [Route("/v1/cluster", methods, query=None), Route("/v1/objects/{bucket}/{object…}", methods, query=None)]
    server = serving(Settings(port=0, access_log=False, drain_timeout_s=2.0), routes, Route("/", methods, query=None))
    server.bind()
    await server.serve()
    with NoDoor() as nowhere:
        fake.target.advertise_url = nowhere.url
        async with AsyncClient(f"http://127.0.0.1:{server.port}", "secret") as client:
            quicken(client._blocking)
            for body in (b"data", bytes(1_000_000)):
                fake.proxy.fail("PUT", hang_up=True, done_first=True)
                stored = await client.put("b", "x", body, if_none_match="*")
                assert stored.size == len(body)
                with pytest.raises(PreconditionFailed):
                    await client.put("b", "x", body, if_none_match="*")
                fake.proxy.fail("DELETE", hang_up=True, done_first=True)
                await client.delete("b", "x")
                with pytest.raises(NotFound):
                    await client.delete("b", "x")
    await asyncio.wait_for(server.stop(), 10)
    pool.close()
