"""The proxy's view of the cluster: ready or not, owners up or down, answers of all targets, and pages for browsers."""

from __future__ import annotations

import pytest

from dfc.errors import BucketDeleting, BucketNotFound, Unavailable
from dfc.pages import ListedObject
from dfc.placement.map import BucketEntry, ClusterMap, DiskEntry
from dfc.proxy.cluster import Cluster
from dfc.proxy.html import bucket_list, human_bytes, object_list
from dfc.registry.embedded import EmbeddedRegistry, Registration

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


@pytest.fixture
async def make(tmp_path, control):
    """Makes a cluster of so many targets that have joined."""
    made = []

    def build(joined: int, expected: int = 1, auto_create: bool = True) -> Cluster:
        registry = EmbeddedRegistry(str(tmp_path / str(len(made))))
        for number in range(joined):
            registry.register(
                Registration(
                    node_id=f"t{number}",
                    role="target",
                    url=f"http://t{number}",
                    advertise_url=f"http://t{number}.example",
                    cluster_id=registry.map.cluster_id,
                    disks=(DiskEntry(id=f"d{number}", weight=1.0),),
                )
            )
        made.append(Cluster(registry, control, auto_create, expected))
        return made[-1]

    yield build
    for cluster in made:
        await cluster.close()


async def test_before_the_targets_have_joined_nothing_is_placed(make):
    cluster = make(joined=1, expected=2)
    assert not cluster.is_ready()
    with pytest.raises(Unavailable, match="1 of 2"):
        cluster.check_ready()
    with pytest.raises(Unavailable):
        await cluster.bucket_for_write("b")
    assert cluster.map.buckets == ()


def test_a_cluster_without_targets(make):
    cluster = make(joined=0)
    with pytest.raises(Unavailable):
        cluster.owner(BUCKET, "x")
    with pytest.raises(Unavailable):
        cluster.live_targets()
    with pytest.raises(Unavailable):
        cluster.any_target()


async def test_buckets_for_writes(make):
    cluster = make(joined=1)
    made = await cluster.bucket_for_write("b")
    assert await cluster.bucket_for_write("b") == made == cluster.bucket("b")
    with pytest.raises(BucketNotFound):
        cluster.bucket("c")
    await cluster.change(cluster.registry.change_bucket, "b", state="deleting")
    with pytest.raises(BucketDeleting):
        await cluster.bucket_for_write("b")
    with pytest.raises(BucketNotFound):
        await make(joined=1, auto_create=False).bucket_for_write("b")


async def test_a_target_that_is_down(make):
    cluster = make(joined=2)
    names = {cluster.owner(BUCKET, str(number)).node.id: str(number) for number in range(50)}
    assert names.keys() == {"t0", "t1"}
    assert [node.id for node in cluster.live_targets()] == ["t0", "t1"]
    await cluster.change(cluster.registry.mark_silent_nodes, -1)
    cluster.registry.register(
        Registration(
            node_id="t0",
            role="target",
            url="http://t0",
            advertise_url="http://t0.example",
            cluster_id=cluster.map.cluster_id,
            disks=(DiskEntry(id="d0", weight=1.0),),
        )
    )
    assert cluster.owner(BUCKET, names["t0"]).node.id == "t0"
    with pytest.raises(Unavailable) as caught:
        cluster.owner(BUCKET, names["t1"])
    assert int(caught.value.headers["Retry-After"]) > 0
    with pytest.raises(Unavailable):  # an answer without it would be short
        cluster.live_targets()
    assert cluster.any_target().id == "t0"
    assert cluster.is_ready()


async def test_counts_are_summed_over_all_targets(make, control):
    cluster = make(joined=2)
    control.answers = {
        "http://t0/v1/node/buckets": {"a": (1, 10), "b": (2, 20)},
        "http://t1/v1/node/buckets": {"b": (3, 30)},
    }
    assert await cluster.counts() == {"a": (1, 10), "b": (5, 50)}
    control.answers["http://t1/v1/node/buckets"] = Unavailable("gone")
    with pytest.raises(Unavailable):
        await cluster.counts()


async def test_a_change_is_pushed_to_the_targets(make, control):
    cluster = make(joined=2)
    await cluster.bucket_for_write("b")
    while cluster._pushes:
        await next(iter(cluster._pushes))
    assert sorted(control.calls) == [("POST", "http://t0/v1/node/map"), ("POST", "http://t1/v1/node/map")]
    first, second = control.bodies
    assert first is second  # encoded once
    assert ClusterMap.decode(bytes(first)) == cluster.map
    control.calls.clear()
    await cluster.bucket_for_write("b")
    assert control.calls == []


# --- pages for browsers


def test_every_name_is_escaped():
    hostile = '<b onload="x">&\''
    entry = ListedObject(hostile, 1536, "e", "2023-11-14T22:13:20.000Z", 7, 8)
    for page in (
        object_list("b", [f"{hostile}/"], [entry], f"/b/?token={hostile}"),
        bucket_list([(hostile, 1, 2)]),
    ):
        assert "<b " not in page
        assert 'onload="' not in page.replace("&quot;", "")
        assert "&lt;b" in page
    assert "1.5 KiB" in object_list("b", [], [entry], None)
    assert "next page" not in object_list("b", [], [entry], None)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (1 << 52, "4096.0 TiB")]
)
def test_human_bytes(size, text):
    assert human_bytes(size) == text
