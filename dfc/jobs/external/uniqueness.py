"""Finds duplicate keys in a whole dataset with limited memory: logs keys by partition, then checks each partition.

A place is `shard << 40 | ordinal`: the order of places is the global order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from dfc.errors import Conflict
from dfc.jobs.external.partitions import key_hash, partition_bytes, read_records
from dfc.jobs.store import Store

_ORDINAL_BITS: Final = 40
_MEMORY_RATIO: Final = 8  # a key of 20 characters in a dict, with its place, takes 160 to 200 bytes
KEY_BYTES: Final = 128  # assumed per key when choosing the number of partitions: a third of its size in a dict


class DuplicateKey(Conflict):
    """Two samples of an output would have the same key."""

    code = "duplicate_key"


class Repeat(NamedTuple):
    """A sample whose key an earlier sample has, with the places of both."""

    key: str
    first: int
    place: int


def place_of(shard: int, ordinal: int) -> int:
    return shard << _ORDINAL_BITS | ordinal


def shard_and_ordinal(place: int) -> tuple[int, int]:
    return place >> _ORDINAL_BITS, place & (1 << _ORDINAL_BITS) - 1


def find_repeats(store: Store, logs: Sequence[str], partition: int, partitions: int) -> Iterator[Repeat]:
    """Yield every record `(key, place)` of a partition whose key an earlier one has. `logs` are in the order of the shards.

    A partition larger than memory is read in several passes, each for some of its keys.
    """
    total = sum(partition_bytes(store, log, partition) for log in logs)
    passes = max(1, -(-2 * _MEMORY_RATIO * total // store.memory_bytes))
    for number in range(passes):
        firsts: dict[str, int] = {}
        for log in logs:
            store.check()
            for key, place in read_records(store, log, partition):
                if passes > 1 and key_hash(key) // partitions % passes != number:
                    continue
                first = firsts.setdefault(key, place)
                if first != place:
                    yield Repeat(key, first, place)
