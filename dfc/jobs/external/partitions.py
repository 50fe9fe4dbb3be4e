"""Temporary objects that hold records by partition, so that what is larger than memory is worked on one part after the other.

A file is chunks, each the records of partition 0, then those of 1, …; at the end stand the lengths of all these segments and,
in 16 bytes, how many chunks and partitions there are. All numbers are little-endian, unsigned, 64 bits.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

import msgpack
import msgspec
import xxhash

from dfc.jobs.store import Source, Store
from dfc.limits import JOB_PARTITION_BUFFER_BYTES, JOB_PARTITIONS_MAX

T = TypeVar("T")
_END: Final = struct.Struct("<QQ")
_LENGTH_BYTES: Final = 8


def partition_count(content_bytes: int, memory_bytes: int) -> int:
    """How many partitions keep each one (of keys or fields, as Python holds them) within a quarter of the memory."""
    return max(1, min(JOB_PARTITIONS_MAX, -(-4 * content_bytes // max(memory_bytes, 1))))


def key_hash(key: str) -> int:
    """64 bits of a key. Partitions take it modulo their number, passes what is left of it."""
    return xxhash.xxh3_64_intdigest(key.encode())


class PartitionWriter:
    """Writes one temporary object. Use as a context: without `commit` nothing is left of it."""

    def __init__(self, store: Store, name: str, partitions: int, buffer_bytes: int = JOB_PARTITION_BUFFER_BYTES) -> None:
        self._output = store.create_temporary(name)
        self._parts = [bytearray() for _ in range(partitions)]
        self._lengths = array("Q")
        self._held = self._chunks = 0
        self._limit = min(buffer_bytes, max(1, store.memory_bytes // 4))

    def add(self, partition: int, record: bytes) -> None:
        """A record; those of one partition stay in the order in which they came, and are never cut in two by a chunk."""
        self._parts[partition] += record
        self._held += len(record)
        if self._held >= self._limit:
            self._flush()

    def add_key(self, key: str, *values: Any) -> None:
        """A record of a key with values, for `read_records`, in the partition of the key's hash."""
        self.add(key_hash(key) % len(self._parts), msgpack.packb((key, *values)))

    def commit(self) -> int:
        """Complete; the bytes of all records."""
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
    """The segments of a partition, in order; whole records each."""
    source = store.open_temporary(name)
    try:
        partitions, lengths = _table(source)
        at = 0
        for start in range(0, len(lengths), partitions):
            row = lengths[start : start + partitions]
            if size := row[partition]:
                segment = bytearray(size)
                source.read_into(at + sum(row[:partition]), memoryview(segment))
                yield bytes(segment)
            at += sum(row)
    finally:
        source.close()


def partition_bytes(store: Store, name: str, partition: int) -> int:
    """How many bytes the records of a partition have."""
    source = store.open_temporary(name)
    try:
        partitions, lengths = _table(source)
        return sum(lengths[partition::partitions])
    finally:
        source.close()


def read_records(store: Store, name: str, partition: int) -> Iterator[list[Any]]:
    """The records of `add_key` of a partition, as lists, in the order in which they came."""
    for segment in read_partition(store, name, partition):
        unpacker = msgpack.Unpacker(max_buffer_size=len(segment))
        unpacker.feed(segment)
        yield from unpacker


def write_value(store: Store, name: str, value: Any) -> None:
    """A temporary object with one value, as msgpack: what is too large for a task's result."""
    output = store.create_temporary(name)
    try:
        output.write(msgspec.msgpack.encode(value))
        output.commit()
    finally:
        output.abort()


def read_value(store: Store, name: str, kind: type[T]) -> T:
    """The value of such an object."""
    source = store.open_temporary(name)
    try:
        content = bytearray(source.size)
        source.read_into(0, memoryview(content))
    finally:
        source.close()
    return msgspec.msgpack.decode(content, type=kind)


def _table(source: Source) -> tuple[int, Sequence[int]]:
    """How many partitions there are, and the length of every segment."""
    end = bytearray(_END.size)
    source.read_into(source.size - _END.size, memoryview(end))
    chunks, partitions = _END.unpack(end)
    table = bytearray(_LENGTH_BYTES * chunks * partitions)
    source.read_into(source.size - _END.size - len(table), memoryview(table))
    return partitions, struct.unpack(f"<{chunks * partitions}Q", table)
