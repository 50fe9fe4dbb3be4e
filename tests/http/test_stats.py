"""What nodes do, second by second, and what they are: `/v1/cluster/stats` and `/v1/cluster/nodes/{node}`."""

from __future__ import annotations

import datetime
import os
from typing import Any

import httpx
import msgspec
import pytest
from harness import wait_for

from dfc.http.rates import NodeSeconds

FIGURES = ("bytes_in", "bytes_out", "requests", "errors", "connections")
MB = 1_000_000


def test_all_nodes_and_their_last_seconds(http: httpx.Client, nodes: Any, url: str) -> None:
    found = http.get(f"{url}/v1/cluster/stats").json()
    assert found.keys() == {"seconds", "step_s", "until", "nodes"}
    assert (found["seconds"], found["step_s"]) == (60, 1)
    until = datetime.datetime.fromisoformat(found["until"])
    assert abs((datetime.datetime.now(datetime.UTC) - until).total_seconds()) < 60
    proxy = http.get("/v1/health").json()["id"]
    kinds = {node["id"]: node["kind"] for node in found["nodes"]}
    assert kinds == {proxy: "proxy", **{node.id: "target" for node in nodes.map.targets()}}
    for node in found["nodes"]:
        assert node.keys() == {"id", "kind", "silent", "silent_s", "why", *FIGURES, "disks"}
        assert (node["silent"], node["silent_s"], node["why"]) == (False, None, "")
        assert [len(node[name]) for name in FIGURES] == [60] * 5
        assert all(0 <= value <= 1 for values in node["disks"].values() for value in values if value is not None)


@pytest.mark.parametrize(("seconds", "step_s", "points"), [(1, 1, 1), (300, 1, 300), (301, 2, 151), (900, 3, 300)])
def test_how_many_seconds_and_points(http: httpx.Client, seconds: int, step_s: int, points: int) -> None:
    found = http.get("/v1/cluster/stats", params={"seconds": seconds}).json()
    assert (found["seconds"], found["step_s"]) == (seconds, step_s)
    assert {len(node[name]) for node in found["nodes"] for name in FIGURES} == {points}


WRONG = (
    "seconds=0", "seconds=901", "seconds=-1", "seconds=1.5", "seconds=", "seconds=%D9%A3", "seconds=9&seconds=9", "second=1",
)  # fmt: skip


@pytest.mark.parametrize("query", WRONG)
def test_bad_queries(http: httpx.Client, url: str, query: str, error_of: Any) -> None:
    error_of(http.get(f"{url}/v1/cluster/stats?{query}"), 400, "bad_request")


def test_an_upload_and_a_download_are_seen_at_the_target(http: httpx.Client, nodes: Any, bucket: str) -> None:
    body = os.urandom(MB) * 50
    owner = http.get(nodes.owner(bucket, "large") + "/v1/health").json()["id"]

    def total(figure: str, node_id: str) -> float:
        found = http.get("/v1/cluster/stats?seconds=300").json()["nodes"]
        return sum(value or 0 for node in found if node["id"] == node_id for value in node[figure])

    before = total("bytes_in", owner), total("bytes_out", owner)
    http.put(f"/{bucket}/large", content=body).raise_for_status()
    assert http.get(f"/{bucket}/large").content == body
    # Rates are rounded and the first seconds of the span may have ended meanwhile; nothing counts twice.
    wait_for(lambda: total("bytes_in", owner) - before[0] > 48 * MB, "the upload in the figures of its owner")
    wait_for(lambda: total("bytes_out", owner) - before[1] > 48 * MB, "the download in the figures of its owner")
    assert total("bytes_in", owner) - before[0] < 60 * MB
    proxy = http.get("/v1/health").json()["id"]
    wait_for(lambda: total("bytes_in", proxy) > 48 * MB, "the upload in the figures of the proxy that has passed it on")
    assert total("requests", proxy) > 1


def test_a_node_tells_others_what_is_new(http: httpx.Client, url: str, error_of: Any) -> None:
    def told(query: str = "") -> NodeSeconds:
        answer = http.get(f"{url}/v1/node/seconds{query}")
        assert answer.headers["Content-Type"] == "application/msgpack"
        return msgspec.msgpack.decode(answer.content, type=NodeSeconds)

    first = wait_for(lambda: found if (found := told()).newest >= 2 else None, "three seconds")
    assert len(first.columns["requests"]) == first.newest - first.first + 1
    later = told(f"?since={first.boot}.{first.newest - 1}")
    assert later.first == first.newest
    assert later.columns["requests"][0] == first.columns["requests"][-1]
    assert told("?since=00000000.7").first == first.first
    for wrong in ("?since=", "?since=x.1", "?since=00000000", f"?since={first.boot}.{'9' * 40}", "?after=1"):
        error_of(http.get(f"{url}/v1/node/seconds{wrong}"), 400, "bad_request")


def test_what_a_node_is(http: httpx.Client, nodes: Any, url: str, error_of: Any) -> None:
    target = nodes.map.targets()[0]
    found = http.get(f"{url}/v1/cluster/nodes/{target.id}").json()
    assert (found["id"], found["role"], found["url"]) == (target.id, "target", target.url)
    assert found["memory_bytes"] > 10 * MB
    assert 0 < found["descriptors"] < found["descriptors_max"]
    assert {disk["id"] for disk in found["disks"]} == {disk.id for disk in target.disks}
    for disk in found["disks"]:
        assert os.path.isdir(disk["path"])
        assert (disk["state"], disk["failure"], disk["io_errors"]) == ("up", "", 0)
        assert 0 < disk["used"] < disk["capacity"]
        assert disk["scrub_state"] in ("idle", "running")
    settings = {each["name"]: each for each in found["settings"]}
    assert settings["disks"]["value"] == sorted(disk["path"] for disk in found["disks"])
    assert settings["disks"]["origin"] != "default"
    assert settings["heartbeat_s"] == {"name": "heartbeat_s", "value": 1.0, "origin": "default"}

    proxy = http.get("/v1/health").json()["id"]
    found = http.get(f"{url}/v1/cluster/nodes/{proxy}").json()
    assert (found["id"], found["role"], found["disks"]) == (proxy, "proxy", [])
    error_of(http.get(f"{url}/v1/cluster/nodes/target-nowhere"), 404, "not_found")
    error_of(http.get(f"{url}/v1/cluster/nodes/{target.id}?all=1"), 400, "bad_request")
