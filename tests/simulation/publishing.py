"""Jobs in the simulation: each stages one output where its name is decided about, has it copied to all disks that must have it,
and has all targets publish it until they say that nothing of it waits. It has succeeded when the disk that decides has it, or
something newer. Another coordinator may take it over at any time, and somebody may cancel it until it is published."""

from __future__ import annotations

from typing import Literal

from dfc.placement.roles import roles
from simulation import coordinator
from simulation.histories import Operation
from simulation.target import BUCKET, Version
from simulation.world import Actor, All, Call, Process, Sleep, World

PUBLISH_S = 4.0
AGAIN_S = 0.2
DISCARD_AGAIN_S = 2.0
PREPARE_ATTEMPTS = 30
FOREVER = 1e9
CANCEL_SHARE = 0.3
STAGE_ATTEMPTS = 4  # where what was given up may come late


class SimJobs(Actor):
    """What coordinators do about jobs, one job at a time. The journal survives everything. A coordinator that was replaced goes
    on, as one that was stopped for a while would, until it is to write the journal, which is fenced."""

    def __init__(self, world: World, names: list[str], history: list[Operation], *, takeovers: bool = False) -> None:
        super().__init__(world, "jobs")
        self.stop_at = FOREVER
        self.problems: list[str] = []
        self.succeeded = self.overtaken = self.cancelled = self.taken_over = 0
        self.is_idle = True
        self._names = names
        self._history = history
        self._takeovers = takeovers
        self._journal: dict[str, Literal["running", "publishing", "over"]] = {}
        self._versions: dict[str, Version] = {}  # of outputs that are published
        self._office = 0  # counts coordinators

    def start(self) -> None:
        self.world.spawn(self, self._run())

    def _run(self) -> Process:
        number = 0
        while self.world.now < self.stop_at:
            yield Sleep(self.world.random.uniform(0.1, 1.5))
            number += 1
            self.is_idle = False
            job, name, began = f"job {number}", self.world.random.choice(self._names), self.world.now
            self._journal[job] = "running"
            if self._takeovers:
                self.world.spawn(self, self._disturb(job, name, began))
            yield from self._go_on(job, name, began, self._office)
            while self._journal[job] != "over":
                yield Sleep(AGAIN_S)
            self.is_idle = True

    def _disturb(self, job: str, name: str, began: float) -> Process:
        """Let other coordinators take a job over, and perhaps cancel it."""
        chance = self.world.random
        for _ in range(chance.randint(0, 3)):
            yield Sleep(chance.uniform(0.0, 2.0))
            if self._journal[job] == "over":
                return
            if self._journal[job] == "running" and chance.random() < CANCEL_SHARE:
                self.cancelled += 1
                yield from self._cancel(job)
                return
            self.taken_over += 1
            self._office += 1
            self.world.spawn(self, self._go_on(job, name, began, self._office))

    def _cancel(self, job: str) -> Process:
        """Nothing of it may ever be read: it is not in the history."""
        self._journal[job] = "over"
        yield from self._discard(job)

    def _discard(self, job: str) -> Process:
        """Have all nodes forget a job; of those that do not answer, somebody else goes on to ask."""
        told = yield All({node: Call(node, "discard", (job,)) for node in self._nodes})
        if left := [node for node in self._nodes if not told[node]]:
            self.world.spawn(self, self._discard_later(job, left))

    def _discard_later(self, job: str, left: list[str]) -> Process:
        while left:
            yield Sleep(DISCARD_AGAIN_S)
            told = yield All({node: Call(node, "discard", (job,)) for node in left})
            left = [node for node in left if not told[node]]

    def _is_replaced(self, job: str, office: int) -> bool:
        return office != self._office or self._journal[job] == "over"

    def _go_on(self, job: str, name: str, began: float, office: int) -> Process:
        """What one coordinator does for a job, from where the journal says that it is. All that is not published is done again,
        as it would be if the journal did not say yet that it was done."""
        if self._journal[job] == "running":
            for _ in range(STAGE_ATTEMPTS if self._takeovers else 1):
                staged = yield from self._stage(job, name)
                if self._is_replaced(job, office):
                    return
                if staged is not None:
                    break
            if staged is None:
                self._journal[job] = "over"
                return
            yield Sleep(self.world.random.uniform(0, 0.5))
            prepared = yield from self._prepare(job)
            if self._is_replaced(job, office):
                return
            if len(prepared) != 1:
                self._journal[job] = "over"
                yield from self._discard(job)
                return
            self._journal[job], self._versions[job] = "publishing", prepared[0]
        version = self._versions[job]
        yield from self._publish(job)
        found, is_last = (yield from self._decided(name)), False
        while found < version and not is_last:
            is_last = not self._down()
            yield Sleep(AGAIN_S)
            yield from self._publish(job)
            found = yield from self._decided(name)
        if self._is_replaced(job, office):
            return
        self._journal[job] = "over"
        if found < version:
            self.problems.append(f"{name}: the output of {job}, {version}, is lost: {found}")
        is_newest = found == version
        self.succeeded += is_newest
        self.overtaken += found > version
        # One that is replaced may or may not have been there before.
        ended, outcome = (self.world.now, "ok") if is_newest else (FOREVER, "unknown")
        self._history.append(Operation("put", name, job, None, began, ended, outcome))  # type: ignore[arg-type]
        yield from self._discard(job)

    @property
    def _nodes(self) -> list[str]:
        return [name for name, actor in self.world.actors.items() if hasattr(actor, "on_publish")]

    def _stage(self, job: str, name: str) -> Process:
        """The version of the output; None: it was given up, or the answer was lost, and what is staged is of no use."""
        placement = yield Call(coordinator.NAME, "placement")
        if placement is None:
            return None
        primary = roles(placement, BUCKET, name).primary
        if primary is None:
            return None
        return (yield Call(placement.disks[primary].node, "stage", (job, name)))

    def _prepare(self, job: str) -> Process:
        """Have what is staged copied; the versions of what is, none if that was given up."""
        left, found = self._nodes, list[Version]()
        for _ in range(PREPARE_ATTEMPTS):
            told = yield All({node: Call(node, "prepare", (job,), PUBLISH_S) for node in left})
            found += [version for node in left for version in told[node] or ()]
            left = [node for node in left if told[node] is None]
            if not left:
                return found
            yield Sleep(AGAIN_S)
        return []

    def _publish(self, job: str) -> Process:
        left = set(self._nodes) - self._down()
        while left:
            told = yield All({node: Call(node, "publish", (job,), PUBLISH_S) for node in sorted(left)})
            left = {node for node in left if not told[node]} - self._down()
            yield Sleep(AGAIN_S)

    def _down(self) -> set[str]:
        """The targets that are down by the newest placement."""
        actor = self.world.actors[coordinator.NAME]
        assert isinstance(actor, coordinator.SimCoordinator)
        return {disk.node for disk in actor.placement.disks.values() if not disk.is_up}

    def _decided(self, name: str) -> Process:
        """The version of a name that counts, or (0, 0)."""
        while True:
            placement = yield Call(coordinator.NAME, "placement")
            primary = None if placement is None else roles(placement, BUCKET, name).primary
            if primary is not None:
                told = yield Call(placement.disks[primary].node, "state", (name, placement))
                if told is not None and told[1]:
                    found: Version = (0, 0) if told[0] is None else told[0].version
                    return found
            yield Sleep(AGAIN_S)
