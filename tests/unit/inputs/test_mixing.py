"""The mixed order: exact shares, any place of it without the others."""

from __future__ import annotations

from itertools import islice, repeat

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.inputs.mixing import BLOCK, Turns, mixed

WEIGHTS = st.lists(st.floats(0.01, 100), min_size=1, max_size=8).filter(lambda weights: min(weights) > 0.001 * sum(weights))


@given(WEIGHTS, st.integers(0, 2**63 - 1), st.integers(0, 5 * BLOCK), st.integers(0, 2 * BLOCK))
def test_counts_before_any_place_are_those_of_the_order(weights: list[float], seed: int, start: int, length: int) -> None:
    turns = Turns(weights, seed)
    found = np.concatenate([np.zeros(0, np.int64), *turns.sources(start, start + length)])
    assert len(found) == length
    counts = np.bincount(found, minlength=len(weights))
    assert (turns.before(start) + counts == turns.before(start + length)).all()
    assert turns.before(start).sum() == start


@given(WEIGHTS)
def test_shares_are_the_weights_to_one_place_in_a_block(weights: list[float]) -> None:
    shares = Turns(weights, 0).shares
    assert shares.sum() == BLOCK
    assert np.abs(shares - np.array(weights) / sum(weights) * BLOCK).max() <= 1


def test_places_are_mixed_well_and_otherwise_in_every_block_and_for_every_seed() -> None:
    first, second = (np.concatenate(list(Turns([3, 1], 1).sources(block * BLOCK, (block + 1) * BLOCK))) for block in range(2))
    other = np.concatenate(list(Turns([3, 1], 2).sources(0, BLOCK)))
    for one, two in ((first, second), (first, other)):
        assert 0.6 < float((one == two).mean()) < 0.65  # 0.625 by chance
    windows = np.lib.stride_tricks.sliding_window_view(first, 1000).mean(axis=1)
    assert windows.min() > 0.19
    assert windows.max() < 0.31


def test_the_order_never_changes() -> None:
    """A state that was saved names places of it."""
    assert "".join(map(str, next(Turns([5, 3, 2], 42).sources(0, 40)).tolist())) == ORDER


ORDER = "2002010002210010120010110120200020202200"


@pytest.mark.parametrize("weights", [[], [1, 0], [1, -1], [1, float("nan")], [1, float("inf")], [1, 1e-6], [1] * 257])
def test_weights_that_cannot_be_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError):
        Turns(weights, 0)


def test_iterables_are_mixed_until_the_first_or_the_last_ends() -> None:
    endless = "".join(islice(mixed([repeat("a"), repeat("b")], [9, 1], seed=3), 2 * BLOCK))
    assert (endless[:BLOCK].count("b"), endless[BLOCK:].count("b")) == (1000, 1000)
    short = list(mixed([range(100), range(1000, 2000)], [1, 1]))
    assert [item for item in short if item < 1000] == list(range(100))
    assert [item for item in short if item >= 1000] == list(range(1000, 1000 + len(short) - 100))
    whole = list(mixed([range(100), range(1000, 2000)], [1, 1], until="last"))
    assert sorted(whole) == [*range(100), *range(1000, 2000)]
    assert list(mixed([[], []], [1, 1], until="last")) == []


def test_what_does_not_fit_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="weights"):
        mixed([[]], [1, 2])
    with pytest.raises(ValueError, match="until"):
        mixed([[]], [1], until="never")  # type: ignore[arg-type]
