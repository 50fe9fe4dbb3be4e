"""A client in the simulation: reads, writes, deletes and swaps a few hot names by an old map, and notes what it saw."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from dfc.placement.roles import Placement, roles
from simulation import coordinator
from simulation.histories import Kind, Operation
from simulation.target import BUCKET
from simulation.world import Actor, Call, Process, Sleep, World

PATIENCE_S = 6.0
ANSWER_S = 10.0
FOREVER = 1e9
RELAY_SHARE = 0.4
RELAY_ANSWER_S = 1.5
COLD_SHARE = 0.3
COLD_WRITES = 0.1


class SimClient(Actor):
    """`history` is shared by all clients. Cold names are read, and written now and then: what is lost of them stays lost."""

    def __init__(self, world: World, name: str, hot: list[str], cold: list[str], history: list[Operation]) -> None:
        super().__init__(world, name)
        self.history = history
        self.stop_at = FOREVER
        self.relays: list[str] = []
        self._hot, self._cold = hot, cold
        self._placement: Placement | None = None
        self._count = 0

    def start(self) -> None:
        self.world.spawn(self, self._run())

    def _run(self) -> Process:
        chance = self.world.random
        while self.world.now < self.stop_at:
            yield Sleep(chance.uniform(0.02, 0.35))
            self._count += 1
            value, dice = f"{self.name}-{self._count}", chance.random()
            if chance.random() < COLD_SHARE:
                kind: Kind = "put" if chance.random() < COLD_WRITES else "get"
                yield from self.do(kind, chance.choice(self._cold), value if kind == "put" else None)
                continue
            name = chance.choice(self._hot)
            if dice < 0.45:
                yield from self.do("get", name)
            elif dice < 0.75:
                yield from self.do("put", name, value)
            elif dice < 0.8:
                yield from self.do("delete", name)
            else:
                known, found = yield from self.do("get", name)
                if known:
                    yield from self.do("swap", name, value, (found,))

    def do(self, kind: Kind, name: str, value: Any = None, expected: tuple[Any] | None = None) -> Process:
        """(whether an answer came, the value read)."""
        world, began = self.world, self.world.now
        chance = world.random
        while world.now < began + PATIENCE_S:
            if self._placement is None or chance.random() < 0.03:
                new = yield Call(coordinator.NAME, "placement")
                self._placement = new or self._placement
                if self._placement is None:
                    yield Sleep(0.2)
                    continue
            node = self._choose(kind, name)
            if kind == "get":
                answer = yield Call(node, "get", (name,), ANSWER_S)
            elif self.relays and chance.random() < RELAY_SHARE:
                answer = yield Call(chance.choice(self.relays), "put", (name, value, expected), RELAY_ANSWER_S)
            else:
                answer = yield Call(node, "put", (name, value, expected), ANSWER_S)
            if answer is None and kind == "get":
                self._placement = None
                continue
            if answer is None or answer[0] == "unknown":
                self._placement = None if answer is None else self._placement
                self._note(kind, name, value, expected, began, FOREVER, "unknown")
                return False, None
            if answer[0] == "retry":
                self._learn(answer[1])
                yield Sleep(chance.uniform(0.05, 0.3))
                continue
            if kind == "get":
                self._note(kind, name, answer[1], None, began, world.now, "ok")
                return True, answer[1]
            self._note(kind, name, value, expected, began, world.now, answer[0])
            return False, None
        return False, None

    def _learn(self, placement: Placement | None) -> None:
        if placement is None:
            if self.world.random.random() < 0.3:
                self._placement = None
        elif self._placement is None or placement.step > self._placement.step:
            self._placement = placement

    def _choose(self, kind: Kind, name: str) -> str:
        assert self._placement is not None
        chance, found = self.world.random, roles(self._placement, BUCKET, name)
        nodes = sorted({disk.node for disk in self._placement.disks.values()})
        if chance.random() < 0.03:
            return chance.choice(nodes)
        if kind == "get" and found.readers:
            disk = found.readers[0] if chance.random() < 0.45 else chance.choice(found.readers)
        elif kind != "get" and found.primary is not None:
            disk = found.primary
        else:
            return chance.choice(nodes)
        return self._placement.disks[disk].node

    def _note(self, kind: Kind, name: str, value: Any, expected: Any, began: float, ended: float, outcome: Any) -> None:
        wanted = None if expected is None else expected[0]
        gave_up = self.world.now if outcome == "unknown" and self.world.has_relays else inf
        self.history.append(Operation(kind, name, value, wanted, began, ended, outcome, gave_up))


class SimRelay(Actor):
    """A proxy that passes writes on to the primary by the map that it knows; it is stopped at times, with writes in hand."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._placement: Placement | None = None

    def on_put(self, _sender: str, name: str, value: Any, expected: tuple[Any] | None, has_left: Callable[[], bool]) -> Process:
        begun_s = self.world.now
        if self._placement is None:
            self._placement = yield Call(coordinator.NAME, "placement")
        found = None if self._placement is None else roles(self._placement, BUCKET, name).primary
        if found is None or self._placement is None:
            self._placement = None
            return ("retry", None)
        # It may have stood still since it has read the request.
        if self.world.notices_given_up and self.paused_until > begun_s and has_left():
            return ("retry", None)
        # If its client leaves, it closes its connection to the primary as well.
        primary = self._placement.disks[found].node
        passed_on = has_left if self.world.notices_given_up else lambda: False
        answer = yield Call(primary, "put", (name, value, expected), ANSWER_S, passed_on)
        if answer is None or answer[0] == "retry":
            self._placement = None
        return ("unknown",) if answer is None else answer
