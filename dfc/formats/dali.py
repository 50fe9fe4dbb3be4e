"""The index that NVIDIA DALI's webdataset reader takes beside an uncompressed tar, version 1.2.

First line `v1.2 N`; then a line a sample, `EXTENSION OFFSET SIZE NAME` of each member, separated by spaces; the offset is
that of the data in the tar. Source: NVIDIA/DALI tools/wds2idx.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from dfc.errors import Conflict
from dfc.tar.index.reader import ShardIndex


def dali_index(index: ShardIndex, file: str) -> Iterator[bytes]:
    """The lines of the index. Conflict for a name that DALI would misread: white space separates fields, without escapes."""
    yield b"v1.2 %d\n" % index.sample_count
    for sample in index.samples():
        parts = []
        for member in sample.members:
            extension = member.name[len(sample.key) + 1 :]
            if not extension or len(member.name.split()) != 1 or member.name.split()[0] != member.name:
                raise Conflict(f"{file}: DALI's index cannot hold the name {member.name[:80]!r}")
            parts.append(f"{extension} {member.offset} {member.size} {member.name}")
        yield " ".join(parts).encode() + b"\n"
