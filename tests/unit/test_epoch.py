"""The order of samples: every sample once, equally many batches, and any point of it found again without what came before."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.order import (
    Epoch,
    Place,
    Rules,
    WindowShuffle,
    WorkerPart,
    batches_before,
    draw_seed,
    padded_total,
    shard_order,
    split,
)

COUNTS = st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(lambda counts: sum(counts) > 0)
RULES = st.builds(
    Rules,
    batch=st.integers(1, 9),
    seed=st.integers(0, 2**63 - 1),
    shuffled=st.booleans(),
    window=st.sampled_from([0, 1, 2, 5, 30, 1000]),
    lanes=st.integers(1, 4),
    scattered=st.booleans(),
    equal=st.sampled_from(["pad", "drop"]),
)


def epoch_of(counts: list[int], rules: Rules, number: int) -> Epoch:
    return Epoch(np.array(counts, dtype=np.int64), rules, number)


def delivered(part: WorkerPart, start: int = 0) -> list[int]:
    return [number for chunk in part.numbers(start) for number in chunk.tolist()]


def repeats_of(part: WorkerPart) -> int:
    repeated = part.repeated()
    return 0 if repeated is None else sum(i // part.lanes >= repeated[i % part.lanes] for i in range(part.size))


@given(COUNTS, RULES, st.integers(0, 5), st.integers(1, 5), st.integers(1, 4))
def test_every_sample_once_and_equally_many_batches(
    counts: list[int], rules: Rules, number: int, ranks: int, workers: int
) -> None:
    total = sum(counts)
    if rules.equal == "drop" and total < ranks * rules.batch:
        with pytest.raises(ValueError, match="do not make a whole batch"):
            padded_total(total, rules, ranks)
        return
    epoch = epoch_of(counts, rules, number)
    seen: list[int] = []
    batches, padding = [], 0
    for rank in range(ranks):
        parts = [WorkerPart(epoch, Place(rank, ranks, worker, workers)) for worker in range(workers)]
        batches.append(sum(part.batches for part in parts))
        padding += sum(repeats_of(part) for part in parts)
        # DataLoader takes from its workers in turn: none may run out before one that comes later.
        sizes = [part.batches for part in parts]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] - sizes[-1] <= 1
        for part in parts:
            numbers = delivered(part)
            assert len(numbers) == part.size == part.batches * rules.batch
            seen += numbers
    assert len(set(batches)) == 1
    unit = ranks * rules.batch
    times = np.bincount(seen, minlength=total)
    if rules.equal == "pad":
        assert times.min() >= 1
        assert len(seen) - total == padding < unit
        assert times.max() - times.min() <= 1
    else:
        assert times.max() == 1
        assert padding == 0
        assert total - len(seen) < unit


@given(COUNTS, RULES, st.integers(1, 30), st.integers(1, 3), st.integers(1, 3))
def test_an_epoch_of_so_many_batches(counts: list[int], rules: Rules, batches: int, ranks: int, workers: int) -> None:
    """Whatever there is; it comes again, or some of it not at all."""
    epoch = epoch_of(counts, replace(rules, batches=batches), 0)
    seen: list[int] = []
    repeats = 0
    for rank in range(ranks):
        parts = [WorkerPart(epoch, Place(rank, ranks, worker, workers)) for worker in range(workers)]
        assert sum(part.batches for part in parts) == batches
        for part in parts:
            seen += delivered(part)
            repeats += repeats_of(part)
    times = np.bincount(seen, minlength=epoch.total)
    assert times.max() - times.min() <= 1
    assert repeats == max(0, len(seen) - epoch.total)


@given(COUNTS, RULES, st.integers(1, 3), st.integers(1, 3), st.data())
def test_any_point_is_found_again(counts: list[int], rules: Rules, ranks: int, workers: int, data: st.DataObject) -> None:
    epoch = epoch_of(counts, replace(rules, equal="pad"), 1)
    part = WorkerPart(epoch, Place(ranks - 1, ranks, workers - 1, workers))
    start = data.draw(st.integers(0, part.size))
    assert delivered(part, start) == delivered(part)[start:]


@given(COUNTS, RULES, st.data())
def test_what_is_read_again_lay_in_the_window(counts: list[int], rules: Rules, data: st.DataObject) -> None:
    part = WorkerPart(epoch_of(counts, replace(rules, equal="pad"), 1), Place())
    start = data.draw(st.integers(0, part.size))
    order = [i for chunk in part.order() for i in chunk.tolist()]
    firsts, gone = part.still_needed(start)
    read = {i for i in range(part.size) if i // part.lanes >= firsts[i % part.lanes]}
    assert read - gone == set(order[start:])
    assert gone == read & set(order[:start])
    for i in gone:
        assert start - rules.window < i < start + rules.window
    for lane in range(part.lanes):  # nothing is read that lies before what is needed
        first = firsts[lane] * part.lanes + lane
        assert first >= part.size or first in order[start:]


@given(COUNTS, RULES, st.integers(1, 3), st.integers(1, 3))
def test_lanes_are_runs_of_positions_taken_from_in_turn(counts: list[int], rules: Rules, ranks: int, workers: int) -> None:
    epoch = epoch_of(counts, replace(rules, equal="pad", scattered=False), 2)
    part = WorkerPart(epoch, Place(0, ranks, workers - 1, workers))
    lanes = [list(range(*part.lane(lane))) for lane in range(part.lanes)]
    assert sorted(chain(*lanes)) == list(range(part.start, part.start + part.size))
    taken = [lanes[i % part.lanes][i // part.lanes] for i in range(part.size)]
    assert part.positions(np.arange(part.size)).tolist() == taken


@given(COUNTS, RULES, st.integers(0, 3), st.data())
def test_runs_are_the_numbers_of_positions(counts: list[int], rules: Rules, number: int, data: st.DataObject) -> None:
    epoch = epoch_of(counts, replace(rules, scattered=False), number)
    lo = data.draw(st.integers(0, 2 * epoch.total))
    hi = data.draw(st.integers(lo, 3 * epoch.total))
    starts = np.concatenate(([0], np.cumsum(counts)))
    by_runs = [int(starts[run.shard]) + run.start + k for run in epoch.runs(lo, hi) for k in range(run.length)]
    assert by_runs == epoch.numbers(np.arange(lo, hi)).tolist()
    assert all(run.start >= 0 and run.start + run.length <= counts[run.shard] and run.length for run in epoch.runs(lo, hi))


@given(st.integers(0, 2**63 - 1), st.integers(2, 6000), st.integers(0, 20000))
def test_window_shuffle_is_the_sorted_keys(seed: int, window: int, size: int) -> None:
    shuffle = WindowShuffle(seed, window, size)
    order = np.concatenate([np.zeros(0, np.int64), *shuffle.order()])
    expected = np.argsort(shuffle._keys(np.arange(size)), kind="stable")
    assert np.array_equal(order, expected)
    assert np.abs(order - np.arange(size)).max(initial=0) < window


def test_window_shuffle_without_an_end_agrees_until_there() -> None:
    endless = WindowShuffle(7, 100, None).order()
    first = np.concatenate([next(endless) for _ in range(3)])
    bounded = np.concatenate(list(WindowShuffle(7, 100, 20000).order()))
    assert np.array_equal(first, bounded[: len(first)])
    assert np.abs(first - np.arange(len(first))).mean() > 20  # it does move them


@given(st.integers(0, 60), st.integers(1, 7))
def test_batches_are_taken_from_the_parts_in_turn(delivered: int, parts: int) -> None:
    taken = [sum(batch % parts == part for batch in range(delivered)) for part in range(parts)]
    assert [batches_before(delivered, part, parts) for part in range(parts)] == taken


@given(st.integers(0, 1000), st.integers(1, 9))
def test_split_has_no_gaps(total: int, parts: int) -> None:
    bounds = [split(total, parts, part) for part in range(parts)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == total
    assert all(left[1] == right[0] for left, right in pairwise(bounds))


def test_one_sample_is_repeated_as_often_as_it_takes() -> None:
    for rules in (Rules(4), Rules(4, scattered=True)):
        assert delivered(WorkerPart(epoch_of([0, 1], rules, 0), Place())) == [0] * 4


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    counts = [50] * 20
    orders = {
        tuple(delivered(WorkerPart(epoch_of(counts, Rules(seed=seed, window=100, lanes=2), number), Place())))
        for seed in range(3)
        for number in range(3)
    }
    assert len(orders) == 9


def test_the_order_stays_what_it_is() -> None:
    """States that were saved depend on it. A change here is a new ORDER_VERSION."""
    rules = Rules(batch=2, seed=42, window=4, lanes=2)
    part = WorkerPart(epoch_of([3, 5, 4], rules, 1), Place(1, 2, 0, 2))
    assert delivered(part) == VECTOR
    assert draw_seed(0, 0) == DRAWN
    assert shard_order(5, rules, 3).tolist() == SHARDS


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="rank 2 of 2"):
        Place(rank=2, ranks=2)
    with pytest.raises(ValueError, match="no samples"):
        epoch_of([0], Rules(), 0)
    with pytest.raises(ValueError, match="impossible epoch -1"):
        epoch_of([1], Rules(), -1)
    with pytest.raises(ValueError, match="window"):
        Rules(window=1 << 30)
    with pytest.raises(ValueError, match="batches of 0"):
        Rules(batch=0)
    with pytest.raises(ValueError, match="'pad' or 'drop'"):
        Rules(equal="stretch")  # type: ignore[arg-type]


VECTOR = [1, 8, 2, 9]
DRAWN = 7517410695695647924
SHARDS = [3, 0, 2, 1, 4]
