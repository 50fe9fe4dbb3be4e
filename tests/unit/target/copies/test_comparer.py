"""When the disks of a target are compared with others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from copied import BUCKET, map_of
from harness import until
from pairs import Two

from dfc.replication.compare import CheckRequest
from dfc.target.copies import compare
from dfc.target.copies.compare import Comparer, PairComparison
from dfc.wire.status import CheckedPair


class Asked:
    """The comparer of target t1, whose comparisons are only noted."""

    def __init__(self, two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
        self.with_whom, self.not_compared, self.hold = list[str](), "", asyncio.Event()
        self.hold.set()

        class Noted(PairComparison):
            async def compare(pair_self, since_s: float) -> CheckedPair:
                self.with_whom.append(pair_self._replica)
                await self.hold.wait()
                pair_self.alarms[next(iter(pair_self._wanted), BUCKET)] += 1
                return CheckedPair(replica=pair_self._replica, rows=1, alarms=1, not_compared=self.not_compared)

        monkeypatch.setattr(compare, "PairComparison", Noted)
        self.comparer = Comparer(*two.compared_with())
        self.task = asyncio.create_task(self.comparer.run())


@pytest.fixture
async def asked(two: Two, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Asked]:
    made = Asked(two, monkeypatch)
    await asyncio.sleep(0.02)
    yield made
    made.task.cancel()
    await asyncio.gather(made.task, return_exceptions=True)


async def test_all_pairs_are_compared_when_asked(two: Two, asked: Asked) -> None:
    assert asked.comparer.status().check == ""
    assert asked.comparer.ask(CheckRequest("c1", 5)).disks[0].state == "waiting"
    await until(lambda: asked.comparer.status().disks[0].state == "done")
    assert (asked.with_whom, asked.comparer.status().check) == (["d2", "d3"], "c1")
    assert two.one.disk.parts.stats.divergence_alarms == 2
    asked.comparer.ask(CheckRequest("c1", 5))
    await asyncio.sleep(0.05)
    assert asked.with_whom == ["d2", "d3"], "it has done that"


async def test_what_is_asked_takes_the_place_of_what_is_under_way(asked: Asked) -> None:
    asked.hold.clear()
    asked.comparer.ask(CheckRequest("c1", 5))
    await until(lambda: asked.with_whom == ["d2"])
    asked.comparer.ask(CheckRequest("c2", 6))
    await until(lambda: asked.with_whom == ["d2", "d2"])
    asked.hold.set()
    await until(lambda: asked.comparer.status().disks[0].state == "done")
    assert (asked.with_whom, asked.comparer.status().check) == (["d2", "d2", "d3"], "c2")


async def test_a_disk_is_compared_after_it_was_scrubbed(two: Two, asked: Asked) -> None:
    await asyncio.sleep(0.05)
    assert asked.with_whom == []
    two.one.disk.parts.stats.scrub_finished_s = 1.0
    await until(lambda: asked.with_whom == ["d2", "d3"])


async def test_a_disk_that_has_come_back_in_doubt_is_compared_when_it_lacks_nothing(two: Two, asked: Asked) -> None:
    two.take(map_of(2, 2, out_of_sync_with={"d2": ("d1", "d3")}, compare={"d2": "again"}))
    await asyncio.sleep(0.05)
    assert asked.with_whom == []
    two.take(map_of(3, 3))
    await until(lambda: asked.with_whom == ["d2"])


async def test_a_pair_that_could_not_be_compared_is_tried_again(
    two: Two, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "RETRY_S", 0.0)
    asked.not_compared = "away"
    two.one.disk.parts.stats.scrub_finished_s = 1.0
    await until(lambda: len(asked.with_whom) > 4)
    asked.not_compared = ""
    await until(lambda: not asked.comparer._due)
    assert two.one.disk.parts.stats.divergence_alarms == 2


async def test_alarms_of_buckets_that_are_not_compared_stay(two: Two, asked: Asked) -> None:
    asked.comparer.ask(CheckRequest("c1", 5))
    await until(lambda: asked.comparer.status().disks[0].state == "done")
    asked.comparer.ask(CheckRequest("c2", 6, ("other",)))
    await until(lambda: asked.comparer.status().disks[0].state == "done")
    assert two.one.disk.parts.stats.divergence_alarms == 4
    asked.comparer.ask(CheckRequest("c3", 7))
    await until(lambda: asked.comparer.status().disks[0].state == "done")
    assert two.one.disk.parts.stats.divergence_alarms == 2, "of all buckets"
