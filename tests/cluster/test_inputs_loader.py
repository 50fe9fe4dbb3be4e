"""The loader without a framework against a real cluster: damage that only a checksum tells."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import Cluster
from job_shards import tar_of

from dfc.client import Client
from dfc.inputs.base import ShardBroken
from dfc.inputs.loader import Loader
from dfc.limits import MIB

SAMPLES = 40


@pytest.fixture(scope="module")
def damaged(start_cluster: Callable[..., Cluster]) -> str:
    """Three shards; of the second a byte was changed on the disk. Their last pieces hold no sample."""
    cluster = start_cluster(targets=1)
    members = [(f"{number:02d}.bin", os.urandom(1000)) for number in range(SAMPLES)]
    with Client(cluster.url) as client:
        client.create_bucket("damaged", durability="relaxed")
        for shard in range(3):
            client.put("damaged", f"s-{shard}.tar", tar_of(members) + bytes(5 * MIB))
    (path,) = (path for path in Path(cluster.directory).glob("**/s-1.tar@*") if path.suffix != ".idx")
    whole = path.read_bytes()
    at = whole.index(members[3][1])
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
    return f"{cluster.url}/damaged/s-{{0..2}}.tar"


@pytest.mark.parametrize("spec", ["all", "last"])
def test_damage_that_is_seen_at_the_end_of_a_shard_is_an_error(damaged: str, spec: str) -> None:
    """All samples of the shard were there, one of them with other bytes: it must not end well."""
    shards: Any = damaged if spec == "all" else damaged.replace("{0..2}", "1")
    with Loader(shards, 8, decode=False, shuffle=False) as loader, pytest.raises(ShardBroken, match=r"s-1\.tar: .*xxh3"):
        list(loader)


def test_damage_at_the_end_is_counted_and_takes_one_place(damaged: str) -> None:
    with Loader(damaged, 8, decode=False, shuffle=False, handler="skip") as loader:
        keys = [key for batch in loader for key in batch["__key__"]]
        expected = [f"{number:02d}" for number in range(SAMPLES)] * 3
        expected[2 * SAMPLES - 1] = expected[2 * SAMPLES - 2]  # a copy of the one before
        assert keys == expected
        assert (loader.counts.shards, loader.counts.shards_skipped) == (2, 1)
        assert (loader.counts.samples_skipped, loader.counts.samples_replaced) == (1, 1)
        assert "s-1.tar" in loader.counts.errors[0]
