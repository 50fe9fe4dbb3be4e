"""Rows about loaders and searches, small: they read what they say from clusters of their own, and refuse what was not read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadtest.bench import inputs, searching
from loadtest.bench.context import Bench
from loadtest.inputs.dataset import plain_tar, stored
from loadtest.processes import ProcessFailed


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(Console(quiet=True), pairs=1, parent=tmp_path)
    yield made
    made.close()


def test_samples_beside_webdataset(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "SMALL_SAMPLES", 200)
    monkeypatch.setattr(inputs, "SMALL_SHARDS", 3)
    (row,) = inputs.samples_small(bench)
    assert row.samples["ours"][0] > 0
    assert row.reached == pytest.approx(row.samples["ours"][0] / row.samples["theirs"][0])
    assert not (bench.memory / "inputs").exists()


def test_a_resumed_epoch_is_counted_and_compared(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "RESUME_SAMPLES", 300)
    monkeypatch.setattr(inputs, "RESUME_SHARDS", 2)
    monkeypatch.setattr(inputs, "LARGE_BYTES", 4000)
    with stored(bench.memory / "inputs", [plain_tar(300, 4000)], 2) as dataset:
        resume, beyond = inputs._resume(bench, dataset, 1.0)
    assert (resume.name, resume.required, beyond.name) == ("resume", 1.0, "resume-bytes")
    assert 0 < resume.reached < 60
    assert beyond.samples["fetched_bytes"][0] > 300 * 4000
    assert beyond.reached < 2


def test_a_key_is_looked_up_beside_the_list_of_keys(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "SHARDS", 30)
    monkeypatch.setattr(searching, "SAMPLES", 4)
    (row,) = searching.search(bench)
    assert (row.name, row.required, row.unit, row.at_most) == ("search", 0.5, "s", True)
    assert [len(row.samples[each]) for each in ("first_s", "look_up_s", "list_s", "contains_s")] == [1, 1, 1, 1]
    assert row.reached == max(row.samples["first_s"][0], row.samples["look_up_s"][0]) > 0
    assert not (bench.directory / "search").exists()
    monkeypatch.setattr(searching, "_key", lambda shard, sample: f"other-{shard}-{sample}")
    with pytest.raises(ProcessFailed, match="found 0 samples instead of"):
        searching.search(bench)


def test_what_was_not_read_is_no_figure(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def less(name: str, **options: Any) -> dict[str, Any]:
        return {**inputs_read(name, **options), "samples": 199}

    inputs_read = inputs.read
    monkeypatch.setattr(inputs, "SMALL_SAMPLES", 200)
    monkeypatch.setattr(inputs, "SMALL_SHARDS", 1)
    monkeypatch.setattr(inputs, "read", less)
    with pytest.raises(ProcessFailed, match="199 samples instead of 200"):
        inputs.samples_small(bench)
