"""A target that registers for the first time: what it waits for, and what ends it."""

from __future__ import annotations

import asyncio

import pytest

from dfc.config import Settings
from dfc.errors import OperatorError
from dfc.http.calls.peer import RemoteError
from dfc.placement.map import ClusterMap
from dfc.registry.registration import Registered
from dfc.servers.target import TargetNode
from dfc.target import node as node_module

ANSWERS = {"/v1/cluster": ClusterMap(cluster_id="c", version=1), "/v1/nodes": Registered(node_number=7)}


@pytest.fixture
async def make(tmp_path, monkeypatch):
    """Makes a target whose registry first answers with these states."""
    monkeypatch.setattr(node_module, "RETRY_S", 0.01)
    made = []

    def build(*states: int) -> TargetNode:
        directory = str(tmp_path)
        made.append(TargetNode(Settings(dir=directory, disks=(directory,), port=0, proxy_url="http://127.0.0.1:1")))
        node, left = made[-1], list(states)
        node.id, node._url, node._advertised = "t1", "http://t1", "http://t1"

        async def call(method, url, kind, **rest):
            if left:
                raise RemoteError(left.pop(0), "some_code", "said the registry")
            return ANSWERS[url.removeprefix("http://127.0.0.1:1")]

        monkeypatch.setattr(node.local.control, "call", call)
        return node

    yield build
    for node in made:
        await node.stop()


async def test_a_registry_that_asks_to_try_again_is_asked_again(make):
    async with asyncio.timeout(10):
        assert (await make(503, 503)._cluster_map()).cluster_id == "c"
        assert await make(503, 503)._first_registration("c", ()) == 7


@pytest.mark.parametrize("status", [401, 409, 500])
async def test_a_registry_that_refuses_ends_the_target(make, status):
    with pytest.raises(OperatorError, match="refuses: said the registry"):
        await make(status)._cluster_map()
    with pytest.raises(OperatorError, match="refuses this target: said the registry"):
        await make(status)._first_registration("c", ())
