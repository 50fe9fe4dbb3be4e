"""What a disk does about copies in the background: rows that are pending, notes, clean reports and surplus rows."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from copied import BUCKET, V1, V2, V3, Members, Target, item, key_of, map_of, name_with, sender, state_of, until

from dfc.checksum import ExpectedChecksums
from dfc.registry.reports import CleanReport, RaisedReport
from dfc.storage.rows import NameState, Supplied
from dfc.target.copies import marks, rows, settling
from dfc.target.copies.background import errands, surplus, upkeep
from dfc.target.copies.background.upkeep import Upkeep
from dfc.target.copies.messages import CopyKey, RowState, Told
from dfc.target.copies.prepared import Prepared
from dfc.target.copies.receiving import CopyReceiver
from dfc.target.copies.settling import Settler
from dfc.target.copies.writing import Writes

OWN, OTHER, NEITHER = name_with("d1", "d2"), name_with("d2", "d1"), name_with("d2", "d3")


class Others(Members):
    """They also answer what they have of names: what `states` says, or nothing at all where a disk is in `silent`."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.silent: set[str] = set()
        self.bodies: dict[CopyKey, bytes] = {}
        self.handed: list[CopyKey] = []
        self.settled = True

    def said(self, disk: str, name: str, version: str | None, body: bytes | None = None, **more: Any) -> None:
        state = None if version is None else RowState(version) if body is None else state_of(version, body)
        key = CopyKey(disk, BUCKET, name)
        self.told[key] = Told(state, **{"speaks": True, "is_certain": True, **more})
        if body is not None:
            self.bodies[key] = body

    async def states(self, disk: str, names: list[CopyKey]) -> list[Told] | None:
        self.asked += names
        self.reached.note(disk, answered=disk not in self.silent)
        return None if disk in self.silent else [self.told.get(key, Told(None, speaks=True, is_certain=True)) for key in names]

    async def state(self, key: CopyKey) -> Told | None:
        found = await self.states(key.disk, [key])
        return None if found is None else found[0]

    async def fetch(self, key: CopyKey, state: RowState, to: Any, durability: str) -> Any:
        if key not in self.bodies:
            return None
        writer = to.begin_put(BUCKET, key.name, size=state.size, expected=ExpectedChecksums(), supplied=Supplied(state.version))
        writer.write(self.bodies[key])
        writer.finish()
        return writer

    async def is_settled(self, disk: str) -> bool:
        return self.settled

    async def hand_over(self, primary: str, lacking: list[CopyKey]) -> bool:
        self.handed += lacking
        return True


class Kept:
    """The upkeep of disk d1, which looks when a test says so."""

    def __init__(self, target: Target) -> None:
        self.target, self.peers = target, Others(target)
        self.receiver = CopyReceiver(target.local, target.ledger, Prepared(target.local))
        self.writes = Writes(target.local, target.ledger, self.peers)  # type: ignore[arg-type]
        self.settler = Settler(target.local, target.ledger, self.peers, self.receiver, self.writes)  # type: ignore[arg-type]
        self.upkeep = Upkeep(
            target.local, target.ledger, self.peers, self.receiver, self.writes, self.settler, target.disk  # type: ignore[arg-type]
        )  # fmt: skip
        target.control.coordinator = lambda body: {}

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self.upkeep._look()

    async def receive(self, *items: Any) -> None:
        taken = await self.receiver.take(sender(version=self.target.local.map.version), list(items))
        assert set(taken.outcomes) == {"taken"}


@pytest.fixture
async def kept(target: Target, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(marks, "CONFIRM_S", 0.01)
    monkeypatch.setattr(surplus, "AGAIN_S", 0)
    monkeypatch.setattr(upkeep, "AGAIN_S", 0)
    monkeypatch.setattr(upkeep, "PAUSE_SHARE", 0)
    monkeypatch.setattr(upkeep, "PATIENCE_S", 5)
    monkeypatch.setattr(errands, "RETRY_S", 0)
    made = Kept(target)
    yield made
    await made.upkeep._errands.stop()
    await made.writes.close()


# --- rows that are pending


async def test_a_row_that_its_primary_has_counts(kept: Kept) -> None:
    await kept.receive(item(OTHER, V1, b"one"))
    kept.peers.said("d2", OTHER, V1, b"one")
    await kept.look()
    assert (kept.target.is_pending(OTHER), kept.peers.asked) == (True, []), "its confirmation is on its way"
    await kept.look()
    assert (kept.target.is_pending(OTHER), kept.target.body(OTHER)) == (False, b"one")


@pytest.mark.parametrize("row", [b"new", None], ids=["object", "tombstone"])
@pytest.mark.parametrize("version", [V1, V3], ids=["older", "newer"])
async def test_a_row_that_its_primary_does_not_have_is_undone(kept: Kept, row: bytes | None, version: str) -> None:
    await kept.receive(item(OTHER, V2, row))
    kept.peers.said("d2", OTHER, version, b"of the primary")
    await kept.look(2)
    assert (kept.target.version(OTHER), kept.target.body(OTHER)) == (version, b"of the primary")
    assert not kept.target.is_pending(OTHER)
    assert kept.target.disk.first_counts().get(BUCKET, 0) == 0, "it is the second home, whatever was undone"


@pytest.mark.parametrize("version", [None, V1])
async def test_a_row_of_a_name_that_its_primary_lacks_goes(kept: Kept, version: str | None) -> None:
    await kept.receive(item(OTHER, V2, b"two"))
    kept.peers.said("d2", OTHER, version)
    await kept.look(2)
    assert (kept.target.version(OTHER), kept.target.is_pending(OTHER)) == (version, False)
    assert kept.target.disk.find(BUCKET, OTHER) is None


async def test_a_row_stays_pending_until_its_primary_is_sure(kept: Kept) -> None:
    await kept.receive(item(OTHER, V2, b"two"))
    kept.peers.silent = {"d2"}
    await kept.look(3)
    kept.peers.silent = set()
    kept.peers.said("d2", OTHER, V1, b"one", speaks=False)
    await kept.look(2)
    kept.peers.said("d2", OTHER, V1, b"one")
    kept.peers.bodies.clear()  # it cannot be fetched
    await kept.look(2)
    assert (kept.target.version(OTHER), kept.target.is_pending(OTHER)) == (V2, True)


async def test_an_answer_is_nothing_when_a_row_has_come_meanwhile(kept: Kept) -> None:
    await kept.receive(item(OTHER, V2, b"two"))
    states = kept.peers.states

    async def late(disk: str, names: list[CopyKey]) -> Any:
        found = await states(disk, names)
        await kept.receive(item(OTHER, V3, b"three"))
        return found

    kept.peers.states = late  # type: ignore[method-assign]
    kept.peers.said("d2", OTHER, V1, b"one")
    await kept.look(2)
    assert (kept.target.version(OTHER), kept.target.is_pending(OTHER)) == (V3, True)


async def test_an_answer_is_nothing_when_the_same_row_has_come_again_meanwhile(kept: Kept) -> None:
    """From the next primary, which counts on it from then on; the one that was asked did not have it."""
    await kept.receive(item(OTHER, V2, b"two"))
    states = kept.peers.states

    async def late(disk: str, names: list[CopyKey]) -> Any:
        found = await states(disk, names)
        await kept.receive(item(OTHER, V2, b"two"))
        return found

    kept.peers.states = late  # type: ignore[method-assign]
    kept.peers.said("d2", OTHER, V1, b"one")
    await kept.look(2)
    assert (kept.target.version(OTHER), kept.target.is_pending(OTHER)) == (V2, True)


async def test_a_row_that_comes_again_while_another_is_fetched_stays(kept: Kept) -> None:
    await kept.receive(item(OTHER, V2, b"two"))
    fetch = kept.peers.fetch

    async def late(*asked: Any) -> Any:
        found = await fetch(*asked)
        await kept.receive(item(OTHER, V2, b"two"))
        return found

    kept.peers.fetch = late  # type: ignore[method-assign]
    kept.peers.said("d2", OTHER, V1, b"one")
    await kept.look(2)
    assert (kept.target.version(OTHER), kept.target.is_pending(OTHER)) == (V2, True)


async def test_a_primary_that_does_not_answer_keeps_nobody_else_waiting(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "PATIENCE_S", 0.05)
    other = name_with("d3", "d1")
    await kept.receive(item(OTHER, V1, b"one"), item(other, V1, b"x", of="d3"))
    kept.peers.said("d3", other, V1, b"x")
    states = kept.peers.states

    async def hangs(disk: str, names: list[CopyKey]) -> Any:
        if disk == "d2":
            await asyncio.Event().wait()
        return await states(disk, names)

    kept.peers.states = hangs  # type: ignore[method-assign]
    async with asyncio.timeout(5):
        await kept.look(3)
    assert (kept.target.is_pending(OTHER), kept.target.is_pending(other)) == (True, False)


async def test_very_many_pending_rows_do_not_hold_up_the_event_loop(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job publishes 100,000 outputs: what must not be done for each of them on the loop is to work out roles."""
    names = [name_with("d1", "d2", number=number) for number in range(50)]
    for name in names:
        kept.target.write(name, b"x")
    monkeypatch.setattr(settling, "DRIVEN_IN_A_ROW", 10)
    turns, driven, asked = 0, list[int](), list[str]()
    kept.writes.drive_later = lambda *given: driven.append(turns)  # type: ignore[method-assign]
    kept.target.ledger.roles = lambda *name: asked.append(name[1])  # type: ignore[method-assign,assign,return-value]

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(others())
    await kept.settler.drive_pending()
    turning.cancel()
    assert (len(driven), asked) == (50, [])
    assert max(driven.count(turn) for turn in driven) <= 10


# --- notes


async def test_a_disk_that_does_not_answer_holds_up_no_deliveries_to_others(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "PATIENCE_S", 0.05)
    to_third = name_with("d1", "d3")
    for name in (OWN, to_third):
        kept.target.write(name, b"x", pending=False)
    kept.target.disk.copies.owe([("d2", BUCKET, OWN), ("d3", BUCKET, to_third)])
    kept.peers.answers["d2"] = [asyncio.Event().wait]
    async with asyncio.timeout(5):
        await kept.look(2)
    assert (kept.target.notes("d2"), kept.target.notes("d3")) == ([OWN], [])
    assert [each.to for each in kept.peers.sent].count("d2") == 1, "one errand at a time"
    await kept.upkeep._errands.stop()
    async with asyncio.timeout(5):
        await kept.look(1)
    assert kept.target.notes("d2") == []


async def test_a_disk_that_does_not_answer_is_left_alone_for_a_while(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not tried once more for each of its notes, each of which takes as long as the calls wait."""
    monkeypatch.setattr(upkeep, "AGAIN_S", 600)
    names = [name_with("d1", "d2", number=number) for number in range(2 * upkeep.SENT_AT_ONCE)]
    for name in names:
        kept.target.write(name, b"x", pending=False)
    kept.target.disk.copies.owe([("d2", BUCKET, name) for name in names])
    kept.peers.answers["d2"] = [None] * 1000
    await kept.look(3)
    assert len(kept.peers.sent) == upkeep.SENT_AT_ONCE
    assert len(kept.target.notes("d2")) == len(names)


async def test_a_disk_that_answers_sometimes_is_asked_on(kept: Kept) -> None:
    names = [name_with("d1", "d2", number=number) for number in range(2 * upkeep.SENT_AT_ONCE)]
    for name in names:
        kept.target.write(name, b"x", pending=False)
    kept.target.disk.copies.owe([("d2", BUCKET, name) for name in names])
    kept.peers.answers["d2"] = [*[None] * (upkeep.SENT_AT_ONCE - 1), "refused"]
    await kept.look()
    assert len(kept.peers.sent) == len(names)
    assert len(kept.target.notes("d2")) == upkeep.SENT_AT_ONCE


async def test_a_stop_ends_what_is_under_way(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "WORK_S", 0)
    monkeypatch.setattr(upkeep, "PATIENCE_S", 0.01)
    kept.target.write(OWN, b"x", pending=False)
    kept.target.disk.copies.owe([("d2", BUCKET, OWN)])
    ended = list[bool]()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    kept.peers.answers["d2"] = [hang]
    running = asyncio.create_task(kept.upkeep.run())
    await until(lambda: bool(kept.peers.sent))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert ended == [True]


async def test_the_primary_delivers_what_disks_lack(kept: Kept) -> None:
    gone = name_with("d1", "d2", number=1)
    first = kept.target.write(OWN, b"own", pending=False)
    kept.target.write(gone, b"x", pending=False)
    kept.target.bury(gone, pending=False)
    kept.target.disk.copies.owe([("d2", BUCKET, OWN), ("d2", BUCKET, gone), ("d2", BUCKET, "never")])
    kept.peers.answers["d2"] = [None, None]
    await kept.look()
    assert kept.target.notes("d2") == sorted([OWN, gone])
    await kept.look()
    assert kept.target.notes("d2") == []
    sent = {each.name: each for each in kept.peers.sent[2:]}
    assert (sent[OWN].kind, sent[OWN].state.version, sent[OWN].body) == ("adopt", first.version, b"own")
    assert sent[gone].state.is_tombstone


async def test_a_refusal_keeps_the_note(kept: Kept) -> None:
    kept.target.write(OWN, b"own", pending=False)
    kept.target.disk.copies.owe([("d2", BUCKET, OWN)])
    kept.peers.answers["d2"] = ["refused", "newer_map"]
    await kept.look(2)
    assert kept.target.notes("d2") == [OWN]
    await kept.look()
    assert kept.target.notes("d2") == []


async def test_another_holder_asks_and_tells_the_primary(kept: Kept) -> None:
    kept.target.local.take_map(map_of(2, 2, down=("d3",)))
    name = name_with("d2", "d3")
    await kept.receive(item(name, V2, b"two"))
    kept.peers.said("d2", name, V2, b"two")
    await kept.look(2)
    assert (kept.target.notes("d3"), kept.peers.handed) == ([name], []), "it is down"
    kept.target.local.take_map(map_of(3, 3, behind={"d3": ("d2",)}))
    kept.peers.said("d3", name, V1, b"one")
    await kept.look()
    assert (kept.target.notes("d3"), kept.peers.handed) == ([name], [CopyKey("d3", BUCKET, name)])
    kept.peers.silent = {"d3"}
    await kept.look()
    assert kept.target.notes("d3") == [name]
    kept.peers.silent = set()
    kept.peers.said("d3", name, V3, b"three")
    await kept.look()
    assert kept.target.notes("d3") == []
    assert kept.peers.sent == []


async def old_row(kept: Kept) -> str:
    """A row here that disk d3 lacks, of an object whose tombstone is gone everywhere; d2 is its primary."""
    name = name_with("d2", "d3")
    await kept.receive(item(name, V2, b"two", kind="adopt"))
    kept.target.disk.copies.owe([("d3", BUCKET, name)])
    kept.target.local.take_map(map_of(2, 2, behind={"d3": ("d1",)}))
    kept.peers.said("d3", name, None)
    kept.peers.said("d2", name, None)
    return name


async def test_a_row_of_which_its_primary_knows_nothing_goes_with_its_note(kept: Kept) -> None:
    """Or the disk would never be reported clean, and never read again."""
    name = await old_row(kept)
    await kept.look()
    assert (kept.target.notes("d3"), kept.target.version(name), kept.peers.handed) == ([], None, [])
    assert reports(kept) == [CleanReport(disk="d1", behind="d3", step=2)]


@pytest.mark.parametrize("what", ["does not speak", "is not certain", "has one", "does not answer"])
async def test_a_row_stays_with_its_note_until_its_primary_is_sure(kept: Kept, what: str) -> None:
    name = await old_row(kept)
    if what == "does not answer":
        kept.peers.silent = {"d2"}
    else:
        more = {"does not speak": {"speaks": False}, "is not certain": {"is_certain": False}}.get(what, {})
        kept.peers.said("d2", name, V1 if what == "has one" else None, **more)
    await kept.look()
    assert (kept.target.notes("d3"), kept.target.version(name)) == ([name], V2)
    assert kept.peers.handed == [CopyKey("d3", BUCKET, name)]


@pytest.mark.parametrize("what", ["row", "map"])
async def test_what_comes_after_the_primary_was_asked_stays(kept: Kept, what: str) -> None:
    name = await old_row(kept)
    states = kept.peers.states

    async def late(disk: str, names: list[CopyKey]) -> Any:
        found = await states(disk, names)
        if disk == "d2" and what == "row":
            await kept.receive(item(name, V3, b"three"))
        elif disk == "d2":
            kept.target.local.take_map(map_of(3, 3, behind={"d2": ("d3",), "d3": ("d1",)}))
        return found

    kept.peers.states = late  # type: ignore[method-assign]
    await kept.look()
    assert (kept.target.notes("d3"), kept.target.version(name)) == ([name], V3 if what == "row" else V2)


async def test_without_a_primary_a_holder_gives_what_it_has(kept: Kept) -> None:
    kept.target.write(OWN, b"own")
    kept.target.disk.copies.owe([("d2", BUCKET, OWN)])
    kept.target.local.take_map(map_of(2, 2, behind={"d1": ("d2",), "d2": ("d1",)}))
    assert kept.target.ledger.roles(BUCKET, OWN).primary is None
    kept.peers.said("d2", OWN, None)
    await kept.look()
    assert [(each.kind, each.is_pending, each.body) for each in kept.peers.sent] == [("direct", True, b"own")]


async def test_notes_that_nobody_needs_are_dropped(kept: Kept) -> None:
    kept.target.write(OWN, b"own", pending=False)
    kept.target.disk.copies.owe([("d3", BUCKET, OWN), ("d9", BUCKET, OWN), ("d9", BUCKET, "x")])
    await kept.look()
    assert (kept.target.notes("d3"), kept.target.notes("d9"), kept.peers.sent) == ([], [], [])


async def test_a_write_that_comes_while_its_note_is_dropped_keeps_its_own(kept: Kept) -> None:
    """At first nothing is there of the name, and then a row that the disk lacks."""
    copies = kept.target.disk.copies
    kept.target.write(OWN, b"x", pending=False)
    copies.owe([("d2", BUCKET, OWN), ("d2", BUCKET, "never")])
    forgive = copies.forgive

    def late(notes: Any, *given: Any) -> None:
        if notes[0][2] == "never":
            kept.target.write("never", b"own", pending=False)
            copies.owe([("d2", BUCKET, "never")])
        forgive(notes, *given)

    copies.forgive = late  # type: ignore[method-assign]
    kept.peers.answers["d2"] = [None]
    await kept.look()
    assert kept.target.notes("d2") == sorted([OWN, "never"])


async def test_a_note_that_nobody_needed_stays_when_the_map_changes_meanwhile(kept: Kept) -> None:
    """By the new map, the disk may be a home."""
    copies = kept.target.disk.copies
    kept.target.write(OWN, b"own", pending=False)
    copies.owe([("d3", BUCKET, OWN)])
    forgive = copies.forgive

    def late(*given: Any) -> None:
        kept.target.local.take_map(map_of(2, 1, durability="relaxed"))
        forgive(*given)

    copies.forgive = late  # type: ignore[method-assign]
    await kept.look()
    assert kept.target.notes("d3") == [OWN]
    copies.forgive = forgive  # type: ignore[method-assign]
    await kept.look()
    assert kept.target.notes("d3") == []


def damaged_note(kept: Kept) -> NameState:
    """A row that disk d3 lacks, with another home at d2; its bytes here are gone."""
    kept.target.local.take_map(map_of(2, 2, copies=3, behind={"d3": ("d1",)}))
    state = kept.target.write(OWN, b"own", pending=False)
    kept.target.disk.copies.owe([("d3", BUCKET, OWN)])
    kept.target.damage(OWN)
    kept.peers.answers["d3"] = ["unknown"]
    kept.peers.streamed = [None]
    return state


async def test_damaged_bytes_are_fetched_from_another_home(kept: Kept) -> None:
    state = damaged_note(kept)
    kept.peers.said("d2", OWN, state.version, b"own")
    await kept.look()
    assert (kept.target.body(OWN), kept.target.version(OWN)) == (b"own", state.version)
    assert kept.target.notes("d3") == [OWN]
    await kept.look()
    assert (kept.target.notes("d3"), kept.peers.sent[-1].body) == ([], b"own")
    assert not kept.target.is_pending(OWN)


@pytest.mark.parametrize("version", [V1, None])
async def test_damaged_bytes_that_nobody_has_are_reported(
    kept: Kept, caplog: pytest.LogCaptureFixture, version: str | None
) -> None:
    """The disk that lacks them stays behind: as a reader, it would say that the object does not exist."""
    state = damaged_note(kept)
    kept.peers.said("d2", OWN, version or state.version, b"another" if version is None else b"own")
    kept.peers.answers["d3"] = ["unknown"] * 5
    kept.peers.streamed = [None] * 5
    await kept.look(3)
    assert (kept.target.notes("d3"), reports(kept)) == ([OWN], [])
    assert caplog.text.count("is damaged, and no other disk has its bytes: disk d3 cannot get it") == 1, "not at each look"
    assert kept.target.version(OWN) == state.version


async def test_a_disk_that_has_a_row_already_needs_no_bytes(kept: Kept) -> None:
    damaged_note(kept)
    kept.peers.answers["d3"] = ["taken"]
    await kept.look()
    assert kept.target.notes("d3") == []
    assert kept.peers.asked == []


# --- reports


def reports(kept: Kept) -> list[Any]:
    return list(kept.target.control.said)


async def test_a_disk_that_has_caught_up_is_reported(kept: Kept) -> None:
    kept.target.write(OWN, b"own", pending=False)
    kept.target.disk.copies.owe([("d2", BUCKET, OWN)])
    kept.target.local.take_map(map_of(2, 2, behind={"d2": ("d1",)}))
    kept.peers.answers["d2"] = [None]
    await kept.look()
    assert (reports(kept), kept.target.ledger.cleared["d1"]) == ([], set()), "it lacks something"
    kept.peers.settled = False
    await kept.look()
    assert (reports(kept), kept.target.ledger.cleared["d1"]) == ([], {"d2"}), "writes need it from now on"
    kept.peers.settled = True
    await kept.look()
    assert reports(kept) == [CleanReport(disk="d1", behind="d2", step=2)]


async def test_nobody_is_reported_before_the_writes_that_are_on_their_way_are_over(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have been decided without the disk that is behind. Those that begin later need it: they are not waited for, or
    no disk would catch up while many write."""
    monkeypatch.setattr(upkeep, "PATIENCE_S", 0.1)
    ledger, later = kept.target.ledger, name_with("d1", "d3")
    kept.target.local.take_map(map_of(2, 2, behind={"d2": ("d1",)}))
    ledger.uncertain.add(key_of(OWN))
    await kept.look()
    assert (reports(kept), ledger.cleared["d1"]) == ([], {"d2"})
    ledger.uncertain.add(key_of(later))
    ledger.free(key_of(OWN))
    ledger.uncertain.add(key_of(OWN))  # the next write of this name
    await kept.look()
    assert reports(kept) == [CleanReport(disk="d1", behind="d2", step=2)]


@pytest.mark.parametrize("what", ["note", "write", "map", "passed over"])
async def test_what_comes_while_a_disk_is_asked_withholds_the_report(kept: Kept, what: str) -> None:
    kept.target.write(OWN, b"own", pending=False)
    kept.target.local.take_map(map_of(2, 2, behind={"d2": ("d1",)}))
    ledger, is_settled, answers = kept.target.ledger, kept.peers.is_settled, [True, False]

    def end_write() -> None:
        kept.target.disk.copies.owe([("d2", BUCKET, OWN)])
        ledger.free(key_of(OWN))

    async def late(disk: str) -> bool:
        if what == "note":
            kept.target.disk.copies.owe([("d2", BUCKET, OWN)])
        elif what == "write":
            ledger.uncertain.add(key_of(OWN))
            asyncio.get_running_loop().call_later(0.1, end_write)
        elif what == "map":
            kept.target.local.take_map(map_of(3, 3, behind={"d2": ("d1",)}))
        else:
            ledger.passed_over("d1", "d2", 2)
        return answers.pop(0) and await is_settled(disk)

    kept.peers.is_settled = late  # type: ignore[method-assign]
    await kept.look()
    assert (reports(kept), answers) == ([], [False])


async def test_a_report_ends_with_its_step(kept: Kept) -> None:
    """Also while a write that is on its way does not end."""
    kept.target.local.take_map(map_of(2, 2, behind={"d2": ("d1",)}))
    kept.target.ledger.uncertain.add(key_of(OWN))
    waiting = asyncio.create_task(kept.upkeep._report_clean_of("d2"))
    assert not (await asyncio.wait((waiting,), timeout=0.1))[0]
    kept.target.local.take_map(map_of(3, 3, behind={"d2": ("d1",)}))
    assert (await asyncio.wait((waiting,), timeout=5))[0]
    assert (reports(kept), kept.target.ledger._endings) == ([], set())


async def test_a_disk_that_came_back_empty_gets_all_that_belongs_to_it(kept: Kept) -> None:
    """Also deletes, what this disk has as its second home, and what it has in place of another; but nothing else."""
    gone, elsewhere = name_with("d1", "d2", number=1), name_with("d1", "d3")
    for name in (OWN, OTHER, gone, elsewhere):
        kept.target.write(name, b"own", pending=False)
    kept.target.bury(gone, pending=False)
    await kept.receive(item(NEITHER, V2, b"two", kind="adopt"))
    kept.target.local.take_map(map_of(2, 2, behind={"d2": ("d1", "d3")}, compare={"d2": "new"}))
    kept.peers.silent = {"d2"}
    kept.peers.answers["d2"] = [None] * 20
    await kept.look()
    assert kept.target.notes("d2") == sorted([OWN, OTHER, gone, NEITHER])
    assert kept.target.notes("d3") == []
    assert reports(kept) == [], "it has got nothing yet"
    kept.peers.silent = set()
    kept.peers.answers.clear()
    kept.peers.said("d2", NEITHER, V2)
    await kept.look()
    assert kept.target.notes("d2") == []
    assert {each.name for each in kept.peers.sent} == {OWN, OTHER, gone}
    assert reports(kept) == [CleanReport(disk="d1", behind="d2", step=2)]


@pytest.mark.parametrize("what", ["settling", "write"])
async def test_a_disk_that_came_back_empty_is_not_clean_before_it_was_compared(
    kept: Kept, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on its way or not settled yet would be missing among the notes."""
    monkeypatch.setattr(upkeep, "PATIENCE_S", 0.1)
    kept.target.write(OWN, b"own", pending=False)
    kept.target.settles = what != "settling"
    kept.target.local.take_map(map_of(2, 2, behind={"d2": ("d1",)}, compare={"d2": "new"}))
    if what == "write":
        kept.target.ledger.uncertain.add(key_of(OTHER, "d1"))
    await kept.look()
    assert (kept.target.notes("d2"), kept.upkeep._compared, reports(kept)) == ([], {}, [])
    assert kept.target.ledger.cleared["d1"] == set()
    kept.target.settle()
    kept.target.ledger.free(key_of(OTHER, "d1"))
    await kept.upkeep._errands.idle(5)
    await kept.look()
    assert kept.upkeep._compared == {"d2": "new"}
    assert kept.target.notes("d2") == [OWN] or kept.peers.sent


async def test_each_disk_that_came_back_empty_is_compared_once(kept: Kept) -> None:
    kept.target.write(OWN, b"own", pending=False)
    for step, incarnation in enumerate(("first", "first", "second"), 2):
        kept.target.local.take_map(map_of(step, step, behind={"d2": ("d1",)}, compare={"d2": incarnation}))
        await kept.look(2)
    assert [each.name for each in kept.peers.sent] == [OWN, OWN], "once for each of the two that came back"
    assert len(reports(kept)) >= 3


async def test_disks_that_were_only_away_are_not_compared(kept: Kept) -> None:
    kept.target.write(OWN, b"own", pending=False)
    kept.target.local.take_map(map_of(2, 2, behind={"d2": ("d1",), "d3": ("d2",)}, compare={"d3": "new"}))
    await kept.look()
    assert (kept.peers.sent, kept.target.notes("d3")) == ([], [])


async def test_more_copies_are_planned_made_and_reported(kept: Kept) -> None:
    one = map_of(copies=1)
    name = name_with("d1", cluster_map=one)
    kept.target.write(name, b"own", pending=False)
    kept.target.local.take_map(map_of(2, 2, copies=1, written=2, wanted=2))
    second = kept.target.ledger.roles(BUCKET, name).homes[1]
    kept.peers.answers[second] = [None]
    await kept.look()
    assert (kept.target.notes(second), reports(kept)) == ([name], [])
    await kept.look()
    assert kept.target.notes(second) == []
    assert reports(kept) == [RaisedReport(disk="d1", bucket_id=BUCKET, copies=2, step=2)]


@pytest.mark.parametrize("what", ["write", "map"])
async def test_more_copies_are_reported_when_the_writes_on_their_way_are_over(
    kept: Kept, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "PATIENCE_S", 0.1)
    name = name_with("d1", cluster_map=map_of(copies=1))
    kept.target.local.take_map(map_of(2, 2, copies=1, written=2, wanted=2))
    second, ledger = kept.target.ledger.roles(BUCKET, name).homes[1], kept.target.ledger
    kept.target.write(name, b"own", pending=False)
    writing = key_of(name_with("d1", cluster_map=map_of(copies=1), number=1))
    ledger.uncertain.add(writing)
    await kept.look(2)
    assert (reports(kept), kept.target.notes(second)) == ([], [])
    if what == "write":
        kept.target.disk.copies.owe([(second, BUCKET, name)])  # it was decided without its new home
    else:
        kept.target.local.take_map(map_of(3, 3, copies=1, written=2, wanted=2))
    ledger.free(writing)
    await kept.upkeep._errands.idle(5)
    assert reports(kept) == []


async def test_what_was_committed_with_one_copy_is_planned_too(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit may be under way that was decided by the map of before: nobody else would ever bring it to the new home."""
    name = name_with("d1", cluster_map=map_of(copies=1))
    release = threading.Event()
    monkeypatch.setattr(kept.target.disk, "settle", release.wait)
    kept.target.local.take_map(map_of(2, 2, copies=1, written=2, wanted=2))
    planning = asyncio.create_task(kept.upkeep._plan())
    done, _ = await asyncio.wait((planning,), timeout=0.05)
    kept.target.write(name, b"own", pending=False)
    release.set()
    await planning
    assert not done
    assert kept.target.notes(kept.target.ledger.roles(BUCKET, name).homes[1]) == [name]


async def test_what_was_stored_with_one_copy_is_synced_before_others_get_it(kept: Kept) -> None:
    """A power loss that costs it then must not leave the disk as if it lacked nothing."""
    name = name_with("d1", cluster_map=map_of(copies=1))
    kept.target.disk.put_small(BUCKET, name, b"own", durability="relaxed")
    kept.target.local.take_map(map_of(2, 2, copies=1, written=2, wanted=2))
    await kept.upkeep._plan()
    assert kept.target.disk.stats.unsynced_rows == 0
    assert kept.target.notes(kept.target.ledger.roles(BUCKET, name).homes[1]) == [name]


# --- surplus


async def test_a_row_goes_when_all_homes_have_it(kept: Kept) -> None:
    await kept.receive(item(NEITHER, V2, b"two", kind="adopt"))
    kept.target.write(OWN, b"own", pending=False)
    kept.peers.said("d2", NEITHER, V2, b"two")
    for version, more in ((V1, {}), (None, {}), (V2, {"is_known": False}), (V2, {"is_certain": False})):
        kept.peers.said("d3", NEITHER, version, **more)
        await kept.look()
        assert kept.target.version(NEITHER) == V2, (version, more)
    kept.peers.silent = {"d3"}
    await kept.look()
    assert kept.target.version(NEITHER) == V2
    kept.peers.silent = set()
    kept.peers.said("d3", NEITHER, V3)
    await kept.look()
    assert kept.target.version(NEITHER) is None
    assert kept.target.body(OWN) == b"own"


async def test_a_pass_that_leaves_rows_is_repeated_later_or_in_another_step(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pass is a walk over all rows of the disk."""
    monkeypatch.setattr(surplus, "AGAIN_S", 600)
    await kept.receive(item(NEITHER, V2, b"two", kind="adopt"))
    await kept.look(3)
    assert len(kept.peers.asked) == 2, "both homes, once"
    for disk in ("d2", "d3"):
        kept.peers.said(disk, NEITHER, V2, b"two")
    await kept.look()
    assert kept.target.version(NEITHER) == V2
    kept.target.local.take_map(map_of(2, 2))
    await kept.look()
    assert kept.target.version(NEITHER) is None


async def test_passes_that_remove_nothing_become_rare(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surplus, "AGAIN_S", 5.0)
    passes = surplus.SurplusRows(kept.target.local, kept.target.ledger, kept.peers, kept.target.disk)  # type: ignore[arg-type]
    await kept.receive(item(NEITHER, V2, b"two", kind="adopt"))

    async def nothing_else() -> bool:
        return False

    pauses = list[float]()
    for _ in range(9):
        passes._next_s = 0.0
        assert not await passes.remove(kept.target.ledger.placement, nothing_else)
        pauses.append(round(passes._next_s - asyncio.get_running_loop().time()))
    assert pauses == [10, 20, 40, 80, 160, 300, 300, 300, 300]
    kept.target.local.take_map(map_of(2, 2))
    await passes.remove(kept.target.ledger.placement, nothing_else)
    assert round(passes._next_s - asyncio.get_running_loop().time()) == 10, "another step may have made some surplus"


async def test_a_pass_leaves_the_roles_that_are_remembered_and_pauses(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of names in use would be driven out by those of all rows of the disk."""
    monkeypatch.setattr(rows, "PAGE", 5)
    for number in range(20):
        kept.target.write(name_with("d1", "d2", number=number), b"x", pending=False)
    kept.target.local.take_map(map_of(2, 2))
    slept = list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(surplus, "asyncio", SimpleNamespace(sleep=sleep, get_running_loop=asyncio.get_running_loop))
    placement = kept.target.ledger.placement
    passes = surplus.SurplusRows(kept.target.local, kept.target.ledger, kept.peers, kept.target.disk)  # type: ignore[arg-type]
    assert await passes.remove(placement, kept.upkeep._has_deliveries)
    assert placement.__dict__["roles"] == {}
    assert len(slept) >= 4
    assert min(slept) > 0


async def test_rows_are_chosen_in_threads(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "PAGE", 3)
    objects, gone = [f"o{number}" for number in range(7)], [f"gone{number}" for number in range(4)]
    for name in objects + gone:
        kept.target.write(name, b"x", pending=False)
    for name in gone:
        kept.target.bury(name, pending=False)
    threads = set[threading.Thread]()

    def choose(page: list[rows.Row]) -> list[str]:
        threads.add(threading.current_thread())
        return [name for _, name, _ in page]

    target = kept.target
    pages = [page async for page in rows.walk(target.local.threads(target.disk), target.disk, choose)]
    assert [name for page in pages for name in page] == sorted(objects) + sorted(gone)
    assert max(map(len, pages)) == 3
    assert threading.main_thread() not in threads


async def test_nobody_walks_for_surplus_rows_while_somebody_catches_up(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []

    async def remove(placement: Any, _: Any) -> bool:
        passes.append(placement.step)
        return True

    monkeypatch.setattr(kept.upkeep._surplus, "remove", remove)
    kept.target.local.take_map(map_of(2, 2, behind={"d3": ("d2",)}))
    await kept.look()
    assert passes == []
    kept.target.local.take_map(map_of(3, 3))
    await kept.look()
    assert set(passes) == {3}


async def test_nothing_is_surplus_while_a_home_is_away_or_behind(kept: Kept) -> None:
    await kept.receive(item(NEITHER, V2, b"two", kind="adopt"))
    for disk in ("d2", "d3"):
        kept.peers.said(disk, NEITHER, V2, b"two")
    for number, given in enumerate(({"down": ("d3",)}, {"behind": {"d3": ("d2",)}}, {"behind": {"d2": ("d3",)}})):
        kept.target.local.take_map(map_of(2 + number, 2 + number, **given))
        await kept.look()
        assert kept.target.version(NEITHER) == V2
    kept.target.local.take_map(map_of(9, 9))
    await kept.look()
    assert kept.target.version(NEITHER) is None


async def test_what_is_pending_or_in_a_note_stays(kept: Kept) -> None:
    await kept.receive(item(NEITHER, V2, b"two"))
    for disk in ("d2", "d3"):
        kept.peers.said(disk, NEITHER, V2, b"two", speaks=False)
    await kept.look(2)
    assert kept.target.version(NEITHER) == V2
    for disk in ("d2", "d3"):
        kept.peers.said(disk, NEITHER, V2, b"two")
    await kept.look(3)
    assert kept.target.version(NEITHER) is None


async def test_a_map_that_changes_meanwhile_removes_nothing(kept: Kept) -> None:
    await kept.receive(item(NEITHER, V2, b"two", kind="adopt"))
    states = kept.peers.states

    async def late(disk: str, names: list[CopyKey]) -> Any:
        kept.target.local.take_map(map_of(kept.target.local.map.version + 1, 1, durability="relaxed"))
        return await states(disk, names)

    kept.peers.states = late  # type: ignore[method-assign]
    for disk in ("d2", "d3"):
        kept.peers.said(disk, NEITHER, V2, b"two")
    await kept.look()
    assert kept.target.version(NEITHER) == V2
