"""Subsets: per shard, which samples go into which part of the output, in their order. A table of each shard says it.

Operations write the tables in a stage named `pick`, one task a shard; `picked` makes an order of them. Choices that need
all shards (duplicates, classes) come from tasks by hash, as labels that each shard then reads: `write_labels`, `read_labels`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import xxhash

from dfc.jobs.moving.arrangement import Arrangement, Section
from dfc.jobs.moving.corpus import Parts
from dfc.jobs.moving.orders import Table, TableRow, encode_entries, read_entries
from dfc.jobs.shards.output import PlainOutput
from dfc.jobs.store import Store
from dfc.jobs.tasks import Results, TaskResult
from dfc.tar.index.arrays import Integers

SCALE: Final = 1 << 64


def write_picked(store: Store, number: int, sections: Sequence[Integers]) -> TaskResult:
    """The table of shard `number`: for each part of the output rising global ordinals. The result of the stage."""
    with PlainOutput(store, _table_name(number), temporary=True) as output:
        for ordinals in sections:
            output.write(encode_entries(ordinals))
        written = output.commit()
    return TaskResult(bytes_out=written.size, data=msgspec.msgpack.encode([len(ordinals) for ordinals in sections]))


def picked(parts: Parts, results: Results, names: Sequence[str]) -> Arrangement:
    """The order that the results of `pick` make: one part of the output after the other, in each the shards in order."""
    counts = [result.decode(list[int]) for result in results["pick"]]
    rows, sections, place = [], [], 0
    for section, name in enumerate(names):
        lo = place
        for number, part in enumerate(parts):
            count = counts[number][section]
            if count:
                first = sum(counts[number][:section])
                rows.append(TableRow(_table_name(number), first, count, place, part.start, part.end, True))
                place += count
        sections.append(Section(name, lo, [each[section] for each in counts]))
    return Arrangement(parts, Table(tuple(rows), place), sections)


def _table_name(number: int) -> str:
    return f"picked/{number:06d}"


def write_labels(store: Store, name: str, starts: Sequence[int], ordinals: Integers, values: Integers) -> None:
    """What was found of samples of all shards (which begin at `starts`; the last number is where the last one ends), as
    ordinal * 256 + value, and where those of each shard begin."""
    order = np.argsort(ordinals)
    bounds = np.searchsorted(ordinals[order], np.array(starts, dtype=np.int64))
    with PlainOutput(store, name, temporary=True) as output:
        output.write(encode_entries(bounds))
        output.write(encode_entries(ordinals[order] * 256 + values[order]))
        output.commit()


def read_labels(store: Store, names: Sequence[str], number: int, shards: int) -> tuple[Integers, Integers]:
    """Rising ordinals and values of shard `number`, from what all tasks have written."""
    found = [np.zeros(0, dtype=np.int64)]
    for name in names:
        first, last = read_entries(store, name, number, 2).tolist()
        found.append(read_entries(store, name, shards + 1 + first, last - first))
    labels = np.sort(np.concatenate(found))
    return labels // 256, labels % 256


def chance(seed: int, keys: Sequence[bytes]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """u of each key, times 2^64 (docs/jobs-order.md)."""
    message = seed.to_bytes(8, "little")
    hash64 = xxhash.xxh3_64_intdigest
    return np.fromiter((hash64(message + key) for key in keys), dtype=np.uint64, count=len(keys))
