"""The state as a proxy shows it: since when, what is being done, and the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from memory_registry import MemoryRegistry, MemoryStore
from registering import said
from registry_conformance import end, until

from dfc.placement.map import ClusterMap, DiskEntry
from dfc.proxy import duties as steps_module
from dfc.proxy import status as watch_module
from dfc.proxy.cluster import Cluster
from dfc.proxy.duties import Registrations, Steps
from dfc.proxy.heartbeats import Heartbeats
from dfc.proxy.status import StateWatch
from dfc.registry.changes import weigh_disks
from dfc.registry.messages import CleanReport, DiskNumbers, MapTaken

DOWN_S = 10.0


class Watched:
    """The coordinator of three targets with a disk each, that take what is pushed to them unless they are `deaf`."""

    def __init__(self) -> None:
        self.seconds = 1_700_000_000.0
        self.deaf: set[str] = set()
        self.told: dict[str, ClusterMap] = {}
        heartbeats = Heartbeats(wall_s=lambda: self.seconds, clock_s=lambda: self.seconds)
        self.registry = MemoryRegistry(MemoryStore())
        self.cluster = Cluster(
            self.registry, self, True, 3, heartbeats, lambda node, step: self.steps.acknowledged(node, step), default_copies=2
        )
        self.steps = Steps(self.cluster, DOWN_S)
        self.registrations = Registrations(self.cluster, self.steps, DOWN_S)
        self.watch = StateWatch(
            self.cluster, self.steps, "p1", self.registry, clock_s=lambda: self.seconds, wall_s=lambda: self.seconds
        )

    async def call(self, method, url, kind, *, body=None, headers=None):
        name = url.removeprefix("http://").split("/")[0]
        if name in self.deaf:
            await asyncio.Event().wait()
        self.told[name] = ClusterMap.decode(bytes(body))
        return MapTaken(self.told[name].version, self.told[name].step)

    async def beat(self, *numbers: int, hints: dict[str, int] | None = None, **counted: int) -> None:
        for number in numbers or (0, 1, 2):
            name, disk = f"t{number}", f"d{number}"
            known = self.told.get(name, ClusterMap(cluster_id="", version=0))
            told = DiskNumbers(**{"id": disk, "first": 10, "counted_step": known.step, **counted})
            entry = DiskEntry(id=disk, weight=1.0, capacity=100, incarnation="first")
            heartbeat = said(name, (entry,), url=f"http://{name}", numbers=(told,), hints=hints or {})
            answer = await self.registrations.register(
                type(heartbeat)(**{**{f: getattr(heartbeat, f) for f in heartbeat.__struct_fields__},
                                   "map_version": known.version, "step": known.step})
            )  # fmt: skip
            if answer.map is not None:
                self.told[name] = answer.map

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
    async with found.registry.elect("coordinator", "p1", 600) as lease:
        duties = [asyncio.create_task(duty(lease)) for duty in (found.steps.run, found.cluster.push_maps)]
        await until(lambda: found.steps.leads)
        await found.beat()
        await found.cluster.bucket_for_write("b")
        await found.beat()
        await found.beat()
        yield found
        for duty in duties:
            await end(duty)
    await found.cluster.close()


async def lose_t2(watched: Watched) -> None:
    """Silent until it is marked down; the others go on."""
    for _ in range(12):
        await watched.pass_time(1)
        await watched.beat(0, 1)
    await until(lambda: [node.state for node in watched.cluster.map.nodes] == ["up", "up", "down"])
    await watched.beat(0, 1)
    await watched.beat(0, 1, one_left=3, missing=3)


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
    await watched.beat(2)
    await until(lambda: watched.cluster.map.node("t2").state == "up")  # type: ignore[union-attr]
    await watched.beat(hints={"d2": 4})
    await watched.beat(hints={"d2": 4})
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
    await watched.beat()
    assert await watched.codes() == []
    assert (await watched.watch.look()).health == "ok"


async def test_since_when(watched: Watched) -> None:
    """A problem keeps its time while it lasts, and begins anew when it comes back."""
    seen = []
    for age_s in (4, 1, 0, 4):
        await watched.pass_time(age_s)
        if not age_s:
            await watched.beat()
        await watched.pass_time(1)
        seen.append([each.since for each in (await watched.watch.look()).problems if each.subject == "t1"])
    assert seen[0] == seen[1] != []
    assert seen[2] == []
    assert seen[3] > seen[1]


async def test_a_step_that_a_target_does_not_acknowledge(watched: Watched) -> None:
    await lose_t2(watched)
    watched.deaf.add("t0")
    await watched.beat(2)
    for _ in range(7):
        await watched.pass_time(1)
        for number in (1, 2):
            await watched.beat(number)
        watched.cluster._heartbeats.take(said("t0", ("d0",), numbers=(), step=0), 1)
    state = await watched.watch.look()
    assert ("step_unacknowledged", "t0") in [(each.code, each.subject) for each in state.problems]
    assert watched.metrics()["dfc_step_waits_for_targets"] == 1


async def test_copies_being_made(watched: Watched) -> None:
    await watched.beat()
    bucket = watched.cluster.bucket("b")
    await watched.steps.change_copies(bucket.id, 3)
    await watched.beat()
    await watched.beat()
    watched.steps.report_raised("d1", bucket.id, 3, watched.cluster.map.step)
    assert await watched.codes() == ["copies_raising"]
    state = await watched.watch.look()
    (raised,) = state.raising
    assert (raised.bucket, raised.copies, raised.copies_wanted, raised.disks_done, raised.disks) == ("b", 2, 3, 1, 3)
    assert state.health == "ok"


async def test_weights_being_changed(watched: Watched) -> None:
    await watched.cluster.change(weigh_disks(["d1"], 0.5))
    await until(lambda: watched.cluster.map.is_moving)
    await watched.beat()
    await watched.pass_time(1)
    move = (await watched.watch.look()).rebalance
    assert move is not None
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
