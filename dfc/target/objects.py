"""Find, read, store and delete the objects of a target."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

from dfc.checksum import ExpectedChecksums
from dfc.errors import Conflict, ObjectCorrupt, PreconditionFailed, Unavailable
from dfc.limits import SMALL_READ_BYTES
from dfc.names import ObjectPath
from dfc.storage.blobs.nowait import read_object
from dfc.storage.disk import Disk
from dfc.storage.preconditions import Precondition
from dfc.storage.rows import ObjectRow, RowChanged
from dfc.target.copies.storing import CopiedObjects
from dfc.target.local import Local, MoreCopies, OwnPlace
from dfc.target.threads import Content, FileRange
from dfc.target.uploads import OwnUploads, UploadBody, Uploaded

REREADS_MAX: Final = 8  # a row that changes this often during one read means a storm of uploads
T = TypeVar("T")


class OwnObject(NamedTuple):
    """An object of this target, with its row at the time of the lookup."""

    local: Local
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

        def failed(error: OSError, at: int) -> None:
            disk.read_failed(row, at, error)

        return FileRange(file, offset, size, threads.sending, failed, tail)


class WriteConditions(NamedTuple):
    """The conditions of a write: a checksum in hex, "*" for any object, None for no condition."""

    if_match: str | None = None
    if_none_match: str | None = None


class OwnObjects:
    """Operations on the objects of this target. For objects of others, `place` and `known` return None."""

    def __init__(self, local: Local, uploads: OwnUploads, copied: CopiedObjects) -> None:
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
        is_mended = False
        for _ in range(REREADS_MAX):
            try:
                return await render(OwnObject(self._local, disk, row or await self._row(place, name)))
            except RowChanged as change:
                row = None if bucket.has_several else change.row
            except ObjectCorrupt:
                if is_mended or not await self._copied.mend(place, name):
                    raise
                row, is_mended = None, True
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
