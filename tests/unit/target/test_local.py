"""What a target decides by: its map, who owns what, buckets it does not know yet, and the guard of a commit."""

from __future__ import annotations

import asyncio
import gc
import threading
from types import SimpleNamespace

import msgspec
import pytest
from calls import raising
from copied import FakeDisk
from placements import node_entry

from dfc.errors import BucketDeleting, BucketNotFound, NoLease, ObjectNotFound, StorageFailed, Unavailable
from dfc.placement.map import BucketEntry, ClusterMap, DiskEntry
from dfc.registry.base import boot_s
from dfc.registry.messages import MapTaken
from dfc.target import local as local_module
from dfc.target import threads as threads_module
from dfc.target.disks import weight_of
from dfc.target.listing import OwnListings
from dfc.target.local import TargetState

GIB = 1 << 30


BUCKET = BucketEntry(id="b1", name="b")


MAP = ClusterMap(
    cluster_id="c",
    version=5,
    nodes=(node_entry("t1", "d1", "d2"), node_entry("t2", "d3")),
    buckets=(BUCKET, BucketEntry(id="b2", name="leaving", state="deleting")),
)


def changed(version, **fields):
    return msgspec.structs.replace(MAP, version=version, **fields)


class Registry:
    """The control client, answering with a map; `calls` has what was asked."""

    def __init__(self) -> None:
        self.map = MAP
        self.calls: list[tuple[str, str]] = []

    async def call(self, method, url, kind, **more):
        assert kind is ClusterMap
        self.calls.append((method, url))
        return self.map


@pytest.fixture
def registry():
    return Registry()


@pytest.fixture
def local(registry):
    made = TargetState(registry, "http://proxy:1/", 2)
    made.node_id = "t1"
    for name in ("d1", "d2"):
        made.add(FakeDisk(name))
    made.take_map(MAP)
    made.lease.extend(boot_s(), 600)
    yield made
    made.close()


def name_on(disk):
    """A name whose owner is this disk."""
    return next(str(number) for number in range(1000) if MAP.owner(BUCKET, str(number)).disk.id == disk)


# --- the map


def test_only_newer_maps_of_the_same_cluster_are_taken(local):
    assert not local.take_map(MAP)
    assert not local.take_map(changed(4))
    assert not local.take_map(changed(9, cluster_id="other"))
    assert local.take_map(changed(6))
    assert local.map.version == 6


@pytest.mark.parametrize("taken_before", [False, True])
async def test_a_map_is_decided_by_when_older_commits_are_done(local, taken_before):
    """Also if it came with a heartbeat's answer: the one who sends it now counts on that."""
    release = threading.Event()
    for disk in local.disks.values():
        disk.barrier = release.wait
    if taken_before:
        assert local.take_map(changed(6, step=2))
        assert local.decides_by.version < 6
    first, second = (asyncio.create_task(local.decide_by(changed(6, step=2))) for _ in range(2))
    done, _ = await asyncio.wait((first, second), timeout=0.1)
    assert not done
    release.set()
    assert await asyncio.gather(first, second) == [MapTaken(6, 2), MapTaken(6, 2)]
    assert local.decides_by == MapTaken(6, 2)
    for disk in local.disks.values():
        disk.barrier = None  # not called again
    assert await local.decide_by(changed(6)) == await local.decide_by(changed(5)) == MapTaken(6, 2)


def with_states(version, step, **states):
    """The map of this step, by which disks of t1 are "up" unless `states` says otherwise."""
    entries = tuple(DiskEntry(id=disk, weight=1.0, state=states.get(disk, "up")) for disk in ("d1", "d2"))
    first = msgspec.structs.replace(MAP.nodes[0], disks=entries)
    return changed(version, step=step, nodes=(first, MAP.nodes[1]))


async def state_of(local, disk):
    return {each.disk_id: each.state for each in await local.reports()}[disk]


@pytest.fixture
def hung(local):
    """Disk d1 hangs in a COMMIT until this is set; `hung.asked` has a 1 for each time that it was waited for."""
    release = threading.Event()
    release.asked = []

    def barrier():
        release.asked.append(1)
        release.wait()

    local.disks["d1"].barrier = barrier
    local.disks["d2"].barrier = lambda: None
    yield release
    release.set()


async def test_a_disk_that_has_failed_by_the_map_is_not_waited_for(local, hung):
    async with asyncio.timeout(2):
        assert await local.decide_by(with_states(6, 2, d1="failed")) == MapTaken(6, 2)
    assert local.decides_by == MapTaken(6, 2)


async def test_who_waits_for_a_disk_goes_on_when_it_has_failed(local, hung, monkeypatch):
    """However often it is asked, only one thread waits for the disk."""
    monkeypatch.setattr(local_module, "BARRIER_LOOK_S", 0.01)
    asked = [asyncio.create_task(local.decide_by(changed(6, step=2))) for _ in range(100)]
    done, _ = await asyncio.wait(asked, timeout=0.1)
    assert not done
    assert local.take_map(with_states(7, 3, d1="failed"))
    async with asyncio.timeout(2):
        await asyncio.gather(*asked)
    assert len(hung.asked) == 1


async def test_what_was_decided_while_a_disk_was_waited_for_is_waited_for_too(local, hung):
    first = asyncio.create_task(local.decide_by(changed(6, step=2)))
    await asyncio.sleep(0.01)
    second = asyncio.create_task(local.decide_by(changed(7, step=3)))
    await asyncio.sleep(0.01)
    assert len(hung.asked) == 1
    hung.set()
    assert (await first, await second) == (MapTaken(6, 2), MapTaken(7, 3))
    assert len(hung.asked) == 2, "the first may have come before what the second is about"


async def test_a_disk_whose_commits_are_refused_is_done_with_them(local):
    local.disks["d1"].barrier = raising(StorageFailed("disk d1 accepts no writes"))
    local.disks["d2"].barrier = lambda: None
    async with asyncio.timeout(2):
        assert await local.decide_by(changed(6, step=2)) == MapTaken(6, 2)


async def test_a_failed_disk_is_up_again_when_nothing_of_before_is_under_way(local, hung, monkeypatch):
    monkeypatch.setattr(local_module, "DISK_ANSWER_S", 0.05)
    await local.decide_by(with_states(6, 2, d1="failed"))
    async with asyncio.timeout(20):
        while await state_of(local, "d2") != "up":  # on a machine that is busy, it answers late as well
            pass
    assert await state_of(local, "d1") == "failed"
    monkeypatch.setattr(local_module, "DISK_ANSWER_S", 20)
    hung.set()
    assert await state_of(local, "d1") == "up"


async def test_a_disk_that_hangs_is_reported_as_failed_and_holds_up_the_target(local, hung, monkeypatch):
    waiting = asyncio.create_task(local.decide_by(changed(6, step=2)))
    await asyncio.sleep(0.01)
    assert (await state_of(local, "d1"), local.is_held_up) == ("up", False), "it may only be slow"
    monkeypatch.setattr(threads_module, "HUNG_S", 0.0)
    assert (await state_of(local, "d1"), await state_of(local, "d2"), local.is_held_up) == ("failed", "up", True)
    local.take_map(with_states(7, 3, d1="failed"))
    assert not local.is_held_up, "the step goes on without it"
    hung.set()
    await waiting


async def test_who_counts_for_a_deletion_waits_for_failed_disks_too(local, hung, monkeypatch):
    """A commit that is carried out late may put an object into a bucket that seems to be empty."""
    for disk in local.disks.values():
        disk.bucket_ids = list
    listings = OwnListings(local, SimpleNamespace(are_counted=lambda disk: True))
    await local.decide_by(with_states(6, 2, d1="failed"))
    assert await listings.counts() == {}
    checking = BucketEntry(id="b1", name="b", state="checking")
    await local.decide_by(msgspec.structs.replace(with_states(7, 2, d1="failed"), buckets=(checking,)))
    with monkeypatch.context() as patch:
        patch.setattr(local_module, "EACH_DISK_S", 0.05)
        with pytest.raises(StorageFailed):
            await listings.counts()
    hung.set()
    assert await listings.counts() == {}


def test_owners(local):
    assert local.owned_disk(BUCKET, name_on("d1")) is local.disks["d1"]
    assert local.owned_disk(BUCKET, name_on("d2")) is local.disks["d2"]
    assert local.owned_disk(BUCKET, name_on("d3")) is None
    del local.disks["d2"]
    with pytest.raises(Unavailable):  # it is this target's, and not there: 503, never 404
        local.owned_disk(BUCKET, name_on("d2"))
    local.map = ClusterMap(cluster_id="c", version=1)
    with pytest.raises(Unavailable):
        local.owned_disk(BUCKET, "x")


# --- buckets


async def test_a_known_bucket_asks_nobody(local, registry):
    assert (await local.bucket("b")).id == "b1"
    assert (await local.bucket("b", create=True)).id == "b1"
    assert registry.calls == []


async def test_a_bucket_that_only_the_registry_knows(local, registry):
    registry.map = changed(6, buckets=(*MAP.buckets, BucketEntry(id="b3", name="new")))
    assert (await local.bucket("new")).id == "b3"
    assert registry.calls == [("GET", "http://proxy:1/v1/cluster")]


async def test_a_bucket_that_nobody_knows_is_asked_for_now_and_then(local, registry):
    for _ in range(5):
        with pytest.raises(BucketNotFound):
            await local.bucket("none")
    assert len(registry.calls) == 1


async def test_a_write_has_the_bucket_made(local, registry):
    registry.map = changed(6, buckets=(*MAP.buckets, BucketEntry(id="b3", name="new")))
    assert (await local.bucket("new", create=True)).id == "b3"
    assert registry.calls == [("POST", "http://proxy:1/v1/node/buckets/new/ensure")]


async def test_a_bucket_that_is_being_deleted_takes_no_writes(local):
    assert (await local.bucket("leaving")).id == "b2"  # reads may go on until it is gone
    with pytest.raises(BucketDeleting):
        await local.bucket("leaving", create=True)


def test_the_guard_decides_by_the_map_of_the_commit(local):
    guard = local.commit_guard(MAP.bucket("b"), name_on("d1"), local.disks["d1"])
    guard()
    other, deleting = BucketEntry(id="other", name="b"), BucketEntry(id="b1", name="b", state="deleting")
    for version, buckets in enumerate(((), (other,), (deleting,)), 10):
        local.take_map(changed(version, buckets=buckets))
        with pytest.raises(BucketDeleting):
            guard()
    local.take_map(changed(20))
    guard()
    local.take_map(changed(21, nodes=(node_entry("t2", "d3"),)))
    with pytest.raises(Unavailable):
        guard()


def test_what_has_one_copy_is_not_committed_once_the_bucket_has_more(local):
    """Decided when the upload began; the other copies would never be made."""
    guard = local.commit_guard(MAP.bucket("b"), name_on("d1"), local.disks["d1"], alone=True)
    guard()
    local.take_map(changed(6, buckets=(BucketEntry(id="b1", name="b", copies=1, written=2, wanted=2),)))
    with pytest.raises(Unavailable, match="more copies"):
        guard()


# --- the lease


def test_the_guard_refuses_without_a_lease_before_anything_else(local):
    guard = local.commit_guard(MAP.bucket("b"), name_on("d1"), local.disks["d1"])
    local.lease.end()
    with pytest.raises(NoLease):
        guard()
    local.take_map(changed(6, buckets=()))
    with pytest.raises(NoLease):  # the map may be an old one
        guard()
    local.lease.extend(boot_s(), 60)
    with pytest.raises(BucketDeleting):
        guard()


def test_nothing_is_denied_without_a_lease(local):
    with pytest.raises(ObjectNotFound), local.certain():
        raise ObjectNotFound("none")
    local.lease.end()
    with pytest.raises(NoLease), local.certain():
        raise ObjectNotFound("none")
    with pytest.raises(BucketDeleting), local.certain():
        raise BucketDeleting("said by the map")


def test_the_reason_of_the_coordinator_is_given(local):
    local.lease.end()
    local.why_no_lease = "its clock is 2.0 h ahead"
    with pytest.raises(NoLease, match=r"2\.0 h ahead"):
        local.check_leased()


# --- threads


async def test_a_blocking_iterator_is_followed_to_its_end(local):
    threads = local.threads(local.disks["d1"])
    assert [piece async for piece in threads.iterate(iter([b"a", b"b"]))] == [b"a", b"b"]
    assert await threads.read(lambda left, right: left + right, 1, right=2) == 3
    assert await local.call(max, 1, 2) == 2
    assert await local.of_each(lambda disk: disk.id) == ["d1", "d2"]


@pytest.mark.parametrize(
    ("capacity", "weight"),
    [(0, 0.01), (1 << 20, 0.01), (GIB, 1.0), (123 * GIB, 120.0), (126 * GIB, 130.0), (8123 * GIB, 8100.0)],
)
def test_weights_have_two_digits_so_that_equal_disks_weigh_the_same(capacity, weight):
    assert weight_of(capacity) == weight


class AwayRegistry(Registry):
    """A registry that can be away, and holds its answer back until `release`."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.asked = asyncio.Semaphore(0)
        self.release = asyncio.Event()
        self.release.set()

    async def call(self, method, url, kind, **more):
        self.calls.append((method, url))
        self.asked.release()
        await self.release.wait()
        if self.away:
            raise Unavailable("the registry cannot be reached")
        return self.map


@pytest.fixture
async def away(local):
    local.control = AwayRegistry()
    return local.control


async def test_an_unknown_bucket_is_unavailable_until_the_registry_has_answered(local, away):
    away.away = True
    for _ in range(3):
        with pytest.raises(Unavailable):
            await local.bucket("new")
    assert len(away.calls) == 3
    away.away = False
    with pytest.raises(BucketNotFound):
        await local.bucket("new")
    away.away = True
    with pytest.raises(BucketNotFound):  # the answer of a moment ago still counts
        await local.bucket("new")
    assert len(away.calls) == 4


async def test_who_asks_at_a_time_shares_one_request(local, away):
    away.release.clear()
    asking = [asyncio.create_task(local.bucket("new")) for _ in range(10)]
    await away.asked.acquire()
    asking[0].cancel()  # the first, whose question began the request
    with pytest.raises(asyncio.CancelledError):
        await asking[0]
    away.map = changed(6, buckets=(BucketEntry(id="b3", name="new"),))
    away.release.set()
    found = await asyncio.gather(*asking[1:])
    assert [bucket.id for bucket in found] == ["b3"] * 9
    assert len(away.calls) == 1


async def test_all_who_share_a_request_hear_that_it_failed(local, away):
    away.away = True
    away.release.clear()
    asking = [asyncio.create_task(local.bucket("new")) for _ in range(3)]
    await away.asked.acquire()
    away.release.set()
    assert [type(error) for error in await asyncio.gather(*asking, return_exceptions=True)] == [Unavailable] * 3
    assert len(away.calls) == 1


async def test_a_question_at_once_takes_no_answer_that_may_be_older(local, away):
    away.release.clear()
    first = asyncio.create_task(local.bucket("new"))
    await away.asked.acquire()
    second = asyncio.create_task(local.refresh_map(at_once=True))
    await away.asked.acquire()
    away.release.set()
    await second
    with pytest.raises(BucketNotFound):
        await first


async def test_a_request_whose_askers_have_all_gone_leaves_no_error_behind(local, away, caplog):
    away.away = True
    away.release.clear()
    asking = asyncio.create_task(local.bucket("new"))
    await away.asked.acquire()
    asking.cancel()
    away.release.set()
    await asyncio.wait((local._refreshing,))
    local._refreshing = None
    gc.collect()
    assert "never retrieved" not in caplog.text
