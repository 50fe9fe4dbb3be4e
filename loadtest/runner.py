"""Runs one scenario over several connections, a thread each, until a count or a time is used up."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from loadtest.connection import Connection, failure_kind
from loadtest.report import Recorder, ScenarioResult, summarize

ERRORS_IN_A_ROW_MAX = 20  # a worker that meets only errors stops: a dead server must not be hammered
ERROR_PAUSE_S = 0.05
STOP_S = 10.0  # after an interruption, running operations get so long to end


@dataclass(slots=True)
class Worker:
    """What a step of a scenario may use: its own connection, its own random numbers, its own number."""

    index: int
    connection: Connection
    random: random.Random
    steps: int = 0


class Scenario(Protocol):
    """`prepare` stores what the steps need, `step` does and checks one operation, `verify` looks at what is left behind."""

    name: str

    def prepare(self, connection: Connection) -> None: ...

    def step(self, worker: Worker) -> int:
        """One operation; the bytes of body it moved. Raises HttpFailure or OSError when it did not go as it must."""

    def verify(self, connection: Connection) -> None: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """A run ends at whichever of the two comes first."""

    seconds: float
    count: int


def run_scenario(
    scenario: Scenario, connect: Callable[[], Connection], *, connections: int, limits: Limits, seed: int = 0
) -> ScenarioResult:
    """Prepare, run and verify one scenario. A failure to prepare raises; later failures are counted in the result."""
    control = connect()
    try:
        scenario.prepare(control)
        control.close()
        recorders, seconds = _run_workers(scenario, connect, connections, limits, seed)
        result = summarize(scenario.name, recorders, seconds)
        try:
            scenario.verify(control)
        except Exception as error:
            kind = f"verify: {failure_kind(error)}"
            result.errors[kind] = result.errors.get(kind, 0) + 1
        return result
    finally:
        control.close()


def _run_workers(
    scenario: Scenario, connect: Callable[[], Connection], connections: int, limits: Limits, seed: int
) -> tuple[list[Recorder], float]:
    recorders = [Recorder() for _ in range(connections)]
    tickets = itertools.count()  # next() on it is one step of the interpreter, so it needs no lock
    stop = threading.Event()
    begin = time.monotonic()

    def work(index: int) -> None:
        worker = Worker(index, connect(), random.Random(f"{seed}-{index}"))
        try:
            _work(scenario, worker, recorders[index], tickets, limits.count, begin + limits.seconds, stop)
        finally:
            worker.connection.close()

    threads = [threading.Thread(target=work, args=(index,), name=f"load-{index}", daemon=True) for index in range(connections)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        stop.set()
        for thread in threads:  # an upload that is still on its way would make the removed bucket anew
            thread.join(STOP_S)
        raise
    return recorders, time.monotonic() - begin


def _work(
    scenario: Scenario,
    worker: Worker,
    recorder: Recorder,
    tickets: itertools.count[int],
    count: int,
    deadline: float,
    stop: threading.Event,
) -> None:
    errors_in_a_row = 0
    while not stop.is_set() and next(tickets) < count and (begin := time.monotonic()) < deadline:
        try:
            moved = scenario.step(worker)
        except Exception as error:
            recorder.errors[failure_kind(error)] += 1
            worker.connection.close()
            errors_in_a_row += 1
            if errors_in_a_row >= ERRORS_IN_A_ROW_MAX:
                recorder.errors["gave_up"] += 1
                return
            stop.wait(ERROR_PAUSE_S)
        else:
            recorder.success(time.monotonic() - begin, moved)
            errors_in_a_row = 0
        worker.steps += 1
