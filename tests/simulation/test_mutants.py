"""Mistakes that the simulation has caught before are caught again."""

from __future__ import annotations

import pytest

from simulation.directed import SCHEDULES
from simulation.mutants import MUTANTS, NOT_CAUGHT
from simulation.run import Run
from simulation.scenarios import SCENARIOS

CAUGHT_BY = {name: mutant.caught_by for name, mutant in MUTANTS.items() if mutant.caught_by is not None}


def replay(found: tuple[str, int] | str) -> list[str]:
    """The problems of a seed or of a directed schedule."""
    if isinstance(found, str):
        return SCHEDULES[found].play()
    scenario, seed = found
    return Run(seed, SCENARIOS[scenario]).go().problems


def test_what_is_known_of_each_mutant() -> None:
    assert MUTANTS.keys() - CAUGHT_BY.keys() == NOT_CAUGHT


@pytest.mark.parametrize("mutant", CAUGHT_BY)
def test_a_mutant_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert replay(CAUGHT_BY[mutant]) == [], "with the rules as they are"
    MUTANTS[mutant].patch(monkeypatch)
    try:
        problems = replay(CAUGHT_BY[mutant])
    except AssertionError as error:  # two placements of one step
        problems = [str(error)]
    assert problems


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_directed_schedule(name: str) -> None:
    assert replay(name) == []
