"""Global shuffle, mixing, random access and the local cache against real clusters."""

from __future__ import annotations

import io
import os
import random
import signal
import tarfile
import threading
from typing import Any

import numpy as np
import pytest
from harness import Cluster, wait_for

from dfc.client import Client
from dfc.inputs.base import Counts, ShardChanged, ShardUnreadable
from dfc.inputs.batches import BatchShard
from dfc.inputs.gather import Gather

SHARDS = 5
IMAGE_BYTES = 20_000
COUNTS = [300 + 37 * shard for shard in range(SHARDS)]
FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def files_of(shard: int) -> list[tuple[str, bytes]]:
    """Keys repeat from shard to shard, and shards differ in their extensions: samples must not be mixed all the same."""
    draw = random.Random(shard)
    files = []
    for number in range(COUNTS[shard]):
        key = f"{'x' * 120 if number % 50 == 7 else 'd'}/{number:06d}"
        if shard != 3:
            files.append((f"{key}.jpg", draw.randbytes(IMAGE_BYTES + draw.randrange(600))))
        if shard != 4:
            files.append((f"{key}.cls", b"%d" % (1000 * shard + number)))
    return files


def tar_of(files: list[tuple[str, bytes]], kind: int = tarfile.USTAR_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as archive:
        for name, body in files:
            info = tarfile.TarInfo(name)
            info.size = len(body)
            info.mtime = 1.5 if kind == tarfile.PAX_FORMAT else 1
            archive.addfile(info, io.BytesIO(body))
    return buffer.getvalue()


def samples_of(files: list[tuple[str, bytes]], url: str) -> list[dict[str, Any]]:
    samples: list[dict[str, Any]] = []
    for name, body in files:
        key, _, extension = name.partition(".")
        if not samples or samples[-1]["__key__"] != key:
            samples.append({"__key__": key, "__source__": url})
        samples[-1][extension] = body
    return samples


@pytest.fixture(scope="module")
def cluster(start_cluster: Any) -> Cluster:
    cluster: Cluster = start_cluster(targets=2)
    return cluster


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Any:
    with Client(cluster.url) as client:
        yield client


@pytest.fixture(scope="module")
def corpus(cluster: Cluster, client: Client) -> tuple[list[BatchShard], list[dict[str, Any]]]:
    """Shards of all formats, and every sample of them in order."""
    shards, samples = [], []
    for shard in range(SHARDS):
        files = files_of(shard)
        name, url = f"s-{shard}.tar", f"{cluster.url}/gathered/s-{shard}.tar"
        stored = client.put("gathered", name, tar_of(files, FORMATS[shard % 3]))
        assert stored.samples == COUNTS[shard]
        shards.append(BatchShard(url, "gathered", name, stored.checksum, COUNTS[shard]))
        samples += samples_of(files, url)
    return shards, samples


def flat(portions: Any) -> list[Any]:
    return [sample for portion in portions for sample in portion]


@pytest.mark.parametrize("readers", [1, 3])
def test_samples_come_in_the_order_of_their_numbers(cluster: Cluster, corpus: Any, readers: int) -> None:
    shards, samples = corpus
    order = np.random.default_rng(readers).permutation(len(samples))
    # Neighbours with one key and different extensions, which a tar cannot tell apart.
    order[:4] = [0, sum(COUNTS[:3]), sum(COUNTS[:4]), 0]
    counts = Counts()
    pieces = np.split(order, [1, 5, 300, 301])
    with Gather(shards, pieces, lambda: Client(cluster.url), size=30_000_000, readers=readers, counts=counts) as gather:
        found = flat(gather)
    assert found == [samples[number] for number in order]
    assert counts.retries == 0
    assert counts.size > sum(len(sample.get("jpg", b"")) for sample in samples)


def test_dropping_it_in_mid_stream_ends_its_threads(cluster: Cluster, corpus: Any) -> None:
    shards, samples = corpus
    before = threading.active_count()
    iterator = iter(Gather(shards, [np.arange(len(samples))], lambda: Client(cluster.url), ahead_bytes=2_000_000))
    assert next(iterator)[0] == samples[0]
    del iterator
    wait_for(lambda: threading.active_count() == before, "the threads to end")


def test_a_broken_connection_is_continued(start_cluster: Any) -> None:
    cluster = start_cluster(targets=1)
    files = files_of(0)
    with Client(cluster.url) as client:
        etag = client.put("gathered", "s.tar", tar_of(files)).checksum
    shard = BatchShard(f"{cluster.url}/gathered/s.tar", "gathered", "s.tar", etag, COUNTS[0])
    samples = samples_of(files, shard.url)
    order = np.random.default_rng(5).integers(0, len(samples), 6000)
    counts = Counts()
    found: list[Any] = []
    with Gather([shard], [order], lambda: Client(cluster.url), size=len(samples), readers=1, counts=counts) as gather:
        for portion in gather:
            found += portion
            if len(found) < 1500:  # 80 MB more than the sockets hold
                continue
            if counts.retries == 0 and (proxy := cluster.children().get("proxy")):
                os.kill(proxy, signal.SIGKILL)
                wait_for(lambda: counts.retries, "the break to be met")
    assert found == [samples[number] for number in order]
    assert counts.retries >= 1


def test_shards_that_changed_or_are_gone_stand_as_errors(cluster: Cluster, client: Client, corpus: Any) -> None:
    shards, samples = corpus
    changed = shards[1]._replace(etag="0" * 32)
    gone = shards[2]._replace(name="gone.tar")
    fewer = shards[3]._replace(samples=COUNTS[3] + 1)
    broken = [shards[0], changed, gone, fewer, shards[4]]
    total = len(samples) + 1
    order = np.random.default_rng(1).permutation(total)
    with Gather(broken, [order], lambda: Client(cluster.url)) as gather:
        found = flat(gather)
    assert len(found) == total
    lost = {1: ShardChanged, 2: ShardUnreadable, 3: ShardUnreadable}
    starts = np.cumsum([0, *(shard.samples for shard in broken)])
    for number, sample in zip(order.tolist(), found, strict=True):
        shard = int(np.searchsorted(starts, number, side="right")) - 1
        if shard in lost and not isinstance(sample, dict):
            assert type(sample) is lost[shard]
            assert sample.url == broken[shard].url
        else:
            assert sample == samples[number - (shard > 3)]
            assert shard in (0, 3, 4)


def test_a_cluster_that_is_not_there_raises(corpus: Any) -> None:
    shards, _ = corpus
    gather = Gather(shards, [np.arange(3)], lambda: Client("http://127.0.0.1:9", retries=0))
    with pytest.raises(ShardUnreadable, match=r"127\.0\.0\.1:9"):
        list(gather)


def test_numbers_that_are_none_raise(cluster: Cluster, corpus: Any) -> None:
    shards, samples = corpus
    with pytest.raises(IndexError):
        list(Gather(shards, [np.array([len(samples)])], lambda: Client(cluster.url)))
