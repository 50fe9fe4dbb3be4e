"""The figures of all nodes while one of them is killed or hangs: it is silent, which is not idle, and holds nobody up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from failures.nodes import Nodes
from harness import wait_for

from dfc.client import AsyncClient, Client
from dfc.errors import BadRequest, Unavailable

TOKEN = "hush-0123456789"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("stats"), 3, 1, down_after_s=4, drain_timeout_s=5, token=TOKEN) as made:
        made.start_all()
        yield made
        made.stop_all()


def node(nodes: Nodes, node_id: str, seconds: int = 20) -> dict[str, Any]:
    found = nodes.ask(f"/v1/cluster/stats?seconds={seconds}")["nodes"]
    return next(each for each in found if each["id"] == node_id)


def id_of(nodes: Nodes, name: str) -> str:
    with urllib.request.urlopen(f"{nodes.url_of(name)}/v1/health", timeout=10) as answer:
        return str(json.load(answer)["id"])


def dfc(nodes: Nodes, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DFC_URL": nodes.url, "DFC_TOKEN": TOKEN, "COLUMNS": "160"}
    command = [sys.executable, "-m", "dfc", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_target_that_does_not_answer_is_silent(nodes: Nodes, number: int) -> None:
    target = id_of(nodes, "target-1")
    wait_for(lambda: [value for value in node(nodes, target)["requests"] if value], "requests of that target")
    nodes.signal("target-1", number)
    found = wait_for(lambda: each if (each := node(nodes, target))["silent"] else None, "its silence to be noticed")
    assert found["why"]
    later = wait_for(lambda: each if (each := node(nodes, target))["silent_s"] >= 4 else None, "a silence of four seconds")
    assert later["requests"][-2:] == later["bytes_in"][-2:] == [None, None]
    assert any(value is not None for value in later["requests"])  # what is known of before stays
    others = [each for each in nodes.ask("/v1/cluster/stats?seconds=20")["nodes"] if each["id"] != target]
    assert len(others) == 3
    assert all(not each["silent"] and each["requests"][-1] is not None for each in others)

    with Client(nodes.url, TOKEN) as client:
        with pytest.raises(Unavailable, match=f"{target} does not answer; its last heartbeat was at 2"):
            client.node_info(target)
        lines = dfc(nodes, "cluster", "stats").stdout.splitlines()
        assert [line for line in lines if target in line and "silent: " in line]

    if number == signal.SIGKILL:
        nodes.kill("target-1")
        nodes.start("target-1")
    else:
        nodes.signal("target-1", signal.SIGCONT)
    wait_for(lambda: not node(nodes, target)["silent"], "the target to answer again")
    nodes.until(lambda: nodes.is_serving(nodes.targets), "all nodes to serve")


async def test_the_client(nodes: Nodes) -> None:
    async with AsyncClient(nodes.url, TOKEN) as client:
        found = await client.cluster_stats(5)
        assert (found.seconds, len(found.nodes), {len(each.bytes_in) for each in found.nodes}) == (5, 4, {5})
        assert len((await client.cluster_stats()).nodes[0].requests) == 60
        with pytest.raises(BadRequest, match="between 1 and 900"):
            await client.cluster_stats(901)
        about = await client.node_info(id_of(nodes, "proxy"))
        assert about["role"] == "proxy"
        assert {each["name"]: (each["value"], each["origin"]) for each in about["settings"]}["token"] == (
            "(set)",
            "variable DFC_TOKEN",
        )
        assert TOKEN not in json.dumps(about)


def test_the_command(nodes: Nodes) -> None:
    lines = dfc(nodes, "cluster", "stats").stdout.splitlines()
    assert lines[0].split() == ["node", "in/s", "out/s", "requests/s", "errors/s", "connections", "disks"]
    assert {line.split()[0] for line in lines[1:]} == {id_of(nodes, name) for name in ("proxy", *nodes.targets)}
    found = json.loads(dfc(nodes, "cluster", "stats", "--seconds", "3", "--json").stdout)
    assert (found["seconds"], len(found["nodes"][0]["bytes_in"])) == (3, 3)
