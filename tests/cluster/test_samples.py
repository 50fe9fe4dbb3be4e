"""Batches by the Python client and `dfc sample`, against a real cluster."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Cluster
from job_shards import members_of, tar_of

from dfc.client import AsyncClient, BatchItem, Client
from dfc.errors import BadRequest, MemberNotFound, SampleNotFound, Unauthorized

SHARDS = 6
SAMPLES = 50
Files = list[tuple[str, bytes]]
Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.url) as made:
        yield made


@pytest.fixture(scope="module")
def shards(cluster: Cluster) -> dict[str, Files]:
    found = {}
    with Client(cluster.url) as client:
        for shard in range(SHARDS):
            keys = [f"{shard}/{number:03d}" for number in range(SAMPLES)]
            found[f"s{shard}.tar"] = [(f"{key}.{ext}", os.urandom(300)) for key in keys for ext in ("jpg", "cls")]
            client.put("picks", f"s{shard}.tar", tar_of(found[f"s{shard}.tar"]))
    return found


def chosen(shards: dict[str, Files], count: int) -> tuple[list[dict[str, Any]], Files]:
    draw = random.Random(count)
    picks = [(draw.choice(list(shards)), draw.randrange(SAMPLES)) for _ in range(count)]
    items = [{"bucket": "picks", "object": shard, "number": number} for shard, number in picks]
    return items, [member for shard, number in picks for member in shards[shard][2 * number : 2 * number + 2]]


def test_members_in_the_order_asked_for(client: Client, shards: dict[str, Files]) -> None:
    items, expected = chosen(shards, 500)
    assert list(client.batch(items)) == expected
    assert list(client.batch(BatchItem(**item) for item in items)) == expected
    assert list(client.batch([])) == []


def test_a_list_longer_than_a_request(client: Client, shards: dict[str, Files]) -> None:
    items, expected = chosen(shards, 25_000)
    assert all(found == wanted for found, wanted in zip(client.batch(iter(items)), expected, strict=True))


def test_the_raw_stream(client: Client, shards: dict[str, Files]) -> None:
    items, expected = chosen(shards, 300)
    with client.open_batch(items) as reader:
        content = reader.read()
    assert content is not None
    assert len(content) == reader.size
    assert members_of(content) == expected


def test_missing_ones(client: Client, shards: dict[str, Files]) -> None:
    there = {"bucket": "picks", "object": "s0.tar", "member": "0/000.jpg"}
    gone = {"bucket": "picks", "object": "s1.tar", "sample": "none"}
    with pytest.raises(SampleNotFound, match="item 1"):
        list(client.batch([there, gone]))
    assert [name for name, _ in client.batch([there, gone, there], on_missing="skip")] == ["0/000.jpg"] * 2
    names = [name for name, _ in client.batch([there, gone, there], on_missing="empty")]
    assert names == ["0/000.jpg", "__missing__/picks/s1.tar/none", "0/000.jpg"]
    for wrong in ({"bucket": "picks"}, {**there, "number": "1"}, {**there, "nonsense": 1}):
        with pytest.raises(BadRequest):
            list(client.batch([wrong]))


async def test_asynchronously(cluster: Cluster, shards: dict[str, Files]) -> None:
    async with AsyncClient(cluster.url) as client:
        items, expected = chosen(shards, 3000)
        found = [[member async for member in client.batch(items[start::2])] for start in range(2)]
        assert sorted(found[0] + found[1]) == sorted(expected)
        async for name, data in client.batch(items):
            assert (name, data) == expected[0]
            break
        with pytest.raises(MemberNotFound):
            async for _ in client.batch([{"bucket": "picks", "object": "s0.tar", "member": "none"}]):
                pass
        async with await client.open_batch(items) as reader:
            content = bytearray(reader.size)
            assert await reader.readinto(content) == reader.size
        assert members_of(bytes(content)) == expected


def test_with_a_token(start_cluster: Callable[..., Cluster]) -> None:
    """A batch is a read: it wants the token only where reads do; nodes show theirs to each other."""
    secret = "sesame-batch-0123"
    for for_reads in ("0", "1"):
        closed = start_cluster(targets=2, environment={"DFC_TOKEN": secret, "DFC_TOKEN_FOR_READS": for_reads})
        items = []
        with Client(closed.url, secret) as client:
            for shard in range(8):
                client.put("b", f"{shard}.tar", tar_of([(f"{shard}.x", b"%d" % shard)]))
                items.append({"bucket": "b", "object": f"{shard}.tar", "number": 0})
            targets = client.cluster_map().targets()
            for url in (closed.url, *(node.advertise_url for node in targets)):
                with Client(url, secret) as asked:
                    assert [data for _, data in asked.batch(items)] == [b"%d" % shard for shard in range(8)]
        with Client(closed.url) as stranger:
            if for_reads == "0":
                assert len(list(stranger.batch(items))) == 8
            else:
                with pytest.raises(Unauthorized):
                    list(stranger.batch(items))
        closed.stop()


# --- dfc sample


@pytest.fixture
def dfc(cluster: Cluster) -> Run:
    def run(*arguments: object, check: int = 0) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "dfc", "sample", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, timeout=90, check=False, env={**os.environ, "DFC_URL": cluster.url})
        assert done.returncode == check, done
        assert b"Traceback" not in done.stderr
        return done

    return run


def test_samples_shown(dfc: Run, shards: dict[str, Files]) -> None:
    lines = dfc("picks/s2.tar", "2/007", "2/001").stdout.decode().splitlines()
    assert [line.split() for line in lines] == [["300", f"2/{key}.{ext}"] for key in ("007", "001") for ext in ("jpg", "cls")]
    found = [json.loads(line) for line in dfc("picks/s2.tar", "3", "-n", "--json").stdout.splitlines()]
    assert found == [{"name": f"2/003.{ext}", "size": 300} for ext in ("jpg", "cls")]


def test_samples_as_files_and_as_a_tar(dfc: Run, shards: dict[str, Files], tmp_path: Path) -> None:
    expected = shards["s4.tar"][20:24]
    assert dfc("picks/s4.tar", "4/010", "4/011", "-o", tmp_path / "out").stdout == b""
    assert {name: (tmp_path / "out" / name).read_bytes() for name, _ in expected} == dict(expected)
    assert members_of(dfc("picks/s4.tar", "10", "11", "--number", "--tar").stdout) == expected


def test_what_cannot_be_shown(dfc: Run, client: Client, shards: dict[str, Files], tmp_path: Path) -> None:
    assert b"none" in dfc("picks/s0.tar", "none", check=3).stderr
    assert b"99999" in dfc("picks/s0.tar", "99999", "-n", check=3).stderr
    dfc("picks/no-such.tar", "0", "-n", check=3)
    dfc("picks/s0.tar", "-1x", "-n", check=2)
    dfc("picks/s0.tar", "x", "-n", check=2)
    dfc("picks/s0.tar", "0/000", "--tar", "-o", "x", check=2)
    client.put("picks", "evil.tar", tar_of([("../../evil.x", b"1"), ("/abs/evil2.x", b"2")]))
    for number in (0, 1):
        refused = dfc("picks/evil.tar", number, "-n", "-o", tmp_path / "a" / "b", check=2)
        assert b"cannot be a file here" in refused.stderr
    assert not list(tmp_path.rglob("*.x"))
