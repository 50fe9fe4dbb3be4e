"""The state as a proxy shows it: since when, what is being done, and the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from harness import until
from memory_registry import MemoryStore
from registering import said
from stepped import Proxy, doing

from dfc.placement.map import DiskEntry
from dfc.proxy import duties as steps_module
from dfc.proxy import status as watch_module
from dfc.proxy.status import StateWatch
from dfc.registry.changes import weigh_disks
from dfc.registry.messages import CleanReport, DiskNumbers


class Watched(Proxy):
    """The coordinator of three targets with a disk each, whose wall clock is its only one."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), expected=3, default_copies=2)
        self.seconds = Proxy.wall_s
        self.watch = StateWatch(
            self.cluster, self.steps, "p1", self.registry, clock_s=lambda: self.seconds, wall_s=lambda: self.seconds
        )

    @property
    def wall_s(self) -> float:
        return self.seconds

    async def hear(self, *numbers: int, hints: dict[str, int] | None = None, **counted: int) -> None:
        for number in numbers or (0, 1, 2):
            disk, known = f"d{number}", self.told.get(f"t{number}")
            told = DiskNumbers(**{"id": disk, "first": 10, "counted_step": known.step if known else 0, **counted})
            entry = DiskEntry(id=disk, weight=1.0, capacity=100, incarnation="first")
            await self.beat(number, (entry,), numbers=(told,), hints=hints or {})

    async def pass_time(self, seconds: float) -> None:
        self.seconds += seconds
        await asyncio.sleep(0.01)

    async def codes(self) -> list[str]:
        await self.pass_time(1)
        return [each.code for each in (await self.watch.look()).problems]

    def metrics(self) -> dict[str, float]:
        return {
            sample.name + "".join(sample.labels.values()): sample.value
            for family in self.watch.families()
            for sample in family.samples
        }


@pytest.fixture
async def watched(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    monkeypatch.setattr(steps_module, "LOOK_S", 0.001)
    monkeypatch.setattr(steps_module, "UP_WAIT_S", 0.05)
    found = Watched()
    async with doing(found.registry, found.steps.run, found.cluster.push_maps, office="coordinator"):
        await until(lambda: found.steps.leads)
        await found.hear()
        await found.cluster.bucket_for_write("b")
        await found.hear()
        await found.hear()
        yield found
    await found.cluster.close()


async def lose_t2(watched: Watched) -> None:
    """Silent until it is marked down; the others go on."""
    for _ in range(12):
        await watched.pass_time(1)
        await watched.hear(0, 1)
    await until(lambda: watched.states() == ["up", "up", "down"])
    await watched.hear(0, 1)
    await watched.hear(0, 1, one_left=3, missing=3)


async def test_all_is_well(watched: Watched) -> None:
    state = await watched.watch.look()
    assert (state.health, state.problems, state.out_of_sync, state.raising) == ("ok", (), (), ())
    assert (state.coordinator, state.registry, state.step) == ("p1", "embedded", watched.cluster.map.step)
    found = watched.metrics()
    assert (found["dfc_coordinator"], found["dfc_problemscritical"], found["dfc_objects_one_replica_left"]) == (1, 0, 0)
    assert found["dfc_heartbeat_age_secondst1"] == found["dfc_clock_ahead_secondst1"] == 0


async def test_a_target_is_lost_and_comes_back(watched: Watched) -> None:
    await lose_t2(watched)
    assert await watched.codes() == ["objects_one_replica_left", "target_down"]
    state = await watched.watch.look()
    assert (state.health, state.copies.one_left, state.copies.missing, state.copies.estimated) == ("degraded", 6, 6, False)
    down = state.problems[1]
    assert (down.subject, down.severity, down.docs) == ("t2", "warning", "docs/operations.md#target_down")
    assert down.since == "2023-11-14T22:13:20.000Z", "its last heartbeat"
    assert state.problems[0].since > down.since
    found = watched.metrics()
    assert (found["dfc_problemscritical"], found["dfc_problemswarning"], found["dfc_objects_one_replica_left"]) == (1, 1, 6)
    await watched.hear(2)
    await until(lambda: watched.states()[2] == "up")
    await watched.hear(hints={"d2": 4})
    await watched.hear(hints={"d2": 4})
    assert await watched.codes() == ["disk_out_of_sync"]
    state = await watched.watch.look()
    (disk_out,) = state.out_of_sync
    assert (disk_out.disk, disk_out.node, disk_out.out_of_sync_with, disk_out.hints) == ("d2", "t2", ("d0", "d1"), 12)
    assert disk_out.since == state.problems[0].since
    assert watched.metrics()["dfc_disks_out_of_sync"] == 1
    step = watched.cluster.map.step
    for disk in ("d0", "d1"):
        watched.steps.report_clean(CleanReport(disk=disk, caught_up="d2", step=step))
    await until(lambda: not watched.cluster.map.node("t2").disks[0].out_of_sync_with)  # type: ignore[union-attr]
    await watched.hear()
    assert await watched.codes() == []
    assert (await watched.watch.look()).health == "ok"


async def test_since_when(watched: Watched) -> None:
    """A problem keeps its time while it lasts, and begins anew when it comes back."""
    seen = []
    for age_s in (4, 1, 0, 4):
        await watched.pass_time(age_s)
        if not age_s:
            await watched.hear()
        await watched.pass_time(1)
        seen.append([each.since for each in (await watched.watch.look()).problems if each.subject == "t1"])
    assert seen[0] == seen[1] != []
    assert seen[2] == []
    assert seen[3] > seen[1]


async def test_a_step_that_a_target_does_not_acknowledge(watched: Watched) -> None:
    await lose_t2(watched)
    watched.deaf.add("t0")
    await watched.hear(2)
    for _ in range(7):
        await watched.pass_time(1)
        await watched.hear(1, 2)
        watched.cluster._heartbeats.take(said("t0", ("d0",), numbers=(), step=0), 1)
    state = await watched.watch.look()
    assert ("step_unacknowledged", "t0") in [(each.code, each.subject) for each in state.problems]
    assert watched.metrics()["dfc_step_waits_for_targets"] == 1


async def test_copies_being_made(watched: Watched) -> None:
    await watched.hear()
    bucket = watched.cluster.bucket("b")
    await watched.steps.change_copies(bucket.id, 3)
    await watched.hear()
    await watched.hear()
    watched.steps.report_raised("d1", bucket.id, 3, watched.cluster.map.step)
    assert await watched.codes() == ["copies_raising"]
    state = await watched.watch.look()
    (raised,) = state.raising
    assert (raised.bucket, raised.copies, raised.copies_wanted, raised.disks_done, raised.disks) == ("b", 2, 3, 1, 3)
    assert state.health == "ok"


async def test_weights_being_changed(watched: Watched) -> None:
    await watched.cluster.change(weigh_disks(["d1"], 0.5))
    await until(lambda: watched.cluster.map.is_moving)
    await watched.hear()
    await watched.pass_time(1)
    move = (await watched.watch.look()).rebalance
    assert (move.disks_weighed, move.disks_in, move.disks_out, move.disks_lost) == (("d1",), (), (), ())


async def test_without_a_coordinator(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(watched.steps), "leads", property(lambda _self: False))
    await watched.pass_time(1)
    state = await watched.watch.look()
    assert (state.health, state.coordinator, state.problems[0].code) == ("read_only", None, "no_coordinator")
    assert watched.metrics()["dfc_coordinator"] == 0


async def test_what_a_target_said_is_remembered_while_it_starts_and_leaves(watched: Watched) -> None:
    for flags in ({"leaving": True}, {"starting": True}):
        watched.cluster._heartbeats.take(said("t2", ("d2",), **flags), 1)
        assert [each.first for each in watched.cluster.heard()["t2"].heartbeat.numbers] == [10]


async def test_it_watches_by_itself(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "WATCH_S", 0.001)
    assert [each.name for each in watched.watch.families()] == ["dfc_coordinator"]  # the rest is not known yet
    await watched.watch.stop()
    watched.watch.start()
    await until(lambda: len(watched.metrics()) > 1)
    await watched.watch.stop()
