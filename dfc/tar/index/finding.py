"""Find samples of a shard by their keys: one by its hash, those that begin with or contain a text in columns of keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dfc.keysearch import KeyQuery, SampleHit
from dfc.tar.index.reader import ShardIndex

_BATCH_SAMPLES: Final = 4096  # a few milliseconds, after which the caller may have had enough


def find_samples(index: ShardIndex, shard: str, query: KeyQuery, start: int = 0) -> Iterator[SampleHit | int]:
    """Yield the samples of an index that a query asks for, in order, from the ordinal `start` on; and now and then an ordinal:
    all samples before it were looked at. IndexCorrupt."""
    if query.is_exact:
        yield from (_hit(index, shard, number) for number in index.find_sample_numbers(query.key) if number >= start)
        return
    import numpy as np  # nodes do not load it just to serve requests

    from dfc.tar.index.key_lines import sample_keys

    wanted, at_begin = query.key.encode(errors="replace"), query.how == "prefix"
    for first in range(start, index.sample_count, _BATCH_SAMPLES):
        end = min(index.sample_count, first + _BATCH_SAMPLES)
        for number, key in enumerate(sample_keys(index.arrays(np.arange(first, end))), first):
            if key.startswith(wanted) if at_begin else wanted in key:
                yield _hit(index, shard, number)
        yield end


def _hit(index: ShardIndex, shard: str, number: int) -> SampleHit:
    sample = index.sample_at(number)
    return SampleHit(shard, number, sample.key, {m.ext or "": (m.offset, m.size) for m in sample.members})
