"""Search samples while targets are killed: copies are searched instead, or it is said what was not searched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from failures.nodes import Nodes
from failures.web import Web
from job_shards import samples, tar_of

SHARDS = [f"s{number:02d}.tar" for number in range(24)]


def shard_of(number: int) -> bytes:
    return tar_of(samples([f"{number:02d}-0", f"{number:02d}-1", "same"], txt=""))


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three targets; the shards of `two` have two copies, those of `one` one."""
    with Nodes(tmp_path_factory.mktemp("search"), 3, 1, down_after_s=3.0) as nodes:
        nodes.start_all()
        web = Web(nodes)
        web.create("two")
        web.create("one", copies=1)
        for bucket in ("two", "one"):
            for number, name in enumerate(SHARDS):
                web.put_patiently(f"{bucket}/{name}", shard_of(number))
        web.close()
        yield nodes
        nodes.stop_all()


@pytest.fixture
def calm(nodes: Nodes) -> Nodes:
    """All are up."""
    nodes.start_all()
    nodes.until_calm(40)
    return nodes


def ask(nodes: Nodes, bucket: str, **parameters: str) -> tuple[int, list[Any]]:
    with httpx.Client(trust_env=False, timeout=60) as client:
        answer = client.get(f"{nodes.url}/v1/buckets/{bucket}/samples", params=parameters)
    return answer.status_code, [json.loads(line) for line in answer.text.splitlines()]


QUERIES = ({"key": "same"}, {"key_prefix": "sam"}, {"key_contains": "am"})
NAMED = json.dumps(SHARDS)


def test_with_copies_everything_is_found_at_once_and_when_it_is_known(calm: Nodes) -> None:
    """The proxy does not know yet that the target is gone, then it does, then it is back."""
    victim = calm.targets[1]

    def check() -> None:
        for query in QUERIES:
            status, lines = ask(calm, "two", shards=NAMED, **query)
            assert status == 200, lines
            end = lines.pop()["end"]
            assert [line["shard"] for line in lines] == SHARDS
            assert (end["searched"], end["stopped"], end["unsearched_count"]) == (len(SHARDS), None, 0)

    check()
    calm.kill(victim)
    check()
    calm.until(lambda: any(node["state"] == "down" for node in calm.map()["nodes"]), "the target to be known as down")
    check()
    status, lines = ask(calm, "two", key="07-1")  # now the listing needs no answer of it
    assert (status, [line.get("shard") for line in lines]) == (200, ["s07.tar", None])
    calm.start(victim)
    calm.until_calm(40)
    check()


def test_without_copies_it_is_said_what_was_not_searched(calm: Nodes) -> None:
    victim = calm.targets[2]
    calm.kill(victim)
    calm.until(lambda: any(node["state"] == "down" for node in calm.map()["nodes"]), "the target to be known as down")
    status, lines = ask(calm, "one", shards=NAMED, key="same")
    assert (status, lines[0]["error"]["code"]) == (503, "unavailable")
    assert "cannot be searched" in lines[0]["error"]["message"]
    status, lines = ask(calm, "one", shards=NAMED, key_contains="same")
    end = lines.pop()["end"]
    found = {line["shard"] for line in lines}
    away = {each["shard"] for each in end["unsearched"]}
    assert (status, found | away, found & away) == (200, set(SHARDS), set())
    assert (len(away), end["searched"], end["stopped"]) == (end["unsearched_count"], len(found), None)
    assert away
    status, lines = ask(calm, "one", key_contains="same")  # which shards there are is not known
    assert (status, lines[0]["error"]["code"]) == (503, "unavailable")
