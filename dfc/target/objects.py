"""Objects, members and samples of a target: find, read, store and delete them."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, Final, Literal, NamedTuple, TypeVar, cast

from dfc.checksum import ExpectedChecksums
from dfc.errors import Conflict, MemberNotFound, NotAShard, ObjectCorrupt, PreconditionFailed, SampleNotFound, Unavailable
from dfc.limits import DECOMPRESSED_READ_WAIT_S, SMALL_READ_BYTES, TRANSFER_BUFFER_BYTES
from dfc.names import ObjectPath
from dfc.storage.blobs.reader import read_object, read_range
from dfc.storage.disk import Disk
from dfc.storage.rows import ObjectRow, Precondition, RowChanged
from dfc.tar.index.format import IndexCorrupt, Member, NotAtHand, Sample
from dfc.tar.index.lines import list_members, list_offsets, list_samples, list_unsampled
from dfc.tar.index.reader import ShardIndex
from dfc.tar.reader import read_member_range
from dfc.tar.samples import END_OF_ARCHIVE
from dfc.target.copies.objects import CopiedObjects
from dfc.target.local import MoreCopies, OwnPlace, TargetState
from dfc.target.threads import Content, FileRange, Pieces
from dfc.target.thumbnails import Thumbnails
from dfc.target.uploads import OwnUploads, Slots, UploadBody, Uploaded

REREADS_MAX: Final = 8  # a row that changes this often during one read means a storm of uploads
T = TypeVar("T")


class OwnObject(NamedTuple):
    """An object of this target, with its row at the time of the lookup."""

    local: TargetState
    disk: Disk
    row: ObjectRow

    def at_hand(self) -> bytes | None:
        """Return the whole object if it is small and in memory; None if that is not known. Never waits for a disk."""
        row = self.row
        return None if row.size > SMALL_READ_BYTES else read_object(self.disk.blob_path(row), row)

    async def read(self, start: int, stop: int) -> Content:
        """Read bytes `start` to `stop`. Raises like `Disk.open_blob`, including RowChanged."""
        if self.row.size > SMALL_READ_BYTES:
            return await self.open(start, stop - start)
        body = read_object(self.disk.blob_path(self.row), self.row)
        if body is None:
            body = await self.local.threads(self.disk).read(self.disk.read_small, self.row)
        return body[start:stop]

    async def open(self, offset: int, size: int, tail: bytes = b"") -> FileRange:
        """Open `size` bytes of the blob, followed by `tail`, to be sent in the threads of its disk."""
        disk, row, threads = self.disk, self.row, self.local.threads(self.disk)
        file = await threads.open(disk.open_blob, row, release=os.close)
        return FileRange(file, offset, size, threads.sending, lambda error, at: disk.read_failed(row, at, error), tail)


class WriteConditions(NamedTuple):
    """The conditions of a write: a checksum in hex, "*" for any object, None for no condition."""

    if_match: str | None = None
    if_none_match: str | None = None


class OwnObjects:
    """Operations on the objects of this target. For objects of others, `place` and `known` return None."""

    def __init__(self, local: TargetState, uploads: OwnUploads, copied: CopiedObjects) -> None:
        self._local = local
        self._uploads = uploads
        self._copied = copied

    def known(self, path: ObjectPath) -> OwnObject | None:
        """Return an object whose row is in memory; None if that is not known. Never waits. Unavailable."""
        bucket = self._local.map.bucket(path.bucket)
        disk = self._local.owned_disk(bucket, path.name) if bucket is not None else None
        if bucket is None or disk is None:
            return None
        undone = disk.copies.undone
        row = disk.lookup_cached(bucket.id, path.name)
        if row is None:
            return None
        if bucket.has_several and not (self._copied.may_serve(disk, bucket.id, path.name) and undone == disk.copies.undone):
            return None
        return OwnObject(self._local, disk, row)

    async def place(self, path: ObjectPath, *, writes: bool = False, create: bool = False) -> OwnPlace | None:
        """Return where an object of this name may be read here, or with `writes` written; None: at another target. `create`
        creates the bucket.

        Raises BucketNotFound, BucketDeleting and Unavailable.
        """
        bucket = self._local.map.bucket(path.bucket)
        if bucket is None or create:
            bucket = await self._local.bucket(path.bucket, create=create)
        find = self._local.primary_disk if writes else self._local.owned_disk
        disk = find(bucket, path.name)
        return None if disk is None else OwnPlace(bucket, disk)

    async def read(self, place: OwnPlace, name: str, render: Callable[[OwnObject], Awaitable[T]]) -> T:
        """Return what `render` makes of the object; call it again if the object was replaced meanwhile, or if its bytes were
        damaged and another disk has them.

        Raises ObjectNotFound, ObjectCorrupt, Unavailable, and what `render` raises.
        """
        bucket, disk = place
        row = None if bucket.has_several else disk.lookup_cached(bucket.id, name)
        is_repaired = False
        for _ in range(REREADS_MAX):
            try:
                return await render(OwnObject(self._local, disk, row or await self._row(place, name)))
            except RowChanged as change:
                row = None if bucket.has_several else change.row
            except ObjectCorrupt:
                if is_repaired or not await self._copied.repair(place, name):
                    raise
                row, is_repaired = None, True
        raise Unavailable("the object is being replaced faster than it can be read")

    async def _row(self, place: OwnPlace, name: str) -> ObjectRow:
        bucket, disk = place
        if bucket.has_several:
            return await self._copied.row(place, name)
        return await self._local.threads(disk).read(disk.lookup, bucket.id, name)

    async def put(
        self, place: OwnPlace, name: str, body: UploadBody, expected: ExpectedChecksums, conditions: WriteConditions
    ) -> Uploaded:
        """Store a body as the object. Raises TooLarge, PreconditionFailed, and what `OwnUploads.store` raises."""
        self._uploads.check_size(body.declared_length)
        await self._local.until_kept(place.disk.id, place.bucket.id)
        if place.bucket.has_several:
            await self._copied.until_served(place, name)
        precondition = self._precondition(place, name, conditions)
        if precondition.names_an_object:
            # Checked before the body is read, to refuse early; decided inside the transaction.
            await self._local.threads(place.disk).read(self._check_early, precondition, place, name)
        return await self._uploads.store(
            place,
            name,
            body,
            expected=expected,
            durability=place.bucket.durability,
            precondition=precondition,
            storing=self._copied.storing(place, name),
        )

    async def delete(self, place: OwnPlace, name: str, conditions: WriteConditions) -> None:
        """Delete an object. ObjectNotFound, PreconditionFailed, and what the guard of a commit raises."""
        precondition = self._precondition(place, name, conditions)
        if place.bucket.has_several:
            await self._copied.until_served(place, name)
            await self._copied.delete(place, name, precondition)
        else:
            await self._delete_here(place, name, precondition)
        self._local.check_leased()  # see OwnUploads

    async def _delete_here(self, place: OwnPlace, name: str, precondition: Precondition) -> None:
        """Delete the only copy; or all of them, if there have just begun to be more."""
        try:
            await self._local.threads(place.disk).write(place.disk.delete, place.bucket.id, name, precondition=precondition)
        except MoreCopies:
            await self._copied.until_served(place, name)
            await self._copied.delete(place, name, precondition)

    def _precondition(self, place: OwnPlace, name: str, conditions: WriteConditions) -> Precondition:
        guard = self._local.commit_guard(place.bucket, name, place.disk, alone=not place.bucket.has_several)
        return Precondition(conditions.if_match, conditions.if_none_match, guard)

    def _check_early(self, precondition: Precondition, place: OwnPlace, name: str) -> None:
        row = place.disk.find(place.bucket.id, name)
        if place.bucket.has_several and not self._copied.may_serve(place.disk, place.bucket.id, name):
            return  # what is there now may be undone
        try:
            precondition.check(row.checksum if row is not None else None)
        except PreconditionFailed:
            raise
        except Exception:  # the guard is called again inside the transaction
            pass

    async def remove_bucket(self, bucket_id: str) -> tuple[int, list[str]]:
        """Delete what is left of a bucket that is `deleting` or gone in the map; return the number of objects, and the ids of
        the disks, which are all that are open. Conflict."""
        bucket = next((bucket for bucket in self._local.map.buckets if bucket.id == bucket_id), None)
        if bucket is not None and bucket.state != "deleting":
            raise Conflict(f"bucket {bucket.name!r} is not being deleted")
        removed, disks = 0, self._local.in_order()
        for disk in disks:
            removed += await self._local.threads(disk).write(disk.remove_bucket, bucket_id)
        return removed, [disk.id for disk in disks]


# --- Read members and samples of a shard: directly by its index in a plain tar, by streaming decompression otherwise.

N = TypeVar("N", str, int)
ListedKind = Literal["members", "samples", "unsampled"]
_LISTS: Final[Mapping[ListedKind, Callable[[ShardIndex, int, int | None], Iterator[bytes]]]] = {
    "members": list_members,
    "samples": list_samples,
    "unsampled": list_unsampled,
}


class MemberAtHand(NamedTuple):
    """A small member of a plain tar, with its bytes."""

    name: str
    etag: str
    body: bytes


class Members:
    """Finds members and samples inside the shards of this target. `slots` limit the reads that decompress; `thumbnails` makes
    small pictures of members."""

    def __init__(self) -> None:
        self.slots = Slots(DECOMPRESSED_READ_WAIT_S)
        self.thumbnails = Thumbnails()

    def at_hand(self, found: OwnObject, name: str) -> MemberAtHand | None:
        """Return a small member of a plain tar whose index and bytes are in memory, else None. Never waits for a disk."""
        disk, row = found.disk, found.row
        path = disk.blob_path(row)
        index = disk.cached_index(path)
        if index is None or index.compressed or row.samples is None:
            return None
        try:
            member = index.find_member_at_hand(name)
        except (NotAtHand, IndexCorrupt):
            return None
        if member is None or member.type != "file" or member.size > SMALL_READ_BYTES:
            return None
        body = read_range(path, member.offset, member.size)
        if body is None or len(body) != member.size:
            return None
        return MemberAtHand(member.name, _etag(row, member), body)

    async def look_into(self, found: OwnObject, render: Callable[[StoredShard], Awaitable[T]]) -> T:
        """Return what `render` makes of a shard; if the index proves damaged, rebuild it and call `render` once more.

        Raises NotAShard, what `Disk.open_index` raises, and what `render` raises.
        """
        disk, row = found.disk, found.row
        if row.samples is None:
            raise NotAShard(f"{row.name!r} has no tar index{': ' + row.warnings[0] if row.warnings else ''}")
        path = disk.blob_path(row)
        index = disk.cached_index(path)
        if index is None:
            index = await found.local.threads(disk).read(disk.open_index, row)
        try:
            return await render(StoredShard(found, path, index, self.slots))
        except IndexCorrupt:
            # Large indexes are only checked as they are read. Rebuild this one from the shard and try once more.
            index = await found.local.threads(disk).read(disk.rebuild_index, row, index)
            return await render(StoredShard(found, path, index, self.slots))


@dataclass(frozen=True, slots=True)
class StoredShard:
    """An object with a tar index, and the path of its blob. All methods may also raise IndexCorrupt."""

    found: OwnObject
    path: str
    index: ShardIndex
    slots: Slots

    async def member(self, name: str) -> Extract:
        """Return a member by its name. MemberNotFound."""
        try:
            member = self.index.find_member_at_hand(name)
        except NotAtHand:
            member = await self._read(self.index.find_member, name)
        if member is None:
            raise MemberNotFound(f"{self.found.row.name!r} has no member {name[:200]!r}")
        return self._member(member)

    async def sample(self, key: str, extension: str | None) -> Extract:
        """Return a sample as a tar, as in a batch: its members with the headers that they have in the shard. With an
        extension, only that member. SampleNotFound, MemberNotFound."""
        try:
            sample = self.index.find_sample_at_hand(key)
        except NotAtHand:
            sample = await self._read(self.index.find_sample, key)
        if sample is None:
            raise SampleNotFound(f"{self.found.row.name!r} has no sample {key[:200]!r}")
        return self._extract(sample, extension)

    async def numbered(self, number: int, extension: str | None) -> Extract:
        """The same for the sample with an ordinal, from 0, which is exact where keys repeat. SampleNotFound, MemberNotFound."""
        self._check_number(number)
        return self._extract(await self._read(self.index.sample_at, number), extension)

    async def several(self, numbers: Collection[int], extension: str) -> dict[int, Extract | MemberNotFound]:
        """Return the member with an extension of each of some samples, by ordinal, or the error if it has none.
        SampleNotFound if there is no such sample."""
        self._check_number(max(numbers))
        found = await self.found.local.threads(self.found.disk).read(_members_at, self.index, numbers, extension.lower())
        extracts: dict[int, Extract | MemberNotFound] = {}
        for number, (key, member) in found.items():
            try:
                extracts[number] = self._one(key, member, extension)
            except MemberNotFound as error:
                extracts[number] = error
        return extracts

    def _check_number(self, number: int) -> None:
        if number >= self.index.sample_count:
            raise SampleNotFound(
                f"{self.found.row.name!r} has no sample {number}: it has {self.index.sample_count}, counted from 0"
            )

    def _extract(self, sample: Sample, extension: str | None) -> Extract:
        if extension is None:
            return self._whole(sample)
        return self._one(sample.key, _member_of(sample, extension.lower()), extension)

    def _one(self, key: str, member: Member | None, extension: str) -> Extract:
        if member is None:
            raise MemberNotFound(f"sample {key[:200]!r} has no member with extension {extension[:80]!r}")
        return self._member(member)

    def lines(self, what: ListedKind, start: int = 0, limit: int | None = None) -> AsyncIterator[bytes]:
        """Yield a line of JSON for each member or sample from an ordinal on (of members of no sample: from an offset on), all
        or at most `limit`."""
        return self._iterate(_LISTS[what](self.index, start, limit))

    def offsets(self) -> AsyncIterator[bytes]:
        """Yield the offsets where each sample begins and the last one ends, 8 bytes each."""
        return self._iterate(list_offsets(self.index))

    def _iterate(self, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        disk, row = self.found.disk, self.found.row
        return self.found.local.threads(disk).iterate(_or_rebuild(disk, row, self.index, pieces))

    def _member(self, member: Member) -> Extract:
        if member.type != "file":
            raise MemberNotFound(f"{member.name[:200]!r} is a {member.type}, not a file with bytes in the archive")
        made = partial(_decompress, kind=self.index.kind, offset=member.offset, count=member.size)
        pieces = made if self.index.compressed else None
        return Extract(self, member.name, _etag(self.found.row, member), member.size, member.offset, pieces=pieces)

    def _whole(self, sample: Sample) -> Extract:
        size = sum(end - start for start, end in sample.pieces)
        etag = f"{self.found.row.checksum}-{sample.start:x}-{size:x}-tar"
        total = size + len(END_OF_ARCHIVE)
        if not self.index.compressed and len(sample.pieces) == 1:
            return Extract(self, None, etag, total, sample.start, END_OF_ARCHIVE)
        return Extract(self, None, etag, total, pieces=partial(_sample_tar, kind=self.index.kind, sample=sample))

    async def _read(self, function: Callable[[N], T], which: N) -> T:
        return await self.found.local.threads(self.found.disk).read(function, which)


@dataclass(frozen=True, slots=True)
class Extract:
    """`size` bytes from inside a shard: the member `name`, or (None) a tar of a whole sample.

    They are in the blob from `offset` on, followed by `tail`; or `pieces` makes them, then only as a whole.
    """

    shard: StoredShard
    name: str | None
    etag: str
    size: int
    offset: int = 0
    tail: bytes = b""
    pieces: Callable[[BlobBody], Iterator[bytes]] | None = None

    @property
    def has_parts(self) -> bool:
        """Whether parts of it can be read."""
        return self.pieces is None

    async def read(self, start: int, stop: int) -> Content:
        """Read bytes `start` to `stop`; unless it `has_parts`, all of them. Raises like `Disk.open_blob`; Unavailable while too
        many shards with large windows are being read."""
        if self.pieces is not None:
            return await self._make(self.pieces)
        found, size = self.shard.found, self.size - len(self.tail)
        offset, count = self.offset + start, max(0, min(stop, size) - start)
        tail = self.tail[max(0, start - size) : max(0, stop - size)]
        if count > SMALL_READ_BYTES:
            return await found.open(offset, count, tail)
        body = read_range(self.shard.path, offset, count)
        if body is None or len(body) != count:
            body = await found.local.threads(found.disk).read(_read_range, found.disk, found.row, offset, count)
        return body + tail if tail else body

    async def whole(self) -> bytes:
        """Return all of it. Raises like `read`. Only for what is not large."""
        if self.pieces is None:
            found, size = self.shard.found, self.size - len(self.tail)
            body = await found.local.threads(found.disk).read(_read_range, found.disk, found.row, self.offset, size)
            return body + self.tail
        made = await self._make(self.pieces)
        try:
            return b"".join([piece async for piece in made.chunks])
        finally:
            made.close()

    async def _make(self, pieces: Callable[[BlobBody], Iterator[bytes]]) -> Pieces:
        (local, disk, row), slots = self.shard.found, self.shard.slots
        has_slot = await slots.take(self.shard.index.kind)
        try:
            file = await local.threads(disk).open(disk.open_blob, row, release=os.close)
        except BaseException:
            if has_slot:
                slots.give()
            raise

        def close() -> None:
            os.close(file)
            if has_slot:
                slots.give()

        return Pieces(local.threads(disk).iterate(pieces(BlobBody(disk, row, file))), close)


def _members_at(index: ShardIndex, numbers: Collection[int], ext: str) -> dict[int, tuple[str, Member | None]]:
    """Of each of some samples, by ordinal, its key, and its member with an extension in lower case."""
    samples = ((number, index.sample_at(number)) for number in dict.fromkeys(numbers))
    return {number: (sample.key, _member_of(sample, ext)) for number, sample in samples}


def _member_of(sample: Sample, ext: str) -> Member | None:
    return next((member for member in sample.members if member.ext == ext), None)


def _etag(row: ObjectRow, member: Member) -> str:
    return f"{row.checksum}-{member.offset:x}-{member.size:x}"


def _or_rebuild(disk: Disk, row: ObjectRow, index: ShardIndex, lines: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines; if the index turns out to be damaged half-way, rebuild it for the next request and break off."""
    try:
        yield from lines
    except IndexCorrupt:
        disk.rebuild_index(row, index)
        raise


def _read_range(disk: Disk, row: ObjectRow, offset: int, count: int) -> bytes:
    file = disk.open_blob(row)
    try:
        return BlobBody(disk, row, file).pread(count, offset)
    finally:
        os.close(file)


class BlobBody:
    """The object's bytes in a blob, without the footer, as a file for the archive readers. Bytes that are missing or cannot be
    read raise the disk's errors."""

    def __init__(self, disk: Disk, row: ObjectRow, file: int) -> None:
        self._disk, self._row, self._file = disk, row, file
        self._position = 0

    def read(self, count: int = -1) -> bytes:
        left = self._row.size - self._position
        data = self.pread(left if count < 0 else min(count, left), self._position)
        self._position += len(data)
        return data

    def pread(self, count: int, offset: int) -> bytes:
        """Read exactly `count` bytes."""
        try:
            data = os.pread(self._file, count, offset)
            if len(data) != count:
                raise OSError(errno.ENODATA, f"the blob ends at byte {offset + len(data)}")
            return data
        except OSError as error:
            raise self._disk.read_failed(self._row, offset, error) from error


def _decompress(body: BlobBody, kind: str, offset: int, count: int) -> Iterator[bytes]:
    return read_member_range(cast(BinaryIO, body), kind, offset, count)


def _sample_tar(body: BlobBody, kind: str, sample: Sample) -> Iterator[bytes]:
    """Yield a sample's members as they are in the archive, then an end of archive; a compressed shard is decoded once."""
    if kind == "tar":
        for start, end in sample.pieces:
            for offset in range(start, end, TRANSFER_BUFFER_BYTES):
                yield body.pread(min(TRANSFER_BUFFER_BYTES, end - offset), offset)
    else:
        position, pieces = sample.start, list(reversed(sample.pieces))
        for data in _decompress(body, kind, sample.start, sample.end - sample.start):
            after = position + len(data)
            while pieces and pieces[-1][0] < after:
                start, end = pieces[-1]
                yield data[max(0, start - position) : end - position]
                if end > after:
                    break
                pieces.pop()
            position = after
    yield END_OF_ARCHIVE
