"""Resolve the items of a batch to pieces of files; missing items are known before any data is read."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from dfc.batch.gathering import ItemError
from dfc.batch.items import BatchItem, OnMissing
from dfc.errors import (
    BucketNotFound,
    DfcError,
    MemberNotFound,
    NotAShard,
    NotFound,
    ObjectNotFound,
    PreconditionFailed,
    RangeNotSatisfiable,
    SampleNotFound,
    Unavailable,
)
from dfc.limits import TAR_MEMBER_NAME_BYTES_MAX
from dfc.storage.disk import Disk
from dfc.storage.rows import ObjectRow, RowChanged
from dfc.tar.index.format import IndexCorrupt
from dfc.tar.index.reader import ShardIndex
from dfc.tar.writer import member_header, padding
from dfc.target.batch.spans import TEXT, Files, Integers, PieceSource

REREADS_MAX: Final = 8
MISSING: Final = "__missing__"  # files in a directory of this form belong to no sample
_BLOCK: Final = bytes(512)
# Finds an object of this target: its bucket's id and its disk. BucketNotFound, Unavailable.
Finder = Callable[[str, str], tuple[str, Disk]]


class Decoding(NamedTuple):
    """A compressed shard of which the first `size` bytes of archive are needed; decompressed, they replace file `number`."""

    number: int
    first_item: int
    disk: Disk
    row: ObjectRow
    kind: str
    size: int


@dataclass
class Resolved:
    """The pieces of all items, in order; `lengths` by item."""

    files: Files
    lengths: array[int] = field(default_factory=lambda: array("Q"))
    checksums: dict[tuple[str, str], str] = field(default_factory=dict)
    decodings: list[Decoding] = field(default_factory=list)
    source: PieceSource | None = None


def resolve(
    items: Sequence[BatchItem],
    on_missing: OnMissing,
    find: Finder,
    check_missing: Callable[[], None] = lambda: None,
    check_served: Callable[[Disk, str, str], None] = lambda _disk, _bucket_id, _name: None,
) -> Resolved:
    """Find all items. Blocking. Raises ItemError for the first item that cannot be served; then nothing stays open.

    `check_missing` raises an error if it is not certain now that what is not found does not exist, `check_served` if what was
    just read of a name does not count for certain."""
    resolved = Resolved(Files())
    try:
        work = _Work(items, on_missing, find, check_missing, check_served, resolved)
        work.run()
        return resolved
    except BaseException:
        resolved.files.close()
        raise


class _Work:
    def __init__(
        self,
        items: Sequence[BatchItem],
        on_missing: OnMissing,
        find: Finder,
        check_missing: Callable[[], None],
        check_served: Callable[[Disk, str, str], None],
        resolved: Resolved,
    ) -> None:
        self._items = items
        self._on_missing = on_missing
        self._find = find
        self._check_missing = check_missing
        self._check_served = check_served
        self._resolved = resolved
        self._text = bytearray(_BLOCK)  # padding, headers; begins with zeros
        self._columns: list[tuple[Integers, Integers, Integers, Integers]] = []  # item, file, offset, size
        self._rest: list[tuple[int, int, int, int]] = []  # the same, row by row, for everything but samples by number
        self._error: ItemError | None = None

    def run(self) -> None:
        places: dict[tuple[str, str], list[int]] = {}
        for place, item in enumerate(self._items):
            key = (item.bucket, item.object)
            found = places.get(key)
            if found is None:
                places[key] = [place]
            else:
                found.append(place)
        for (bucket, name), where in places.items():
            self._object(bucket, name, where)
        if self._error is not None:
            raise self._error
        self._finish()

    def _finish(self) -> None:
        if self._rest:
            # The pieces of an item were added in order, and the sort is stable.
            self._columns.append(tuple(np.array(self._rest, dtype=np.int64).T))
        if self._columns:
            places, numbers, offsets, sizes = (np.concatenate(column) for column in zip(*self._columns, strict=True))
        else:
            places = numbers = offsets = sizes = np.zeros(0, dtype=np.int64)
        order = np.argsort(places, kind="stable")
        lengths = np.zeros(len(self._items), dtype=np.int64)
        np.add.at(lengths, places, sizes)
        resolved = self._resolved
        resolved.lengths = array("Q", lengths.astype("=u8").tobytes())
        resolved.source = PieceSource(resolved.files, bytes(self._text), numbers[order], offsets[order], sizes[order])

    # --- one object

    def _object(self, bucket: str, name: str, where: list[int]) -> None:
        try:
            bucket_id, disk = self._find(bucket, name)
            row = self._counting(bucket_id, disk, name, where)
        except (BucketNotFound, ObjectNotFound) as error:
            for place in where:
                self._miss(place, error)
        except DfcError as error:
            self._fail(where[0], error)
        else:
            self._resolved.checksums[bucket, name] = row.checksum

    def _counting(self, bucket_id: str, disk: Disk, name: str, where: list[int]) -> ObjectRow:
        """Find the items in an object; returns its row, which counts. Raises what looking it up and reading its index do, and
        Unavailable."""
        undone, row = disk.copies.undone, self._lookup(disk, bucket_id, name)
        for _ in range(REREADS_MAX):
            marks = len(self._columns), len(self._rest), len(self._resolved.decodings)
            try:
                self._in_row(disk, row, where)
                self._check_served(disk, bucket_id, name)  # after the last look-up
                if undone == disk.copies.undone:
                    return row
            except RowChanged as change:
                row = change.row
            except IndexCorrupt:
                disk.rebuild_index(row)
            except DfcError:
                self._take_back(marks)
                raise
            self._take_back(marks)
            if undone != disk.copies.undone:  # what was read may have been pending, and undone before the check
                undone, row = disk.copies.undone, self._lookup(disk, bucket_id, name)
        raise Unavailable("the object is being replaced faster than it can be read")

    def _take_back(self, marks: tuple[int, int, int]) -> None:
        """Forget what was found since then."""
        del self._columns[marks[0] :], self._rest[marks[1] :], self._resolved.decodings[marks[2] :]

    def _lookup(self, disk: Disk, bucket_id: str, name: str) -> ObjectRow:
        undone = disk.copies.undone
        try:
            return disk.lookup(bucket_id, name)
        except ObjectNotFound:
            self._check_served(disk, bucket_id, name)
            if undone != disk.copies.undone:
                raise Unavailable("it is not known yet whether this object was deleted; try again") from None
            raise

    def _in_row(self, disk: Disk, row: ObjectRow, where: list[int]) -> None:
        items = self._items
        for place in where:
            wanted = items[place].if_match
            if wanted is not None and wanted.strip('"') not in ("*", row.checksum):
                self._fail(place, PreconditionFailed(f"the ETag of {row.name!r} does not match if_match"))
                return
        inside = [place for place in where if not _is_whole(items[place])]
        if len(inside) < len(where):
            file = self._resolved.files.add(lambda: disk.open_blob(row), lambda error, at: disk.read_failed(row, at, error))
            for place in sorted(set(where).difference(inside)):
                self._part(place, row.name, file, 0, row.size)
        if not inside:
            return
        if row.samples is None:
            why = f": {row.warnings[0]}" if row.warnings else ""
            self._fail(inside[0], NotAShard(f"{row.name!r} has no tar index{why}"))
            return
        index = disk.open_index(row)
        file = self._resolved.files.add(lambda: disk.open_blob(row), lambda error, at: disk.read_failed(row, at, error))
        end = max(self._samples(index, row, file, inside), self._members(index, row, file, inside))
        if index.compressed and end:
            self._resolved.decodings.append(Decoding(file, inside[0], disk, row, index.kind, end))

    def _part(self, place: int, name: str, file: int, offset: int, size: int) -> int:
        """Add a tar member: a header made here, bytes of a file, padding. Return where the bytes end in the file.

        `offset` and `size` are those of the whole, of which the item may want a range.
        """
        item = self._items[place]
        start = item.start or 0
        if start > size:
            self._fail(place, RangeNotSatisfiable(size))
            return 0
        count = size - start if item.length is None else min(item.length, size - start)
        header = member_header(name, count)
        self._rest.append((place, TEXT, len(self._text), len(header)))
        self._rest.append((place, file, offset + start, count))
        self._rest.append((place, TEXT, 0, len(padding(count))))
        self._text += header
        return offset + start + count

    def _members(self, index: ShardIndex, row: ObjectRow, file: int, where: list[int]) -> int:
        """Add members by name; return up to where the archive is needed."""
        needed = 0
        for place in where:
            name = self._items[place].member
            if name is None:
                continue
            member = index.find_member(name)
            if member is None or member.type != "file":
                self._miss(place, MemberNotFound(f"{row.name!r} has no file member {name[:200]!r}"))
                continue
            needed = max(needed, self._part(place, member.name, file, member.offset, member.size))
        return needed

    def _samples(self, index: ShardIndex, row: ObjectRow, file: int, where: list[int]) -> int:
        """Add samples by ordinal and by key, as they are in the archive; return up to where it is needed."""
        places, numbers = [], []
        for place in where:
            item = self._items[place]
            number = item.number
            if item.sample is not None:
                number = index.find_sample_number(item.sample)
            elif number is None:
                continue
            if number is None or number >= index.sample_count:
                what = f"sample {item.sample[:200]!r}" if item.sample is not None else f"sample number {number}"
                self._miss(place, SampleNotFound(f"{row.name!r} has no {what}"))
                continue
            places.append(place)
            numbers.append(number)
        if not places:
            return 0
        spans = index.spans(np.array(numbers, dtype=np.int64))
        at = np.array(places, dtype=np.int64)
        solid = spans.solid
        starts, sizes = spans.starts[solid], (spans.ends - spans.starts)[solid]
        self._columns.append((at[solid], np.full(len(starts), file, dtype=np.int64), starts, sizes))
        for position, pieces in spans.pieces.items():
            self._rest += [(places[position], file, start, end - start) for start, end in pieces]
        return int(spans.ends.max())

    # --- missing items

    def _fail(self, place: int, error: DfcError) -> None:
        if self._error is None or place < self._error.number:
            self._error = ItemError(place, error)

    def _miss(self, place: int, error: NotFound) -> None:
        try:
            self._check_missing()
        except DfcError as doubt:
            self._fail(place, doubt)
            return
        if self._on_missing == "fail":
            self._fail(place, error)
        elif self._on_missing == "empty":
            header = member_header(_missing_name(self._items[place]), 0)
            self._rest.append((place, TEXT, len(self._text), len(header)))
            self._text += header


def _is_whole(item: BatchItem) -> bool:
    return item.number is None and item.sample is None and item.member is None


def _missing_name(item: BatchItem) -> str:
    """Return `__missing__/bucket/object` with the member, key or ordinal, cut to the length limit of tar."""
    parts = [MISSING, item.bucket, item.object]
    inside = item.member if item.member is not None else item.sample
    if inside is not None or item.number is not None:
        parts.append(str(item.number) if inside is None else inside)
    text = "/".join(parts).replace("\0", "\ufffd").encode(errors="replace")
    return text[:TAR_MEMBER_NAME_BYTES_MAX].decode(errors="ignore")
