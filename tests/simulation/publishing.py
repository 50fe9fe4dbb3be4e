"""Jobs in the simulation: each stages one output where its name is decided about, has it copied to all disks that must have it,
and has all targets publish it until they say that nothing of it waits. It has succeeded when the disk that decides has it, or
something newer."""

from __future__ import annotations

from dfc.placement.roles import roles
from simulation import coordinator
from simulation.histories import Operation
from simulation.target import BUCKET, Version
from simulation.world import Actor, All, Call, Process, Sleep, World

PUBLISH_S = 4.0
AGAIN_S = 0.2
PREPARE_ATTEMPTS = 30
FOREVER = 1e9


class SimJobs(Actor):
    """What the coordinator does about jobs, one at a time; its journal survives everything, so that it never crashes itself."""

    def __init__(self, world: World, names: list[str], history: list[Operation]) -> None:
        super().__init__(world, "jobs")
        self.stop_at = FOREVER
        self.problems: list[str] = []
        self.succeeded = self.overtaken = 0
        self.is_idle = True
        self._names = names
        self._history = history

    def start(self) -> None:
        self.world.spawn(self, self._run())

    def _run(self) -> Process:
        number = 0
        while self.world.now < self.stop_at:
            yield Sleep(self.world.random.uniform(0.1, 1.5))
            number += 1
            self.is_idle = False
            yield from self.run(f"job {number}", self.world.random.choice(self._names))
            self.is_idle = True

    def run(self, job: str, name: str) -> Process:
        """One job, from staging to its end."""
        began = self.world.now
        version = yield from self._stage(job, name)
        if version is None:
            return
        yield Sleep(self.world.random.uniform(0, 0.5))
        if version not in (yield from self._prepare(job)):
            yield All({node: Call(node, "discard", (job,)) for node in self._nodes})
            return
        yield from self._publish(job)
        found, is_last = (yield from self._decided(name)), False
        while found < version and not is_last:
            is_last = not self._down()
            yield Sleep(AGAIN_S)
            yield from self._publish(job)
            found = yield from self._decided(name)
        if found < version:
            self.problems.append(f"{name}: the output of {job}, {version}, is lost: {found}")
        is_newest = found == version
        self.succeeded += is_newest
        self.overtaken += found > version
        # One that is replaced may or may not have been there before.
        ended, outcome = (self.world.now, "ok") if is_newest else (FOREVER, "unknown")
        self._history.append(Operation("put", name, job, None, began, ended, outcome))  # type: ignore[arg-type]
        yield All({node: Call(node, "discard", (job,)) for node in self._nodes})

    @property
    def _nodes(self) -> list[str]:
        return [name for name, actor in self.world.actors.items() if hasattr(actor, "on_publish")]

    def _stage(self, job: str, name: str) -> Process:
        """The version of the output; None: it was given up, or the answer was lost, and what is staged will be discarded."""
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
