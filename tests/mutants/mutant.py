"""What a mistake is, and how its source is made."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A mistake in one module: texts of its source, each of which must be there exactly once, and what is put in their place;
    and the test that notices. `error`: the exception that ends the test; "Failed" where one was expected in vain."""

    changes: tuple[tuple[str, str], ...]
    test: str
    error: str = "AssertionError"
    module: str = ""


Table = dict[str, dict[str, Mutant]]  # by module and name


def mutant(right: str, wrong: str, test: str, error: str = "AssertionError") -> Mutant:
    """One with one change."""
    return Mutant(((right, wrong),), test, error)


def mutated(source: str, made: Mutant) -> str:
    """The source with the mistake. ValueError unless each text that it replaces is there exactly once."""
    for right, wrong in made.changes:
        if source.count(right) != 1:
            raise ValueError(f"{made.module} has this {source.count(right)} times instead of once: {right}")
        source = source.replace(right, wrong)
    return source
