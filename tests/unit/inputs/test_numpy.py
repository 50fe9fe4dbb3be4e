"""Threads that decode ahead: in order, bounded, gone afterwards."""

from __future__ import annotations

import threading
import time
from itertools import count
from pathlib import Path

import pytest
from harness import wait_for

from dfc.inputs.numpy import Loader, map_in_threads


def test_the_order_is_kept_whoever_is_first() -> None:
    def slow(value: int) -> int:
        if value % 7 == 0:
            time.sleep(0.002)  # work, as far as the order is concerned
        return value * value

    assert list(map_in_threads(slow, range(500), 4, 100)) == [value * value for value in range(500)]
    assert list(map_in_threads(slow, [], 4, 100)) == []


def test_no_more_is_taken_than_is_to_be_ahead() -> None:
    taken = count(1)
    found = map_in_threads(lambda value: value, taken, 2, 64)
    assert [next(found) for _ in range(100)] == list(range(1, 101))
    assert next(taken) <= 100 + 64 + 8 + 1
    found.close()
    assert not any(thread.name.startswith("dfc-decode") for thread in threading.enumerate())


def test_what_the_function_raises_comes_in_its_place_and_ends_the_threads() -> None:
    found = map_in_threads(lambda value: 1 // (value - 20), range(100), 2, 32)
    assert [next(found) for _ in range(16)] == [1 // (value - 20) for value in range(16)]
    with pytest.raises(ZeroDivisionError):
        list(found)
    assert not any(thread.name.startswith("dfc-decode") for thread in threading.enumerate())


def test_a_forgotten_iterator_ends_its_threads() -> None:
    found = map_in_threads(abs, count(), 2, 32)
    assert next(found) == 0
    del found
    wait_for(lambda: not any(thread.name.startswith("dfc-decode") for thread in threading.enumerate()), "the threads to end")


def test_a_loader_gives_the_same_with_any_number_of_threads(data: Path) -> None:
    before = set(threading.enumerate())
    url = str(data / "sample.tgz")
    found = []
    for threads in (0, 1, 3):
        with Loader(url, 4, decode=False, threads=threads, seed=3, collate=list) as loader:
            found.append([[sample["__key__"] for sample in batch] for batch in loader])
            assert next(iter(loader))
    assert found[0] == found[1] == found[2]
    assert found[0]
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("threads", [-1, 1000])
def test_a_number_of_threads_that_cannot_be_is_refused(data: Path, threads: int) -> None:
    with pytest.raises(ValueError, match="threads"):
        Loader(str(next(data.glob("*.tar"))), threads=threads)
