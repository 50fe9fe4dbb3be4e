"""`sharditerator` against a cluster: the samples that were stored, of plain and compressed shards, also from any of them on."""

from __future__ import annotations

import gzip
import random
from typing import Any

import pytest
from harness import Cluster
from job_shards import tar_of

from dfc.client import Client
from dfc.inputs import gopen
from dfc.inputs.base import Sample, ShardChanged, ShardRef
from dfc.inputs.sources.shardreader import Segment, SegmentReader
from dfc.inputs.sources.streams import StreamOptions
from dfc.limits import MIB

SAMPLES = 200  # a shard
SIZE_BYTES = 40_000


def members(shard: int) -> list[tuple[str, bytes]]:
    draw = random.Random(shard)
    return [
        member
        for number in range(SAMPLES)
        for member in ((f"{shard}/{number:04d}.jpg", draw.randbytes(SIZE_BYTES)), (f"{shard}/{number:04d}.cls", b"%d" % number))
    ]


@pytest.fixture(scope="module")
def stored(cluster: Cluster) -> Cluster:
    """Three shards in `gopen`, of which the second is compressed whatever its name says."""
    with Client(cluster.url) as client:
        for shard in range(3):
            data = tar_of(members(shard))
            client.put("gopen", f"train-{shard:06d}.tar", gzip.compress(data, 1) if shard == 1 else data)
    return cluster


def pairs(samples: list[Sample]) -> list[tuple[str, bytes]]:
    return [(f"{sample['__key__']}.{name}", sample[name]) for sample in samples for name in ("jpg", "cls")]


@pytest.mark.parametrize("options", [{}, {"readers": 1}, {"options": StreamOptions(direct=False)}])
def test_all_samples_in_order(stored: Cluster, options: dict[str, Any]) -> None:
    with gopen.sharditerator_once(f"{stored.url}/gopen/train-@000003.tar", decode=False, handler="raise", **options) as samples:
        found = pairs(list(samples))
    assert found == [member for shard in range(3) for member in members(shard)]
    counts = samples.counts
    assert (counts.samples, counts.shards, counts.shards_skipped, counts.shards_unended, counts.retries) == (600, 3, 0, 0, 0)


def test_it_goes_on_at_the_exact_sample_without_reading_the_shard_again(stored: Cluster) -> None:
    url = f"{stored.url}/gopen/train-*.tar"
    with gopen.sharditerator(url, 2, seed=5, handler="raise", decode=False) as samples:
        whole = [(sample["__source__"], sample["__key__"], samples.state_dict()) for sample in samples]
    for done in (0, 130, 270, 410, 560, 599, 600, 1190):
        with gopen.sharditerator(url, 2, handler="raise", decode=False, readers=1) as again:
            again.load_state_dict(whole[done][2])
            rest = [(sample["__source__"], sample["__key__"]) for sample in again]
        assert rest == [entry[:2] for entry in whole[done + 1 :]]
        left = SIZE_BYTES * (len(whole) - 1 - done)
        compressed = "000001" in whole[done][0]  # that one is read again from its start
        assert again.counts.size <= left * 1.1 + (SAMPLES * SIZE_BYTES if compressed else 5 * MIB), done


def test_a_shard_that_was_replaced_is_another(stored: Cluster) -> None:
    url = f"{stored.url}/gopen/other.tar"
    with Client(stored.url) as client:
        client.put("gopen", "other.tar", tar_of(members(7)))
        with gopen.sharditerator_once(url, decode=False) as samples:
            for _ in range(150):
                next(samples)
            state = samples.state_dict()
        client.put("gopen", "other.tar", tar_of(members(8)))
    with gopen.sharditerator_once(url, decode=False, handler="raise") as again:
        again.load_state_dict(state)
        with pytest.raises(ShardChanged, match=r"other\.tar"):
            next(again)


def test_segments_between_the_samples_that_the_index_names(stored: Cluster) -> None:
    ref = ShardRef(f"{stored.url}/gopen/train-000002.tar")
    with Client(stored.url) as client:
        offsets = [int(offset) for offset in client.sample_offsets("gopen", "train-000002.tar")]
    parts = [(0, 10), (150, 200), (40, 41), (199, 200)]
    segments = [Segment(ref, offsets[lo], count=hi - lo, end=offsets[hi] if hi < SAMPLES else None) for lo, hi in parts]
    with SegmentReader(segments) as reader:
        found = pairs([sample for portion in reader.portions() for sample in portion])
        assert reader.counts.size <= sum(hi - lo for lo, hi in parts) * (SIZE_BYTES + 3072) + 2 * 10240
    assert found == [member for lo, hi in parts for member in members(2)[2 * lo : 2 * hi]]


def test_a_part_of_a_shard_that_is_compressed_to_less_than_where_it_begins(stored: Cluster) -> None:
    """Its name does not tell, and the server only says that there is no such range."""
    data = tar_of([(f"{number:03d}.bin", bytes(10_000)) for number in range(50)])
    with Client(stored.url) as client:
        client.put("gopen", "zeros.tar", gzip.compress(data))
    segment = Segment(ShardRef(f"{stored.url}/gopen/zeros.tar"), 40 * 10_752, count=5)
    with SegmentReader([segment]) as reader:
        found = [sample["__key__"] for portion in reader.portions() for sample in portion]
    assert found == [f"{number:03d}" for number in range(40, 45)]
