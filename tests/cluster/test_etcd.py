"""The registry in an etcd of three members, some of which die, hang or are alone."""

from __future__ import annotations

import asyncio
import base64
import signal
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from etcd_process import Etcd, EtcdMember, etcd, open_etcd
from registering import bucket

from dfc.errors import OperatorError, Unavailable
from dfc.registry import etcd as module
from dfc.registry.base import LeaseLost
from dfc.registry.changes import create_bucket
from dfc.registry.etcd import EtcdRegistry
from dfc.registry.gateway import EtcdGateway, EtcdPlace, NotReached, delete, encoded, end_of, put

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
    one = await open_etcd(EtcdPlace(three.urls, prefix), "p1")
    other = await open_etcd(EtcdPlace(three.urls[::-1], prefix), "p2")
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
    assert all(is_replicated for _, is_replicated, _ in made), "the next leader is there before a change is given up"
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
    late = await open_etcd(EtcdPlace([one.url], prefix), "p3")
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
    gateway = registry._gateway
    gateway._at = gateway.urls.index(slow.url)
    assert registry._limit is not None
    registry._limit.reschedule(asyncio.get_running_loop().time())
    await asyncio.sleep(0.1)
    gateway._at = gateway.urls.index(slow.url)  # which it follows from now on
    await asyncio.sleep(1)
    assert gateway.url == slow.url
    slow.signal(signal.SIGSTOP)
    await peers[1].change(create_bucket(bucket("b")))
    # All of these time out at once: they must not lead back to that member.
    changes = [registry.change(create_bucket(bucket(f"c{number}"))) for number in range(2)]
    async with asyncio.timeout(PATIENCE_S), registry.lease("office", "p1", 5.0) as lease:
        await asyncio.gather(*changes)
        assert lease.is_held
    await seen(registry, "b")
    assert gateway.url != slow.url
    slow.signal(signal.SIGCONT)


async def test_members_that_fail_at_once_are_left_once(three: Etcd) -> None:
    gateway = EtcdGateway(three.urls)
    for _ in range(3):
        gateway.leave(three.urls[0])
    assert gateway.url == three.urls[1]
    gateway.leave(three.urls[1])
    assert gateway.url == three.urls[2]


async def test_what_was_compacted_meanwhile_is_read_anew(three: Etcd, peers: tuple[EtcdRegistry, EtcdRegistry]) -> None:
    registry, other = peers
    registry._tasks[1].cancel()  # nobody else reads anew
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
    await other._gateway._once("/v3/kv/compaction", {"revision": str(other._mirror.revision), "physical": True})
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


async def test_what_comes_late_was_not_refused(
    peers: tuple[EtcdRegistry, EtcdRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change under a lease that ends for its holder before etcd has answered: it may be made all the same."""
    registry, other = peers
    transact, sent, is_sent = registry._gateway.transact, list[Any](), asyncio.Event()

    async def held_up(*given: Any) -> Any:
        sent.append(given)
        is_sent.set()
        raise Unavailable("no answer")

    async with registry.elect("office", "p1", 2.0) as lease:
        monkeypatch.setattr(registry._gateway, "transact", held_up)
        changing = asyncio.create_task(registry.change(create_bucket(bucket("b")), fence=lease))
        async with asyncio.timeout(PATIENCE_S):
            await is_sent.wait()
        lease.lost.set()
        with pytest.raises(Unavailable) as caught:
            await changing
        assert not isinstance(caught.value, LeaseLost)
        assert (await transact(*sent[0])).succeeded
    await seen(other, "b")


MISUNDERSTOOD = {
    "a newer format": [put("meta", b'{"cluster_id": "c", "format": 2}'), put("version", b'{"version": 9}')],
    "something else": [put("version", b"?")],
    "another cluster": [put("meta", b'{"cluster_id": "other"}')],
    "a version twice": [put("map", b'{"last_number": 5}'), put("version", b'{"version": 2}')],
    "nothing": [delete("meta"), delete("version"), delete("map")],
}


@pytest.mark.parametrize("what", MISUNDERSTOOD)
async def test_what_is_not_understood_is_not_changed(peers: tuple[EtcdRegistry, EtcdRegistry], prefix: str, what: str) -> None:
    """By a proxy that would write what it knew before over it. It serves that, says so, and goes on when it can."""
    registry, other = peers
    await registry.change(create_bucket(bucket("b")))
    before, (kept, _) = registry.map, await other._gateway.range(prefix, end_of(prefix))
    operations = [
        {kind: {**fields, "key": encoded(prefix + base64.b64decode(fields["key"]).decode())}}
        for each in MISUNDERSTOOD[what]
        for kind, fields in each.items()
    ]
    await other._gateway.transact([], operations, [])
    async with asyncio.timeout(PATIENCE_S):
        while not registry._trouble:
            await registry._changed.wait()
    there = (await other._gateway.range(prefix, end_of(prefix)))[0]
    for change in (create_bucket(bucket("c")), lambda state: state):
        with pytest.raises(Unavailable):
            await registry.change(change)
    assert (await other._gateway.range(prefix, end_of(prefix)))[0] == there
    assert registry.map == before
    if what == "a version twice":
        return  # and nobody can say which of both is right
    await other._gateway.transact([], [put(each.key, each.value or b"") for each in kept], [])
    async with asyncio.timeout(PATIENCE_S):
        while registry._trouble:
            await registry._changed.wait()
    state = await registry.change(create_bucket(bucket("c")))
    assert state.map.version == before.version + 1


async def test_an_etcd_that_was_restored_is_another_one(peers: tuple[EtcdRegistry, EtcdRegistry]) -> None:
    registry, _ = peers
    registry._mirror.revision += 1000
    async with asyncio.timeout(PATIENCE_S):
        while not registry._trouble:
            await registry._changed.wait()
    with pytest.raises(Unavailable, match="restored"):
        await registry.change(create_bucket(bucket("b")))


async def test_changes_do_not_wait_for_ever(
    three: Etcd, peers: tuple[EtcdRegistry, EtcdRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHANGE_S", 1.0)
    for member in three.members:
        member.signal(signal.SIGKILL)
    begun = time.monotonic()
    changes = (peers[0].change(create_bucket(bucket(f"b{number}"))) for number in range(500))
    outcomes = await asyncio.gather(*changes, return_exceptions=True)
    assert {type(each) for each in outcomes} <= {Unavailable, NotReached}
    assert time.monotonic() - begun < 5


async def test_no_etcd_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPEN_S", 1.0)
    with pytest.raises(OperatorError, match="asked at http://127"):
        await open_etcd(EtcdPlace(["http://127.0.0.1:9"], "/none"), "p1")
