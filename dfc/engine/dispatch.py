"""Which task goes to which worker, and which task a dead worker was busy with. A state machine without I/O.

Dask could queue everything itself, but then all tasks that wait at a worker are failed when it dies, and a task that kills its
worker costs its neighbours their tries. So a worker gets one task, and one more to begin with at once when that has ended; the
rest waits here. Which of the two has killed a worker cannot be known for sure (what the first one said last may have died
with it): both are suspects then, and run once more, each alone at its worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

DEPTH: Final = 2  # the one that runs and the one that is next


@dataclass(slots=True)
class Waiting:
    """A task of the service. `near` names the node whose workers should have it; a task with `losses`, workers that died with
    it and another one, runs alone."""

    number: int
    task: bytes
    near: str | None
    losses: int = 0
    worker: str = ""  # address of the worker that has it


@dataclass(slots=True)
class _Worker:
    node: str
    tasks: list[int] = field(default_factory=list)
    alone: bool = False  # with a suspect


class Dispatcher:
    """Workers are known by their address, which a worker that is started again does not keep."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self._blamed: dict[str, int | None] = {}  # dead worker → the task that it ran, if it had no other
        self._queue: dict[int, Waiting] = {}
        self._given: dict[int, Waiting] = {}

    @property
    def is_idle(self) -> bool:
        return not self._queue and not self._given

    def set_workers(self, nodes: Mapping[str, str]) -> None:
        """The workers there are now: address → id of the node beside which it runs, or an empty text."""
        for address in self._workers.keys() - nodes.keys():
            self._bury(address)
        for address, node in nodes.items():
            if address not in self._blamed:
                self._workers.setdefault(address, _Worker(node))

    def add(self, waiting: Waiting) -> None:
        self._queue[waiting.number] = waiting

    def assign(self) -> list[Waiting]:
        """Tasks to hand to Dask now; `worker` says where."""
        found: list[Waiting] = []
        nodes = {worker.node for worker in self._workers.values()}
        for depth in range(1, DEPTH + 1):
            free = [
                (address, worker)
                for address, worker in self._workers.items()
                if len(worker.tasks) < depth and not (worker.alone and worker.tasks)
            ]
            for strict in (True, False) if depth == 1 else (True,):
                for address, worker in free:
                    if len(worker.tasks) < depth and (waiting := self._choose(worker, nodes, strict)) is not None:
                        del self._queue[waiting.number]
                        waiting.worker = address
                        worker.tasks.append(waiting.number)
                        worker.alone = waiting.losses > 0
                        self._given[waiting.number] = waiting
                        found.append(waiting)
        return found

    def _choose(self, worker: _Worker, nodes: set[str], strict: bool) -> Waiting | None:
        """The first task that belongs to this worker; else one that may run anywhere; else, not `strict`, any."""
        anywhere = None
        for waiting in self._queue.values():
            if waiting.losses and worker.tasks:
                continue
            if waiting.near == worker.node:
                return waiting
            if anywhere is None and (not strict or waiting.near is None or waiting.near not in nodes):
                anywhere = waiting
        return anywhere

    def finished(self, number: int) -> None:
        """The task has been answered, or was taken back."""
        self._queue.pop(number, None)
        waiting = self._given.pop(number, None)
        if waiting is not None and (worker := self._workers.get(waiting.worker)) is not None:
            worker.tasks.remove(number)

    def lost(self, number: int) -> bool:
        """The worker of a task is dead. True: it had this task alone, which is to be reported; False: it waits again."""
        waiting = self._given.get(number)
        if waiting is None:
            return True
        self._bury(waiting.worker)
        blamed = self._blamed.get(waiting.worker) == number
        self.finished(number)
        waiting.losses += 1
        if blamed or waiting.losses > 1:
            return True
        self._queue = {number: waiting, **self._queue}
        return False

    def drain(self) -> Iterator[int]:
        """All tasks, which are forgotten: the scheduler is gone."""
        numbers = [*self._given, *self._queue]
        self._given.clear()
        self._queue.clear()
        self._workers.clear()
        yield from numbers

    def _bury(self, address: str) -> None:
        worker = self._workers.pop(address, None)
        if worker is not None:
            self._blamed[address] = worker.tasks[0] if len(worker.tasks) == 1 else None
