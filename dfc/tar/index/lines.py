"""Samples and keys of an index as lines, all of them or those that are looked for.

Listings of a shard from its index, in chunks of about 64 KiB: NDJSON, and offsets as plain numbers."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, Literal

import msgspec
import numpy as np

from dfc.listing.search import KeyQuery, SampleHit
from dfc.tar.index.columns import Bytes, SampleArrays, strings
from dfc.tar.index.format import Sample
from dfc.tar.index.reader import ShardIndex

_ENCODER: Final = msgspec.json.Encoder()
_CHUNK_BYTES: Final = 64 * 1024


def list_members(index: ShardIndex, start: int = 0, limit: int | None = None) -> Iterator[bytes]:
    """The members from an ordinal on, all or at most `limit`, one line `{name, key, ext, offset, size, type}` each, in archive
    order."""
    return _chunks(islice(index.members(start), limit))


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
    return _chunks(map(_sample_line, islice(index.samples(start), limit)))


def list_keys(index: ShardIndex, shard: str, fields: Literal["all", "key"] = "all") -> Iterator[bytes]:
    """The keys, one line `{shard, key, members: {ext: size}}` or `{shard, key}` each, in archive order."""
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


def _sample_line(sample: Sample) -> dict[str, Any]:
    members = {member.ext: {"offset": member.offset, "size": member.size} for member in sample.members}
    return {"key": sample.key, "members": members}


def _chunks(rows: Iterable[Any]) -> Iterator[bytes]:
    buffer = bytearray()
    encode = _ENCODER.encode_into
    for row in rows:
        encode(row, buffer, -1)
        buffer += b"\n"
        if len(buffer) >= _CHUNK_BYTES:
            yield bytes(buffer)
            buffer.clear()
    if buffer:
        yield bytes(buffer)


# --- Find samples of a shard by their keys: one by its hash, those that begin with or contain a text in columns of keys.

_BATCH_SAMPLES: Final = 4096  # a few milliseconds, after which the caller may have had enough


def find_samples(index: ShardIndex, shard: str, query: KeyQuery, start: int = 0) -> Iterator[SampleHit | int]:
    """Yield the samples of an index that a query asks for, in order, from the ordinal `start` on; and now and then an ordinal:
    all samples before it were looked at. IndexCorrupt."""
    if query.is_exact:
        yield from (_hit(index, shard, number) for number in index.find_sample_numbers(query.key) if number >= start)
        return
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


# --- List the keys of a shard as lines, JSON or plain text, computed in columns: fast enough for millions of samples.
#
# Names that need no escaping in JSON, nearly all, are joined as bytes; a batch with any other goes through the encoder.

Form = Literal["all", "key", "text"]
_PLAIN: Final = np.zeros(256, dtype=bool)
_PLAIN[[0, *range(0x20, 0x7F)]] = True  # 0 is padding; names have none


class LineBreak(ValueError):
    """A key that cannot be a line of plain text."""


def key_lines(index: ShardIndex, shard: str, form: Form = "all") -> Iterator[bytes]:
    """Yield chunks of whole lines, in archive order: `{shard, key, members: {ext: size}}`, `{shard, key}`, or the key alone.

    In plain text, raises LineBreak for a key that contains one.
    """
    for start in range(0, index.sample_count, _BATCH_SAMPLES):
        samples = index.arrays(np.arange(start, min(index.sample_count, start + _BATCH_SAMPLES)))
        if samples.long_names or not _PLAIN[samples.names].all():
            yield _any_lines(samples, shard, form)
        else:
            yield _plain_lines(samples, shard, form)


def _plain_lines(samples: SampleArrays, shard: str, form: Form) -> bytes:
    firsts = samples.first[:-1]
    keys = strings(_cut(samples.names[firsts], samples, firsts))
    if form == "text":
        return b"\n".join(keys) + b"\n"
    head = b'{"shard":%b,"key":"' % _ENCODER.encode(shard)
    if form == "key":
        return head + (b'"}\n' + head).join(keys) + b'"}\n'
    lengths = samples.key_chars.tolist()
    names = [name[length + 1 :].lower() for name, length in zip(strings(samples.names), lengths, strict=True)]
    fields = [b'"%b":%d' % field for field in zip(names, samples.sizes.tolist(), strict=True)]
    counts = samples.counts
    if (counts == counts[0]).all():
        members = map(b",".join, zip(*[iter(fields)] * int(counts[0]), strict=True))
    else:
        bounds = samples.first.tolist()
        members = (b",".join(fields[bounds[i] : bounds[i + 1]]) for i in range(len(keys)))  # type: ignore[assignment]
    line = head.replace(b"%", b"%%") + b'%b","members":{%b}}\n'
    return b"".join([line % each for each in zip(keys, members, strict=True)])


def _cut(names: Bytes, samples: SampleArrays, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Bytes:
    """The names cut off where their keys end."""
    return names * (np.arange(names.shape[1]) < samples.key_chars[rows][:, None])


def _any_lines(samples: SampleArrays, shard: str, form: Form) -> bytes:
    names = [name.decode() for name in samples.name_list()]
    lengths, sizes, bounds = samples.key_chars.tolist(), samples.sizes.tolist(), samples.first.tolist()
    buffer = bytearray()
    for i in range(len(samples)):
        first, end = bounds[i], bounds[i + 1]
        key = names[first][: lengths[first]]
        if form == "text":
            if "\n" in key or "\r" in key:
                raise LineBreak(f"the key {key!r} contains a line break")
            buffer += key.encode()
        elif form == "key":
            buffer += _ENCODER.encode({"shard": shard, "key": key})
        else:
            members = {names[m][lengths[m] + 1 :].lower(): sizes[m] for m in range(first, end)}
            buffer += _ENCODER.encode({"shard": shard, "key": key, "members": members})
        buffer += b"\n"
    return bytes(buffer)


def sample_keys(samples: SampleArrays) -> list[bytes]:
    """The keys, in UTF-8."""
    firsts = samples.first[:-1]
    if not samples.long_names and _PLAIN[samples.names].all():
        return strings(_cut(samples.names[firsts], samples, firsts))
    names, lengths = samples.name_list(), samples.key_chars.tolist()
    return [names[row].decode()[: lengths[row]].encode() for row in firsts.tolist()]


def extensions(samples: SampleArrays) -> list[bytes]:
    """The extension of each member, in lower case and UTF-8."""
    names, lengths = samples.name_list(), samples.key_chars.tolist()
    if not samples.long_names and _PLAIN[samples.names].all():
        return [name[length + 1 :].lower() for name, length in zip(names, lengths, strict=True)]
    return [name.decode()[length + 1 :].lower().encode() for name, length in zip(names, lengths, strict=True)]
