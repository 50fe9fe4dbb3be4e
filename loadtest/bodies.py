"""Bodies for the load test, generated from a seed, so that every byte can be checked.

A body is one shared block of random bytes, read from another offset for each seed. So many large objects with different
contents need the memory of only one.
"""

from __future__ import annotations

import functools
import io
import random
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field

import xxhash

BLOCK_BYTES = 1 << 20
STEP_BYTES = 4_093  # a prime below a page: neighbouring seeds differ everywhere and repeat only after a million


@functools.cache
def _block() -> memoryview:
    """The random block, twice in a row, so that every window of one block's length is contiguous."""
    block = random.Random(20_260_101).randbytes(BLOCK_BYTES)
    return memoryview(block + block)


@dataclass(frozen=True, slots=True)
class Body:
    """`size` bytes that depend only on `seed`."""

    seed: int
    size: int

    def pieces(self, start: int = 0, end: int | None = None) -> Iterator[memoryview]:
        """The bytes [start, end) in pieces of at most a block, without copying."""
        end = self.size if end is None else min(end, self.size)
        block = _block()
        while start < end:
            place = (self.seed * STEP_BYTES + start) % BLOCK_BYTES
            length = min(BLOCK_BYTES, end - start)
            yield block[place : place + length]
            start += length

    def read(self, start: int = 0, end: int | None = None) -> bytes:
        """The bytes [start, end) as one object, for small bodies and ranges."""
        return b"".join(self.pieces(start, end))

    def checksum(self) -> str:
        """The xxh3-128 in hex, as in DFC's `X-DFC-Checksum` and in the answer to a PUT."""
        digest = xxhash.xxh3_128()
        for piece in self.pieces():
            digest.update(piece)
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class SampleShard:
    """A tar of samples, each with an image-sized member and a small class member."""

    name: str
    data: bytes
    images: dict[str, Body] = field(repr=False)


def make_sample_shard(name: str, number: int, samples: int, member_bytes: int) -> SampleShard:
    """Make a USTAR archive of samples `KEY.jpg` (`member_bytes` bytes) and `KEY.cls`, with keys unique across shards."""
    buffer = io.BytesIO()
    images = {}
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for index in range(samples):
            key = f"train/{number:03d}-{index:06d}"
            images[key] = Body(number * samples + index, member_bytes)
            add_member(archive, f"{key}.jpg", images[key].read())
            add_member(archive, f"{key}.cls", str(index % 1000).encode())
    return SampleShard(name, buffer.getvalue(), images)


def add_member(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a regular member with fixed metadata, so that equal contents give equal archives."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))
