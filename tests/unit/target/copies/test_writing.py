"""A write from its commit at the primary until it is certain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from calls import raising
from copied import BUCKET, V1, V3, Members, Target, key_of, map_of, name_with
from harness import until

from dfc.errors import CopiesMissing, StorageFailed, Unavailable
from dfc.limits import SMALL_BODY_BYTES
from dfc.placement.map import ClusterMap
from dfc.registry.base import boot_s
from dfc.registry.messages import OutOfSyncReport
from dfc.target.copies import peers as peers_module
from dfc.target.copies import writes as writing
from dfc.target.copies.messages import ConfirmedRow, CopiesSent, CopiesTaken, DiskReply, NameReply, RowState
from dfc.target.copies.peers import Peers
from dfc.target.copies.writes import PendingMarks, ReplicatedWrite, Writes

NAME = name_with("d1", "d2")
KEY = key_of(NAME)
BODY = b"body"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "PAUSE_S", 0.002)
    monkeypatch.setattr(writing, "CONFIRM_S", 0.05)


@pytest.fixture
def peers(target: Target) -> Members:
    return Members(target)


@pytest.fixture
async def writes(target: Target, peers: Members) -> Any:
    made = Writes(target.local, target.ledger, peers)  # type: ignore[arg-type]
    yield made
    await made.close()


def begin(target: Target, writes: Writes, body: bytes = BODY, name: str = NAME) -> asyncio.Task[ReplicatedWrite | None]:
    state = target.write(name, body)
    return writes.drive(target.disk, key_of(name), state.version)


def soon(seconds: float = 5.0) -> float:
    return asyncio.get_running_loop().time() + seconds


# --- success


async def test_a_write_is_certain_when_the_other_replica_has_it(target: Target, writes: Writes, peers: Members) -> None:
    state = target.write(NAME, BODY)
    task = writes.drive(target.disk, KEY, state.version)
    assert KEY in target.ledger.in_doubt
    assert not writes.wants(KEY, state.version)
    assert writes.drive(target.disk, KEY, state.version) is task, "a second look begins nothing"
    assert await writes.until_replicated(task, KEY, V3, soon()) == ReplicatedWrite(2)
    (sent,) = peers.sent
    assert (sent.kind, sent.of, sent.to, sent.bucket_id, sent.name) == ("commit", "d1", "d2", BUCKET, NAME)
    assert (sent.state.version, sent.state.size, sent.body, sent.durability) == (state.version, 4, BODY, "fsync")
    assert KEY not in target.ledger.in_doubt
    assert target.is_pending(NAME), "the mark is dropped later, with others"
    assert not writes.wants(KEY, state.version)
    await until(lambda: not target.is_pending(NAME) and bool(peers.confirmed))
    assert peers.confirmed == [ConfirmedRow("d2", BUCKET, NAME, state.version)]
    assert target.hints("d2") == []


async def test_a_tombstone_goes_the_same_way(target: Target, writes: Writes, peers: Members) -> None:
    target.write(NAME, BODY, pending=False)
    state = target.bury(NAME)
    assert await writes.drive(target.disk, KEY, state.version, state) == ReplicatedWrite(2)
    (sent,) = peers.sent
    assert (sent.state.version, sent.state.is_tombstone, sent.body) == (state.version, True, None)
    await until(lambda: not target.is_pending(NAME))
    assert target.version(NAME) == state.version


async def test_a_large_body_is_streamed_when_it_is_wanted(target: Target, writes: Writes, peers: Members) -> None:
    peers.answers["d2"] = ["unknown"]
    assert await begin(target, writes, bytes(SMALL_BODY_BYTES + 1)) == ReplicatedWrite(2)
    assert [each.body for each in peers.sent] == [None]
    assert [each.to for each in peers.streams] == ["d2"]


async def test_a_stream_that_breaks_off_is_tried_again(target: Target, writes: Writes, peers: Members) -> None:
    peers.answers["d2"] = ["unknown", "unknown"]
    peers.streamed = [None, "taken"]
    assert await begin(target, writes, bytes(SMALL_BODY_BYTES + 1)) == ReplicatedWrite(2)
    assert len(peers.streams) == 2


async def test_a_member_that_has_a_large_body_already_is_sent_none(target: Target, writes: Writes, peers: Members) -> None:
    assert await begin(target, writes, bytes(SMALL_BODY_BYTES + 1)) == ReplicatedWrite(2)
    assert peers.streams == []


async def test_marks_of_writes_that_become_certain_meanwhile_are_dropped(
    target: Target, writes: Writes, peers: Members
) -> None:
    """A target that does not answer to what counts keeps the marks of others only for a while."""
    release, other = asyncio.Event(), name_with("d1", "d2", number=1)
    peers.confirming = release.wait
    await begin(target, writes)
    await until(lambda: bool(peers.confirmed))
    assert await begin(target, writes, name=other) == ReplicatedWrite(2)
    release.set()
    await until(lambda: not target.disk.copies.has_pending)
    assert {row.name for row in peers.confirmed} == {NAME, other}


async def test_what_was_overwritten_is_not_confirmed_in_its_place(target: Target, writes: Writes, peers: Members) -> None:
    await begin(target, writes)
    hang = asyncio.Event()
    peers.answers["d2"] = [hang.wait]
    second = begin(target, writes, b"second")
    await asyncio.sleep(0.05)  # the mark of the first would be dropped by now
    assert target.is_pending(NAME)
    hang.set()
    peers.answers["d2"] = []
    await second
    await until(lambda: not target.is_pending(NAME))


# --- others that do not take it


async def test_a_replica_that_does_not_answer_is_marked_out_of_sync(target: Target, writes: Writes, peers: Members) -> None:
    peers.answers["d2"] = [None, None]
    state = target.write(NAME, BODY)

    def coordinator(body: Any) -> ClusterMap:
        assert body == OutOfSyncReport(primary="d1", disk="d2")
        return map_of(2, 2, out_of_sync_with={"d2": ("d1",)}, down=("d2",))

    target.control.coordinator = coordinator
    target.ledger.cleared["d1"].add("d2")
    assert await writes.drive(target.disk, KEY, state.version) == ReplicatedWrite(2), "with a handoff replica"
    assert [each.to for each in peers.sent] == ["d2", "d2", "d3"]
    assert target.ledger.cleared["d1"] == set()
    assert target.hints("d2") == [NAME]
    assert not target.is_pending(NAME), "the notes and the mark go together"
    await until(lambda: bool(peers.confirmed))
    assert peers.confirmed == [ConfirmedRow("d3", BUCKET, NAME, state.version)]


async def test_where_the_coordinator_does_not_answer_it_goes_on(target: Target, writes: Writes, peers: Members) -> None:
    peers.answers["d2"] = [None] * 5
    assert await begin(target, writes) == ReplicatedWrite(2)
    assert target.control.said
    assert {each.to for each in peers.sent} == {"d2"}
    assert target.hints("d2") == []


async def test_a_refusal_is_no_copy(target: Target, writes: Writes, peers: Members) -> None:
    peers.answers["d2"] = ["refused"]
    assert await begin(target, writes) == ReplicatedWrite(2)
    assert len(peers.sent) == 2


async def test_all_others_are_away(target: Target, writes: Writes, peers: Members) -> None:
    target.take_map(map_of(2, 2, down=("d2", "d3")))
    assert await begin(target, writes) == ReplicatedWrite(1)
    assert (peers.sent, target.hints("d2"), target.is_pending(NAME)) == ([], [NAME], False)


async def test_rows_that_nobody_waits_for_go_a_few_at_a_time(
    target: Target, writes: Writes, peers: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash, or a large job, there may be a million of them."""
    monkeypatch.setattr(writing, "DRIVEN_AT_ONCE", 3)
    names = [name_with("d1", "d2", number=number) for number in range(10)]
    states, hang = {name: target.write(name, BODY) for name in names}, peers.hang(times=10)
    for name, state in states.items():
        assert writes.wants(key_of(name), state.version)
        writes.drive_later(target.disk, key_of(name), state.version)
        assert not writes.wants(key_of(name), state.version)
    await until(lambda: len(peers.sent) == 3)
    await asyncio.sleep(0.02)
    assert len(peers.sent) == 3
    assert target.ledger.in_doubt == {key_of(name) for name in names}, "all of them, from the beginning"
    waited_for = writes.drive(target.disk, key_of(names[-1]), states[names[-1]].version)
    await until(lambda: len(peers.sent) == 4)
    hang.set()
    assert await waited_for == ReplicatedWrite(2)
    await until(lambda: not target.ledger.in_doubt)
    assert sorted(each.name for each in peers.sent) == sorted(names), "each of them once"
    await until(lambda: not target.disk.copies.has_pending)


async def never() -> None:
    await asyncio.Event().wait()


async def test_a_silent_disk_that_is_out_of_sync_costs_no_time(target: Target, writes: Writes, peers: Members) -> None:
    """It has not answered to other writes; its row is noted, and a handoff replica takes the copy."""
    target.take_map(map_of(2, 2, out_of_sync_with={"d2": ("d1",)}))
    target.ledger.passed_over("d1", "d2", 2)
    peers.answers["d2"] = [never]
    peers.reached.heard("d2", answers=False)
    async with asyncio.timeout(2):
        assert await begin(target, writes) == ReplicatedWrite(2)
    assert [each.to for each in peers.sent] == ["d3"]
    assert target.hints("d2") == [NAME]


async def test_writes_with_a_silent_disk_take_two_time_outs_once(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link to d2 takes everything and answers nothing; d2 is behind already."""
    monkeypatch.setattr(peers_module, "CALL_S", 0.5)
    monkeypatch.setattr(writing, "AGAIN_S", 0.05)

    class Link:
        async def fetch(self, method: str, url: str, body: bytes, *_: Any, **__: Any) -> tuple[int, str, bytes]:
            if url.startswith("http://t2"):
                await never()
            if url.endswith("/confirm"):
                return 200, "", msgspec.msgpack.encode(DiskReply(True))
            count = len(msgspec.msgpack.decode(body, type=CopiesSent).items)
            return 200, "", msgspec.msgpack.encode(CopiesTaken(["taken"] * count))

    target.take_map(map_of(2, 2, out_of_sync_with={"d2": ("d1",)}))
    target.ledger.passed_over("d1", "d2", 2)
    others = Peers(target.local, Link(), "")  # type: ignore[arg-type]
    made, loop = Writes(target.local, target.ledger, others), asyncio.get_running_loop()
    took = []
    for number in range(3):
        begun_s = loop.time()
        assert await begin(target, made, name=name_with("d1", "d2", number=number)) == ReplicatedWrite(2)
        took.append(loop.time() - begun_s)
    assert 1.0 <= took[0] < 1.45
    assert max(took[1:]) < 0.4
    assert len(target.hints("d2")) == 3
    await made.close()
    await others.close()


async def test_nobody_waits_for_the_slowest_answer(target: Target, writes: Writes, peers: Members) -> None:
    """A disk that is asked again, as nobody else was left, does not hold up what another one has by now."""
    target.take_map(map_of(2, 2, out_of_sync_with={"d2": ("d1",), "d3": ("d1",)}, copies=3, min_copies=2))
    for disk in ("d2", "d3"):
        target.ledger.passed_over("d1", disk, 2)
        peers.reached.heard(disk, answers=False)
    peers.answers["d2"] = [never]
    tasks = len(asyncio.all_tasks())
    async with asyncio.timeout(2):
        assert await begin(target, writes) == ReplicatedWrite(2)
    assert {each.to for each in peers.sent} == {"d2", "d3"}
    assert target.hints("d2") == [NAME]
    await until(lambda: len(asyncio.all_tasks()) <= tasks and bool(peers.confirmed))
    assert [row.disk for row in peers.confirmed] == ["d3"]


async def test_a_new_map_ends_the_wait_for_a_disk_that_does_not_answer(
    target: Target, writes: Writes, peers: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "LOOK_S", 0.01)
    peers.answers["d2"] = [never]
    task = begin(target, writes)
    await until(lambda: bool(peers.sent))
    target.take_map(map_of(2, 2, down=("d2",)))
    async with asyncio.timeout(2):
        assert await task == ReplicatedWrite(2)
    assert [each.to for each in peers.sent] == ["d2", "d3"]


async def test_a_disk_that_refuses_is_asked_again_after_a_pause(
    target: Target, writes: Writes, peers: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "AGAIN_S", 0.05)
    peers.answers["d2"], begun_s = ["refused"], asyncio.get_running_loop().time()
    assert await begin(target, writes) == ReplicatedWrite(2)
    assert asyncio.get_running_loop().time() - begun_s >= 0.05


# --- marks


@pytest.fixture
async def marks(target: Target, peers: Members) -> Any:
    made = PendingMarks(target.local, peers)  # type: ignore[arg-type]
    yield made
    await made.close()


async def test_a_target_that_does_not_answer_keeps_only_its_own_marks(
    target: Target, peers: Members, marks: PendingMarks
) -> None:
    hangs, told = asyncio.Event(), []

    async def confirm(url: str, rows: list[ConfirmedRow]) -> None:
        if url == "http://t2":
            await hangs.wait()
        told.extend(rows)

    peers.confirm = confirm  # type: ignore[method-assign]
    await made_certain(target, marks, NAME)
    await until(lambda: not target.is_pending(NAME))
    marks.tell(ConfirmedRow("d2", BUCKET, "x", "1"))
    await asyncio.sleep(0.03)
    for number in range(3):
        name = name_with("d1", "d2", number=number)
        await made_certain(target, marks, name)
        marks.tell(ConfirmedRow("d3", BUCKET, name, "1"))
        await until(lambda name=name: not target.is_pending(name))  # type: ignore[misc]
    await until(lambda: len(told) == 3)
    assert {row.disk for row in told} == {"d3"}
    await marks.close()
    assert not hangs.is_set()


async def made_certain(target: Target, marks: PendingMarks, name: str) -> None:
    state = target.write(name, BODY)
    marks.drop(target.disk, key_of(name), state.version)
    assert marks.is_replicated(key_of(name), state.version)


async def test_a_local_disk_that_hangs_holds_up_no_other(
    target: Target, marks: PendingMarks, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, threads_of = asyncio.Event(), target.local.threads

    class OtherDisk:
        id = "d9"
        copies = target.disk.copies

    class OtherThreads:
        async def go_on(self, *_: Any) -> None:
            await hanging.wait()

    other: Any = OtherDisk()
    monkeypatch.setattr(target.local, "threads", lambda disk: OtherThreads() if disk is other else threads_of(disk))
    key = key_of(NAME, "d9")
    marks.drop(other, key, "1")
    await asyncio.sleep(0.03)
    await made_certain(target, marks, NAME)
    await until(lambda: not target.is_pending(NAME))
    assert marks.is_replicated(key, "1"), "it still counts"
    hanging.set()
    await until(lambda: not marks.is_replicated(key, "1"))


async def test_a_target_that_does_not_answer_is_told_only_so_much(
    peers: Members, marks: PendingMarks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "COPY_CONFIRMED_MAX", 10)
    hangs = asyncio.Event()
    peers.confirming = hangs.wait
    marks.tell(ConfirmedRow("d2", BUCKET, "first", "1"))
    await until(lambda: bool(peers.confirmed))
    for number in range(100):
        marks.tell(ConfirmedRow("d2", BUCKET, str(number), "1"))
    hangs.set()
    await until(lambda: len(peers.confirmed) == 11)
    await asyncio.sleep(0.03)
    assert [row.name for row in peers.confirmed] == ["first", *map(str, range(90, 100))]
    marks.tell(ConfirmedRow("d2", BUCKET, "last", "1"))
    await until(lambda: len(peers.confirmed) == 12)


# --- another primary


async def test_another_primary_decides_from_now_on(target: Target, writes: Writes, peers: Members) -> None:
    async def newer() -> str:
        target.take_map(map_of(2, 2, out_of_sync_with={"d1": ("d2",)}))
        return "newer_map"

    peers.answers["d2"] = [newer]
    task = begin(target, writes)
    with pytest.raises(CopiesMissing, match="may or may not"):
        await writes.until_replicated(task, KEY, V3, soon())
    assert await task is None
    assert KEY not in target.ledger.in_doubt, "reads and writes are not kept waiting for somebody else's decision"
    assert target.is_pending(NAME), "the new primary is asked"


@pytest.mark.parametrize("what", ["has it", "has an older one", "has a newer one", "has nothing", "is not sure", "is away"])
async def test_whoever_decides_by_then_is_asked_for_the_outcome(
    target: Target, writes: Writes, peers: Members, what: str
) -> None:
    """It takes over what is on its way, so a write does not fail because its name is handed over meanwhile."""
    task = begin(target, writes)
    version = target.version(NAME)
    target.take_map(map_of(2, 2, out_of_sync_with={"d1": ("d2",)}))
    told = {"has it": version, "has an older one": V1, "has a newer one": "f" * 13 + V3[13:], "is not sure": version}.get(what)
    if what != "is away":
        state = None if told is None else RowState(told)
        peers.told[key_of(NAME, "d2")] = NameReply(state, speaks=what != "is not sure", is_replicated=True)
    waiting = asyncio.create_task(writes.until_replicated(task, key_of(NAME), version, soon(0.3)))
    if what == "has it":
        assert await waiting == ReplicatedWrite(1), "d2 is the only reader"
    else:
        with pytest.raises(CopiesMissing, match="may or may not"):
            await waiting


async def test_a_row_that_is_not_there_any_more_is_not_driven(target: Target, writes: Writes, peers: Members) -> None:
    first = target.write(NAME, BODY)
    target.write(NAME, b"second", pending=False)
    assert await writes.drive(target.disk, KEY, first.version) is None
    assert peers.sent == []
    assert KEY not in target.ledger.in_doubt


# --- waiting, leaving, failing


async def test_a_client_that_leaves_ends_nothing(target: Target, writes: Writes, peers: Members) -> None:
    hang = peers.hang()
    task = begin(target, writes)
    waiting = asyncio.create_task(writes.until_replicated(task, KEY, V3, soon()))
    await until(lambda: bool(peers.sent))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not task.done()
    hang.set()
    assert await task == ReplicatedWrite(2)
    await until(lambda: not target.is_pending(NAME))


async def test_who_waits_too_long_hears_that_the_outcome_is_open(target: Target, writes: Writes, peers: Members) -> None:
    hang = peers.hang()
    task = begin(target, writes)
    with pytest.raises(CopiesMissing, match="may still be stored"):
        await writes.until_replicated(task, KEY, V3, soon(0.01))
    assert KEY in target.ledger.in_doubt
    hang.set()
    assert await writes.until_replicated(task, KEY, V3, soon()) == ReplicatedWrite(2)


async def test_a_body_that_is_moving_is_waited_for(
    target: Target, writes: Writes, peers: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "MOVING_S", 0.5)
    peers.answers["d2"], steps = ["unknown", "unknown"], 0

    async def slowly(moved: Callable[[], object]) -> None:
        nonlocal steps
        for _ in range(10):
            await asyncio.to_thread(moved)
            steps += 1
            await asyncio.sleep(0.1)

    peers.moving = slowly
    task = begin(target, writes, bytes(SMALL_BODY_BYTES + 1))
    assert await writes.until_replicated(task, KEY, V3, soon(0.3)) == ReplicatedWrite(2)
    assert steps == 10
    monkeypatch.setattr(writing, "MOVING_S", 0.01)
    peers.answers["d2"] = ["unknown"]
    task = begin(target, writes, bytes(SMALL_BODY_BYTES + 2))
    with pytest.raises(CopiesMissing, match="may still be stored"):
        await writes.until_replicated(task, KEY, V3, soon(0.05))


async def test_nothing_is_sent_without_a_lease(target: Target, writes: Writes, peers: Members) -> None:
    target.local.lease.end()
    task = begin(target, writes)
    await asyncio.sleep(0.02)
    assert (task.done(), peers.sent) == (False, [])
    target.local.lease.extend(boot_s(), 600)
    assert await task == ReplicatedWrite(2)


async def test_what_is_under_way_at_a_stop_goes_on_after_the_start(target: Target, writes: Writes, peers: Members) -> None:
    peers.answers["d2"] = [asyncio.Event().wait]
    task = begin(target, writes)
    await until(lambda: bool(peers.sent))
    await writes.close()
    assert task.cancelled()
    assert target.is_pending(NAME)
    again = Writes(target.local, target.ledger, Members(target))  # type: ignore[arg-type]
    version = target.version(NAME) or ""
    assert again.wants(KEY, version)
    assert await again.drive(target.disk, KEY, version) == ReplicatedWrite(2)
    await until(lambda: not target.is_pending(NAME))
    await again.close()


async def test_nothing_begins_after_a_stop(target: Target, writes: Writes, peers: Members) -> None:
    """A commit may end then."""
    await writes.close()
    tasks = len(asyncio.all_tasks())
    assert await begin(target, writes) is None
    writes.drive_later(target.disk, KEY, target.version(NAME) or "")
    writes.look_after([KEY])
    await asyncio.sleep(0.01)
    assert len(asyncio.all_tasks()) == tasks
    assert peers.sent == []
    assert KEY in target.ledger.in_doubt
    assert target.is_pending(NAME), "it goes on after the start"


async def test_a_disk_that_fails_keeps_the_name_in_doubt(
    target: Target, writes: Writes, peers: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = target.write(NAME, BODY)
    with monkeypatch.context() as patch:
        patch.setattr(target.disk.copies, "state", raising(StorageFailed("the disk is gone")))
        assert await writes.drive(target.disk, KEY, state.version) is None
    assert KEY in target.ledger.in_doubt
    assert writes.wants(KEY, state.version), "the upkeep drives it again"
    assert await writes.drive(target.disk, KEY, state.version) == ReplicatedWrite(2)


async def test_marks_that_cannot_be_dropped_now_are_dropped_later(
    target: Target, writes: Writes, peers: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(target.disk.copies, "confirm", raising(Unavailable("overloaded")))
        await begin(target, writes)
        version = target.version(NAME) or ""
        await until(lambda: writes.wants(KEY, version))
    assert target.is_pending(NAME)
    assert await writes.drive(target.disk, KEY, version) == ReplicatedWrite(2), "as the upkeep does"
    await until(lambda: not target.is_pending(NAME))


async def test_a_row_is_given_to_a_disk_that_lacks_it(target: Target, writes: Writes, peers: Members) -> None:
    state = target.write(NAME, BODY, pending=False)
    assert await writes.give(target.disk, KEY, state, "d2", "adopt")
    peers.answers["d3"] = ["refused", "newer_map", None]
    for _ in range(3):
        assert not await writes.give(target.disk, KEY, state, "d3", "direct", is_pending=True)
    sent = [(each.kind, each.to, each.is_pending, each.body) for each in peers.sent]
    assert sent == [("adopt", "d2", False, BODY), *[("direct", "d3", True, BODY)] * 3]
