"""The short forms of the rows of `make test-cluster`: nothing acknowledged is lost, torn, stale or back from the dead."""

from __future__ import annotations

import dataclasses
import random
import signal
from pathlib import Path

import pytest
from failures import away, chaos, failover, flips, kills, links, losses, moves, partitions, power, publishing, simulated, wipes
from failures.__main__ import rows_of
from failures.found import Found
from failures.hot import Client, judge
from failures.links import schedule, states_of
from failures.writers import Writer
from simulation.histories import Operation
from simulation.scenarios import SCENARIOS

PLAN = kills.Plan(
    seconds=20,
    pause_s=(1.5, 3.0),
    away_s=(0.5, 8.0),
    writers=6,
    sizes=(1_000, 300_000),
    down_after_s=3.0,
    serve_s_max=60.0,
    least={"kills of targets": 3, "acknowledged": 200},
)
POWER = power.Plan(cycles=6)
PARTITIONS = partitions.Plan(schedules=1, seconds=10.0, operations=40, pause_s=(0.5, 2.0), names=12, clients=8, by="forwarder")
WITH_ETCD = dataclasses.replace(PARTITIONS, proxies=2, members=3)
# What is in time, and how much is read, is measured by the long form on a machine of its own, not beside other tests.
AWAY = away.Plan(
    objects=10_000, changed=50, away_s=6.0, sync_s_max=30.0, down_after_s=3.0, afterwards_s=0.0, judges_reads=False
)
# Times are measured by the long form, too. Here they show that nothing waited for ever, and after SIGTERM not even until
# a silent target would have been marked down.
FLIPS = flips.Plan(objects=300, damaged=60)
CHAOS = chaos.Plan(
    seconds=20.0,
    writers=2,
    sizes=(200, 100_000),
    pause_s=(1.0, 3.0),
    killed_s=(0.0, 5.0),
    stopped_s=(1.0, 6.0),
    down_after_s=3.0,
    least_a_minute={"put": 60, "get": 30},  # in so short a time there may be no moment in which a job is taken
)
FAILOVERS = {
    "killed": failover.Plan(names=48, kill_s=(10.0, 20.0), down_after_s=3.0, signals=(signal.SIGKILL,)),
    "told to stop": failover.Plan(names=48, leave_s=(10.0, 10.0), down_after_s=20.0, signals=(signal.SIGTERM,)),
}


@pytest.fixture(autouse=True)
def _clients_that_think(monkeypatch: pytest.MonkeyPatch) -> None:
    """How much clients can do is for the long form: other tests want the processors here."""
    monkeypatch.setattr(Writer, "think_s", 0.03)
    monkeypatch.setattr(Client, "think_s", 0.03)


def test_nothing_is_lost_when_nodes_are_killed(tmp_path: Path) -> None:
    found = kills.run(tmp_path, PLAN, seed=1)
    assert found.problems == [], str(found)
    assert found.counts["copies 2"] >= found.counts["copies 1"], str(found)


def test_nothing_is_lost_when_everything_happens_at_once(tmp_path: Path) -> None:
    found = chaos.run(tmp_path, CHAOS, seed=1)
    assert found.problems == [], str(found)
    assert sum(count for what, count in found.counts.items() if what.startswith("SIG")) >= 3, str(found)


@pytest.mark.long
@pytest.mark.skipif(bool(power.why_simulated()), reason=power.why_simulated() or "it can be had")
def test_nothing_is_lost_when_all_disks_lose_power(tmp_path: Path) -> None:
    found = power.run(tmp_path, POWER, seed=1)
    assert found.problems == [], str(found)
    assert found.counts["losses"] >= POWER.cycles, str(found)
    assert found.counts["put"] >= POWER.cycles, str(found)


def test_where_no_file_system_can_lose_power_a_simulated_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power, "why_not", lambda: "mounting needs root")
    test = "test_a_copy_that_was_acknowledged_survives_a_power_loss_with_its_mark_and_its_notes"
    monkeypatch.setattr(power, "SIMULATED", (f"tests/crash/test_copies.py::{test}[8]",))
    [row] = rows_of("power --cycles 5")
    found = row.run(tmp_path, 2)
    assert (row.title, found.problems) == ("power losses of a simulated file system", [])
    assert found.counts["simulated: tests passed"] == 1, str(found)
    monkeypatch.setattr(power, "SIMULATED", ("tests/crash/no_such_file.py",))
    assert row.run(tmp_path, 2).problems


@pytest.mark.parametrize("plan", [PARTITIONS, WITH_ETCD], ids=["one proxy", "two proxies and etcd"])
def test_names_stay_linearizable_while_links_are_cut(tmp_path: Path, plan: partitions.Plan) -> None:
    found = partitions.run(tmp_path, plan, seed=1)
    assert found.problems == [], str(found)
    assert found.counts["operations"] >= 40, str(found)
    assert found.counts["maps looked at"] >= 10, str(found)


def test_a_target_that_was_away_gets_what_has_changed(tmp_path: Path) -> None:
    found = away.run(tmp_path, AWAY, seed=1)
    assert found.problems == [], str(found)
    assert found.counts["objects changed"] == AWAY.changed, str(found)
    assert found.counts["hints at the return"] > 0, str(found)


@pytest.mark.parametrize("how", FAILOVERS)
def test_reads_and_writes_go_on_when_a_target_ends(tmp_path: Path, how: str) -> None:
    found = failover.run(tmp_path, FAILOVERS[how], seed=1)
    assert found.problems == [], str(found)
    assert found.counts["reads by curl"] >= 2, str(found)
    assert found.counts["writes"] >= 48 + 2, str(found)


def test_damaged_copies_are_repaired(tmp_path: Path) -> None:
    found = flips.run(tmp_path, FLIPS, seed=1)
    assert found.problems == [], str(found)
    assert found.counts["repaired by reads"] > 0, str(found)
    assert found.counts["found by the scrubber"] > 0, str(found)
    assert found.counts["copies read from their disks"] == 2 * FLIPS.objects, str(found)


def assert_one_round(found: Found, what: str) -> None:
    assert found.problems == [], str(found)
    assert found.counts["rounds"] == 1, str(found)
    assert found.counts[what] > 0, str(found)
    assert found.counts["listings"] > 5, str(found)


@pytest.mark.parametrize("copies", [1, 2])
def test_a_target_comes_and_goes(tmp_path: Path, copies: int) -> None:
    found = moves.run(tmp_path, moves.Plan(rounds=1, copies=copies, objects=200, writers=2, refused_share=0.05), seed=1)
    assert_one_round(found, "KiB moved")


def test_a_lost_disk_is_evicted(tmp_path: Path) -> None:
    found = losses.run(tmp_path, losses.Plan(rounds=1, objects=200, writers=2, down_after_s=6.0), seed=1)
    assert_one_round(found, "KiB copied")


def test_a_wiped_disk_gets_everything_back(tmp_path: Path) -> None:
    found = wipes.run(tmp_path, wipes.Plan(rounds=1, down_after_s=6.0, objects=200, writers=2), seed=1)
    assert_one_round(found, "KiB copied")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "told to stop"])
def test_outputs_of_jobs_are_there_when_a_target_ends_while_they_are_published(tmp_path: Path, how: int) -> None:
    plan = publishing.Plan(rounds=2, after_ms=(10, 25), signals=(how,), proxy_share=0.0, stay_share=0.0)
    found = publishing.run(tmp_path, plan, seed=1)
    assert found.problems == [], str(found)
    assert found.counts["jobs succeeded"] == plan.rounds, str(found)


def test_a_job_does_not_wait_for_a_target_that_ended_while_it_published(tmp_path: Path) -> None:
    plan = publishing.Plan(rounds=2, after_ms=(0, 10), signals=(signal.SIGKILL,), proxy_share=0.0, stay_share=1.0)
    found = publishing.run(tmp_path, plan, seed=1)
    assert found.problems == [], str(found)
    assert found.counts["jobs over while a target was away"] == plan.rounds, str(found)


def test_seeds_of_the_simulation_run_in_processes(tmp_path: Path) -> None:
    found = simulated.run(tmp_path, simulated.Plan(seeds=len(SCENARIOS)), seed=1)
    assert found.problems == [], str(found)
    assert found.counts["seeds"] == len(SCENARIOS), str(found)
    assert found.counts["put ok"] > 2 * len(SCENARIOS), str(found)


def test_a_read_of_what_was_replaced_is_found() -> None:
    puts = [Operation("put", "a", value, None, began, began + 1, "ok") for value, began in (("x", 0.0), ("y", 2.0))]
    for value, problems in (("x", 1), ("y", 0)):
        read = Operation("get", "a", value, None, 4.0, 5.0, "ok")
        assert len(judge([puts, [read]])[0]) == problems


@pytest.mark.parametrize("members", [[], ["etcd-0", "etcd-1", "etcd-2"]])
def test_a_schedule_follows_from_its_seed_and_ends(members: list[str]) -> None:
    nodes = links.Nodes(["proxy", "proxy-1"][: 1 + bool(members)], ["target-0", "target-1", "target-2"], members)
    cuts, again = (schedule(random.Random("1.2"), nodes, 25.0, (1.0, 3.5)) for _ in range(2))
    assert cuts == again
    assert {end for cut in cuts for link in cut.links for end in link} <= set(nodes.all)
    assert len(cuts) >= 6
    assert all(states_of(cuts, cut.begin_s) for cut in cuts)
    assert states_of(cuts, 25.0) == {}
