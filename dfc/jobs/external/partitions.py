"""Temporary objects of partitioned records, so that data larger than memory can be processed one partition at a time.

A file consists of chunks, each with the records of partition 0, then of 1, …; then the lengths of all these segments and, in
16 bytes, the numbers of chunks and partitions. All numbers are little-endian, unsigned, 64 bits.
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
    """The total size of the records of a partition in bytes."""
    source = store.open_temporary(name)
    try:
        partitions, lengths = _table(source)
        return sum(lengths[partition::partitions])
    finally:
        source.close()


def read_records(store: Store, name: str, partition: int) -> Iterator[list[Any]]:
    """Yield the records added by `add_key` to a partition, as lists, in order."""
    for segment in read_partition(store, name, partition):
        unpacker = msgpack.Unpacker(max_buffer_size=len(segment))
        unpacker.feed(segment)
        yield from unpacker


def write_value(store: Store, name: str, value: Any) -> None:
    """Write a value that is too large for a task's result to a temporary object, as msgpack."""
    output = store.create_temporary(name)
    try:
        output.write(msgspec.msgpack.encode(value))
        output.commit()
    finally:
        output.abort()


def read_value(store: Store, name: str, kind: type[T]) -> T:
    """Read a value written by `write_value`."""
    source = store.open_temporary(name)
    try:
        content = bytearray(source.size)
        source.read_into(0, memoryview(content))
    finally:
        source.close()
    return msgspec.msgpack.decode(content, type=kind)


def _table(source: Source) -> tuple[int, Sequence[int]]:
    """Read the number of partitions and the length of every segment."""
    end = bytearray(_END.size)
    source.read_into(source.size - _END.size, memoryview(end))
    chunks, partitions = _END.unpack(end)
    table = bytearray(_LENGTH_BYTES * chunks * partitions)
    source.read_into(source.size - _END.size - len(table), memoryview(table))
    return partitions, struct.unpack(f"<{chunks * partitions}Q", table)
