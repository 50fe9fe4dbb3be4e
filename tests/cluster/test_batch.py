"""Batch reads while targets die: whole and right, or cut; never a clean short end."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import tarfile
import urllib.error
import urllib.request
from typing import Any

import pytest
from harness import Cluster, open_files, owner_of, wait_for
from job_shards import tar_of

from dfc.placement.map import ClusterMap

SAMPLES = 300
SAMPLE_BYTES = 100_000
BEGUN_BYTES = 3_000_000
BACK_S = 90.0


def put(url: str, body: bytes) -> None:
    """Store it, as soon as the target that was killed before is back."""

    def attempt() -> bool:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data=body, method="PUT"), timeout=60) as answer:
                return answer.status in (200, 201)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 503:
                raise
            return False
        except OSError:
            return False

    wait_for(attempt, f"{url} to be stored", BACK_S)


def shard_of(seed: int) -> list[tuple[str, bytes]]:
    draw = random.Random(seed)
    return [(f"{seed}/{number:04d}.bin", draw.randbytes(SAMPLE_BYTES)) for number in range(SAMPLES)]


class Stream:
    """A batch read that is taken slowly."""

    def __init__(self, url: str, items: list[dict[str, Any]]) -> None:
        self.connection = http.client.HTTPConnection(url.partition("://")[2], timeout=90)
        self.connection.request("POST", "/v1/batch", json.dumps({"items": items}).encode())
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200, self.answer.read()
        self.length = int(self.answer.headers["Content-Length"])
        self.data = b""

    def take(self, count: int) -> None:
        self.data += self.answer.read(count)

    def rest(self) -> bytes:
        """Everything that still comes; fewer bytes than announced when the connection is cut."""
        pieces = [self.data]
        try:
            while piece := self.answer.read(1 << 20):
                pieces.append(piece)
        except (http.client.IncompleteRead, ConnectionError) as error:
            pieces.append(getattr(error, "partial", b""))
        self.connection.close()
        return b"".join(pieces)


@pytest.fixture(scope="module")
def cluster(start_cluster: Any) -> Cluster:
    cluster: Cluster = start_cluster(targets=2)
    return cluster


@pytest.fixture
def shards(cluster: Cluster) -> dict[str, list[tuple[str, bytes]]]:
    """Two shards, one on each target: by name their members."""
    put(f"{cluster.url}/batch/first.bin", b"")
    found = ClusterMap.decode(json.dumps(cluster.map()).encode())
    chosen: dict[str, str] = {}
    for number in range(100):
        owner = owner_of(found, "batch", f"s{number}.tar")
        chosen.setdefault(owner.node.id, f"s{number}.tar")
    assert len(chosen) == 2
    shards = {name: shard_of(seed) for seed, name in enumerate(chosen.values())}
    for name, files in shards.items():
        put(f"{cluster.url}/batch/{name}", tar_of(files, tarfile.USTAR_FORMAT))
    return shards


def items_and_bytes(shards: dict[str, list[tuple[str, bytes]]]) -> tuple[list[dict[str, Any]], bytes]:
    draw = random.Random(5)
    chosen = [(draw.choice(list(shards)), draw.randrange(SAMPLES)) for _ in range(1500)]
    items = [{"bucket": "batch", "object": name, "number": number} for name, number in chosen]
    whole = {name: tar_of(files, tarfile.USTAR_FORMAT) for name, files in shards.items()}
    span = 512 + (SAMPLE_BYTES + 511 & -512)
    return items, b"".join(whole[name][number * span : (number + 1) * span] for name, number in chosen) + bytes(1024)


def child_of(cluster: Cluster, url: str) -> str:
    """The name of the process that listens at a target's URL."""
    ports = json.loads((cluster.directory / "ports.json").read_text())
    return next(name for name, port in ports.items() if url.endswith(f":{port}"))


def owner_url(cluster: Cluster, name: str) -> str:
    return owner_of(ClusterMap.decode(json.dumps(cluster.map()).encode()), "batch", name).node.url


def kill(cluster: Cluster, child: str) -> None:
    os.kill(wait_for(lambda: cluster.children().get(child), f"{child} to run", BACK_S), signal.SIGKILL)


@pytest.mark.parametrize("via", ["proxy", "target"])
def test_a_target_that_is_killed_in_mid_stream_is_asked_again(cluster: Cluster, shards: Any, via: str) -> None:
    items, expected = items_and_bytes(shards)
    asked, victim = (owner_url(cluster, name) for name in shards)
    stream = Stream(cluster.url if via == "proxy" else asked, items)
    assert stream.length == len(expected)
    for _ in range(3):
        stream.take(5 * BEGUN_BYTES)  # more than the sockets hold: the next comes from the new process
        kill(cluster, child_of(cluster, victim))
    assert stream.rest() == expected


def test_both_targets_may_be_killed(cluster: Cluster, shards: Any) -> None:
    items, expected = items_and_bytes(shards)
    stream = Stream(cluster.url, items)
    stream.take(BEGUN_BYTES)
    for name in shards:
        kill(cluster, child_of(cluster, owner_url(cluster, name)))
    assert stream.rest() == expected


def test_what_has_another_version_by_then_is_not_mixed_in(cluster: Cluster, shards: Any) -> None:
    items, expected = items_and_bytes(shards)
    asked, changed = shards
    stream = Stream(owner_url(cluster, asked), items)
    stream.take(BEGUN_BYTES)
    put(f"{cluster.url}/batch/{changed}", tar_of(shard_of(99)))
    kill(cluster, child_of(cluster, owner_url(cluster, changed)))
    found = stream.rest()
    assert len(found) < len(expected)
    assert expected.startswith(found)


def test_when_the_node_that_was_asked_dies_the_stream_is_cut(cluster: Cluster, shards: Any) -> None:
    items, expected = items_and_bytes(shards)
    asked = owner_url(cluster, next(iter(shards)))
    stream = Stream(asked, items)
    stream.take(BEGUN_BYTES)
    kill(cluster, child_of(cluster, asked))
    found = stream.rest()
    assert len(found) < len(expected)
    assert expected.startswith(found)


def test_a_client_that_hangs_up_frees_everything(cluster: Cluster, shards: Any) -> None:
    items, _ = items_and_bytes(shards)
    pids = [pid for name, pid in cluster.children().items() if name.startswith("target")]

    def blobs_open() -> int:
        links = [link for pid in pids for link in open_files(pid)]
        return sum("/objects/" in link and not link.endswith(".idx") for link in links)  # indexes stay mapped

    before = blobs_open()
    for _ in range(5):
        stream = Stream(cluster.url, items)
        stream.take(1000)
        stream.connection.close()
        stream.answer.close()
    wait_for(lambda: blobs_open() <= before, "the blobs to be closed")
    last = Stream(cluster.url, items)
    assert last.length > 0
    last.connection.close()
    last.answer.close()
