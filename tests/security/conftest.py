"""Fixtures of the attacks: clusters whose deadlines are short, and a census that every test must leave as it found it."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from harness import Cluster, owner_of, wait_for
from security.census import Census
from security.wire import Reply, ask

from dfc.limits import BATCH_THREADS, DISK_COPY_THREADS, DISK_READ_THREADS, DISK_WRITE_THREADS, NODE_THREADS
from dfc.placement.map import ClusterMap

MIB = 1 << 20
GRACE_S = 2.0
MIN_RATE_BYTES_PER_S = 10_000
HEADER_TIMEOUT_S = 2.0
READ_STALL_S = 5.0
TRANSFER_THREADS = 4
# Of the one disk: reads, writes, copies, and bytes each way; then those of the node, of batches, and single ones.
POOL_THREADS = (
    DISK_READ_THREADS + DISK_WRITE_THREADS + DISK_COPY_THREADS + 3 * TRANSFER_THREADS + NODE_THREADS + BATCH_THREADS + 4
)
CONNECTIONS_MAX = 50
TOKEN = "sesame-0123456789"
RIGHT: dict[str, str | bytes] = {"Authorization": f"Bearer {TOKEN}"}
OBJECT_SIZE_MAX = 20 * MIB
BIG = 16 * MIB  # far more than the kernel's socket buffers hold
HASTY = {
    "DFC_BODY_GRACE_S": str(GRACE_S),
    "DFC_BODY_MIN_RATE_BYTES_PER_S": str(MIN_RATE_BYTES_PER_S),
    "DFC_HEADER_TIMEOUT_S": str(HEADER_TIMEOUT_S),
    "DFC_READ_STALL_TIMEOUT_S": str(READ_STALL_S),
    "DFC_TRANSFER_THREADS": str(TRANSFER_THREADS),
    "DFC_OBJECT_SIZE_MAX_BYTES": str(OBJECT_SIZE_MAX),
    "DFC_DISK_ERROR_BUDGET": "1000",  # some tests damage files
}


@dataclass
class Nodes:
    """A running cluster as an attacker sees it, and the places where it would show."""

    cluster: Cluster
    map: ClusterMap
    census: Census
    headers: dict[str, str | bytes]

    @property
    def proxy(self) -> str:
        return self.cluster.url

    def owner(self, name: str, bucket: str = "b") -> str:
        """The URL of the target that holds an object."""
        return owner_of(self.map, bucket, name).node.url

    def other(self, name: str, bucket: str = "b") -> str:
        """The URL of a target that does not: it relays to the proxy, which relays to the owner."""
        owner = self.owner(name, bucket)
        return next(node.url for node in self.map.targets() if node.url != owner)

    def url(self, via: str, name: str, bucket: str = "b") -> str:
        """`via`: "owner", "proxy" or "other"."""
        return self.proxy if via == "proxy" else getattr(self, via)(name, bucket)

    def pid(self, via: str, name: str) -> int:
        """The process behind `url(via, name)`."""
        children = self.cluster.children()
        if via == "proxy":
            return children["proxy"]
        port = self.url(via, name).rpartition(":")[2]
        for child, pid in children.items():
            ready = (self.cluster.directory / "ports.json").read_text()
            if f'"{child}": {port}' in ready:
                return pid
        raise AssertionError(f"no child listens on {port}")

    def put(self, name: str, body: bytes, bucket: str = "b") -> Reply:
        """Store an object at its owner."""
        reply = ask(self.owner(name, bucket), "PUT", f"/{bucket}/{name}", self.headers, body)
        assert reply.status in (200, 201), reply
        return reply

    def get(self, name: str, bucket: str = "b") -> Reply:
        return ask(self.owner(name, bucket), "GET", f"/{bucket}/{name}")


def prepare(cluster: Cluster, headers: dict[str, str | bytes] | None = None, *, pool_threads: int) -> Nodes:
    """Warm a cluster up: a bucket, objects, connections between its nodes. What it holds then is the baseline."""
    headers = headers or {}
    census = Census(cluster, pool_threads)
    assert ask(cluster.url, "PUT", "/v1/buckets/b", headers, b"{}").status == 201

    def latest() -> ClusterMap | None:
        maps = [ClusterMap.decode(ask(url, "GET", "/v1/cluster").body) for url in (cluster.url, *cluster.target_urls())]
        return maps[0] if all(found.bucket("b") for found in maps) else None

    nodes = Nodes(cluster, wait_for(latest, "the bucket at every node"), census, headers)
    for target in nodes.map.targets():
        name = next(name for name in (f"warm-{n}" for n in range(100)) if nodes.owner(name) == target.url)
        nodes.put(name, os.urandom(MIB))
        assert len(ask(cluster.url, "GET", f"/b/{name}").body) == MIB
    assert ask(cluster.url, "GET", "/b/").status == 200
    assert ask(cluster.url, "GET", "/v1/buckets").status == 200
    census.set_base()
    return nodes


def assert_nothing_went_wrong(nodes: Nodes) -> None:
    """No attack has met an error that nobody expected."""
    for log in (nodes.cluster.directory / "logs").glob("*.log"):
        for line in log.read_text().splitlines():
            assert '"traceback"' not in line, f"{log.name}: {json.loads(line)}"


@pytest.fixture(scope="session")
def hasty(start_shared_cluster: Callable[..., Cluster]) -> Iterator[Nodes]:
    """Two targets with one disk each, short deadlines, few threads, no token."""
    nodes = prepare(start_shared_cluster(targets=2, disks=1, environment=HASTY), pool_threads=POOL_THREADS)
    yield nodes
    assert_nothing_went_wrong(nodes)


@pytest.fixture(scope="session")
def strict(start_shared_cluster: Callable[..., Cluster]) -> Iterator[Nodes]:
    """The same with a token, few connections a node, and time for those that are idle."""
    environment = {**HASTY, "DFC_TOKEN": TOKEN, "DFC_CONNECTIONS_MAX": str(CONNECTIONS_MAX), "DFC_HEADER_TIMEOUT_S": "60"}
    nodes = prepare(start_shared_cluster(targets=2, disks=1, environment=environment), RIGHT, pool_threads=POOL_THREADS)
    yield nodes
    assert_nothing_went_wrong(nodes)


@pytest.fixture
def nodes(hasty: Nodes) -> Iterator[Nodes]:
    """The shared cluster; after the test nothing may be open that was not open before."""
    spare = hasty.census.spare
    yield hasty
    hasty.census.assert_settled()
    if hasty.census.spare != spare:  # the test needed more connections between nodes, which the pools keep for a while
        hasty.census.set_base()
        hasty.census.spare = spare


@pytest.fixture
def unchanged(nodes: Nodes) -> Iterator[Nodes]:
    """Like `nodes`, and after the test the disks hold exactly the files that they held before."""
    before = nodes.census.kept()
    yield nodes
    found: list[Any] = []

    def same() -> bool:
        found[:] = [nodes.census.stored() ^ before]
        return not found[0]

    try:
        wait_for(same, "the disks to be as before")
    except AssertionError as error:
        raise AssertionError(f"{error}: {found[0]}") from None


@pytest.fixture
def name() -> str:
    """An object name that no other test uses."""
    return f"o-{uuid.uuid4().hex[:12]}"
