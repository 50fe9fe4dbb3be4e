"""The registry in an etcd of three members, some of which die, hang or are alone."""

from __future__ import annotations

import asyncio
import signal
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from etcd_process import Etcd, EtcdMember, etcd
from registering import bucket

from dfc.errors import OperatorError, Unavailable
from dfc.registry.changes import create_bucket
from dfc.registry.etcd import registry as module
from dfc.registry.etcd.gateway import EtcdGateway
from dfc.registry.etcd.registry import EtcdRegistry, open_etcd

PATIENCE_S = 20.0


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Etcd]:
    with etcd(3, tmp_path) as started:
        yield started


@pytest.fixture
def prefix() -> str:
    return f"/test-{uuid.uuid4().hex}/"


@pytest.fixture
async def peers(three: Etcd, prefix: str) -> AsyncIterator[tuple[EtcdRegistry, EtcdRegistry]]:
    one = await open_etcd(three.urls, prefix, "p1")
    other = await open_etcd(three.urls[::-1], prefix, "p2")
    yield one, other
    await one.close()
    await other.close()


async def leader_of(three: Etcd) -> EtcdMember:
    for member in three.members:
        gateway = EtcdGateway([member.url])
        answer = await gateway._post("/v3/maintenance/status", {})
        await gateway.close()
        if answer["leader"] == answer["header"]["member_id"]:
            return member
    raise AssertionError("there is no leader")


async def seen(registry: EtcdRegistry, name: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while registry.map.bucket(name) is None:
            await registry.watch(registry.map.version)


async def make_buckets(registry: EtcdRegistry, who: str, ending: asyncio.Event) -> list[tuple[str, bool, int]]:
    """Names, whether they were made for certain, and by which version."""
    made = []
    while not ending.is_set():
        name = f"{who}-{len(made)}"
        try:
            version = (await registry.change(create_bucket(bucket(name)))).map.version
            made.append((name, True, version))
        except Unavailable:
            made.append((name, False, 0))
        await asyncio.sleep(0.01)
    return made


async def test_the_death_of_the_leader_costs_no_change(three: Etcd, peers: tuple[EtcdRegistry, EtcdRegistry]) -> None:
    ending = asyncio.Event()
    working = [asyncio.create_task(make_buckets(each, f"w{number}", ending)) for number, each in enumerate(peers)]
    await asyncio.sleep(0.5)
    (await leader_of(three)).signal(signal.SIGKILL)
    version = peers[0].map.version
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(20):
            version = (await peers[0].watch(version)).version
    ending.set()
    made = [each for some in await asyncio.gather(*working) for each in some]
    assert all(is_certain for _, is_certain, _ in made), "the next leader is there before a change is given up"
    versions = [version for _, _, version in made]
    assert len(set(versions)) == len(versions)
    found = (await peers[1].change(lambda state: state)).map
    assert {each.name for each in found.buckets} == {name for name, _, _ in made}
    assert found.version == 1 + len(made), "none was made twice"


async def test_without_a_quorum_the_map_is_read_and_not_changed(
    three: Etcd, peers: tuple[EtcdRegistry, EtcdRegistry], prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHANGE_S", 2.0)
    await peers[0].change(create_bucket(bucket("before")))
    one, two, three_ = three.members
    for member in (two, three_):
        member.signal(signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises(Unavailable):
        await peers[0].change(create_bucket(bucket("lost")))
    assert time.monotonic() - begun < 12
    assert peers[0].map.bucket("before") is not None
    late = await open_etcd([one.url], prefix, "p3")
    assert late.map == peers[0].map
    await asyncio.to_thread(three.start, two, three_)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                state = await late.change(create_bucket(bucket("after")))
                break
            except Unavailable:
                await asyncio.sleep(0.2)
    for each in peers:
        await seen(each, "after")
    assert state.map.version in (3, 4), "the one that was given up was made, or was not"
    await late.close()


async def test_a_member_that_hangs_holds_up_nobody(three: Etcd, peers: tuple[EtcdRegistry, EtcdRegistry]) -> None:
    """It keeps its connections, and tells of nothing."""
    leader = await leader_of(three)
    slow = next(member for member in three.members if member is not leader)
    registry = peers[0]
    urls = registry._gateway.urls
    while urls[(registry._gateway._at + 1) % len(urls)] != slow.url:
        registry._gateway.turn()
    registry._leave_member()  # follow the next one
    await asyncio.sleep(1)
    assert urls[registry._gateway._at] == slow.url
    slow.signal(signal.SIGSTOP)
    await peers[1].change(create_bucket(bucket("b")))
    await seen(registry, "b")
    await registry.change(create_bucket(bucket("c")))
    slow.signal(signal.SIGCONT)


async def test_what_was_compacted_meanwhile_is_read_anew(three: Etcd, peers: tuple[EtcdRegistry, EtcdRegistry]) -> None:
    registry, other = peers
    watch = registry._gateway.watch
    gate = asyncio.Event()

    async def late(*given: Any) -> Any:
        await gate.wait()
        async for some in watch(*given):
            yield some

    registry._gateway.watch = late  # type: ignore[method-assign]
    registry._leave_member()
    await asyncio.sleep(0.5)
    for number in range(5):
        await other.change(create_bucket(bucket(f"b{number}")))
    await other._gateway._write("/v3/kv/compaction", {"revision": str(other._mirror.revision), "physical": True})
    gate.set()
    await other.change(create_bucket(bucket("last")))
    await seen(registry, "last")
    assert registry.map == other.map


@pytest.mark.parametrize("arrives", [True, False])
async def test_an_answer_that_is_lost_is_asked_for(
    peers: tuple[EtcdRegistry, EtcdRegistry], arrives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the transaction was made or not: the caller hears how it ended, and nothing is done twice."""
    registry, _ = peers
    transact, lost = registry._gateway.transact, [1, 1]

    async def cut_off(*given: Any) -> Any:
        if lost:
            lost.pop()
            if arrives:
                await transact(*given)
            raise Unavailable("cut off")
        return await transact(*given)

    monkeypatch.setattr(registry._gateway, "transact", cut_off)
    version = registry.map.version
    state = await registry.change(create_bucket(bucket("b")))
    assert (state.map.version, state.map.bucket("b")) == (version + 1, bucket("b"))
    assert (await registry.change(lambda found: found)).map == state.map


async def test_no_etcd_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPEN_S", 1.0)
    with pytest.raises(OperatorError, match="asked at http://127"):
        await open_etcd(["http://127.0.0.1:9"], "/none", "p1")
