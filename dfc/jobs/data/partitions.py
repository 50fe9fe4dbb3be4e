"""Records by partition, and what is found with them in limited memory: duplicate keys, and keys of a list.

Temporary objects of partitioned records, so that data larger than memory can be processed one partition at a time.

A file consists of chunks, each with the records of partition 0, then of 1, …; then the lengths of all these segments and, in
16 bytes, the numbers of chunks and partitions. All numbers are little-endian, unsigned, 64 bits.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple, TypeVar

import msgpack
import msgspec
import numpy as np
import xxhash

from dfc.errors import Conflict
from dfc.jobs.data.output import PlainOutput
from dfc.jobs.store import Source, Store
from dfc.jobs.tasks import InputShard
from dfc.limits import JOB_PARTITION_BUFFER_BYTES, JOB_PARTITIONS_MAX, TAR_MEMBER_NAME_BYTES_MAX
from dfc.tar.index.columns import Integers

T = TypeVar("T")
_END: Final = struct.Struct("<QQ")
_LENGTH_BYTES: Final = 8


def partition_count(content_bytes: int, memory_bytes: int) -> int:
    """Return a number of partitions so that each, as Python objects, fits into a quarter of the memory."""
    return max(1, min(JOB_PARTITIONS_MAX, -(-4 * content_bytes // max(memory_bytes, 1))))


def key_hash(key: str) -> int:
    """Hash a key to 64 bits. The partition is the hash modulo their number; passes use the quotient."""
    return xxhash.xxh3_64_intdigest(key.encode())


class PartitionWriter:
    """Writes one temporary object. Use it as a context manager: without `commit`, the object is discarded."""

    def __init__(self, store: Store, name: str, partitions: int, buffer_bytes: int = JOB_PARTITION_BUFFER_BYTES) -> None:
        self._output = store.create_temporary(name)
        self._parts = [bytearray() for _ in range(partitions)]
        self._lengths = array("Q")
        self._held = self._chunks = 0
        self._limit = min(buffer_bytes, max(1, store.memory_bytes // 4))

    def add(self, partition: int, record: bytes) -> None:
        """Add a record. Records of a partition stay in order, and none is split between chunks."""
        self._parts[partition] += record
        self._held += len(record)
        if self._held >= self._limit:
            self._flush()

    def add_key(self, key: str, *values: Any) -> None:
        """Add a record of a key with values, for `read_records`, to the partition of the key's hash."""
        self.add(key_hash(key) % len(self._parts), msgpack.packb((key, *values)))

    def commit(self) -> int:
        """Complete the object, and return the total size of the records in bytes."""
        self._flush()
        self._output.write(struct.pack(f"<{len(self._lengths)}Q", *self._lengths))
        self._output.write(_END.pack(self._chunks, len(self._parts)))
        self._output.commit()
        return sum(self._lengths)

    def _flush(self) -> None:
        if self._held:
            for part in self._parts:
                self._lengths.append(len(part))
                if part:
                    self._output.write(bytes(part))
                part.clear()
            self._chunks += 1
            self._held = 0

    def __enter__(self) -> PartitionWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._output.abort()


def read_partition(store: Store, name: str, partition: int) -> Iterator[bytes]:
    """Yield the segments of a partition, in order; each has only whole records."""
    with closing(store.open_temporary(name)) as source:
        partitions, lengths = _table(source)
        at = 0
        for start in range(0, len(lengths), partitions):
            row = lengths[start : start + partitions]
            if size := row[partition]:
                segment = bytearray(size)
                source.read_into(at + sum(row[:partition]), memoryview(segment))
                yield bytes(segment)
            at += sum(row)


def partition_bytes(store: Store, name: str, partition: int) -> int:
    """The total size of the records of a partition in bytes."""
    with closing(store.open_temporary(name)) as source:
        partitions, lengths = _table(source)
        return sum(lengths[partition::partitions])


def read_records(store: Store, name: str, partition: int) -> Iterator[list[Any]]:
    """Yield the records added by `add_key` to a partition, as lists, in order."""
    for segment in read_partition(store, name, partition):
        unpacker = msgpack.Unpacker(max_buffer_size=len(segment))
        unpacker.feed(segment)
        yield from unpacker


def write_value(store: Store, name: str, value: Any) -> None:
    """Write a value that is too large for a task's result to a temporary object, as msgpack."""
    with PlainOutput(store, name, temporary=True) as output:
        output.write(msgspec.msgpack.encode(value))
        output.commit()


def read_value(store: Store, name: str, kind: type[T]) -> T:
    """Read a value written by `write_value`."""
    return msgspec.msgpack.decode(read_whole(store.open_temporary(name)), type=kind)


def read_whole(source: Source) -> bytearray:
    """Read all stored bytes of a source, and close it."""
    with closing(source):
        content = bytearray(source.size)
        source.read_into(0, memoryview(content))
    return content


def _table(source: Source) -> tuple[int, Sequence[int]]:
    """Read the number of partitions and the length of every segment."""
    end = bytearray(_END.size)
    source.read_into(source.size - _END.size, memoryview(end))
    chunks, partitions = _END.unpack(end)
    table = bytearray(_LENGTH_BYTES * chunks * partitions)
    source.read_into(source.size - _END.size - len(table), memoryview(table))
    return partitions, struct.unpack(f"<{chunks * partitions}Q", table)


# --- Finds duplicate keys in a whole dataset with limited memory: logs keys by partition, then checks each partition.
#
# A place is `shard << 40 | ordinal`: the order of places is the global order.

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


# --- Lists of keys of any length, stored as runs of sorted 128-bit hashes and searched one run at a time.

HASH_BYTES: Final = 16
_RUN_KEYS: Final = 1 << 19  # 8 MiB
_READ_BYTES: Final = 1 << 20
_LINE_BYTES_MAX: Final = 4 * TAR_MEMBER_NAME_BYTES_MAX + 65_536  # an NDJSON line also lists the members
_HASH: Final = np.dtype([("high", ">u8"), ("low", ">u8")])
Unsigned = np.ndarray[tuple[int], np.dtype[np.uint64]]


class BadKeyList(Conflict):
    """A line in a list of keys is not a key."""

    code = "bad_key_list"


class _Line(msgspec.Struct):
    key: str


def write_key_hashes(store: Store, shard: InputShard, name: str) -> int:
    """Write the hashes of all keys of an object in sorted runs, and return their number. BadKeyList names the line."""
    count, run = 0, []
    with PlainOutput(store, name, temporary=True) as output:
        for key in _keys(store, shard):
            run.append(xxhash.xxh3_128_digest(key))
            if len(run) == _RUN_KEYS:
                output.write(b"".join(sorted(run)))
                count += len(run)
                run.clear()
                store.check()
        output.write(b"".join(sorted(run)))
        output.commit()
    return count + len(run)


def _keys(store: Store, shard: InputShard) -> Iterator[bytes]:
    decoder, rest, number = msgspec.json.Decoder(_Line), b"", 0
    with closing(store.open(shard)) as source, source.open() as stream:
        while True:
            data = stream.read(_READ_BYTES)
            lines = (rest + data).split(b"\n")
            rest = lines.pop() if data else b""
            if len(rest) > _LINE_BYTES_MAX:
                raise BadKeyList(f"{shard.label}: line {number + len(lines) + 1} is too long for a key")
            for line in lines:
                number += 1
                line = line.rstrip(b"\r")
                if line.startswith(b"{"):
                    try:
                        yield decoder.decode(line).key.encode()
                    except msgspec.DecodeError as error:
                        raise BadKeyList(f"{shard.label}: line {number} is not a JSON object with a key: {error}") from None
                elif line:
                    yield line
            if not data:
                return


class KeyList:
    """The hashes written by `write_key_hashes`."""

    def __init__(self, store: Store, names: Sequence[str]) -> None:
        self._store, self._names = store, names

    def find(self, hashes: Sequence[bytes]) -> Integers:
        """Return the ascending positions of those hashes (xxh3-128 of keys) that are in the list."""
        mine = np.frombuffer(b"".join(hashes), dtype=_HASH)
        high, low = mine["high"].astype(np.uint64), mine["low"].astype(np.uint64)
        found = np.zeros(len(mine), dtype=bool)
        for run_high, run_low in self._runs():
            at = np.searchsorted(run_high, high, side="left")
            # Equal upper halves are adjacent; there are more than a few only if the keys are equal.
            end = np.searchsorted(run_high, high, side="right")
            candidates = np.flatnonzero(at < end)
            for i in candidates[~found[candidates]].tolist():
                found[i] = bool((run_low[at[i] : end[i]] == low[i]).any())
        return np.flatnonzero(found)

    def _runs(self) -> Iterator[tuple[Unsigned, Unsigned]]:
        for name in self._names:
            with closing(self._store.open_temporary(name)) as source:
                step = _RUN_KEYS * HASH_BYTES
                for offset in range(0, source.size, step):
                    data = bytearray(min(step, source.size - offset))
                    source.read_into(offset, memoryview(data))
                    run = np.frombuffer(data, dtype=_HASH)
                    yield run["high"].astype(np.uint64), run["low"].astype(np.uint64)
