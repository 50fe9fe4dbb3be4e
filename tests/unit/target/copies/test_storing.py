"""Reads, writes and outputs of jobs of a target whose objects have copies."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from calls import after, before, raising
from copied import BUCKET, V1, V2, Members, NoTees, Sent, Target, item, key_of, map_of, name_with, sender, state_of
from harness import until

from dfc.checksum import ExpectedChecksums
from dfc.errors import CopiesMissing, ObjectCorrupt, ObjectNotFound, PreconditionFailed, StorageFailed, Unavailable
from dfc.filesystem import FileSystem
from dfc.names import ObjectPath
from dfc.storage import Disk, layout
from dfc.storage.catalog.changes import Publish
from dfc.target import objects
from dfc.target.copies import objects as storing
from dfc.target.copies import writes
from dfc.target.copies.messages import CopyKey, NameReply, RowState
from dfc.target.copies.objects import CopiedObjects, Repairer
from dfc.target.copies.peering import PeeringLoop
from dfc.target.copies.receive import CopyReceiver, Prepared
from dfc.target.copies.writes import Writes
from dfc.target.jobs import JobStaging, OutputName
from dfc.target.local import MoreCopies, OwnPlace
from dfc.target.objects import OwnObject, OwnObjects, WriteConditions
from dfc.target.publishing import Publications
from dfc.target.threads import FileRange
from dfc.target.uploads import OwnUploads

JOB = "j" + "0" * 25
OWN, OTHER = name_with("d1", "d2"), name_with("d2", "d1")
KEY = key_of(OWN)
LARGE = bytes(300_000)


class Served:
    """The use cases of one target, over others that answer as a test wants."""

    def __init__(self, target: Target) -> None:
        self.target, self.peers = target, Members(target)
        self.writes = Writes(target.local, target.ledger, self.peers)  # type: ignore[arg-type]
        self.tees: Any = NoTees()
        self.repairer = Repairer(target.local, target.ledger, self.peers)  # type: ignore[arg-type]
        self.copied = CopiedObjects(
            target.local, target.ledger, self.peers, self.tees, self.writes, self.repairer, 2.0  # type: ignore[arg-type]
        )  # fmt: skip
        uploads = OwnUploads(target.local, 10_000_000)
        self.objects = OwnObjects(target.local, uploads, self.copied)
        self.receiver = CopyReceiver(target.local, target.ledger, Prepared(target.local))
        self.publications = Publications(
            target.local, target.ledger, self.peers, self.receiver, self.writes, self.copied  # type: ignore[arg-type]
        )  # fmt: skip
        self.staging = JobStaging(target.local, uploads, self.receiver, self.publications)

    def place(self) -> OwnPlace:
        return OwnPlace(self.target.bucket, self.target.disk)

    async def put(self, body: bytes, name: str = OWN, **conditions: str) -> Any:
        checks = ExpectedChecksums()
        return await self.objects.put(self.place(), name, Sent(body), checks, WriteConditions(**conditions))

    async def get(self, name: str = OWN) -> bytes:
        return self.target.disk.read_small(await self.copied.row(self.place(), name))

    def known(self, name: str) -> OwnObject | None:
        return self.objects.known(ObjectPath("b", name))

    async def stage(self, body: bytes, name: str = OWN) -> None:
        await self.staging.put(OutputName(JOB, ObjectPath("b", name)), Sent(body), ExpectedChecksums())

    async def change(self, how: str) -> None:
        if how == "put":
            assert (await self.put(b"second")).copies == 2
        elif how == "delete":
            await self.objects.delete(self.place(), OWN, WriteConditions())
        else:
            assert (await self.staging.publish(JOB)).objects == 1

    async def begun(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task that has come to send a row."""
        task = asyncio.create_task(coroutine)
        await until(lambda: bool(self.peers.sent))
        return task

    async def until_confirmed(self) -> None:
        await until(lambda: not self.target.disk.copies.has_pending)

    def others_have(self, body: bytes) -> None:
        """Disk d2 has the object, too, with these bytes."""
        self.peers.told[key_of(OWN, "d2")] = NameReply(state_of(self.target.disk.lookup(BUCKET, OWN).version, body))
        self.peers.bodies[key_of(OWN, "d2")] = body


@pytest.fixture
async def served(target: Target, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(writes, "PAUSE_S", 0.002)
    monkeypatch.setattr(writes, "CONFIRM_S", 0.01)
    monkeypatch.setattr(storing, "LOOK_S", 0.002)
    made = Served(target)
    yield made
    await made.writes.close()


# --- writes


@pytest.mark.parametrize("body", [b"small", LARGE], ids=["small", "large"])
async def test_an_object_is_stored_read_and_deleted(served: Served, body: bytes) -> None:
    stored = await served.put(body)
    assert (stored.copies, stored.replaced, stored.row.size) == (2, False, len(body))
    assert await served.get() == body
    stored = await served.put(body[:-1])
    assert (stored.copies, stored.replaced) == (2, True)
    await served.objects.delete(served.place(), OWN, WriteConditions())
    with pytest.raises(ObjectNotFound):
        await served.get()
    with pytest.raises(ObjectNotFound):
        await served.objects.delete(served.place(), OWN, WriteConditions())
    sent = [(each.kind, each.to, each.state.is_tombstone) for each in served.peers.sent]
    assert sent == [("commit", "d2", False), ("commit", "d2", False), ("commit", "d2", True)]
    await served.until_confirmed()
    assert served.target.ledger.in_doubt == set()


@pytest.mark.parametrize("body", [b"small", LARGE], ids=["small", "large"])
async def test_a_bucket_gets_more_copies_during_an_upload(served: Served, body: bytes) -> None:
    target = served.target
    target.take_map(map_of(2, copies=1))
    place = served.place()
    assert not place.bucket.has_several
    late = Sent(body, before=lambda: target.take_map(map_of(3, 2)))
    stored = await served.objects.put(place, OWN, late, ExpectedChecksums(), WriteConditions())
    assert (stored.copies, stored.copies_wanted) == (2, 2)
    assert [each.to for each in served.peers.sent] == ["d2"]


@pytest.mark.parametrize("body", [b"small", LARGE], ids=["small", "large"])
async def test_a_bucket_gets_more_copies_in_the_middle_of_a_write(
    served: Served, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    """After the last look at the map before the transaction."""
    target = served.target
    target.take_map(map_of(2, copies=1))
    place = served.place()

    def has_several(*_: Any) -> bool:
        target.take_map(map_of(3, 2))
        return False

    monkeypatch.setattr(CopiedObjects, "_has_several", has_several)
    stored = await served.objects.put(place, OWN, Sent(body), ExpectedChecksums(), WriteConditions())
    monkeypatch.undo()
    assert (stored.copies, stored.copies_wanted) == (2, 2)
    assert [each.to for each in served.peers.sent] == ["d2"]
    assert await served.get() == body


async def test_a_bucket_gets_more_copies_in_the_middle_of_a_deletion(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    target = served.target
    await served.put(b"small")
    target.take_map(map_of(4, 3, copies=1))
    monkeypatch.setattr(target.disk, "delete", raising(MoreCopies("more")))
    place = served.place()
    served.target.take_map(map_of(5, 4))
    await served.objects.delete(place, OWN, WriteConditions())
    assert target.disk.find(BUCKET, OWN) is None
    assert served.peers.sent[-1].state.is_tombstone


async def test_writes_of_a_name_go_one_after_the_other(served: Served) -> None:
    stored = await asyncio.gather(*(served.put(b"%d" % number) for number in range(10)))
    assert {each.copies for each in stored} <= {1, 2}, "1: something newer was there already"
    versions = [each.state.version for each in served.peers.sent]
    assert versions == sorted(versions)
    assert served.target.version(OWN) == max(each.row.version for each in stored)
    assert served.target.ledger.in_doubt == set()


async def test_bodies_of_an_upload_that_was_replaced_are_given_up(served: Served) -> None:
    """Other disks would keep them for two minutes, and take fewer others meanwhile."""
    slow = Sent(LARGE, before=lambda: served.put(b"newer"))
    stored = await served.objects.put(served.place(), OWN, slow, ExpectedChecksums(), WriteConditions())
    assert (stored.copies, served.tees.given_up) == (1, 1)
    assert await served.get() == b"newer"
    await served.put(LARGE)
    assert served.tees.given_up == 1, "this one counts"


async def test_one_of_many_creates_an_object(served: Served) -> None:
    told = await asyncio.gather(*(served.put(b"%d" % each, if_none_match="*") for each in range(8)), return_exceptions=True)
    assert sum(isinstance(each, PreconditionFailed) for each in told) == 7
    assert served.target.ledger.in_doubt == set()


async def test_a_client_that_leaves_in_the_middle_has_written(served: Served) -> None:
    hang = served.peers.hang()
    task = await served.begun(served.put(b"body"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert KEY in served.target.ledger.in_doubt
    hang.set()
    assert await served.get() == b"body"
    assert KEY not in served.target.ledger.in_doubt


async def test_a_client_that_leaves_during_the_commit_has_written(served: Served) -> None:
    """The row is committed then, so it has to be brought to the others before anybody may read it."""
    committer, hang = served.target.disk.parts.committer, served.peers.hang()
    committed, release = threading.Event(), threading.Event()

    def slow(_: Any) -> None:
        committed.set()
        assert release.wait(10)

    after(committer, "submit_all", slow)
    task = asyncio.create_task(served.put(b"body"))
    await until(committed.is_set)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    release.set()
    await until(lambda: bool(served.peers.sent) or KEY not in served.target.ledger.in_doubt)
    assert KEY in served.target.ledger.in_doubt
    hang.set()
    assert await served.get() == b"body"


async def test_a_refused_commit_leaves_nothing_in_doubt(served: Served) -> None:
    with pytest.raises(PreconditionFailed):
        await served.put(b"body", if_match="*")
    served.target.take_map(map_of(2, 2, out_of_sync_with={"d1": ("d2",)}))
    with pytest.raises(Unavailable):
        await served.put(b"body")
    assert (served.target.ledger.in_doubt, served.target.version(OWN)) == (set(), None)


class FullOnce(FileSystem):
    """The first COMMIT that makes a name uncertain finds the disk full."""

    def __init__(self, target: Target) -> None:
        self._target, self.is_full = target, True

    def commit(self, connection: sqlite3.Connection) -> None:
        if self.is_full and self._target.ledger.in_doubt:
            self.is_full = False
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        super().commit(connection)


class UnknownOutcome(FileSystem):
    """The first COMMIT that makes a name uncertain is said to have failed, and `is_there` or not."""

    def __init__(self, target: Target, *, is_there: bool) -> None:
        self._target, self._is_there = target, is_there

    def commit(self, connection: sqlite3.Connection) -> None:
        fails = bool(self._target.ledger.in_doubt)
        if self._is_there or not fails:
            super().commit(connection)
        if fails:
            raise sqlite3.OperationalError("disk I/O error")


@pytest.mark.parametrize("change", ["put", "delete", "publish"])
async def test_what_is_committed_again_after_making_room_is_not_refused(served: Served, change: str) -> None:
    committer = served.target.disk.parts.committer
    await served.put(b"first")
    if change == "publish":
        await served.stage(b"output")
    await served.until_confirmed()
    committer._filesystem = filesystem = FullOnce(served.target)
    await served.change(change)
    assert not filesystem.is_full
    await served.until_confirmed()
    assert served.target.ledger.in_doubt == set()


@pytest.mark.parametrize("is_there", [True, False], ids=["there", "not there"])
@pytest.mark.parametrize("change", ["put", "delete", "publish"])
async def test_a_commit_with_an_unknown_outcome_keeps_the_name_in_doubt(
    served: Served, monkeypatch: pytest.MonkeyPatch, change: str, is_there: bool
) -> None:
    """What is read might be gone when another disk decides."""
    monkeypatch.setattr(writes, "LOOK_AFTER_S", 0.005)
    target = served.target
    await served.put(b"first")
    if change == "publish":
        await served.stage(b"output")
    await served.until_confirmed()
    target.disk.parts.committer._filesystem = UnknownOutcome(target, is_there=is_there)
    with pytest.raises(StorageFailed):
        await served.change(change)
    await asyncio.sleep(0.03)
    assert target.ledger.in_doubt == {KEY}
    assert not served.copied.may_serve(target.disk, BUCKET, OWN)
    target.take_map(map_of(2, 2, down=("d1",)))
    await until(lambda: not target.ledger.in_doubt)


async def test_a_row_whose_commit_was_said_to_have_failed_is_driven(served: Served) -> None:
    target = served.target
    peering_loop = PeeringLoop(target.local, target.ledger, served.peers, served.receiver, served.writes)  # type: ignore[arg-type]
    await served.put(b"first")
    await served.until_confirmed()
    target.disk.parts.committer._filesystem = UnknownOutcome(target, is_there=True)
    with pytest.raises(StorageFailed):
        await served.put(b"body")
    await peering_loop.drive_pending()
    await until(lambda: not target.ledger.in_doubt)
    assert [(each.to, each.body) for each in served.peers.sent[1:]] == [("d2", b"body")]
    assert await served.get() == b"body"


async def test_who_waits_too_long_for_copies_is_told(target: Target, served: Served) -> None:
    served.copied._hold_s = 0.05
    hang = served.peers.hang()
    with pytest.raises(CopiesMissing):
        await served.put(b"body")
    with pytest.raises(Unavailable, match="another write"):
        await served.put(b"second")
    hang.set()
    assert await served.get() == b"body"


def files(disk: Disk) -> list[Path]:
    """The blobs on a disk."""
    return [each for each in Path(disk.path, layout.OBJECTS).rglob("*") if each.is_file()]


@pytest.mark.parametrize("leaves", [False, True])
async def test_an_upload_that_never_comes_to_its_commit_leaves_nothing(served: Served, leaves: bool) -> None:
    disk = served.target.disk
    served.copied._hold_s = 600 if leaves else 0.02
    hang = served.peers.hang()
    first = await served.begun(served.put(b"first"))
    reserve = disk.parts.space._claimed
    second = asyncio.create_task(served.put(LARGE))
    if leaves:
        await until(lambda: len(files(disk)) == 2)
        second.cancel()
    with pytest.raises((Unavailable, asyncio.CancelledError)):
        await second
    await until(lambda: (len(files(disk)), disk.parts.space._claimed) == (1, reserve))
    hang.set()
    await asyncio.gather(first, return_exceptions=True)
    assert await served.get() == b"first"


async def test_a_condition_is_not_decided_by_a_write_that_may_be_undone(served: Served) -> None:
    """412 would say that an object exists which perhaps never counts."""
    hang = served.peers.hang()
    first = await served.begun(served.put(b"first"))
    second = asyncio.create_task(served.put(b"second", if_none_match="*"))
    done, _ = await asyncio.wait((second,), timeout=0.1)
    hang.set()
    await first
    with pytest.raises(PreconditionFailed):
        await second
    assert not done, "it was told while the first was uncertain"


# --- reads


async def test_a_read_waits_for_a_write_on_its_way(served: Served) -> None:
    hang = served.peers.hang()
    put = await served.begun(served.put(b"body"))
    get = asyncio.create_task(served.get())
    done, _ = await asyncio.wait((get,), timeout=0.05)
    assert not done
    assert not served.copied.may_serve(served.target.disk, BUCKET, OWN)
    hang.set()
    assert (await get, (await put).copies) == (b"body", 2)
    assert served.copied.may_serve(served.target.disk, BUCKET, OWN)


async def test_a_second_replica_serves_what_counts(served: Served) -> None:
    await served.receiver.take(sender(), [item(OTHER, V1, b"one", kind="adopt")])
    assert await served.get(OTHER) == b"one"
    assert served.peers.asked == []


async def test_a_second_replica_asks_the_primary_about_a_pending_row(served: Served) -> None:
    await served.receiver.take(sender(), [item(OTHER, V1, b"one")])
    get = asyncio.create_task(served.get(OTHER))
    await until(lambda: len(served.peers.asked) >= 2)
    assert not get.done(), "the primary does not answer"
    primary = CopyKey("d2", BUCKET, OTHER)
    assert set(served.peers.asked) == {primary}
    served.peers.told[primary] = NameReply(state_of(V1, b"one"), speaks=False)
    count = len(served.peers.asked)
    await until(lambda: len(served.peers.asked) >= count + 2)
    assert not get.done(), "it does not know itself"
    served.peers.told[primary] = NameReply(state_of(V1, b"one"), speaks=True)
    assert await get == b"one"
    assert not served.target.is_pending(OTHER)


async def test_a_row_that_the_primary_does_not_have_is_not_served(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "READ_S", 0.05)
    await served.receiver.take(sender(), [item(OTHER, V2, b"two")])
    for state in (None, state_of(V1, b"one"), RowState(V1)):
        served.peers.told[CopyKey("d2", BUCKET, OTHER)] = NameReply(state, speaks=True)
        with pytest.raises(Unavailable):
            await served.get(OTHER)
        assert served.target.is_pending(OTHER)


async def test_a_disk_that_is_no_reader_sends_elsewhere(served: Served) -> None:
    with pytest.raises(Unavailable):
        await served.get(name_with("d2", "d3"))
    served.target.write(OWN, b"old", pending=False)
    served.target.take_map(map_of(2, 2, out_of_sync_with={"d1": ("d2",)}))
    with pytest.raises(Unavailable):
        await served.get()


async def test_an_unsettled_name_is_not_served(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "READ_S", 0.05)
    served.copied._hold_s = 0.05
    served.target.settles = False
    served.target.take_map(map_of(2, 2, down=("d2",)))
    with pytest.raises(Unavailable):
        await served.get(OTHER)
    with pytest.raises(Unavailable):
        await served.put(b"x", OTHER)
    served.copied._hold_s = 5.0
    served.target.peer_now()
    with pytest.raises(ObjectNotFound):
        await served.get(OTHER)
    assert (await served.put(b"x", OTHER)).copies == 2


@pytest.mark.parametrize("what", ["small", "large", "delete", "for too long"])
async def test_a_write_waits_for_what_others_have_when_the_map_has_just_changed(
    served: Served, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """After the last look before the transaction."""
    target, waited = served.target, asyncio.Event()
    await served.put(b"old")
    until_served, until_settled = served.copied.until_served, served.copied._until_peered

    async def late(place: OwnPlace, name: str) -> None:
        await until_served(place, name)
        monkeypatch.setattr(served.copied, "_until_peered", noted)
        target.take_map(map_of(2, 2, out_of_sync_with={"d1": ("d2",)}))
        target.settles = False
        target.take_map(map_of(3, 3))
        served.copied._hold_s = 0.2 if what == "for too long" else 5.0

    async def noted(*given: Any) -> None:
        waited.set()
        await until_settled(*given)

    monkeypatch.setattr(served.copied, "until_served", late)
    new = LARGE if what == "large" else b"new"
    write = served.objects.delete(served.place(), OWN, WriteConditions()) if what == "delete" else served.put(new)
    writing_it = asyncio.create_task(write)
    await until(lambda: waited.is_set() or writing_it.done())
    if what == "for too long":
        with pytest.raises(Unavailable, match="does not know yet"):
            await writing_it
        assert (target.body(OWN), target.ledger.in_doubt) == (b"old", set())
        return
    target.peer_now()
    await writing_it
    if what == "delete":
        assert target.disk.find(BUCKET, OWN) is None
    else:
        assert await served.get() == new


@pytest.mark.parametrize("body", [b"small", LARGE], ids=["small", "large"])
@pytest.mark.parametrize("what", ["known", "found by this read"])
async def test_damaged_bytes_are_repaired_while_they_are_read(served: Served, what: str, body: bytes) -> None:
    await served.put(body)
    served.others_have(body)
    if what == "known":
        served.target.damage(OWN)
    else:
        os.unlink(served.target.disk.blob_path(served.target.disk.lookup(BUCKET, OWN)))

    async def render(found: OwnObject) -> bytes:
        content = await found.read(0, found.row.size)
        if isinstance(content, bytes):
            return content
        assert isinstance(content, FileRange)
        with os.fdopen(content.file, "rb") as file:
            return file.read(content.size)

    assert await served.objects.read(served.place(), OWN, render) == body
    assert served.target.disk.quarantined() == []


async def test_bytes_that_the_medium_does_not_give_are_repaired(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    await served.put(b"small")
    served.others_have(b"small")
    bad, pread = served.target.disk.blob_path(served.target.disk.lookup(BUCKET, OWN)), FileSystem.pread

    def failing(self: FileSystem, fd: int, count: int, offset: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}") == bad:
            raise OSError(errno.EIO, "Input/output error")
        return pread(self, fd, count, offset)

    monkeypatch.setattr(FileSystem, "pread", failing)
    monkeypatch.setattr(objects, "read_object", lambda path, row: None)  # it is not in memory
    assert await served.objects.read(served.place(), OWN, lambda found: found.read(0, found.row.size)) == b"small"
    assert (served.target.disk.quarantined(), served.target.disk.stats.repaired_rows) == ([], 1)
    assert served.target.disk.stats.io_errors > 0


@pytest.mark.parametrize("what", ["nobody has them", "slow", "one copy"])
async def test_damaged_bytes_that_cannot_be_had_now_are_an_error(
    served: Served, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Not a 404, and the reader goes on at another disk."""
    monkeypatch.setattr(storing, "READ_S", 0.05)
    await served.put(b"small")
    if what == "slow":
        served.others_have(b"small")
    served.target.damage(OWN)
    released = asyncio.Event()
    served.peers.after_fetch = released.wait
    if what == "one copy":
        served.target.take_map(map_of(2, copies=1))
    with pytest.raises(ObjectCorrupt):
        await served.objects.read(served.place(), OWN, lambda found: found.read(0, found.row.size))
    assert what != "one copy" or served.peers.asked == []
    if what == "slow":  # it goes on
        released.set()
        await until(lambda: served.target.disk.quarantined() == [])


async def test_a_row_that_is_undone_while_it_is_read_is_not_served(served: Served) -> None:
    """It was pending when it was read, and nothing is when that is asked: it may be gone instead of confirmed."""
    disk = served.target.disk
    after(disk, "lookup_cached", lambda *name: disk.copies.revert(*name, V2, None))
    await served.receiver.take(sender(), [item(OTHER, V2, b"two")])
    with pytest.raises(ObjectNotFound):
        await served.copied.row(served.place(), OTHER)
    await served.receiver.take(sender(), [item(OTHER, V2, b"two")])
    assert served.known(OTHER) is None


async def test_what_is_in_memory_is_served_by_the_same_rules(served: Served) -> None:
    """Small reads are answered from memory, without a look at the disk."""
    await served.receiver.take(sender(), [item(OTHER, V1, b"one")])
    assert served.target.disk.lookup_cached(BUCKET, OTHER) is not None
    assert served.known(OTHER) is None, "it is pending"
    served.target.disk.copies.confirm([(BUCKET, OTHER, V1)])
    assert served.known(OTHER) is not None
    served.target.settles = False
    served.target.take_map(map_of(2, 2, down=("d2",)))
    assert served.known(OTHER) is None, "its new primary does not know yet what others have"
    served.target.peer_now()
    assert served.known(OTHER) is not None
    served.target.ledger.in_doubt.add(key_of(OTHER))
    assert served.known(OTHER) is None, "a write is on its way"


async def test_a_name_without_a_reader_is_unavailable(served: Served) -> None:
    """This disk may lack writes of the one that is away, so it does not know what exists."""
    served.target.take_map(map_of(2, 2, down=("d2",), out_of_sync_with={"d1": ("d2",)}))
    for name in (OWN, OTHER):
        with pytest.raises(Unavailable, match="no disk is up"):
            await served.objects.place(ObjectPath("b", name))


# --- outputs of jobs


async def test_outputs_are_published_with_copies(served: Served) -> None:
    names = [name_with("d1", "d2", number=number) for number in range(5)]
    for name in names:
        await served.stage(name.encode(), name)
    assert (await served.staging.publish(JOB)).objects == 5
    assert sorted(each.name for each in served.peers.sent) == sorted(names)
    assert [await served.get(name) for name in names] == [name.encode() for name in names]
    assert served.target.ledger.in_doubt == set()
    assert (await served.staging.publish(JOB)).objects == 0, "again"
    await served.until_confirmed()


async def test_publishing_waits_for_outputs_that_the_upkeep_drives(served: Served) -> None:
    """It looks at pending rows twice a second, so it may come first."""
    await served.stage(b"output")
    hang = served.peers.hang()
    publishing = await served.begun(served.staging.publish(JOB))
    again = asyncio.create_task(served.staging.publish(JOB))  # another attempt, while the first one drives the row
    done, _ = await asyncio.wait((again,), timeout=0.1)
    hang.set()
    await asyncio.gather(publishing, again)
    assert not done, "it was answered before the output was on two disks"


async def test_an_output_that_is_older_than_what_is_there_leaves_the_name_served(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client has written the name while the job ran."""
    monkeypatch.setattr(storing, "READ_S", 0.2)
    served.copied._hold_s = 0.2
    await served.stage(b"output")
    await served.put(b"newer")
    await served.until_confirmed()
    assert (await served.staging.publish(JOB)).objects == 0
    assert served.target.ledger.in_doubt == set()
    assert await served.get() == b"newer"
    assert (await served.put(b"newest")).copies == 2


async def test_an_output_that_is_older_than_a_row_whose_mark_is_still_there(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That row counts, so nobody will drive it again; nor is a publication that failed on its way."""
    monkeypatch.setattr(writes, "CONFIRM_S", 600)
    await served.stage(b"output")
    await served.put(b"newer")
    assert served.target.is_pending(OWN)

    def fail(change: Any, _: Any) -> None:
        for row in change._rows:
            change._standing(row, None)
        raise StorageFailed("no")

    with monkeypatch.context() as patch:
        patch.setattr(Publish, "apply", fail)
        with pytest.raises(StorageFailed):
            await served.staging.publish(JOB)
    assert served.target.ledger.in_doubt == set()
    assert (await served.staging.publish(JOB)).objects == 0
    assert served.target.ledger.in_doubt == set()
    assert await served.get() == b"newer"


async def test_an_output_stays_in_doubt_when_publishing_is_given_up(served: Served) -> None:
    """The proxy has left during the commit; it goes on, so the row may not be served before others have it."""
    await served.stage(b"output")
    entered, release, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()

    def slow(*_: Any) -> None:
        loop.call_soon_threadsafe(entered.set)
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result(5)

    after(served.target.disk.staging, "publish", slow)
    publishing = asyncio.create_task(served.staging.publish(JOB))
    await entered.wait()
    publishing.cancel()
    await asyncio.gather(publishing, return_exceptions=True)
    release.set()
    assert served.target.is_pending(OWN)
    assert not served.copied.may_serve(served.target.disk, BUCKET, OWN), "nobody else has it"


def test_a_look_up_says_only_what_counts(served: Served) -> None:
    """For workers of jobs, and shards that are named: what is pending, or undone meanwhile, is neither there nor missing."""
    disk, ledger = served.target.disk, served.target.ledger
    state = served.target.write(OWN, b"one", pending=False)
    assert served.copied.lookup(disk, BUCKET, OWN).version == state.version
    ledger.in_doubt.add(KEY)
    served.target.bury(OWN)
    with pytest.raises(Unavailable):
        served.copied.lookup(disk, BUCKET, OWN)
    ledger.in_doubt.clear()
    disk.copies.confirm([(BUCKET, OWN, served.target.version(OWN))])
    with pytest.raises(ObjectNotFound):
        served.copied.lookup(disk, BUCKET, OWN)


def test_a_look_up_is_repeated_when_a_row_was_undone_meanwhile(served: Served) -> None:
    disk = served.target.disk
    pending = served.target.write(OWN, b"pending")
    calls = list[Any]()
    after(disk, "lookup", lambda *name: disk.copies.revert(*name, pending.version, None))
    before(disk, "lookup", lambda *name: calls.append(name))
    with pytest.raises(ObjectNotFound):
        served.copied.lookup(disk, BUCKET, OWN)
    assert len(calls) == 2
