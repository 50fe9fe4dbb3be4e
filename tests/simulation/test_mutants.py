"""Every mistake that the simulation knows is caught, by a seed that has caught it before."""

from __future__ import annotations

import pytest

from simulation.mutants import CAUGHT_BY, MUTANTS
from simulation.run import Run
from simulation.scenarios import SCENARIOS


def test_every_mutant_has_a_seed() -> None:
    assert set(CAUGHT_BY) == set(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario, seed = CAUGHT_BY[mutant]
    assert Run(seed, SCENARIOS[scenario]).go().problems == [], "the rules as they are"
    MUTANTS[mutant](monkeypatch)
    try:
        problems = Run(seed, SCENARIOS[scenario]).go().problems
    except AssertionError as error:  # two placements of one step
        problems = [str(error)]
    assert problems
