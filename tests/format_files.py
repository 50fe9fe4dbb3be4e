"""Files of any format in memory, for readers and writers to be tried on."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from dfc.formats.base import DataMember, SampleData

Contents = list[tuple[str, list[tuple[str, bytes]]]]


class MemorySource:
    """What a store's `Source` is to a reader."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        if offset < 0 or offset + len(buffer) > self.size:
            raise EOFError("the source ends before")
        buffer[:] = self._data[offset : offset + len(buffer)]

    def open(self) -> BinaryIO:
        return io.BytesIO(self._data)


def sample(key: str, /, **fields: bytes) -> SampleData:
    """A sample; `__` in a name of a field stands for a dot."""
    named = {name.replace("__", "."): data for name, data in fields.items()}
    return SampleData(key, 0, [DataMember(ext.lower(), f"{key}.{ext}", data) for ext, data in named.items()])


def contents(samples: Iterator[SampleData]) -> Contents:
    """(key, (name, bytes) of the members) of samples, whose ordinals must be right."""
    found = list(samples)
    assert [each.number for each in found] == list(range(len(found)))
    for each in found:
        assert all(member.name == f"{each.key}.{member.name[len(each.key) + 1 :]}" for member in each.members)
    return plain(found)


def plain(samples: list[SampleData]) -> Contents:
    """The same of samples that were not read."""
    return [(each.key, [(member.name, member.data) for member in each.members]) for each in samples]


def written(make: Callable[..., Any], samples: list[SampleData], *arguments: Any, **options: Any) -> bytes:
    """What a writer makes of samples."""
    sink = io.BytesIO()
    writer = make(sink, *arguments, **options)
    for each in samples:
        writer.add(each)
    writer.finish()
    return sink.getvalue()


ODD_SAMPLES = [
    sample("a", jpg=b"\xff\xd8" * 50, cls=b"1"),
    sample("dir/with space/ünï", seg__png=b"", json=b"{}"),
    sample("c", txt=bytes(range(256)) * 20),
    sample("d-e_f", mp=b"\x0a\x23\xd7\xce" * 9, bin=b"x\x0a\x23\xd7\xcey"),  # RecordIO's magic, aligned and not
]
"""Unicode, a directory, dots in extensions, an empty member, bytes of all values."""
