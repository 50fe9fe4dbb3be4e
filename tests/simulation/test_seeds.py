"""Runs of the cores under faults: every history linearizable, everything calm in the end. A failing seed replays exactly."""

from __future__ import annotations

import pytest

from simulation.run import Run, Scenario

SCENARIOS = {
    "two copies": Scenario(copies=2),
    "three copies": Scenario(copies=3),
    "one copy": Scenario(copies=1),
    "no moves": Scenario(copies=2, moves=False),
    "wipes": Scenario(copies=2, moves=False, wipes=True),
    "wipes and moves": Scenario(copies=3, wipes=True),
    "copies change": Scenario(copies=2, changes_copies=True),
    "late messages": Scenario(copies=3, moves=False, late=True),
    "single disks": Scenario(copies=3, nodes=5, disks=1),
}
SEEDS_EACH = 40
CHUNK = 10


@pytest.mark.parametrize("first", range(0, SEEDS_EACH, CHUNK))
@pytest.mark.parametrize("name", SCENARIOS)
def test_seeds(name: str, first: int) -> None:
    """Reproduce one with `Run(seed, SCENARIOS[name]).go()`."""
    problems = {}
    acknowledged = 0
    for seed in range(first, first + CHUNK):
        outcome = Run(seed, SCENARIOS[name]).go()
        acknowledged += outcome.counts["put ok"] + outcome.counts["swap ok"]
        if outcome.problems:
            problems[seed] = outcome.problems
    assert problems == {}
    assert acknowledged > 10 * CHUNK, "the runs did something"


def test_a_seed_replays_exactly() -> None:
    first, again = (Run(7, SCENARIOS["two copies"]).go().counts for _ in range(2))
    assert first == again
