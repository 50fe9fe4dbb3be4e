"""What a disk does about copies in the background: rows that are pending, notes, clean reports and surplus rows."""

from __future__ import annotations

import asyncio
import threading
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
from calls import before
from copied import BUCKET, V1, V2, V3, item, key_of, map_of, name_with
from kept import NEITHER, OTHER, OWN, Kept, reports

from dfc.registry.messages import CleanReport, RaisedReport
from dfc.target.copies import peering, upkeep, walks

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
    assert kept.target.disk.first_counts().get(BUCKET, 0) == 0, "it is the second replica, whatever was undone"


@pytest.mark.parametrize("version", [None, V1])
async def test_a_row_of_a_name_that_its_primary_lacks_goes(kept: Kept, version: str | None) -> None:
    await kept.receive(item(OTHER, V2, b"two"))
    kept.peers.said("d2", OTHER, version)
    await kept.look(2)
    assert (kept.target.version(OTHER), kept.target.is_pending(OTHER)) == (version, False)
    assert kept.target.disk.find(BUCKET, OTHER) is None


@pytest.mark.parametrize("version", [None, V1])
async def test_what_a_job_publishes_stays_until_its_primary_has_it(kept: Kept, version: str | None) -> None:
    """Until the job is over: then it is undone like the rows of clients, since it may have been deleted long ago."""
    await kept.receive(item(OTHER, V2, b"two", job="job-1"))
    kept.peers.said("d2", OTHER, version)
    await kept.look(3)
    assert (kept.target.version(OTHER), kept.target.is_pending(OTHER)) == (V2, True)
    kept.target.disk.staging.discard("job-1")
    await kept.look()
    assert (kept.target.version(OTHER), kept.target.is_pending(OTHER)) == (version, False)


@pytest.mark.parametrize("version", [V2, V3], ids=["taken", "replaced"])
async def test_what_a_job_publishes_follows_its_primary_from_then_on(kept: Kept, version: str) -> None:
    await kept.receive(item(OTHER, V2, b"two", job="job-1"))
    kept.peers.said("d2", OTHER, version, b"two", speaks=False, is_replicated=False, decides=True)
    await kept.look(2)
    assert (kept.target.version(OTHER), kept.target.is_pending(OTHER)) == (V2, True), "a write is on its way there"
    kept.peers.said("d2", OTHER, version, b"two")
    await kept.look()
    assert (kept.target.version(OTHER), kept.target.is_pending(OTHER)) == (version, False)
    assert kept.target.disk.copies.published_by("job-1") == []


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


@pytest.mark.parametrize("body", [b"one", None])
async def test_a_row_gives_way_to_one_that_waits_for_it(kept: Kept, body: bytes | None) -> None:
    """The primary's write is on its way, and this disk would refuse it for ever: what it has is newer. Nobody will acknowledge
    that, since the primary has settled without it."""
    await kept.receive(item(OTHER, V3, b"three"))
    kept.peers.said("d2", OTHER, V2, body, speaks=False, is_replicated=False, decides=True)
    await kept.look(2)
    assert (kept.target.version(OTHER), kept.target.is_pending(OTHER)) == (V2, True), "it is pending in its turn"
    kept.peers.said("d2", OTHER, V2, body)
    await kept.look(2)
    assert (kept.target.version(OTHER), kept.target.is_pending(OTHER)) == (V2, False)


@pytest.mark.parametrize("theirs", [V3, None])
async def test_a_row_waits_for_one_that_may_come_to_nothing(kept: Kept, theirs: str | None) -> None:
    await kept.receive(item(OTHER, V3, b"three"))
    kept.peers.said("d2", OTHER, theirs, None if theirs is None else b"three", speaks=False, is_replicated=False, decides=True)
    await kept.look(2)
    assert (kept.target.version(OTHER), kept.target.is_pending(OTHER)) == (V3, True)


@pytest.mark.parametrize(
    ("version", "body", "when"),
    [(V3, b"three", "after_states"), (V2, b"two", "after_states"), (V2, b"two", "after_fetch")],
    ids=["other", "same", "fetched"],
)
async def test_an_answer_is_nothing_when_a_row_has_come_meanwhile(kept: Kept, version: str, body: bytes, when: str) -> None:
    """Or the same once more: from the next primary, which counts on it from then on; the one that was asked did not have it."""
    await kept.receive(item(OTHER, V2, b"two"))
    setattr(kept.peers, when, lambda *_: kept.receive(item(OTHER, version, body)))
    kept.peers.said("d2", OTHER, V1, b"one")
    await kept.look(2)
    assert (kept.target.version(OTHER), kept.target.is_pending(OTHER)) == (version, True)


async def test_a_primary_that_does_not_answer_keeps_nobody_else_waiting(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "PATIENCE_S", 0.05)
    other = name_with("d3", "d1")
    await kept.receive(item(OTHER, V1, b"one"), item(other, V1, b"x", of="d3"))
    kept.peers.said("d3", other, V1, b"x")
    kept.peers.after_states = lambda disk: asyncio.Event().wait() if disk == "d2" else None
    async with asyncio.timeout(20):
        await kept.look(3)
    assert (kept.target.is_pending(OTHER), kept.target.is_pending(other)) == (True, False)


async def test_very_many_pending_rows_do_not_hold_up_the_event_loop(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job publishes 100,000 outputs: what must not be done for each of them on the loop is to work out roles."""
    names = [name_with("d1", "d2", number=number) for number in range(50)]
    for name in names:
        kept.target.write(name, b"x")
    monkeypatch.setattr(peering, "DRIVEN_IN_A_ROW", 10)
    turns, driven, asked = 0, list[int](), list[str]()
    kept.writes.drive_later = lambda *given: driven.append(turns)  # type: ignore[method-assign]
    kept.target.ledger.roles = lambda *name: asked.append(name[1])  # type: ignore[method-assign,assign,return-value]

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(others())
    await kept.peering_loop.drive_pending()
    turning.cancel()
    assert (len(driven), asked) == (50, [])
    assert max(driven.count(turn) for turn in driven) <= 10


# --- reports


async def test_a_disk_that_has_caught_up_is_reported(kept: Kept) -> None:
    kept.lacks("d2", OWN)
    kept.target.take_map(map_of(2, 2, out_of_sync_with={"d2": ("d1",)}))
    kept.peers.answers["d2"] = ["refused"] * 10
    await kept.look()
    assert (reports(kept), kept.target.ledger.cleared["d1"]) == ([], set()), "it lacks something"
    assert len(kept.peers.sent) <= 2, "nor is it tried again at once"
    kept.peers.answers["d2"] = []
    kept.peers.settled = False
    await kept.look()
    assert (reports(kept), kept.target.ledger.cleared["d1"]) == ([], {"d2"}), "writes need it from now on"
    kept.peers.settled = True
    await kept.look()
    assert reports(kept) == [CleanReport(disk="d1", caught_up="d2", step=2)]


async def test_nobody_is_reported_before_the_writes_that_are_on_their_way_are_over(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have been decided without the disk that is out of sync. Those that begin later need it: they are not waited for,
    or no disk would catch up while many write."""
    monkeypatch.setattr(upkeep, "PATIENCE_S", 0.1)
    ledger, later = kept.target.ledger, name_with("d1", "d3")
    kept.target.take_map(map_of(2, 2, out_of_sync_with={"d2": ("d1",)}))
    ledger.in_doubt.add(key_of(OWN))
    await kept.look()
    assert (reports(kept), ledger.cleared["d1"]) == ([], {"d2"})
    ledger.in_doubt.add(key_of(later))
    ledger.free(key_of(OWN))
    ledger.in_doubt.add(key_of(OWN))  # the next write of this name
    await kept.look()
    assert reports(kept) == [CleanReport(disk="d1", caught_up="d2", step=2)]


@pytest.mark.parametrize("what", ["note", "write", "map", "passed over"])
async def test_what_comes_while_a_disk_is_asked_withholds_the_report(kept: Kept, what: str) -> None:
    kept.target.write(OWN, b"own", pending=False)
    kept.target.take_map(map_of(2, 2, out_of_sync_with={"d2": ("d1",)}))
    ledger, is_settled, answers = kept.target.ledger, kept.peers.is_resolved, [True, False]

    def end_write() -> None:
        kept.target.hint("d2", OWN)
        ledger.free(key_of(OWN))

    async def late(disk: str) -> bool:
        if what == "note":
            kept.target.hint("d2", OWN)
        elif what == "write":
            ledger.in_doubt.add(key_of(OWN))
            asyncio.get_running_loop().call_later(0.1, end_write)
        elif what == "map":
            kept.target.take_map(map_of(3, 3, out_of_sync_with={"d2": ("d1",)}))
        else:
            ledger.passed_over("d1", "d2", 2)
        return answers.pop(0) and await is_settled(disk)

    kept.peers.is_resolved = late  # type: ignore[method-assign]
    kept.peers.answers["d2"] = ["refused"] * 10
    await kept.look()
    assert (reports(kept), answers) == ([], [False])


async def test_hints_that_come_all_the_time_do_not_keep_a_disk_out_of_sync(kept: Kept) -> None:
    """As a member of writes of others, this disk notes rows for it without end; it has them when it is asked."""
    names = [name_with("d2", "d1", number=number) for number in range(8)]
    await kept.receive(*(item(name, V1, b"x", kind="adopt") for name in names))
    for name in names:
        kept.peers.said("d3", name, V1, b"x")
    kept.target.hint("d3", names[0])
    coming = iter(names[1:])
    kept.peers.after_states = lambda _: kept.target.hint("d3", *islice(coming, 1))
    kept.target.take_map(map_of(2, 2, copies=3, out_of_sync_with={"d3": ("d1",)}))
    await kept.upkeep._report_clean_of("d3")
    assert reports(kept) == [CleanReport(disk="d1", caught_up="d3", step=2)]


async def test_a_report_ends_with_its_step(kept: Kept) -> None:
    """Also while a write that is on its way does not end."""
    kept.target.take_map(map_of(2, 2, out_of_sync_with={"d2": ("d1",)}))
    kept.target.ledger.in_doubt.add(key_of(OWN))
    waiting = asyncio.create_task(kept.upkeep._report_clean_of("d2"))
    assert not (await asyncio.wait((waiting,), timeout=0.1))[0]
    kept.target.take_map(map_of(3, 3, out_of_sync_with={"d2": ("d1",)}))
    assert (await asyncio.wait((waiting,), timeout=5))[0]
    assert (reports(kept), kept.target.ledger._endings) == ([], set())


async def test_a_disk_that_came_back_empty_gets_all_that_belongs_to_it(kept: Kept) -> None:
    """Also deletes, what this disk has as its second replica, and what it has in place of another; but nothing else."""
    gone, elsewhere = name_with("d1", "d2", number=1), name_with("d1", "d3")
    for name in (OWN, OTHER, gone, elsewhere):
        kept.target.write(name, b"own", pending=False)
    kept.target.bury(gone, pending=False)
    await kept.receive(item(NEITHER, V2, b"two", kind="adopt"))
    kept.target.take_map(map_of(2, 2, out_of_sync_with={"d2": ("d1", "d3")}, compare={"d2": "new"}))
    kept.peers.silent = {"d2"}
    kept.peers.answers["d2"] = [None] * 20
    noted = list[Any]()
    before(kept.target.disk.copies, "add_hints", noted.extend)
    await kept.look()
    assert sorted(noted) == sorted(("d2", BUCKET, name) for name in (OWN, OTHER, gone, NEITHER))
    assert kept.target.hints("d2") == sorted([OWN, OTHER, gone, NEITHER])
    assert kept.target.hints("d3") == []
    assert reports(kept) == [], "it has got nothing yet"
    kept.peers.silent = set()
    kept.peers.answers.clear()
    kept.peers.said("d2", NEITHER, V2)
    await kept.look()
    assert kept.target.hints("d2") == []
    assert {each.name for each in kept.peers.sent} == {OWN, OTHER, gone}
    assert reports(kept) == [CleanReport(disk="d1", caught_up="d2", step=2)]


@pytest.mark.parametrize("what", ["settling", "write"])
async def test_a_disk_that_came_back_empty_is_not_clean_before_it_was_compared(
    kept: Kept, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on its way or not settled yet would be missing among the notes."""
    monkeypatch.setattr(upkeep, "PATIENCE_S", 0.1)
    kept.target.write(OWN, b"own", pending=False)
    kept.target.settles = what != "settling"
    kept.target.take_map(map_of(2, 2, out_of_sync_with={"d2": ("d1",)}, compare={"d2": "new"}))
    if what == "write":
        kept.target.ledger.in_doubt.add(key_of(OTHER, "d1"))
    await kept.look()
    await kept.upkeep._peer_tasks.idle(5)  # so that a comparison that were begun would be seen, however slow the machine
    assert (kept.target.hints("d2"), kept.upkeep._compared, reports(kept)) == ([], {}, [])
    assert kept.target.ledger.cleared["d1"] == set()
    kept.target.peer_now()
    kept.target.ledger.free(key_of(OTHER, "d1"))
    await kept.upkeep._peer_tasks.idle(5)
    await kept.look()
    assert kept.upkeep._compared == {"d2": "new"}
    assert kept.target.hints("d2") == [OWN] or kept.peers.sent


async def test_each_disk_that_came_back_empty_is_compared_once(kept: Kept) -> None:
    kept.target.write(OWN, b"own", pending=False)
    for step, incarnation in enumerate(("first", "first", "second"), 2):
        kept.target.take_map(map_of(step, step, out_of_sync_with={"d2": ("d1",)}, compare={"d2": incarnation}))
        await kept.look(2)
    assert [each.name for each in kept.peers.sent] == [OWN, OWN], "once for each of the two that came back"
    assert len(reports(kept)) >= 3


async def test_disks_that_were_only_away_are_not_compared(kept: Kept) -> None:
    kept.target.write(OWN, b"own", pending=False)
    kept.target.take_map(map_of(2, 2, out_of_sync_with={"d2": ("d1",), "d3": ("d2",)}, compare={"d3": "new"}))
    await kept.look()
    assert (kept.peers.sent, kept.target.hints("d3")) == ([], [])


async def test_more_copies_are_planned_made_and_reported(kept: Kept) -> None:
    name = name_with("d1", cluster_map=map_of(copies=1))
    kept.target.write(name, b"own", pending=False)
    kept.target.take_map(map_of(2, 2, copies=1, written=2, wanted=2))
    second = kept.target.ledger.roles(BUCKET, name).replicas[1]
    kept.peers.answers[second] = [None]
    await kept.look()
    assert (kept.target.hints(second), reports(kept)) == ([name], [])
    await kept.look()
    assert kept.target.hints(second) == []
    assert reports(kept) == [RaisedReport(disk="d1", bucket_id=BUCKET, copies=2, step=2)]


@pytest.mark.parametrize("what", ["write", "map"])
async def test_more_copies_are_reported_when_the_writes_on_their_way_are_over(
    kept: Kept, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "PATIENCE_S", 0.1)
    name = name_with("d1", cluster_map=map_of(copies=1))
    kept.target.take_map(map_of(2, 2, copies=1, written=2, wanted=2))
    second, ledger = kept.target.ledger.roles(BUCKET, name).replicas[1], kept.target.ledger
    kept.target.write(name, b"own", pending=False)
    writing = key_of(name_with("d1", cluster_map=map_of(copies=1), number=1))
    ledger.in_doubt.add(writing)
    await kept.look(2)
    assert (reports(kept), kept.target.hints(second)) == ([], [])
    if what == "write":
        kept.target.hint(second, name)  # it was decided without its new replica
    else:
        kept.target.take_map(map_of(3, 3, copies=1, written=2, wanted=2))
    ledger.free(writing)
    await kept.upkeep._peer_tasks.idle(5)
    assert reports(kept) == []


async def test_what_was_committed_with_one_copy_is_planned_too(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit may be under way that was decided by the map of before: nobody else would ever bring it to the new replica."""
    name = name_with("d1", cluster_map=map_of(copies=1))
    # Settling waits for such commits: this one is done no earlier than the notes are to be made.
    monkeypatch.setattr(kept.target.disk, "barrier", lambda: kept.target.write(name, b"own", pending=False))
    kept.target.take_map(map_of(2, 2, copies=1, written=2, wanted=2))
    await kept.upkeep._coming.plan()
    assert kept.target.hints(kept.target.ledger.roles(BUCKET, name).replicas[1]) == [name]


async def test_what_was_stored_with_one_copy_is_synced_before_others_get_it(kept: Kept) -> None:
    """A power loss that costs it then must not leave the disk as if it lacked nothing."""
    name = name_with("d1", cluster_map=map_of(copies=1))
    kept.target.disk.put_small(BUCKET, name, b"own", durability="relaxed")
    kept.target.take_map(map_of(2, 2, copies=1, written=2, wanted=2))
    await kept.upkeep._coming.plan()
    assert kept.target.disk.stats.unsynced_rows == 0
    assert kept.target.hints(kept.target.ledger.roles(BUCKET, name).replicas[1]) == [name]


# --- surplus


async def test_a_row_goes_when_all_replicas_have_it(kept: Kept) -> None:
    await kept.receive(item(NEITHER, V2, b"two", kind="adopt"))
    kept.target.write(OWN, b"own", pending=False)
    kept.peers.said("d2", NEITHER, V2, b"two")
    for version, more in ((V1, {}), (None, {}), (V2, {"is_known": False}), (V2, {"is_replicated": False})):
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
    monkeypatch.setattr(walks, "EXCESS_AGAIN_S", 600)
    await kept.receive(item(NEITHER, V2, b"two", kind="adopt"))
    await kept.look(3)
    assert len(kept.peers.asked) == 2, "both replicas, once"
    kept.peers.both_said(NEITHER, V2, b"two")
    await kept.look()
    assert kept.target.version(NEITHER) == V2
    kept.target.take_map(map_of(2, 2))
    await kept.look()
    assert kept.target.version(NEITHER) is None


async def nothing_else() -> bool:
    return False


async def test_passes_that_remove_nothing_become_rare(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "EXCESS_AGAIN_S", 5.0)
    passes = kept.upkeep._excess
    await kept.receive(item(NEITHER, V2, b"two", kind="adopt"))
    pauses = list[float]()
    for _ in range(9):
        passes._next_s = 0.0
        assert not await passes.remove(kept.target.ledger.placement, nothing_else)
        pauses.append(round(passes._next_s - asyncio.get_running_loop().time()))
    assert pauses == [10, 20, 40, 80, 160, 300, 300, 300, 300]
    kept.target.take_map(map_of(2, 2))
    await passes.remove(kept.target.ledger.placement, nothing_else)
    assert round(passes._next_s - asyncio.get_running_loop().time()) == 10, "another step may have made some surplus"


async def test_a_pass_that_a_new_map_overtakes_is_made_again_at_once(kept: Kept) -> None:
    """It is no error, after which there is a pause: tombstones may be forgotten meanwhile."""
    await kept.receive(item(NEITHER, V2, b"two", kind="adopt"))
    kept.peers.both_said(NEITHER, V2, b"two")
    passes = kept.upkeep._excess
    kept.peers.after_states = lambda _: kept.target.take_map(map_of(2, 2))
    assert not await passes.remove(kept.target.ledger.placement, nothing_else)
    assert kept.target.version(NEITHER) == V2
    assert await passes.remove(kept.target.ledger.placement, nothing_else)
    assert kept.target.version(NEITHER) is None


async def test_a_pass_leaves_the_roles_that_are_remembered_and_pauses(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of names in use would be driven out by those of all rows of the disk."""
    monkeypatch.setattr(walks, "PAGE", 5)
    for number in range(20):
        kept.target.write(name_with("d1", "d2", number=number), b"x", pending=False)
    kept.target.take_map(map_of(2, 2))
    slept = list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(walks, "asyncio", SimpleNamespace(sleep=sleep, get_running_loop=asyncio.get_running_loop))
    placement = kept.target.ledger.placement
    assert await kept.upkeep._excess.remove(placement, kept.upkeep._has_deliveries)
    assert placement.__dict__["roles"] == {}
    assert len(slept) >= 4
    assert min(slept) > 0


async def test_rows_are_chosen_in_threads(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "PAGE", 3)
    objects, gone = [f"o{number}" for number in range(7)], [f"gone{number}" for number in range(4)]
    for name in objects + gone:
        kept.target.write(name, b"x", pending=False)
    for name in gone:
        kept.target.bury(name, pending=False)
    threads = set[threading.Thread]()

    def choose(page: list[walks.Row]) -> list[str]:
        threads.add(threading.current_thread())
        return [name for _, name, _ in page]

    target = kept.target
    pages = [page async for page in walks.walk(target.local.threads(target.disk), target.disk, choose)]
    assert [name for page in pages for name in page] == sorted(objects) + sorted(gone)
    assert max(map(len, pages)) == 3
    assert threading.main_thread() not in threads


async def test_nobody_walks_for_excess_rows_while_somebody_catches_up(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []

    async def remove(placement: Any, _: Any) -> bool:
        passes.append(placement.step)
        return True

    monkeypatch.setattr(kept.upkeep._excess, "remove", remove)
    kept.target.take_map(map_of(2, 2, out_of_sync_with={"d3": ("d2",)}))
    await kept.look()
    assert passes == []
    kept.target.take_map(map_of(3, 3))
    await kept.look()
    assert set(passes) == {3}


async def test_nothing_is_excess_while_a_replica_is_away_or_out_of_sync(kept: Kept) -> None:
    await kept.receive(item(NEITHER, V2, b"two", kind="adopt"))
    kept.peers.both_said(NEITHER, V2, b"two")
    away = ({"down": ("d3",)}, {"out_of_sync_with": {"d3": ("d2",)}}, {"out_of_sync_with": {"d2": ("d3",)}})
    for number, given in enumerate(away, 2):
        kept.target.take_map(map_of(number, number, **given))
        await kept.look()
        assert kept.target.version(NEITHER) == V2
    kept.target.take_map(map_of(9, 9))
    await kept.look()
    assert kept.target.version(NEITHER) is None


async def test_what_is_pending_or_in_a_hint_stays(kept: Kept) -> None:
    await kept.receive(item(NEITHER, V2, b"two"))
    kept.peers.both_said(NEITHER, V2, b"two", speaks=False)
    await kept.look(2)
    assert kept.target.version(NEITHER) == V2
    kept.peers.both_said(NEITHER, V2, b"two")
    await kept.look(3)
    assert kept.target.version(NEITHER) is None


async def test_a_map_that_changes_meanwhile_removes_nothing(kept: Kept) -> None:
    await kept.receive(item(NEITHER, V2, b"two", kind="adopt"))
    version = kept.target.local.map.version
    kept.peers.after_states = lambda _: kept.target.take_map(map_of(version + 1, 1, durability="relaxed"))
    kept.peers.both_said(NEITHER, V2, b"two")
    await kept.look()
    assert kept.target.version(NEITHER) == V2
