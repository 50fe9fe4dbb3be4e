"""Each problem of a cluster, the numbers of objects that lack copies, and how fast a move is, from facts that are made up."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from copied import map_of
from registering import said

from dfc.placement.map import BucketEntry, ClusterMap, Labels, LayoutEntry, RebalanceEntry, SliceRun
from dfc.proxy.facts import DRAWN, LEAST_S, WINDOW_S, MoveProgress, StateFacts, count_copies, without
from dfc.proxy.heartbeats import LastHeartbeat
from dfc.proxy.status import health_of
from dfc.proxy.troubles import KINDS, SEVERITIES, Trouble, find_troubles, move_waits_for
from dfc.registry.messages import DiskNumbers
from dfc.wire.status import MissingCopies

ROOT = Path(__file__).parents[3]
NOTHING = MissingCopies()


def heard(
    node: str, age_s: float = 0.5, ahead_s: float = 0.0, hints: dict[str, int] | None = None, version: int = 0, **numbers: Any
) -> LastHeartbeat:
    disk = f"d{node[1:]}"
    told = DiskNumbers(**{"id": disk, "counted_step": 1, "first": 100, **numbers})
    return LastHeartbeat(
        said(node, (disk,), numbers=(told,), hints=hints or {}, map_version=version), age_s, ahead_s, newer_s=6.0
    )


def facts(cluster_map: ClusterMap | None = None, **given: Any) -> StateFacts:
    found = map_of() if cluster_map is None else cluster_map
    told = {node.id: heard(node.id) for node in found.nodes}
    values = {
        "last_heartbeats": {**told, **given.pop("last_heartbeats", {})},
        "leads": True,
        "expected_targets": 1,
        "listening_s": 60.0,
        **given,
    }
    return StateFacts(map=found, **values)


def unheard(cluster_map: ClusterMap, listening_s: float = 0.0) -> StateFacts:
    return StateFacts(map=cluster_map, last_heartbeats={}, leads=True, expected_targets=1, listening_s=listening_s)


def with_node(cluster_map: ClusterMap, node: str, **changes: Any) -> ClusterMap:
    nodes = tuple(msgspec.structs.replace(each, **changes) if each.id == node else each for each in cluster_map.nodes)
    return msgspec.structs.replace(cluster_map, nodes=nodes)


def with_disk(cluster_map: ClusterMap, node: str, **changes: Any) -> ClusterMap:
    found = cluster_map.node(node)
    return with_node(cluster_map, node, disks=(msgspec.structs.replace(found.disks[0], **changes),))


def find(given: StateFacts, tally: MissingCopies = NOTHING) -> dict[tuple[str, str], str]:
    return {(each.code, each.subject): each.message for each in find_troubles(given, tally)}


def only(given: StateFacts, tally: MissingCopies = NOTHING) -> Trouble:
    (found,) = find_troubles(given, tally)
    return found


def test_nothing_is_wrong() -> None:
    assert find_troubles(facts(), NOTHING) == []
    assert health_of(facts(), []) == "ok"


def laid_out(cluster_map: ClusterMap, *slices: SliceRun) -> ClusterMap:
    """Objects are on d1 and d2 by layout 1, and on all disks by layout 2, where that is in force."""
    layouts = (LayoutEntry(number=1, disks=("d1", "d2")), LayoutEntry(number=2, disks=("d1", "d2", "d3")))
    used = slices or (SliceRun(first=0, at=1),)
    return msgspec.structs.replace(cluster_map, layouts=layouts[: 2 if slices else 1], slices=used)


MOVING = laid_out(map_of(), SliceRun(first=0, at=2), SliceRun(first=100, at=1, to=2, phase="copying"))


def paused(cluster_map: ClusterMap) -> ClusterMap:
    return msgspec.structs.replace(cluster_map, rebalance=RebalanceEntry(paused=True))


ALL_DOWN = map_of(down=("d1", "d2", "d3"))
ONE_DOWN = map_of(down=("d2",))
OUT_OF_SYNC = map_of(out_of_sync_with={"d2": ("d1", "d3")})
RAISED = map_of(copies=1, written=2, wanted=2)
RELABELED = with_node(with_disk(map_of(), "t2", domain="node t2"), "t2", labels=Labels(zone="z"))
TALLIES = {
    "objects_unavailable": MissingCopies(unavailable=5, estimated=True),
    "objects_one_replica_left": MissingCopies(one_left=1),
}
CASES: dict[str, tuple[str, StateFacts, str]] = {
    "no_target_up": ("", facts(ALL_DOWN), "none of the 3 targets is up"),
    "cluster_not_ready": ("", facts(expected_targets=4), "3 of 4 expected targets have joined"),
    "no_coordinator": ("", facts(leads=False), "no proxy is the coordinator"),
    "registry_silent": ("", facts(registry_silent="etcd has not answered for 9 s"), "etcd has not answered for 9 s"),
    "registry_old": ("", facts(last_heartbeats={"t1": heard("t1", version=9)}), "know version 9 of the cluster map"),
    "targets_foreign": (
        "",
        facts(foreign={"t9": "other", "t8": "other"}),
        "target t8 and 1 more ask to join, but they are of cluster other",
    ),
    "id_in_use": ("t1", facts(twins={"t1": "http://b"}), "a second process at http://b says that it is target t1"),
    "disk_rolled_back": (
        "d1",
        facts(last_heartbeats={"t1": LastHeartbeat(said("t1", ("d1",), rolled_back=("d1",)), 0.5)}),
        "disk d1 of target t1 was put back to an earlier state, or has lost rows: it is compared with others",
    ),
    "objects_unavailable": ("", facts(), "about 5 objects have no copy"),
    "objects_one_replica_left": ("", facts(), "1 object has one copy left"),
    "target_down": (
        "t2",
        facts(with_node(ONE_DOWN, "t2", last_heartbeat="2026-01-01T00:00:00Z", expected_by=1_800_000_000)),
        "last heard at 2026-01-01T00:00:00Z; it is not evicted before 2027-01-15T08:00:00.000Z",
    ),
    "disk_down": ("d2", facts(with_disk(map_of(), "t2", down_step=7)), "disk d2 of target t2 is down"),
    "disk_failed": ("d2", facts(with_disk(map_of(), "t2", state="failed", down_step=7)), "accepts no writes"),
    "disk_full": ("d1", facts(last_heartbeats={"t1": heard("t1", is_full=True)}), "507"),
    "objects_quarantined": ("d1", facts(last_heartbeats={"t1": heard("t1", quarantined=3)}), "3 objects"),
    "log_torn": ("d1", facts(last_heartbeats={"t1": heard("t1", log_torn=True)}), "has lost its last commits"),
    "copies_contradict": (
        "d1",
        facts(last_heartbeats={"t1": heard("t1", divergence_alarms=2)}),
        "2 copies on other disks contradict what disk d1 of target t1 has as the primary",
    ),
    "orphan_alarm": ("d1", facts(last_heartbeats={"t1": heard("t1", orphan_alarm=True)}), "more files without a row"),
    "too_few_domains": ("b", facts(map_of(copies=4)), "4 copies, but disks in 3 of 3 failure domains"),
    "step_unacknowledged": ("t3", facts(waits_for=["t3"], waits_s=7.2), "step 1 for 7 s"),
    "heartbeat_old": ("t1", facts(last_heartbeats={"t1": heard("t1", age_s=4.4)}), "last heard 4 s ago"),
    "heartbeat_missing": ("t2", replace(facts(), last_heartbeats={"t1": heard("t1")}), "has not been heard"),
    "clock_wrong": ("t1", facts(last_heartbeats={"t1": heard("t1", ahead_s=-90)}), "90 s behind most others"),
    "disk_out_of_sync": (
        "d2",
        facts(OUT_OF_SYNC, last_heartbeats={"t1": heard("t1", hints={"d2": 12})}),
        "(12 objects and deletes",
    ),
    "labels_differ": ("t2", facts(RELABELED), "in the failure domain 'zone z', but its disks are placed as in 'node t2'"),
    "move_waits": ("", facts(MOVING, may_move=False), "waits for jobs that are queued or running"),
    "rebalance_paused": ("", facts(paused(MOVING)), "are not moved to other disks, because moves are paused"),
    "moving": ("", facts(MOVING), "100 of 256 parts are done"),
    "disk_new": ("d3", facts(laid_out(with_disk(map_of(), "t3", use="new"))), "holds no objects yet"),
    "disk_drained": ("d3", facts(laid_out(with_disk(map_of(), "t3", use="out"))), "holds no live objects"),
    "disk_removing": (
        "d2",
        facts(laid_out(with_disk(map_of(), "t2", evicted=True, removing=True, use="out"))),
        "is lost, and forgotten when all objects are moved",
    ),
    "disk_evicted": ("d2", facts(laid_out(with_disk(map_of(), "t2", evicted=True))), "had been evicted"),
    "copies_raising": ("b", facts(RAISED, raised={"b1": 2}), "2 copies instead of 1: 2 of 3 disks are done"),
}


def test_nobody_is_told_of_an_expectation_that_is_over() -> None:
    expected = with_node(ONE_DOWN, "t2", expected_by=1000)
    for wall_s, is_said in ((999.0, True), (1000.0, False)):
        told = find(facts(expected, wall_s=wall_s)).items()
        assert ["not evicted before" in message for (code, _), message in told if code == "target_down"] == [is_said]


@pytest.mark.parametrize("code", KINDS)
def test_each_problem_is_found(code: str) -> None:
    (subject, given, words), tally = CASES[code], TALLIES.get(code, NOTHING)
    messages = find(given, tally)
    assert words in messages[code, subject]
    usual = "ok" if KINDS[code].severity == "info" else "degraded"
    special = {"no_target_up": "unavailable", "cluster_not_ready": "unavailable", "no_coordinator": "read_only"}
    assert health_of(given, find_troubles(given, tally)) == special.get(code, usual)


@pytest.mark.parametrize("code", KINDS)
def test_each_problem_has_a_paragraph(code: str) -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    assert re.search(rf"^### {code}$", page, re.MULTILINE), f"docs/operations.md has no heading {code}"
    assert KINDS[code].severity in SEVERITIES
    assert KINDS[code].what_to_do


def test_no_paragraph_about_what_is_not_there() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    section = page.split("\n## Problems", 1)[1].split("\n## ")[0]
    assert re.findall(r"^### (\S+)$", section, re.MULTILINE) == list(KINDS)


def test_the_worst_comes_first() -> None:
    given = facts(map_of(down=("d2",), out_of_sync_with={"d3": ("d1",)}), last_heartbeats={"t1": heard("t1", age_s=9)})
    found = find_troubles(given, MissingCopies(one_left=3))
    assert [each.code for each in found] == ["objects_one_replica_left", "target_down", "heartbeat_old", "disk_out_of_sync"]


def test_a_target_that_is_down_is_one_problem() -> None:
    """Not also a disk that is down, and a heartbeat that is old."""
    assert only(facts(ONE_DOWN, last_heartbeats={"t2": heard("t2", age_s=500, quarantined=1)})).code == "target_down"


def test_a_drained_target_may_be_stopped() -> None:
    """That is what an operator is told to do before it is removed."""
    drained = with_node(with_disk(map_of(down=("d3",)), "t3", use="out"), "t3", state="down")
    found = only(facts(laid_out(drained)))
    assert (found.code, found.message.rpartition(", ")[2]) == ("disk_drained", "and is stopped")
    still_used = laid_out(drained, SliceRun(first=0, at=2))
    assert "target_down" in {code for code, _ in find(facts(still_used))}


def test_it_takes_a_while_to_hear_everybody() -> None:
    assert find_troubles(unheard(map_of(), 1.0), NOTHING) == []
    assert "none of the 3 targets has been heard" in find(unheard(map_of(), 60.0))["no_target_up", ""]


def test_too_few_domains() -> None:
    """What counts are domains that are up, and buckets with as many copies are one problem."""
    assert ("too_few_domains", "b") not in find(facts(ONE_DOWN))
    two_down = map_of(down=("d2", "d3"))
    buckets = (*two_down.buckets, BucketEntry(id="b2", name="c", copies=2), BucketEntry(id="b3", name="d"))
    message = find(facts(msgspec.structs.replace(two_down, buckets=buckets)))["too_few_domains", "b"]
    assert "bucket b and 1 more are to have 2 copies, but disks in 1 of 3 failure domains" in message
    zoned = map_of()
    for node in ("t1", "t2", "t3"):
        zoned = with_node(zoned, node, labels=Labels(zone="z"))
    assert "in 1 of 1 failure domains" in find(facts(zoned))["too_few_domains", "b"]


@pytest.mark.parametrize(
    ("copies", "down", "advice"),
    [
        ({"copies": 4}, (), "--copies 3"),
        ({"copies": 3}, ("d3",), "--copies 2"),
        ({"copies": 3}, ("d2", "d3"), ""),
        ({"copies": 2}, ("d2", "d3"), ""),
        ({"copies": 1, "written": 2, "wanted": 2}, ("d2", "d3"), "--copies 1"),
        ({"copies": 2, "written": 3, "wanted": 3}, ("d3",), "--copies 2"),
    ],
)
def test_to_lower_copies_is_advised_only_where_it_works(copies: dict[str, int], down: tuple[str, ...], advice: str) -> None:
    """One copy again is possible only while all disks are up, unless the others were never read."""
    message = find(facts(map_of(down=down, **copies)))["too_few_domains", "b"]
    assert message.endswith(f"; `dfc bucket set b {advice}` makes do with fewer" if advice else "or is refused")


def test_labels_that_differ() -> None:
    """Placement goes by the old ones, and so does the number of failure domains. A disk of a node without labels that has
    moved to another one without is as far from the others as before."""
    relabeled = map_of()
    for node in ("t1", "t2", "t3"):
        relabeled = with_disk(relabeled, node, domain=f"node {node}")
        relabeled = with_node(relabeled, node, labels=Labels(host="m"))
    assert [code for code, _ in find(facts(relabeled))] == ["labels_differ"] * 3
    assert find(facts(with_disk(map_of(), "t2", domain="node t7"))) == {}
    assert ("labels_differ", "t2") in find(facts(with_disk(map_of(), "t2", domain="zone z")))


def test_health() -> None:
    full = {node: heard(node, is_full=True) for node in ("t1", "t2", "t3")}
    assert health_of(facts(last_heartbeats=full), find_troubles(facts(last_heartbeats=full), NOTHING)) == "read_only"
    failed = map_of()
    for node in ("t1", "t2", "t3"):
        failed = with_disk(failed, node, state="failed", down_step=3)
    assert health_of(facts(failed), find_troubles(facts(failed), NOTHING)) == "read_only"


# --- objects that lack copies


def test_nothing_lacks_copies_while_all_are_up() -> None:
    assert count_copies(facts(last_heartbeats={"t1": heard("t1", one_left=5)})) == NOTHING


def test_what_targets_have_counted_counts() -> None:
    told = {"t1": heard("t1", one_left=5, missing=6), "t3": heard("t3", one_left=7, missing=7)}
    assert count_copies(facts(ONE_DOWN, last_heartbeats=told)) == MissingCopies(one_left=12, missing=13)


def test_an_estimate_until_all_have_counted() -> None:
    """Of three disks one is down: two thirds of the objects were on it."""
    for t3, least in ((heard("t3", counted_step=0), 150), (None, 90)):
        told = {"t1": heard("t1", one_left=5), "t2": heard("t2"), **({"t3": t3} if t3 else {})}
        tally = count_copies(StateFacts(**{**vars(facts(ONE_DOWN)), "last_heartbeats": told}))
        assert tally.estimated
        assert least < tally.one_left == tally.missing < 250
        assert tally.unavailable == 0


def test_objects_whose_replicas_are_all_down() -> None:
    """About a third of the objects were on just these two."""
    tally = count_copies(facts(map_of(down=("d2", "d3")), last_heartbeats={"t1": heard("t1", one_left=180, missing=180)}))
    assert (tally.one_left, tally.estimated) == (180, True)
    assert 50 < tally.unavailable < 150


def test_objects_with_one_copy_are_counted_exactly() -> None:
    one = map_of(copies=1, down=("d2",))
    told = {node: heard(node, alone=40 + at, first=0) for at, node in enumerate(("t1", "t2", "t3"))}
    assert count_copies(facts(one, last_heartbeats=told)) == MissingCopies(unavailable=41)
    assert count_copies(facts(with_disk(map_of(copies=1), "t2", state="failed", down_step=2), last_heartbeats=told)) == NOTHING


def test_a_proxy_that_has_started_since() -> None:
    """It knows what the map says of a disk that is down: how many rows it had."""
    for copies, rows in ((1, 30), (2, 0)):
        lost = with_disk(map_of(copies=copies, down=("d2",)), "t2", objects=30)
        given = facts(lost)
        told = {key: heard(key, first=0) for key in ("t1", "t3")}
        tally = count_copies(StateFacts(**{**vars(given), "last_heartbeats": told}))
        assert (tally.unavailable, tally.estimated) == (rows, rows > 0)


def test_estimates_of_three_copies() -> None:
    unknown = {node: heard(node, counted_step=0, first=DRAWN) for node in ("t1", "t2", "t3")}
    tally = count_copies(facts(map_of(copies=3, down=("d2",)), last_heartbeats=unknown))
    assert (tally.one_left, tally.missing, tally.unavailable) == (0, 3 * DRAWN, 0)


def test_objects_that_are_getting_a_second_copy_are_not_those_with_two() -> None:
    """A bucket that is raised from one copy to two has nothing to do with the others."""
    raised = BucketEntry(id="raised", name="raised", copies=1, written=2, wanted=2)
    with_both = msgspec.structs.replace(ONE_DOWN, buckets=(*ONE_DOWN.buckets, raised))
    told = {node: heard(node, first=1000, alone=7) for node in ("t1", "t2", "t3")}
    assert count_copies(facts(with_both, last_heartbeats=told)).unavailable == 7
    unknown = {node: heard(node, first=1000, counted_step=0) for node in ("t1", "t2", "t3")}
    assert count_copies(facts(with_both, last_heartbeats=unknown)) == count_copies(facts(ONE_DOWN, last_heartbeats=unknown))


def test_what_a_move_waits_for() -> None:
    away = with_disk(MOVING, "t3", down_step=7)
    waiting = move_waits_for(facts(with_disk(away, "t2", out_of_sync_with=("d1",)), may_move=False))
    assert waiting == ["disk d2", "disk d3", "jobs that are queued or running"]
    assert move_waits_for(facts(MOVING)) == []
    lost = with_disk(MOVING, "t2", down_step=3, evicted=True)
    assert move_waits_for(facts(lost)) == ["disk d2"]
    assert move_waits_for(facts(with_disk(lost, "t2", removing=True))) == []
    assert ("move_waits", "") not in find(facts(MOVING))


# --- what could not be read without a target


def unreadable(given: StateFacts, target: str = "t1") -> tuple[int, bool]:
    node = given.map.node(target)
    found = without(given, node)
    return found.unreadable, found.estimated


def test_a_target_may_be_stopped_if_the_others_have_everything() -> None:
    assert unreadable(facts()) == (0, False)
    assert unreadable(facts(ONE_DOWN), "t2") == (0, False)  # it is down already
    assert unreadable(facts(laid_out(with_disk(map_of(), "t3", use="out"))), "t3") == (0, False)
    # One of three copies may be down, or behind, if there are two others.
    assert unreadable(facts(map_of(copies=3, down=("d2",)))) == (0, False)
    assert unreadable(facts(map_of(copies=3, out_of_sync_with={"d2": ("d3",)}))) == (0, False)


def test_a_target_must_not_be_stopped_that_has_what_nothing_else_has() -> None:
    """The numbers are estimates, of the 300 objects that the three targets have told of; at least one is said."""
    for damaged in (ONE_DOWN, map_of(out_of_sync_with={"d2": ("d1", "d3")}), map_of(down=("d2", "d3"))):
        count, is_estimate = unreadable(facts(damaged))
        assert (0 < count <= 300, is_estimate) == (True, True)
    few = {f"t{number}": heard(f"t{number}", first=1) for number in (1, 2, 3)}
    assert unreadable(facts(ONE_DOWN, last_heartbeats=few))[0] >= 1
    none = {f"t{number}": heard(f"t{number}", first=0) for number in (1, 2, 3)}
    assert unreadable(facts(ONE_DOWN, last_heartbeats=none))[0] == 0


def test_objects_with_one_copy_are_counted() -> None:
    single = facts(map_of(copies=1), last_heartbeats={"t1": heard("t1", alone=7)})
    assert unreadable(single) == (7, False)
    assert unreadable(single, "t2") == (0, False)  # it has said that it has none
    assert unreadable(unheard(map_of(copies=1))) == (1, True)


def test_a_registry_that_is_old_only_for_a_moment_is_no_problem() -> None:
    beat = heard("t1", version=9)
    for wrong in (
        facts(last_heartbeats={"t1": beat._replace(newer_s=4.0)}),
        facts(last_heartbeats={"t1": beat._replace(age_s=5.0)}),
        facts(last_heartbeats={"t1": beat}, registry_silent="etcd has not answered for 9 s"),
        facts(last_heartbeats={"t1": heard("t1", version=map_of().version)}),
    ):
        assert ("registry_old", "") not in find(wrong)
    assert ("registry_old", "") in find(facts(last_heartbeats={"t1": beat}))


def test_nothing_is_known_at_first() -> None:
    progress = MoveProgress()
    assert (progress.per_s, progress.eta_s) == (None, None)
    progress.note(0.0, 2, 100)
    progress.note(LEAST_S / 2, 2, 50)
    assert (progress.per_s, progress.eta_s) == (None, None)


def test_the_speed_is_that_of_the_last_minute() -> None:
    progress = MoveProgress()
    for second in range(0, 300, 2):
        progress.note(second, 2, 100_000 - 10 * second)
    assert (progress.per_s, progress.eta_s) == (10.0, 9702.0)
    for second in range(300, 300 + 2 * int(WINDOW_S), 2):
        progress.note(second, 2, 97_000 - 100 * (second - 300))
    assert progress.per_s == 100.0


def test_while_more_is_noted_there_is_no_end() -> None:
    progress = MoveProgress()
    for second in range(10):
        progress.note(second, 2, 100 * second)
    assert (progress.per_s, progress.eta_s) == (0.0, None)


def test_another_move_is_counted_anew() -> None:
    progress = MoveProgress()
    for second in range(10):
        progress.note(second, 2, 100 - second)
    progress.note(10, 3, 1000)
    assert progress.per_s is None
    progress.note(20, 3, 980)
    assert (progress.per_s, progress.eta_s) == (2.0, 490.0)
    progress.note(20, None, None)
    assert progress.per_s is None
    progress.note(21, 3, None)
    assert progress.eta_s is None
