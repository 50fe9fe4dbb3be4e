"""Readers of a target that is killed in mid-stream, and does not come back: another copy is read, or the answer ends short."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import httpx
import pytest
from failures.nodes import Nodes
from failures.web import Web
from harness import wait_for
from job_shards import members_of, tar_of

from dfc.client import Client
from dfc.inputs import gopen
from dfc.inputs.sources.streams import StreamOptions
from dfc.placement.map import ClusterMap
from dfc.placement.mapped import placement_of
from dfc.placement.roles import roles

SHARDS, SAMPLES, SAMPLE_BYTES = 6, 120, 100_000
BEGUN_BYTES = 1 << 20
CURL_PARTIAL = 18  # curl's exit status for a body that ended early


@cache
def samples_of(shard: int) -> list[tuple[str, bytes]]:
    draw = random.Random(shard)
    return [(f"{shard}-{number:04}.bin", draw.randbytes(SAMPLE_BYTES)) for number in range(SAMPLES)]


BODIES = {f"s{number}.tar": tar_of(samples_of(number)) for number in range(SHARDS)}
BODIES["long"] = random.Random("long").randbytes(64 << 20)  # more than the buffers of sockets hold


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three targets with one disk each, and shards with two copies."""
    with Nodes(tmp_path_factory.mktemp("readers"), 3, 1, down_after_s=3.0) as nodes:
        nodes.start_all()
        web = Web(nodes)
        web.create("train")
        for name, body in BODIES.items():
            assert web.put_patiently(f"train/{name}", body).json()["copies"] == 2
        web.close()
        yield nodes
        nodes.stop_all()


@pytest.fixture
def nodes(cluster: Nodes) -> Nodes:
    """All are up and calm when a test begins."""
    cluster.start_all()
    cluster.until_calm(40)
    return cluster


def primary_of(nodes: Nodes, name: str) -> tuple[str, str]:
    """The target that serves an object first: its process, and its URL for clients."""
    cluster_map = ClusterMap.decode(json.dumps(nodes.map()).encode())
    bucket = cluster_map.bucket("train")
    assert bucket is not None
    primary = roles(placement_of(cluster_map), bucket.id, name).primary
    node = next(node for node in cluster_map.nodes if any(disk.id == primary for disk in node.disks))
    return next(each for each in nodes.targets if node.url.endswith(f":{nodes.port_of(each)}")), node.advertise_url


def read_through_a_kill(nodes: Nodes, url: str, status: int, path: Path) -> bytes:
    """What curl has got of "long", and ends with this status, while the target that it comes from is killed."""
    victim = primary_of(nodes, "long")[0]
    command = ["curl", "-sS", "-f", "-L", "--limit-rate", "16M", "-o", str(path), url]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as curl:
        wait_for(lambda: path.exists() and path.stat().st_size > BEGUN_BYTES, "curl to have begun")
        nodes.kill(victim)
        assert curl.wait(60) == status, curl.stderr
    return path.read_bytes()


def test_curl_notices_nothing_if_the_proxy_passes_it_on(nodes: Nodes, tmp_path: Path) -> None:
    assert read_through_a_kill(nodes, f"{nodes.url}/train/long", 0, tmp_path / "got.tar") == BODIES["long"]


def test_curl_ends_short_at_a_target_and_succeeds_when_asked_again(nodes: Nodes, tmp_path: Path) -> None:
    name, path = "long", tmp_path / "got.tar"
    part = read_through_a_kill(nodes, f"{nodes.url}/v1/objects/train/{name}", CURL_PARTIAL, path)
    assert BEGUN_BYTES < len(part) < len(BODIES[name])
    assert BODIES[name].startswith(part), "short, but not wrong"
    command = ["curl", "-sS", "-f", "-L", "-C", "-", "-o", str(path), f"{nodes.url}/train/{name}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert path.read_bytes() == BODIES[name]


def test_a_client_goes_on_at_the_other_copy(nodes: Nodes) -> None:
    name, victim = "long", primary_of(nodes, "long")[0]
    with Client(nodes.url) as client, client.open("train", name) as reader:
        found = bytearray()
        while len(found) < BEGUN_BYTES:
            found += reader.read(1 << 16) or b""
        nodes.kill(victim)
        while piece := reader.read(1 << 20):
            found += piece
    assert found == BODIES[name]
    assert victim not in nodes.processes


def test_a_download_to_a_file_goes_on(nodes: Nodes, tmp_path: Path) -> None:
    name, victim = "long", primary_of(nodes, "long")[0]
    done: list[int] = []

    def progress(count: int) -> None:
        done.append(count)
        if sum(done) > BEGUN_BYTES and victim in nodes.processes:
            nodes.kill(victim)

    with Client(nodes.url) as client:
        client.get_to_file("train", name, tmp_path / "got.tar", progress=progress)
    assert victim not in nodes.processes
    assert (tmp_path / "got.tar").read_bytes() == BODIES[name]


def test_a_loader_goes_on(nodes: Nodes) -> None:
    """In the middle of an epoch over all shards."""
    victim = primary_of(nodes, "s0.tar")[0]
    samples = gopen.sharditerator_once(
        f"{nodes.url}/train/s@{SHARDS}.tar", readers=1, ahead_bytes=1, options=StreamOptions(retries=10, read_timeout_s=5.0)
    )
    found = [next(samples) for _ in range(10)]
    nodes.kill(victim)
    found += samples
    expected = [body for number in range(SHARDS) for _, body in samples_of(number)]
    assert [sample["bin"] for sample in found] == expected
    assert samples.counts.shards_skipped == 0
    assert victim not in nodes.processes


def test_a_batch_goes_on(nodes: Nodes) -> None:
    """The proxy chooses who assembles it; the victim is another one, whose samples the rest of it wants."""
    draw = random.Random(5)
    chosen = [(f"s{draw.randrange(SHARDS)}.tar", draw.randrange(SAMPLES)) for _ in range(400)]
    items = [{"bucket": "train", "object": name, "number": number} for name, number in chosen]
    with httpx.Client(base_url=nodes.url, timeout=60) as http:
        first = http.post("/v1/batch", json={"items": items[:1]}, follow_redirects=False)
        asked = first.headers.get("Location", nodes.url)
        victims = {primary_of(nodes, name) for name, _ in chosen}
        victim = next(name for name, url in sorted(victims) if not asked.startswith(url))
        found = bytearray()
        with http.stream("POST", "/v1/batch", json={"items": items}, follow_redirects=True) as answer:
            assert answer.status_code == 200
            for piece in answer.iter_bytes(1 << 16):
                found += piece
                if len(found) > BEGUN_BYTES and victim in nodes.processes:
                    nodes.kill(victim)
    assert members_of(bytes(found)) == [samples_of(int(name[1]))[number] for name, number in chosen]
    assert victim not in nodes.processes
