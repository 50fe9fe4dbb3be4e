"""The registry in a real etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from etcd_process import open_etcd
from registering import bucket
from registry_conformance import SwapConformance

from dfc.errors import Unavailable
from dfc.registry.base import Registry
from dfc.registry.changes import create_bucket
from dfc.registry.etcd import EtcdRegistry
from dfc.registry.gateway import EtcdGateway, EtcdPlace


@pytest.fixture
async def peers(place: EtcdPlace) -> AsyncIterator[tuple[EtcdRegistry, EtcdRegistry]]:
    one, other = await open_etcd(place, "p1"), await open_etcd(place, "p2")
    yield one, other
    await one.close()
    await other.close()


class TestEtcd(SwapConformance):
    lease_s = 2.0  # etcd keeps no lease for less

    def meddle(self, registry: Registry, changes: list[Any]) -> None:
        assert isinstance(registry, EtcdRegistry)
        left, submit = list(changes), registry._submit

        async def meddled(*given: Any) -> Any:
            if left:
                theirs = EtcdRegistry(registry._gateway, registry._prefix, "p3")
                await theirs._read_all()
                working = asyncio.create_task(theirs._work()), asyncio.create_task(theirs._follow())
                await theirs.change(left.pop(0))
                for task in working:
                    task.cancel()
            return await submit(*given)

        registry._submit = meddled  # type: ignore[method-assign]


@pytest.mark.parametrize("asking", ["reading everything", "looking now and then"])
async def test_an_answer_that_comes_late_is_no_other_etcd(
    peers: tuple[EtcdRegistry, EtcdRegistry], monkeypatch: pytest.MonkeyPatch, asking: str
) -> None:
    """While it is on its way, changes that are newer are told of."""
    registry, other = peers
    ask, has_come = registry._gateway.range, asyncio.Event()

    async def late(*given: Any, **named: Any) -> Any:
        answer = await ask(*given, **named)
        if not has_come.is_set():
            state = await other.change(create_bucket(bucket("b")))
            await registry.watch(state.map.version - 1)
            has_come.set()
        return answer

    monkeypatch.setattr(registry._gateway, "range", late)
    async with asyncio.timeout(30):
        if asking == "reading everything":
            await registry._read_all()
        await has_come.wait()
    state = await registry.change(create_bucket(bucket("c")))
    assert [each.name for each in state.map.buckets] == ["b", "c"]


async def ask(url: str) -> None:
    gateway = EtcdGateway([url])
    try:
        await gateway._post("/v3/kv/range", {})
    finally:
        await gateway.close()


@pytest.mark.parametrize(
    ("host", "why"), [("127.0.0.1", "Connection refused"), ("no-such-host.invalid", "not known|name resolution")]
)
async def test_why_no_member_can_be_reached_is_said_in_words(host: str, why: str) -> None:
    with pytest.raises(Unavailable, match=rf"cannot reach etcd at http://{host}:1: .*({why})"):
        await ask(f"http://{host}:1")


async def test_one_that_breaks_off_is_told_of_in_words() -> None:
    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unavailable, match=r"does not answer: (Server disconnected|Connection reset by peer)"):
            await ask(f"http://127.0.0.1:{port}")
