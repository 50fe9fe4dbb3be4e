"""Whom a worker asks: the owner by the map, which is fetched anew where it lacks the bucket."""

from __future__ import annotations

import msgspec
import pytest
from doors import BlackHole, Knocks, NoDoor
from fake_node import FakeNode

from dfc.engine.base import WorkerSettings
from dfc.engine.worker.nodes import Nodes
from dfc.engine.worker.store import Workshop
from dfc.errors import BucketNotFound, Unavailable
from dfc.jobs.tasks import Task
from dfc.placement.map import BucketEntry, ClusterMap, DiskEntry, NodeEntry
from dfc.placement.mapped import readers_of, replica_of

TARGET = NodeEntry(
    id="t1", number=1, role="target", url="http://t1:1", advertise_url="", state="up", disks=(DiskEntry(id="d1", weight=1.0),)
)
EMPTY = ClusterMap(cluster_id="c", version=1, nodes=(TARGET,))
KNOWN = msgspec.structs.replace(EMPTY, version=2, buckets=(BucketEntry(id="b1", name="b"),))
DOWN = msgspec.structs.replace(KNOWN, version=3, nodes=(msgspec.structs.replace(TARGET, state="down"),))


class Asked:
    """What a node answers, in place of a connection; `maps` are those that it gives one after the other."""

    def __init__(self, *maps: ClusterMap) -> None:
        self.maps = list(maps)

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read_all(self, _limit: int) -> bytes:
        return self.maps.pop(0).encode()


def nodes_that_see(monkeypatch: pytest.MonkeyPatch, *maps: ClusterMap) -> tuple[Nodes, Asked]:
    nodes, asked = Nodes(WorkerSettings(proxy_url="http://proxy:1", token="")), Asked(*maps)
    monkeypatch.setattr(nodes, "_request", lambda method, url, headers, **_: asked)
    return nodes, asked


def test_a_bucket_that_is_younger_than_the_map_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, asked = nodes_that_see(monkeypatch, EMPTY, KNOWN)
    assert nodes.owner("b", "x").id == "t1"
    assert nodes.owner("b", "y").id == "t1"
    assert asked.maps == []


def test_a_bucket_that_is_not_there_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, asked = nodes_that_see(monkeypatch, EMPTY, EMPTY, KNOWN)
    with pytest.raises(BucketNotFound, match="'b'"):
        nodes.owner("b", "x")
    assert len(asked.maps) == 1


def test_a_map_from_before_the_task_is_not_gone_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker keeps its map from one job to the next, and objects may have been moved in between."""
    workshop = Workshop(WorkerSettings(proxy_url="http://proxy:1", token=""))
    nodes, asked = workshop.nodes, Asked(EMPTY, KNOWN, DOWN)
    monkeypatch.setattr(nodes, "_request", lambda method, url, headers, **_: asked)
    assert nodes.map().version == 1
    task = Task("job", "stats.count", 0, "", b"", output_bucket="b", output_bucket_id="b1")
    for version, known, left in ((0, 1, 2), (1, 1, 2), (2, 2, 1), (1, 2, 1)):
        with workshop.store(msgspec.structs.replace(task, map_version=version)):
            assert (nodes.version, len(asked.maps)) == (known, left)
    # After a failure that may pass, the next try goes by a new one in any case.
    with pytest.raises(Unavailable), workshop.store(task):
        raise Unavailable("it is on another target by now")
    assert nodes.map().version == 3


def test_an_owner_that_is_down_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, _ = nodes_that_see(monkeypatch, DOWN)
    with pytest.raises(Unavailable, match="b/x"):
        nodes.owner("b", "x")


def test_of_several_addresses_of_the_proxy_a_dead_one_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    knocks = Knocks(monkeypatch)
    proxy = FakeNode()
    try:
        with BlackHole() as hole, NoDoor() as dead:
            settings = WorkerSettings(proxy_url=f"{hole.url},{dead.url},{proxy.url}")
            for _ in range(2):  # tasks of one worker
                nodes = Nodes(settings)
                assert nodes.map().cluster_id == "c"
                nodes.ask_proxy("/v1/health")
                nodes.close()
            assert (knocks.at(hole), knocks.at(dead)) == (1, 1)
        assert len(proxy.requests("GET", "/v1/health")) == 2
    finally:
        proxy.stop()


def test_what_is_staged_is_not_asked_of_who_is_read_in_place_of_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """That one would say that it is not there, and the job would fail."""
    others = [
        msgspec.structs.replace(TARGET, id=f"t{k}", number=k, url=f"http://t{k}:1", disks=(DiskEntry(id=f"d{k}", weight=1.0),))
        for k in (1, 2, 3)
    ]
    buckets = (BucketEntry(id="b2", name="two", copies=2),)
    calm = msgspec.structs.replace(EMPTY, version=2, nodes=tuple(others), buckets=buckets)
    replica = replica_of(calm, "b2", "run")
    down = tuple(msgspec.structs.replace(node, state="down") if node.id == replica.id else node for node in others)
    away = msgspec.structs.replace(calm, version=3, nodes=down)
    assert readers_of(away, "b2", "run"), "it could be read elsewhere"
    task = Task("job", "stats.count", 0, "", b"", output_bucket="two", output_bucket_id="b2")
    nodes, _ = nodes_that_see(monkeypatch, calm, away)
    assert nodes.output_owner(task, "run").id == replica.id
    nodes.refresh()
    with pytest.raises(Unavailable):
        nodes.output_owner(task, "run")
