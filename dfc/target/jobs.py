"""Jobs at a target: staged outputs, and the inputs that tasks ask for.

Store the outputs of jobs, staged on the disk where the object belongs; read them back, publish or discard them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple

from dfc.checksum import ExpectedChecksums
from dfc.errors import BucketDeleting, JobCancelled, NotAShard, PreconditionFailed, TooLarge, Unavailable
from dfc.jobs.tasks import InputShard, encode_blocks
from dfc.limits import JOB_INPUT_SHARDS_MAX, JOB_OUTPUT_PAUSE_S
from dfc.names import ObjectPath, check_object_name
from dfc.placement.map import BucketEntry
from dfc.storage.blobs.deposit import DepositSite
from dfc.storage.catalog.changes import StagedName, StagedRow
from dfc.storage.disk import Disk
from dfc.storage.layout import INDEX_SUFFIX, check_job_id
from dfc.storage.rows import Durability, ObjectRow, Precondition, RowChanged
from dfc.tar.header import TarError
from dfc.tar.index.format import HEADER_BYTES, IndexHeader, decode_header
from dfc.tar.index.reader import ShardIndex
from dfc.target.copies.messages import CopyKey, Sender
from dfc.target.copies.objects import CopiedObjects
from dfc.target.copies.receive import CopyReceiver
from dfc.target.listing import ShardSelection
from dfc.target.local import OwnPlace, TargetState
from dfc.target.publishing import Publications
from dfc.target.threads import FileRange
from dfc.target.uploads import OwnUploads, UploadBody, Uploaded


class OutputName(NamedTuple):
    """The name of one output of one job. `temporary`: only for later tasks of the job, never published."""

    job: str
    path: ObjectPath
    temporary: bool = False

    def owner(self) -> StagedName:
        """Return the name for the catalog. BadName when the job's id is malformed."""
        return StagedName(check_job_id(self.job), self.temporary)


class StagedBlob(NamedTuple):
    """An output that is staged here."""

    local: TargetState
    disk: Disk
    entry: StagedRow

    async def open(self, start: int, stop: int) -> FileRange:
        """Open bytes `start` to `stop`. ObjectNotFound when it was replaced or dropped meanwhile."""
        staging, threads = self.disk.staging, self.local.threads(self.disk)
        file = await threads.open(staging.open, self.entry, release=os.close)
        return FileRange(file, start, stop - start, threads.sending, staging.read_failed)


@dataclass
class JobTotal:
    """The totals that a job has staged on this target, including temporary outputs, and the age of the oldest in seconds."""

    objects: int = 0
    bytes: int = 0
    oldest_s: float = 0.0


@dataclass(frozen=True)
class PreparedObject:
    """A staged output that is to become an object."""

    bucket: str
    object: str
    size: int
    checksum: str
    version: str


class NamesReply(NamedTuple):
    """Which names lack an output, and of which that cannot be said now."""

    missing: list[str]
    unknown: list[str]


class PublishedTotal(NamedTuple):
    """The number of objects and bytes that were published."""

    objects: int
    bytes: int


class JobStaging:
    """The outputs of jobs on this target."""

    def __init__(self, local: TargetState, uploads: OwnUploads, receiver: CopyReceiver, publications: Publications) -> None:
        self._local = local
        self._uploads = uploads
        self._receiver = receiver
        self._publications = publications

    async def put(
        self,
        output: OutputName,
        body: UploadBody,
        expected: ExpectedChecksums,
        deposit: str | None = None,
        size: int | None = None,
    ) -> Uploaded:
        """Store a body as an output of a job. With `deposit`, the output is a file of that name which a worker on this machine
        writes and the body describes (`dfc.storage.blobs.deposit`); `size` is its size in bytes, if known.

        Raises JobCancelled when the job has ended here, BadName, TooLarge, and what `OwnUploads.store` and `adopt` raise.
        """
        owner, name = output.owner(), output.path.name
        body.pause_s = JOB_OUTPUT_PAUSE_S
        bucket = await self._bucket(output.path.bucket)
        place = OwnPlace(bucket, self._local.own_disk(bucket, name))
        self._uploads.check_size(max(body.declared_length or 0, size or 0))
        if await self._local.threads(place.disk).read(place.disk.staging.has_ended, owner.job):
            raise JobCancelled(f"job {owner.job} has ended on this target")
        durability = _durability(bucket, owner.temporary)
        precondition = Precondition(guard=self._local.commit_guard(bucket, name, place.disk))
        if deposit is None:
            return await self._uploads.store(
                place, name, body, expected=expected, durability=durability, precondition=precondition, staged=owner
            )
        return await self._uploads.adopt(
            place, name, body, deposit, size=size, durability=durability, precondition=precondition, staged=owner
        )

    async def until_leased(self, hold_s: float) -> None:
        """Wait for a lease, before the body of an output is read. NoLease."""
        await self._local.until_leased(hold_s)

    async def _bucket(self, name: str) -> BucketEntry:
        """Return the bucket, which was created when the job was accepted. Creating it here could undo its deletion."""
        if self._local.map.bucket(name) is None:
            await self._local.refresh_map(at_once=True)  # it may be newer than the map fetched a moment ago
        bucket = await self._local.bucket(name)
        if bucket.state == "deleting":
            raise BucketDeleting(f"bucket {name!r} is being deleted")
        return bucket

    async def site(self, path: ObjectPath, *, temporary: bool) -> DepositSite:
        """Return where a worker on this machine may write an output itself; the worker checks whether it is on it."""
        bucket = await self._bucket(path.bucket)
        return self._local.own_disk(bucket, path.name).deposit_site(_durability(bucket, temporary))

    async def find(self, output: OutputName) -> StagedBlob:
        """Find a staged output. ObjectNotFound, ObjectCorrupt, BadName."""
        owner = output.owner()
        bucket = await self._local.bucket(output.path.bucket)
        disk = self._local.own_disk(bucket, output.path.name)
        with self._local.certain():
            entry = await self._local.threads(disk).read(disk.staging.find, bucket.id, output.path.name, owner)
        return StagedBlob(self._local, disk, entry)

    # --- whole jobs, on every disk of this target

    async def totals(self) -> dict[str, JobTotal]:
        """Return the totals of every job that has staged something here."""
        found: dict[str, JobTotal] = {}
        now_us = time.time_ns() // 1000
        for totals in await self._local.of_each(lambda disk: disk.staging.totals()):
            for job, total in totals.items():
                entry = found.setdefault(job, JobTotal())
                entry.objects += total.objects
                entry.bytes += total.bytes
                entry.oldest_s = max(entry.oldest_s, (now_us - total.oldest_us) / 1e6)
        for disk in self._local.in_order():
            for job in disk.copies.publishers:  # a job that is over, and does not know that this disk is back, has to be ended
                found.setdefault(job, JobTotal())
        return found

    async def prepare(self, job: str) -> list[PreparedObject]:
        """Make everything that is to become an object durable and verify it, and copy it to all disks that must have it, so
        that publishing cannot fail because of it. Returns what the job has staged here, but not copies of what is elsewhere.
        Raises Unavailable, and what other targets answer, such as NoSpace."""
        check_job_id(job)
        names, prepared = {bucket.id: bucket.name for bucket in self._local.map.buckets}, list[PreparedObject]()
        for disk in self._local.in_order():
            await self._local.threads(disk).write(disk.staging.prepare, job)
            for row in await self._publications.spread(disk, job):
                bucket = names.get(row.bucket_id, row.bucket_id)
                prepared.append(PreparedObject(bucket, row.name, row.size, row.checksum, row.version))
        self._local.check_leased()
        return prepared

    async def publish(self, job: str, *, begins_only: bool = False) -> PublishedTotal:
        """Publish the outputs of a job, on each disk in one transaction. It may be repeated; when it has succeeded, nothing of
        the job waits here for others to have it, unless this `begins_only`."""
        check_job_id(job)
        publish = partial(self._publications.publish, job=job, is_open=self._is_open, begins_only=begins_only)
        done = await asyncio.gather(*(publish(disk) for disk in self._local.in_order()))
        self._publications.forget(job)
        self._local.check_leased()
        return PublishedTotal(sum(each.objects for each in done), sum(each.bytes for each in done))

    async def missing(self, bucket: str, names: list[str], version: str) -> NamesReply:
        """Which of these names have neither this version nor a newer one, nor a newer delete, where they are decided about,
        which is here, and on all disks that must have it. Misdirected, BucketNotFound, BadName."""
        entry = await self._local.bucket(bucket)
        keys = [CopyKey(self._local.own_disk(entry, check_object_name(name)).id, entry.id, name) for name in names]
        replies = await self._receiver.states(Sender(self._local.node_id, 0), keys)
        found = NamesReply([], [])
        for name, each in zip(names, replies, strict=True):
            if not each.speaks:
                found.unknown.append(name)
            elif each.state is None or each.state.version < version:
                found.missing.append(name)
        return found

    async def discard(self, job: str) -> int:
        """Discard what a job has staged, and refuse more of it; return the number of blobs. What it has published stays."""
        check_job_id(job)
        self._publications.forget(job)
        disks, threads = self._local.in_order(), self._local.threads
        return sum(await asyncio.gather(*(threads(disk).write(disk.staging.discard, job) for disk in disks)))

    def _is_open(self, bucket_id: str) -> bool:
        """Whether objects may be put into a bucket. Unavailable while undecided, NoLease; publishing is retried then."""
        self._local.check_leased()
        bucket = next((bucket for bucket in self._local.map.buckets if bucket.id == bucket_id), None)
        if bucket is not None and bucket.state == "checking":
            raise Unavailable(f"bucket {bucket.name!r} is being checked for deletion; try again")
        return bucket is not None and bucket.state == "active"


def _durability(bucket: BucketEntry, temporary: bool) -> Durability:
    return "relaxed" if temporary else bucket.durability


# --- Answer the tasks of jobs about inputs on this target: which shards exist, the paths of their blobs, and their indexes.


class _Found(NamedTuple):
    disk: Disk
    row: ObjectRow
    path: str


@dataclass(frozen=True)
class BlobPaths:
    """The paths of a blob and its index on this machine; `index_path` is None if there is no index."""

    path: str
    index_path: str | None
    size: int
    version: str


class JobInputs:
    """The inputs of jobs that this target holds."""

    def __init__(self, local: TargetState, selection: ShardSelection, copied: CopiedObjects) -> None:
        self._local = local
        self._selection = selection
        self._copied = copied

    async def shards(self, bucket_name: str, shards: str, *, anything: bool, step: int | None = None) -> bytes:
        """Return this target's shards that match a spec, as blocks of InputShard (`dfc.jobs.tasks.encode_blocks`). `step`: by
        which other targets give theirs; MapChanging.

        Named shards of this target must exist. Unless `anything`, they must have an index, and patterns select only shards that
        have one.
        """
        bucket = await self._local.bucket(bucket_name)
        with self._local.certain():
            async with self._selection.rows(bucket, shards, anything=anything, step=step) as rows:
                found = await self._local.call(self._encode, bucket.name, rows)
        self._local.check_leased()
        return found

    def _encode(self, bucket: str, rows: Iterator[tuple[Disk, ObjectRow]]) -> bytes:
        """Encode block by block, so that only the encoded bytes of all shards are in memory."""
        content, shards = bytearray(), (self._shard(bucket, disk, row) for disk, row in rows)
        for block in encode_blocks(islice(shards, JOB_INPUT_SHARDS_MAX)):
            content += block
        if next(shards, None) is not None:
            raise TooLarge(f"a job may read at most {JOB_INPUT_SHARDS_MAX} shards")
        return bytes(content)

    def _shard(self, bucket: str, disk: Disk, row: ObjectRow) -> InputShard:
        node = self._local.node_id
        if row.samples is None or row.members is None:
            return InputShard.unread(bucket, row.name, row.version, row.checksum, row.size, node)
        index: IndexHeader | ShardIndex | None = _header_of(disk.index_path(row), row)
        if index is None:
            try:
                index = disk.open_index(row)
            except RowChanged as change:
                return self._shard(bucket, disk, change.row)
        facts = index.archive_size, row.samples, row.members, index.repeated_keys, index.dropped, index.kind
        return InputShard(bucket, row.name, row.version, row.checksum, row.size, *facts, node)

    async def locate(self, what: ObjectPath | OutputName, version: str | None) -> BlobPaths:
        """Return the paths of an object or staged output for a worker on the same machine, which checks that it can see the
        file. PreconditionFailed for another version, BadName."""
        if isinstance(what, OutputName):
            found = await self._find(what.path, version, what.owner())
        else:
            found = await self._find(what, version)
        has_index = found.row.samples is not None
        return BlobPaths(found.path, found.path + INDEX_SUFFIX if has_index else None, found.row.size, found.row.version)

    async def index(self, path: ObjectPath, version: str | None) -> FileRange:
        """Open the index of a shard, rebuilding it if it is missing or damaged. PreconditionFailed for another version."""
        found = await self._find(path, version)
        threads = self._local.threads(found.disk)
        file = await threads.open(_open_index, found, release=os.close)
        return FileRange(file, 0, os.fstat(file).st_size, threads.sending, found.disk.index_failed)

    async def _find(self, path: ObjectPath, version: str | None, staged: StagedName | None = None) -> _Found:
        bucket = await self._local.bucket(path.bucket)
        disk = self._local.own_disk(bucket, path.name) if staged is not None else self._local.reader_disk(bucket, path.name)
        with self._local.certain():
            if staged is not None:
                entry = await self._local.threads(disk).read(disk.staging.find, bucket.id, path.name, staged)
                row, where = entry.row, disk.staging.path(entry)
            else:
                row = await self._local.threads(disk).read(self._copied.lookup, disk, bucket.id, path.name)
                where = disk.blob_path(row)
        if version not in (None, row.version):
            raise PreconditionFailed(f"{path.name!r} was replaced: its version is now {row.version}")
        return _Found(disk, row, where)


def _open_index(found: _Found) -> int:
    if _header_of(found.path + INDEX_SUFFIX, found.row) is None:
        if found.row.samples is None:
            raise NotAShard(f"{found.row.name!r} has no tar index")
        try:
            found.disk.rebuild_index(found.row)
        except RowChanged as change:
            raise PreconditionFailed(f"{found.row.name!r} was replaced: its version is now {change.row.version}") from None
    return found.disk.open_index_file(found.row)


def _header_of(path: str, row: ObjectRow) -> IndexHeader | None:
    """Read only the header of an index; None when it is missing, damaged or of another blob."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        header = decode_header(os.pread(file, HEADER_BYTES, 0))
    except (OSError, TarError):
        return None
    finally:
        os.close(file)
    return header if (header.version, header.size, header.checksum) == (row.version, row.size, row.checksum) else None
