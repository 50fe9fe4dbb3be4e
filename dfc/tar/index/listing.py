"""Listings of a shard from its index, in chunks of about 64 KiB: NDJSON, and offsets as plain numbers."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, Literal

import msgspec

from dfc.tar.index.entries import Member, Sample
from dfc.tar.index.reader import ShardIndex

_ENCODER: Final = msgspec.json.Encoder()
_CHUNK_BYTES: Final = 64 * 1024


def list_members(index: ShardIndex, start: int = 0, limit: int | None = None) -> Iterator[bytes]:
    """The members from an ordinal on, all or at most `limit`, one line `{name, key, ext, offset, size, type}` each, in archive
    order."""
    return _chunks(islice(index.members(start), limit), _same)


def list_unsampled(index: ShardIndex, start: int = 0, limit: int | None = None) -> Iterator[bytes]:
    """The members of no sample, without directories, whose offset is `start` or more, all or at most `limit`, as in
    `list_members`; and nothing, but now and then, when there was none for a while."""
    buffer, count = bytearray(), 0
    for member in index.unsampled(start):
        if member is not None:
            _ENCODER.encode_into(member, buffer, -1)
            buffer += b"\n"
            count += 1
        if count == limit:
            break
        if member is None or len(buffer) >= _CHUNK_BYTES:
            yield bytes(buffer)
            buffer.clear()
    if buffer:
        yield bytes(buffer)


def list_samples(index: ShardIndex, start: int = 0, limit: int | None = None) -> Iterator[bytes]:
    """The samples from an ordinal on, all or at most `limit`, one line `{key, members: {ext: {offset, size}}}` each, in archive
    order."""
    return _chunks(islice(index.samples(start), limit), _sample_line)


def list_keys(index: ShardIndex, shard: str, fields: Literal["all", "key"] = "all") -> Iterator[bytes]:
    """The keys, one line `{shard, key, members: {ext: size}}` or `{shard, key}` each, in archive order."""
    from dfc.tar.index.key_lines import key_lines  # nodes do not load numpy just to serve requests

    return key_lines(index, shard, fields)


def list_offsets(index: ShardIndex) -> Iterator[bytes]:
    """The offsets of the samples and the end of the last one: sample_count + 1 little-endian 64-bit numbers."""
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
