"""What jobs write: staged on the disk where the object would lie, read back by later tasks, published or discarded."""

from __future__ import annotations

import asyncio
import os
import re
import time
from functools import partial
from typing import Any, Final

from dfc.checksum import ExpectedChecksums
from dfc.errors import BadRequest, BucketDeleting, JobCancelled, TooLarge, Unavailable
from dfc.http.answers import Answer, FileAnswer, header_lines, json_answer
from dfc.http.common import flag
from dfc.http.conditions import is_not_modified, is_plain, requested_range
from dfc.http.exchange import Exchange
from dfc.limits import JOB_OUTPUT_PAUSE_S
from dfc.names import ObjectPath, check_bucket_name, check_object_name, parse_object_path
from dfc.placement.map import BucketEntry
from dfc.storage.catalog.staged import StagedName
from dfc.storage.disk import Disk
from dfc.storage.layout import check_job_id
from dfc.storage.rows import Durability, Precondition, PutResult
from dfc.tar.index import index_kind
from dfc.target.decoders import Slots
from dfc.target.local import Local, OwnPlace
from dfc.target.objects import put_answer
from dfc.target.uploads import store
from dfc.wire import CHECKSUM_HEADER, OCTETS

SITE_QUERY: Final = frozenset(("bucket", "object", "temporary"))
STAGED_QUERY: Final = frozenset(("temporary", "deposit", "size"))
_SIZE: Final = re.compile("[0-9]{1,18}")


class StagingRoutes:
    """Handlers of `/v1/node/staged…`. `slots` are those of uploads: an index of a compressed shard is made here too."""

    def __init__(self, local: Local, slots: Slots, object_size_max_bytes: int) -> None:
        self._local = local
        self._slots = slots
        self._size_max = object_size_max_bytes

    async def put(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Store a body as an output of a job, or with `deposit` a file that a worker of this machine writes, of which the body
        tells (`dfc.storage.blobs.deposit`). JobCancelled when the job has ended here."""
        owner, path = _parse(exchange, parameters)
        deposit, size = _deposit(exchange)
        exchange.pause_s = JOB_OUTPUT_PAUSE_S
        bucket = await self._bucket(path.bucket)
        place = OwnPlace(bucket, self._own_disk(bucket, path.name))
        length = exchange.declared_length
        if max(length or 0, size or 0) > self._size_max:
            raise TooLarge(f"an object has at most {self._size_max} bytes")
        if await self._local.threads(place.disk).read(place.disk.staging.has_ended, owner.job):
            raise JobCancelled(f"the job {owner.job} has ended here")
        has_slot = await self._slots.take(index_kind(path.name))
        try:
            result = await self._store(exchange, place, path.name, owner, deposit, size)
        finally:
            if has_slot:
                self._slots.give()
        return put_answer(bucket, result)

    async def _bucket(self, name: str) -> BucketEntry:
        """The bucket, made when the job was accepted. It is never made here: it would come back after its deletion."""
        if self._local.map.bucket(name) is None:
            await self._local.refresh_map(at_once=True)  # it may be younger than the map that was asked for a moment ago
        bucket = await self._local.bucket(name)
        if bucket.state == "deleting":
            raise BucketDeleting(f"the bucket {name!r} is being deleted")
        return bucket

    async def _store(
        self, exchange: Exchange, place: OwnPlace, name: str, owner: StagedName, deposit: str | None, size: int | None
    ) -> PutResult:
        disk, bucket = place.disk, place.bucket
        durability = _durability(bucket, owner.temporary)
        if deposit is None:
            begin = partial(
                disk.begin_put,
                bucket.id,
                name,
                size=exchange.declared_length,
                expected=ExpectedChecksums.from_headers(exchange.headers.get(CHECKSUM_HEADER), None),
                durability=durability,
                staged=owner,
            )
        else:
            begin = partial(disk.adopt, bucket.id, name, deposit, size=size, durability=durability, staged=owner)
        return await store(self._local, exchange, disk, begin, Precondition(guard=self._local.commit_guard(bucket, name, disk)))

    async def site(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Where a worker of this machine may write an output itself; it finds out whether it is one."""
        query = exchange.query_parameters(SITE_QUERY)
        for parameter in ("bucket", "object"):
            if parameter not in query:
                raise BadRequest(f"{parameter} is missing")
        path = ObjectPath(check_bucket_name(query["bucket"]), check_object_name(query["object"]))
        bucket = await self._bucket(path.bucket)
        return json_answer(self._own_disk(bucket, path.name).deposit_site(_durability(bucket, flag(query, "temporary"))))

    async def get(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """The staged bytes, or a range of them."""
        owner, path = _parse(exchange, parameters)
        bucket = await self._local.bucket(path.bucket)
        disk = self._own_disk(bucket, path.name)
        staging, threads = disk.staging, self._local.threads(disk)
        entry = await threads.read(staging.find, bucket.id, path.name, owner)
        row = entry.row
        lines = header_lines((("Content-Type", OCTETS), ("ETag", f'"{row.checksum}"'), ("Accept-Ranges", "bytes")))
        start, stop, status = 0, row.size, 200
        if not is_plain(exchange.headers):
            if is_not_modified(exchange.headers, row.checksum, row.modified_us):
                return Answer(304, b"", lines)
            part = requested_range(exchange.headers, row.size, row.checksum, row.modified_us)
            if part is not None:
                start, stop, status = part.start, part.stop, 206
                lines += f"Content-Range: bytes {start}-{stop - 1}/{row.size}\r\n"
        file = await threads.open(staging.open, entry, release=os.close)
        return FileAnswer(status, file, start, stop - start, lines, threads.sending, staging.read_failed)

    # --- whole jobs, on every disk of this target

    async def totals(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """What every job has staged here."""
        found: dict[str, dict[str, Any]] = {}
        now_us = time.time_ns() // 1000
        for totals in await self._local.of_each(lambda disk: disk.staging.totals()):
            for job, total in totals.items():
                entry = found.setdefault(job, {"objects": 0, "bytes": 0, "oldest_s": 0.0})
                entry["objects"] += total.objects
                entry["bytes"] += total.bytes
                entry["oldest_s"] = max(entry["oldest_s"], (now_us - total.oldest_us) / 1e6)
        return json_answer(found)

    async def prepare(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Everything that is to become an object: on the medium and sound, so that publishing cannot fail for its sake."""
        job = check_job_id(parameters[0])
        names = {bucket.id: bucket.name for bucket in self._local.map.buckets}
        objects = []
        for disk in self._disks():
            for row in await self._local.threads(disk).write(disk.staging.prepare, job):
                bucket = names.get(row.bucket_id, row.bucket_id)
                objects.append({"bucket": bucket, "object": row.name, "size": row.size, "checksum": row.checksum})
        return json_answer({"objects": objects})

    async def publish(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Make the outputs of a job visible: on each disk all at once."""
        job = check_job_id(parameters[0])
        call = self._local.threads
        done = await asyncio.gather(*(call(disk).write(disk.staging.publish, job, self._is_open) for disk in self._disks()))
        return json_answer({"objects": sum(each.objects for each in done), "bytes": sum(each.bytes for each in done)})

    async def discard(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Drop what a job has staged, and let it stage nothing more."""
        job = check_job_id(parameters[0])
        dropped = await asyncio.gather(*(self._local.threads(disk).write(disk.staging.discard, job) for disk in self._disks()))
        return json_answer({"discarded": sum(dropped)})

    def _is_open(self, bucket_id: str) -> bool:
        """Whether objects may be put into a bucket. Unavailable while that is not decided: publishing comes back then."""
        bucket = next((bucket for bucket in self._local.map.buckets if bucket.id == bucket_id), None)
        if bucket is not None and bucket.state == "checking":
            raise Unavailable(f"whether the bucket {bucket.name!r} can be deleted is being looked at")
        return bucket is not None and bucket.state == "active"

    def _disks(self) -> list[Disk]:
        return [self._local.disks[disk_id] for disk_id in sorted(self._local.disks)]

    def _own_disk(self, bucket: BucketEntry, name: str) -> Disk:
        disk = self._local.owned_disk(bucket, name)
        if disk is None:
            raise Unavailable("this target does not hold the object by its map; the map may be changing")
        return disk


def _durability(bucket: BucketEntry, temporary: bool) -> Durability:
    return "relaxed" if temporary else bucket.durability


def _deposit(exchange: Exchange) -> tuple[str | None, int | None]:
    """The name of the worker's file and the size that it will have, where they are told. BadRequest."""
    query = exchange.query_parameters(STAGED_QUERY) if exchange.raw_query else {}
    size = query.get("size")
    if size is not None and not _SIZE.fullmatch(size):
        raise BadRequest("size is a number of bytes")
    return query.get("deposit"), None if size is None else int(size)


def _parse(exchange: Exchange, parameters: tuple[str, ...]) -> tuple[StagedName, ObjectPath]:
    job, bucket, name = parameters
    path = parse_object_path(f"/{bucket}/{name}")
    check_bucket_name(path.bucket)
    temporary = flag(exchange.query_parameters(STAGED_QUERY), "temporary") if exchange.raw_query else False
    return StagedName(check_job_id(job), temporary), path
