"""A target that was given several addresses of its proxy: it joins past dead ones, and stays when one dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from doors import BlackHole, Door, NoDoor
from inprocess import InProcess, until

from dfc.config import Settings
from dfc.servers.target import TargetNode


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[InProcess]:
    async with InProcess(tmp_path) as made:
        yield await made.start(1)


async def join(cluster: InProcess, proxy_url: str) -> TargetNode:
    directory = str(cluster.directory / "joined")
    settings = Settings(
        dir=directory, disks=(f"{directory}/disk",), port=0, proxy_url=proxy_url, access_log=False, heartbeat_s=0.1
    )
    cluster.targets.append(TargetNode(settings))
    await cluster.targets[-1].start()
    return cluster.targets[-1]


async def ask(cluster: InProcess, target: TargetNode, method: str, path: str, data: bytes | None = None) -> tuple[int, Any]:
    async with cluster.session.request(method, target._url + path, data=data) as answer:
        return answer.status, await answer.read()


async def test_a_target_joins_past_dead_addresses_and_outlives_the_death_of_one(cluster: InProcess) -> None:
    with NoDoor() as dead, BlackHole() as hole, Door(cluster.url) as first, Door(cluster.url) as second:
        target = await join(cluster, f"{dead.url},{hole.url},{first.url},{second.url}")
        assert target.local.proxies.last == first.url
        names = [f"{number}.bin" for number in range(12)]  # of both targets: those of the other one are relayed
        for number, name in enumerate(names):
            status, _ = await ask(cluster, target, "PUT", f"/b/{name}", bytes(number * 30_000))
            assert status == 201
        first.shut()
        came = second.came
        for number, name in enumerate(names):
            assert await ask(cluster, target, "GET", f"/b/{name}") == (200, bytes(number * 30_000))
            status, _ = await ask(cluster, target, "PUT", f"/new/{name}", b"data")
            assert status == 201
        assert (await ask(cluster, target, "GET", "/v1/buckets"))[0] == 200
        assert second.came > came
        await _beats(cluster, target)

        first.open()
        second.shut()
        await _beats(cluster, target)
        await _asks(target, first.url)


async def test_a_target_waits_for_the_first_proxy_that_comes(cluster: InProcess) -> None:
    with NoDoor() as dead, Door(cluster.url) as door:
        door.reset = True

        async def open_later() -> bool:
            door.reset = door.came < 3
            return not door.reset

        opening = asyncio.create_task(until(open_later))
        target = await join(cluster, f"{door.url},{dead.url}")
        await opening
        assert target.local.proxies.last == door.url


async def test_heartbeats_leave_an_address_that_falls_silent(cluster: InProcess) -> None:
    """In less time than makes a target count as down."""
    with Door(cluster.url) as first, Door(cluster.url) as second:
        target = await join(cluster, f"{first.url},{second.url}")
        await _beats(cluster, target)
        await _asks(target, first.url)
        begun_s = time.monotonic()
        first.deaf = True
        await asyncio.sleep(0.3)  # what has passed
        await _beats(cluster, target)
        await _asks(target, second.url)
        assert time.monotonic() - begun_s < Settings().down_after_s


async def _asks(target: TargetNode, url: str) -> None:
    """The target has had its answer from this address: a little later than the registry has heard it."""

    async def is_last() -> bool:
        return target.local.proxies.last == url

    await until(is_last)


async def _beats(cluster: InProcess, target: TargetNode) -> None:
    """The registry hears of the target from now on."""
    assert cluster.proxy is not None
    beats = cluster.proxy.cluster._heartbeats._last
    beats.pop(target.id, None)

    async def is_heard() -> bool:
        return target.id in beats

    await until(is_heard)
