"""What a target learns before it serves names of which a step has made it the primary."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest
from copied import BUCKET, V1, V2, V3, Members, Target, item, key_of, map_of, name_with, sender, state_of
from harness import until

from dfc.errors import StorageFailed
from dfc.placement.map import BucketEntry, ClusterMap, NodeEntry
from dfc.target.copies import peering
from dfc.target.copies.messages import CopyKey, PendingCopy, PendingPosition, PendingReply, RowState
from dfc.target.copies.peering import PeeringLoop
from dfc.target.copies.receive import CopyReceiver, Prepared

OWN, NAME = name_with("d1", "d2"), name_with("d2", "d1")
DOWN = map_of(2, 2, down=("d2",))
BODY = b"of the old primary"


class FakePeers(Members):
    """`told` has what each target answers, by step; what is not there is no answer. `bodies` are what others hold."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.told: dict[tuple[str, int], PendingReply] = {}
        self.later: dict[PendingPosition, PendingReply | None] = {}  # pages after the first
        self.asked: list[tuple[str, int]] = []
        self.fetched: list[CopyKey] = []
        self.waiting: asyncio.Event | None = None

    async def pending(self, node: NodeEntry, step: int, after: PendingPosition | None) -> PendingReply | None:
        if after is not None:
            return self.later.pop(after)
        self.asked.append((node.id, step))
        if self.waiting is not None:
            await self.waiting.wait()
        await asyncio.sleep(0)
        return self.told.get((node.id, step))

    async def fetch(self, key: CopyKey, state: RowState, to: Any, durability: str) -> Any:
        self.fetched.append(key)
        return await super().fetch(key, state, to, durability)


class FakeWrites:
    """Notes what is driven."""

    def __init__(self) -> None:
        self.driven: list[tuple[CopyKey, str]] = []
        self.ended: set[CopyKey] = set()

    def wants(self, key: CopyKey, version: str) -> bool:
        return key not in self.ended

    def drive_later(self, disk: Any, key: CopyKey, version: str) -> None:
        self.driven.append((key, version))


class Settled:
    """A target with its settler, whose others answer that nothing is pending unless a test says more."""

    def __init__(self, target: Target, *, starts: bool = True) -> None:
        self.target, self.peers, self.writes = target, FakePeers(target), FakeWrites()
        self.receiver = CopyReceiver(target.local, target.ledger, Prepared(target.local))
        self.peering_loop = PeeringLoop(target.local, target.ledger, self.peers, self.receiver, self.writes)  # type: ignore[arg-type]
        target.local.before_map = self.peering_loop.take
        if starts:
            self.peering_loop.start()

    def take(self, new: ClusterMap) -> None:
        assert self.target.take_map(new)

    def lose_primary(self, *rows: PendingCopy) -> None:
        """The target of disk d2 is down, so d1 becomes the primary of NAME; d3 has these pending rows."""
        self.peers.told["t3", 2] = PendingReply(list(rows))
        self.take(DOWN)

    @property
    def is_done(self) -> bool:
        return self.target.ledger.peering.is_done

    def serves(self, name: str) -> bool:
        return self.target.ledger.is_peered(BUCKET, name, "d1")

    async def until_done(self) -> None:
        await until(lambda: self.is_done)


NOTHING = PendingReply([])


def row(name: str, version: str, body: bytes | None, disk: str = "d3") -> PendingCopy:
    return PendingCopy(key_of(name, disk), RowState(version) if body is None else state_of(version, body))


@pytest.fixture
async def settled(target: Target, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(peering, "RETRY_S", 0.01)
    made = Settled(target)
    yield made
    await made.peering_loop.stop()


async def test_names_wait_until_all_others_have_answered(settled: Settled) -> None:
    settled.take(DOWN)
    assert (settled.serves(OWN), settled.serves(NAME)) == (True, False), "what it has served already goes on"
    await until(lambda: len(settled.peers.asked) >= 3 or settled.is_done)
    assert set(settled.peers.asked) == {("t3", 2)}, "of those that are up, again and again"
    assert not settled.serves(NAME)
    settled.peers.told[("t3", 2)] = NOTHING
    await settled.until_done()
    assert settled.serves(NAME)
    asked = len(settled.peers.asked)
    await asyncio.sleep(0.05)
    assert len(settled.peers.asked) == asked


async def test_who_has_answered_is_not_asked_again(settled: Settled) -> None:
    settled.peers.told[("t2", 2)] = NOTHING
    settled.take(map_of(2, 2, out_of_sync_with={"d3": ("d1",)}))
    await until(lambda: settled.peers.asked.count(("t3", 2)) >= 3)
    assert settled.peers.asked.count(("t2", 2)) == 1
    settled.peers.told[("t3", 2)] = NOTHING
    await settled.until_done()


async def test_a_target_that_never_answers_is_waited_for_until_it_is_down(settled: Settled) -> None:
    settled.take(DOWN)
    await until(lambda: len(settled.peers.asked) >= 3)
    assert not settled.is_done
    settled.take(map_of(3, 3, down=("d2", "d3")))
    await settled.until_done()


async def test_without_copies_there_is_nothing_to_ask(settled: Settled) -> None:
    settled.take(map_of(2, 2, copies=1, down=("d2",)))
    assert settled.is_done, "at once"
    assert settled.peers.asked == []


async def test_the_first_bucket_with_copies_is_peered_without_a_step(settled: Settled) -> None:
    settled.take(map_of(2, 2, copies=1))
    settled.peers.told = {("t2", 2): NOTHING, ("t3", 2): NOTHING}
    settled.take(map_of(3, 2))
    await settled.until_done()
    assert set(settled.peers.asked) == {("t2", 2), ("t3", 2)}
    settled.take(map_of(4, 2))
    await asyncio.sleep(0.03)
    assert len(settled.peers.asked) == 2, "a map without a new step changes nothing"


async def test_a_bucket_that_is_made_within_a_step_is_known(settled: Settled) -> None:
    """Not by its names seeming to have one copy, on a disk that lacks others."""
    other = BucketEntry(id="b0", name="other", copies=2)

    def later(*given: Any, **more: Any) -> ClusterMap:
        found = map_of(*given, **more)
        return msgspec.structs.replace(found, buckets=(other, *found.buckets))

    first = map_of(2, 2, out_of_sync_with={"d1": ("d2",)})
    settled.peers.told = {(node, 2): NOTHING for node in ("t2", "t3")}
    settled.take(msgspec.structs.replace(first, buckets=(other,)))
    await settled.until_done()
    settled.take(later(3, 2, out_of_sync_with={"d1": ("d2",)}))
    settled.take(later(4, 3))
    assert not settled.serves(OWN)
    settled.peers.told |= {(node, 3): NOTHING for node in ("t2", "t3")}
    await settled.until_done()
    assert settled.serves(OWN)


async def test_a_newer_step_begins_again(settled: Settled) -> None:
    settled.peers.waiting = asyncio.Event()
    settled.take(DOWN)
    await until(lambda: bool(settled.peers.asked))
    settled.take(map_of(3, 3, down=("d2",), out_of_sync_with={"d3": ("d1",)}))
    settled.peers.told = {("t3", 2): NOTHING, ("t3", 3): NOTHING}
    settled.peers.waiting.set()
    await settled.until_done()
    assert settled.target.ledger.peering.step == 3
    assert ("t3", 3) in settled.peers.asked


async def test_pending_rows_of_the_old_primary_are_adopted_and_driven(settled: Settled) -> None:
    gone = name_with("d2", "d1", number=1)
    settled.peers.told[("t3", 2)] = PendingReply([row(NAME, V2, BODY), row(gone, V2, None)])
    settled.peers.bodies[key_of(NAME, "d3")] = BODY
    target = settled.target
    with target.ledger.watching([key_of(NAME)]) as has_changed:
        settled.take(DOWN)
        await until(lambda: settled.serves(NAME) and settled.serves(gone))
        assert has_changed(key_of(NAME)), "an answer about the name that is on its way is out of date"
    assert (target.body(NAME), target.version(NAME), target.version(gone)) == (BODY, V2, V2)
    assert target.is_pending(NAME)
    assert target.is_pending(gone)
    assert sorted(settled.writes.driven) == sorted([(key_of(NAME), V2), (key_of(gone), V2)])


async def test_own_pending_rows_are_driven(settled: Settled) -> None:
    target = settled.target
    await settled.receiver.take(sender(), [item(NAME, V1, BODY)])
    mine = target.write(OWN, b"own").version
    settled.lose_primary()
    await settled.until_done()
    assert sorted(settled.writes.driven) == sorted([(key_of(NAME), V1), (key_of(OWN), mine)])
    settled.writes.driven.clear()
    settled.writes.ended = {key_of(OWN)}
    await settled.peering_loop.drive_pending()
    assert settled.writes.driven == [(key_of(NAME), V1)], "what is certain already is not driven again"


async def test_what_the_old_primary_has_on_its_way_is_peered_too(settled: Settled, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit for it may be under way here, which was decided by the step before."""
    release = threading.Event()
    monkeypatch.setattr(settled.target.disk, "barrier", release.wait)
    settled.lose_primary()
    await asyncio.sleep(0.05)
    was_served = settled.serves(NAME)
    release.set()
    await settled.until_done()
    assert not was_served, "before the commits of the step before were done"


async def test_rows_of_others_are_not_driven(settled: Settled) -> None:
    await settled.receiver.take(sender(), [item(NAME, V1, BODY)])
    await settled.peering_loop.drive_pending()
    assert settled.writes.driven == []


async def test_an_older_row_is_not_adopted(settled: Settled) -> None:
    await settled.receiver.take(sender(), [item(NAME, V3, b"newer")])
    settled.lose_primary(row(NAME, V2, BODY), row(NAME, V3, b"newer"))
    await settled.until_done()
    assert (settled.target.body(NAME), settled.peers.fetched) == (b"newer", [])


async def test_a_name_that_is_served_takes_no_row_of_others(settled: Settled) -> None:
    settled.peers.bodies[key_of(OWN, "d3")] = BODY
    settled.lose_primary(row(OWN, V3, BODY))
    await settled.until_done()
    assert (settled.target.version(OWN), settled.peers.fetched) == (None, [])


async def test_rows_of_names_with_another_primary_are_passed_over(settled: Settled) -> None:
    name = name_with("d3", "d1")
    settled.lose_primary(row(name, V2, BODY), row("x", V2, None, disk="d9"))
    await settled.until_done()
    assert (settled.target.version(name), settled.peers.fetched) == (None, [])


async def test_a_row_that_is_slow_to_come_keeps_only_its_name_waiting(settled: Settled) -> None:
    other = name_with("d2", "d1", number=1)
    settled.lose_primary(row(NAME, V2, BODY))
    await until(lambda: bool(settled.peers.fetched))
    assert (settled.is_done, settled.serves(NAME), settled.serves(other)) == (True, False, True)
    settled.peers.bodies[key_of(NAME, "d3")] = BODY
    await until(lambda: settled.serves(NAME))
    assert settled.target.body(NAME) == BODY
    assert settled.writes.driven == [(key_of(NAME), V2)]


async def test_a_row_that_nobody_can_give_is_given_up(settled: Settled, caplog: pytest.LogCaptureFixture) -> None:
    """It was not acknowledged: else it would be here."""
    settled.lose_primary(row(NAME, V2, BODY))
    await until(lambda: settled.serves(NAME))
    assert (settled.target.version(NAME), settled.writes.driven) == (None, [])
    assert len(settled.peers.fetched) == peering.FETCH_TRIES
    assert "is given up" in caplog.text


async def test_a_name_that_lacks_its_row_waits_in_the_next_step_too(settled: Settled) -> None:
    settled.lose_primary(row(NAME, V2, BODY))
    await until(lambda: bool(settled.peers.fetched))
    settled.take(map_of(3, 3, down=("d2",), durability="relaxed"))
    assert settled.serves(OWN)
    assert not settled.serves(NAME)
    settled.peers.told[("t3", 3)] = PendingReply([row(NAME, V2, BODY)])
    settled.peers.bodies[key_of(NAME, "d3")] = BODY
    await until(lambda: settled.serves(NAME))
    assert settled.target.body(NAME) == BODY


async def test_of_several_rows_the_newest_that_can_be_had_is_adopted(settled: Settled) -> None:
    settled.target.take_map(map_of(2, 2, disks=("d1", "d2", "d3", "d4", "d5")))
    told = [row(NAME, V1, b"one"), row(NAME, V3, b"three", "d4"), row(NAME, V2, b"two", "d5")]
    for number, each in enumerate(told[1:], 4):
        settled.peers.told[(f"t{number}", 3)] = PendingReply([each])
    settled.peers.told[("t3", 3)] = PendingReply([told[0]])
    settled.peers.bodies |= {told[0].key: b"one", told[2].key: b"two"}
    placed = map_of(3, 3, disks=("d1", "d2", "d3", "d4", "d5"), down=("d2",))
    assert name_with("d2", "d1", cluster_map=placed) == NAME
    settled.take(placed)
    await until(lambda: settled.is_done and settled.serves(NAME))
    assert settled.target.body(NAME) == b"two"


async def test_rows_are_told_of_in_pages(settled: Settled) -> None:
    names = [name_with("d2", "d1", number=number) for number in range(3)]
    then, last = PendingPosition("d3", 1, b"x"), PendingPosition("d3", 1, b"y")
    settled.peers.told[("t3", 2)] = PendingReply([row(names[0], V2, None)], after=then)
    settled.peers.later = {then: None}
    settled.take(DOWN)
    await until(lambda: not settled.peers.later)
    assert not settled.is_done, "the rest was not answered"
    settled.peers.later = {
        then: PendingReply([row(names[1], V2, None)], after=last),
        last: PendingReply([row(names[2], V2, None)]),
    }
    await until(lambda: settled.is_done and all(settled.serves(name) for name in names))
    assert [settled.target.version(name) for name in names] == [V2] * 3


async def test_a_newer_map_in_the_answer_is_taken(settled: Settled) -> None:
    newer = map_of(9, 3, down=("d2",), out_of_sync_with={"d3": ("d1",)})
    settled.peers.told = {("t3", 2): PendingReply([], newer), ("t3", 3): NOTHING}
    settled.take(DOWN)
    await settled.until_done()
    assert (settled.target.local.map.version, settled.target.ledger.peering.step) == (9, 3)


async def test_it_goes_on_after_an_error(
    settled: Settled, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settled.peers.told[("t3", 2)] = NOTHING
    errors: list[Exception] = [StorageFailed("the disk does not answer"), RuntimeError("a mistake")]
    own_pending = settled.receiver.own_pending

    async def fail(*arguments: Any) -> Any:
        if errors:
            raise errors.pop(0)
        return await own_pending(*arguments)

    monkeypatch.setattr(settled.receiver, "own_pending", fail)
    settled.take(DOWN)
    await settled.until_done()
    assert ("the disk does not answer" in caplog.text, "peering failed" in caplog.text) == (True, True)


async def test_nothing_is_asked_before_the_disks_are_open(target: Target) -> None:
    settled = Settled(target, starts=False)
    settled.take(DOWN)
    await asyncio.sleep(0.02)
    assert settled.peers.asked == []
    settled.peers.told[("t3", 2)] = NOTHING
    settled.peering_loop.start()
    await settled.until_done()
    await settled.peering_loop.stop()


async def test_a_stop_in_the_middle(settled: Settled) -> None:
    settled.peers.waiting = asyncio.Event()
    settled.take(DOWN)
    await until(lambda: bool(settled.peers.asked))
    await settled.peering_loop.stop()
    assert not settled.is_done
