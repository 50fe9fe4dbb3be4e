"""Objects that lack copies are counted after each step, and what other disks lack."""

from __future__ import annotations

import asyncio

import pytest
from calls import before
from copied import BUCKET, Target, map_of, name_with
from harness import until

from dfc.placement.map import ClusterMap
from dfc.target.copies import walks
from dfc.target.copies.walks import CopyCounter
from dfc.target.disks import describe, hints_by_disk, numbers_of

WITH_2 = [name_with("d1", "d2", number=number) for number in range(7)]
WITH_3 = [name_with("d1", "d3", number=number) for number in range(4)]
OF_OTHERS = [name_with("d2", "d1", number=number) for number in range(3)]


@pytest.fixture
def counter(target: Target, monkeypatch: pytest.MonkeyPatch) -> CopyCounter:
    monkeypatch.setattr(walks, "PAGE", 3)
    for name in (*WITH_2, *WITH_3, *OF_OTHERS):
        target.write(name, b"x", pending=False)
    return CopyCounter(target.local, target.ledger, target.disk)


async def count(target: Target, counter: CopyCounter, new: ClusterMap | None = None) -> tuple[int, int, int, dict[str, int]]:
    if new is not None:
        target.take_map(new)
    await counter.look()
    found = target.local.counted["d1"]
    return found.step, found.one_left, found.missing, dict(found.hints)


async def test_nothing_is_missing_while_all_are_up(target: Target, counter: CopyCounter) -> None:
    assert await count(target, counter) == (1, 0, 0, {})


async def test_a_target_is_away(target: Target, counter: CopyCounter) -> None:
    """This disk counts its own names, and those that it decides about while the first replica is away."""
    assert await count(target, counter, map_of(2, 2, down=("d2",))) == (2, 10, 10, {})
    assert await count(target, counter, map_of(3, 3, down=("d3",))) == (3, 4, 4, {})
    assert await count(target, counter, map_of(4, 4)) == (4, 0, 0, {})


async def test_what_was_written_meanwhile_has_its_copies(target: Target, counter: CopyCounter) -> None:
    target.take_map(map_of(2, 2, down=("d2",)))
    target.hint("d2", *WITH_2[:5])
    assert await count(target, counter) == (2, 5, 5, {"d2": 5})
    # It is back, and lacks these five.
    assert await count(target, counter, map_of(3, 3, out_of_sync_with={"d2": ("d1",)})) == (3, 5, 5, {"d2": 5})


async def test_two_of_three_copies(target: Target, counter: CopyCounter) -> None:
    assert await count(target, counter, map_of(2, 2, copies=3, down=("d2",))) == (2, 0, 14, {})
    assert await count(target, counter, map_of(3, 3, copies=3, down=("d2", "d3"))) == (3, 14, 14, {})


async def test_one_copy_is_enough_for_a_bucket_that_wants_one(target: Target, counter: CopyCounter) -> None:
    assert await count(target, counter, map_of(2, 2, copies=1, down=("d2",))) == (2, 0, 0, {})
    assert await count(target, counter, map_of(3, 3, copies=1, written=2, wanted=2, down=("d2",))) == (3, 0, 0, {})


async def test_it_is_not_counted_again_at_once(target: Target, counter: CopyCounter, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await count(target, counter, map_of(2, 2, down=("d2",))))[1] == 10
    target.disk.delete(BUCKET, WITH_2[0])
    assert (await count(target, counter))[1] == 10
    monkeypatch.setattr(counter, "_again_s", 0.0)
    assert (await count(target, counter))[1] == 9


async def test_a_step_in_the_middle(target: Target, counter: CopyCounter) -> None:
    """What was counted for an older step is nothing."""
    before(counter, "_count_page", lambda *_: target.take_map(map_of(3, 3, down=("d3",))))
    target.take_map(map_of(2, 2, down=("d2",)))
    await counter.look()
    assert "d1" not in target.local.counted
    assert await count(target, counter) == (3, 4, 4, {})


async def test_it_runs_until_cancelled(target: Target, counter: CopyCounter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "LOOK_S", 0.001)
    task = asyncio.create_task(counter.run())
    await until(lambda: "d1" in target.local.counted)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()


async def test_a_heartbeat_says_what_was_counted(target: Target, counter: CopyCounter) -> None:
    local = target.local
    reports = await local.reports()
    (numbers,) = numbers_of(reports, local.map, local.counted)
    assert (numbers.id, numbers.counted_step, numbers.alone, numbers.first) == ("d1", 0, 0, 14)
    target.hint("d2", WITH_2[0])
    target.hint("d3", *WITH_2[:2])
    await count(target, counter, map_of(2, 2, down=("d2",)))
    (numbers,) = numbers_of(reports, local.map, local.counted)
    assert (numbers.counted_step, numbers.one_left, numbers.missing) == (2, 9, 9)
    assert hints_by_disk(local.counted) == {"d3": 2, "d2": 1}
    local.take_map(map_of(3, 3, copies=1))
    (numbers,) = numbers_of(reports, local.map, local.counted)
    assert (numbers.alone, numbers.first, numbers.is_full, numbers.orphan_alarm) == (14, 0, False, False)
    assert [entry.id for entry in describe(reports, local.map, "t1")] == ["d1"]
