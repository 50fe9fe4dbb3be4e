"""The order of samples: every sample once, near enough to its place, the same for the same seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dfc.inputs.filters as df

COUNT = 2000


@given(st.integers(0, 60), st.integers(0, 20), st.integers(0, 30), st.integers())
def test_every_sample_comes_once(count, bufsize, initial, seed):
    source = range(count)
    found = list(df.shuffle(bufsize, initial, seed=seed)(source))
    assert sorted(found) == list(source)
    assert all(place >= number - max(bufsize, 1) for place, number in enumerate(found))


def test_a_seed_is_an_order_and_each_pass_has_its_own():
    found = df.shuffle(100, seed=7)(range(COUNT))
    first, second = list(found), list(found)
    assert first != second
    again = df.shuffle(100, seed=7)(range(COUNT))
    assert (list(again), list(again)) == (first, second)
    assert list(df.shuffle(100, seed=8)(range(COUNT))) != first
    assert list(df.shuffle(100)(range(COUNT))) != list(df.shuffle(100)(range(COUNT)))
    assert list(df.shuffle(100, seed=7)(iter(range(COUNT)))) == first


def test_the_first_sample_comes_when_initial_ones_are_there():
    read: list[int] = []

    def source() -> Iterator[int]:
        for number in range(COUNT):
            read.append(number)
            yield number

    found = df.shuffle(1000, initial=10)(source())
    next(found)
    assert len(read) == 12
    for _ in range(980):
        next(found)
    assert 1900 < len(read) <= 1000 + 981, "it fills up while it gives"


def test_a_full_buffer_mixes_well():
    places = [place - number for place, number in enumerate(df.shuffle(500, initial=500, seed=1)(range(10_000)))]
    far = sum(abs(distance) > 100 for distance in places) / len(places)
    assert far > 0.6
    few = Counter(next(iter(df.shuffle(8, seed=seed)(range(8)))) for seed in range(800))
    assert all(60 < few[number] < 140 for number in range(8)), "fewer samples than the buffer holds are shuffled too"


@pytest.mark.parametrize("wrong", [{"bufsize": -1}, {"initial": -1}])
def test_shuffle_refuses(wrong):
    with pytest.raises(ValueError):
        df.shuffle(**wrong)


def test_merge_gives_all_of_all():
    found = list(df.merge([range(100), range(100, 110), []], seed=1))
    assert sorted(found) == list(range(110))
    assert [number for number in found if number < 100] == list(range(100)), "each source keeps its order"
    assert found != list(range(110))
    again = df.merge([range(100), range(100, 110)], seed=1)
    assert list(again) != list(again)
    assert list(df.merge([])) == []
    once = df.merge([iter(range(3)), range(3)])
    assert sorted(once) == [0, 0, 1, 1, 2, 2]
    assert list(once) == []


def test_merge_draws_by_weight():
    first = list(df.sliced(4000)(df.merge([["a"] * 4000, ["b"] * 4000], weights=[3, 1], seed=2)))
    assert 0.72 < first.count("a") / 4000 < 0.78
    for weights in ([1], [1, 0], [1, -1], [1, float("nan")]):
        with pytest.raises(ValueError, match="positive weight"):
            df.merge([[], []], weights=weights)


def test_concat_counts():
    one, two = [{"a": 1}, {"a": 2}], [{"a": 3}]
    found = df.concat([one, two])
    expected = [{"a": 1, "__count__": 0}, {"a": 2, "__count__": 1}, {"a": 3, "__count__": 2}]
    assert list(found) == list(found) == expected
    assert one == [{"a": 1}, {"a": 2}]


def test_concat_leaves_a_source_that_repeats_itself():
    samples = [{"__key__": "a"}, {"__key__": "b"}]
    assert [sample["__key__"] for sample in df.concat([df.cached()(samples), samples])] == ["a", "b", "a", "b"]
    assert len(list(df.concat([df.cached(3)(samples)], maxepoch=2))) == 4
    assert len(list(df.concat([df.cached(3)(samples)], maxepoch=None))) == 6


def test_sliced_is_islice():
    source = range(10)
    assert list(df.sliced(3)(source)) == [0, 1, 2]
    assert list(df.sliced(2, 4)(source)) == [2, 3]
    assert list(df.sliced(1, None, 4)(source)) == [1, 5, 9]
    for wrong in ((), (1, 2, 3, 4), (-1,)):
        with pytest.raises(ValueError):
            df.sliced(*wrong)


def test_cached_reads_its_source_once():
    reads: list[int] = []

    def source() -> Iterator[dict[str, object]]:
        while True:  # a source that repeats itself
            for number in range(50):
                reads.append(number)
                yield {"__key__": str(number)}

    found = list(df.cached(4, seed=1)(source()))
    assert len(found) == 200
    assert len(reads) == 51
    epochs = [[sample for sample in found if sample["__epoch__"] == epoch] for epoch in range(4)]
    assert [sample["__index__"] for sample in epochs[0]] == list(range(50))
    orders = [[sample["__index__"] for sample in epoch] for epoch in epochs]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert found == list(df.cached(4, seed=1)(source()))


def test_cached_of_little_and_of_too_much():
    assert list(df.cached()([])) == []
    assert len(list(df.cached(1)([{"__key__": "a"}]))) == 1
    with pytest.raises(MemoryError, match="max_size=2"):
        list(df.cached(max_size=2)([{"__key__": str(number)} for number in range(3)]))
    with pytest.raises(ValueError):
        df.cached(0)
