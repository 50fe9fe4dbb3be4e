"""The loader over local files, which have no index: dealt out, filled up, resumed; what is broken replaced and counted."""

from __future__ import annotations

import json
import pickle
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from job_shards import samples, tar_of

from dfc.inputs.base import Counts, InputError, SampleBroken, ShardBroken, ShardChanged, ShardUnreadable
from dfc.inputs.epochs.corpus import Corpus
from dfc.inputs.epochs.progress import Progress
from dfc.inputs.epochs.slots import Ended, Policy, repaired
from dfc.inputs.loader import Loader, Processing
from dfc.inputs.sources.streams import StreamOptions
from dfc.order import Place

UNEVEN = (7, 0, 13, 5, 31)
TOTAL = sum(UNEVEN)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five shards, 56 samples whose class is their number; and some that are broken."""
    folder = tmp_path_factory.mktemp("shards")
    number = 0
    for shard, count in enumerate(UNEVEN):
        keys = [f"{number + k:03d}" for k in range(count)]
        (folder / f"s-{shard}.tar").write_bytes(tar_of([(f"{key}.cls", str(int(key)).encode()) for key in keys]))
        number += count
    (folder / "bad-0.tar").write_bytes(tar_of(samples(["a", "b", "c"], cls="{number}")))
    (folder / "bad-1.tar").write_bytes(tar_of([("d.cls", b"3"), ("e.cls", b"four"), ("f.cls", b"5")]))
    (folder / "bad-2.tar").write_bytes(tar_of(samples(["g", "h"], cls="{number}"))[:1700])
    return folder


def spec(folder: Path) -> str:
    return f"{folder}/s-{{0..4}}.tar"


def labels(batches: Any) -> list[int]:
    return [int(label) for batch in batches for label in np.atleast_1d(batch["cls"])]


# Shards that are dealt out.


@pytest.mark.parametrize("shuffle", [False, 10, True])
def test_one_reader_has_every_sample_once_and_fills_the_last_batch(folder: Path, shuffle: Any) -> None:
    with Loader(spec(folder), 10, shuffle=shuffle) as loader:
        found = list(loader)
        assert [len(batch["cls"]) for batch in found] == [10] * 6
        times = Counter(labels(found))
        assert set(times) == set(range(TOTAL))
        assert sum(times.values()) - TOTAL == loader.counts.samples_padded == 4
        assert labels(found)[:TOTAL] == list(range(TOTAL)) or shuffle is not False
        assert labels(loader) != labels(found) or shuffle is False  # the next epoch
    with pytest.raises(TypeError, match="epoch_batches"):
        len(loader)


def test_drop_leaves_the_incomplete_batch_out(folder: Path) -> None:
    with Loader(spec(folder), 10, equal="drop") as loader:
        assert len(set(labels(loader))) == 50


def test_single_samples(folder: Path) -> None:
    with Loader(spec(folder), shuffle=False) as loader:
        found = list(loader)
    assert [sample["cls"] for sample in found] == list(range(TOTAL))
    assert found[0]["__key__"] == "000"
    assert found[0]["__source__"].endswith("s-0.tar")


@pytest.mark.parametrize("readers", [(2, 1), (1, 3), (2, 2), (3, 4)])
def test_shards_are_dealt_out(folder: Path, readers: tuple[int, int]) -> None:
    """With at most as many readers as shards each has shards of its own; with more, they share them sample by sample."""
    ranks, workers = readers
    with pytest.raises(ValueError, match=rf"{ranks} ranks × {workers} workers .* epoch_batches"):
        list(Loader(spec(folder), 2, rank=0).batches(Place(0, ranks, 0, workers), 0))
    loader = Loader(spec(folder), 2, epoch_batches=160, seed=5)
    assert loader.length(ranks) == 160
    seen = []
    for rank in range(ranks):
        sizes = []
        for worker in range(workers):
            found = labels(loader.batches(Place(rank, ranks, worker, workers), 3))
            sizes.append(len(found) // 2)
            seen.append(set(found))
        assert sum(sizes) == 160
        assert max(sizes) - min(sizes) <= 1
    # More batches than the share of each has: everybody has gone through all of it.
    if ranks * workers <= 4:
        assert set.union(*seen) == set(range(TOTAL))


def test_readers_that_share_a_shard_take_its_samples_in_turn(folder: Path) -> None:
    loader = Loader(f"{folder}/s-4.tar", 1, epoch_batches=9, shuffle=False)
    assert [labels(loader.batches(Place(rank, 3), 0))[:3] for rank in range(3)] == [[25, 28, 31], [26, 29, 32], [27, 30, 33]]


def test_readers_of_empty_shards_get_others(folder: Path) -> None:
    """Also in an order that is the same in every round; so do those who share a shard of fewer samples than they are."""
    loader = Loader(spec(folder), 1, epoch_batches=3, shuffle=False)
    assert [labels(loader.batches(Place(rank, 5), 0)) for rank in range(5)][:2] == [[0, 1, 2], [7, 8, 9]]
    assert all(len(labels(loader.batches(Place(rank, 40), 0))) == 3 for rank in range(40))


def test_a_shard_that_is_lost_in_every_round_is_one_lost_shard(folder: Path) -> None:
    with Loader([spec(folder), f"{folder}/missing.tar"], 1, epoch_batches=5 * TOTAL, handler="skip", maxerrs=1) as loader:
        assert Counter(labels(loader)) == dict.fromkeys(range(TOTAL), 5)
        assert loader.counts.shards_skipped >= 4


def test_numbers_of_numpy_are_numbers(folder: Path) -> None:
    with Loader(spec(folder), np.int64(4), seed=np.int64(3)) as loader, Loader(spec(folder), 4, seed=3) as same:
        loader.set_epoch(np.int64(2))
        same.set_epoch(2)
        assert labels(loader) == labels(same)
        loader.set_epoch(np.int64(2))
        assert json.dumps(loader.state_dict())


def test_an_iteration_that_begins_after_the_epoch_was_set_does_not_count(folder: Path) -> None:
    with Loader(spec(folder), 4) as loader:
        early = iter(loader)
        loader.set_epoch(5)
        next(early)
        assert loader.state_dict()["batches"] == 0
        assert len(list(loader)) == TOTAL // 4


def test_a_corpus_may_be_cached(folder: Path, tmp_path: Path) -> None:
    corpus = Corpus.open(spec(folder))
    assert Loader(corpus, cache_dir=str(tmp_path)).corpus.options.cache_dir == str(tmp_path)
    assert corpus.options.cache_dir is None
    with pytest.raises(ValueError, match="already has its options"):
        Loader(corpus, options=StreamOptions(token="t"))


def test_nothing_to_go_through_again_is_an_error(folder: Path) -> None:
    with pytest.raises(ShardUnreadable, match="no samples found in 100 rounds"):
        list(Loader(f"{folder}/s-1.tar", 1, epoch_batches=3))


# Resuming.


@pytest.mark.parametrize("options", [{}, {"epoch_batches": 33}, {"shuffle": False}])
def test_resumed_anywhere(folder: Path, options: dict[str, Any]) -> None:
    def loader() -> Loader:
        return Loader(spec(folder), 3, seed=9, **options)

    with loader() as whole:
        epochs = [[labels([batch]) for batch in whole] for _ in range(2)]
    for stop in (0, 1, 10, len(epochs[0])):
        with loader() as first:
            batches = iter(first)
            for _ in range(stop):
                next(batches)
            state = json.loads(json.dumps(first.state_dict()))
        with loader() as second:
            second.load_state_dict(state)
            second.set_epoch(second.epoch)  # as a training loop does
            rest = [labels([batch]) for batch in second]
            if stop < len(epochs[0]):
                assert rest == epochs[0][stop:]
                rest = [labels([batch]) for batch in second]
            if rest:  # where there is no length, the end of an epoch may be a state of its own
                assert rest == epochs[1]


def test_states_of_something_else_are_refused(folder: Path) -> None:
    def loader(shards: str = spec(folder), batch_size: int = 3, **options: Any) -> Loader:
        return Loader(shards, batch_size, epoch_batches=10, **options)

    state = loader().state_dict()
    with pytest.raises(ValueError, match=r"this loader has 2 ranks × 1 workers.* use 1 ranks × 1 workers again"):
        loader(ranks=2).load_state_dict(state)
    with pytest.raises(ValueError, match="seed=0, but this loader has seed=1"):
        loader(seed=1).load_state_dict(state)
    with pytest.raises(ValueError, match="batch_size=3, but this loader has batch_size=4"):
        loader(batch_size=4).load_state_dict(state)
    with pytest.raises(ShardChanged):
        loader(f"{folder}/s-{{0..3}}.tar").load_state_dict(state)
    for other in ({}, {**state, "version": 2}, None):
        with pytest.raises(ValueError, match="not the state of a loader"):
            loader().load_state_dict(other)  # type: ignore[arg-type]


def test_progress() -> None:
    class Source:
        counts = Counts()
        signature: dict[str, Any] = {"seed": 1}

        def length(self, ranks: int = 1) -> int:
            return 3

        def batches(self, place: Place, epoch: int, delivered: int = 0) -> Any:
            raise AssertionError

    progress = Progress(Source())
    assert progress.begin() == (0, 0)
    progress.add()
    assert progress.state_dict(2, 4)["batches"] == 1
    assert progress.begin() == (1, 0)  # left early: the next one
    for _ in range(3):
        progress.add()
    state = progress.state_dict(2, 4)
    assert (state["epoch"], state["batches"], state["ranks"], state["workers"], state["seed"]) == (2, 0, 2, 4, 1)
    progress.end()
    assert progress.begin() == (2, 0)
    progress.load_state_dict({**state, "batches": 2}, 2, 4)
    progress.set_epoch(2)
    assert progress.begin() == (2, 2)
    progress.set_epoch(2)  # again, from its beginning
    assert progress.begin() == (2, 0)
    with pytest.raises(ValueError, match="must not be negative, not -1"):
        progress.set_epoch(-1)


# What is broken.


def broken_shards(folder: Path) -> list[str]:
    return [f"{folder}/bad-{number}.tar" for number in range(3)] + [f"{folder}/gone.tar", f"{folder}/s-0.tar"]


def test_what_is_broken_raises(folder: Path) -> None:
    with pytest.raises(SampleBroken, match=r"'e'.*cls"):
        list(Loader(f"{folder}/bad-1.tar", 2, shuffle=False))
    with pytest.raises(ShardBroken, match=r"bad-2"):
        list(Loader(f"{folder}/bad-2.tar", 2, shuffle=False))
    with pytest.raises(ShardUnreadable, match=r"gone"):
        list(Loader(f"{folder}/gone.tar", 2, shuffle=False))


def test_what_is_broken_is_left_out_and_counted(folder: Path) -> None:
    with Loader(broken_shards(folder), 1, shuffle=False, handler="skip") as loader:
        found = labels(loader)
    # In the place of the broken sample stands the one before; shards of unknown length have no places.
    assert found == [0, 1, 2, 3, 3, 5, 0, *range(7)]
    counts = loader.counts
    assert (counts.shards_skipped, counts.samples_replaced, counts.samples) == (2, 1, 14)
    assert counts.samples_skipped == 2  # one that is no number, one cut off
    assert any("gone" in text for text in counts.errors)
    assert any("bad-2" in text for text in counts.errors)


def test_a_handler_that_ends_quietly(folder: Path) -> None:
    told: list[Exception] = []

    def handler(problem: Exception) -> bool:
        told.append(problem)
        return False

    with Loader(broken_shards(folder), 1, shuffle=False, handler=handler) as loader:
        assert labels(loader) == [0, 1, 2, 3]
    assert [type(problem) for problem in told] == [SampleBroken]


def test_too_many_errors_raise_whatever_the_handler_says(folder: Path) -> None:
    gone = [f"{folder}/gone-{number}.tar" for number in range(5)]
    with pytest.raises(ShardUnreadable):
        list(Loader([*gone, f"{folder}/s-0.tar"], 1, shuffle=False, handler="skip", maxerrs=4))
    with Loader([*gone, f"{folder}/s-0.tar"], 1, shuffle=False, handler="skip", maxerrs=5) as loader:
        assert labels(loader) == list(range(7))


def test_places_of_broken_samples_are_filled() -> None:
    def run(items: list[Any], maxerrs: int = 10) -> tuple[list[Any], Counts]:
        counts = Counts()
        return list(repaired(items, Policy("skip", maxerrs, counts), counts)), counts

    lost = ShardUnreadable("gone", url="u")
    sample = SampleBroken("bad", key="k")
    assert run([lost, lost, 1, sample, 2, lost, 3])[0] == [1, 1, 1, 1, 2, 2, 3]
    counts = run([lost, lost, 1, sample, 2, lost, 3])[1]
    assert (counts.shards_skipped, counts.samples_skipped, counts.samples_replaced) == (1, 4, 4)
    with pytest.raises(ShardUnreadable, match="not a single sample can be read"):
        run([lost, lost])
    with pytest.raises(SampleBroken):
        run([1, *[SampleBroken(f"{n}") for n in range(4)]], maxerrs=3)
    several = [item for n in range(9) for item in (SampleBroken(f"{n}"), n)]
    assert len(run(several, maxerrs=1)[0]) == 18  # each good one gives one back
    with pytest.raises(Ended):
        list(repaired([sample], Policy(lambda _: False, 9, counts), counts))


def test_fields_are_chosen_and_called_by_their_first_name() -> None:
    processing = Processing(["jpg;png", "CLS"], {"*": False}, False, None)
    assert processing.wanted == {"jpg", "png", "cls"}
    sample = {"__key__": "k", "__source__": "s", "png": b"p", "cls": b"1", "json": b"{}"}
    assert processing(sample) == {"__key__": "k", "__source__": "s", "jpg": b"p", "cls": b"1"}
    missing = processing({"__key__": "k", "__source__": "s", "png": b"p"})
    assert isinstance(missing, SampleBroken)
    assert str(missing).endswith("has no field 'cls', only 'png'")
    assert missing.key == "k"
    assert pickle.loads(pickle.dumps(processing)).wanted == processing.wanted  # noqa: S301
    with pytest.raises(ValueError, match="list of extensions"):
        Processing("jpg", True, False, None)


def test_a_transform_that_fails_is_about_its_sample() -> None:
    processing = Processing(None, True, False, lambda sample: 1 // sample["cls"])
    assert processing({"__key__": "k", "__source__": "s", "cls": b"1"}) == 1
    problem = processing({"__key__": "k", "__source__": "s", "cls": b"0"})
    assert isinstance(problem, SampleBroken)
    assert isinstance(problem.__cause__, ZeroDivisionError)
    assert str(problem).endswith("transform failed: ZeroDivisionError: integer division or modulo by zero")
    passed = InputError("before")
    assert processing(passed) is passed


def test_a_field_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "s.tar").write_bytes(tar_of(samples(["a", "b"], cls="1", jpg="x", JSON="1")))
    said = r"'a'.* has no field 'jpeg' or 'png', only 'cls'; present but not requested: 'jpg', 'json'"
    with pytest.raises(SampleBroken, match=said):
        list(Loader(f"{tmp_path}/s.tar", 2, shuffle=False, fields=["jpeg;png", "cls"]))


def test_a_transform_that_returns_nothing_is_an_error(folder: Path) -> None:
    def transform(sample: dict[str, Any]) -> None:
        sample["cls"] += 1

    with pytest.raises(SampleBroken, match=r"'000'.*: transform returned None; it must return the sample"):
        list(Loader(f"{folder}/s-0.tar", 7, shuffle=False, transform=transform))


def test_a_sample_that_lacks_a_field_is_replaced_in_its_batch(tmp_path: Path) -> None:
    members = [*samples(["a", "b"], cls="1", txt="x"), ("c.cls", b"2"), *samples(["d"], cls="3", txt="x")]
    (tmp_path / "s.tar").write_bytes(tar_of(members))
    with pytest.raises(SampleBroken, match=r"'c'.*'txt'"):
        list(Loader(f"{tmp_path}/s.tar", 4, shuffle=False))
    loader = Loader(f"{tmp_path}/s.tar", 4, shuffle=False, handler="skip")
    (batch,) = loader
    assert batch["__key__"] == ["a", "b", "a", "d"]
    assert (loader.counts.samples_replaced, loader.counts.samples_skipped) == (1, 1)

    def without_keys(sample: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in sample.items() if not name.startswith("_")}

    loader = Loader(f"{tmp_path}/s.tar", 4, shuffle=False, handler="skip", transform=without_keys)
    (batch,) = loader
    assert batch["cls"].tolist() == [1, 1, 1, 3]
    assert (loader.counts.samples_replaced, loader.counts.samples_skipped) == (1, 1)


def test_collate_and_transform_make_any_batch(folder: Path) -> None:
    loader = Loader(f"{folder}/s-0.tar", 7, shuffle=False, transform=lambda sample: (sample["__key__"], sample["cls"]))
    ((keys, classes),) = loader
    assert keys == [f"{number:03d}" for number in range(7)]
    assert classes.tolist() == list(range(7))
    assert list(Loader(f"{folder}/s-0.tar", 7, shuffle=False, collate=len)) == [7]


def test_mistakes_are_named(folder: Path) -> None:
    with pytest.raises(ValueError, match="'global', not 'sideways'"):
        Loader(spec(folder), shuffle="sideways")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs the index"):
        Loader(spec(folder), shuffle="global")
    with pytest.raises(ValueError, match="epoch of 0"):
        Loader(spec(folder), epoch_batches=0)


def test_two_iterations_at_a_time(folder: Path) -> None:
    """Are two epochs; the state is that of the second."""
    with Loader(spec(folder), 8) as loader, Loader(spec(folder), 8) as other:
        whole = [labels(other), labels(other)]
        first, second = iter(loader), iter(loader)
        pairs = list(zip(first, second, strict=True))
        assert labels(batch for batch, _ in pairs) == whole[0]
        assert labels(batch for _, batch in pairs) == whole[1]
        assert loader.epoch == 2


def test_a_loader_left_in_the_middle_ends_its_threads(folder: Path) -> None:
    before = set(threading.enumerate())
    loader = Loader(spec(folder), 2)
    next(iter(loader))
    loader.close()
    assert set(threading.enumerate()) <= before
    batches = iter(pickle.loads(pickle.dumps(loader)))  # noqa: S301
    next(batches)
    del batches, loader
    assert set(threading.enumerate()) <= before
