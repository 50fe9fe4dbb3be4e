"""What a worker reads of shards with two copies: from any target that has one, on from where another broke off."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_node import WAYS, FakeCopies, failing, two_copies_of

from dfc.checksum import checksum_of
from dfc.engine.base import WorkerSettings
from dfc.engine.worker.nodes import Nodes
from dfc.engine.worker.reading import OpenShards, Origin, RemoteSource, Throttle
from dfc.errors import Unavailable
from dfc.http.retry import RetryPolicy
from dfc.jobs.store import InputChanged
from dfc.jobs.tasks import InputShard

BODY = random.Random(7).randbytes(20_000_000)


@pytest.fixture
def copies() -> Iterator[FakeCopies]:
    yield from two_copies_of(BODY)


@pytest.fixture
def nodes(copies: FakeCopies) -> Iterator[Nodes]:
    made = Nodes(WorkerSettings(proxy_url=copies.url))
    made.policy = RetryPolicy(retries=2, first_delay_s=0.01)
    yield made
    made.close()


def source_of(nodes: Nodes) -> RemoteSource:
    path, batched = "/v1/objects/b/x.tar", ("b", "x.tar")
    origin = Origin("b/x.tar", lambda last: nodes.sources("b", "x.tar", last), path, checksum_of(BODY), batched)
    return RemoteSource(nodes, origin, len(BODY), Throttle(0))


MORE_WAYS = WAYS | {"cut": failing(cut_after=100_000)}


@pytest.mark.parametrize("way", MORE_WAYS)
def test_ranges_and_streams_come_from_the_other_copy(copies: FakeCopies, nodes: Nodes, way: str) -> None:
    first, second = copies.readers("x.tar")
    source = source_of(nodes)
    buffer = bytearray(1_000_000)
    source.read_into(5, memoryview(buffer))
    assert buffer == BODY[5:1_000_005]
    assert second.log == []
    MORE_WAYS[way](first, "GET")
    source.read_into(7, memoryview(buffer))
    assert buffer == BODY[7:1_000_007]
    with source.open() as stream:
        assert stream.read() == BODY
    assert second.requests("GET", "objects")


@pytest.mark.parametrize("way", MORE_WAYS)
def test_many_ranges_at_once_too(copies: FakeCopies, nodes: Nodes, way: str) -> None:
    first, second = copies.readers("x.tar")
    MORE_WAYS[way](first, "POST")
    ranges = [(at, 10_000) for at in range(0, 3_000_000, 30_000)]
    buffer = bytearray(10_000 * len(ranges))
    source_of(nodes).read_ranges(ranges, memoryview(buffer))
    assert buffer == b"".join(BODY[at : at + size] for at, size in ranges)
    assert len(second.requests("POST", "/v1/node/batch")) == 1


def test_a_stream_goes_on_though_its_node_dies(copies: FakeCopies, nodes: Nodes) -> None:
    first, second = copies.readers("x.tar")
    with source_of(nodes).open() as stream:
        begin = stream.read(2_000_000)
        first.kill()
        assert begin + stream.read() == BODY
    assert len(second.requests("GET", "objects")) == 1


def test_another_version_is_an_error(copies: FakeCopies, nodes: Nodes) -> None:
    first, second = copies.readers("x.tar")
    second.objects = {("b", "x.tar"): BODY[::-1]}
    first.kill()
    with pytest.raises(InputChanged):
        source_of(nodes).read_into(0, memoryview(bytearray(10)))


def test_one_copy_is_asked_of_its_owner_alone(copies: FakeCopies, nodes: Nodes) -> None:
    copies.proxy.copies = 1
    (owner,) = copies.readers("x.tar")
    for _ in range(3):
        owner.fail("GET", status=503)
    with pytest.raises(Unavailable):
        source_of(nodes).read_into(0, memoryview(bytearray(10)))
    assert len(owner.log) == 3
    assert all(node is owner or not node.log for node in copies.targets)


def test_a_file_of_the_other_copy_is_opened(copies: FakeCopies, nodes: Nodes, tmp_path: Path) -> None:
    first, second = copies.readers("x.tar")
    located = {"path": str(tmp_path / "not here"), "size": len(BODY), "version": "1"}
    for node in (first, second):
        node.replies["/v1/node/locate"] = json.dumps(located).encode()
    shards = OpenShards(nodes)
    ids = {f"node-{number}": node for number, node in enumerate(copies.proxy.nodes)}
    near = next(name for name, node in ids.items() if node is first)
    shard = InputShard.unread("b", "x.tar", "1", checksum_of(BODY), len(BODY), near)
    first.kill()
    for _ in range(2):
        assert shards.file(shard) is None  # it is on another machine, and that is asked once
    assert len(second.requests("GET", "/v1/node/locate")) == 1
    shards.close()


def test_a_target_that_has_moved_the_object_on_is_tried_again(copies: FakeCopies, nodes: Nodes) -> None:
    """It passes the request on to a proxy, and that redirects: the map of this worker is too old."""
    url = f"{copies.targets[0].url}/v1/objects/b/x.tar"
    copies.targets[0].fail("GET", status=307, headers={"Location": "http://t9:1/x"})
    with pytest.raises(Unavailable, match="another target by now"):
        nodes.get(url)
    nodes.get(url).close()
