"""A target that registers for the first time: what it waits for, and what ends it."""

from __future__ import annotations

import asyncio
import shutil
import threading
from functools import partial
from types import SimpleNamespace

import pytest

from dfc.config import Settings
from dfc.errors import OperatorError
from dfc.filesystem import FileSystem
from dfc.http.peer import ControlClient, RemoteError
from dfc.placement.map import BucketEntry, ClusterMap, DiskEntry, NodeEntry
from dfc.registry.base import boot_s
from dfc.registry.messages import Registered, write_map, write_node_id
from dfc.servers.target import TargetNode
from dfc.storage.identity import give_to_node
from dfc.target import membership
from dfc.target.local import TargetState
from dfc.target.membership import Membership, claim_identity

ANSWERS = {"/v1/cluster": ClusterMap(cluster_id="c", version=1), "/v1/node/registration": Registered(node_number=7)}


@pytest.fixture
async def make(tmp_path, monkeypatch):
    """Makes a target's membership whose registry first answers with these states."""
    monkeypatch.setattr(membership, "RETRY_S", 0.01)
    made = []

    def build(*states: int) -> Membership:
        directory = str(tmp_path)
        settings = Settings(dir=directory, disks=(directory,), port=0, proxy_url="http://127.0.0.1:1")
        local, left = TargetState(ControlClient("", 1.0), settings.proxy_url, 2), list(states)
        made.append(local)
        local.node_id = "t1"

        async def call(method, url, kind, **rest):
            if left:
                raise RemoteError(left.pop(0), "some_code", "said the registry")
            return ANSWERS[url.removeprefix("http://127.0.0.1:1")]

        monkeypatch.setattr(local.control, "call", call)
        return Membership(local, settings, FileSystem())

    yield build
    for local in made:
        await local.control.close()
        local.close()


async def test_a_registry_that_asks_to_try_again_is_asked_again(make):
    async with asyncio.timeout(20):
        assert (await make(503, 503)._cluster_map()).cluster_id == "c"
        assert await make(503, 503)._first_registration("c", ()) == 7


@pytest.mark.parametrize("status", [401, 409, 500])
async def test_a_registry_that_refuses_ends_the_target(make, status):
    with pytest.raises(OperatorError, match="refuses this target: said the registry"):
        await make(status)._cluster_map()
    with pytest.raises(OperatorError, match="refuses this target: said the registry"):
        await make(status)._first_registration("c", ())


async def test_a_disk_that_hangs_does_not_hold_up_what_is_said_of_others(make, monkeypatch):
    """It is asked once, and again when it has answered."""
    member, begun, goes_on = make(), list[str](), threading.Event()
    disk = SimpleNamespace(id="d1")
    threads = SimpleNamespace(go_on=asyncio.to_thread)
    monkeypatch.setattr(member, "_local", SimpleNamespace(threads=lambda _disk: threads))
    monkeypatch.setattr(membership, "DISK_ANSWER_S", 0.02)

    def change(what: str) -> None:
        begun.append(what)
        goes_on.wait(10)

    async with asyncio.timeout(20):
        await member._change(disk, partial(change, "first"))
        await member._change(disk, partial(change, "second"))
        assert begun == ["first"]
        goes_on.set()
        await member._changing["d1"]
        await member._change(disk, partial(change, "third"))
    assert begun == ["first", "third"]


async def test_the_kept_map_is_used_only_when_no_registry_has_answered_for_a_while(make, monkeypatch):
    kept = ClusterMap(cluster_id="c", version=9)
    async with asyncio.timeout(20):
        assert (await make(503, 503)._cluster_map(kept)).version == 1
        monkeypatch.setattr(membership, "START_ALONE_S", 0.05)
        assert await make(*[503] * 1000)._cluster_map(kept) is kept
    with pytest.raises(OperatorError, match="refuses this target"):
        await make(401)._cluster_map(kept)


def test_a_kept_map_counts_only_if_it_leaves_no_doubt(tmp_path):
    """Which node this is, and that all disks are its own: new ones and those of others are taken only with the registry."""
    filesystem, directory = FileSystem(), str(tmp_path / "node")
    disks = tuple(str(tmp_path / f"disk-{number}") for number in range(2))
    known = NodeEntry(id="t1", number=3, role="target", url="http://t1", advertise_url="http://t1", state="up")
    kept = ClusterMap(cluster_id="c", version=9, nodes=(known,))

    def found() -> ClusterMap | None:
        return membership._kept_map(directory, disks)

    assert found() is None
    claim_identity(directory, disks, ClusterMap(cluster_id="c", version=1), filesystem)
    write_node_id(directory, "t1", filesystem)
    for disk in disks:
        give_to_node(disk, "t1", filesystem)
    assert found() is None, "nothing was kept"
    write_map(disks[1], kept, filesystem)
    assert found() == kept
    write_map(disks[0], ClusterMap(cluster_id="other", version=99, nodes=(known,)), filesystem)
    assert found() == kept
    give_to_node(disks[0], "t2", filesystem)
    assert found() is None, "another node's disk"
    give_to_node(disks[0], "t1", filesystem)
    write_node_id(directory, "t2", filesystem)
    assert found() is None, "another node's map"
    (tmp_path / "node" / "dfc-node-id").write_bytes(b"")
    assert found() is None
    write_node_id(directory, "t1", filesystem)
    assert found() == kept
    shutil.rmtree(disks[0])
    assert found() is None, "a disk that would be formatted"


@pytest.mark.parametrize(("cluster_id", "version", "goes_by"), [("c", 9, 9), ("c", 1, 0), ("other", 9, 0)])
async def test_a_newer_map_on_the_disks_is_not_given_up_for_that_of_the_registry(
    make, tmp_path, monkeypatch, cluster_id, version, goes_by
):
    """Everything may have been started together, on an old copy of the registry: it has to be told."""
    member, said = make(), []
    write_map(str(tmp_path), ClusterMap(cluster_id=cluster_id, version=version), FileSystem())
    call = member._local.control.call

    async def noting(method, url, kind, *, body=None, **rest):
        said.append(body)
        return await call(method, url, kind, body=body, **rest)

    monkeypatch.setattr(member._local.control, "call", noting)
    await member.join("http://t1", "http://t1")
    assert member._local.map.version == goes_by
    assert said[-1].map_version == goes_by


async def test_a_lease_counts_from_when_the_heartbeat_was_sent(make, monkeypatch):
    """The coordinator counts from when it came: so the target is always the first to know that it is over."""
    member, now = make(), [100.0]
    monkeypatch.setattr(membership, "boot_s", lambda: now[0])

    async def call(method, url, kind, **rest):
        now[0] += 5.0  # on the way
        return Registered(node_number=7, lease_s=8.0)

    monkeypatch.setattr(member._local.control, "call", call)
    await member._register("c", ())
    assert member._local.lease.left_s(now[0]) == 3.0


async def test_a_target_that_a_hung_disk_holds_up_leaves_and_comes_back(make, monkeypatch):
    """Else the step that calls the disk failed would wait for the one that this target cannot acknowledge."""
    member = make()
    local, said = member._local, []
    own = NodeEntry(id="t1", number=7, role="target", url="http://t1", advertise_url="", state="up", disks=())
    local.take_map(ClusterMap(cluster_id="c", version=2, step=2, nodes=(own,)))
    monkeypatch.setattr(TargetState, "is_held_up", property(lambda self: len(said) < 2))

    async def call(method, url, kind, *, body, **rest):
        said.append(body)
        return Registered(node_number=7)

    monkeypatch.setattr(local.control, "call", call)
    beating = asyncio.create_task(member.beat())
    async with asyncio.timeout(20):
        while len(said) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    assert [each.leaving for each in said[:3]] == [True, True, False], "a heartbeat would take it back"
    assert said[0].process == said[1].process != "", "the coordinator believes nobody else that this target leaves"
    assert make()._local.process != said[0].process


@pytest.mark.parametrize(
    ("state", "buckets", "leaves"),
    [("up", [1, 2], True), ("up", [1], False), ("down", [2], False)],
)
async def test_a_target_leaves_when_others_can_take_over(make, state, buckets, leaves):
    member = make()
    node = NodeEntry(id="t1", number=3, role="target", url="http://t1", advertise_url="http://t1", state=state)
    entries = tuple(BucketEntry(id=f"b{copies}", name=f"b{copies}", copies=copies) for copies in buckets)
    member._local.map = ClusterMap(cluster_id="c", version=2, nodes=(node,), buckets=entries)
    assert member.leaves is leaves


async def test_a_bucket_that_gets_more_copies_is_left_to_others_too(make):
    member = make()
    node = NodeEntry(id="t1", number=3, role="target", url="http://t1", advertise_url="http://t1", state="up")
    entry = BucketEntry(id="b", name="b", copies=1, written=2, wanted=2)
    member._local.map = ClusterMap(cluster_id="c", version=2, nodes=(node,), buckets=(entry,))
    assert member.leaves


async def test_a_target_that_leaves_has_no_lease_any_more(make, monkeypatch):
    """Not even while it says so, nor by the answer: the coordinator declares it down as soon as it hears."""
    member, said = make(), []
    disk = DiskEntry(id="d1", weight=1.0)
    node = NodeEntry(id="t1", number=3, role="target", url="http://t1", advertise_url="http://t1", state="up", disks=(disk,))
    member._local.map = ClusterMap(cluster_id="c", version=2, nodes=(node,))
    member._local.extend_lease(boot_s(), 60.0)
    assert member._local.is_leased

    async def call(method, url, kind, *, body, **rest):
        said.append((method, url, body.leaving, body.node_id, body.disks, member._local.is_leased))
        return Registered(node_number=7)

    monkeypatch.setattr(member._local.control, "call", call)
    await member.leave()
    assert said == [("POST", "http://127.0.0.1:1/v1/node/registration", True, "t1", (disk,), False)]
    assert not member._local.is_leased
    monkeypatch.setattr(membership, "LEAVE_S", 0.01)

    async def hang(*given, **rest):
        await asyncio.sleep(60)

    monkeypatch.setattr(member._local.control, "call", hang)
    async with asyncio.timeout(20):
        await member.leave()


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_target_that_stops_leaves_first(tmp_path, monkeypatch, leaves):
    """Before it waits for anything, and with no heartbeat after that, which would take it back. One that does not leave goes on
    with its heartbeats: uploads that run need its lease."""
    node = TargetNode(Settings(dir=str(tmp_path), disks=(str(tmp_path / "disk"),), port=0))
    happened = []

    async def leave():
        happened.append(("leave", node._heart.done()))

    async def stop_server():
        happened.append(("server", node._heart.done()))

    monkeypatch.setattr(Membership, "leaves", property(lambda self: leaves))
    monkeypatch.setattr(node._membership, "leave", leave)
    monkeypatch.setattr(node.server, "stop", stop_server)
    node._heart = asyncio.create_task(asyncio.sleep(60))
    await node.stop()
    assert happened == ([("leave", True), ("server", True)] if leaves else [("server", False)])
    assert node._heart.done()
