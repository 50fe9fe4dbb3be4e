"""Filters for the order of samples: shuffle, merge and concatenate sources, slice, cache in memory."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from dfc.inputs.filters.stages import Filter, through

_END: Final = object()


def shuffle(bufsize: int = 1000, initial: int = 100, seed: int | None = None) -> Filter:
    """Shuffle samples in a buffer of `bufsize` samples. The first sample comes once `initial` of them have been read.

    Every sample comes once, at most `bufsize` positions too early. With a `seed` the order is the same in each run, but differs
    in each pass. A buffer of fewer than 2 samples shuffles nothing.
    """
    if bufsize < 0 or initial < 0:
        raise ValueError(f"bufsize and initial must not be negative, not {bufsize} and {initial}")
    return Filter(_shuffle, bufsize, initial, seed, numbered=True)


def generator(seed: int | None, number: int) -> random.Random:
    """The random generator of a pass, determined by seed and number; seeded by the system if `seed` is None."""
    return random.Random() if seed is None else random.Random(f"{seed} {number}")


def _shuffle(source: Iterable[Any], bufsize: int, initial: int, seed: int | None, number: int) -> Iterator[Any]:
    if bufsize < 2:
        yield from source
        return
    rng = generator(seed, number)
    draw = rng.random  # randrange takes five times as long
    samples = iter(source)
    buffer = list(itertools.islice(samples, max(1, min(initial, bufsize))))
    # While the buffer grows, two samples come in for each that goes out.
    while len(buffer) < bufsize:
        pair = list(itertools.islice(samples, 2))
        buffer += pair
        if len(pair) < 2:
            break
        at = int(draw() * len(buffer))
        buffer[at], buffer[-1] = buffer[-1], buffer[at]
        yield buffer.pop()
    size = len(buffer)
    for sample in samples:
        at = int(draw() * size)
        sample, buffer[at] = buffer[at], sample
        yield sample
    rng.shuffle(buffer)
    yield from buffer


def merge(sources: Sequence[Iterable[Any]], weights: Sequence[float] | None = None, seed: int | None = None) -> Iterable[Any]:
    """Merge several sources at random, by `weights` if given, until all have ended.

    Takes sources, not a source: `df.merge([a, b])`. ValueError unless there is one positive weight for each source.
    """
    if weights is not None and (len(weights) != len(sources) or any(not weight > 0 for weight in weights)):
        raise ValueError(f"merge needs one positive weight for each of {len(sources)} sources, not {list(weights)}")
    run = partial(_merge, weights=None if weights is None else list(weights), seed=seed)
    return through(tuple(sources), run, numbered=True)


def _merge(sources: Iterable[Any], number: int, *, weights: list[float] | None, seed: int | None) -> Iterator[Any]:
    rng = generator(seed, number)
    left = [iter(source) for source in sources]
    limits = list(itertools.accumulate(weights or [1.0] * len(left)))
    weights = list(weights or [1.0] * len(left))
    while left:
        at = rng.choices(range(len(left)), cum_weights=limits)[0] if len(left) > 1 else 0
        sample = next(left[at], _END)
        if sample is _END:
            del left[at], weights[at]
            limits = list(itertools.accumulate(weights))
        else:
            yield sample


def concat(sources: Sequence[Iterable[Any]], maxepoch: int | None = 1) -> Iterable[Any]:
    """Concatenate sources, and number the samples in `__count__` from 0.

    A source that repeats itself and counts in `__epoch__`, like `cached`, is left when that reaches `maxepoch` (None: never).
    """
    return through(tuple(sources), partial(_concat, maxepoch=maxepoch))


def _concat(sources: Iterable[Any], *, maxepoch: int | None) -> Iterator[Any]:
    count = 0
    for source in sources:
        for sample in source:
            if maxepoch is not None and sample.get("__epoch__", 0) >= maxepoch:
                break
            yield {**sample, "__count__": count}
            count += 1


def sliced(*bounds: int | None) -> Filter:
    """Slice the samples like `itertools.islice`: `sliced(stop)`, `sliced(start, stop)`, `sliced(start, stop, step)`."""
    if not 1 <= len(bounds) <= 3:
        raise ValueError("sliced takes one to three numbers: [start,] stop [, step]")
    itertools.islice((), *bounds)  # raises its ValueError now, not at the first sample
    return Filter(_sliced, *bounds)


def _sliced(source: Iterable[Any], *bounds: int | None) -> Iterator[Any]:
    yield from itertools.islice(source, *bounds)


def cached(nepochs: int = 1_000_000, max_size: int = 1_000_000_000, key: str = "__key__", seed: int | None = None) -> Filter:
    """Cache samples in memory: the first epoch in the source's order, each further one in a new random order.

    The first epoch ends with the source, or when the `key` of its first sample comes again, for sources that repeat themselves.
    Samples get their `__epoch__`, and their number as `__index__`. MemoryError for more than `max_size` samples.
    """
    if nepochs < 1 or max_size < 1:
        raise ValueError(f"nepochs and max_size must be at least 1, not {nepochs} and {max_size}")
    return Filter(_cached, nepochs, max_size, key, seed, numbered=True)


def _cached(source: Iterable[Any], nepochs: int, max_size: int, key: str, seed: int | None, number: int) -> Iterator[Any]:
    rng = generator(seed, number)
    kept: list[dict[str, Any]] = []
    for sample in source:
        if kept and kept[0][key] == sample[key]:
            break
        if len(kept) == max_size:
            raise MemoryError(f"there are more samples to keep than max_size={max_size}")
        kept.append({**sample, "__index__": len(kept)})
        yield {**kept[-1], "__epoch__": 0}
    for epoch in range(1, nepochs if kept else 1):
        rng.shuffle(kept)
        for sample in kept:
            yield {**sample, "__epoch__": epoch}
