"""Many seeds of the simulation, in as many processes as there are processors."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from simulation.run import Run
from simulation.scenarios import SCENARIOS

from failures.found import Found

SAY_EVERY_S = 60.0
CHUNK = 10  # seeds of all scenarios that a process runs at a time


@dataclass(frozen=True)
class Plan:
    """How many seeds, over all scenarios."""

    seeds: int = 20_000
    processes: int = os.cpu_count() or 1


def run(directory: Path, plan: Plan, seed: int, say: Callable[[str], None] = print) -> Found:
    """Run seeds from 1,000,000 × `seed` on, of each scenario as many. `python -m simulation` reproduces those that fail."""
    found, begun = Found(), time.monotonic()
    first, each = seed * 1_000_000, -(-plan.seeds // len(SCENARIOS))
    chunks = [(low, min(low + CHUNK, first + each)) for low in range(first, first + each, CHUNK)]
    said_at = begun
    # A worker that is asked to end does so: what this process does about the signal would leave it waiting for work.
    by_default = (signal.SIGTERM, signal.SIG_DFL)
    with ProcessPoolExecutor(plan.processes, initializer=signal.signal, initargs=by_default) as processes:
        try:
            for done in as_completed([processes.submit(_chunk, *chunk) for chunk in chunks]):
                problems, counts = done.result()
                for problem in problems:
                    say(problem)
                found.problems += problems
                found.counts.update(counts)
                if time.monotonic() > said_at + SAY_EVERY_S:
                    said_at = time.monotonic()
                    say(f"{found.counts['seeds']} seeds in {said_at - begun:.0f} s, {len(found.problems)} bad")
        except BaseException:  # asked to end: nothing is waited for
            processes.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise
    return found


def _chunk(first: int, last: int) -> tuple[list[str], Counter[str]]:
    """Some seeds of all scenarios; those that failed, and what happened."""
    problems, counts = [], Counter[str]()
    for seed in range(first, last):
        for name, scenario in SCENARIOS.items():
            try:
                outcome = Run(seed, scenario).go()
            except Exception as error:  # such as two placements of one step
                problems.append(f"{name} {seed}: {type(error).__name__}: {error}")
                continue
            counts.update(outcome.counts)
            counts["seeds"] += 1
            if outcome.problems:
                problems.append(f"{name} {seed}: {'; '.join(outcome.problems[:4])}")
    return problems, counts
