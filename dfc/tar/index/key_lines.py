"""List the keys of a shard as lines, JSON or plain text, computed in columns: fast enough for millions of samples.

Names that need no escaping in JSON, nearly all, are joined as bytes; a batch with any other goes through the encoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import msgspec
import numpy as np

from dfc.tar.index.arrays import Bytes, SampleArrays, strings
from dfc.tar.index.reader import ShardIndex

Form = Literal["all", "key", "text"]
_BATCH_SAMPLES: Final = 4096  # about 200 KiB of lines
_PLAIN: Final = np.zeros(256, dtype=bool)
_PLAIN[[0, *range(0x20, 0x7F)]] = True  # 0 is padding; names have none
_PLAIN[[ord('"'), ord("\\")]] = False
_ENCODER: Final = msgspec.json.Encoder()


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
