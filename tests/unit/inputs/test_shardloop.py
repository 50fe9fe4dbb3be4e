"""`sharditerator`: order and epochs, errors and who decides about them, fields, and going on at any sample."""

from __future__ import annotations

import gc
import gzip
import json
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import wait_for
from job_shards import tar_of

from dfc.inputs import gopen
from dfc.inputs.base import InputError, SampleBroken, ShardBroken, ShardChanged, ShardUnreadable
from dfc.order import Rules, shard_order

SHARDS = 5


def shard_of(prefix: str, samples: int, bad: tuple[int, ...] = ()) -> bytes:
    """Samples of a text and a number; in those of `bad` the number is none."""
    members = []
    for number in range(samples):
        key = f"{prefix}{number}"
        members += [(f"{key}.txt", key.encode()), (f"{key}.cls", b"none" if number in bad else b"%d" % number)]
    return tar_of(members)


@pytest.fixture
def shards(tmp_path: Path) -> str:
    """Five shards of 1, 2, 3, 4 and 5 samples, a0 to e4; two of them compressed."""
    for number in range(SHARDS):
        data = shard_of("abcde"[number], number + 1)
        (tmp_path / f"train-{number:04d}.tar").write_bytes(gzip.compress(data) if number % 2 else data)
    return str(tmp_path / "train-@0005.tar")


Store = Callable[[str, bytes], str]


def test_nothing_at_all_is_an_error(tmp_path: Path, shards: str) -> None:
    """Whoever trains on nothing would not notice."""
    missing = f"{tmp_path}/none-@0003.tar"
    for handler in ("warn", "skip"):
        with pytest.raises(ShardUnreadable, match=r"none-000[012]"):
            list(gopen.sharditerator_once(missing, handler=handler))
    assert list(gopen.sharditerator_once(missing, maxerrs=None, handler="skip")) == []
    assert list(gopen.sharditerator_once(missing, handler=lambda problem: False)) == []
    assert len(list(gopen.sharditerator_once([f"{tmp_path}/none.tar", shards], handler="skip"))) == 15


def test_an_iterator_that_is_forgotten_after_an_error_ends_its_threads(tmp_path: Path) -> None:
    """At once, and not when the garbage collector comes by."""
    (tmp_path / "broken.tar").write_bytes(shard_of("b", 2, bad=(0,)))
    before = set(threading.enumerate())
    gc.disable()
    try:
        iterator = gopen.sharditerator(f"{tmp_path}/broken.tar", handler="skip", shuffle=False)
        assert next(iterator)["__key__"] == "b1"
        del iterator
        wait_for(lambda: set(threading.enumerate()) <= before, "the threads to end")
    finally:
        gc.enable()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    def write(name: str, data: bytes) -> str:
        (tmp_path / name).write_bytes(data)
        return str(tmp_path / name)

    return write


def keys(url: Any, **options: Any) -> list[str]:
    with gopen.sharditerator(url, **options) as samples:
        return [sample["__key__"] for sample in samples]


IN_ORDER = [f"{'abcde'[shard]}{number}" for shard in range(SHARDS) for number in range(shard + 1)]


def test_once_is_in_the_order_of_the_shards(shards):
    with gopen.sharditerator_once(shards) as samples:
        found = list(samples)
    assert [sample["__key__"] for sample in found] == IN_ORDER
    assert found[1] == {"__key__": "b0", "__source__": shards.replace("@0005", "0001"), "txt": "b0", "cls": 0}
    assert (samples.counts.samples, samples.counts.shards) == (15, 5)
    assert list(samples) == []


@pytest.mark.parametrize("epochs", [1, 2, 7])
def test_every_epoch_has_every_sample_in_an_order_that_the_seed_decides(shards, epochs):
    found = keys(shards, epochs=epochs, seed=11)
    rules = Rules(seed=11)
    expected = [
        f"{'abcde'[shard]}{number}"
        for epoch in range(epochs)
        for shard in shard_order(SHARDS, rules, epoch)
        for number in range(shard + 1)
    ]
    assert found == expected
    assert keys(shards, epochs=epochs, shuffle=False) == IN_ORDER * epochs


def test_without_a_seed_the_order_is_another_each_time(shards):
    assert len({tuple(keys(shards, epochs=1)) for _ in range(20)}) > 5
    samples = gopen.sharditerator(shards, 1)
    assert keys(shards, epochs=1, seed=samples.seed) == [sample["__key__"] for sample in samples]


def test_the_epoch_of_the_last_sample_can_be_read(shards):
    with gopen.sharditerator(shards, epochs=3) as samples:
        assert [samples.epoch for _ in samples] == [0] * 15 + [1] * 15 + [2] * 15


def test_decoding_is_as_asked_for(shards):
    with gopen.sharditerator_once(shards, decode=False) as samples:
        assert next(samples)["cls"] == b"0"
    with gopen.sharditerator_once(shards, decode={"cls": lambda data: [data]}) as samples:
        assert next(samples)["cls"] == [b"0"]
    with gopen.sharditerator_once(shards, decode=lambda sample: {"n": len(sample)}) as samples:
        assert next(samples)["n"] == 4


def test_only_the_fields_that_are_wanted(shards):
    with gopen.sharditerator_once(shards, fields=["cls"]) as samples:
        assert next(samples).keys() == {"__key__", "__source__", "cls"}
    for fields in ("png;txt cls", ["png;txt", "cls"]):
        with gopen.sharditerator_once(shards, fields=fields) as samples:
            assert next(samples).keys() == {"__key__", "__source__", "txt", "cls"}
    with gopen.sharditerator_once(shards, fields="png txt", handler="raise") as samples:
        with pytest.raises(
            SampleBroken,
            match=r"train-0000\.tar: sample 'a0' has no field 'png', only 'txt'.* present but not requested: 'cls'",
        ) as caught:
            next(samples)
    assert (caught.value.key, caught.value.url) == ("a0", shards.replace("@0005", "0000"))
    with pytest.raises(ValueError, match="fields="):
        gopen.sharditerator(shards, fields="")


def test_broken_samples_are_logged_counted_and_left_out(store, caplog):
    url = store("x.tar", shard_of("x", 30, bad=(3, 7, 8)))
    with gopen.sharditerator_once(url) as samples:
        found = [sample["cls"] for sample in samples]
    assert found == [number for number in range(30) if number not in (3, 7, 8)]
    assert (samples.counts.samples, samples.counts.samples_skipped, len(samples.counts.errors)) == (27, 3, 3)
    assert "'x3'" in caplog.text
    assert "x.tar" in caplog.text


def test_who_decides(store):
    url = store("x.tar", shard_of("x", 30, bad=(3, 7)))
    with pytest.raises(SampleBroken), gopen.sharditerator_once(url, handler="raise") as samples:
        list(samples)
    asked = []

    def decide(problem: Exception) -> bool:
        asked.append(problem)
        return len(asked) < 2

    assert keys(url, epochs=1, handler=decide) == [f"x{number}" for number in range(7) if number != 3]
    assert [type(problem) for problem in asked] == [SampleBroken] * 2
    with pytest.raises(ValueError, match="handler"):
        gopen.sharditerator(url, handler="shrug")  # type: ignore[arg-type]


def test_so_many_errors_raise_and_good_samples_make_up_for_them(store):
    page = store("page.tar", b"<html>" * 200)
    good = store("good.tar", shard_of("g", 1))
    assert keys([*[page] * 9, good], epochs=1, shuffle=False) == ["g0"]
    with pytest.raises(ShardBroken, match=r"page\.tar"):
        keys([page] * 10, epochs=1)
    with pytest.raises(ShardBroken):
        keys([page, page], epochs=1, maxerrs=2)
    assert keys([page] * 30, epochs=1, maxerrs=None) == []
    assert keys([page, good] * 30, epochs=1, shuffle=False, maxerrs=2) == ["g0"] * 30
    with pytest.raises(ShardBroken):
        keys([page, page, good] * 2, epochs=1, shuffle=False, maxerrs=3)
    for endless in ("warn", "skip"):
        with pytest.raises(ShardUnreadable):
            keys("/nowhere/@0003.tar", handler=endless)


def test_an_endless_loop_over_nothing_ends(store):
    empty = store("empty.tar", shard_of("", 0))
    assert keys([empty] * 3, epochs=1) == []
    with pytest.raises(InputError, match="no samples found in any of 3 shards"):
        keys([empty] * 3)
    with pytest.raises(InputError, match="no samples found in any of 2 shards"):
        keys([store("page.tar", b"<html>" * 200)] * 2, maxerrs=None, handler="skip")


@pytest.mark.parametrize("options", [{"seed": 4}, {"shuffle": False}, {"seed": 4, "fields": "txt"}])
def test_it_goes_on_at_any_sample(shards, options):
    total = 40
    with gopen.sharditerator(shards, epochs=3, **options) as samples:
        states = [samples.state_dict()]
        whole = []
        for sample in samples:
            whole.append(sample)
            states.append(samples.state_dict())
    for done in range(0, total, 3):
        state = json.loads(json.dumps(states[done]))
        with gopen.sharditerator(shards, epochs=3, fields=options.get("fields")) as again:
            again.load_state_dict(state)
            assert list(again) == whole[done:]
            assert again.seed == samples.seed


def test_it_goes_on_after_broken_samples_and_shards(store):
    shards = {"a.tar": shard_of("a", 9, bad=(0, 4, 8)), "page.tar": b"<html>" * 200, "b.tar": shard_of("b", 3)}
    urls = [store(name, data) for name, data in shards.items()]
    with gopen.sharditerator(urls, epochs=2, shuffle=False) as samples:
        found = [(sample["__key__"], samples.state_dict()) for sample in samples]
    assert len(found) == 18
    for done, (_, state) in enumerate(found):
        again = gopen.sharditerator(urls, epochs=2)
        again.load_state_dict(state)
        assert [sample["__key__"] for sample in again] == [key for key, _ in found[done + 1 :]]


def test_large_shards_are_not_read_again_from_the_start(store):
    url = store("x.tar", tar_of([(f"{number:03d}.bin", np.random.default_rng(number).bytes(100_000)) for number in range(400)]))
    with gopen.sharditerator_once(url) as samples:
        for _ in range(350):
            next(samples)
        state = samples.state_dict()
    with gopen.sharditerator_once(url) as again:
        again.load_state_dict(state)
        assert [sample["__key__"] for sample in again] == [f"{number:03d}" for number in range(350, 400)]
        assert again.counts.size < 10 << 20


def test_a_state_is_that_of_its_shards_and_its_version(shards, store):
    samples = gopen.sharditerator(shards, seed=1)
    next(samples)
    state = samples.state_dict()
    samples.close()
    for url in ("/other/@0005.tar", shards.replace("@0005", "@0004")):
        with pytest.raises(ValueError, match="other shards"):
            gopen.sharditerator(url).load_state_dict(state)
    with pytest.raises(ValueError, match="version 2"):
        samples.load_state_dict({**state, "version": 2})
    url = store("x.tar", shard_of("x", 3))
    with gopen.sharditerator_once(url) as samples:
        next(samples)
        state = samples.state_dict()
    store("x.tar", shard_of("other", 3))
    with gopen.sharditerator_once(url, handler="raise") as again:
        again.load_state_dict(state)
        with pytest.raises(ShardChanged):
            next(again)


def test_going_on_with_the_replica_that_was_read(store):
    urls = [store(name, shard_of("x", 9)) for name in ("p.tar", "q.tar", "r.tar")]
    for number, url in enumerate(urls):
        os.utime(url, (number, number))  # each has an etag of its own, as on servers of its own
    first = lambda url: [url, *(other for other in urls if other != url)]  # noqa: E731
    for before in urls:
        with gopen.sharditerator_once([first(before)], handler="raise") as samples:
            assert next(samples)["__source__"] == before
            state = samples.state_dict()
        for now in urls:
            with gopen.sharditerator_once([first(now)], handler="raise") as again:
                assert json.loads(json.dumps(state)) == state
                again.load_state_dict(state)
                assert [(sample["__key__"], sample["__source__"]) for sample in again] == [
                    (f"x{n}", before) for n in range(1, 9)
                ]
    with gopen.sharditerator_once([first(urls[2])]) as samples:
        assert next(samples)["__source__"] == urls[2], "without a state the first is the first"
        state = {name: value for name, value in samples.state_dict().items() if name != "replica"}
        samples.load_state_dict(state)
        assert next(samples)["__key__"] == "x1", "states that were saved before replicas counted"


def sent(samples: gopen.ShardIterator) -> gopen.ShardIterator:
    """As another process gets it."""
    return pickle.loads(pickle.dumps(samples))  # noqa: S301  (our own)


def test_it_travels_to_other_processes_and_goes_on_there(shards):
    samples = gopen.sharditerator(shards, epochs=2, seed=3, fields="cls txt")
    whole = list(sent(samples))
    assert len(whole) == 30
    assert [next(samples) for _ in range(17)] == whole[:17]
    again = sent(samples)
    assert list(again) == list(samples) == whole[17:]
    assert again.counts.samples == 30
    samples.close()
    assert list(sent(samples)) == []


def test_closing_ends_it(shards):
    samples = gopen.sharditerator(shards)
    next(samples)
    samples.close()
    assert list(samples) == []
    gopen.sharditerator(shards).close()
