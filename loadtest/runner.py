"""Run one scenario over several connections, one thread each, until a count or a time limit is reached."""

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

ERRORS_IN_A_ROW_MAX = 20  # then a worker stops, so that a dead server is not hammered
ERROR_PAUSE_S = 0.05
STOP_S = 10.0  # time for running operations to finish after an interruption


@dataclass(slots=True)
class Worker:
    """The state of one worker for the steps of a scenario: number, connection and random generator."""

    index: int
    connection: Connection
    random: random.Random
    steps: int = 0


class Scenario(Protocol):
    """`prepare` stores what the steps need, `step` runs and checks one operation, `verify` checks the final state."""

    name: str

    def prepare(self, connection: Connection) -> None: ...

    def step(self, worker: Worker) -> int:
        """Run one operation. Returns the bytes of body moved. HttpFailure or OSError if it failed."""

    def verify(self, connection: Connection) -> None: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a run, which ends at whichever comes first."""

    seconds: float
    count: int


def run_scenario(
    scenario: Scenario, connect: Callable[[], Connection], *, connections: int, limits: Limits, seed: int = 0
) -> ScenarioResult:
    """Prepare, run and verify one scenario. Raises if `prepare` fails; later failures are counted in the result."""
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
    tickets = itertools.count()  # next() on it is atomic, so it needs no lock
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
        for thread in threads:  # an upload that is still running would create the removed bucket again
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
