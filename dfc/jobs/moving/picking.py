"""Selects subsets: tables say, for each shard, which samples go to which part of the output, in their order.

Operations write the tables in a stage named `pick`, with one task per shard; `picked` turns them into an order. Choices that
need all shards (duplicates, classes) are made by tasks that each handle a partition by hash; they write labels, which the task
of each shard then reads: `write_labels`, `read_labels`.
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
    """Write the table of shard `number`: ascending global ordinals for each part of the output. Returns the task's result."""
    with PlainOutput(store, _table_name(number), temporary=True) as output:
        for ordinals in sections:
            output.write(encode_entries(ordinals))
        written = output.commit()
    return TaskResult(bytes_out=written.size, data=msgspec.msgpack.encode([len(ordinals) for ordinals in sections]))


def picked(parts: Parts, results: Results, names: Sequence[str]) -> Arrangement:
    """Make an order from the results of `pick`: one part of the output after the other, each with the shards in order."""
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
    """Write labels for samples of all shards, as ordinal * 256 + value, and where those of each shard begin. `starts` has the
    first ordinal of each shard, and the end of the last one."""
    order = np.argsort(ordinals)
    bounds = np.searchsorted(ordinals[order], np.array(starts, dtype=np.int64))
    with PlainOutput(store, name, temporary=True) as output:
        output.write(encode_entries(bounds))
        output.write(encode_entries(ordinals[order] * 256 + values[order]))
        output.commit()


def read_labels(store: Store, names: Sequence[str], number: int, shards: int) -> tuple[Integers, Integers]:
    """Read the labels of shard `number` that all tasks wrote, as ascending ordinals and their values."""
    found = [np.zeros(0, dtype=np.int64)]
    for name in names:
        first, last = read_entries(store, name, number, 2).tolist()
        found.append(read_entries(store, name, shards + 1 + first, last - first))
    labels = np.sort(np.concatenate(found))
    return labels // 256, labels % 256


def chance(seed: int, keys: Sequence[bytes]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """The number u of each key, times 2^64 (docs/jobs-order.md)."""
    message = seed.to_bytes(8, "little")
    hash64 = xxhash.xxh3_64_intdigest
    return np.fromiter((hash64(message + key) for key in keys), dtype=np.uint64, count=len(keys))
