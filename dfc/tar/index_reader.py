"""Reads an index: members by name, samples by key or number, everything in order. Nothing read back is trusted.

Opening checks the header, the length of the file and the checksum of the tables; records are checked block by block when
first touched. What is wrong in spite of that is an IndexCorrupt, never a wrong answer from outside of the file.
"""

from __future__ import annotations

import mmap
import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from struct import error as StructError
from typing import TYPE_CHECKING, Final

import msgspec
import xxhash

from dfc.limits import INDEX_BLOCK_BYTES, MIB, SAMPLE_RECORDS_MAX
from dfc.tar.header import TYPES
from dfc.tar.index_format import (
    HEADER_BYTES,
    RECORD,
    SAMPLE,
    IndexCorrupt,
    IndexHeader,
    decode_header,
)
from dfc.tar.samples import NO_KEY

if TYPE_CHECKING:
    from dfc.tar.index_arrays import Integers, SampleArrays
    from dfc.tar.spans import SampleSpans

_CHECK_BYTES: Final = MIB  # tables are checked by reading, in pieces: mapped pages would count as our memory


class Member(msgspec.Struct, frozen=True, gc=False):
    """One member. `offset` is that of its data in the (uncompressed) archive, `size` that of the data, in bytes.

    `key` and `ext` are None for a member of no sample; `type` is one of `dfc.tar.header.TYPES`.
    """

    name: str
    key: str | None
    ext: str | None
    offset: int
    size: int
    type: str


class Sample(msgspec.Struct, frozen=True):
    """Neighbouring members with one key. `start` to `end`: their bytes in the archive, headers and padding included.

    Members that belong to no sample may lie between them.
    """

    key: str
    number: int
    start: int
    end: int
    members: tuple[Member, ...]


class ShardIndex:
    """An open index. Reads are safe from many threads; after `close` they raise ValueError."""

    def __init__(self, header: IndexHeader, mapping: mmap.mmap) -> None:
        """Use `open`."""
        self.version = header.version
        self.size = header.size
        self.checksum = header.checksum
        self.kind = header.kind
        self.compressed = header.kind != "tar"
        self.archive_size = header.archive_size
        self.member_count = header.members
        self.sample_count = header.samples
        self.repeated_keys = header.repeated_keys
        self.dropped = header.dropped
        self._map = mapping
        self._view = memoryview(mapping)
        self._records_end = header.records_end
        self._samples_start = header.samples_start
        self._checked = bytearray(header.block_count)  # a race of two threads checks a block twice, no more
        self._block_sums = self._column(header.tables_start, header.block_count)
        self._member_hashes = self._column(header.members_start, header.members)
        self._member_positions = self._column(header.members_start + 8 * header.members, header.members)
        self._key_hashes = self._column(header.keys_start, header.samples)
        self._key_samples = self._column(header.keys_start + 8 * header.samples, header.samples)

    @classmethod
    def open(cls, path_or_fd: str | os.PathLike[str] | int) -> ShardIndex:
        """Map an index file; a descriptor stays the caller's. Raises IndexCorrupt, and OSError when it cannot be read."""
        if isinstance(path_or_fd, int):
            return cls._open_fd(path_or_fd)
        fd = os.open(path_or_fd, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return cls._open_fd(fd)
        finally:
            os.close(fd)

    @classmethod
    def _open_fd(cls, fd: int) -> ShardIndex:
        header = decode_header(os.pread(fd, HEADER_BYTES, 0))
        length = os.fstat(fd).st_size
        if length != header.file_size:
            raise IndexCorrupt(f"an index file has {length} bytes instead of {header.file_size}", length)
        tables = xxhash.xxh3_64()
        for offset in range(header.tables_start, length, _CHECK_BYTES):
            tables.update(os.pread(fd, _CHECK_BYTES, offset))
        if tables.intdigest() != header.tables_checksum:
            raise IndexCorrupt("the tables of an index fail their checksum", header.tables_start)
        return cls(header, mmap.mmap(fd, length, access=mmap.ACCESS_READ))

    def close(self) -> None:
        """Unmap it. Idempotent. Whoever shares it between threads drops the last reference instead."""
        for view in (
            self._block_sums,
            self._member_hashes,
            self._member_positions,
            self._key_hashes,
            self._key_samples,
            self._view,
        ):
            view.release()
        try:
            self._map.close()
        except BufferError:
            pass  # another thread is checking a block just now; the last reference unmaps it

    def verify(self) -> None:
        """Check every block of records now. Raises IndexCorrupt."""
        self._check_blocks(HEADER_BYTES, self._records_end)

    def find_member(self, name: str) -> Member | None:
        """The member with this name. Of several the last one, as if the archive had been extracted."""
        encoded = name.encode(errors="replace")
        wanted = xxhash.xxh3_64_intdigest(encoded)
        hashes = self._member_hashes
        row = bisect_right(hashes, wanted) - 1
        while row >= 0 and hashes[row] == wanted:
            position = self._member_positions[row]
            offset, size, _, stored, key_chars, member_type = self._record(position)
            if stored == encoded:
                return _member(stored, key_chars, offset, size, member_type, position)
            row -= 1
        return None

    def find_sample(self, key: str) -> Sample | None:
        """The sample with this key. Of several the first one."""
        number = self.find_sample_number(key)
        return None if number is None else self.sample_at(number)

    def find_sample_number(self, key: str) -> int | None:
        """The ordinal of the sample with this key. Of several the first one."""
        wanted = xxhash.xxh3_64_intdigest(key.encode(errors="replace"))
        hashes = self._key_hashes
        row = bisect_left(hashes, wanted)
        while row < len(hashes) and hashes[row] == wanted:
            number = self._key_samples[row]
            if number >= self.sample_count:
                raise IndexCorrupt("an index points to a sample that is not there", number)
            if self._key_of(number) == key:
                return number
            row += 1
        return None

    def _key_of(self, number: int) -> str:
        _, position = SAMPLE.unpack_from(self._map, self._samples_start + number * SAMPLE.size)
        offset, size, _, name, key_chars, member_type = self._record(position)
        return _member(name, key_chars, offset, size, member_type, position).key or ""

    def sample_at(self, number: int) -> Sample:
        """The sample with this ordinal, from 0. IndexError when there is none."""
        if not 0 <= number < self.sample_count:
            raise IndexError(f"there are {self.sample_count} samples, and none with number {number}")
        start, position = SAMPLE.unpack_from(self._map, self._samples_start + number * SAMPLE.size)
        if number + 1 < self.sample_count:
            _, end = SAMPLE.unpack_from(self._map, self._samples_start + (number + 1) * SAMPLE.size)
        else:
            end = self._records_end
        members = []
        for _ in range(SAMPLE_RECORDS_MAX):  # what lies beyond up to `end` belongs to no sample
            offset, size, _, name, key_chars, member_type = self._record(position)
            if key_chars != NO_KEY:
                members.append(_member(name, key_chars, offset, size, member_type, position))
            position += RECORD.size + len(name)
            if position >= end:
                break
        key = members[0].key if members else None
        if key is None:
            raise IndexCorrupt("a sample in an index has no members", position)
        last = members[-1]
        return Sample(key, number, start, last.offset + (last.size + 511 & -512), tuple(members))

    def members(self, start: int = 0) -> Iterator[Member]:
        """All members in archive order, from ordinal `start` on (those before are read over)."""
        position = HEADER_BYTES
        for number in range(self.member_count):
            offset, size, _, name, key_chars, member_type = self._record(position)
            if number >= start:
                yield _member(name, key_chars, offset, size, member_type, position)
            position += RECORD.size + len(name)
        if position != self._records_end:
            raise IndexCorrupt("the records of an index end elsewhere than they should", position)

    def samples(self, start: int = 0) -> Iterator[Sample]:
        """All samples in archive order, from ordinal `start` on."""
        for number in range(start, self.sample_count):
            yield self.sample_at(number)

    def sample_offsets(self) -> memoryview:
        """Where each sample begins in the archive (its first header), and after them where the last one ends: sample_count + 1
        numbers of 64 bits. Members that belong to no sample may lie before the next sample begins."""
        table = array("Q", bytes(8 * (self.sample_count + 1)))
        if self.sample_count:
            rows = self._view[self._samples_start : self._samples_start + SAMPLE.size * self.sample_count]
            table[:-1] = array("Q", rows.cast("Q")[::2].tobytes())
            table[-1] = self.sample_at(self.sample_count - 1).end
        return memoryview(table)

    def arrays(self, numbers: Integers) -> SampleArrays:
        """The samples with these ordinals as columns (`dfc.tar.index_arrays`). IndexError when there is one too large."""
        from dfc.tar.index_arrays import read_arrays  # a node serves requests without numpy

        self.verify()
        return read_arrays(self._view, self._samples_start, self.sample_count, self._records_end, numbers)

    def spans(self, numbers: Integers) -> SampleSpans:
        """Where the samples with these ordinals lie (`dfc.tar.spans`). IndexError when there is one too large."""
        from dfc.tar.spans import read_spans

        self.verify()
        return read_spans(self._view, self._samples_start, self.sample_count, self._records_end, self.archive_size, numbers)

    def _column(self, start: int, count: int) -> memoryview:
        return self._view[start : start + 8 * count].cast("Q")

    def _record(self, position: int) -> tuple[int, int, int, bytes, int, int]:
        """offset, size, head, name, key characters, type of the record at a position in the file, checked."""
        end = position + RECORD.size
        if not HEADER_BYTES <= position <= end <= self._records_end:
            raise IndexCorrupt("an index points outside of its records", position)
        self._check_blocks(position, end)
        try:
            offset, size, head, name_bytes, key_chars, member_type = RECORD.unpack_from(self._map, position)
        except StructError:
            raise IndexCorrupt("a record of an index is cut off", position) from None
        if end + name_bytes > self._records_end or member_type >= len(TYPES) or offset + size > self.archive_size:
            raise IndexCorrupt("a record of an index cannot be read", position)
        self._check_blocks(end, end + name_bytes)
        return offset, size, head, self._map[end : end + name_bytes], key_chars, member_type

    def _check_blocks(self, start: int, end: int) -> None:
        """Verify the blocks that hold records from `start` to `end`, each once."""
        for block in range((start - HEADER_BYTES) // INDEX_BLOCK_BYTES, (end - HEADER_BYTES - 1) // INDEX_BLOCK_BYTES + 1):
            if not self._checked[block]:
                block_start = HEADER_BYTES + block * INDEX_BLOCK_BYTES
                with self._view[block_start : min(block_start + INDEX_BLOCK_BYTES, self._records_end)] as data:
                    checksum = xxhash.xxh3_64_intdigest(data)
                if checksum != self._block_sums[block]:
                    raise IndexCorrupt("the records of an index fail their checksum", block_start)
                self._checked[block] = 1


def _member(name: bytes, key_chars: int, offset: int, size: int, member_type: int, position: int) -> Member:
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise IndexCorrupt("a name in an index is not UTF-8", position) from None
    if key_chars == NO_KEY:
        return Member(text, None, None, offset, size, TYPES[member_type])
    return Member(text, text[:key_chars], text[key_chars + 1 :].lower(), offset, size, TYPES[member_type])
