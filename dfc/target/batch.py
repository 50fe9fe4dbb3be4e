"""Batch reads at a target: from items to pieces of files, here and at other targets.

Resolve the items of a batch to pieces of files; missing items are known before any data is read."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import BinaryIO, Final, NamedTuple, cast

import numpy as np

from dfc.batch.gather import ByteSource, GatheredBatch, ItemError, Part, free_soon, gather_batch
from dfc.batch.items import LONG, BatchItem, BatchRequest, OnMissing, encode_preamble
from dfc.batch.peers import PeerParts, Pinned, may_serve_elsewhere
from dfc.errors import (
    BucketNotFound,
    DfcError,
    MemberNotFound,
    NotAShard,
    NotFound,
    NotSeekable,
    ObjectNotFound,
    PreconditionFailed,
    RangeNotSatisfiable,
    SampleNotFound,
    StorageFailed,
    Unavailable,
)
from dfc.http.budget import BudgetPlace
from dfc.http.peer import PeerPool
from dfc.http.transfer import to_its_end
from dfc.limits import BATCH_DECODED_BYTES_MAX, TAR_MEMBER_NAME_BYTES_MAX
from dfc.placement.mapped import reader_ids
from dfc.storage.disk import Disk
from dfc.storage.rows import ObjectRow, RowChanged
from dfc.tar.header import TarError
from dfc.tar.index.format import IndexCorrupt
from dfc.tar.index.reader import ShardIndex
from dfc.tar.reader import read_member_range
from dfc.tar.samples import member_header, padding
from dfc.target.copies.objects import CopiedObjects
from dfc.target.local import TargetState
from dfc.target.objects import BlobBody
from dfc.target.spans import TEXT, Files, Integers, PieceSource
from dfc.target.threads import shielded
from dfc.target.uploads import Slots

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
            places.setdefault((item.bucket, item.object), []).append(place)
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
            self._fail(inside[0], NotAShard(f"{row.name!r} has no tar index{': ' + row.warnings[0] if row.warnings else ''}"))
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


# --- Open batch reads at a target: read its own items from files, and ask other targets for theirs.

_BUCKET_OF: Final = attrgetter("bucket")  # of 100,000 items on the event loop


class OwnBatches:
    """Opens the parts of batches. `slots` limit the reads that decompress. `asked` limits the batches that this target
    assembles, `own` the parts that it gives to others."""

    def __init__(
        self,
        local: TargetState,
        pool: PeerPool,
        token: str,
        slots: Slots,
        copied: CopiedObjects,
        *,
        refuses_stale: bool = False,
    ) -> None:
        self._local = local
        self._copied = copied
        self.refuses_stale = refuses_stale
        self._slots = slots
        self._peers = PeerParts(pool, token, lambda node: self._local.map.url_of(node), self._readers_of)
        self._refusals = pool.refusals

    async def gather(self, request: BatchRequest, place: BudgetPlace, *, with_lengths: bool) -> GatheredBatch:
        """Find items anywhere in the cluster and return the batch, ready to be sent. Any error of an item; Unavailable."""
        await self._learn_buckets(request.items)
        threads = self._local.batches
        return await gather_batch(request, self._owner_of, self._open, place, threads, with_lengths=with_lengths)

    async def gather_own(self, request: BatchRequest) -> GatheredBatch:
        """Return items of this target, preceded by the length of each (`dfc.batch.items`). Raises the same as `gather`."""
        threads = self._local.batches
        try:
            await self._learn_buckets(request.items)
            part = await self.open_own(request.items, request.on_missing)
        except ItemError as error:
            free_soon(request.items, threads)
            raise error.answer() from None
        try:
            free_soon(request.items, threads)  # a reader may take its time
            if len(part.lengths) > LONG:
                total, begin = await asyncio.get_running_loop().run_in_executor(threads, _beginning, part)
            else:
                total, begin = _beginning(part)
        except BaseException:
            await part.close(whole=False)
            raise
        return GatheredBatch([part], [(0, total)], total, threads, begin)

    async def _learn_buckets(self, items: Sequence[BatchItem]) -> None:
        """Ask the registry once for buckets that this target's map lacks; after that they count as missing."""
        for name in set(map(_BUCKET_OF, items)):
            if self._local.map.bucket(name) is None:
                with suppress(BucketNotFound):
                    await self._local.bucket(name)

    def _owner_of(self, bucket: str, name: str) -> str:
        entry = self._local.map.bucket(bucket)
        if entry is None:
            return self._local.node_id  # where the item is found to be missing
        readers = self._readers_of(bucket, name)
        if readers:
            return readers[0]
        owner = self._local.map.owner(entry, name)
        if owner is None:
            raise Unavailable("this target has no cluster map yet")
        if self._local.map.is_copied(entry.id):
            raise Unavailable("all targets that hold items of the batch are down or incomplete", retry_after_s=2)
        return owner.node.id

    def _readers_of(self, bucket: str, name: str) -> list[str]:
        return reader_ids(self._local.map, bucket, name, self._refusals)

    async def _open(self, owner: str, items: list[BatchItem], on_missing: OnMissing) -> Part:
        if owner == self._local.node_id:
            return await self._open_own_first(items, on_missing)
        node = self._local.map.node(owner)
        if node is not None and node.state == "down":
            raise Unavailable(f"target {owner}, which holds items of the batch, is down", retry_after_s=2)
        return await self._peers.open(owner, items, on_missing)

    async def _open_own_first(self, items: list[BatchItem], on_missing: OnMissing) -> Part:
        """Open the items of this target here or, if it cannot serve them, at others that have copies."""
        own_id = self._local.node_id
        try:
            part = await self.open_own(items, on_missing)
        except (DfcError, ItemError) as error:
            if not may_serve_elsewhere(error) or not self._peers.have_others(items, {own_id}):
                raise
            return await self._peers.open(own_id, items, on_missing, passed={own_id})
        if not self._peers.have_others(items[:1], {own_id}):
            return part

        async def go_on(taken: int) -> Part:
            found = Pinned(part.resolved.lengths, part.checksums)
            return await self._peers.go_on(own_id, items, on_missing, found, taken)

        return ContinuedPart(part, go_on)

    # --- the part of this target

    async def open_own(self, items: list[BatchItem], on_missing: OnMissing) -> OwnPart:
        """Open the items of this target. ItemError; NoLease if they may be stale and `refuses_stale`."""
        is_leased = self._local.is_leased  # what is found from now on is at least as new as this
        if not is_leased and self.refuses_stale:
            self._local.check_leased()

        checks = self._local.check_leased, self._copied.check_served
        resolving = self._local.batches.submit(resolve, items, on_missing, self._find, *checks)
        try:
            resolved = await shielded(resolving)
        except asyncio.CancelledError:
            resolving.add_done_callback(_let_go)
            raise
        try:
            left = BATCH_DECODED_BYTES_MAX
            for decoding in resolved.decodings:
                left -= decoding.size
                if left < 0:
                    what = f"{decoding.row.name!r} and others are compressed: one request may decompress at most"
                    raise ItemError(decoding.first_item, NotSeekable(f"{what} {BATCH_DECODED_BYTES_MAX} bytes; ask for less"))
                await self._decode(resolved, decoding)
        except BaseException:
            resolved.files.close()
            raise
        return OwnPart(resolved, possibly_stale=not is_leased)

    async def _decode(self, resolved: Resolved, decoding: Decoding) -> None:
        has_slot = await self._slots.take(decoding.kind)
        try:
            run = asyncio.get_running_loop().run_in_executor
            await to_its_end(run(self._local.batches, _decode, resolved, decoding))
        finally:
            if has_slot:
                self._slots.give()

    def _find(self, bucket: str, name: str) -> tuple[str, Disk]:
        found = self._local.map.bucket(bucket)
        if found is None:
            raise BucketNotFound(f"bucket {bucket!r} does not exist")
        return found.id, self._local.reader_disk(found, name)


def _beginning(part: OwnPart) -> tuple[int, bytes]:
    """The bytes of all items, and what is sent before them."""
    return sum(part.lengths), encode_preamble(part.resolved.lengths.tobytes(), part.checksums)


def _let_go(resolving: Future[Resolved]) -> None:
    """Close the files of a result that is no longer wanted."""
    if not resolving.cancelled() and resolving.exception() is None:
        resolving.result().files.close()


def _decode(resolved: Resolved, decoding: Decoding) -> None:
    """Replace a compressed shard by its archive: the needed part, decompressed into an unnamed file on the shard's disk."""
    disk = decoding.disk
    body = cast(BinaryIO, BlobBody(disk, decoding.row, resolved.files.descriptor(decoding.number)))
    file = disk.scratch_file(decoding.size)
    try:
        for piece in read_member_range(body, decoding.kind, 0, decoding.size):
            file.write(piece)
        file.flush()
    except TarError as error:
        failure: DfcError = StorageFailed(f"{decoding.row.name!r} can no longer be decompressed: {error}")
    except OSError as error:
        failure = disk.scratch_failed(error, "decompressing a shard")
    else:
        resolved.files.replace(decoding.number, file)
        return
    file.close()
    raise failure


class OwnPart:
    """This target's part of a batch, see `dfc.batch.gather.Part`."""

    def __init__(self, resolved: Resolved, *, possibly_stale: bool) -> None:
        assert resolved.source is not None
        self.resolved = resolved
        self.possibly_stale = possibly_stale
        self.lengths: Sequence[int] = resolved.lengths
        self.checksums = resolved.checksums
        self.source = resolved.source

    async def close(self, *, whole: bool) -> None:
        self.resolved.files.close()

    async def reopen(self) -> None:
        raise StorageFailed("a disk of this target did not return the expected bytes")


class ContinuedPart:
    """This target's part of a batch, with which other targets that have copies go on if a disk fails in the middle."""

    def __init__(self, own: OwnPart, go_on: Callable[[int], Awaitable[Part]]) -> None:
        self._own = own
        self._go_on = go_on
        self._other: Part | None = None
        self.lengths = own.lengths
        self.source: ByteSource = BreakableSource(own.source)

    @property
    def possibly_stale(self) -> bool:
        return self._own.possibly_stale

    async def close(self, *, whole: bool) -> None:
        await self._own.close(whole=whole)
        if self._other is not None:
            await self._other.close(whole=whole)

    async def reopen(self) -> None:
        if self._other is None:
            self._other = await self._go_on(sum(self.lengths) - self._own.source.left)
        else:
            await self._other.reopen()
        self.source = self._other.source


class BreakableSource:
    """Pieces of files whose errors end the source like a lost connection, so that another one can go on."""

    def __init__(self, pieces: PieceSource) -> None:
        self._pieces = pieces
        self.event = pieces.event

    def fill(self, view: memoryview) -> int:
        try:
            return self._pieces.fill(view)
        except DfcError as error:
            raise ConnectionError(error.message) from error
