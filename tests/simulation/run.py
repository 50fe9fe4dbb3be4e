"""A seed: a cluster under faults, what must hold while they last and after they have ended."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from dfc.placement.roles import Copies, DiskPlace, LayoutSpec, Placement, SliceState, roles
from simulation.client import SimClient, SimRelay
from simulation.coordinator import SimCoordinator
from simulation.histories import Operation, is_linearizable
from simulation.publishing import SimJobs
from simulation.target import BUCKET, SimDisk, SimTarget
from simulation.world import Process, Sleep, Slowness, World

DOWN_AFTER_S = 3.8
OUT_AFTER_S = 6.0
TOMBSTONES_S = 12.0
FAULTS_S = 35.0
HEAL_S = 60.0
FOR_GOOD_S = 1e9
FINAL_READS_S = 50.0
HOT = ["hot0", "hot1"]
STUCK = "runs in which a disk is out of sync with a dead one"
COLD = ["cold0", "cold1", "cold2", "cold3"]
NAMES = HOT + COLD
SLICES = 4
CLIENTS = 6


@dataclass(frozen=True)
class Scenario:
    """What happens in a run. `nodes` have `disks` each; with `moves`, layouts change; with `wipes`, disks are emptied; with
    `late`, messages between targets arrive long after their sender has given up; with `leaves`, most targets that end say so
    before; with `slow_rows`, rows that a new primary adopts come late or never; with `power` "one", single targets lose power,
    which costs what is not synced, and with "all", all at once. With `losses`, targets are away for so long that their disks
    are given up, and with `for_good`, the last one does not come back; with `removes`, the first one does not, and is removed
    for good. With `purges`, tombstones are kept for a short time. With `jobs`, outputs of jobs are published, and with
    `takeovers` by several coordinators, unless a job is cancelled. `relays` pass writes on, and are stopped for longer than
    their clients wait."""

    copies: int = 2
    nodes: int = 4
    disks: int = 2
    faults: bool = True
    moves: bool = True
    wipes: bool = False
    changes_copies: bool = False
    late: bool = False
    leaves: bool = False
    slow_rows: bool = False
    power: Literal["", "one", "all"] = ""
    losses: bool = False
    for_good: bool = False
    removes: bool = False
    purges: bool = False
    jobs: bool = False
    takeovers: bool = False
    relays: int = 0


@dataclass
class Outcome:
    """`problems` is empty for a good run."""

    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class Run:
    """One seed of one scenario."""

    def __init__(self, seed: int, scenario: Scenario) -> None:
        self.scenario = scenario
        self.world = World(seed)
        self.world.slow_rows = scenario.slow_rows
        self.world.tombstones_kept_s = TOMBSTONES_S if scenario.purges else inf
        self.world.slow = {"map": Slowness(0.5, 3.0), "pending": Slowness(0.5, 3.0)}
        if scenario.late:
            late = Slowness(0.1, 6.0)
            self.world.slow |= dict.fromkeys(
                ("commit", "confirm", "state", "adopt", "adopt_direct", "version", "handover", "have"), late
            )
        if scenario.takeovers:  # what a coordinator has asked for may be done when another one is further
            self.world.slow |= dict.fromkeys(("stage", "stage_copy", "prepare", "publish", "discard"), Slowness(0.25, 4.0))
        self.chance: random.Random = self.world.random
        names = [f"n{number}" for number in range(scenario.nodes)]
        self.disk_ids = [f"{node}{'abcdef'[number]}" for node in names for number in range(scenario.disks)]
        start = self.disk_ids if not scenario.moves else self._layout()
        placement = Placement(
            step=1,
            disks={
                each: DiskPlace(id=each, node=each[:-1], group=each[:-1], domain=each[:-1], incarnation="first")
                for each in self.disk_ids
            },
            layouts={1: LayoutSpec(frozenset(start))},
            slices=(SliceState(1),) * SLICES,
            copies={BUCKET: Copies.of(scenario.copies)},
        )
        self.coordinator = SimCoordinator(self.world, placement, DOWN_AFTER_S)
        self.targets = {
            node: SimTarget(self.world, node, number, [each for each in self.disk_ids if each[:-1] == node])
            for number, node in enumerate(names)
        }
        self.scales = random.Random(f"weights of {seed}")  # of its own: what else happens is the same without weights
        self.history: list[Operation] = []
        self.names = NAMES
        self.clients = [SimClient(self.world, f"c{number}", HOT, COLD, self.history) for number in range(CLIENTS)]
        self.relays = [SimRelay(self.world, f"p{number}") for number in range(scenario.relays)]
        self.world.has_relays = bool(self.relays)
        for client in self.clients:
            client.relays = [relay.name for relay in self.relays]
        self.jobs = SimJobs(self.world, NAMES, self.history, takeovers=scenario.takeovers) if scenario.jobs else None
        self.wiped = 0

    def _layout(self) -> list[str]:
        """Some disks, on at least as many nodes as there are copies."""
        nodes = sorted({each[:-1] for each in self.disk_ids})
        chosen = self.chance.sample(nodes, self.chance.randint(min(self.scenario.copies, len(nodes)), len(nodes)))
        found = []
        for node in chosen:
            own = [each for each in self.disk_ids if each[:-1] == node]
            found += self.chance.sample(own, self.chance.randint(1, len(own)))
        return sorted(found)

    def go(self) -> Outcome:
        world = self.world
        for client in self.clients:
            client.stop_at = FAULTS_S
            client.start()
        if self.jobs is not None:
            self.jobs.stop_at = FAULTS_S
            self.jobs.start()
        if self.scenario.faults:
            world.loss = self.chance.choice([0, 0, 0.01, 0.05])
            world.after(2, self._fault)
        if self.relays:
            world.after(2, self._stop_relay)
        if self.scenario.moves:
            world.after(3, self._move)
        if self.scenario.wipes:
            world.after(self.chance.uniform(3, 10), self._wipe)
        if self.scenario.power:
            world.after(self.chance.uniform(3, 8), self._cut_power)
        if self.scenario.losses:
            self.coordinator.out_after_s = OUT_AFTER_S
            world.after(self.chance.uniform(2, 6), self._lose)
        if self.scenario.changes_copies:
            world.after(self.chance.uniform(2, 8), self._change_copies)
        world.run_until(FAULTS_S)
        world.cuts.clear()
        world.loss = 0.0
        world.run_until(FAULTS_S + HEAL_S * (2 if self.scenario.losses and self.scenario.moves else 1))
        outcome = Outcome()
        self._final_reads(outcome)
        if self._waits_for_the_dead():
            # It may lack what that one alone has acknowledged, so nothing is given up: somebody has to decide what is lost.
            outcome.counts[STUCK] += 1
            outcome.problems.clear()  # what cannot be read
        else:
            self._check_calm(outcome)
        if self.scenario.power != "all":  # that may lose writes
            self._check_histories(outcome)
        if self.jobs is not None:
            self._check_jobs(self.jobs, outcome)
        outcome.counts.update(f"{op.kind} {op.outcome}" for op in self.history)
        outcome.counts["steps"] = self.coordinator.placement.step
        outcome.counts["disks given up"] = self.coordinator.evicted
        outcome.counts["disks removed"] = len(self.disk_ids) - len(self.coordinator.placement.disks)
        outcome.counts["events"] = world.events
        return outcome

    # --- faults

    def _again(self, seconds: float, action: Callable[[], None]) -> None:
        """Do it after a while, unless the time of faults is over."""
        self.world.after(seconds, lambda: action() if self.world.now <= FAULTS_S else None)

    def _fault(self) -> None:
        world, chance = self.world, self.chance
        dice, nodes = chance.random(), list(self.targets)
        if dice < 0.35:
            target = self.targets[chance.choice(nodes)]
            if self.scenario.leaves and dice < 0.25 and not target.is_dead:
                target.leave()
            target.crash(chance.choice([0.2, 1, 3, 6]) * chance.uniform(0.5, 1.5))
        elif dice < 0.55:
            self.targets[chance.choice(nodes)].paused_until = world.now + chance.uniform(0.5, 7)
        elif dice < 0.8:
            self._cut(chance.choice(nodes), chance.choice([*nodes, "coordinator", "coordinator"]))
        elif dice < 0.88:
            self.coordinator.crash(chance.uniform(0.3, 5))
        self._again(chance.expovariate(1 / 1.4), self._fault)

    def _stop_relay(self) -> None:
        relay = self.chance.choice(self.relays)
        relay.paused_until = self.world.now + self.chance.uniform(0.5, 5)
        self._again(self.chance.uniform(0.5, 3), self._stop_relay)

    def _cut(self, one: str, other: str) -> None:
        links = {(one, other), (other, one)} if self.chance.random() < 0.7 else {(one, other)}
        self.world.cuts |= links
        self.world.after(self.chance.uniform(0.5, 8), lambda: self.world.cuts.difference_update(links))

    def _move(self) -> None:
        self.coordinator.wanted = frozenset(self._layout())
        self._weigh()
        self._again(self.chance.uniform(4, 12), self._move)

    def _weigh(self) -> None:
        """Half of the moves give some disks other weights, and others the one with which they joined again."""
        if self.scales.random() < 0.5:
            weights = {each: self.scales.choice([0.25, 0.5, 1.0, 2.0, 4.0]) for each in self.disk_ids}
            self.coordinator.weights = {each: weight for each, weight in weights.items() if weight != 1.0}

    def _change_copies(self) -> None:
        self.coordinator.wanted_copies = (BUCKET, self.chance.randint(1, 3))
        self._again(self.chance.uniform(5, 12), self._change_copies)

    def _wipe(self) -> None:
        """Empty a disk, one at a time, and only while no other one lacks data: copies promise no more than that."""
        if not self._is_calm():
            self._again(1, self._wipe)
            return
        self.wiped += 1
        disk_id = self.chance.choice(self.disk_ids)
        target = self.targets[disk_id[:-1]]
        target.crash(self.chance.uniform(0.3, 8))
        target.disks[disk_id].empty(f"new-{self.wiped}")
        self._again(self.chance.uniform(8, 15), self._wipe)

    def _is_calm(self) -> bool:
        """Whether no disk lacks data, and all targets run."""
        places = self.coordinator.placement.disks.values()
        calm = all(place.is_up and not place.out_of_sync_with for place in places) and not self.coordinator.is_dead
        here = all(not target.is_dead for target in self.targets.values())
        return calm and here and all(self._disk(place.id).incarnation == place.incarnation for place in places)

    def _lose(self) -> None:
        """A target is away for a long time. Only while no disk lacks data: copies promise no more than that."""
        if not self._is_calm():
            self._again(0.3, self._lose)
            return
        target, away_s = self.targets[self.chance.choice(list(self.targets))], self.chance.uniform(1, 4) * OUT_AFTER_S
        if self.scenario.removes or (self.scenario.for_good and self.world.now > FAULTS_S / 2):
            target.crash(FOR_GOOD_S)
            if self.scenario.removes:
                self.world.after(1.0, lambda: self._remove(set(target.disks)))
            return
        target.crash(away_s)
        self._again(self.chance.uniform(8, 15), self._lose)

    def _remove(self, disks: set[str]) -> None:
        """Disks that are lost are removed for good: those that were given up in any case, and sometimes others."""
        places = self.coordinator.placement.disks
        evicted = disks <= self.coordinator.gone
        if self.coordinator.is_dead or not (evicted or self.chance.random() < 0.1) or any(places[each].is_up for each in disks):
            self.world.after(1.0, lambda: self._remove(disks))
            return
        self.coordinator.remove(disks)

    def _cut_power(self) -> None:
        """Of one target while no disk lacks data, or of all, whatever they are doing."""
        if self.scenario.power == "one" and not self._is_calm():
            self._again(0.3, self._cut_power)
            return
        hit = list(self.targets.values()) if self.scenario.power == "all" else [self.chance.choice(list(self.targets.values()))]
        for target in hit:
            target.crash(self.chance.uniform(0.3, 8))
            for disk in target.disks.values():
                disk.lose_power(self.chance)
        self._again(self.chance.uniform(5, 10) * len(hit), self._cut_power)

    def _disk(self, disk_id: str) -> SimDisk:
        return self.targets[disk_id[:-1]].disks[disk_id]

    # --- checks

    def _final_reads(self, outcome: Outcome) -> None:
        found: dict[str, bool] = {}
        reader = SimClient(self.world, "last", HOT, COLD, self.history)

        def read() -> Process:
            for name in self.names:
                for _ in range(3):
                    found[name], _value = yield from reader.do("get", name)
                    if found[name]:
                        break
                    yield Sleep(1.0)

        self.world.spawn(reader, read())
        self.world.run_until(self.world.now + FINAL_READS_S)
        outcome.problems += [f"{name} cannot be read at the end" for name in self.names if not found.get(name)]

    def _check_jobs(self, jobs: SimJobs, outcome: Outcome) -> None:
        outcome.problems += jobs.problems if jobs.is_idle else [*jobs.problems, "a job goes on for ever"]
        outcome.counts.update({"jobs succeeded": jobs.succeeded, "jobs overtaken": jobs.overtaken})
        outcome.counts.update({"jobs cancelled": jobs.cancelled, "jobs taken over": jobs.taken_over})

    def _check_histories(self, outcome: Outcome) -> None:
        for name in self.names:
            fine = is_linearizable([op for op in self.history if op.name == name])
            if fine is not True:
                outcome.problems.append(f"{name} is not linearizable" if fine is False else f"{name} is undecided")

    def _check_calm(self, outcome: Outcome) -> None:
        """After the faults: everything up and clean, no move under way, exactly the replicas hold every name, all alike."""
        placement = self.coordinator.placement
        problems = outcome.problems
        if left := [each.id for each in placement.disks.values() if each.removing]:
            problems.append(f"not removed: {left}")
        if any(state.to is not None for state in placement.slices):
            problems.append(f"slices are still moving: {placement.slices}, wanted {self.coordinator.wanted}")
        if back := {each for each in self.coordinator.gone if not self.targets[each[:-1]].is_dead}:
            problems.append(f"still given up: {sorted(back)}")
        lost = self._lost()
        odd = {
            d.id: (d.status, sorted(d.out_of_sync_with))
            for d in placement.disks.values()
            if d.id not in lost and (not d.is_up or d.out_of_sync_with)
        }
        if odd:
            problems.append(f"disks are not up and clean: {odd}")
        copies = placement.copies_of(BUCKET)
        if not copies.reading == copies.written == copies.wanted:
            problems.append(f"copies are still changed: {copies}")
        for name in self.names:
            self._check_rows(name, problems)

    def _dead(self) -> set[str]:
        return {each for each in self.disk_ids if self.targets[each[:-1]].is_dead}

    def _waits_for_the_dead(self) -> bool:
        return any(
            place.out_of_sync_with & (self._dead() - self._lost()) for place in self.coordinator.placement.disks.values()
        )

    def _lost(self) -> set[str]:
        """The disks that were given up, and those that are dead and hold nothing by any layout."""
        specs = self.coordinator.placement.layouts.values()
        return {each for spec in specs for each in spec.gone} | {
            each for each in self._dead() if all(each not in spec.disks for spec in specs)
        }

    def _check_rows(self, name: str, problems: list[str]) -> None:
        replicas = roles(self.coordinator.placement, BUCKET, name).replicas
        lost = self._lost()
        rows = {each: self._disk(each).rows.get(name) for each in self.disk_ids if each not in lost}
        if len({rows[each] for each in replicas}) != 1:
            problems.append(f"{name}: copies differ at its replicas {replicas}: {rows}")
        if extra := [each for each, row in rows.items() if row is not None and each not in replicas]:
            problems.append(f"{name}: surplus rows at {extra}, replicas {replicas}")
        if pending := [each for each in rows if name in self._disk(each).pending]:
            problems.append(f"{name}: still pending at {pending}")
        if hints := [
            (each, hint) for each in rows for hint in self._disk(each).hints if hint.name == name and hint.disk not in lost
        ]:
            problems.append(f"{name}: still hinted {hints}")
