"""Listings of a shard, in chunks of about 64 KiB, straight from the index: NDJSON, and offsets as plain numbers."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal

import msgspec

from dfc.tar.index.entries import Member, Sample
from dfc.tar.index.reader import ShardIndex

_ENCODER: Final = msgspec.json.Encoder()
_CHUNK_BYTES: Final = 64 * 1024


def list_members(index: ShardIndex) -> Iterator[bytes]:
    """`{name, key, ext, offset, size, type}` a line, in archive order."""
    return _chunks(index.members(), _same)


def list_samples(index: ShardIndex) -> Iterator[bytes]:
    """`{key, members: {ext: {offset, size}}}` a line, in archive order."""
    return _chunks(index.samples(), _sample_line)


def list_keys(index: ShardIndex, shard: str, fields: Literal["all", "key"] = "all") -> Iterator[bytes]:
    """`{shard, key, members: {ext: size}}` a line, or `{shard, key}`, in archive order."""
    from dfc.tar.index.key_lines import key_lines  # a node serves requests without numpy

    return key_lines(index, shard, fields)


def list_offsets(index: ShardIndex) -> Iterator[bytes]:
    """Where the samples begin and where the last one ends: sample_count + 1 little-endian numbers of 64 bits."""
    offsets = index.sample_offsets()
    if sys.byteorder != "little":
        swapped = array("Q", offsets)
        swapped.byteswap()
        offsets = memoryview(swapped)
    data = offsets.cast("B")
    for at in range(0, len(data), _CHUNK_BYTES):
        yield bytes(data[at : at + _CHUNK_BYTES])


def _same(member: Member) -> Member:
    return member


def _sample_line(sample: Sample) -> dict[str, Any]:
    members = {member.ext: {"offset": member.offset, "size": member.size} for member in sample.members}
    return {"key": sample.key, "members": members}


def _chunks(rows: Iterable[Any], line: Callable[[Any], Any]) -> Iterator[bytes]:
    buffer = bytearray()
    encode = _ENCODER.encode_into
    for row in rows:
        encode(line(row), buffer, -1)
        buffer += b"\n"
        if len(buffer) >= _CHUNK_BYTES:
            yield bytes(buffer)
            buffer.clear()
    if buffer:
        yield bytes(buffer)
