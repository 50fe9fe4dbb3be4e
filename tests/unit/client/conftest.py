"""Fixtures: a cluster of fake nodes, and a client that does not wait long between its tries."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from fake_node import FakeCluster, FakeNode, fake_cluster, quicken

from dfc.client import Client


@pytest.fixture
def make_node() -> Iterator[Callable[..., FakeNode]]:
    nodes: list[FakeNode] = []

    def make(role: str = "proxy") -> FakeNode:
        nodes.append(FakeNode(role))
        return nodes[-1]

    yield make
    for node in nodes:
        node.stop()


@pytest.fixture
def fake(make_node: Callable[..., FakeNode]) -> FakeCluster:
    return fake_cluster(make_node(), make_node("target"))


@pytest.fixture
def client(fake: FakeCluster) -> Iterator[Client]:
    with Client(fake.url, "secret") as made:
        quicken(made)
        yield made


@pytest.fixture(scope="session")
def body() -> bytes:
    """A few MiB that no two positions share."""
    return b"".join(at.to_bytes(4, "big") for at in range(900_000))
