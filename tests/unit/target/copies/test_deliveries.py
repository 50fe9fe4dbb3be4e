"""What other disks lack, and how they get it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from calls import after, before
from copied import BUCKET, V1, V2, V3, item, key_of, map_of, name_with
from harness import until
from kept import OWN, Kept, reports

from dfc.errors import Unavailable
from dfc.registry.messages import CleanReport
from dfc.storage.rows import NameState
from dfc.target.copies import deliveries, upkeep
from dfc.target.copies.messages import CopyKey


async def test_a_disk_that_does_not_answer_holds_up_no_deliveries_to_others(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "PATIENCE_S", 0.05)
    to_third = name_with("d1", "d3")
    kept.lacks("d2", OWN)
    kept.lacks("d3", to_third)
    kept.peers.answers["d2"] = [asyncio.Event().wait]
    async with asyncio.timeout(20):
        await kept.look(2)
    assert (kept.target.hints("d2"), kept.target.hints("d3")) == ([OWN], [])
    assert [each.to for each in kept.peers.sent].count("d2") == 1, "one errand at a time"
    await kept.upkeep._peer_tasks.stop()
    async with asyncio.timeout(20):
        await kept.look(1)
    assert kept.target.hints("d2") == []


async def test_a_disk_that_does_not_answer_is_left_alone_for_a_while(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not tried once more for each of its notes, each of which takes as long as the calls wait."""
    monkeypatch.setattr(deliveries, "AGAIN_S", 600)
    names = [name_with("d1", "d2", number=number) for number in range(2 * deliveries.SENT_FIRST)]
    kept.lacks("d2", *names)
    kept.peers.silent = {"d2"}
    await kept.look(3)
    assert (len(kept.peers.asked), kept.peers.sent) == (deliveries.SENT_FIRST, [])
    assert len(kept.target.hints("d2")) == len(names)


async def test_a_disk_that_answers_sometimes_is_asked_on(kept: Kept) -> None:
    names = [name_with("d1", "d2", number=number) for number in range(2 * deliveries.SENT_FIRST)]
    kept.lacks("d2", *names)
    kept.peers.answers["d2"] = [*[None] * (deliveries.SENT_FIRST - 1), "refused"]
    await kept.look()
    assert len(kept.peers.sent) == len(names)
    assert len(kept.target.hints("d2")) == deliveries.SENT_FIRST


async def test_a_stop_ends_what_is_under_way(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "WORK_S", 0)
    monkeypatch.setattr(upkeep, "PATIENCE_S", 0.01)
    kept.lacks("d2", OWN)
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
    kept.target.hint("d2", OWN, gone, "never")
    kept.peers.answers["d2"] = [None, None]
    await kept.look()
    assert kept.target.hints("d2") == sorted([OWN, gone])
    await kept.look()
    assert kept.target.hints("d2") == []
    sent = {each.name: each for each in kept.peers.sent[2:]}
    assert (sent[OWN].kind, sent[OWN].state.version, sent[OWN].body) == ("adopt", first.version, b"own")
    assert sent[gone].state.is_tombstone


async def test_what_a_disk_has_already_is_not_sent(kept: Kept) -> None:
    """It may have been drained, and is taken in again. Bytes that it has lost are."""
    names = [name_with("d1", "d2", number=number) for number in range(4)]
    versions = {name: kept.target.write(name, b"x", pending=False).version for name in names}
    kept.target.hint("d2", *names)
    kept.peers.said("d2", names[0], versions[names[0]], b"x")
    kept.peers.said("d2", names[1], versions[names[1]], b"x", is_damaged=True)
    kept.peers.said("d2", names[2], V1, b"old")
    await kept.look()
    assert sorted(each.name for each in kept.peers.sent) == sorted(names[1:])
    assert kept.target.hints("d2") == []


async def test_a_refusal_keeps_the_hint(kept: Kept) -> None:
    kept.lacks("d2", OWN)
    kept.peers.answers["d2"] = ["refused", "newer_map"]
    await kept.look(2)
    assert kept.target.hints("d2") == [OWN]
    await kept.look()
    assert kept.target.hints("d2") == []


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_row_with_a_write_on_its_way_is_not_given(kept: Kept, when: str) -> None:
    """It may be undone; the next look finds what has become of it."""
    kept.lacks("d2", OWN)
    ledger, copies = kept.target.ledger, kept.target.disk.copies
    if when == "before":
        ledger.in_doubt.add(key_of(OWN))
    change = ledger.in_doubt.discard if when == "before" else ledger.in_doubt.add
    after(copies, "states", lambda _: change(key_of(OWN)))
    await kept.look()
    assert (kept.target.hints("d2"), kept.peers.sent) == ([OWN], [])
    del copies.states
    ledger.in_doubt.discard(key_of(OWN))
    await kept.look()
    assert (kept.target.hints("d2"), len(kept.peers.sent)) == ([], 1)


async def test_a_row_that_cannot_be_given_holds_up_no_other(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name_with("d1", "d2", number=number) for number in range(3)]
    kept.lacks("d2", *names)
    give = kept.writes.give

    async def broken(disk: Any, key: CopyKey, *given: Any, **more: Any) -> bool:
        if key.name == names[0]:
            raise Unavailable("the disk is overloaded")
        return await give(disk, key, *given, **more)

    monkeypatch.setattr(kept.writes, "give", broken)
    await kept.look()
    assert kept.target.hints("d2") == [names[0]]


async def test_hints_share_their_questions(kept: Kept) -> None:
    """Else each of thousands of notes would take the time of three answers."""
    names = [name_with("d2", "d3", number=number) for number in range(deliveries.SENT_FIRST + deliveries.SENT_AT_ONCE)]
    await kept.receive(*(item(name, V2, b"two", kind="adopt") for name in names))
    kept.target.hint("d3", *names)
    for number, name in enumerate(sorted(names)):
        kept.peers.said("d3", name, (V1, V2, V3)[number % 3], b"x")
        kept.peers.said("d2", name, V2, b"two")
    asked = list[str]()
    kept.peers.after_states = asked.append
    kept.target.take_map(map_of(2, 2, out_of_sync_with={"d3": ("d2",)}))
    await kept.look()
    older = sorted(names)[::3]
    assert (kept.target.hints("d3"), [key.name for key in kept.peers.handed]) == (older, older)
    assert asked == ["d3", "d2", "d3", "d2"], "once for the first, and once for the others"


async def test_another_holder_asks_and_tells_the_primary(kept: Kept) -> None:
    kept.target.take_map(map_of(2, 2, down=("d3",)))
    name = name_with("d2", "d3")
    await kept.receive(item(name, V2, b"two"))
    kept.peers.said("d2", name, V2, b"two")
    await kept.look(2)
    assert (kept.target.hints("d3"), kept.peers.handed) == ([name], []), "it is down"
    kept.target.take_map(map_of(3, 3, out_of_sync_with={"d3": ("d2",)}))
    kept.peers.said("d3", name, V1, b"one")
    await kept.look()
    assert (kept.target.hints("d3"), set(kept.peers.handed)) == ([name], {CopyKey("d3", BUCKET, name)})
    kept.peers.silent = {"d3"}
    await kept.look()
    assert kept.target.hints("d3") == [name]
    kept.peers.silent = set()
    kept.peers.said("d3", name, V3, b"three")
    await kept.look()
    assert kept.target.hints("d3") == []
    assert kept.peers.sent == []


async def old_row(kept: Kept) -> str:
    """A row here that disk d3 lacks, of an object whose tombstone is gone everywhere; d2 is its primary."""
    name = name_with("d2", "d3")
    await kept.receive(item(name, V2, b"two", kind="adopt"))
    kept.target.hint("d3", name)
    kept.target.take_map(map_of(2, 2, out_of_sync_with={"d3": ("d1",)}))
    kept.peers.said("d3", name, None)
    kept.peers.said("d2", name, None)
    return name


async def test_a_row_of_which_its_primary_knows_nothing_goes_with_its_hint(kept: Kept) -> None:
    """Or the disk would never be reported clean, and never read again."""
    name = await old_row(kept)
    await kept.look()
    assert (kept.target.hints("d3"), kept.target.version(name), kept.peers.handed) == ([], None, [])
    assert reports(kept) == [CleanReport(disk="d1", caught_up="d3", step=2)]


@pytest.mark.parametrize("what", ["does not speak", "is not certain", "has one", "does not answer"])
async def test_a_row_stays_with_its_hint_until_its_primary_is_sure(kept: Kept, what: str) -> None:
    name = await old_row(kept)
    if what == "does not answer":
        kept.peers.silent = {"d2"}
    else:
        more = {"does not speak": {"speaks": False}, "is not certain": {"is_replicated": False}}.get(what, {})
        kept.peers.said("d2", name, V1 if what == "has one" else None, **more)
    await kept.look()
    assert (kept.target.hints("d3"), kept.target.version(name)) == ([name], V2)
    assert set(kept.peers.handed) == {CopyKey("d3", BUCKET, name)}


@pytest.mark.parametrize("what", ["row", "map"])
async def test_what_comes_after_the_primary_was_asked_stays(kept: Kept, what: str) -> None:
    name = await old_row(kept)

    async def late(disk: str) -> None:
        if disk == "d2" and what == "row":
            await kept.receive(item(name, V3, b"three"))
        elif disk == "d2":
            kept.target.take_map(map_of(3, 3, out_of_sync_with={"d2": ("d3",), "d3": ("d1",)}))

    kept.peers.after_states = late
    await kept.look()
    assert (kept.target.hints("d3"), kept.target.version(name)) == ([name], V3 if what == "row" else V2)


async def test_without_a_primary_a_holder_gives_what_it_has(kept: Kept) -> None:
    kept.target.write(OWN, b"own")
    kept.target.hint("d2", OWN)
    kept.target.take_map(map_of(2, 2, out_of_sync_with={"d1": ("d2",), "d2": ("d1",)}))
    assert kept.target.ledger.roles(BUCKET, OWN).primary is None
    kept.peers.said("d2", OWN, None)
    await kept.look()
    assert [(each.kind, each.is_pending, each.body) for each in kept.peers.sent] == [("direct", True, b"own")]


async def test_hints_that_nobody_needs_are_dropped(kept: Kept) -> None:
    kept.lacks("d3", OWN)
    kept.target.hint("d9", OWN, "x")
    await kept.look()
    assert (kept.target.hints("d3"), kept.target.hints("d9"), kept.peers.sent) == ([], [], [])


async def test_a_write_that_comes_while_its_hint_is_dropped_keeps_its_own(kept: Kept) -> None:
    """At first nothing is there of the name, and then a row that the disk lacks."""
    kept.lacks("d2", OWN)
    kept.target.hint("d2", "never")

    def late(hints: Any, *_: Any) -> None:
        if hints[0][2] == "never":
            kept.lacks("d2", "never")

    before(kept.target.disk.copies, "drop_hints", late)
    kept.peers.answers["d2"] = [None]
    await kept.look()
    assert kept.target.hints("d2") == sorted([OWN, "never"])


async def test_a_hint_that_nobody_needed_stays_when_the_map_changes_meanwhile(kept: Kept) -> None:
    """By the new map, the disk may be a replica."""
    copies = kept.target.disk.copies
    kept.lacks("d3", OWN)
    before(copies, "drop_hints", lambda *_, **__: kept.target.take_map(map_of(2, 1, durability="relaxed")))
    await kept.look()
    assert kept.target.hints("d3") == [OWN]
    del copies.drop_hints
    await kept.look()
    assert kept.target.hints("d3") == []


def damaged_note(kept: Kept) -> NameState:
    """A row that disk d3 lacks, with another replica at d2; its bytes here are gone."""
    kept.target.take_map(map_of(2, 2, copies=3, out_of_sync_with={"d3": ("d1",)}))
    state = kept.target.write(OWN, b"own", pending=False)
    kept.target.hint("d3", OWN)
    kept.target.damage(OWN)
    kept.peers.answers["d3"] = ["unknown"]
    kept.peers.streamed = [None]
    return state


async def test_damaged_bytes_are_fetched_from_another_replica(kept: Kept) -> None:
    state = damaged_note(kept)
    kept.peers.said("d2", OWN, state.version, b"own")
    await kept.look()
    assert (kept.target.body(OWN), kept.target.version(OWN)) == (b"own", state.version)
    assert kept.target.hints("d3") == [OWN]
    await kept.look()
    assert (kept.target.hints("d3"), kept.peers.sent[-1].body) == ([], b"own")
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
    assert (kept.target.hints("d3"), reports(kept)) == ([OWN], [])
    assert caplog.text.count("is damaged, and no other disk has its bytes: disk d3 cannot get it") == 1, "not at each look"
    assert len(kept.peers.streamed) == 5, "nor are bytes sent that are known to be damaged"
    assert kept.target.version(OWN) == state.version


async def test_a_disk_that_has_a_row_already_needs_no_bytes(kept: Kept) -> None:
    damaged_note(kept)
    kept.peers.answers["d3"] = ["taken"]
    await kept.look()
    assert (kept.target.hints("d3"), len(kept.peers.sent)) == ([], 1)
    assert kept.target.disk.quarantined(), "nobody was asked for the bytes in vain"
