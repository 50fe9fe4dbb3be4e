"""Streams from real clusters and nginx, over networks that break, servers that are restarted and objects that change."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from flaky_network import Fault, FlakyNetwork
from harness import Cluster, wait_for
from job_shards import samples, tar_of

from dfc.client import Client
from dfc.errors import BadShardSpec, NoShards
from dfc.inputs.base import Counts, ShardChanged, ShardRef, ShardUnreadable
from dfc.inputs.epochs.corpus import Corpus
from dfc.inputs.sources.cluster import locate
from dfc.inputs.sources.opening import open_stream
from dfc.inputs.sources.specs import resolve
from dfc.inputs.sources.streams import Stream, StreamOptions
from dfc.limits import MIB
from loadtest.nginx import nginx

BODY = os.urandom(8 * MIB + 4321)
TAR = tar_of(samples([f"k{number}" for number in range(7)], txt="{key}"))


@pytest.fixture(scope="module")
def loaded(cluster: Cluster) -> Cluster:
    with Client(cluster.url) as client:
        for number in range(12):
            client.put("streams", f"train-{number:06d}.tar", TAR)
        client.put("streams", "large.bin", BODY)
        client.put("streams", "sub dir/é.tgz", b"deep")
        client.put("streams", "sub dir/notes.txt", b"")
        for number in range(2):
            client.put("default", f"plain-{number}.tar", TAR)
    return cluster


def read(ref: ShardRef | str, *, step: int = 1 * MIB, **given: object) -> bytes:
    with open_stream(ref, **given) as stream:  # type: ignore[arg-type]
        return rest(stream, step)


def rest(stream: Stream, step: int = 1 * MIB) -> bytes:
    buffer = bytearray(step)
    data = bytearray()
    while count := stream.readinto(buffer):
        data += buffer[:count]
    return bytes(data)


def objects_asked(url: str) -> int:
    """How many objects a node was asked for, by its metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    asked = [
        line
        for line in lines
        if line.startswith('dfc_http_requests_total{method="GET"') and ('route="/"' in line or "{object" in line)
    ]
    return sum(int(float(line.rpartition(" ")[2])) for line in asked)


def test_specs_against_a_cluster(loaded: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFC_URL", loaded.url)
    url = loaded.url
    trains = [f"train-{number:06d}.tar" for number in range(12)]
    expected = {
        f"{url}/streams/train-@000012.tar": [f"{url}/streams/{name}" for name in trains],
        f"{url}/streams/train-*.tar": [f"{url}/streams/{name}" for name in trains],
        f"{url}/streams/train-0000{{00..01}}*": [f"{url}/streams/{name}" for name in trains[:2]],
        f"{url}/v1/objects/streams/train-00000[0-2].tar": [f"{url}/v1/objects/streams/{name}" for name in trains[:3]],
        f"{url}/streams/": [f"{url}/streams/sub%20dir/%C3%A9.tgz", *(f"{url}/streams/{name}" for name in trains)],
        f"{url}/streams/sub%20dir/": [f"{url}/streams/sub%20dir/%C3%A9.tgz"],
        f"{url}/streams/**/*.tgz": [f"{url}/streams/sub%20dir/%C3%A9.tgz"],
        f"{url}/plain-*.tar": [f"{url}/plain-{number}.tar" for number in range(2)],
        "dfc:streams/train-00000[01].tar": [f"dfc:streams/{name}" for name in trains[:2]],
        "dfc://streams/sub dir/": ["dfc://streams/sub dir/é.tgz"],
        "dfc:streams": ["dfc:streams/sub dir/é.tgz", *(f"dfc:streams/{name}" for name in trains)],
    }
    for spec, urls in expected.items():
        assert [ref.url for ref in resolve(spec)] == sorted(urls), spec
        assert all(read(ref) in (TAR, b"deep") for ref in resolve(spec)[:2])
    for nothing in (f"{url}/streams/nothing-*.tar", f"{url}/nobucket/", "dfc:nobucket"):
        with pytest.raises(NoShards):
            resolve(nothing)
    with pytest.raises(BadShardSpec, match="no bucket"):
        resolve(f"{url}/")
    for forgotten in (f"{url}/streams", f"{url}/v1/objects/streams"):
        with pytest.raises(ShardUnreadable, match=f"did you mean {forgotten}/ "):
            Corpus.open(forgotten)
        with pytest.raises(ShardUnreadable, match=f"did you mean {forgotten}/ "):
            read(forgotten)
    with pytest.raises(ShardUnreadable, match=r"streams does not exist$"):
        Corpus.open(f"{url}/default/streams")


def test_a_shards_file_in_a_cluster(loaded: Cluster) -> None:
    listed = json.dumps({"shards": [["train-000000.tar"], [f"{loaded.url}/streams/train-000001.tar", "train-000002.tar"]]})
    with Client(loaded.url) as client:
        client.put("streams", "some.shards", listed.encode())
    found = resolve(f"{loaded.url}/streams/some.shards", seed=3)
    assert [len(ref.replicas) for ref in found] == [0, 1]
    assert all(read(ref) == TAR for ref in found)


def test_objects_come_from_their_owners(loaded: Cluster) -> None:
    """The node that was named is not asked for them; owners tell that shards are indexed."""
    before = objects_asked(loaded.url)
    for number in range(12):
        with open_stream(f"{loaded.url}/streams/train-{number:06d}.tar") as stream:
            assert stream.indexed
            assert stream.size == len(TAR)
            assert stream.readinto(bytearray(MIB)) == len(TAR)
    assert read(f"{loaded.url}/streams/large.bin", start=100, end=MIB) == BODY[100:MIB]
    assert objects_asked(loaded.url) == before
    with open_stream(f"{loaded.url}/streams/large.bin", options=StreamOptions(direct=False)) as stream:
        assert not stream.indexed
        assert stream.readinto(bytearray(9 * MIB)) == len(BODY)
    wait_for(lambda: objects_asked(loaded.url) == before + 1, "the request to be counted")


def test_what_is_not_there(loaded: Cluster) -> None:
    for path in ("streams/missing.tar", "nobucket/x.tar"):
        with pytest.raises(ShardUnreadable, match=r"missing|nobucket"):
            open_stream(f"{loaded.url}/{path}")
    with pytest.raises(ShardChanged):
        open_stream(f"{loaded.url}/streams/large.bin", start=5, etag="0" * 32)


@pytest.mark.parametrize("seed", range(2))
def test_a_network_that_breaks_all_the_time(loaded: Cluster, seed: int) -> None:
    """Before a node that relays: its answers carry the checksum, which holds over all the pieces."""
    rng = random.Random(seed)
    kinds = ("reset", "close", "stall", "refuse")
    faults = [Fault(rng.choice(kinds), rng.randrange(2 * MIB)) for _ in range(8)]  # type: ignore[arg-type]
    counts = Counts()
    options = StreamOptions(direct=False, read_timeout_s=0.3)
    with FlakyNetwork(loaded.url, faults) as network:
        url = f"{network.url}/streams/large.bin"
        assert read(url, step=rng.choice((100_000, MIB, 16 * MIB)), options=options, counts=counts) == BODY
        assert counts.retries >= network.broken - 1
        assert network.broken >= 3


def test_nginx_over_a_network_that_breaks(tmp_path: Path) -> None:
    with nginx(tmp_path, workers=1) as running:
        (running.root / "x.tar").write_bytes(BODY)
        faults = [Fault("close", 3 * MIB), Fault("reset", MIB), Fault("refuse"), Fault("close", 100)]
        with FlakyNetwork(running.url, faults) as network:
            # The first connection is that of the question whether it is a DFC node.
            counts = Counts()
            assert read(f"{network.url}/x.tar", counts=counts) == BODY
            assert counts.retries >= 2
        with FlakyNetwork(running.url, [Fault("close", 3 * MIB)]) as network:
            with open_stream(f"{network.url}/x.tar", options=StreamOptions(direct=False)) as stream:
                buffer = bytearray(2 * MIB)
                assert stream.readinto(buffer) == 2 * MIB
                (running.root / "x.tar").write_bytes(BODY[::-1])
                os.utime(running.root / "x.tar", (1, 1))  # its ETag is made of seconds and size
                with pytest.raises(ShardChanged):
                    rest(stream)


def test_a_cluster_that_is_restarted_in_the_middle(start_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    """Whether it is read from the owner or through the node that was named; then an object that was replaced meanwhile."""
    body = os.urandom(1 * MIB) * 24  # more than the buffers of the sockets hold
    cluster = start_cluster(targets=1, directory=tmp_path / "cluster", environment={"DFC_DRAIN_TIMEOUT_S": "0.5"})
    port = int(cluster.url.rpartition(":")[2])
    with Client(cluster.url) as client:
        client.put("b", "x.tar", body)
    url = f"{cluster.url}/b/x.tar"
    counts = Counts()
    buffer = bytearray(4 * MIB)
    with (
        open_stream(url, counts=counts) as direct,
        open_stream(url, counts=counts, options=StreamOptions(direct=False)) as relayed,
        open_stream(url) as changed,
    ):
        read_so_far = []
        for stream in (direct, relayed, changed):
            assert stream.readinto(buffer) == len(buffer)
            read_so_far.append(bytearray(buffer))
        cluster.stop()
        cluster.start(port)
        wait_for(cluster.is_healthy, "the cluster to be back")
        for stream, data in zip((direct, relayed), read_so_far, strict=False):
            data += rest(stream)
            assert data == body
        assert counts.retries >= 2
        with Client(cluster.url) as client:
            client.put("b", "x.tar", body[::-1])
        with pytest.raises(ShardChanged):
            rest(changed)
    cluster.stop()


FORKS = """
import os, sys
from dfc.inputs.sources.opening import open_stream

def read(url):
    data = bytearray()
    buffer = bytearray(100_000)
    with open_stream(url) as stream:
        while count := stream.readinto(buffer):
            data += buffer[:count]
    return bytes(data)

url = sys.argv[1]
whole = read(url)
opened = open_stream(url)
buffer = bytearray(1_000_000)
begun = [bytes(buffer[: opened.readinto(buffer)])]
children = []
for _ in range(3):
    child = os.fork()
    if not child:
        files = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
        if any("socket:" in file for file in files):
            os._exit(2)
        status = 0 if all(read(url) == whole for _ in range(3)) else 1
        del opened  # a copy of the parent's, who reads on
        os._exit(status)
    children.append(child)
while count := opened.readinto(buffer):
    begun.append(bytes(buffer[:count]))
opened.close()
statuses = [os.waitpid(child, 0)[1] for child in children]
assert b"".join(begun) == whole, "the parent's stream was disturbed"
assert read(url) == whole
print(statuses)
"""


@pytest.mark.parametrize("prefix", ["/streams/", "/v1/objects/streams/"])
def test_forked_workers_share_no_connections(loaded: Cluster, prefix: str) -> None:
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", FORKS, f"{loaded.url}{prefix}large.bin"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[0, 0, 0]\n", "")


def test_one_question_a_process(loaded: Cluster) -> None:
    """However many shards are opened: their places are computed here."""
    options = StreamOptions()
    found = {id(place.cluster) for ref in resolve(f"{loaded.url}/streams/") if (place := locate(ref.url, options)) is not None}
    assert len(found) == 1
    assert locate(f"{loaded.url}/streams/x.tar?member=y", options) is None
    assert locate(f"{loaded.url}/metrics", options) is None
