"""Slices that move: what a disk notes for their future replicas, when it reports them, and what is left afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from copied import BUCKET, V1, key_of, map_of
from harness import until
from kept import Kept, reports
from msgspec.structs import replace

from dfc.placement.map import ClusterMap, LayoutEntry, RebalanceEntry, SliceRun
from dfc.placement.mapped import placement_of
from dfc.placement.roles import SLICES, Phase, Roles, roles
from dfc.registry.messages import CleanReport, RaisedReport, SlicesReport
from dfc.storage.rows import NO_REPLICA, later
from dfc.target.copies import deliveries
from dfc.target.copies import walks as coming
from dfc.target.copies.deliveries import MovePace, Urgency, urgency
from dfc.target.copies.ledger import has_several

NAMES = [f"o{number}" for number in range(200)]


def moving(version: int, phase: Phase = "copying", first: int = 0, **given: Any) -> ClusterMap:
    """Objects are on d1 and d2, and move to all three disks. Slices before `first` have got there."""
    runs = [SliceRun(first=0, at=2)] if first else []
    runs += [SliceRun(first=first, at=1, to=2, phase=phase)] if phase != "done" else [SliceRun(first=first, at=1)]
    layouts = (LayoutEntry(number=1, disks=("d1", "d2")), LayoutEntry(number=2, disks=("d1", "d2", "d3")))
    found = map_of(version, version, **{"copies": 1, **given})
    buckets = tuple(replace(bucket, is_moving=phase != "done") for bucket in found.buckets)
    return replace(found, layouts=layouts, slices=tuple(runs), buckets=buckets)


def moved(version: int) -> ClusterMap:
    """All have got there."""
    layouts = (LayoutEntry(number=2, disks=("d1", "d2", "d3")),)
    return replace(map_of(version, version, copies=1), layouts=layouts, slices=(SliceRun(first=0, at=2),))


def primary(cluster_map: ClusterMap, name: str) -> str | None:
    return roles(placement_of(cluster_map), BUCKET, name).primary


@pytest.fixture
def filled(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> Kept:
    """Disk d1 has its objects, each with one copy; nothing moves yet."""
    monkeypatch.setattr(coming, "REPORT_S", 0)
    kept.target.take_map(moving(2, "done"))
    for name in NAMES:
        if primary(kept.target.local.map, name) == "d1":
            kept.target.write(name, b"x", pending=False)
    return kept


def leaving(kept: Kept) -> list[str]:
    """The objects here that d3 is to have."""
    return sorted(name for name in NAMES if kept.target.version(name) and primary(moved(9), name) == "d3")


async def test_future_replicas_get_what_they_lack(filled: Kept) -> None:
    names = leaving(filled)
    assert 10 < len(names) < 60
    filled.target.take_map(moving(3))
    await filled.look(2)
    assert sorted(each.name for each in filled.peers.sent) == names
    assert {(each.kind, each.to) for each in filled.peers.sent} == {("adopt", "d3")}
    assert filled.target.hints("d3") == []
    assert SlicesReport(disk="d1", slices=list(range(SLICES)), readiness="copied", to=2, step=3) in reports(filled)


def limited(version: int, rebalance: RebalanceEntry, **given: Any) -> ClusterMap:
    return replace(moving(version, **given), rebalance=rebalance)


async def test_while_moves_are_paused_nothing_is_sent_to_future_replicas(filled: Kept) -> None:
    names, paused = leaving(filled), RebalanceEntry(paused=True)
    filled.target.take_map(limited(3, paused))
    await filled.look(2)
    assert (filled.peers.sent, filled.target.hints("d3")) == ([], names)


async def test_a_disk_is_not_out_of_sync_for_want_of_what_moves_to_it(filled: Kept) -> None:
    """Otherwise one that is restarted in the middle of a move would not be read before that is over. Here it is paused. What
    the disk lacks as a replica does keep it behind, and is not paused; and so does everything when slices are handed over, as
    it may be a member by then."""
    names, paused = leaving(filled), RebalanceEntry(paused=True)
    filled.target.take_map(limited(3, paused, out_of_sync_with={"d3": ("d1",)}))
    await filled.look(2)
    assert (filled.peers.sent, filled.target.hints("d3")) == ([], names)
    assert CleanReport(disk="d1", caught_up="d3", step=3) in reports(filled)
    filled.target.take_map(limited(4, paused, out_of_sync_with={"d2": ("d1",)}))
    replica = next(name for name in NAMES if primary(filled.target.local.map, name) == "d2")
    filled.target.write(replica, b"x", pending=False)
    filled.target.hint("d2", replica)
    filled.peers.silent = {"d2"}
    await filled.look(2)
    assert CleanReport(disk="d1", caught_up="d2", step=4) not in reports(filled)
    slices = (SliceRun(first=0, at=1, to=2, phase="copying"), SliceRun(first=255, at=1, to=2, phase="moving"))
    filled.target.take_map(replace(limited(5, paused, out_of_sync_with={"d3": ("d1",)}), slices=slices))
    filled.peers.silent = {"d2", "d3"}
    await filled.look(2)
    assert CleanReport(disk="d1", caught_up="d3", step=5) not in reports(filled)
    filled.peers.silent = {"d2"}
    await filled.look(2)
    assert {each.name for each in filled.peers.sent if each.to == "d3"} == set(names)
    await filled.look(2)
    assert CleanReport(disk="d1", caught_up="d3", step=5) in reports(filled)


async def test_a_move_goes_on_when_it_is_resumed(filled: Kept) -> None:
    filled.target.take_map(limited(3, RebalanceEntry(paused=True)))
    await filled.look(2)
    assert filled.peers.sent == []
    filled.target.take_map(replace(limited(4, RebalanceEntry()), step=3))
    await filled.look(2)
    assert sorted(each.name for each in filled.peers.sent) == leaving(filled)


async def test_objects_move_no_faster_than_they_may(filled: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them has one byte. What is put off goes later, and is noted until then."""
    monkeypatch.setattr(deliveries, "LOOK_S", 0.001)
    names, now_s = leaving(filled), 0.0
    filled.upkeep._deliveries._pace = MovePace(lambda: filled.target.local.map.rebalance.rate_bytes_per_s, lambda: now_s)
    filled.target.take_map(limited(3, RebalanceEntry(rate_bytes_per_s=4)))
    await filled.upkeep._coming.plan()
    delivering = asyncio.create_task(filled.upkeep._deliveries.deliver(later("d3")))
    for second in range(1, 4):
        await until(lambda: len(filled.peers.sent) >= 4 * second)  # noqa: B023
        await asyncio.sleep(0.05)
        assert len(filled.peers.sent) == 4 * second
        assert len(filled.target.hints("d3")) == len(names) - 4 * second
        now_s += 1.0
    filled.target.take_map(replace(limited(4, RebalanceEntry(rate_bytes_per_s=0)), step=3))
    async with asyncio.timeout(20):
        await delivering
        await filled.look(2)  # what was on its way when the map changed stays noted, and goes once more
    assert (sorted({each.name for each in filled.peers.sent}), filled.target.hints("d3")) == (names, [])


async def test_what_is_written_while_objects_move_is_not_limited(filled: Kept) -> None:
    """Otherwise a move would not end while writers are faster."""
    filled.upkeep._deliveries._pace = MovePace(lambda: 1, lambda: 0.0)
    filled.target.take_map(moving(3))
    filled.upkeep._deliveries._moving_since_us(placement_of(filled.target.local.map))
    names = leaving(filled)
    for name in names[:20]:
        filled.target.write(name, b"y", pending=False)
    await filled.upkeep._coming.plan()
    delivering = asyncio.create_task(filled.upkeep._deliveries.deliver(later("d3")))
    await until(lambda: set(names[:20]) <= {each.name for each in filled.peers.sent})
    assert len(filled.peers.sent) == 21, "and one of the others"
    delivering.cancel()


async def test_more_copies_do_not_wait_for_what_moves(filled: Kept) -> None:
    """Which may be paused."""
    filled.target.take_map(limited(3, RebalanceEntry(paused=True), copies=1, written=2, wanted=2))
    await filled.look(3)
    assert RaisedReport(disk="d1", bucket_id=BUCKET, copies=2, step=3) in reports(filled)
    assert filled.target.hints("d3") != []


def restoring(version: int) -> ClusterMap:
    """The same, and d2 is given up."""
    found = moving(version, down=("d2",))
    return replace(found, layouts=(found.layouts[0], replace(found.layouts[1], gone=("d2",))))


async def test_copies_that_were_lost_do_not_wait_for_what_moves(filled: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many other notes come before theirs."""
    monkeypatch.setattr(deliveries, "PAGE", 5)
    monkeypatch.setattr(deliveries, "LEFT_MAX", 8)
    monkeypatch.setattr(deliveries, "LOOK_S", 0.001)
    filled.target.take_map(restoring(3))
    names = leaving(filled)
    urgent = dict.fromkeys(names[-10:], Urgency.ONE_LEFT)
    say_urgency(monkeypatch, filled, urgent)
    filled.upkeep._deliveries._pace = MovePace(lambda: 1, lambda: time.monotonic() / 100)
    filled.target.hint(later("d3"), *names)
    delivering = asyncio.create_task(filled.upkeep._deliveries.deliver(later("d3")))
    await until(lambda: set(names[-10:]) <= {each.name for each in filled.peers.sent})
    assert len(filled.peers.sent) < 20, "and some of the others, one in a hundred seconds"
    delivering.cancel()


def say_urgency(monkeypatch: pytest.MonkeyPatch, kept: Kept, of: dict[str, Urgency]) -> None:
    """Let these names be urgent; the others only move."""
    placement = placement_of(kept.target.local.map)
    found = {name: roles(placement, BUCKET, name)._replace() for name in NAMES}  # each an object of its own
    names = {id(each): name for name, each in found.items()}
    monkeypatch.setattr(kept.target.ledger, "roles", lambda _, name: found[name])
    monkeypatch.setattr(deliveries, "urgency", lambda _, each: of.get(names[id(each)], Urgency.MOVES))


async def test_objects_with_one_copy_left_come_first(filled: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then those that have more. Four of them may be sent in a second."""
    monkeypatch.setattr(deliveries, "PAGE", 5)
    monkeypatch.setattr(deliveries, "LEFT_MAX", 8)
    monkeypatch.setattr(deliveries, "LOOK_S", 0.001)
    monkeypatch.setattr(deliveries, "MOVE_BYTES_PER_S", 1)
    filled.target.take_map(restoring(3))
    names, now_s = leaving(filled)[:28], 0.0
    say_urgency(monkeypatch, filled, {name: Urgency.COPY_LOST if name in names[:20] else Urgency.ONE_LEFT for name in names})
    limit, waiting = MovePace(lambda: 1, lambda: now_s), list[bool]()
    until_free = limit.until_free

    async def watched(*, urgent: bool) -> None:
        waiting.append(urgent)
        await until_free(urgent=urgent)
        waiting.clear()

    monkeypatch.setattr(limit, "until_free", watched)
    filled.upkeep._deliveries._pace = limit
    filled.target.hint(later("d3"), *names)

    async def deliver() -> None:
        while len(filled.peers.sent) < len(names):
            await filled.upkeep._deliveries.deliver(later("d3"))

    delivering = asyncio.create_task(deliver())
    for second in range(1, 7):
        await until(lambda: len(filled.peers.sent) >= 4 * second)  # noqa: B023
        await until(lambda: bool(waiting))
        now_s += 1.0
    await delivering
    sent = [each.name for each in filled.peers.sent]
    assert (sorted(sent[:4]), sorted(sent[4:12]), sorted(sent)) == (names[:4], names[20:], names), "those after the first look"


async def test_the_others_wait_while_objects_with_one_copy_left_do(filled: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if there is time for them before all notes have been looked at."""
    filled.target.take_map(restoring(3))
    names = leaving(filled)
    say_urgency(monkeypatch, filled, dict.fromkeys(names, Urgency.COPY_LOST))
    hints = [(BUCKET, name) for name in names]
    batch = await filled.upkeep._deliveries._deliver(later("d3"), hints, Urgency.ONE_LEFT)
    assert (batch.put_off, filled.peers.sent) == ([(note, Urgency.COPY_LOST) for note in hints], [])
    batch = await filled.upkeep._deliveries._deliver(later("d3"), hints, Urgency.COPY_LOST)
    assert (batch.put_off, len(filled.peers.sent)) == ([], len(names))


@pytest.mark.parametrize(("replicas", "found"), [(1, Urgency.ONE_LEFT), (2, Urgency.ONE_LEFT), (3, Urgency.COPY_LOST)])
def test_how_urgent_it_is_to_make_a_copy_anew(replicas: int, found: Urgency) -> None:
    placement = placement_of(restoring(3))
    lacking = Roles(("d2", "d1", "d4")[:replicas], (), "d1", (), (), ())
    assert urgency(placement, lacking) is found
    assert urgency(placement, lacking._replace(replicas=("d1", "d3"))) is Urgency.MOVES


async def test_what_keeps_a_disk_out_of_sync_is_not_limited(filled: Kept) -> None:
    """Also if the object only moves there by now: it was a member when that was noted."""
    filled.upkeep._deliveries._pace = MovePace(lambda: 1, lambda: 0.0)
    filled.target.take_map(moving(3, out_of_sync_with={"d3": ("d1",)}))
    names = leaving(filled)
    filled.target.hint("d3", *names)
    async with asyncio.timeout(20):
        await filled.upkeep._deliveries.deliver("d3")
    assert sorted(each.name for each in filled.peers.sent) == names


async def test_hints_do_not_rest_when_nothing_moves(filled: Kept) -> None:
    """A disk that was given up with them, and is back while moves are paused, cannot be cleared before they are gone."""
    filled.target.hint(later("d2"), *leaving(filled))
    filled.target.take_map(replace(moved(3), rebalance=RebalanceEntry(paused=True)))
    await filled.look(2)
    assert filled.target.hints("d2") == []


async def test_no_bytes_are_counted_of_what_has_got_there_before(filled: Kept) -> None:
    """After a restart all that is to move is noted once more."""
    names = leaving(filled)
    filled.upkeep._deliveries._pace = MovePace(lambda: 1, lambda: 0.0)
    filled.target.take_map(moving(3))
    await filled.upkeep._coming.plan()
    for name in names:
        filled.peers.said("d3", name, filled.target.version(name), b"x")
    async with asyncio.timeout(20):
        await filled.upkeep._deliveries.deliver(later("d3"))
    assert (filled.peers.sent, filled.target.hints("d3")) == ([], [])


async def test_slices_are_not_reported_while_anything_is_hinted(filled: Kept) -> None:
    names = leaving(filled)
    filled.peers.answers["d3"] = ["refused"] * 1000
    filled.target.take_map(moving(3))
    await filled.look(2)
    placement = placement_of(filled.target.local.map)
    hinted = {placement.slice_of(BUCKET, name) for name in names}
    (found,) = {tuple(report.slices) for report in reports(filled) if isinstance(report, SlicesReport)}
    assert set(found) == set(range(SLICES)) - hinted


async def test_slices_are_not_reported_while_a_write_is_on_its_way(filled: Kept) -> None:
    """It may have been decided before its future replicas were known."""
    filled.target.take_map(moving(3))
    filled.target.ledger.in_doubt.add(key_of("o1"))
    await filled.upkeep._coming.plan()
    filled.target.disk.copies.forget_disk("d3")
    filled.upkeep._peer_tasks.begin(("ready report",), filled.upkeep._coming.report_ready)
    await filled.upkeep._peer_tasks.idle(0.1)
    assert reports(filled) == []
    filled.target.ledger.free(key_of("o1"))
    await until(lambda: reports(filled) != [])


async def test_handing_over_needs_no_second_walk(filled: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    walks, walk = list[Any](), coming.walk_names
    monkeypatch.setattr(coming, "walk_names", lambda *given: walks.append(given) or walk(*given))
    filled.target.take_map(moving(3))
    await filled.look(2)
    for version, phase, first in ((4, "moving", 0), (5, "moved", 0), (6, "copying", 100)):
        filled.target.take_map(moving(version, phase, first))
        await filled.look()
    assert len(walks) == 1
    filled.target.take_map(moving(7, "copying", 100, out_of_sync_with={"d2": ("d1",)}))
    await filled.look()
    assert len(walks) == 2, "another disk may decide, whose notes are elsewhere"


async def test_a_walk_ends_when_objects_move_to_yet_another_layout(filled: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is for that."""
    looked, found = list[int](), moving(4)
    third = (found.layouts[0], LayoutEntry(number=3, disks=("d1", "d2", "d3")))
    to_third = replace(found, layouts=third, slices=(SliceRun(first=0, at=1, to=3, phase="copying"),))

    async def walk(*_: object) -> AsyncIterator[list[object]]:
        for page in range(5):
            looked.append(page)
            if looked == [0, 1]:
                filled.target.take_map(to_third)
            yield []

    monkeypatch.setattr(coming, "walk_names", walk)
    filled.target.take_map(moving(3))
    await filled.upkeep._coming.plan()
    assert (looked, filled.upkeep._coming.is_planned) == ([0, 1], False)
    await filled.upkeep._coming.plan()
    assert (len(looked), filled.upkeep._coming.is_planned) == (7, True)


@pytest.mark.parametrize("phase", ["moving", "moved"])
async def test_what_is_reported_in_each_phase(filled: Kept, phase: Phase) -> None:
    filled.target.take_map(moving(3, phase))
    await filled.look()
    expected = SlicesReport(disk="d1", slices=list(range(SLICES)), readiness="moved", to=2, step=3)
    found = [report for report in reports(filled) if isinstance(report, SlicesReport)]
    assert found == ([expected] if phase == "moving" else [])


async def test_rows_get_their_ranks_when_all_has_moved(filled: Kept) -> None:
    names, target = leaving(filled), filled.target
    for name in names:
        filled.peers.said("d3", name, None)
    target.take_map(moving(3, "moved"))
    assert has_several(target.ledger.placement)
    assert not target.ledger.is_ranked("d1")
    await filled.upkeep._rank()
    assert not target.ledger.is_ranked("d1"), "not while they move"
    target.take_map(moved(4))
    assert not target.ledger.is_ranked("d1")
    await filled.upkeep._rank()
    assert target.ledger.is_ranked("d1")
    ranks = {row.name: row.rank for row in target.disk.copies.rows()[0]}
    assert {name for name, rank in ranks.items() if rank == NO_REPLICA} == set(names)
    assert {rank for name, rank in ranks.items() if name not in names} == {0}
    assert target.disk.copies.ranked_layout == 2


async def test_what_has_moved_away_goes_when_its_replica_has_it(filled: Kept) -> None:
    names, target = leaving(filled), filled.target
    target.take_map(moving(3))
    await filled.look(2)
    target.take_map(moved(4))
    for name in names:
        filled.peers.said("d3", name, V1 if name == names[0] else target.version(name), b"x")
    await filled.upkeep._rank()
    await filled.look(2)
    assert leaving(filled) == names[:1], "its replica has an older one"
    assert len([name for name in NAMES if target.version(name)]) > 50, "what belongs here stays"
