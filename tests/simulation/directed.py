"""Directed schedules: faults at chosen moments, for mistakes that random seeds hardly ever meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from dfc.placement.roles import LayoutSpec, Placement, Roles, roles
from dfc.replication import transitions
from dfc.replication.transitions import Change
from simulation.client import SimClient
from simulation.histories import Operation
from simulation.publishing import SimJobs
from simulation.run import COLD, FOR_GOOD_S, HOT, Run, Scenario
from simulation.target import BUCKET
from simulation.world import All, Call, Process, Sleep, Slowness

NAME = COLD[0]
COORDINATOR = "coordinator"


class Probe(SimClient):
    """A client that asks one node, whatever the map says."""

    def __init__(self, run: Run, name: str, node: str) -> None:
        super().__init__(run.world, name, HOT, COLD, run.history)
        self._node = node

    def _choose(self, kind: object, name: str) -> str:
        return self._node

    def read_until(self, time: float, name: str = NAME) -> None:
        """Read a name again and again."""

        def reading() -> Process:
            while self.world.now < time:
                yield from self.do("get", name)
                yield Sleep(0.1)

        self.world.spawn(self, reading())

    def write(self, value: str, expected: tuple[str] | None = None, name: str = NAME) -> None:
        self.world.spawn(self, self.do("swap" if expected else "put", name, value, expected))


class Directed(Run):
    """A calm cluster of single disks with a script: what happens at which second."""

    def __init__(self, script: Script, copies: int = 2, seed: int = 1, *, nodes: int = 4) -> None:
        super().__init__(seed, Scenario(copies=copies, nodes=nodes, disks=1, faults=False, moves=False))
        self.clients = []
        self.world.slow = {}
        self.roles: Roles = roles(self.coordinator.placement, BUCKET, NAME)
        self.nodes = [each[:-1] for each in self.roles.replicas]
        self.twin = next(
            name for name in map(str, range(1000)) if roles(self.coordinator.placement, BUCKET, name) == self.roles
        )
        self.names = [*self.names, self.twin]
        for time, action in script(self):
            self.world.after(time, action)

    def probe(self, node: str) -> Probe:
        return Probe(self, f"probe{len(self.world.actors)}", node)

    def cut(self, *links: tuple[str, str]) -> None:
        self.world.cuts.update(links)

    def heal(self) -> None:
        self.world.cuts.clear()


Script = Callable[[Directed], list[tuple[float, Callable[[], None]]]]


def reader_that_did_not_hear(run: Directed) -> list[tuple[float, Callable[[], None]]]:
    """A reader is cut off from all others, and hears nothing of the step that puts it behind, while its lease lasts."""
    primary, reader = run.nodes
    return [
        (1.0, lambda: run.probe(primary).write("old")),
        (3.0, lambda: run.cut((primary, reader), (reader, primary))),
        (3.1, lambda: run.probe(primary).write("new")),
        (4.6, lambda: run.cut(*((each, reader) for each in (COORDINATOR, *run.targets)))),
        (3.2, lambda: run.probe(reader).read_until(10.0)),
        (15.0, run.heal),
    ]


def other_name_of_a_reader_that_did_not_hear(run: Directed) -> list[tuple[float, Callable[[], None]]]:
    """The same; meanwhile the primary, which has heard of it, writes another name of the same replicas."""
    primary, reader = run.nodes

    def write(number: int) -> tuple[float, Callable[[], None]]:
        return 4.8 + number / 5, lambda: run.probe(primary).write(f"new {number}", name=run.twin)

    return [
        (1.0, lambda: run.probe(primary).write("old", name=run.twin)),
        (3.0, lambda: run.cut((primary, reader), (reader, primary))),
        (3.1, lambda: run.probe(primary).write("first")),
        (3.2, lambda: run.probe(reader).read_until(10.0, run.twin)),
        (4.6, lambda: run.cut(*((each, reader) for each in (COORDINATOR, *run.targets)))),
        *(write(number) for number in range(12)),
        (15.0, run.heal),
    ]


def commit_of_an_old_primary(run: Directed) -> list[tuple[float, Callable[[], None]]]:
    """A primary with a fast clock sends its row and dies; the row arrives when another one has written since."""
    primary, second, _third = run.nodes
    run.targets[primary].skew, run.targets[second].skew = 5.0, -5.0
    return [
        (1.0, lambda: run.probe(primary).write("first")),
        (3.0, lambda: run.world.held.update({(primary, "commit"): 14.0})),
        (3.1, lambda: run.probe(primary).write("never acknowledged", ("first",))),
        (3.6, lambda: run.targets[primary].crash(20.0)),
        (10.0, lambda: run.probe(second).write("later")),
        (13.0, run.world.held.clear),
        (16.0, lambda: run.probe(second).read_until(18.0)),
    ]


def clean_report_that_is_late(run: Directed) -> list[tuple[float, Callable[[], None]]]:
    """A primary reports that it has no hints for a disk, and cannot reach it any more before the report arrives."""
    primary, reader = run.nodes
    apart = ((primary, reader), (reader, primary))
    return [
        (1.0, lambda: run.probe(primary).write("first")),
        (2.0, lambda: run.cut(*apart)),
        (2.1, lambda: run.probe(primary).write("second")),
        (5.0, run.heal),
        (5.0, lambda: run.world.held.update({(primary, "clean"): 12.0})),
        (7.5, lambda: run.cut(*apart)),
        (7.6, lambda: run.probe(primary).write("third")),
        (11.9, run.world.held.clear),
        (12.1, lambda: run.probe(reader).read_until(16.0)),
        (20.0, run.heal),
    ]


def note_that_is_late(run: Directed) -> list[tuple[float, Callable[[], None]]]:
    """A replica is away while a row is written. It is back before the note about that is committed, and the write counts; what
    the note says arrives late."""
    primary, away = run.nodes
    return [
        (1.0, lambda: run.probe(primary).write("first")),
        (2.0, lambda: run.targets[away].crash(8.0)),
        (9.0, lambda: setattr(run.targets[primary], "notes_s", (6.0,))),
        (9.1, lambda: run.probe(primary).write("second")),
        (9.2, lambda: run.world.held.update({(primary, "adopt"): 20.0})),
        (14.0, lambda: run.probe(away).read_until(20.0)),
        (20.0, run.world.held.clear),
    ]


def take_out(disk_id: str) -> Change:
    """A disk is lost for good: it is no replica any more, by any layout, and nobody waits for what it may have had.

    That loses acknowledged writes if another disk is out of sync with this one and no handoff replica has them, and for a while
    those of which another disk becomes a replica now, if it has not got them as a handoff replica; the caller has made sure, or
    an operator has accepted it. In a cluster, this is a move to a layout without it."""

    def change(placement: Placement) -> Placement:
        layouts = {
            number: msgspec.structs.replace(spec, gone=spec.gone | {disk_id}) if disk_id in spec.disks else spec
            for number, spec in placement.layouts.items()
        }
        gone = {disk_id}.union(*(spec.gone for spec in placement.layouts.values()))
        disks = {**placement.disks, **transitions._forget(placement, [disk_id], gone)}
        if layouts == placement.layouts and disks == placement.disks:
            return placement
        return msgspec.structs.replace(placement, layouts=layouts, disks=disks)

    return change


def primary_that_is_lost(run: Directed) -> list[tuple[float, Callable[[], None]]]:
    """A replica is away while a row is written; the primary dies for good, and only the other members know what it lacks."""
    primary, _second, away = run.nodes
    lost = run.roles.replicas[0]
    return [
        (1.0, lambda: run.probe(primary).write("first")),
        (2.0, lambda: run.targets[away].crash(12.0)),
        (7.5, lambda: run.probe(primary).write("second")),
        (8.5, lambda: run.targets[primary].crash(1e9)),
        (16.0, lambda: run.coordinator.core.queue(("out", lost), take_out(lost))),
        (18.0, lambda: run.probe(away).read_until(30.0)),
    ]


def readers_that_are_lost(run: Directed) -> list[tuple[float, Callable[[], None]]]:
    """A replica is away while a row is written; both others die for good before it has caught up, and a handoff replica has the
    row."""
    primary, second, away = run.nodes
    lost = run.roles.replicas[:2]
    return [
        (1.0, lambda: run.probe(primary).write("first")),
        (2.0, lambda: run.targets[away].crash(12.0)),
        (7.5, lambda: run.probe(primary).write("second")),
        (9.5, lambda: run.targets[primary].crash(1e9)),
        (9.5, lambda: run.targets[second].crash(1e9)),
        (20.0, lambda: run.coordinator.core.queue(("out", lost[0]), take_out(lost[0]))),
        (21.0, lambda: run.coordinator.core.queue(("out", lost[1]), take_out(lost[1]))),
        (24.0, lambda: run.probe(away).read_until(30.0)),
    ]


def disks_that_miss_one_write_each(run: Directed) -> list[tuple[float, Callable[[], None]]]:
    """Two replicas are away one after the other, and each misses the write of another name. Before either has caught up, the
    third replica, which has both, dies for good. Nobody is a reader then: they have to get what they lack from each other."""
    primary, first, second = run.nodes
    lost = run.roles.replicas[0]
    asked = ("adopt", "version", "handover", "clean")  # whatever could bring one of them up to date
    late = {(node, kind): 60.0 for node in run.nodes for kind in asked}
    return [
        (1.0, lambda: run.probe(primary).write("one")),
        (1.0, lambda: run.probe(primary).write("two", name=run.twin)),
        (2.0, lambda: run.targets[first].crash(8.0)),
        (7.5, lambda: run.probe(primary).write("one more")),
        (9.0, lambda: run.world.held.update(late)),
        (14.0, lambda: run.targets[second].crash(8.0)),
        (20.0, lambda: run.probe(primary).write("two more", name=run.twin)),
        (21.5, lambda: run.targets[primary].crash(1e9)),
        (29.0, run.world.held.clear),
        (31.0, lambda: run.coordinator.core.queue(("out", lost), take_out(lost))),
    ]


def answer_that_is_late(run: Directed) -> list[tuple[float, Callable[[], None]]]:
    """A replica asks whether its row counts; before it hears that, the next write arrives, which does not count yet, since the
    primary cannot reach the third replica."""
    primary, asking, last = run.nodes
    return [
        (1.0, lambda: run.world.held.update({(primary, "confirm"): 9.0})),
        (1.0, lambda: run.world.slow.update(state=Slowness(1.0, 0.5))),
        (2.0, lambda: run.probe(primary).write("first")),
        (2.6, lambda: run.cut((primary, last), (last, primary))),
        (2.7, lambda: run.probe(primary).write("second")),
        (2.7, lambda: run.probe(asking).read_until(6.0)),
        (2.7, lambda: run.probe(last).read_until(6.0)),
        (9.0, run.world.held.clear),
        (12.0, run.heal),
    ]


def primary_that_is_emptied(run: Directed) -> list[tuple[float, Callable[[], None]]]:
    """A replica cannot be reached, and is marked out of sync with the primary alone; the write counts with a handoff replica,
    which notes what the replica lacks. Before it has that, the primary's disk is replaced by an empty one."""
    primary, cut_off = run.nodes
    apart = ((primary, cut_off), (cut_off, primary))
    asked = ("adopt", "version", "handover", "clean")
    late = {(node, kind): 30.0 for node in run.targets for kind in asked}

    def replace() -> None:
        run.targets[primary].crash(4.0)
        run.targets[primary].disks[run.roles.replicas[0]].empty("new")

    return [
        (1.0, lambda: run.probe(primary).write("first")),
        (2.0, lambda: run.cut(*apart)),
        (2.1, lambda: run.probe(primary).write("second")),
        (2.2, lambda: run.world.held.update(late)),
        (7.0, replace),
        (9.0, run.heal),
        (12.0, lambda: run.probe(cut_off).read_until(20.0)),
        (30.0, run.world.held.clear),
    ]


def row_of_an_older_primary(run: Directed) -> list[tuple[float, Callable[[], None]]]:
    """A disk that is out of sync has a row of a primary that died; it did not count, and another was written since. The disk
    has no answer about it yet when no other has hints for it any more. Then the next primary dies."""
    primary, second, lagging = run.nodes
    run.targets[primary].skew, run.targets[second].skew = 5.0, -5.0
    apart = ((primary, second), (second, primary))
    return [
        (1.0, lambda: run.probe(primary).write("first")),
        (2.0, lambda: run.targets[lagging].crash(6.0)),
        (7.9, lambda: run.world.held.update({(lagging, "state"): 40.0, **{(each, "clean"): 20.0 for each in run.targets}})),
        (11.0, lambda: run.cut(*apart)),
        (11.1, lambda: run.probe(primary).write("never acknowledged", ("first",))),
        (11.6, lambda: run.targets[primary].crash(8.0)),
        (12.0, run.heal),
        (18.0, lambda: run.probe(second).write("later")),
        (19.9, lambda: [run.world.held.pop((each, "clean")) for each in run.targets]),
        (27.0, lambda: run.targets[second].crash(30.0)),
        (31.0, lambda: run.probe(primary).read_until(35.0)),
        (40.0, run.world.held.clear),
    ]


def replica_that_is_primary_again(run: Directed) -> list[tuple[float, Callable[[], None]]]:
    """A primary is cut off from the coordinator until another one is; then it is the primary again, before it has settled
    anything of the steps between. The other one writes at that moment: that reaches only the disk that is primary again, which
    then dies."""
    primary, second, third = run.nodes
    apart = ((primary, COORDINATOR), (COORDINATOR, primary))
    late = dict.fromkeys(((COORDINATOR, "map"), (primary, "beat"), (second, "beat"), (third, "pending")), 14.0)
    return [
        (1.0, lambda: run.probe(primary).write("first")),
        (2.0, lambda: run.world.held.update({(primary, "pending"): 30.0, **{(each, "clean"): 12.0 for each in run.nodes}})),
        (3.0, lambda: run.cut(*apart)),
        (8.5, run.heal),
        (11.9, lambda: run.world.held.update(late)),
        (13.0, lambda: run.probe(second).write("never acknowledged")),
        (14.0, lambda: run.probe(primary).read_until(16.0)),
        (14.0, lambda: run.probe(third).read_until(30.0)),
        (16.0, lambda: run.targets[primary].crash(12.0)),
        (30.0, run.world.held.clear),
    ]


def _lose(run: Directed, node: str, seconds: float) -> None:
    """Away for so long that its disks are given up."""
    run.coordinator.out_after_s = 4.0
    run.targets[node].crash(seconds)


def both_replicas_that_are_away(run: Directed) -> list[tuple[float, Callable[[], None]]]:
    """Both targets that have a row are away for a long time, one after the other."""
    primary, second = run.nodes
    other = next(each for each in run.targets if each not in run.nodes)
    return [
        (1.0, lambda: run.probe(primary).write("first")),
        (3.0, lambda: _lose(run, primary, 32.0)),
        (3.2, lambda: _lose(run, second, 32.0)),
        (16.0, lambda: run.probe(other).read_until(34.0)),
    ]


def replica_that_missed_a_delete(run: Directed) -> list[tuple[float, Callable[[], None]]]:
    """A target is away until its disk has been given up, a row has been deleted and its tombstone purged; then it is back."""
    primary, second = run.nodes
    run.world.tombstones_kept_s = 6.0
    return [
        (1.0, lambda: run.probe(primary).write("first")),
        (3.0, lambda: _lose(run, primary, 27.0)),
        (18.0, lambda: run.world.spawn(run.probe(second), run.probe(second).do("delete", NAME))),
        (32.0, lambda: run.probe(primary).read_until(50.0)),
    ]


def one_copy_that_is_away(run: Directed) -> list[tuple[float, Callable[[], None]]]:
    """The only target that has a row is away until its disk has been given up."""
    (primary,) = run.nodes
    other = next(each for each in run.targets if each != primary)
    return [
        (1.0, lambda: run.probe(primary).write("first")),
        (3.0, lambda: _lose(run, primary, 27.0)),
        (14.0, lambda: run.probe(other).read_until(28.0)),
    ]


def _replicas(run: Directed, without: str) -> tuple[str, ...]:
    """The replicas of the name in a layout without the disk of a target."""
    placement = run.coordinator.placement
    spec = LayoutSpec(frozenset(each for each in placement.disks if each[:-1] != without))
    return roles(msgspec.structs.replace(placement, layouts={1: spec}), BUCKET, NAME).replicas


def _move(run: Directed, *without: str) -> None:
    """To all disks but those of these targets."""
    run.coordinator.wanted = frozenset(each for each in run.coordinator.placement.disks if each[:-1] not in without)


def one_copy_that_was_to_move(run: Directed) -> list[tuple[float, Callable[[], None]]]:
    """The only target that has a row is away until its disk has been given up; the row was to move to another one."""
    (joins,) = run.nodes
    leaves = _replicas(run, joins)[0][:-1]
    return [
        (1.0, lambda: _move(run, joins)),
        (8.0, lambda: run.probe(leaves).write("first")),
        (9.0, lambda: run.world.held.update({(each, "report"): 24.0 for each in run.targets})),
        (9.0, lambda: _move(run)),
        (9.2, lambda: run.world.held.update({(leaves, "adopt"): 24.0})),
        (9.3, lambda: _lose(run, leaves, 30.0)),
        (24.0, run.world.held.clear),
        (24.0, lambda: run.probe(joins).read_until(38.0)),
    ]


def one_copy_whose_disk_gets_lighter(run: Directed) -> list[tuple[float, Callable[[], None]]]:
    """The only target that has a row has been given up when its disk gets another weight, by which it is no replica."""
    (leaves,) = run.nodes
    joins = _replicas(run, leaves)[0][:-1]
    return [
        (1.0, lambda: run.probe(leaves).write("first")),
        (3.0, lambda: _lose(run, leaves, 27.0)),
        (14.0, lambda: run.coordinator.weights.update({f"{leaves}a": 0.001})),
        (14.0, lambda: run.probe(joins).read_until(40.0)),
    ]


def replica_that_was_to_come(run: Directed) -> list[tuple[float, Callable[[], None]]]:
    """A row is copied to a future replica, which is none any more by the layout that is wanted then. While objects move, it is
    deleted and its tombstone gets old. In the end that disk is a replica after all."""
    joins = run.nodes[0]
    replicas = [each[:-1] for each in _replicas(run, joins)]
    run.world.tombstones_kept_s = 6.0
    return [
        (1.0, lambda: _move(run, joins)),
        (8.0, lambda: run.probe(replicas[0]).write("first")),
        (9.0, lambda: run.world.held.update({(each, "report"): 30.0 for each in run.targets})),
        (9.0, lambda: _move(run)),
        (12.0, lambda: _move(run, joins, replicas[1])),
        (13.0, lambda: run.world.spawn(run.probe(replicas[0]), run.probe(replicas[0]).do("delete", NAME))),
        (30.0, run.world.held.clear),
        (45.0, lambda: _move(run)),
        (60.0, lambda: run.probe(joins).read_until(65.0)),
    ]


def move_that_is_taken_back(run: Directed) -> list[tuple[float, Callable[[], None]]]:
    """A row is to move away, is copied, stays after all, and then is to move once more."""
    leaves = run.nodes[0]
    joins = _replicas(run, leaves)[0][:-1]
    return [
        (1.0, lambda: run.probe(leaves).write("first")),
        (2.0, lambda: run.world.held.update({(each, "report"): 8.0 for each in run.targets})),
        (2.0, lambda: _move(run, leaves)),
        (6.0, lambda: _move(run)),
        (12.0, lambda: _move(run, leaves)),
        (12.0, lambda: run.probe(joins).read_until(25.0)),
    ]


def target_that_dies_while_it_is_drained(run: Directed) -> list[tuple[float, Callable[[], None]]]:
    """Objects move away from a target, which dies for good before they have been handed over."""
    leaves, other = run.nodes
    return [
        (1.0, lambda: run.probe(leaves).write("first")),
        (2.0, lambda: run.world.held.update({(each, "report"): 6.0 for each in run.targets})),
        (2.0, lambda: _move(run, leaves)),
        (3.0, lambda: _lose(run, leaves, FOR_GOOD_S)),
        (8.0, lambda: run.probe(other).write("second")),
    ]


def replicas_that_report_while_they_are_out_of_sync(run: Directed) -> list[tuple[float, Callable[[], None]]]:
    """Both replicas of a row have been away and are behind each other when it is to move away; then they are clean at once."""
    primary, second = run.nodes
    other = next(each for each in run.targets if each not in run.nodes)
    return [
        (1.0, lambda: run.probe(primary).write("first")),
        (3.0, lambda: run.targets[primary].crash(12.0)),
        (9.0, lambda: run.probe(second).write("second")),
        (10.5, lambda: run.targets[second].crash(6.0)),
        (15.0, lambda: run.world.held.update({(each, "clean"): 24.0 for each in run.nodes})),
        (19.0, lambda: _move(run, primary, second)),
        (23.9, run.world.held.clear),
        (40.0, lambda: run.probe(other).read_until(45.0)),
    ]


def output_that_is_staged_late(run: Directed) -> list[tuple[float, Callable[[], None]]]:
    """A task was tried twice, and a coordinator was replaced while a job published. What came of the first try, and what the
    old coordinator asked for, arrives when the job is over and its output was replaced."""
    primary, _ = run.nodes
    jobs = SimJobs(run.world, run.names, run.history)

    def publish(*, is_late: bool) -> Process:
        began = run.world.now
        for what, nodes in (("stage", (primary,)), ("prepare", run.targets), ("publish", run.targets)):
            yield All({node: Call(node, what, ("job", NAME)[: 2 if what == "stage" else 1], 5.0) for node in nodes})
        if not is_late:
            run.history.append(Operation("put", NAME, "job", None, began, run.world.now, "ok"))

    return [
        (1.0, lambda: run.world.spawn(jobs, publish(is_late=False))),
        (5.0, lambda: run.probe(primary).write("later")),
        (8.0, lambda: run.world.spawn(jobs, publish(is_late=True))),
        (8.5, lambda: run.probe(primary).read_until(12.0)),
    ]


class Schedule(NamedTuple):
    """A script, and the cluster that it is played in."""

    script: Script
    copies: int
    nodes: int = 4

    def play(self) -> list[str]:
        """The problems."""
        return Directed(self.script, self.copies, nodes=self.nodes).go().problems


SCHEDULES: dict[str, Schedule] = {
    "reader that did not hear": Schedule(reader_that_did_not_hear, 2),
    "other name of a reader that did not hear": Schedule(other_name_of_a_reader_that_did_not_hear, 2),
    "commit of an old primary": Schedule(commit_of_an_old_primary, 3),
    "clean report that is late": Schedule(clean_report_that_is_late, 2),
    "hint that is late": Schedule(note_that_is_late, 2, nodes=2),
    "primary that is lost": Schedule(primary_that_is_lost, 3),
    "primary that is emptied": Schedule(primary_that_is_emptied, 2),
    "row of an older primary": Schedule(row_of_an_older_primary, 3),
    "replica that is primary again": Schedule(replica_that_is_primary_again, 3, nodes=3),
    "both replicas that are away": Schedule(both_replicas_that_are_away, 2),
    "replica that missed a delete": Schedule(replica_that_missed_a_delete, 2),
    "one copy that is away": Schedule(one_copy_that_is_away, 1),
    "one copy that was to move": Schedule(one_copy_that_was_to_move, 1),
    "one copy whose disk gets lighter": Schedule(one_copy_whose_disk_gets_lighter, 1),
    "target that dies while it is drained": Schedule(target_that_dies_while_it_is_drained, 2),
    "move that is taken back": Schedule(move_that_is_taken_back, 1),
    "replica that was to come": Schedule(replica_that_was_to_come, 2),
    "replicas that report while they are out of sync": Schedule(replicas_that_report_while_they_are_out_of_sync, 2),
    "readers that are lost": Schedule(readers_that_are_lost, 3),
    "disks that miss one write each": Schedule(disks_that_miss_one_write_each, 3, nodes=3),
    "answer that is late": Schedule(answer_that_is_late, 3),
    "output that is staged late": Schedule(output_that_is_staged_late, 2),
}
