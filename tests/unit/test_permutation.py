"""The permutation is what docs/jobs-order.md says, a bijection, the same in parts as in whole, and without a pattern."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from dfc.jobs.data.orders import chance
from dfc.order import TABLE_COUNT_MAX, Permutation, draw

DOCUMENT = Path(__file__).parents[2] / "docs" / "jobs-order.md"
DRAW = re.compile(r"^\| (\d+) \| ([^|]+) \| (\d+) \|$", re.MULTILINE)
VECTOR = re.compile(r"^\| (\d+) \| (\d+) \| (\d+) \| ([\d ]+) \|$", re.MULTILINE)
COUNTS = st.one_of(st.integers(0, 300), st.integers(TABLE_COUNT_MAX - 3, TABLE_COUNT_MAX + 3), st.integers(66_000, 300_000))


def vectors() -> list[tuple[int, int, int, list[int]]]:
    found = VECTOR.findall(DOCUMENT.read_text(encoding="utf-8"))
    return [(int(seed), int(count), int(lo), [int(n) for n in numbers.split()]) for seed, count, lo, numbers in found]


def test_the_document_has_vectors_of_both_kinds():
    assert len(vectors()) >= 8
    assert {count < TABLE_COUNT_MAX for _, count, _, _ in vectors()} == {True, False}


@pytest.mark.parametrize(("seed", "count", "lo", "expected"), vectors())
def test_vectors_of_the_document(seed, count, lo, expected):
    assert Permutation(seed, count).ordinals(lo, lo + len(expected)).tolist() == expected


def test_hashes_of_keys_are_those_of_the_document():
    found = DRAW.findall(DOCUMENT.read_text(encoding="utf-8"))
    assert len(found) == 3
    for seed, key, number in found:
        assert chance(int(seed), [key.encode()]).tolist() == [int(number)]


def plain_feistel(seed: int, count: int, place: int) -> int:
    """The definition of the document, in the plainest form."""
    half = next(b for b in range(64) if 4**b >= count)
    value = place
    while True:
        left, right = value >> half, value % 2**half
        for number in range(8):
            key = xxhash.xxh3_64_intdigest(seed.to_bytes(8, "little") + number.to_bytes(8, "little"))
            z = (right + key) % 2**64
            z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
            z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
            z ^= z >> 31
            left, right = right, left ^ (z >> 64 - half)
        value = left << half | right
        if value < count:
            return value


@settings(max_examples=30)
@given(seed=st.integers(0, 2**63 - 1), count=st.integers(2**16, 2**61), data=st.data())
def test_large_ones_are_the_plain_definition(seed, count, data):
    place = data.draw(st.integers(0, count - 1))
    whole = Permutation(seed, count)
    ordinal = int(whole.ordinals(place, place + 1)[0])
    assert ordinal == plain_feistel(seed, count, place)
    assert whole.places(ordinal, ordinal + 1).tolist() == [place]


@settings(max_examples=40)
@given(seed=st.integers(0, 2**63 - 1), count=COUNTS, data=st.data())
def test_bijection_in_parts_and_back(seed, count, data):
    permutation = Permutation(seed, count)
    whole = permutation.ordinals(0, count)
    assert np.array_equal(np.sort(whole), np.arange(count))
    back = permutation.places(0, count)
    assert np.array_equal(whole[back], np.arange(count))
    lo = data.draw(st.integers(0, count))
    hi = data.draw(st.integers(lo, count))
    assert np.array_equal(permutation.ordinals(lo, hi), whole[lo:hi])
    assert np.array_equal(permutation.places(lo, hi), back[lo:hi])


@pytest.mark.parametrize("count", [1000, 65_535, 65_536, 70_000, 1_000_000])
def test_position_against_position(count):
    """Chi-squared over a 16 x 16 table of old against new position: 225 degrees of freedom, mean 225, deviation 21."""
    for seed in range(5):
        new = Permutation(seed, count).ordinals(0, count)
        table = np.zeros((16, 16))
        np.add.at(table, (np.arange(count) * 16 // count, new * 16 // count), 1)
        statistic = ((table - count / 256) ** 2 / (count / 256)).sum()
        assert 225 - 5 * 21.3 < statistic < 225 + 5 * 21.3, f"seed {seed}: {statistic}"


@pytest.mark.parametrize("count", [1000, 60_000, 65_536, 100_000, 1_000_000])
def test_neighbours_are_not_correlated(count):
    for seed in range(3):
        new = Permutation(seed, count).ordinals(0, count).astype(float)
        for distance in (1, 2, 256):
            assert abs(np.corrcoef(new[:-distance], new[distance:])[0, 1]) < 6 / count**0.5
        gaps = np.abs(np.diff(new))
        assert abs(gaps.mean() - count / 3) < 6 * 0.24 * count / count**0.5  # of two random points: a third, deviation 0.236


def test_seeds_and_small_counts_differ():
    assert len({tuple(Permutation(seed, 12).ordinals(0, 12)) for seed in range(200)}) == 200
    counts = np.zeros((4, 4))
    for seed in range(6000):
        counts[np.arange(4), Permutation(seed, 4).ordinals(0, 4)] += 1
    assert ((counts - 1500) ** 2 / 1500).sum() < 40  # 9 degrees of freedom


def test_draw_refuses_the_incomplete_multiple():
    bound = (1 << 63) + 1  # nearly half of all hashes are refused
    message = (5).to_bytes(8, "little")
    for step in range(50):
        candidates = (xxhash.xxh3_64_intdigest(message + step.to_bytes(8, "little"), t) for t in range(100))
        assert draw(5, step, bound) == next(x for x in candidates if x < bound)


@pytest.mark.parametrize(("lo", "hi"), [(-1, 2), (3, 2), (0, 11)])
def test_places_that_are_not_there(lo, hi):
    with pytest.raises(IndexError):
        Permutation(0, 10).ordinals(lo, hi)
    with pytest.raises(ValueError):
        Permutation(-1, 10)
