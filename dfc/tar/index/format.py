"""The format of an index file, which is stored beside its shard and derived from it alone.

    header           512 bytes: magic, which blob this belongs to, counts, where the records end, checksums
    records          one per member, in archive order: RECORD, then the name in UTF-8
    block checksums  xxh3-64 of each INDEX_BLOCK_BYTES of the records (the last block may be shorter)
    member hashes    sorted xxh3-64 of the names    · member positions  of their records, in the same order
    sample hashes    sorted xxh3-64 of the keys     · sample numbers    in the same order
    samples          SAMPLE, one per sample, in archive order

Everything from the block checksums on is 8-byte aligned and covered by one xxh3-64 in the header, which ends in its own.
Numbers are in the machine's byte order (little-endian everywhere that matters): an index is never moved, it is rebuilt.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

import xxhash

from dfc.limits import INDEX_BLOCK_BYTES
from dfc.tar.header import TarError

MAGIC: Final = 0x0158444954434644  # "DFCTIDX" and a 1: also detects a foreign byte order
FORMAT: Final = 1
HEADER_BYTES: Final = 512
TEXT_BYTES_MAX: Final = 64  # limit of the version and of the checksum of the blob
KINDS: Final = ("tar", "gz", "zst", "lz4", "bz2", "xz")

# Offset and size of the data, bytes of headers before the data, bytes of the name, characters of the key, type.
RECORD: Final = Struct("=QQIHHB")
# Offset of the first header, position of the first record.
SAMPLE: Final = Struct("=QQ")
_HEADER: Final = Struct("=QIIQQQQQQQQ64p64p")
_CHECKED: Final = Struct("=Q")


class IndexCorrupt(TarError):
    """An index file is truncated, foreign or damaged: rebuild it from the blob. `offset` is in the index file."""


class IndexHeader(NamedTuple):
    """The header of an index; sizes in bytes."""

    kind: str
    size: int  # of the blob
    archive_size: int  # of the uncompressed archive
    members: int
    samples: int
    repeated_keys: int
    dropped: int
    records_end: int
    tables_checksum: int
    version: str
    checksum: str

    @property
    def block_count(self) -> int:
        return -(-(self.records_end - HEADER_BYTES) // INDEX_BLOCK_BYTES)

    @property
    def tables_start(self) -> int:
        return (self.records_end + 7) & -8

    @property
    def members_start(self) -> int:
        """Where the member hashes begin."""
        return self.tables_start + 8 * self.block_count

    @property
    def keys_start(self) -> int:
        """Where the sample hashes begin."""
        return self.members_start + 16 * self.members

    @property
    def samples_start(self) -> int:
        return self.keys_start + 16 * self.samples

    @property
    def file_size(self) -> int:
        return self.samples_start + SAMPLE.size * self.samples


def encode_header(header: IndexHeader) -> bytes:
    """Encode a header as 512 bytes; ValueError if the version or checksum is longer than its field."""
    texts = [header.version.encode(), header.checksum.encode()]
    if any(len(text) >= TEXT_BYTES_MAX for text in texts):
        raise ValueError(f"version and checksum must have fewer than {TEXT_BYTES_MAX} bytes")
    packed = _HEADER.pack(MAGIC, FORMAT, KINDS.index(header.kind), *header[1:9], *texts)
    padded = packed.ljust(HEADER_BYTES - _CHECKED.size, b"\0")
    return padded + _CHECKED.pack(xxhash.xxh3_64_intdigest(padded))


def decode_header(data: bytes) -> IndexHeader:
    """Decode a header; IndexCorrupt if it is not of this format or has a wrong checksum."""
    if len(data) != HEADER_BYTES:
        raise IndexCorrupt("an index file is shorter than its header", len(data))
    magic, number, kind, *numbers, version, checksum = _HEADER.unpack_from(data)
    if magic != MAGIC or number != FORMAT:
        raise IndexCorrupt(f"not an index of format {FORMAT}", 0)
    if _CHECKED.unpack_from(data, HEADER_BYTES - _CHECKED.size) != (
        xxhash.xxh3_64_intdigest(data[: HEADER_BYTES - _CHECKED.size]),
    ):
        raise IndexCorrupt("the header of an index fails its checksum", 0)
    try:
        header = IndexHeader._make((KINDS[kind], *numbers, version.decode(), checksum.decode()))
    except (IndexError, UnicodeDecodeError):
        raise IndexCorrupt("the header of an index cannot be read", 0) from None
    if header.records_end < HEADER_BYTES:
        raise IndexCorrupt("the header of an index cannot be read", 0)
    return header


ENDINGS: Final = {
    ".tar": "tar",
    ".tgz": "gz",
    ".tar.gz": "gz",
    ".tar.zst": "zst",
    ".tar.lz4": "lz4",
    ".tar.bz2": "bz2",
    ".tar.xz": "xz",
}


def index_kind(object_name: str) -> str | None:
    """The kind of a shard by its name: `tar` or a compression; None if it is not named like a shard."""
    name = object_name.lower()
    return next((kind for ending, kind in ENDINGS.items() if name.endswith(ending)), None)
