"""The proxy's view of the cluster: ready or not, owners up or down, answers of all targets."""

from __future__ import annotations

import asyncio

import pytest
from memory_registry import MemoryRegistry, MemoryStore
from registering import bucket, said
from registry_conformance import end

from dfc.errors import BadName, BucketDeleting, BucketNotFound, Conflict, Unavailable
from dfc.placement import map as map_module
from dfc.placement.map import BucketEntry, ClusterMap, DiskEntry
from dfc.proxy import cluster as cluster_module
from dfc.proxy.cluster import Cluster
from dfc.proxy.heartbeats import Heartbeats
from dfc.proxy.objects import Objects
from dfc.registry import changes
from dfc.registry.leases import LeaseLost

BUCKET = BucketEntry(id="b1", name="b")


class Control:
    """The control client: answers by URL, and what was sent."""

    def __init__(self) -> None:
        self.answers: dict[str, object] = {}
        self.calls: list[tuple[str, str]] = []
        self.bodies: list[object] = []

    async def call(self, method, url, kind, *, body=None, headers=None):
        self.calls.append((method, url))
        self.bodies.append(body)
        found = self.answers.get(url, {})
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def control():
    return Control()


class Clock:
    """The clocks of heartbeats, moved by hand."""

    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def now():
    return Clock()


@pytest.fixture
async def make(control, now):
    """Makes a cluster of so many targets that have joined."""
    made = []

    async def build(joined: int, expected: int = 1, auto_create: bool = True, store: MemoryStore | None = None) -> Cluster:
        heartbeats = Heartbeats(wall_s=lambda: 1_700_000_000.0, clock_s=now)
        made.append(Cluster(MemoryRegistry(store or MemoryStore()), control, auto_create, expected, heartbeats))
        for number in range(joined):
            await made[-1].register(said(f"t{number}", (f"d{number}",), url=f"http://t{number}"))
        return made[-1]

    yield build
    for cluster in made:
        await cluster.close()


@pytest.fixture
async def leadership(now):
    """That of a coordinator of whom nobody asks whether it is one."""
    store = MemoryStore()
    async with MemoryRegistry(store).elect("coordinator", "p1", 60) as lease:
        yield lease


async def test_before_the_targets_have_joined_nothing_is_placed(make):
    cluster = await make(joined=1, expected=2)
    assert not cluster.is_ready()
    with pytest.raises(Unavailable, match="1 of 2"):
        cluster.check_ready()
    with pytest.raises(Unavailable):
        await cluster.bucket_for_write("b")
    assert cluster.map.buckets == ()


async def test_no_owner_is_found_before_that_whoever_asks(make):
    waiting, ready = Objects(await make(joined=1, expected=2)), Objects(await make(joined=1))
    with pytest.raises(Unavailable, match="1 of 2"):
        waiting.when_ready()
    owners = ready.when_ready()
    with pytest.raises(BucketNotFound):
        owners.of("b", "x")
    assert (await owners.for_write("b", "x")).id == owners.of("b", "x").id == "t0"


@pytest.mark.parametrize("name", ["", "v1", "a/b", "a b", ".a", "ä", "x" * 64])
async def test_no_bucket_has_a_name_that_is_none_whoever_asks(make, name):
    cluster = await make(joined=1)
    with pytest.raises(BadName):
        await cluster.bucket_for_write(name)
    with pytest.raises(BadName):
        await cluster.create_bucket(name, 1, "fsync")
    assert cluster.map.buckets == ()


async def test_a_cluster_without_targets(make):
    cluster = await make(joined=0)
    with pytest.raises(Unavailable):
        cluster.owner(BUCKET, "x")
    with pytest.raises(Unavailable):
        cluster.live_targets()
    with pytest.raises(Unavailable):
        cluster.any_target()


async def test_buckets_for_writes(make):
    cluster = await make(joined=1)
    made = await cluster.bucket_for_write("b")
    assert await cluster.bucket_for_write("b") == made == cluster.bucket("b")
    with pytest.raises(BucketNotFound):
        cluster.bucket("c")
    await cluster.change_bucket("b", state="deleting")
    with pytest.raises(BucketDeleting):
        await cluster.bucket_for_write("b")
    with pytest.raises(BucketNotFound):
        await (await make(joined=1, auto_create=False)).bucket_for_write("b")


async def test_a_target_that_is_down(make):
    cluster = await make(joined=2)
    names = {cluster.owner(BUCKET, str(number)).node.id: str(number) for number in range(50)}
    assert names.keys() == {"t0", "t1"}
    assert [node.id for node in cluster.live_targets()] == ["t0", "t1"]
    assert await cluster.mark_silent_nodes(None, -1, 0) == ["t0", "t1"]
    await cluster.register(said("t0", ("d0",), url="http://t0"))
    assert cluster.owner(BUCKET, names["t0"]).node.id == "t0"
    with pytest.raises(Unavailable) as caught:
        cluster.owner(BUCKET, names["t1"])
    assert int(caught.value.headers["Retry-After"]) > 0
    with pytest.raises(Unavailable):  # an answer without it would be short
        cluster.live_targets()
    assert cluster.any_target().id == "t0"
    assert cluster.is_ready()


async def test_counts_are_summed_over_all_targets(make, control):
    cluster = await make(joined=2)
    control.answers = {
        "http://t0/v1/node/buckets": {"a": (1, 10), "b": (2, 20)},
        "http://t1/v1/node/buckets": {"b": (3, 30)},
    }
    assert await cluster.counts() == {"a": (1, 10), "b": (5, 50)}
    control.answers["http://t1/v1/node/buckets"] = Unavailable("gone")
    with pytest.raises(Unavailable):
        await cluster.counts()


async def pushed(cluster: Cluster) -> None:
    """Let the pusher see what is new, and end what it has begun."""
    for _ in range(5):
        await asyncio.sleep(0)
    await asyncio.gather(*cluster._pushes)


async def test_a_change_is_pushed_to_the_targets(make, control, leadership):
    cluster = await make(joined=2)
    duty = asyncio.create_task(cluster.push_maps(leadership))
    await pushed(cluster)
    assert control.calls == []
    await cluster.bucket_for_write("b")
    await pushed(cluster)
    assert sorted(control.calls) == [("POST", "http://t0/v1/node/map"), ("POST", "http://t1/v1/node/map")]
    first, second = control.bodies
    assert first is second  # encoded once
    assert ClusterMap.decode(bytes(first)) == cluster.map
    control.calls.clear()
    await cluster.bucket_for_write("b")
    await pushed(cluster)
    assert control.calls == []
    await end(duty)


async def test_what_another_proxy_changes_is_pushed_too(make, control, leadership):
    store = MemoryStore()
    cluster, other = await make(joined=1, store=store), await make(joined=0, store=store)
    duty = asyncio.create_task(cluster.push_maps(leadership))
    await pushed(cluster)
    await other.bucket_for_write("b")
    await pushed(cluster)
    assert control.calls == [("POST", "http://t0/v1/node/map")]
    assert cluster.bucket("b") == other.bucket("b")
    await end(duty)


async def test_a_target_that_hangs_holds_up_no_push_to_others_and_ends_with_the_duty(make, control, leadership):
    cluster = await make(joined=2)
    ended = []

    async def hang(method, url, kind, **rest):
        control.calls.append((method, url))
        if "t0" in url:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(url)

    control.call = hang
    duty = asyncio.create_task(cluster.push_maps(leadership))
    for name in ("a", "b"):
        await asyncio.sleep(0)
        await cluster.bucket_for_write(name)
        for _ in range(5):
            await asyncio.sleep(0)
    assert [url for _, url in control.calls if "t1" in url] == ["http://t1/v1/node/map"] * 2
    await end(duty)
    assert ended == ["http://t0/v1/node/map"] * 2
    assert not cluster._pushes


# --- heartbeats


async def test_heartbeats_change_the_use_of_disks_and_no_version(make):
    cluster = await make(joined=0)
    first = await cluster.register(said())
    assert first.map == cluster.map
    version = cluster.map.version
    fuller = (DiskEntry(id="d1", weight=1.0, capacity=200, used=50, objects=7),)
    again = await cluster.register(said(disks=fuller, map_version=version))
    assert (again.node_number, again.map, cluster.map.version) == (first.node_number, None, version)
    (disk,) = cluster.map.node("t1").disks
    assert (disk.capacity, disk.used, disk.objects) == (200, 50, 7)
    assert cluster.map.node("t1").last_heartbeat == "2023-11-14T22:13:20.000Z"
    late = await cluster.register(said(disks=fuller, map_version=version - 1))
    assert late.map == cluster.map
    await cluster.bucket_for_write("b")  # a new map has it as well
    assert cluster.map.node("t1").disks[0].used == 50


async def test_heartbeats_rebuild_no_index_of_the_map_and_ask_no_registry(make, monkeypatch):
    cluster = await make(joined=3)
    await cluster.bucket_for_write("b")
    built, changes = [], []
    monkeypatch.setattr(map_module, "Layout", lambda disks: built.append(disks))
    change = cluster._registry.change
    monkeypatch.setattr(cluster._registry, "change", lambda each, **rest: (changes.append(each), change(each, **rest))[1])
    before = cluster.map
    for used in range(50):
        disk = DiskEntry(id="d1", weight=1.0, capacity=100, used=used, objects=used)
        await cluster.register(said("t1", (disk,), url="http://t1"))
    assert (built, changes) == ([], [])
    assert cluster.map.version == before.version
    assert cluster.map.node("t1").disks[0].used == 49
    assert [cluster.map.owner(BUCKET, str(n)).disk.id for n in range(20)] == [
        before.owner(BUCKET, str(n)).disk.id for n in range(20)
    ]
    assert cluster.map.bucket("b") == before.bucket("b")
    assert before.node("t1").disks[0].used == 0  # a reader keeps the map that it took
    await cluster.register(said("t1", (DiskEntry(id="d1", weight=1.0, state="failed"),), url="http://t1"))
    assert (len(built), len(changes)) == (1, 1)  # that is a change


async def test_who_is_none_of_this_cluster_is_refused(make, monkeypatch):
    cluster = await make(joined=1)
    version = cluster.map.version
    with pytest.raises(Conflict, match="belong to cluster other"):
        await cluster.register(said("t0", cluster_id="other"))
    with pytest.raises(Conflict, match="this cluster has one proxy"):
        await cluster.register(said("p2", (), role="proxy"))
    monkeypatch.setattr(changes, "NODE_NUMBER_MAX", 1)
    with pytest.raises(Conflict, match="no number"):
        await cluster.register(said("t1", ("d1",)))
    assert cluster.map.version == version
    assert cluster._heartbeats.last("t1") is None


async def test_a_silent_target_is_marked_down_and_comes_back(make, now):
    cluster = await make(joined=2)
    version = cluster.map.version
    now.seconds += 3
    await cluster.register(said("t0", ("d0",), url="http://t0"))
    assert await cluster.mark_silent_nodes(None, 4, 0) == []
    now.seconds += 2
    assert await cluster.mark_silent_nodes(None, 4, now.seconds - 4) == []  # who marks has not listened for long enough
    assert await cluster.mark_silent_nodes(None, 4, 0) == ["t1"]
    assert await cluster.mark_silent_nodes(None, 4, 0) == []
    assert cluster.map.version == version + 1
    assert [node.state for node in cluster.map.nodes] == ["up", "down"]
    answer = await cluster.register(said("t1", ("d1",), url="http://t1", map_version=version))
    assert [node.state for node in cluster.map.nodes] == ["up", "up"]
    assert answer.map.version == cluster.map.version == version + 2


@pytest.mark.parametrize("reading", range(1, 5))
async def test_a_map_that_is_made_while_a_heartbeat_is_taken_hides_nothing(make, monkeypatch, reading):
    store = MemoryStore()
    cluster = await make(joined=1, store=store)
    readings = 0

    def read(_registry) -> ClusterMap:
        nonlocal readings
        readings += 1
        found = store.state.map
        if readings == reading:  # the registry's thread has stored another one just now
            store.swap(store.state, changes.mark_down(store.state.map.nodes)(store.state))
        return found

    monkeypatch.setattr(MemoryRegistry, "map", property(read))
    await cluster.register(said("t0", ("d0",), url="http://t0"))
    readings = reading
    assert cluster.map.node("t0").state == store.state.map.node("t0").state
    assert cluster.map.version == store.state.map.version


async def test_a_thread_that_reads_the_map_while_a_heartbeat_is_taken_hides_nothing(make, monkeypatch):
    store = MemoryStore()
    cluster = await make(joined=1, store=store)
    refresh = cluster._heartbeats.refresh

    def meanwhile(node):
        monkeypatch.undo()
        store.swap(store.state, changes.create_bucket(bucket("new"))(store.state))
        assert cluster.map.bucket("new") is not None  # as the plan of a job asks for it, in its thread
        return refresh(node)

    monkeypatch.setattr(cluster._heartbeats, "refresh", meanwhile)
    await cluster.register(said("t0", ("d0",), url="http://t0"))
    assert cluster.map.bucket("new") is not None


async def test_a_target_that_speaks_while_it_is_marked_is_up(make, now):
    cluster = await make(joined=2)
    now.seconds += 5
    registry = cluster._registry

    async def speak() -> None:
        registry.between = lambda: asyncio.sleep(0)
        await cluster.register(said("t1", ("d1",), url="http://t1"))

    registry.between = speak
    assert await cluster.mark_silent_nodes(None, 4, 0) == ["t0", "t1"]
    assert [node.state for node in cluster.map.nodes] == ["down", "up"]


@pytest.mark.parametrize("is_given_up", [False, True])
async def test_a_target_that_has_just_joined_is_not_silent(make, now, monkeypatch, is_given_up):
    cluster = await make(joined=0)
    change = cluster._registry.change
    joined = asyncio.Event()

    async def answered_late(each, **rest):
        state = await change(each, **rest)
        joined.set()
        await asyncio.sleep(0.01)
        return state

    monkeypatch.setattr(cluster._registry, "change", answered_late)
    now.seconds += 100  # since the coordinator was elected
    registering = asyncio.create_task(cluster.register(said()))
    await joined.wait()
    if is_given_up:
        await end(registering)
    assert await cluster.mark_silent_nodes(None, 4, 0) == []
    assert cluster.map.node("t1").state == "up"
    await end(registering)


async def test_who_leads_no_longer_marks_nobody_down(make, now):
    store = MemoryStore()
    cluster = await make(joined=1, store=store)
    now.seconds += 5
    async with MemoryRegistry(store).elect("coordinator", "p1", 60) as lease:
        pass
    with pytest.raises(LeaseLost):
        await cluster.mark_silent_nodes(lease, 4, 0)
    assert cluster.map.node("t0").state == "up"


async def test_a_coordinator_calls_nobody_silent_before_it_has_listened(make, now, monkeypatch):
    monkeypatch.setattr(cluster_module, "WATCH_S", 0.001)
    store = MemoryStore()
    cluster = await make(joined=1, store=store)
    now.seconds += 100  # another led meanwhile, or this process was stopped
    async with MemoryRegistry(store).elect("coordinator", "p1", 60) as lease:
        duty = asyncio.create_task(cluster.watch_nodes(lease, 4))
        await asyncio.sleep(0.05)
        assert cluster.map.node("t0").state == "up"
        now.seconds += 5
        async with asyncio.timeout(10):
            await store.changed.wait()
        assert cluster.map.node("t0").state == "down"
        await end(duty)


# --- leases


class Grants:
    """For how long a target may act, set by the test."""

    seconds = 8.0

    def __call__(self) -> float:
        return self.seconds


async def test_a_target_that_is_up_gets_a_lease_from_the_coordinator_only(make):
    cluster = await make(joined=0)
    grants = cluster._grant_s = Grants()
    answer = await cluster.register(said())
    assert (answer.lease_s, answer.why_no_lease) == (8.0, "")
    grants.seconds = 0.0
    answer = await cluster.register(said())
    assert answer.lease_s == 0
    assert "no proxy is the coordinator" in answer.why_no_lease
    grants.seconds = 8.0
    await cluster.bucket_for_write("b")
    late = await cluster.register(said("late", ("d9",)))
    assert cluster.map.node("late").state == "joining"
    assert (late.lease_s, late.why_no_lease) == (0.0, "")


async def test_a_target_whose_clock_is_far_ahead_gets_no_lease(make):
    cluster = await make(joined=0)
    cluster._grant_s = Grants()
    hour_us = 3600 * 10**6

    async def lease(name: str, ahead_us: int) -> tuple[float, str]:
        now_us = int(cluster._heartbeats._wall_s() * 1e6)
        answer = await cluster.register(said(name, (f"d{name}",), now_us=now_us + ahead_us))
        return answer.lease_s, answer.why_no_lease

    assert await lease("t1", hour_us - 10**6) == (8.0, "")
    assert await lease("t1", 2 * hour_us) == (0.0, "its clock is 2.0 h ahead of most nodes; set the clock that is wrong")
    assert await lease("t2", -9 * hour_us) == (8.0, ""), "a clock that is behind pushes nobody's"
    assert await lease("t1", 0) == (8.0, "")
    # Where most targets agree, it is the proxy's clock that is wrong.
    for name in ("t1", "t2", "t3"):
        await lease(name, 5 * hour_us)
    assert await lease("t1", 5 * hour_us) == (8.0, "")


async def test_a_target_that_is_being_marked_down_gets_no_lease(make, now, monkeypatch):
    cluster = await make(joined=2)
    cluster._grant_s = Grants()
    go_on, honest = asyncio.Event(), cluster._registry.change

    async def slow(change, **rest):
        await go_on.wait()
        return await honest(change, **rest)

    monkeypatch.setattr(cluster._registry, "change", slow)
    now.seconds += 100
    assert (await cluster.register(said("t1", ("d1",), url="http://t1"))).lease_s == 8.0
    marking = asyncio.create_task(cluster.mark_silent_nodes(None, 10, 0))
    await asyncio.sleep(0)
    late = await cluster.register(said("t0", ("d0",), url="http://t0"))
    assert late.lease_s == 0, "it has not heard yet that it is down"
    go_on.set()
    assert await marking == ["t0"]
    assert cluster.map.node("t0").state == "up", "it was heard meanwhile"
    assert (await cluster.register(said("t0", ("d0",), url="http://t0"))).lease_s == 8.0


async def test_a_target_with_a_newer_map_than_the_registry_gets_no_lease(make):
    cluster = await make(joined=1)
    cluster._grant_s = Grants()
    version = cluster.map.version
    answer = await cluster.register(said("t0", ("d0",), url="http://t0", map_version=version + 1))
    assert (answer.lease_s, answer.why_no_lease) == (
        0.0, f"its map has version {version + 1}, but the registry is at {version}",
    )  # fmt: skip
    assert (await cluster.register(said("t0", ("d0",), url="http://t0", map_version=version))).lease_s == 8.0
