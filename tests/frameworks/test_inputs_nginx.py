"""The same loaders against nginx, which serves files and knows nothing of shards; and what is said where an index is needed."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from job_shards import samples, tar_of

from dfc.errors import DfcError
from dfc.inputs import filters as df
from dfc.inputs import gopen
from dfc.inputs.torch import DataLoader, ShardDataset
from loadtest.nginx import Nginx, nginx

SHARDS = 3
# Five shards of very different sizes; 50 samples.
UNEVEN = [[f"{shard}/{number:03d}" for number in range(count)] for shard, count in enumerate((3, 17, 8, 1, 21))]


@pytest.fixture(scope="module")
def server(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    """The published shards, and five uneven ones."""
    with nginx(tmp_path_factory.mktemp("nginx"), workers=1) as running:
        for number in range(SHARDS):
            shutil.copy(data / "sample.tgz", running.root / f"imagenet-{number:06d}.tgz")
        for number, keys in enumerate(UNEVEN):
            (running.root / f"uneven-{number}.tar").write_bytes(tar_of(samples(keys, txt="{key}", cls="{number}")))
        yield running


def test_the_published_lines(server: Nginx) -> None:
    """For one epoch, so that they end."""
    dataset = gopen.sharditerator(f"{server.url}/imagenet-@000003.tgz", 1)
    pipeline = df.compose(df.shuffle(1000), df.batch(20))
    shapes = Counter(batch["png"].shape for batch in pipeline(dataset))
    assert shapes == {(20, 28, 28, 3): 13, (10, 28, 28, 3): 1}
    assert (dataset.counts.shards, dataset.counts.samples, dataset.counts.retries) == (3, 270, 0)


def test_a_list_of_shards_beside_the_shards(server: Nginx) -> None:
    """`.shards`: URLs relative to its own, and replicas, of which one that is gone does no harm."""
    shards = [["gone.tar", "uneven-0.tar"], ["uneven-1.tar"], [f"{server.url}/uneven-2.tar", "uneven-2.tar"]]
    (server.root / "some.shards").write_text(json.dumps({"shards": shards, "metadata": {"made": "by hand"}}))
    dataset = gopen.sharditerator_once(f"{server.url}/some.shards", handler="raise", seed=1)
    assert [sample["txt"] for sample in dataset] == [key for keys in UNEVEN[:3] for key in keys]


def test_names_that_only_a_listing_could_give(server: Nginx) -> None:
    with pytest.raises(DfcError, match=r"\*|list"):
        gopen.sharditerator_once(f"{server.url}/uneven-*.tar")


def keys_of(batches: list[dict]) -> list[str]:
    return [key for batch in batches for key in batch["__key__"]]


@pytest.mark.parametrize("workers", [0, 1])
def test_one_worker_reads_every_sample_once(server: Nginx, workers: int) -> None:
    """And fills its last batch, as it does with an index; how many there will be cannot be said."""
    dataset = ShardDataset(f"{server.url}/uneven-{{0..4}}.tar", 8, seed=3)
    loader = DataLoader(dataset, num_workers=workers)
    with pytest.raises(TypeError, match="epoch_batches"):
        len(loader)
    batches = list(loader)
    assert [len(batch["__key__"]) for batch in batches] == [8] * 7
    found = Counter(keys_of(batches))
    assert set(found) == {key for keys in UNEVEN for key in keys}
    assert sum(found.values()) == 56


@pytest.mark.parametrize(("ranks", "workers"), [(2, 0), (1, 2), (2, 2)])
def test_more_readers_need_to_be_told_how_long_an_epoch_is(server: Nginx, ranks: int, workers: int) -> None:
    spec = f"{server.url}/uneven-{{0..4}}.tar"
    with pytest.raises(ValueError, match="epoch_batches"):
        list(DataLoader(ShardDataset(spec, 4, rank=0, ranks=ranks), num_workers=workers))
    batches = []
    for rank in range(ranks):
        dataset = ShardDataset(spec, 4, rank=rank, ranks=ranks, epoch_batches=5, seed=1)
        loader = DataLoader(dataset, num_workers=workers)
        assert len(loader) == 5
        found = list(loader)
        assert [len(batch["__key__"]) for batch in found] == [4] * 5
        batches += found
    assert set(keys_of(batches)) <= {key for keys in UNEVEN for key in keys}


def test_resuming_without_an_index(server: Nginx) -> None:
    def loader() -> DataLoader:
        return DataLoader(ShardDataset(f"{server.url}/uneven-{{0..4}}.tar", 4, epoch_batches=12, seed=1), num_workers=2)

    whole = keys_of(list(loader()))
    first = loader()
    batches = iter(first)
    begun = keys_of([next(batches) for _ in range(5)])
    state = json.loads(json.dumps(first.state_dict()))
    second = loader()
    second.load_state_dict(state)
    assert begun + keys_of(list(second)) == whole
