"""Decides which worker gets which task, and which task to blame for a dead worker. A state machine without I/O.

Dask could queue everything itself, but when a worker dies it fails all tasks queued there, so a task that kills its worker
would use up the retries of others. Therefore a worker gets one task, and a second one to start as soon as the first ends; the
rest is queued here. If a worker with two tasks dies, either may have killed it (the answer of the first may have been lost
with the worker): both are suspects and run once more, each alone on its worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

DEPTH: Final = 2  # the running task and the next one


@dataclass(slots=True)
class Waiting:
    """A queued task. `near` names the node whose workers should run it. `losses` counts workers that died while they had this
    task and another; a task with losses runs alone."""

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
    """Assigns tasks to workers. A worker is identified by its address, which changes when it is restarted."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self._blamed: dict[str, int | None] = {}  # dead worker → its task, if it had only one
        self._queue: dict[int, Waiting] = {}
        self._given: dict[int, Waiting] = {}

    @property
    def is_idle(self) -> bool:
        return not self._queue and not self._given

    def set_workers(self, nodes: Mapping[str, str]) -> None:
        """Set the current workers: address → id of the node beside which it runs, or an empty string."""
        for address in self._workers.keys() - nodes.keys():
            self._bury(address)
        for address, node in nodes.items():
            if address not in self._blamed:
                self._workers.setdefault(address, _Worker(node))

    def add(self, waiting: Waiting) -> None:
        self._queue[waiting.number] = waiting

    def assign(self) -> list[Waiting]:
        """Return the tasks to submit to Dask now; `worker` is set to the address of the worker."""
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
        """The first task that is near this worker, else one that can run anywhere, else, unless `strict`, any."""
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
        """Forget a task that was answered or withdrawn."""
        self._queue.pop(number, None)
        waiting = self._given.pop(number, None)
        if waiting is not None and (worker := self._workers.get(waiting.worker)) is not None:
            worker.tasks.remove(number)

    def lost(self, number: int) -> bool:
        """Handle the death of a task's worker. True: the task is to blame, report it as lost; False: it is queued again."""
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
        """Forget all tasks and workers, because the scheduler is gone, and yield the numbers of the tasks."""
        numbers = [*self._given, *self._queue]
        self._given.clear()
        self._queue.clear()
        self._workers.clear()
        yield from numbers

    def _bury(self, address: str) -> None:
        worker = self._workers.pop(address, None)
        if worker is not None:
            self._blamed[address] = worker.tasks[0] if len(worker.tasks) == 1 else None
