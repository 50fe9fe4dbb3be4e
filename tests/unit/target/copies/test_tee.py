"""Bodies that go to the other disks while they are received, and wait there for their rows."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from copied import BUCKET, V1, V2, Sent, Target, item, key_of, map_of, name_with, sender, state_of
from harness import until

from dfc.checksum import ExpectedChecksums
from dfc.errors import BodyTimeout, Unavailable
from dfc.http.blocking import Broken
from dfc.limits import PREPARED_MAX, SMALL_BODY_BYTES
from dfc.placement.map import NodeEntry
from dfc.storage import DiskOptions
from dfc.storage.blobs.writer import BlobWriter
from dfc.target.copies import receive as prepared_module
from dfc.target.copies import tee as tee_module
from dfc.target.copies.messages import CopyItem, CopyKey
from dfc.target.copies.peers import Reached
from dfc.target.copies.receive import CopyReceiver, Prepared
from dfc.target.copies.tee import Tees
from dfc.target.uploads import HERE, receive_blob

BODY = random.Random(3).randbytes(300_000)
NAME, OWN = name_with("d2", "d1"), name_with("d1", "d2")


class Answer:
    def __init__(self, status: int) -> None:
        self.status = status

    def close(self) -> None:
        pass


class Stream:
    """A connection to another target, which keeps what it gets; `takes` is how many parts it takes before it breaks."""

    def __init__(self, status: int, takes: int) -> None:
        self.got, self.aborted, self._status, self._takes = b"", False, status, takes
        self.begun = threading.Event()

    def send_parts(self, parts: list[Any]) -> bool:
        if not self._takes:
            raise Broken("it broke off")
        self._takes -= 1
        for head, file, offset, count in parts:
            self.got += head + os.pread(file, count, offset)
        self.begun.set()
        return True

    def finish(self) -> Answer:
        return Answer(self._status)

    def abort(self) -> None:
        self.aborted = True


class Others:
    """The calls of this target to others."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.streams: dict[str, Stream] = {}
        self.dropped: list[tuple[str, str]] = []
        self.asked: list[tuple[str, str, int | None]] = []
        self.reached = Reached()
        self.status, self.takes = 200, 1000

    def hang(self) -> threading.Event:
        """The target of disk d2 takes a body, and answers when this is set."""
        going_on = threading.Event()
        stream = self.streams["d2"] = Stream(200, 1000)
        stream.finish = lambda: (going_on.wait(10), Answer(200))[1]  # type: ignore[method-assign]
        return going_on

    def up_node_of(self, disk: str) -> NodeEntry | None:
        node = self._target.local.map.node(f"t{disk[1:]}")
        return node if node is not None and node.state == "up" and node.id != "t1" else None

    def begin_body(self, url: str, key: CopyKey, version: str, durability: str, size: int | None) -> Stream:
        self.asked.append((key.disk, version, size))
        return self.streams.setdefault(key.disk, Stream(self.status, self.takes))

    def drop_body(self, url: str, key: CopyKey, version: str) -> None:
        self.dropped.append((key.disk, version))


@pytest.fixture
async def others(target: Target) -> Others:
    return Others(target)


@pytest.fixture
async def tees(others: Others) -> Any:
    made = Tees(others)  # type: ignore[arg-type]
    yield made
    await made.close()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tee_module, "PIECE_BYTES", 50_000)
    monkeypatch.setattr(tee_module, "PIECE_S", 0.05)


KEYS = [CopyKey("d2", BUCKET, OWN), CopyKey("d3", BUCKET, OWN)]


def begin(target: Target, size: int | None = len(BODY)) -> BlobWriter:
    return target.disk.begin_put(BUCKET, OWN, size=size, expected=ExpectedChecksums(), durability="fsync")


class Upload:
    """An upload whose body goes to other disks."""

    def __init__(self, writer: BlobWriter, tees: Tees, keys: list[CopyKey], size: int | None) -> None:
        self.writer, self.tee = writer, tees.begin(writer, size, lambda: keys, "fsync")

    def write(self, piece: bytes) -> None:
        self.tee.sink.write(memoryview(piece))

    async def finish(self) -> None:
        self.writer.finish()
        await self.tee.finished()


Follow = Callable[..., Upload]


@pytest.fixture
def follow(target: Target, tees: Tees) -> Iterator[Follow]:
    """Begins an upload, which is aborted after the test."""
    made = list[Upload]()

    def start(keys: list[CopyKey] = KEYS, size: int | None = len(BODY)) -> Upload:
        made.append(Upload(begin(target, size), tees, keys, size))
        return made[-1]

    yield start
    for each in made:
        each.writer.abort()


async def test_each_disk_gets_the_body_while_it_is_received(others: Others, follow: Follow) -> None:
    upload = follow()
    await asyncio.to_thread(upload.write, BODY[:120_000])
    await until(lambda: all(len(stream.got) >= 100_000 for stream in others.streams.values()) and len(others.streams) == 2)
    await asyncio.to_thread(upload.write, BODY[120_000:])
    await upload.finish()
    assert [stream.got for stream in others.streams.values()] == [BODY, BODY]
    assert sorted(others.asked) == [(disk, upload.writer.version, len(BODY)) for disk in ("d2", "d3")]
    assert others.dropped == []


async def test_both_halves_of_a_write_are_told(others: Others, follow: Follow) -> None:
    upload = follow(KEYS[:1])
    assert upload.tee.sink.slow_digest == upload.writer.slow_digest
    upload.tee.sink.digest(memoryview(BODY))
    upload.tee.sink.store(memoryview(BODY))
    await upload.finish()
    assert others.streams["d2"].got == BODY


async def test_a_slow_sender_is_followed_in_smaller_pieces(others: Others, follow: Follow) -> None:
    upload = follow(KEYS[:1])
    upload.write(BODY[:10])
    await until(lambda: "d2" in others.streams and others.streams["d2"].got == BODY[:10])
    upload.tee.give_up()
    await until(lambda: upload.tee.running == 0)


async def test_an_upload_that_fails_ends_its_streams(target: Target, others: Others, tees: Tees) -> None:
    class Copied:
        def follow(self, writer: BlobWriter, size: int | None) -> Any:
            self.tee = tees.begin(writer, size, lambda: KEYS, "fsync")
            return self.tee

    storing = Copied()
    body = Sent(BODY[:100_000], BodyTimeout("the body has stalled"), 10_000)
    body.declared_length = len(BODY)
    with pytest.raises(BodyTimeout):
        await receive_blob(target.local.threads(target.disk), lambda: begin(target), body, storing)  # type: ignore[arg-type]
    await until(lambda: storing.tee.running == 0)
    assert all(stream.aborted for stream in others.streams.values())
    assert not target.disk.lookup_cached(BUCKET, OWN)


async def test_what_is_there_is_dropped_when_the_upload_does_not_count(others: Others, follow: Follow) -> None:
    upload = follow()
    upload.write(BODY)
    await upload.finish()
    upload.tee.give_up()
    await until(lambda: len(others.dropped) == 2)
    assert sorted(others.dropped) == [("d2", upload.writer.version), ("d3", upload.writer.version)]


@pytest.mark.parametrize(("status", "takes"), [(503, 1000), (200, 0)])
async def test_a_stream_that_fails_holds_nobody_up(others: Others, follow: Follow, status: int, takes: int) -> None:
    others.status, others.takes = status, takes
    upload = follow()
    await asyncio.to_thread(upload.write, BODY)
    row = upload.writer.finish()
    await upload.tee.finished()
    upload.tee.give_up()
    assert others.dropped == []
    assert row.size == len(BODY)


async def test_nobody_waits_for_a_disk_that_is_down(others: Others, follow: Follow) -> None:
    going_on = others.hang()
    upload = follow(KEYS[:1])
    upload.write(BODY)
    upload.writer.finish()
    waiting = asyncio.create_task(upload.tee.finished())
    done, _ = await asyncio.wait((waiting,), timeout=0.3)
    assert not done
    others.up_node_of = lambda disk: None  # type: ignore[method-assign]
    await asyncio.wait_for(waiting, 20)
    assert upload.tee.running == 1
    going_on.set()
    await until(lambda: upload.tee.running == 0)


async def test_an_upload_does_not_wait_long_for_a_disk_that_hangs(
    others: Others, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tee_module, "FINISHED_S", 0.1)
    going_on = others.hang()
    upload = follow(KEYS[:1])
    upload.write(BODY)
    upload.writer.finish()
    await asyncio.wait_for(upload.tee.finished(), 20)
    assert upload.tee.running == 1
    going_on.set()
    await until(lambda: upload.tee.running == 0)


async def test_a_stream_to_a_target_that_leaves_ends(target: Target, others: Others, follow: Follow) -> None:
    """A slow client of this target must not hold up the other one, which is stopping."""
    upload = follow(KEYS[:1])
    upload.write(BODY[:10])
    await until(lambda: "d2" in others.streams and others.streams["d2"].got == BODY[:10])
    others.up_node_of = lambda disk: None  # type: ignore[method-assign]
    await until(lambda: upload.tee.running == 0)
    assert others.streams["d2"].aborted


async def test_giving_up_raises_nothing_when_the_target_has_stopped(others: Others, tees: Tees, follow: Follow) -> None:
    upload = follow()
    upload.write(BODY)
    await upload.tee.finished()
    await tees.close()
    upload.tee.give_up()
    assert others.dropped == []


async def test_too_many_streams_are_not_begun(
    target: Target, others: Others, tees: Tees, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The body is sent when it is complete, if there is room by then."""
    monkeypatch.setattr(tee_module, "TEE_STREAMS_MAX", 3)
    writers = [begin(target), begin(target)]
    first = tees.begin(writers[0], len(BODY), lambda: KEYS, "fsync")
    second = tees.begin(writers[1], len(BODY), lambda: KEYS, "fsync")
    assert (first.running, second.running) == (2, 0)
    second.sink.write(memoryview(BODY))
    second.received()
    writers[1].finish()
    finished = asyncio.create_task(second.finished())
    done, _ = await asyncio.wait((finished,), timeout=0.3)
    assert not done, "the commit waits for a while"
    first.give_up()
    await asyncio.wait_for(finished, 20)
    assert [stream.got for stream in others.streams.values()] == [BODY, BODY]
    assert {version for _, version, _ in others.asked[2:]} == {writers[1].version}
    for writer in writers:
        writer.abort()


async def test_an_upload_waits_for_room_only_so_long(others: Others, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tee_module, "TEE_STREAMS_MAX", 1)
    monkeypatch.setattr(tee_module, "FINISHED_S", 0.1)
    upload = follow()
    upload.write(BODY)
    upload.tee.received()
    upload.writer.finish()
    await asyncio.wait_for(upload.tee.finished(), 20)
    assert others.asked == []


async def test_a_body_of_unknown_length_is_followed(target: Target, others: Others, tees: Tees) -> None:
    """As `tar c | curl -T -` sends it."""

    class Copied:
        def follow(self, writer: BlobWriter, size: int | None) -> Any:
            assert size is None
            self.tee = tees.begin(writer, size, lambda: KEYS, "fsync")
            return self.tee

    storing = Copied()

    async def halt() -> None:
        await until(lambda: len(others.streams) == 2 and all(stream.got == BODY for stream in others.streams.values()))
        assert storing.tee.running == 2, "there may be more"

    body = Sent(BODY, piece=60_000, after=halt)
    body.declared_length = None
    received = await receive_blob(target.local.threads(target.disk), lambda: begin(target, None), body, storing)  # type: ignore[arg-type]
    assert [stream.got for stream in others.streams.values()] == [BODY, BODY]
    assert sorted(others.asked) == [(disk, received.writer.version, None) for disk in ("d2", "d3")]
    received.writer.abort()


async def test_a_small_body_of_unknown_length_goes_with_its_row(others: Others, follow: Follow) -> None:
    upload = follow(size=None)
    upload.write(BODY[:SMALL_BODY_BYTES])
    upload.tee.received()
    await upload.finish()
    assert (others.asked, upload.tee.running) == ([], 0)


async def test_a_slow_disk_is_waited_for_as_long_as_the_body_moves(
    others: Others, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tee_module, "FINISHED_S", 0.3)
    monkeypatch.setattr(tee_module, "LOOK_S", 0.02)
    slow = others.streams["d2"] = Stream(200, 1000)
    send_parts = slow.send_parts
    slow.send_parts = lambda parts: (time.sleep(0.15), send_parts(parts))[1]  # type: ignore[method-assign]
    upload = follow(KEYS[:1])
    upload.write(BODY)
    upload.tee.received()
    upload.writer.finish()
    begun_s = time.monotonic()
    await upload.tee.finished()
    assert time.monotonic() - begun_s > 0.6, "twice as long as a disk that does not move"
    assert (slow.got, upload.tee.running) == (BODY, 0)


async def test_a_stream_that_broke_long_ago_is_begun_again_at_the_end(target: Target, others: Others, follow: Follow) -> None:
    """The other target has been restarted during a long upload."""
    others.takes = 1
    upload = follow(KEYS[:1])
    upload.write(BODY[:60_000])
    await until(lambda: "d2" in others.streams and others.streams["d2"].begun.is_set())
    upload.write(BODY[60_000:200_000])
    await until(lambda: upload.tee.running == 0)
    assert others.reached.silent() == ["d2"]
    broken = others.streams.pop("d2")
    others.takes = 1000
    others.reached.heard("d2", answers=True)
    upload.write(BODY[200_000:])
    upload.tee.received()
    await upload.finish()
    assert broken.aborted
    assert others.streams["d2"].got == BODY


async def test_a_disk_that_is_silent_or_refuses_is_not_sent_the_body_again(others: Others, follow: Follow) -> None:
    others.status = 503
    others.reached.heard("d3", answers=False)
    upload = follow()
    upload.write(BODY)
    upload.tee.received()
    await upload.finish()
    assert [disk for disk, _, _ in others.asked] == ["d2"]


async def test_a_body_that_gets_there_after_the_upload_was_given_up_is_dropped(others: Others, follow: Follow) -> None:
    going_on = others.hang()
    upload = follow(KEYS[:1])
    upload.write(BODY)
    await until(lambda: others.streams["d2"].got == BODY)
    upload.tee.give_up()
    going_on.set()
    await until(lambda: others.dropped == [("d2", upload.writer.version)])


async def test_no_stream_goes_to_this_target(target: Target, others: Others, tees: Tees) -> None:
    writer = begin(target)
    assert tees.begin(writer, len(BODY), lambda: [key_of(OWN, "d1")], "fsync").running == 0
    assert HERE.follow(writer, 1) is None
    writer.abort()


# --- at the other target


@pytest.fixture
async def prepared(target: Target) -> Any:
    made = Prepared(target.local)
    yield made
    await made.close()


@pytest.fixture
def receiver(target: Target, prepared: Prepared) -> Iterator[CopyReceiver]:
    return CopyReceiver(target.local, target.ledger, prepared)


def blobs(target: Target) -> int:
    return sum(len(files) for _, _, files in os.walk(target.disk.parts.root + "/objects"))


def row_of(version: str, body: bytes, **more: Any) -> CopyItem:
    return item(NAME, version, None, state=state_of(version, body), **more)


async def take(receiver: CopyReceiver, row: CopyItem) -> list[str]:
    return (await receiver.take(sender(), [row])).outcomes


ROW = row_of(V1, BODY)
KEY = key_of(NAME)
V0 = "05" + V1[2:]


async def test_a_row_finds_the_body_that_came_before_it(target: Target, receiver: CopyReceiver) -> None:
    await receiver.prepare(sender(), KEY, V1, "fsync", Sent(BODY))
    assert target.version(NAME) is None, "it is no object yet"
    assert await take(receiver, ROW) == ["taken"]
    assert (target.version(NAME), target.is_pending(NAME)) == (V1, True)
    file = target.disk.open_blob(target.disk.lookup(BUCKET, NAME))
    assert os.pread(file, len(BODY) + 1, 0)[: len(BODY)] == BODY
    os.close(file)


@pytest.mark.parametrize(("version", "body"), [(V2, BODY), (V1, BODY[:-1]), (V1, b"x" + BODY[1:])])
async def test_another_body_does_not_do(target: Target, receiver: CopyReceiver, version: str, body: bytes) -> None:
    await receiver.prepare(sender(), KEY, V1, "fsync", Sent(BODY))
    assert await take(receiver, row_of(version, body)) == ["unknown"]
    assert target.version(NAME) is None


async def test_a_body_is_dropped_when_no_row_follows(target: Target, receiver: CopyReceiver, prepared: Prepared) -> None:
    await receiver.prepare(sender(), KEY, V1, "fsync", Sent(BODY))
    assert blobs(target) == 1
    assert await prepared.take(KEY, state_of(V2, BODY), "fsync") is None
    receiver.forget(KEY, V0)
    assert blobs(target) == 1
    receiver.forget(KEY, V1)
    await until(lambda: blobs(target) == 0)
    assert await take(receiver, ROW) == ["unknown"]


async def test_a_body_that_waits_too_long_is_dropped(
    target: Target, receiver: CopyReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared_module, "PREPARED_S", 0.05)
    await receiver.prepare(sender(), KEY, V1, "fsync", Sent(BODY))
    await until(lambda: blobs(target) == 0)


async def test_a_newer_body_replaces_an_older_one(target: Target, receiver: CopyReceiver) -> None:
    await receiver.prepare(sender(), KEY, V1, "fsync", Sent(BODY))
    await receiver.prepare(sender(), KEY, V2, "fsync", Sent(BODY[::-1]))
    await until(lambda: blobs(target) == 1)
    assert await take(receiver, row_of(V2, BODY[::-1])) == ["taken"]
    assert target.version(NAME) == V2


async def test_nothing_is_left_when_the_target_stops(target: Target, receiver: CopyReceiver, prepared: Prepared) -> None:
    await receiver.prepare(sender(), KEY, V1, "fsync", Sent(BODY))
    await prepared.close()
    assert blobs(target) == 0


async def test_bodies_are_refused(target: Target, receiver: CopyReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unavailable, match="no such bucket"):
        await receiver.prepare(sender(), KEY._replace(bucket_id="b9"), V1, "fsync", Sent(BODY))
    with pytest.raises(Unavailable, match="not here"):
        await receiver.prepare(sender(), KEY._replace(disk="d9"), V1, "fsync", Sent(BODY))
    with pytest.raises(BodyTimeout):
        await receiver.prepare(sender(), KEY, V1, "fsync", Sent(BODY, BodyTimeout("it has stalled")))
    monkeypatch.setattr(prepared_module, "PREPARED_MAX", 1)
    await receiver.prepare(sender(), KEY, V1, "fsync", Sent(BODY))
    with pytest.raises(Unavailable, match="wait for their rows"):
        await receiver.prepare(sender(), key_of(OWN), V1, "fsync", Sent(BODY))
    assert blobs(target) == 1


async def test_a_row_waits_for_its_body(target: Target, receiver: CopyReceiver) -> None:
    """It is still being stored, though the sender has given up waiting for the answer. It must not be sent twice."""
    hanging = asyncio.Event()
    preparing = asyncio.create_task(receiver.prepare(sender(), KEY, V1, "fsync", Sent(BODY, after=hanging.wait)))
    await until(lambda: blobs(target) == 1)
    taking = asyncio.create_task(take(receiver, ROW))
    done, _ = await asyncio.wait((taking,), timeout=0.05)
    assert not done
    hanging.set()
    assert await taking == ["taken"]
    await preparing
    assert (target.version(NAME), blobs(target)) == (V1, 1)


async def test_a_row_does_not_wait_for_ever(target: Target, receiver: CopyReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_module, "COMING_S", 0.05)
    body = Sent(BODY, before=asyncio.Event().wait)
    preparing = asyncio.create_task(receiver.prepare(sender(), KEY, V1, "fsync", body))
    await asyncio.sleep(0.01)
    assert await take(receiver, ROW) == ["refused"]
    preparing.cancel()
    await asyncio.wait((preparing,))
    assert await take(receiver, ROW) == ["unknown"]
    await until(lambda: blobs(target) == 0)


async def test_a_body_that_comes_after_its_row_is_not_kept(target: Target, receiver: CopyReceiver) -> None:
    """The row came with another body, since this one was late."""
    hanging = asyncio.Event()
    preparing = asyncio.create_task(receiver.prepare(sender(), KEY, V1, "fsync", Sent(BODY, before=hanging.wait)))
    await asyncio.sleep(0.01)
    assert (await receiver.receive(sender(), ROW, Sent(BODY))).outcomes == ["taken"]
    hanging.set()
    await preparing
    await until(lambda: blobs(target) == 1)


async def test_a_body_that_is_less_durable_than_its_row_does_not_do(target: Target, receiver: CopyReceiver) -> None:
    """The bucket was relaxed when the upload began."""
    await receiver.prepare(sender(), KEY, V1, "relaxed", Sent(BODY))
    assert await take(receiver, row_of(V1, BODY, durability="fsync")) == ["unknown"]


async def test_bodies_of_a_bucket_that_is_deleted_are_dropped(
    target: Target, receiver: CopyReceiver, prepared: Prepared
) -> None:
    await receiver.prepare(sender(), KEY, V1, "fsync", Sent(BODY))
    prepared.take_map(map_of(2, state="deleting"))
    await until(lambda: blobs(target) == 0)


async def test_no_more_bodies_are_taken_at_once_than_may_wait(
    target: Target, receiver: CopyReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared_module, "PREPARED_MAX", 2)
    names = [name_with("d2", "d1", number=number) for number in range(6)]
    told = await asyncio.gather(
        *(receiver.prepare(sender(), key_of(name), V1, "fsync", Sent(BODY)) for name in names), return_exceptions=True
    )
    assert [each for each in told if each is None] == [None] * 2
    assert all(isinstance(each, Unavailable) for each in told if each is not None)
    assert blobs(target) == 2


def test_fewer_bodies_wait_than_make_an_orphan_alarm() -> None:
    assert DiskOptions().orphan_alarm > 2 * PREPARED_MAX


async def test_a_row_of_a_newer_map_removes_the_body(target: Target, receiver: CopyReceiver) -> None:
    name = name_with("d1", "d2")  # this target is its primary
    await receiver.prepare(sender(), key_of(name), V1, "fsync", Sent(BODY))
    assert await take(receiver, item(name, V1, None, state=state_of(V1, BODY))) == ["newer_map"]
