"""How filters are put together: passes, iterators, processes."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import weakref
from collections.abc import Iterator

import pytest

import dfc.inputs.filters as df


@df.curried
def times(source, factor: int, *, plus: int = 0) -> Iterator[int]:
    """Multiplies."""
    for sample in source:
        yield sample * factor + plus


def test_a_filter_waits_for_its_source():
    assert list(times(2)([1, 2])) == [2, 4]
    assert list(times(2, plus=1)([1, 2])) == [3, 5]
    assert times.__doc__ == "Multiplies."
    assert repr(df.compose(df.shuffle(3), df.batch(2))) == "compose(<filter shuffle>, <filter batched>)"


def test_compose_goes_from_left_to_right():
    assert list(df.compose(times(2), times(1, plus=1))([1])) == [3]
    assert list(df.compose2(times(2), times(1, plus=1))([1])) == [3]
    assert list(df.pipeline([1], times(2), times(1, plus=1))) == [3]
    assert df.pipeline([1]) == [1]
    assert df.compose()([1]) == [1]
    assert list(df.compose(lambda source: (x + 1 for x in source), times(2))([1])) == [4]
    assert list(df.identity()([1, 2])) == [1, 2]


def test_a_list_can_be_passed_through_again_and_again():
    found = df.compose(times(2), df.batched(2))([1, 2, 3])
    assert [list(batch) for batch in found] == [list(batch) for batch in found] == [[2, 4], [6]]
    one, other = iter(found), iter(found)
    assert next(one).tolist() == next(other).tolist() == [2, 4]


def test_an_iterator_is_passed_through_once_and_is_one():
    found = df.compose(times(2), df.identity())(iter([1, 2, 3]))
    assert next(found) == 2
    assert list(found) == [4, 6]
    assert list(found) == []


def test_nothing_is_read_before_it_is_asked_for():
    def source() -> Iterator[int]:
        raise AssertionError
        yield 0

    pipeline = df.compose(df.shuffle(10), df.batch(2), df.unbatch())(source())
    with pytest.raises(AssertionError):
        next(iter(pipeline))


class Source:
    def __init__(self) -> None:
        self.epoch = -1
        self.ended = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        try:
            yield from range(1000)
        finally:
            self.ended += 1


def test_epochs_reach_the_source_and_the_seeds():
    source = Source()
    found = df.compose(df.shuffle(100, seed=1), df.sliced(50))(source)
    first, second = list(found), list(found)
    assert first != second
    found.set_epoch(0)
    assert source.epoch == 0
    assert list(found) == first
    found.set_epoch(1)
    assert list(found) == second


def test_a_pass_that_is_dropped_ends_its_source():
    source = Source()
    found = iter(df.compose(df.shuffle(10), df.batch(2), df.unbatch(), times(1))(source))
    next(found)
    gone = weakref.ref(found)
    del found
    gc.collect()
    assert gone() is None
    assert source.ended == 1


def double(value: int) -> int:
    return 2 * value


PIPELINE = df.compose(
    df.select(a=bool),
    df.map(a=double),
    df.rename(b="a"),
    df.shuffle(10, seed=3),
    df.decode("rgb8"),
    df.unique("b"),
    df.annotate({"k": {"c": 1}}),
    df.batch(2),
    df.unbatch(),
)
SAMPLES = [{"__key__": str(number), "a": number} for number in range(20)]


def run_here(pipeline: object, source: object) -> list[object]:
    return list(pipeline(source))  # type: ignore[operator]


def test_filters_travel_between_processes():
    copy = pickle.loads(pickle.dumps((PIPELINE, df.merge([SAMPLES, SAMPLES], seed=1))))  # noqa: S301
    assert list(copy[0](SAMPLES)) == list(PIPELINE(SAMPLES))
    assert list(copy[1]) == list(df.merge([SAMPLES, SAMPLES], seed=1))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(run_here, (PIPELINE, SAMPLES)) == list(PIPELINE(SAMPLES))


def test_own_filters_travel_too():
    copy = pickle.loads(pickle.dumps(times(2, plus=1)))  # noqa: S301
    assert list(copy([1])) == [3]
