"""The proxy's view of the cluster: ready or not, owners up or down, answers of all targets."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from clocks import Clock
from memory_registry import MemoryRegistry, MemoryStore
from registering import bucket, said
from registry_conformance import end
from stepped import mark_down

from dfc.errors import BadName, BucketDeleting, BucketNotFound, Conflict, NoRegistry, Unavailable
from dfc.placement import map as map_module
from dfc.placement.map import BucketEntry, ClusterMap, DiskEntry
from dfc.proxy import cluster as cluster_module
from dfc.proxy.buckets import Buckets
from dfc.proxy.cluster import Cluster
from dfc.proxy.heartbeats import Heartbeats
from dfc.proxy.objects import Objects
from dfc.registry import changes
from dfc.registry.messages import CoordinatorReport, MapTaken
from dfc.wire import UNRANKED

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
        found = self.answers.get(url, MapTaken(ClusterMap.decode(bytes(body)).version) if kind is MapTaken else {})
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def control():
    return Control()


@pytest.fixture
def now():
    """The clock of heartbeats."""
    return Clock()


@pytest.fixture
async def make(control, now):
    """Makes a cluster of so many targets that have joined."""
    made = []

    async def build(joined: int, expected: int = 1, auto_create: bool = True, store: MemoryStore | None = None) -> Cluster:
        heartbeats = Heartbeats(wall_s=lambda: 1_700_000_000.0, clock_s=now)
        made.append(Cluster(MemoryRegistry(store or MemoryStore()), control, auto_create, expected, heartbeats))
        for number in range(joined):
            await made[-1].hear(said(f"t{number}", (f"d{number}",), url=f"http://t{number}"))
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
        cluster.primary(BUCKET, "x")
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
    names = {cluster.primary(BUCKET, str(number)).id: str(number) for number in range(50)}
    assert names.keys() == {"t0", "t1"}
    assert [node.id for node in cluster.live_targets()] == ["t0", "t1"]
    await mark_down(cluster, "t1")
    assert cluster.primary(BUCKET, names["t0"]).id == "t0"
    with pytest.raises(Unavailable) as caught:
        cluster.primary(BUCKET, names["t1"])
    assert int(caught.value.headers["Retry-After"]) > 0
    with pytest.raises(Unavailable):  # an answer without it would be short
        cluster.live_targets()
    assert cluster.any_target().id == "t0"
    assert cluster.is_ready()


async def test_with_copies_as_many_targets_may_be_down_as_leave_one_of_each_object(make):
    """With one more, an answer of those that are up may be short, which is no answer."""
    cluster = await make(joined=3)
    bucket, _ = await cluster.create_bucket("copied", 2, "fsync")
    one, _ = await cluster.create_bucket("single", 1, "fsync")
    assert [node.id for node in cluster.targets_of(bucket.id)] == ["t0", "t1", "t2"]
    for target in ("t1", "t2"):
        await mark_down(cluster, target)
        with pytest.raises(Unavailable):
            cluster.targets_of(one.id)
        if target == "t1":
            assert [node.id for node in cluster.targets_of(bucket.id)] == ["t0", "t2"]
    with pytest.raises(Unavailable, match="might be incomplete"):
        cluster.targets_of(bucket.id)


async def test_a_bucket_that_exists_is_found_again_while_targets_are_down(make, control):
    """With its counts if it has copies enough, and else without."""
    cluster = await make(joined=3)
    bucket, _ = await cluster.create_bucket("copied", 2, "fsync")
    await cluster.create_bucket("single", 1, "fsync")
    await mark_down(cluster, "t1")
    control.answers = {f"http://t{number}/v1/node/buckets": {bucket.id: (2, 20)} for number in (0, 2)}
    buckets = Buckets(cluster, None, None)  # type: ignore[arg-type]
    found, created = await buckets.create("copied", 2, "fsync")
    assert (found.objects > 0, created) == (True, False)
    found, created = await buckets.create("single", 1, "fsync")
    assert (found.objects, found.exact, created) == (0, False, False)


async def test_counts_are_exact_only_if_all_are_by_the_replicas_of_now(make, control):
    cluster = await make(joined=2)
    bucket, _ = await cluster.create_bucket("copied", 2, "fsync")
    buckets, counts = Buckets(cluster, None, None), {bucket.id: (2, 20)}  # type: ignore[arg-type]
    control.answers = {f"http://t{number}/v1/node/buckets": counts for number in (0, 1)}
    assert (await buckets.get("copied"))[1:] == (4, 40, True)
    control.answers["http://t1/v1/node/buckets"] = {**counts, UNRANKED: (1, 0)}
    assert not (await buckets.get("copied")).exact
    assert not (await buckets.all())[0].exact


async def test_counts_are_summed_over_all_targets(make, control):
    cluster = await make(joined=2)
    control.answers = {"http://t0/v1/node/buckets": {"a": (1, 10), "b": (2, 20)}, "http://t1/v1/node/buckets": {"b": (3, 30)}}
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
    cluster, other = await make(joined=1, store=store), await make(joined=1, store=store)
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
    await cluster.hear(said())
    version = cluster.map.version
    fuller = (DiskEntry(id="d1", weight=1.0, capacity=200, used=50, objects=7),)
    node = await cluster.hear(said(disks=fuller, map_version=version))
    assert (node.number, cluster.map.version) == (1, version)
    (disk,) = cluster.map.node("t1").disks
    assert (disk.capacity, disk.used, disk.objects) == (200, 50, 7)
    assert cluster.map.node("t1").last_heartbeat == "2023-11-14T22:13:20.000Z"
    await cluster.bucket_for_write("b")  # a new map has it as well
    assert cluster.map.node("t1").disks[0].used == 50


async def test_heartbeats_rebuild_no_index_of_the_map_and_ask_no_registry(make, monkeypatch):
    cluster = await make(joined=3)
    await cluster.bucket_for_write("b")
    built, changes = [], []
    monkeypatch.setattr(map_module, "layout_of", lambda disks: built.append(disks))
    change = cluster._registry.change
    monkeypatch.setattr(cluster._registry, "change", lambda each, **rest: (changes.append(each), change(each, **rest))[1])
    before = cluster.map
    for used in range(50):
        disk = DiskEntry(id="d1", weight=1.0, capacity=100, used=used, objects=used)
        await cluster.hear(said("t1", (disk,), url="http://t1"))
    assert (built, changes) == ([], [])
    assert cluster.map.version == before.version
    assert cluster.map.node("t1").disks[0].used == 49
    assert [cluster.map.owner(BUCKET, str(n)).disk.id for n in range(20)] == [
        before.owner(BUCKET, str(n)).disk.id for n in range(20)
    ]
    assert cluster.map.bucket("b") == before.bucket("b")
    assert before.node("t1").disks[0].used == 0  # a reader keeps the map that it took
    await cluster.hear(said("t1", url="http://other"))
    assert (len(built), len(changes)) == (1, 1)  # that is a change


async def test_who_is_none_of_this_cluster_is_refused(make, monkeypatch):
    cluster = await make(joined=1)
    version = cluster.map.version
    with pytest.raises(Conflict, match="belong to cluster other"):
        await cluster.hear(said("t0", cluster_id="other"))
    with pytest.raises(Conflict, match="is not a target: proxies are known by"):
        await cluster.hear(said("p2", (), role="proxy"))
    monkeypatch.setattr(changes, "NODE_NUMBER_MAX", 1)
    with pytest.raises(Conflict, match="no number"):
        await cluster.hear(said("t1", ("d1",)))
    assert cluster.map.version == version
    assert "t1" not in cluster.heard()


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
            store.swap(store.state, changes.create_bucket(bucket("new"))(store.state))
        return found

    monkeypatch.setattr(MemoryRegistry, "map", property(read))
    await cluster.hear(said("t0", ("d0",), url="http://t0"))
    readings = reading
    assert cluster.map.bucket("new") == store.state.map.bucket("new")
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
    await cluster.hear(said("t0", ("d0",), url="http://t0"))
    assert cluster.map.bucket("new") is not None


async def test_a_registry_that_is_an_old_copy_is_not_changed_and_denies_nothing(make):
    """A few changes would give it the version that a target knows, with other contents."""
    cluster = await make(joined=2)
    version = cluster.version()
    await cluster.hear(said("t0", ("d0",), url="http://t0", map_version=version + 2))
    before = cluster.map
    for changing in (
        lambda: cluster.create_bucket("b", 1, "fsync"),
        lambda: cluster.bucket_for_write("b"),
        lambda: cluster.hear(said("t9", ("d9",), url="http://t9")),
        cluster.newest,
    ):
        with pytest.raises(NoRegistry, match=f"has version {version} of the cluster map, and targets know {version + 2}"):
            await changing()
    assert cluster.map.version == before.version
    # That stays true, whatever is heard later, and whoever is the coordinator.
    await cluster.hear(said("t0", ("d0",), url="http://t0", map_version=version))
    for forgetting in (lambda: None, cluster.begin_to_lead):
        forgetting()
        cluster.take_report(CoordinatorReport(map=cluster.map, newest_version=0))
        with pytest.raises(NoRegistry):
            await cluster.create_bucket("b", 1, "fsync")


async def test_just_after_the_start_a_heartbeat_is_waited_for(make, monkeypatch):
    monkeypatch.setattr(cluster_module, "FIRST_BEAT_S", 0.3)
    store = MemoryStore()
    await (await make(joined=1, store=store)).create_bucket("known", 1, "fsync")
    cluster = await make(joined=0, store=store)
    cluster.begin()
    creating = asyncio.create_task(cluster.create_bucket("b", 1, "fsync"))
    await asyncio.sleep(0.1)
    assert not creating.done()
    await cluster.hear(said("t0", ("d0",), url="http://t0", map_version=cluster.version() + 1))
    with pytest.raises(NoRegistry, match="is an old copy"):
        await creating
    # Each that is up is waited for: the last one may know more.
    both = MemoryStore()
    await (await make(joined=2, store=both)).create_bucket("known", 1, "fsync")
    monkeypatch.setattr(cluster_module, "FIRST_BEAT_S", 30.0)
    cluster = await make(joined=0, store=both)
    cluster.begin()
    creating = asyncio.create_task(cluster.create_bucket("b", 1, "fsync"))
    await cluster.hear(said("t0", ("d0",), url="http://t0", map_version=cluster.version()))
    await asyncio.sleep(0.1)
    assert not creating.done()
    await cluster.hear(said("t1", ("d1",), url="http://t1", map_version=cluster.version() + 1))
    with pytest.raises(NoRegistry, match="is an old copy"):
        await asyncio.wait_for(creating, 10)
    monkeypatch.setattr(cluster_module, "FIRST_BEAT_S", 0.3)
    # Where none is up by an old map, any is waited for.
    down = await make(joined=0, store=both)
    down.begin()
    nodes = tuple(msgspec.structs.replace(node, state="down") for node in down.map.nodes)
    old = msgspec.structs.replace(down.map, version=down.version() + 1, nodes=nodes)
    await down._registry.change(lambda state: msgspec.structs.replace(state, map=old))
    creating = asyncio.create_task(down.create_bucket("b", 1, "fsync"))
    await asyncio.sleep(0.1)
    assert not creating.done()
    creating.cancel()
    # Or for what the coordinator has heard, if that is another proxy.
    follower = await make(joined=0, store=store)
    follower.begin()
    creating = asyncio.create_task(follower.create_bucket("b", 1, "fsync"))
    follower.take_report(CoordinatorReport(map=follower.map, newest_version=0))
    await asyncio.sleep(0.1)
    assert not creating.done(), "the coordinator has heard nothing yet"
    follower.take_report(CoordinatorReport(map=follower.map, newest_version=follower.version() + 1))
    with pytest.raises(NoRegistry, match="is an old copy"):
        await creating
    # A registry that is as new as what targets know is changed.
    calm = await make(joined=0, store=store)
    calm.begin()
    calm.take_report(CoordinatorReport(map=calm.map, newest_version=calm.version()))
    assert (await calm.create_bucket("b", 1, "fsync"))[1]
    # For ever, while nobody at all is heard: the first change would be one that others know with other contents.
    other = await make(joined=0, store=store)
    other.begin()
    with pytest.raises(NoRegistry, match="no target has been heard since"):
        await other.create_bucket("c", 1, "fsync")
    await other.hear(said("new", ("dn",), url="http://new"))
    assert (await other.create_bucket("c", 1, "fsync"))[1]


async def test_targets_of_another_cluster_are_told_of_for_a_while(make, now, caplog):
    cluster = await make(joined=1)
    for _ in range(2):
        with pytest.raises(Conflict):
            await cluster.hear(said("t7", ("d7",), cluster_id="other"))
    assert cluster.foreign() == {"t7": "other"}
    assert caplog.text.count("target t7 at http://t7:1 is refused: it is of cluster other") == 1
    now.seconds += 20
    assert cluster.foreign() == {}
