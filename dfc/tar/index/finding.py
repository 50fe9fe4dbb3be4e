"""Find samples of a shard by their keys: one by its hash, those that begin with or contain a text in columns of keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dfc.keysearch import KeyQuery, SampleHit
from dfc.tar.index.reader import ShardIndex

_BATCH_SAMPLES: Final = 4096  # a few milliseconds, after which the caller may have had enough


def find_samples(index: ShardIndex, shard: str, query: KeyQuery) -> Iterator[SampleHit | None]:
    """Yield the samples of an index that a query asks for, in order; and None now and then, when nothing was found for a while.
    IndexCorrupt."""
    for number in _numbers(index, query):
        if number is None:
            yield None
            continue
        sample = index.sample_at(number)
        yield SampleHit(shard, number, sample.key, {m.ext or "": (m.offset, m.size) for m in sample.members})


def _numbers(index: ShardIndex, query: KeyQuery) -> Iterator[int | None]:
    if query.is_exact:
        yield from index.find_sample_numbers(query.key)
        return
    import numpy as np  # nodes do not load it just to serve requests

    from dfc.tar.index.key_lines import sample_keys

    wanted, at_begin = query.key.encode(errors="replace"), query.how == "prefix"
    for start in range(0, index.sample_count, _BATCH_SAMPLES):
        keys = sample_keys(index.arrays(np.arange(start, min(index.sample_count, start + _BATCH_SAMPLES))))
        for at, key in enumerate(keys):
            if key.startswith(wanted) if at_begin else wanted in key:
                yield start + at
        yield None
