"""The order of samples and their sources: shuffle, merge, concat, slices, and samples kept for further epochs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from dfc.inputs.filters.stages import Filter, through

_END: Final = object()


def shuffle(bufsize: int = 1000, initial: int = 100, seed: int | None = None) -> Filter:
    """Samples in random order, drawn from a buffer of `bufsize` samples; the first comes when `initial` of them are there.

    Every sample comes once, not more than `bufsize` places too early. With a `seed` the order is the same in each run, and
    another one in each pass. A buffer of fewer than 2 shuffles nothing.
    """
    if bufsize < 0 or initial < 0:
        raise ValueError(f"a buffer has no {min(bufsize, initial)} samples")
    return Filter(_shuffle, bufsize, initial, seed, numbered=True)


def generator(seed: int | None, number: int) -> random.Random:
    """Random numbers of a pass: the same for the same seed and number, of the system's without a seed."""
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
    """The samples of several sources: which one gives the next is drawn, by `weights` if there are any, until all have ended.

    Takes sources, not a source: `df.merge([a, b])`. ValueError when weights are not one positive number for each source.
    """
    if weights is not None and (len(weights) != len(sources) or any(not weight > 0 for weight in weights)):
        raise ValueError(f"merge takes one positive weight for each of {len(sources)} sources, not {list(weights)}")
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
    """The samples of one source after the other, numbered in `__count__` from 0 on.

    A source that repeats itself and says so in `__epoch__`, as `cached` does, is left when that is `maxepoch` (None: never).
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
    """`sliced(stop)`, `sliced(start, stop)`, `sliced(start, stop, step)`: samples by number, as `itertools.islice`."""
    if not 1 <= len(bounds) <= 3:
        raise ValueError("sliced takes one to three numbers: [start,] stop [, step]")
    itertools.islice((), *bounds)  # its ValueError now, not at the first sample
    return Filter(_sliced, *bounds)


def _sliced(source: Iterable[Any], *bounds: int | None) -> Iterator[Any]:
    yield from itertools.islice(source, *bounds)


def cached(nepochs: int = 1_000_000, max_size: int = 1_000_000_000, key: str = "__key__", seed: int | None = None) -> Filter:
    """All samples of the first epoch as they come, then out of memory for the other epochs, in another random order each.

    The first epoch ends with the source, or where the `key` of its first sample comes again, as sources do that repeat
    themselves. Samples get their `__epoch__` and, as `__index__`, their number. MemoryError for more than `max_size` samples.
    """
    if nepochs < 1 or max_size < 1:
        raise ValueError("there is at least one epoch, of at least one sample")
    return Filter(_cached, nepochs, max_size, key, seed, numbered=True)


def _cached(source: Iterable[Any], nepochs: int, max_size: int, key: str, seed: int | None, number: int) -> Iterator[Any]:
    rng = generator(seed, number)
    kept: list[dict[str, Any]] = []
    for sample in source:
        if kept and kept[0][key] == sample[key]:
            break
        if len(kept) == max_size:
            raise MemoryError(f"more than max_size={max_size} samples to keep")
        kept.append({**sample, "__index__": len(kept)})
        yield {**kept[-1], "__epoch__": 0}
    for epoch in range(1, nepochs if kept else 1):
        rng.shuffle(kept)
        for sample in kept:
            yield {**sample, "__epoch__": epoch}
