"""Two targets compare what they have: with real disks, and messages that travel encoded."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from calls import raising
from copied import BUCKET, V1, V2, Target, map_of
from harness import until
from pairs import BURIED, MISSING, NEWER, OLDER, OTHER, OWN, THEIRS, UNKNOWN, Two

from dfc.errors import StorageFailed
from dfc.placement.map import LayoutEntry, SliceRun
from dfc.storage.layout import ORPHANS
from dfc.target.copies import answers, compare
from dfc.target.copies.answers import DigestTables
from dfc.target.copies.messages import ASIDE_PATH, DIGESTS_PATH, LOOKS_PATH


def lose(target: Target, name: str) -> None:
    assert target.disk.copies.remove_excess([(BUCKET, name, target.version(name))]) == 1


async def test_what_is_alike_is_compared_by_digests_alone(two: Two) -> None:
    found = await two.compare()
    assert (found.rows, found.differing, found.not_compared) == (len(OWN), 0, "")
    assert set(two.network.asked) == {DIGESTS_PATH}
    assert two.one.disk.parts.stats.compared_rows == len(OWN)


async def test_each_difference_is_found_and_repaired_from_the_primary(two: Two) -> None:
    lose(two.two, MISSING)
    lose(two.two, OLDER)
    two.put(two.two, OLDER, "05" + V1[2:], b"older")
    two.put(two.one, BURIED, V2, None)
    lose(two.two, THEIRS[0])  # d2 is the primary of that
    found = await two.compare()
    assert two.found() == {MISSING: "missing", OLDER: "missing", BURIED: "missing"}
    assert two.one.hints("d2") == sorted([MISSING, OLDER, BURIED])
    assert (found.differing, found.under_way, found.repaired, found.alarms) == (3, 3, 0, 0)
    assert two.one.version(OLDER) == V1
    stats = two.one.disk.parts.stats
    assert (stats.divergences, stats.divergences_repaired, stats.divergence_alarms) == (3, 3, 0)
    two.check.found.clear()
    assert (await two.compare()).differing == 0, "it is noted"


async def test_repaired_is_what_has_been_delivered(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "DELIVERED_S", 30.0)
    lose(two.two, MISSING)
    running = asyncio.create_task(two.compare())
    await until(lambda: two.one.hints("d2") == [MISSING])
    two.put(two.two, MISSING, V1, MISSING.encode())
    two.one.disk.copies.drop_hints([("d2", BUCKET, MISSING, V1)])
    found = await running
    assert (found.differing, found.repaired, found.under_way) == (1, 1, 0)


async def test_what_contradicts_the_primary_is_left_as_it_is(two: Two) -> None:
    two.put(two.two, NEWER, V2, b"newer")
    lose(two.two, OTHER)
    two.put(two.two, OTHER, V1, b"of the same version")
    found = await two.compare()
    assert two.found() == {NEWER: "alarm", OTHER: "alarm"}
    assert (found.differing, found.alarms) == (2, 2)
    assert (two.two.version(NEWER), two.one.hints("d2")) == (V2, [])
    assert two.two.body(OTHER) == b"of the same version"


async def test_what_the_primary_does_not_know_is_set_aside(two: Two, caplog: pytest.LogCaptureFixture) -> None:
    lose(two.one, UNKNOWN)
    found = await two.compare()
    assert (two.found(), found.set_aside) == ({UNKNOWN: "set aside"}, 1)
    assert two.two.version(UNKNOWN) is None
    [kept] = Path(two.two.disk.path, ORPHANS, BUCKET).iterdir()
    assert kept.read_bytes().startswith(UNKNOWN.encode())
    assert str(kept) in caplog.text
    assert two.two.disk.parts.stats.set_aside_rows == 1


async def test_nothing_is_set_aside_if_the_primary_knows_it_when_the_replica_asks(two: Two) -> None:
    lose(two.one, UNKNOWN)

    put = partial(two.put, two.one, UNKNOWN, V1, UNKNOWN.encode())
    two.network.before = lambda path: put() if path == ASIDE_PATH else None
    assert ((await two.compare()).set_aside, two.two.version(UNKNOWN)) == (0, V1)


async def test_a_primary_that_has_lost_many_costs_nothing(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the copies elsewhere are the only ones."""
    monkeypatch.setattr(compare, "SET_ASIDE_MAX", 3)
    monkeypatch.setattr(compare, "PAGE", 3)  # names that are seen to together
    for name in OWN[:7]:
        lose(two.one, name)
    found = await two.compare()
    assert (found.set_aside, found.alarms, found.differing) == (0, 7, 7)
    assert all(two.two.version(name) == V1 for name in OWN)


async def test_many_more_at_the_replica_than_here_are_compared_range_by_range(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "RANGE_ROWS", 3)
    monkeypatch.setattr(compare, "RANGE_ROWS", 4)
    monkeypatch.setattr(compare, "LOOKED_AT_ONCE", 2)
    lost = sorted(OWN)[3:20]
    for name in lost:
        lose(two.one, name)
    assert ((await two.compare()).set_aside, sorted(two.found())) == (len(lost), lost)


@pytest.mark.parametrize("where", ["here", "there"])
async def test_what_is_pending_is_no_difference(two: Two, where: str) -> None:
    name = OWN[8]
    if where == "here":
        two.one.write(name, b"new")
    else:
        lose(two.two, name)
        two.two.write(name, b"new")
    assert (await two.compare()).differing == 0
    assert (two.found(), two.one.hints("d2")) == ({}, [])


async def test_what_changes_between_two_looks_is_no_difference(two: Two) -> None:
    lose(two.two, MISSING)
    looks = list[str]()

    def written(path: str) -> None:
        looks.extend([path] if path == LOOKS_PATH else [])
        if len(looks) == 2:
            two.put(two.two, MISSING, V1, MISSING.encode())

    two.network.before = written
    assert (await two.compare()).differing == 0
    assert len(looks) == 2


async def test_a_disk_that_does_not_answer_is_not_compared(two: Two) -> None:
    two.network.silent = {"d2"}
    found = await two.compare()
    assert (found.rows, found.not_compared) == (0, "the target of disk d2 does not answer")


async def test_a_disk_that_falls_silent_in_the_middle_is_not_compared(two: Two) -> None:
    lose(two.two, MISSING)
    two.network.before = lambda path: two.network.silent.update({"d2"} if path == LOOKS_PATH else ())
    found = await two.compare()
    assert (found.rows, found.differing, found.not_compared) == (0, 0, "the target of disk d2 does not answer")


async def test_a_disk_that_cannot_be_read_is_not_compared(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(two.two.disk.copies), "compared", raising(StorageFailed("no")))
    assert (await two.compare()).not_compared == "no"


async def test_nothing_is_compared_while_objects_move(two: Two) -> None:
    layouts = (LayoutEntry(number=1, disks=("d1", "d2", "d3")), LayoutEntry(number=2, disks=("d1", "d2")))
    runs = (SliceRun(first=0, at=1, to=2, phase="copying"),)
    two.take(msgspec.structs.replace(map_of(2, 2), layouts=layouts, slices=runs))
    assert (await two.compare()).not_compared == "objects are being moved"
    assert two.network.asked == []


@pytest.mark.parametrize("when", ["before", "between the looks", "when the replica is asked"])
async def test_rows_of_a_bucket_that_is_being_deleted_are_left_alone(two: Two, when: str) -> None:
    """Each disk removes its own: one may be done before the other."""
    lose(two.one, UNKNOWN)
    deleting = map_of(2, 1, state="deleting")
    asked = list[str]()

    def delete(path: str) -> None:
        asked.append(path)
        if (when, path, asked.count(path)) in (
            ("before", DIGESTS_PATH, 2),
            ("between the looks", LOOKS_PATH, 2),
            ("when the replica is asked", ASIDE_PATH, 1),
        ):
            two.take(deleting)

    two.network.before = delete
    found = await two.compare()
    assert (found.set_aside, found.alarms, two.two.version(UNKNOWN)) == (0, 0, V1)
    assert when == "when the replica is asked" or ASIDE_PATH not in asked


@pytest.mark.parametrize("when", [LOOKS_PATH, ASIDE_PATH])
async def test_a_step_has_the_pair_begin_again(two: Two, when: str) -> None:
    lose(two.two, MISSING)
    lose(two.one, UNKNOWN)
    two.put(two.two, NEWER, V2, b"newer")

    def step(path: str) -> None:
        if path == when:
            two.network.before = None
            two.take(map_of(2, 2))

    two.network.before = step
    found = await two.compare()
    assert (found.rows, found.differing, found.not_compared) == (len(OWN) - 1, 3, "")
    assert (found.under_way, found.alarms, found.set_aside) == (1, 1, 1), "each is counted once"
    assert two.found() == {MISSING: "missing", NEWER: "alarm", UNKNOWN: "set aside"}
    assert len(two.check.found) == 3
    two.take(map_of(3, 3, out_of_sync_with={"d2": ("d3",)}))
    assert "catching up" in (await two.compare()).not_compared


async def test_what_was_found_by_an_older_map_does_not_count(two: Two) -> None:
    """Even if the replica has not heard of the newer one."""
    steps: list[int] = []

    def step(path: str, told: Any) -> None:
        if path == DIGESTS_PATH and told.folds and "d1" in two.tables["d1"]._made:  # both have read their rows
            steps.append(two.one.local.map.step + 1)
            two.one.take_map(map_of(steps[-1], steps[-1]))

    two.network.after = step
    assert (await two.compare()).not_compared == "the cluster map changes again and again"
    assert len(steps) == 1  # the replica does not know of it, and the two do not agree from then on


async def test_a_step_that_only_the_replica_knows_is_waited_for(two: Two) -> None:
    two.two.take_map(map_of(2, 2))
    asyncio.get_running_loop().call_later(0.05, two.one.local.take_map, map_of(2, 2))
    assert (await two.compare()).not_compared == ""


async def test_one_walk_serves_all_that_ask(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    walks = list[str]()
    run = DigestTables._run

    async def counted(self: Any, disk: Any, walk: Any) -> bool:
        walks.append(disk.id)
        return await run(self, disk, walk)

    monkeypatch.setattr(DigestTables, "_run", counted)
    since_s = asyncio.get_running_loop().time()
    monkeypatch.setattr(compare, "SLACK_S", 60.0)
    await asyncio.gather(*(two.comparison().compare(since_s) for _ in range(3)))
    assert sorted(walks) == ["d1", "d2"]
    monkeypatch.setattr(compare, "SLACK_S", 0.2)
    await two.compare()
    assert sorted(walks) == ["d1", "d1", "d2", "d2"], "what was made before is not what there is now"


async def test_a_walk_that_nobody_asks_for_any_more_is_given_up(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "ABANDON_S", -1.0)
    table, placement = two.tables["d1"], two.one.ledger.placement
    assert table.look(two.one.disk, placement, frozenset(), 0.0) is None
    assert await table._walks["d1"].task is False
    assert table.look(two.one.disk, placement, frozenset(), 0.0) is None
