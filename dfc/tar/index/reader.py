"""Read an index: members by name, samples by key or ordinal, or everything in order. Nothing read back is trusted."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import xxhash

from dfc.limits import INDEX_BLOCK_BYTES, INDEX_CACHE_BYTES, INDEX_LOOP_READS_MAX, MIB, SAMPLE_RECORDS_MAX
from dfc.tar.header import DIRECTORY, TYPES
from dfc.tar.index.format import (
    HEADER_BYTES,
    PAGE_BYTES,
    RECORD,
    SAMPLE,
    IndexCorrupt,
    IndexFile,
    IndexHeader,
    Member,
    NotAtHand,
    PageCache,
    Read,
    Sample,
    decode_header,
)
from dfc.tar.samples import NO_KEY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dfc.tar.index.columns import Integers, SampleArrays, SampleSpans

# --- Where the records of members lie: by the ordinal of a member, and of those that belong to no sample.

_READ_BYTES: Final = 4 * MIB
_CELLS: Final = 1 << 16
_RECORD_TAIL: Final = Struct("=HHB")  # bytes of the name, characters of the key, type
_TAIL_AT: Final = RECORD.size - _RECORD_TAIL.size


def nth_position(file: IndexFile, start: int, count: int, number: int, end: int) -> int:
    """Return the smallest but `number` of the `count` positions in the column at `start`, all of them below `end`. They are in
    the order of hashes, and records are in archive order.

    Reads the column twice, in pieces: first to count how many positions lie in which part of the file, then for those in the
    part that is wanted.
    """
    import numpy as np  # only for the few that ask for the middle of a list

    width = end // _CELLS + 1
    counts = np.zeros(_CELLS + 1, dtype=np.int64)
    for piece in _pieces(file, start, count):
        counts += np.bincount(np.minimum(piece // width, _CELLS).astype(np.int64), minlength=_CELLS + 1)
    before = np.cumsum(counts)
    cell = int(np.searchsorted(before, number, side="right"))
    left = number - (int(before[cell - 1]) if cell else 0)
    found = np.concatenate([piece[piece // width == cell] for piece in _pieces(file, start, count)])
    if left >= len(found):  # positions beyond the end, in a damaged index
        return end
    found.partition(left)
    return int(found[left])


def _pieces(file: IndexFile, start: int, count: int) -> Iterator[NDArray[Any]]:
    import numpy as np

    for first in range(0, count, _READ_BYTES // 8):
        size = min(_READ_BYTES, 8 * (count - first))
        yield np.frombuffer(file.read_through(start + 8 * first, size), dtype="=u8")


def unsampled_records(data: bytes, end: int) -> Iterator[int]:
    """Yield where the records of members of no sample begin, without directories, among those that begin before `end` in
    `data`; then, negative, where the next record begins. `data` begins with a record and has all of the last one.
    IndexCorrupt."""
    at, last, unpack, size = 0, len(data) - RECORD.size, _RECORD_TAIL.unpack_from, RECORD.size
    while at < end:
        if at > last:
            raise IndexCorrupt("a record of an index cannot be read", at)
        name_bytes, key_chars, kind = unpack(data, at + _TAIL_AT)
        if key_chars == NO_KEY and kind != DIRECTORY:
            yield at
        at += size + name_bytes
    yield -at


# --- Opening checks the header, the length of the file and the checksum of the tables; records are checked block by block when
# first used. Anything still wrong raises IndexCorrupt; it never leads to reads outside the file. The file is read with `pread`
# (`dfc.tar.index.format`): a disk error is an OSError, or what `translate` returns for it.

_NUMBER: Final = Struct("=Q")
_RECORD_READ_BYTES: Final = RECORD.size + 100  # a record and its name, unless that is longer than the field of a tar header
_CHECK_BYTES: Final = MIB  # the tables are read and checked in pieces of this size
_PASSED_MAX: Final = 1000  # members that are read only to come to a later one
_NO_KEY_MARK: Final = NO_KEY.to_bytes(2)  # no text in UTF-8 has such a byte, and few numbers of a record
_RECORD_BYTES_MAX: Final = RECORD.size + 0xFFFF
_LOOP_ROWS_MAX: Final = INDEX_LOOP_READS_MAX // 4  # most members with one hash for the event loop; usually there is one
_GUESSES: Final = 4  # hashes are evenly spread, so one guess is nearly always right; otherwise bisection follows


class ShardIndex:
    """An open index. Reads are safe from many threads; after `close` they raise ValueError."""

    def __init__(self, header: IndexHeader, file: IndexFile, block_sums: array[int]) -> None:
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
        self._header = header
        self._file = file
        self._records_end = header.records_end
        self._members_start = header.members_start
        self._keys_start = header.keys_start
        self._samples_start = header.samples_start
        self._checked = bytearray(header.block_count)  # a race between threads only checks a block twice
        self._all_checked = False
        self._block_sums = block_sums

    @classmethod
    def open(
        cls,
        path_or_fd: str | os.PathLike[str] | int,
        cache: PageCache | None = None,
        translate: Callable[[OSError], Exception] | None = None,
    ) -> ShardIndex:
        """Open an index file; a descriptor is left to the caller. Raises IndexCorrupt, and OSError when it cannot be opened.

        `cache` is shared by many indexes. `translate` returns what to raise for an OSError while reading.
        """
        if isinstance(path_or_fd, int):
            descriptor = os.dup(path_or_fd)
        else:
            descriptor = os.open(path_or_fd, os.O_RDONLY | os.O_CLOEXEC)
        file = IndexFile(descriptor, PageCache(INDEX_CACHE_BYTES) if cache is None else cache, translate)
        header = decode_header(file.read_through(0, min(HEADER_BYTES, file.length)))
        if file.length != header.file_size:
            raise IndexCorrupt(f"an index file has {file.length} bytes instead of {header.file_size}", file.length)
        tables, block_sums = xxhash.xxh3_64(), bytearray()
        for offset in range(header.tables_start, file.length, _CHECK_BYTES):
            data = file.read_through(offset, min(_CHECK_BYTES, file.length - offset))
            tables.update(data)
            block_sums += data[: max(0, header.members_start - offset)]
        if tables.intdigest() != header.tables_checksum:
            raise IndexCorrupt("the tables of an index fail their checksum", header.tables_start)
        return cls(header, file, array("Q", bytes(block_sums)))

    def close(self) -> None:
        """Close the index. Idempotent. Reads running in other threads finish first."""
        self._file.close()

    def verify(self) -> None:
        """Check every block of records now. Raises IndexCorrupt."""
        if not self._all_checked:
            self._check_blocks(self._file.read_through, HEADER_BYTES, self._records_end)
            self._all_checked = True

    # --- one member, one sample

    def find_member(self, name: str) -> Member | None:
        """The member with this name; of several, the last one, as if the archive had been extracted."""
        return self._find_member(self._file.read, name, self.member_count)

    def find_member_at_hand(self, name: str) -> Member | None:
        """Like `find_member`, for an event loop: never waits for the disk; raises NotAtHand instead."""
        return self._find_member(self._file.read_at_hand, name, _LOOP_ROWS_MAX)

    def find_sample(self, key: str) -> Sample | None:
        """The sample with this key; of several, the first one."""
        return self._find_sample(self._file.read, key)

    def find_sample_at_hand(self, key: str) -> Sample | None:
        """Like `find_sample`, for an event loop: raises NotAtHand instead of waiting for the disk, or if there are too many
        members."""
        return self._find_sample(self._at_hand(), key)

    def find_sample_number(self, key: str) -> int | None:
        """The ordinal of the sample with this key; of several, the first one."""
        return next(self._numbers_of(self._file.read, key), None)

    def sample_at(self, number: int) -> Sample:
        """The sample with this ordinal, from 0. IndexError if there is none."""
        if not 0 <= number < self.sample_count:
            raise IndexError(f"there is no sample {number}: the shard has {self.sample_count} samples, counted from 0")
        return self._sample(self._file.read, self._file.read, number)

    def _at_hand(self) -> Read:
        left, at_hand = INDEX_LOOP_READS_MAX, self._file.read_at_hand

        def read(start: int, size: int) -> bytes:
            nonlocal left
            left -= 1
            if left < 0:
                raise NotAtHand
            return at_hand(start, size)

        return read

    def _find_member(self, read: Read, name: str, rows_max: int) -> Member | None:
        """Find a member. Raises NotAtHand when more than `rows_max` members have the hash of this name."""
        encoded = name.encode(errors="replace")
        wanted = xxhash.xxh3_64_intdigest(encoded)
        hashes, count = self._members_start, self.member_count
        after, first, column = _search(read, hashes, count, wanted, bisect_right)
        for row in range(after - 1, -1, -1):
            if (column[row - first] if row >= first else _number(read, hashes, row)) != wanted:
                return None
            if row < after - rows_max:
                raise NotAtHand
            position = _number(read, hashes + 8 * count, row)
            offset, size, _, stored, key_chars, member_type = self._record(read, position)
            if stored == encoded:
                return _member(stored, key_chars, offset, size, member_type, position)
        return None

    def find_sample_numbers(self, key: str) -> Iterator[int]:
        """The ordinals of all samples with this key, in order; nearly always there is one at most."""
        return self._numbers_of(self._file.read, key)

    def _numbers_of(self, read: Read, key: str) -> Iterator[int]:
        wanted = xxhash.xxh3_64_intdigest(key.encode(errors="replace"))
        hashes, count = self._keys_start, self.sample_count
        begin, first, column = _search(read, hashes, count, wanted, bisect_left)
        for row in range(begin, count):
            if (column[row - first] if row - first < len(column) else _number(read, hashes, row)) != wanted:
                return
            number = _number(read, hashes + 8 * count, row)
            if number >= count:
                raise IndexCorrupt("an index points to a sample that does not exist", number)
            if self._key_of(read, number) == key:
                yield number

    def _find_sample(self, read: Read, key: str) -> Sample | None:
        number = next(self._numbers_of(read, key), None)
        return None if number is None else self._sample(read, read, number)

    def _key_of(self, read: Read, number: int) -> str:
        _, position = SAMPLE.unpack(read(self._samples_start + number * SAMPLE.size, SAMPLE.size))
        offset, size, _, name, key_chars, member_type = self._record(read, position)
        return _member(name, key_chars, offset, size, member_type, position).key or ""

    def _sample(self, read_table: Read, read: Read, number: int) -> Sample:
        row = self._samples_start + number * SAMPLE.size
        start, position = SAMPLE.unpack(read_table(row, SAMPLE.size))
        if number + 1 < self.sample_count:
            _, end = SAMPLE.unpack(read_table(row + SAMPLE.size, SAMPLE.size))
        else:
            end = self._records_end
        members: list[Member] = []
        pieces: list[tuple[int, int]] = []
        for _ in range(SAMPLE_RECORDS_MAX):  # what lies beyond up to `end` belongs to no sample
            offset, size, head, name, key_chars, member_type = self._record(read, position)
            if key_chars != NO_KEY:
                members.append(_member(name, key_chars, offset, size, member_type, position))
                first, last = offset - head, offset + (size + 511 & -512)
                if pieces and pieces[-1][1] == first:
                    first = pieces.pop()[0]
                pieces.append((first, last))
            position += RECORD.size + len(name)
            if position >= end:
                break
        key = members[0].key if members else None
        if key is None or pieces[0][0] != start or pieces[-1][1] > self.archive_size:
            raise IndexCorrupt("a sample in an index has no members, or its offset does not match theirs", position)
        return Sample(key, number, start, pieces[-1][1], tuple(members), tuple(pieces))

    # --- in order

    def members(self, start: int = 0) -> Iterator[Member]:
        """All members in archive order, from ordinal `start` on."""
        if start >= self.member_count:
            return
        read, position, passed = self._file.ahead(), HEADER_BYTES, 0
        if start > _PASSED_MAX:
            position = nth_position(
                self._file, self._members_start + 8 * self.member_count, self.member_count, start, self._records_end
            )
            passed = start
        for number in range(passed, self.member_count):
            offset, size, _, name, key_chars, member_type = self._record(read, position)
            if number >= start:
                yield _member(name, key_chars, offset, size, member_type, position)
            position += RECORD.size + len(name)
        if position != self._records_end:
            raise IndexCorrupt("the records of an index end at the wrong place", position)

    def unsampled(self, start: int = 0) -> Iterator[Member | None]:
        """The members of no sample, without directories, whose data begins at byte `start` of the archive or later, in order;
        and None now and then, when there was none for a while. From the beginning on there are `dropped`.

        Where the mark of such a member is not, records are passed over without looking where each of them begins.
        """
        if not self.dropped:
            return
        left = -1 if start else self.dropped
        # What comes before a sample whose first header is before `start` begins before that, too. At `begin` a record begins.
        position = begin = self._record_before(0, start - 1)
        while position < self._records_end:
            yield None
            end = min(position + _CHECK_BYTES, self._records_end)
            if not self._all_checked:
                self._check_blocks(self._file.read_through, begin, min(end + RECORD.size, self._records_end))
            if _NO_KEY_MARK not in self._file.read_through(position, end - position):
                position = end if end == self._records_end else end - 1  # half of a mark may be there
                continue
            begin = max(begin, self._record_before(1, position))
            data = self._file.read_through(begin, min(end + _RECORD_BYTES_MAX, self._records_end) - begin)
            for at in unsampled_records(data, end - begin):
                if at < 0:  # all of them were looked at
                    position = begin = begin - at
                    break
                offset, size, _, name, key_chars, member_type = self._record(self._file.read, begin + at)
                if offset >= start:
                    yield _member(name, key_chars, offset, size, member_type, begin + at)
                left -= 1
                if not left:
                    return
        if position != self._records_end:
            raise IndexCorrupt("the records of an index end at the wrong place", position)

    def _record_before(self, column: int, value: int) -> int:
        """Where a record begins: the first one of the last sample whose offset (column 0) or position (1) is not after a
        value, or the first of all."""

        def row(number: int) -> tuple[int, int]:
            found: tuple[int, int] = SAMPLE.unpack(self._file.read(self._samples_start + number * SAMPLE.size, SAMPLE.size))
            return found

        after = bisect_right(range(self.sample_count), value, key=lambda number: row(number)[column])
        return row(after - 1)[1] if after else HEADER_BYTES

    def samples(self, start: int = 0) -> Iterator[Sample]:
        """All samples in archive order, from ordinal `start` on."""
        read_table, read = self._file.ahead(), self._file.ahead()
        for number in range(start, self.sample_count):
            yield self._sample(read_table, read, number)

    # --- many at a time

    def sample_offsets(self) -> memoryview:
        """The offset of each sample in the archive (of its first header), then the end of the last one: sample_count + 1
        64-bit numbers. Members that belong to no sample may lie before the next sample."""
        table = array("Q")
        end = self._samples_start + SAMPLE.size * self.sample_count
        for start in range(self._samples_start, end, _CHECK_BYTES):
            table += array("Q", self._file.read_through(start, min(_CHECK_BYTES, end - start)))[::2]
        table.append(self.sample_at(self.sample_count - 1).end if self.sample_count else 0)
        return memoryview(table)

    def arrays(self, numbers: Integers) -> SampleArrays:
        """The samples with these ordinals as columns (`dfc.tar.index.columns`). IndexError if one is too large."""
        from dfc.tar.index.columns import read_arrays  # nodes do not load numpy just to serve requests

        self.verify()
        return read_arrays(self._file, self._header, numbers)

    def spans(self, numbers: Integers) -> SampleSpans:
        """Where the samples with these ordinals lie (`dfc.tar.index.columns`). IndexError if one is too large."""
        from dfc.tar.index.columns import read_spans

        self.verify()
        return read_spans(self._file, self._header, numbers)

    # --- records

    def _record(self, read: Read, position: int) -> tuple[int, int, int, bytes, int, int]:
        """offset, size, head, name, key characters, type of the record at a position in the file, checked."""
        end = position + RECORD.size
        if not HEADER_BYTES <= position <= end <= self._records_end:
            raise IndexCorrupt("an index points outside its records", position)
        if not self._all_checked:
            self._check_blocks(read, position, end)
        data = read(position, min(_RECORD_READ_BYTES, self._records_end - position))
        offset, size, head, name_bytes, key_chars, member_type = RECORD.unpack_from(data)
        name_end = end + name_bytes
        if name_end > self._records_end or member_type >= len(TYPES) or offset + size > self.archive_size:
            raise IndexCorrupt("a record of an index cannot be read", position)
        if not self._all_checked:
            self._check_blocks(read, end, name_end)
        name = data[RECORD.size : RECORD.size + name_bytes] if name_end <= position + len(data) else read(end, name_bytes)
        return offset, size, head, name, key_chars, member_type

    def _check_blocks(self, read: Read, start: int, end: int) -> None:
        """Verify the blocks that hold records from `start` to `end`, each once."""
        for block in range((start - HEADER_BYTES) // INDEX_BLOCK_BYTES, (end - HEADER_BYTES - 1) // INDEX_BLOCK_BYTES + 1):
            if not self._checked[block]:
                first = HEADER_BYTES + block * INDEX_BLOCK_BYTES
                data = read(first, min(INDEX_BLOCK_BYTES, self._records_end - first))
                if xxhash.xxh3_64_intdigest(data) != self._block_sums[block]:
                    raise IndexCorrupt("the records of an index fail their checksum", first)
                self._checked[block] = 1


def _number(read: Read, start: int, row: int) -> int:
    found: int = _NUMBER.unpack(read(start + 8 * row, 8))[0]
    return found


def _search(
    read: Read, start: int, count: int, wanted: int, bisect: Callable[..., int]
) -> tuple[int, int, Sequence[int] | memoryview]:
    """`bisect` on the sorted column of hashes at `start`, a page at a time. It terminates even if the column is not sorted.

    Returns the row, and the last page read: its first row and its hashes, which usually include those around the row.
    """
    low, high, row, guesses = 0, count, wanted * count >> 64, 0
    first: int = 0
    column: Sequence[int] | memoryview = ()
    while low < high:
        page = (start + 8 * row) // PAGE_BYTES * PAGE_BYTES
        first, last = max(low, (page - start) // 8), min(high, (page + PAGE_BYTES - start) // 8)
        column = memoryview(read(start + 8 * first, 8 * (last - first))).cast("Q")
        found = first + bisect(column, wanted)
        if first < found < last or (found == first == low) or (found == last == high):
            return found, first, column
        edge = first if found == first else last
        if found == first:
            high = first
        else:
            low = last
        guesses += 1
        step = (wanted - column[0 if found == first else -1]) * count >> 64
        row = min(max(edge + step, low), high - 1) if guesses < _GUESSES else (low + high) // 2
    return low, first, column


def _member(name: bytes, key_chars: int, offset: int, size: int, member_type: int, position: int) -> Member:
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise IndexCorrupt("a name in an index is not UTF-8", position) from None
    if key_chars == NO_KEY:
        return Member(text, None, None, offset, size, TYPES[member_type])
    return Member(text, text[:key_chars], text[key_chars + 1 :].lower(), offset, size, TYPES[member_type])
