"""Maps on their way to targets: who asks for a push that is under way shares it, and nobody is let down by another's end."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from registering import target_entry
from registry_conformance import end

from dfc.errors import Unavailable
from dfc.placement.map import ClusterMap
from dfc.proxy.heartbeats import Pushes
from dfc.registry.messages import MapTaken


def map_of(version: int) -> ClusterMap:
    return ClusterMap(cluster_id="c", version=version)


class Targets:
    """Control calls that wait until they are let go; what arrived, and what was cut off."""

    def __init__(self) -> None:
        self.arrived: list[tuple[str, int]] = []
        self.cut: list[tuple[str, int]] = []
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def call(self, method, url, kind, *, body):
        assert (method, url.removeprefix("http://")[2:]) == ("POST", "/v1/node/map")
        push = url[7:9], msgspec.json.decode(body)["version"]
        self.arrived.append(push)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cut.append(push)
            raise
        if self.error is not None:
            raise self.error
        return MapTaken(push[1], push[1] + 100)


@pytest.fixture
def targets():
    return Targets()


@pytest.fixture
def begin(targets):
    acknowledged: list[tuple[str, int]] = []
    pushes = Pushes(targets, lambda *told: acknowledged.append(told))

    async def begin(number: int, version: int) -> asyncio.Task[None]:
        task = asyncio.create_task(pushes.push(target_entry(f"t{number}"), map_of(version)))
        for _ in range(3):
            await asyncio.sleep(0)
        return task

    begin.pushes, begin.acknowledged = pushes, acknowledged
    return begin


async def test_pushes_of_one_version_share_a_request(begin, targets):
    tasks = [await begin(0, 5), await begin(0, 5), await begin(0, 4)]
    assert targets.arrived == [("t0", 5)]
    assert not begin.acknowledged
    targets.gate.set()
    await asyncio.gather(*tasks)
    assert not begin.pushes._under_way
    assert begin.acknowledged == [("t0", 105)]


async def test_a_newer_map_waits_for_no_older_one_and_targets_not_for_each_other(begin, targets):
    tasks = [await begin(0, 5), await begin(0, 6), await begin(1, 5), await begin(0, 6)]
    assert targets.arrived == [("t0", 5), ("t0", 6), ("t1", 5)]
    targets.gate.set()
    await asyncio.gather(*tasks)
    assert not begin.pushes._under_way


async def test_what_has_been_answered_is_sent_again(begin, targets):
    targets.gate.set()
    await (await begin(0, 5))
    await (await begin(0, 5))  # the target may have restarted since
    assert targets.arrived == [("t0", 5)] * 2


async def test_a_caller_that_ends_leaves_the_request_to_the_others(begin, targets):
    first, second = await begin(0, 5), await begin(0, 5)
    await end(first)
    assert not targets.cut
    targets.gate.set()
    await second
    assert targets.arrived == [("t0", 5)]


async def test_the_request_ends_with_its_last_caller_and_a_new_one_does_not_share_its_end(begin, targets):
    first = await begin(0, 5)
    first.cancel()
    second = begin.pushes.push(target_entry("t0"), map_of(5))
    targets.gate.set()
    results = await asyncio.gather(first, second, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1] is None
    targets.gate.clear()
    alone = await begin(0, 7)
    await end(alone)
    await asyncio.sleep(0)
    assert targets.cut == [("t0", 5), ("t0", 7)]
    assert not begin.pushes._under_way


async def test_an_error_reaches_all_who_wait_and_is_not_kept(begin, targets):
    tasks = [await begin(0, 5), await begin(0, 5)]
    targets.error = Unavailable("the target stops")
    targets.gate.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in found] == [Unavailable] * 2
    targets.error = None
    await (await begin(0, 5))
    assert not begin.pushes._under_way
