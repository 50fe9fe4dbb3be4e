"""The use cases of objects as a face calls them: with values alone, without a request, an answer or a server."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from calls import after
from copied import Sent
from copied import map_of as copies_map

from dfc.checksum import ExpectedChecksums
from dfc.errors import (
    BadName,
    BucketDeleting,
    Conflict,
    JobCancelled,
    NoLease,
    ObjectNotFound,
    PreconditionFailed,
    TooLarge,
    Unavailable,
)
from dfc.limits import SMALL_BODY_BYTES, SMALL_READ_BYTES
from dfc.names import ObjectPath
from dfc.placement.map import BucketEntry, ClusterMap
from dfc.registry.base import boot_s
from dfc.storage import Disk
from dfc.target import objects as objects_module
from dfc.target.copies.objects import CopiedObjects
from dfc.target.copies.service import TargetCopies
from dfc.target.jobs import JobStaging, OutputName
from dfc.target.local import TargetState
from dfc.target.objects import OwnObject, OwnObjects, WriteConditions
from dfc.target.threads import FileRange
from dfc.target.uploads import OwnUploads

JOB = "j" + "0" * 25
SIZE_MAX = 1_000_000
NO_CHECKSUMS = ExpectedChecksums()
LARGE = os.urandom(SMALL_BODY_BYTES + 1000)
LEAVING = BucketEntry(id="b2", name="leaving", state="deleting")


def sent(content: bytes, *, is_known: bool) -> Sent:
    """A body whose length is known before its end, or is not."""
    body = Sent(content)
    body.declared_length = len(content) if is_known else None
    return body


def map_of(version: int, disk: str) -> ClusterMap:
    """The disk has all objects; another bucket is being deleted."""
    found = copies_map(version, disks=(disk,), copies=1)
    return msgspec.structs.replace(found, buckets=(*found.buckets, LEAVING))


@pytest.fixture
def local(local: TargetState) -> TargetState:
    local.take_map(map_of(2, "d1"))
    return local


@pytest.fixture
def uploads(local: TargetState) -> OwnUploads:
    return OwnUploads(local, SIZE_MAX)


@pytest.fixture
def copies(local: TargetState) -> TargetCopies:
    return TargetCopies(local, local.control, SimpleNamespace(token="", hold_s=1.0))  # type: ignore[arg-type]


@pytest.fixture
def copied(copies: TargetCopies) -> CopiedObjects:
    return copies.objects


@pytest.fixture
def objects(local: TargetState, uploads: OwnUploads, copied: CopiedObjects) -> OwnObjects:
    return OwnObjects(local, uploads, copied)


def content_of(found: bytes | Any) -> bytes:
    """What was read, wherever it lies."""
    if isinstance(found, bytes):
        return found
    assert isinstance(found, FileRange)
    try:
        return os.pread(found.file, found.size, found.offset) + found.tail
    finally:
        os.close(found.file)


async def whole(found: OwnObject) -> bytes:
    return content_of(await found.read(0, found.row.size))


async def place_of(objects: OwnObjects, name: str) -> Any:
    return await objects.place(ObjectPath("b", name), create=True)


async def put(objects: OwnObjects, name: str, body: Sent, **conditions: str) -> Any:
    return await objects.put(await place_of(objects, name), name, body, NO_CHECKSUMS, WriteConditions(**conditions))


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("content", [b"", b"small", LARGE], ids=["empty", "small", "large"])
async def test_an_object_is_stored_read_and_deleted(objects: OwnObjects, content: bytes, is_known: bool) -> None:
    stored = await put(objects, "x", sent(content, is_known=is_known))
    assert (stored.bucket, stored.row.size, stored.replaced) == ("b", len(content), False)
    place = await place_of(objects, "x")
    assert await objects.read(place, "x", whole) == content
    assert (await put(objects, "x", sent(content, is_known=is_known))).replaced
    await objects.delete(place, "x", WriteConditions())
    with pytest.raises(ObjectNotFound):
        await objects.read(place, "x", whole)


@pytest.mark.parametrize("content", [os.urandom(1000), os.urandom(SMALL_READ_BYTES + 1000)], ids=["small", "large"])
async def test_a_part_of_an_object(objects: OwnObjects, content: bytes) -> None:
    await put(objects, "x", Sent(content))

    async def part(found: OwnObject) -> bytes:
        return content_of(await found.read(100, 700))

    assert await objects.read(await place_of(objects, "x"), "x", part) == content[100:700]


async def test_what_is_in_memory_is_known_at_once(objects: OwnObjects) -> None:
    path = ObjectPath("b", "x")
    assert objects.known(path) is None
    await put(objects, "x", Sent(b"abc"))
    await objects.read(await place_of(objects, "x"), "x", whole)
    assert objects.known(path).at_hand() == b"abc"
    assert objects.known(ObjectPath("none", "x")) is None


async def test_who_reads_what_is_replaced_is_asked_again(objects: OwnObjects) -> None:
    first, second = os.urandom(SMALL_READ_BYTES + 1), os.urandom(SMALL_READ_BYTES + 2)
    await put(objects, "x", Sent(first))
    seen = []

    async def render(found: OwnObject) -> bytes:
        seen.append(found.row.size)
        if len(seen) == 1:
            await put(objects, "x", Sent(second))
            found.disk.parts.discarder.wait()
        return await whole(found)

    assert await objects.read(await place_of(objects, "x"), "x", render) == second
    assert seen == [len(first), len(second)]


async def test_a_storm_of_uploads_ends_a_read(objects: OwnObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects_module, "REREADS_MAX", 3)
    await put(objects, "x", Sent(LARGE))
    seen = 0

    async def render(found: OwnObject) -> bytes:
        nonlocal seen
        seen += 1
        await put(objects, "x", Sent(LARGE))
        found.disk.parts.discarder.wait()
        return await whole(found)

    with pytest.raises(Unavailable, match="faster than it can be read"):
        await objects.read(await place_of(objects, "x"), "x", render)
    assert seen == 3


async def test_conditions_and_bounds_of_writes(objects: OwnObjects) -> None:
    with pytest.raises(TooLarge):
        await put(objects, "x", Sent(bytes(SIZE_MAX + 1)))
    with pytest.raises(PreconditionFailed):
        await put(objects, "x", Sent(b"abc"), if_match="*")
    row = (await put(objects, "x", Sent(b"abc"), if_none_match="*")).row
    for body in (Sent(b"abcd"), Sent(LARGE)):
        with pytest.raises(PreconditionFailed):
            await put(objects, "x", body, if_none_match="*")
    place = await place_of(objects, "x")
    with pytest.raises(PreconditionFailed):
        await objects.delete(place, "x", WriteConditions(if_match="0" * 32))
    await objects.delete(place, "x", WriteConditions(if_match=row.checksum))


async def test_what_is_of_another_target_has_no_place_here(objects: OwnObjects, local: TargetState) -> None:
    await put(objects, "x", Sent(b"abc"))
    place = await place_of(objects, "x")
    local.take_map(map_of(3, "d2"))
    assert await objects.place(ObjectPath("b", "x")) is None
    assert objects.known(ObjectPath("b", "x")) is None
    with pytest.raises(Unavailable):  # the map of the commit decides
        await objects.put(place, "x", Sent(b"new"), NO_CHECKSUMS, WriteConditions())
    assert str(await local.elsewhere(hopped=False)) == "http://proxy:1"


async def test_only_a_bucket_that_is_being_deleted_is_emptied(objects: OwnObjects, disk: Disk) -> None:
    disk.put_small("b2", "x", b"abc")
    disk.put_small("gone", "x", b"abc")
    with pytest.raises(Conflict):
        await objects.remove_bucket("b1")
    removed = [await objects.remove_bucket(bucket) for bucket in ("b2", "gone", "gone")]
    assert removed == [(1, [disk.id]), (1, [disk.id]), (0, [disk.id])]


async def test_outputs_of_a_job(local: TargetState, uploads: OwnUploads, objects: OwnObjects, copies: TargetCopies) -> None:
    staging = JobStaging(local, uploads, copies.receiver, copies.publications)
    output, passing = (OutputName(JOB, ObjectPath("b", name), name == "temporary") for name in ("out", "temporary"))
    body = Sent(LARGE)
    assert (await staging.put(output, body, NO_CHECKSUMS)).row.size == len(LARGE)
    assert body.pause_s is not None  # workers may pause
    await staging.put(passing, Sent(b"small"), NO_CHECKSUMS)
    found = await staging.find(output)
    assert content_of(await found.open(10, 500)) == LARGE[10:500]
    assert (await staging.totals())[JOB].objects == 2
    assert [(row.bucket, row.object, row.size) for row in await staging.prepare(JOB)] == [("b", "out", len(LARGE))]
    assert await staging.publish(JOB) == (1, len(LARGE))
    assert await objects.read(await place_of(objects, "out"), "out", whole) == LARGE
    with pytest.raises(JobCancelled):
        await staging.put(output, Sent(b"late"), NO_CHECKSUMS)
    assert await staging.discard(JOB) == 0
    for name in ("", "../x"):
        with pytest.raises(BadName):
            await staging.find(OutputName(name, ObjectPath("b", "out")))
    with pytest.raises(BucketDeleting):
        await staging.put(OutputName(JOB, ObjectPath("leaving", "x")), Sent(b""), NO_CHECKSUMS)
    with pytest.raises(TooLarge):
        await staging.put(output, Sent(b""), NO_CHECKSUMS, "deposit", SIZE_MAX + 1)


@pytest.mark.parametrize("content", [b"small", LARGE], ids=["small", "large"])
async def test_nothing_is_acknowledged_when_the_lease_has_ended_during_the_commit(
    objects: OwnObjects, local: TargetState, disk: Disk, content: bytes
) -> None:
    """A commit may wait long for its disk. By then somebody else may decide, who does not know of it."""
    after(disk.parts.committer, "submit_all", lambda _: local.lease.end())
    with pytest.raises(NoLease):
        await put(objects, "x", Sent(content))
    local.lease.extend(boot_s(), 600)
    with pytest.raises(NoLease):
        await objects.delete(await place_of(objects, "x"), "x", WriteConditions())
