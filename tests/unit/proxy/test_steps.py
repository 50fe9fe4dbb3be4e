"""The coordinator's steps: who is silent, who is back, what the registry keeps, and who gets a lease."""

from __future__ import annotations

import asyncio
import sqlite3
import threading

import msgspec
import pytest
from harness import until
from memory_registry import MemoryStore
from registering import said
from registry_conformance import end
from stepped import DOWN_S, LEASE_S, Proxy, doing, move_all, phases, report

from dfc.errors import BucketNotFound, NotFound, TooFewDomains, Unavailable
from dfc.filesystem import FileSystem
from dfc.placement.map import DiskEntry
from dfc.placement.mapped import placement_of
from dfc.proxy import duties as steps_module
from dfc.proxy.buckets import Buckets
from dfc.proxy.duties import Rebalancing
from dfc.proxy.heartbeats import Heartbeats
from dfc.registry import changes
from dfc.registry.base import LeaseLost, boot_s
from dfc.registry.changes import StepOvertaken, set_rebalance
from dfc.registry.embedded import EmbeddedRegistry, RegistryFile
from dfc.registry.messages import CleanReport, SlicesReport
from dfc.replication.transitions import declare_down


async def test_a_silent_target_is_marked_down_and_comes_back(proxy):
    step = proxy.cluster.map.step
    proxy.deaf.add("t2")
    proxy.seconds += DOWN_S + 1
    await proxy.beats(0, 1)
    await until(lambda: proxy.states() == ["up", "up", "down"])
    assert proxy.cluster.map.step == step + 1
    disk = placement_of(proxy.cluster.map).disks["d2"]
    assert (disk.status, disk.down_step) == ("down", step + 1)
    proxy.deaf.clear()
    answer = await proxy.beat(2)
    assert proxy.states() == ["up", "up", "up"]
    assert (answer.lease_s, answer.map.version) == (LEASE_S, proxy.cluster.map.version)
    assert proxy.cluster.map.step == step + 2


async def test_one_that_leaves_is_down_at_once(proxy):
    await proxy.beat(2, leaving=True)
    await until(lambda: proxy.states() == ["up", "up", "down"])
    assert (await proxy.beat(2)).lease_s == LEASE_S
    assert proxy.states() == ["up", "up", "up"]


async def test_who_leaves_with_the_last_proxy_is_part_of_the_same_end(proxy):
    """What is stopped as a whole is whole after the next start; who is silent all the same is needed no less than before."""
    proxy.steps.end_with_all()
    await proxy.beat(2, leaving=True)
    await proxy.beat(1, leaving=True)
    await asyncio.sleep(0.05)
    assert proxy.states() == ["up", "up", "up"]
    proxy.seconds += DOWN_S + 1
    await proxy.beat(0)
    await until(lambda: proxy.states() == ["up", "down", "down"])


@pytest.mark.parametrize(
    ("late", "last"),
    [
        ({"process": "first", "now_us": 9}, {"process": "second", "now_us": 5}),  # its clock was set back meanwhile
        ({"now_us": 4}, {"now_us": 5}),
        ({}, {"process": "second"}),
        ({"process": "first", "now_us": 4}, {"process": "first", "now_us": 5}),
    ],
)
async def test_that_one_leaves_is_not_believed_from_a_process_of_before(proxy, late, last):
    """What it said at its end arrives after the next one has got its lease."""
    await proxy.beat(2, **late)
    assert (await proxy.beat(2, **last)).lease_s == LEASE_S
    assert (await proxy.beat(2, leaving=True, **late)).lease_s == 0
    await asyncio.sleep(0.05)
    assert proxy.states() == ["up", "up", "up"]
    await proxy.beat(2, leaving=True, **last | {"now_us": 10})
    await until(lambda: proxy.states() == ["up", "up", "down"])


async def test_a_heartbeat_of_before_that_is_late_too_does_not_make_it_credible(proxy):
    assert (await proxy.beat(2, process="second", now_us=5)).lease_s == LEASE_S
    await proxy.beat(2, process="first", now_us=3)
    await proxy.beat(2, process="first", now_us=4, leaving=True)
    await asyncio.sleep(0.05)
    assert proxy.states() == ["up", "up", "up"]


async def test_its_last_report_is_kept(proxy):
    await proxy.beat(2, (DiskEntry(id="d2", weight=1.0, capacity=100, used=7, objects=3),))
    proxy.seconds += DOWN_S + 1
    await until(lambda: proxy.states() == ["down"] * 3)
    node = proxy.store.state.map.node("t2")
    assert (node.disks[0].used, node.last_heartbeat) == (7, "2023-11-14T22:13:20.000Z")


async def test_a_step_waits_for_a_target_that_has_not_heard_of_the_last_one(proxy):
    step = proxy.cluster.map.step
    proxy.deaf.add("t1")
    await proxy.beat(2, (DiskEntry(id="d2", weight=1.0, state="failed"),))
    await until(lambda: proxy.cluster.map.step == step + 1)
    assert placement_of(proxy.cluster.map).disks["d2"].status == "failed"
    await proxy.beat(2)  # it is usable again
    await asyncio.sleep(0.05)
    assert proxy.cluster.map.step == step + 1, "t1 has a lease, and decides by the step before"
    await proxy.beat(1, step=step + 1)
    await until(lambda: proxy.cluster.map.step == step + 2)
    assert placement_of(proxy.cluster.map).disks["d2"].status == "up"


async def test_a_target_that_does_not_answer_is_sent_the_map_again(proxy):
    step = proxy.cluster.map.step
    failures = []
    honest = proxy.call

    async def fail_once(method, url, kind, **rest):
        if "t1" in url and not failures:
            failures.append(url)
            raise OSError("the connection was reset")
        return await honest(method, url, kind, **rest)

    proxy.call = fail_once
    await proxy.beat(2, (DiskEntry(id="d2", weight=1.0, state="failed"),))
    await until(lambda: proxy.cluster.map.step == step + 1)
    await proxy.beat(2)
    await until(lambda: proxy.cluster.map.step == step + 2)
    assert failures


async def test_nobody_is_silent_before_the_coordinator_has_listened(proxy):
    proxy.seconds += DOWN_S - 1
    await asyncio.sleep(0.03)
    assert proxy.states() == ["up"] * 3


async def test_targets_that_have_joined_without_a_heartbeat_since_are_silent_after_a_while(monkeypatch):
    monkeypatch.setattr(steps_module, "LOOK_S", 0.001)
    proxy = Proxy(MemoryStore())
    await proxy.beat(0)
    proxy.seconds += 1000.0  # another proxy led meanwhile, or this process was stopped
    async with doing(proxy.registry, proxy.steps.run, office="coordinator"):
        await asyncio.sleep(0.03)
        assert proxy.states() == ["up"]
        proxy.seconds += DOWN_S + 1
        await until(lambda: proxy.states() == ["down"])
    assert not proxy.steps.leads
    await proxy.cluster.close()


async def test_who_leads_no_longer_takes_no_step(monkeypatch):
    monkeypatch.setattr(steps_module, "LOOK_S", 0.001)
    proxy = Proxy(MemoryStore())
    await proxy.beat(0)
    async with proxy.registry.elect("coordinator", "p1", 60) as lease:
        duty = asyncio.create_task(proxy.steps.run(lease))
        await until(lambda: proxy.steps.leads)
    proxy.seconds += DOWN_S + 1
    await until(lambda: duty.done() or proxy.states() != ["up"])
    assert proxy.states() == ["up"]
    with pytest.raises(LeaseLost):
        await duty
    await proxy.cluster.close()


async def test_a_change_that_comes_between_makes_another_step(proxy):
    proxy.seconds += DOWN_S + 1
    between = proxy.registry.between

    async def join_another() -> None:
        proxy.registry.between = between
        state = proxy.store.state
        assert proxy.store.swap(state, changes.join(said("t0", ("d0",), url="http://other"))(state))

    proxy.registry.between = join_another
    await until(lambda: proxy.states() == ["down"] * 3)
    assert proxy.cluster.map.node("t0").url == "http://other"


# --- disks that are behind


def lagging(proxy: Proxy, disk: str = "d2") -> set[str]:
    return set(placement_of(proxy.cluster.map).disks[disk].out_of_sync_with)


async def test_a_primary_is_answered_when_all_targets_know_who_is_behind_it(proxy):
    """By the step before, somebody may still read there; so a write that is not there is not certain yet."""
    step = proxy.cluster.map.step
    proxy.deaf.add("t1")
    asked = asyncio.create_task(proxy.steps.mark_out_of_sync("d0", "d2"))
    await until(lambda: proxy.cluster.map.step == step + 1)
    assert lagging(proxy) == {"d0"}
    done, _ = await asyncio.wait((asked,), timeout=0.05)
    assert not done
    await proxy.beat(1, step=step + 1)
    assert (await asked).step == step + 1


async def test_a_report_of_an_older_step_clears_nobody(proxy):
    step = proxy.cluster.map.step
    await proxy.steps.mark_out_of_sync("d0", "d2")
    with pytest.raises(Unavailable, match="out of date"):
        proxy.steps.report_clean(CleanReport(disk="d0", caught_up="d2", step=step))
    await asyncio.sleep(0.03)
    assert lagging(proxy) == {"d0"}
    proxy.steps.report_clean(CleanReport(disk="d0", caught_up="d2", step=step + 1))
    await until(lambda: lagging(proxy) == set())


async def test_only_the_coordinator_decides_who_is_behind(proxy):
    other = Proxy(proxy.store)
    with pytest.raises(Unavailable, match="not the coordinator"):
        await other.steps.mark_out_of_sync("d0", "d2")
    with pytest.raises(Unavailable, match="not the coordinator"):
        other.steps.report_clean(CleanReport(disk="d0", caught_up="d2", step=proxy.cluster.map.step))
    with pytest.raises(NotFound):
        await proxy.steps.mark_out_of_sync("d0", "d9")


async def test_planning_begins_anew_when_the_registry_is_at_another_step(monkeypatch):
    """As when a step was stored, but the answer was lost. The coordinator restarts a duty that fails."""
    monkeypatch.setattr(steps_module, "LOOK_S", 0.001)
    proxy, tries = Proxy(MemoryStore()), []
    honest, between = steps_module.take_step, proxy.registry.between
    monkeypatch.setattr(steps_module, "take_step", lambda *given: tries.append(given) or honest(*given))

    async def step_otherwise() -> None:
        proxy.registry.between = between
        state = proxy.store.state
        before = placement_of(state.map)
        new = msgspec.structs.replace(declare_down({"t0"})(before), step=before.step + 1)
        assert proxy.store.swap(state, honest(before, new)(state))

    await proxy.beats(0, 1, 2)
    async with proxy.registry.elect("coordinator", "p1", 60) as lease:
        duty = asyncio.create_task(proxy.steps.run(lease))
        await until(lambda: proxy.steps.leads)
        proxy.registry.between = step_otherwise
        proxy.seconds += DOWN_S + 1
        async with asyncio.timeout(20):
            with pytest.raises(StepOvertaken):
                await duty
        assert len(tries) == 1, "it is not tried again and again"
        duty = asyncio.create_task(proxy.steps.run(lease))
        await until(lambda: proxy.steps.leads)
        proxy.seconds += DOWN_S + 1
        await until(lambda: proxy.states() == ["down"] * 3)
        await end(duty)
    await proxy.cluster.close()


class HangingCommits(FileSystem):
    """A file system whose commits wait while `hangs`."""

    def __init__(self) -> None:
        self.hangs = False
        self.entered, self.go_on = threading.Event(), threading.Event()

    def commit(self, database: sqlite3.Connection) -> None:
        if self.hangs:
            self.entered.set()
            assert self.go_on.wait(10)
        super().commit(database)


async def test_a_step_of_the_office_before_comes_before_any_lease(tmp_path, monkeypatch):
    """Its COMMIT hangs while the office is lost and won again. By the placement before, a target would get a lease, and be
    declared down while it has it."""
    monkeypatch.setattr(steps_module, "LOOK_S", 0.001)
    filesystem = HangingCommits()
    registry = EmbeddedRegistry(RegistryFile(str(tmp_path), filesystem=filesystem))
    proxy = Proxy(MemoryStore(), registry)
    mine = {"cluster_id": registry.map.cluster_id}
    async with doing(registry, proxy.steps.run, proxy.cluster.push_maps, office="coordinator"):
        await until(lambda: proxy.steps.leads)
        for number in range(3):
            await proxy.beat(number, **mine)
        await proxy.cluster.bucket_for_write("b")
        await until(lambda: proxy.steps.unacknowledged()[0] == [])
        filesystem.hangs = True
        proxy.seconds += DOWN_S + 1
        await proxy.beat(0, **mine)
        await proxy.beat(1, **mine)
        await until(filesystem.entered.is_set)
    async with doing(registry, proxy.steps.run, office="coordinator"):
        await asyncio.sleep(0.05)
        assert proxy.cluster.map.node("t2").state == "up", "so the registry says"
        assert (await proxy.beat(2, **mine)).lease_s == 0
        filesystem.hangs = False
        filesystem.go_on.set()
        await until(lambda: proxy.steps.leads)
        assert proxy.cluster.map.node("t2").state == "down"
    await proxy.cluster.close()


# --- how many copies the objects of a bucket have


async def all_well_but(proxy: Proxy, number: int) -> None:
    """One disk has failed."""
    disk = f"d{number}"
    await proxy.beat(number, (DiskEntry(id=disk, weight=1.0, state="failed"),))
    await until(lambda: placement_of(proxy.cluster.map).disks[disk].status == "failed")


async def well_again(proxy: Proxy, number: int) -> None:
    """It is back, and has caught up."""
    disk = f"d{number}"
    await proxy.beat(number)
    await until(lambda: placement_of(proxy.cluster.map).disks[disk].status == "up")
    for other in lagging(proxy, disk):
        proxy.steps.report_clean(CleanReport(disk=other, caught_up=disk, step=proxy.cluster.map.step))
    await until(lambda: not lagging(proxy, disk))


@pytest.fixture
async def buckets(proxy, monkeypatch) -> Buckets:
    """Buckets of a cluster whose bucket has two copies."""
    monkeypatch.setattr(steps_module, "OUT_OF_SYNC_S", 0.1)
    await proxy.cluster.change(changes.change_bucket("b", copies=2))
    return Buckets(proxy.cluster, None, proxy.steps)


async def test_what_was_refused_does_not_happen_later(proxy, buckets):
    """Not even when everything that it waited for is there."""
    await all_well_but(proxy, 2)
    with pytest.raises(
        Unavailable, match=r"are to have 2 copies as before.* to get down to one copy, all disks must also be up"
    ):
        await buckets.change("b", 1, None)
    await well_again(proxy, 2)
    await asyncio.sleep(0.05)
    assert proxy.cluster.map.bucket("b").goal == 2


async def test_a_raise_is_given_up_while_a_target_is_down(proxy, buckets):
    """It would not end, and not begin to end either if all targets had to be counted."""
    await proxy.cluster.change(changes.change_bucket("b", copies=1))
    assert (await buckets.change("b", 2, None))[1:] == (90, 9000, True)
    proxy.seconds += DOWN_S + 1
    await proxy.beats(0, 1)
    await until(lambda: proxy.states() == ["up", "up", "down"])
    assert proxy.cluster.map.bucket("b").goal == 2
    found = await buckets.change("b", 1, None)
    assert found[1:] == (90, 9000, False), "an estimate, from two of three"
    assert found.entry.goal == 1
    await until(lambda: not proxy.cluster.map.bucket("b").has_several)


async def test_a_wish_that_waits_is_taken_back_by_another(proxy, buckets, monkeypatch):
    monkeypatch.setattr(steps_module, "OUT_OF_SYNC_S", 5.0)
    await all_well_but(proxy, 2)
    lower = asyncio.create_task(buckets.change("b", 1, None))
    await asyncio.sleep(0.02)
    assert (await buckets.change("b", 2, None)).entry.goal == 2
    await well_again(proxy, 2)
    await asyncio.sleep(0.05)
    assert proxy.cluster.map.bucket("b").goal == 2
    await end(lower)


async def test_who_gives_up_leaves_the_wish_of_another(proxy, buckets):
    await all_well_but(proxy, 2)
    evicted = asyncio.create_task(proxy.steps.change_copies(proxy.cluster.bucket("b").id, 1))
    await asyncio.sleep(0.05)
    other = asyncio.create_task(proxy.steps.change_copies(proxy.cluster.bucket("b").id, 1))
    with pytest.raises(Unavailable):
        await evicted
    await well_again(proxy, 2)
    await other
    assert proxy.cluster.map.bucket("b").goal == 1


async def test_a_change_of_copies_that_is_being_stored_may_still_come(proxy, buckets):
    """Who is answered 503 then is told so, and who wants something else waits for it."""
    go_on, between = asyncio.Event(), proxy.registry.between
    bucket_id = proxy.cluster.bucket("b").id
    proxy.registry.between = go_on.wait
    with pytest.raises(Unavailable, match="has not answered yet whether the number of copies is changed"):
        await proxy.steps.change_copies(bucket_id, 3)
    other = asyncio.create_task(proxy.steps.change_copies(bucket_id, 2))
    await asyncio.sleep(0.02)
    assert not other.done(), "the map says 2, but that is about to change"
    proxy.registry.between = between
    go_on.set()
    await other
    assert proxy.cluster.map.bucket("b").goal == 2


async def test_what_is_wanted_of_a_bucket_that_is_removed_is_dropped(proxy):
    """Otherwise each step would be followed by another one that changes nothing."""
    bucket = proxy.cluster.bucket("b")
    proxy.deaf.add("t1")
    await proxy.steps.change_copies(bucket.id, 2)
    more = asyncio.create_task(proxy.steps.change_copies(bucket.id, 3))
    await asyncio.sleep(0.02)
    await proxy.cluster.remove_bucket(proxy.cluster.bucket("b"))
    with pytest.raises(BucketNotFound):
        await more
    proxy.steps._planner.want_copies(bucket.id, 3)  # as if that had come just before
    step = proxy.cluster.map.step
    proxy.deaf.clear()
    await proxy.beat(1, step=step)
    await asyncio.sleep(0.1)
    assert (proxy.cluster.map.step, proxy.steps._planner.wishes()) == (step, [])
    await all_well_but(proxy, 2)
    assert proxy.cluster.map.step == step + 1


# --- moves


async def join(proxy) -> None:
    """Another target has joined, and is to be given objects."""
    await proxy.beat(3)
    await proxy.cluster.change(changes.use_disks(["d3"], "in"))
    await until(lambda: phases(proxy) == {"copying"})


async def test_a_target_that_joins_gets_objects_slice_by_slice(proxy):
    await join(proxy)
    placement = placement_of(proxy.cluster.map)
    assert (placement.layouts[1].disks, placement.layouts[2].disks) == ({"d0", "d1", "d2"}, {"d0", "d1", "d2", "d3"})
    assert proxy.cluster.map.bucket("b").has_several
    seen = set(placement.slices)

    def is_over() -> bool:
        seen.update(placement_of(proxy.cluster.map).slices)
        return not proxy.cluster.map.is_moving

    await move_all(proxy, 0, 1, 2, 3, is_over=is_over)
    assert {state.phase for state in seen} >= {"copying", "moving", "done"}
    assert placement_of(proxy.cluster.map).stable_layout == 2
    assert not proxy.cluster.map.bucket("b").has_several
    assert proxy.cluster.map.in_use() == {"d0", "d1", "d2", "d3"}


async def test_nothing_is_handed_over_before_all_have_reported(proxy):
    await join(proxy)
    await report(proxy, "d0", "d1")
    assert phases(proxy) == {"copying"}
    await report(proxy, "d2", slices=3)
    await until(lambda: phases(proxy) == {"copying", "moving"})
    assert [state.phase for state in placement_of(proxy.cluster.map).slices[:4]] == ["moving", "moving", "moving", "copying"]
    step = proxy.cluster.map.step
    with pytest.raises(NotFound):
        await report(proxy, "d9")
    proxy.steps.report_ready(SlicesReport(disk="d2", slices=[0, 1, 2], readiness="moved", to=2, step=step - 1))
    await asyncio.sleep(0.02)
    assert proxy.cluster.map.step == step, "a report of another step counts for nothing"


@pytest.mark.parametrize("what", ["a target is down", "a job is running", "moves are paused"])
async def test_slices_are_handed_over_only_in_calm_times(proxy, what):
    await join(proxy)
    if what == "a job is running":
        proxy.steps.may_move = lambda: False
    elif what == "moves are paused":
        await proxy.cluster.change(set_rebalance(True, None))
    else:
        await proxy.beat(3, leaving=True)
        await until(lambda: proxy.states() == ["up", "up", "up", "down"])
    await report(proxy, "d0", "d1", "d2")
    assert phases(proxy) == {"copying"}
    proxy.steps.may_move = lambda: True
    await proxy.cluster.change(set_rebalance(False, None))
    if what != "a target is down":
        await report(proxy, "d0", "d1", "d2")
        await until(lambda: "moving" in phases(proxy))


async def test_another_coordinator_goes_on_with_a_move(proxy):
    await join(proxy)
    await report(proxy, "d0", "d1", "d2")
    await until(lambda: "moving" in phases(proxy))
    other = Proxy(proxy.store)
    other.told = proxy.told
    assert phases(other) == phases(proxy)
    assert other.cluster.map.is_moving


async def test_new_disks_are_taken_in_together(proxy):
    async with doing(proxy.registry, Rebalancing(proxy.cluster, 10.0).run):
        await proxy.beat(3)
        await asyncio.sleep(0.02)
        proxy.seconds += 5
        await proxy.beat(4)
        await asyncio.sleep(0.02)
        assert not proxy.cluster.map.is_moving
        await proxy.beats(0, 1, 2)
        proxy.seconds += 5
        await until(lambda: proxy.cluster.map.is_moving)
        assert placement_of(proxy.cluster.map).layouts[2].disks == {"d0", "d1", "d2", "d3", "d4"}


async def test_new_disks_wait_until_they_are_told_where_that_is_wanted(proxy):
    async with doing(proxy.registry, Rebalancing(proxy.cluster, None).run):
        await proxy.beat(3)
        proxy.seconds += 3600
        await asyncio.sleep(0.02)
        assert not proxy.cluster.map.is_moving


async def test_enough_disks_are_left(proxy):
    proxy.cluster.check_use(["d0", "d1"], "out")
    with pytest.raises(TooFewDomains, match="disks of 0 failure domains would be left"):
        proxy.cluster.check_use(["d0", "d1", "d2"], "out")
    await proxy.cluster.create_bucket("two", 2, "fsync")
    with pytest.raises(TooFewDomains, match="bucket two has 2 copies"):
        proxy.cluster.check_use(["d0", "d1"], "out")
    await proxy.beat(3)  # it is new
    with pytest.raises(TooFewDomains):
        proxy.cluster.check_use(["d0", "d1"], "out")


# --- leases


async def test_a_target_that_is_up_gets_a_lease_from_the_coordinator_only(proxy):
    answer = await proxy.beat(0)
    assert (answer.lease_s, answer.why_no_lease) == (LEASE_S, "")
    late = await proxy.beat(7)
    assert (proxy.cluster.map.node("t7").state, late.lease_s) == ("up", LEASE_S), "it holds nothing, and acts by the map"
    other = Proxy(proxy.store)
    other.told = proxy.told
    answer = await other.beat(0)
    assert answer.lease_s == 0
    assert "no proxy is the coordinator" in answer.why_no_lease


async def test_one_whose_disks_are_not_open_yet_gets_none_and_is_not_heard(proxy):
    answer = await proxy.beat(0, starting=True)
    assert (answer.lease_s, answer.why_no_lease) == (0.0, "")
    proxy.seconds += DOWN_S + 1
    await proxy.beats(1, 2)
    await proxy.beat(0, starting=True)
    await until(lambda: proxy.states() == ["down", "up", "up"])
    assert (await proxy.beat(0)).lease_s == LEASE_S


async def test_one_whose_clock_is_far_ahead_gets_none(proxy):
    hour_us = 3600 * 10**6

    async def lease(number: int, ahead_us: int) -> tuple[float, str]:
        answer = await proxy.beat(number, now_us=int(1_700_000_000 * 1e6) + ahead_us)
        return answer.lease_s, answer.why_no_lease

    assert await lease(1, hour_us - 10**6) == (LEASE_S, "")
    assert await lease(1, 2 * hour_us) == (0.0, "its clock is 2.0 h ahead of most nodes; set the clock that is wrong")
    assert await lease(2, -9 * hour_us) == (LEASE_S, ""), "a clock that is behind pushes nobody's"
    assert await lease(1, 0) == (LEASE_S, "")
    # Where most targets agree, it is the proxy's clock that is wrong.
    for number in range(3):
        await lease(number, 5 * hour_us)
    assert await lease(1, 5 * hour_us) == (LEASE_S, "")


async def test_one_that_is_being_marked_down_gets_none(proxy):
    go_on, between = asyncio.Event(), proxy.registry.between
    proxy.registry.between = go_on.wait
    proxy.seconds += DOWN_S + 1
    await until(lambda: proxy.steps._going == {"t0", "t1", "t2"})
    late = await proxy.beat(0)
    assert late.lease_s == 0, "it has not heard yet that it is down"
    proxy.registry.between = between
    go_on.set()
    await until(lambda: proxy.states() == ["down"] * 3)
    assert (await proxy.beat(0)).lease_s == LEASE_S
    assert proxy.states() == ["up", "down", "down"]


async def test_one_with_a_newer_map_than_the_registry_gets_none(proxy):
    version = proxy.cluster.map.version
    answer = await proxy.beat(0, map_version=version + 1)
    assert answer.lease_s == 0.0
    assert answer.why_no_lease.startswith(f"its map has version {version + 1}, but the registry is at {version}; if that stays")
    assert (await proxy.beat(0, map_version=version)).lease_s == LEASE_S


async def test_one_whose_disk_is_another_under_its_id_gets_none_before_it_was_down(proxy):
    def disk(incarnation: str) -> tuple[DiskEntry, ...]:
        return (DiskEntry(id="d2", weight=1.0, incarnation=incarnation),)

    assert (await proxy.beat(2, disk("first"))).lease_s == LEASE_S
    answer = await proxy.beat(2, disk("second"))
    assert answer.lease_s == 0
    assert "not those of the cluster map" in answer.why_no_lease
    proxy.seconds += DOWN_S + 1
    await proxy.beats(0, 1)
    await proxy.beat(2, disk("second"))
    await until(lambda: proxy.states() == ["up", "up", "down"])
    assert (await proxy.beat(2, disk("second"))).lease_s == LEASE_S
    assert placement_of(proxy.cluster.map).disks["d2"].incarnation == "second"


def test_silence_is_counted_by_the_clock_of_leases():
    """Whoever sets the wall clock of the coordinator would otherwise declare all targets down that still have a lease."""
    assert abs(Heartbeats().now_s() - boot_s()) < 3600
