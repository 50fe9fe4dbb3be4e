"""What loaders say about themselves: in a line, and when much of an epoch is repeated."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from job_shards import samples, tar_of

from dfc.inputs.base import ShardRef
from dfc.inputs.epochs.corpus import Corpus, Shard
from dfc.inputs.epochs.slots import spec_shown
from dfc.inputs.loader import Loader
from dfc.inputs.mixing import Mixture
from dfc.inputs.torch import DataLoader, ShardDataset


def corpus(*counts: int) -> Corpus:
    """As it is looked up in a cluster."""
    return Corpus(tuple(Shard(ShardRef(f"http://u:p@h/b/{n}.tar?sign=x"), "e", 10, count) for n, count in enumerate(counts)))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [
        record.getMessage() for record in caplog.records if record.name == "dfc.inputs" and record.levelno == logging.WARNING
    ]
    caplog.clear()
    return found


@pytest.mark.parametrize(
    ("count", "batch", "ranks", "said"),
    [
        (33, 256, 1, "223 samples are repeated to fill an epoch of 33 samples up to full batches of 256 for each of 1 ranks; "
         "use a smaller batch_size"),
        (601, 100, 2, "199 samples are repeated to fill an epoch of 601 samples up to full batches of 100 for each of 2 ranks; "
         'use a smaller batch_size or fewer ranks or equal="drop", which leaves out the rest'),
        (6010, 100, 2, None),
    ],
)  # fmt: skip
def test_much_padding_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, count: int, batch: int, ranks: int, said: str | None
) -> None:
    shards = corpus(count - 3, 3)
    for options in ({"rank": 1} if ranks > 1 else {"equal": "drop"}, {"epoch_batches": 90}, {"equal": "drop"}):
        Loader(shards, batch, ranks=ranks, **options)  # type: ignore[arg-type]
        assert warnings(caplog) == []
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    monkeypatch.setenv("RANK", "0")
    dataset = ShardDataset(shards, batch)
    assert warnings(caplog) == ([said] if said else [])
    Loader(shards, batch, ranks=ranks)
    assert warnings(caplog) == []
    assert dataset.source.place.ranks == ranks  # type: ignore[attr-defined]


def test_much_padding_of_files_is_told_at_their_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "s.tar").write_bytes(tar_of(samples(["a", "b", "c"], cls="1")))
    loader = Loader(f"{tmp_path}/s.tar", 7)
    for epoch in range(2):
        assert len(next(iter(loader))["cls"]) == 7
        assert len(warnings(caplog)) == (epoch == 0)
    list(Loader(f"{tmp_path}/s.tar", 3))
    assert warnings(caplog) == []


def test_a_loader_in_a_line(tmp_path: Path) -> None:
    shards = corpus(30, 3)
    spec = "[http://h/b/0.tar?…, …]"
    assert (
        repr(Loader(shards, 4, ranks=2, equal="drop")) == f"Loader({spec}: 2 shards, 33 samples, 4 batches for each of 2 ranks)"
    )
    assert repr(Loader(shards)) == f"Loader({spec}: 2 shards, 33 samples, 33 samples for each of 1 ranks)"
    assert repr(Loader(shards, 400, equal="drop")) == f"Loader({spec}: 2 shards, 33 samples)"
    dataset = ShardDataset(shards, 3)
    assert repr(dataset) == f"ShardDataset({spec}: 2 shards, 33 samples, 11 batches for each of 1 ranks)"
    assert repr(DataLoader(dataset, 2)) == f"DataLoader({dataset!r}, 2 workers)"
    (tmp_path / "s.tar").write_bytes(tar_of(samples(["a"], cls="1")))
    url = f"{tmp_path}/s.tar"
    assert repr(ShardDataset(url, 1)).endswith("s.tar: 1 shards)")
    mixed = Mixture([Loader(shards), Loader(shards)], [1, 2], 6)
    assert repr(ShardDataset(mixed)) == "ShardDataset(2 sources, 66 samples, 11 batches for each of 1 ranks)"
    assert repr(mixed) == "Mixture(2 sources, 66 samples, 11 batches for each of 1 ranks)"


def test_long_specs_are_cut() -> None:
    what: Any = [["x" * 500, "y"], "z"]
    assert spec_shown(what) == f"[[{'x' * 100}…, …], …]"


def test_a_dataloader_has_the_counts_of_its_dataset(tmp_path: Path) -> None:
    (tmp_path / "s.tar").write_bytes(tar_of(samples(["a", "b"], cls="1")))
    loader = DataLoader(ShardDataset(f"{tmp_path}/s.tar", 2))
    list(loader)
    assert loader.counts.samples == 2
