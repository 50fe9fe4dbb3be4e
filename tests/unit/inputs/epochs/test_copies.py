"""Batches of samples of shards with two copies: they arrive whole, in order and once, whichever node dies."""

from __future__ import annotations

import io
import random
import tarfile
import time
from collections.abc import Iterator

import numpy as np
import pytest
from fake_node import PIECE_BYTES, FakeCopies, batch_item, quicken, two_copies_of

from dfc.batch.items import BatchItem
from dfc.checksum import checksum_of
from dfc.client import Client
from dfc.inputs.base import Counts, InputError
from dfc.inputs.epochs.gather import BatchRead, BatchShard, Gather

SAMPLES = 300
BODY = random.Random(1).randbytes(SAMPLES * PIECE_BYTES)


@pytest.fixture
def copies() -> Iterator[FakeCopies]:
    yield from two_copies_of(BODY, targets=2)


@pytest.fixture
def client(copies: FakeCopies) -> Iterator[Client]:
    with Client(copies.url) as made:
        quicken(made)
        yield made


SHARDS = [BatchShard("dfc://b/x.tar", "b", "x.tar", checksum_of(BODY), SAMPLES)]


def check(found: list[object], wanted: list[int]) -> None:
    assert len(found) == len(wanted)
    for sample, number in zip(found, wanted, strict=True):
        assert not isinstance(sample, InputError), sample
        assert isinstance(sample, dict)
        assert sample["__key__"] == f"{number:05d}"
        assert sample["bin"] == BODY[number * PIECE_BYTES : (number + 1) * PIECE_BYTES]


@pytest.mark.parametrize("cut", [0, 1000, 1_500_000])
def test_a_batch_goes_on_at_the_other_node(copies: FakeCopies, client: Client, cut: int) -> None:
    first, _ = copies.readers("x.tar")
    wanted = random.Random(2).sample(range(SAMPLES), 200)
    first.fail("POST", cut_after=cut)
    counts = Counts()
    read = BatchRead(client, SHARDS, [(0, number) for number in wanted], counts=counts)
    found: list[object] = []
    for portion in read.samples():
        found += portion
        if first.thread.is_alive():
            first.kill()
    check(found, wanted)


def test_a_loader_goes_on_though_a_node_dies(copies: FakeCopies) -> None:
    first, second = copies.readers("x.tar")
    order = np.random.default_rng(3).permutation(SAMPLES)
    found: list[object] = []
    begun_s = time.monotonic()
    with Gather(SHARDS, [order], lambda: Client(copies.url), size=len(BODY), ahead_bytes=1_000_000) as gather:
        for samples in gather:
            found += samples
            if first.thread.is_alive():
                first.kill()
    check(found, order.tolist())
    assert time.monotonic() - begun_s < 10
    assert second.requests("POST", "/v1/batch")


def test_the_items_are_what_a_tar_has() -> None:
    """The fake node makes what a real one would."""
    with tarfile.open(fileobj=io.BytesIO(batch_item(BatchItem("b", "x.tar", number=2), BODY) + bytes(1024))) as archive:
        assert archive.getnames() == ["00002.bin"]
