"""Each mistake is noticed by the test that the table names, and the table is about the source as it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tiers import SMOKE, Case, Rules, durations, smoke_names

from mutants.mutant import mutated
from mutants.patching import Ending, ending, is_caught
from mutants.starter import ROOT, Starter, started
from mutants.table import GROUPS, MUTANTS
from mutants.traps import TRAPS


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starter]:
    with started(tmp_path_factory.mktemp("mutants")) as made:
        yield made


def test_each_name_is_used_once() -> None:
    assert len(MUTANTS) == sum(len(mutants) for group in GROUPS for mutants in group.values())


@pytest.mark.parametrize("name", MUTANTS)
def test_the_table_is_about_the_source_as_it_is(name: str) -> None:
    mutant = MUTANTS[name]
    path = ROOT / mutant.module.replace(".", "/")
    source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    changed = mutated(source, mutant)
    assert changed != source
    compile(changed, mutant.module, "exec")


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.about(each.module)) for name, each in MUTANTS.items()])
def test_a_mutant_is_caught(starter: Starter, name: str) -> None:
    ran = starter.run(MUTANTS[name].test, name)
    assert is_caught(MUTANTS[name], ran), ran.output


def test_without_a_mistake_the_same_test_passes(starter: Starter) -> None:
    for mutant in list(MUTANTS.values())[:: len(MUTANTS) // 3]:
        ran = starter.run(mutant.test, None)
        assert (ran.status, ending(ran.output)) == (0, None), ran.output


def test_a_mistake_that_no_test_notices_is_not_caught(starter: Starter) -> None:
    blind = "tests/unit/registry/test_leases.py::test_leases_that_are_over_are_forgotten"
    missed = MUTANTS["lease by the wall clock"]._replace(test=blind)
    ran = starter.run(missed.test, "lease by the wall clock")
    assert ending(ran.output) == Ending("none", "none", is_made=True), ran.output
    assert not is_caught(missed, ran)


def test_nearly_all_mistakes_are_noticed_by_tests_of_the_default_tier() -> None:
    """By the tests that the table names: others of that tier may notice more."""
    rules = Rules(durations()["full"], smoke_names(SMOKE.read_text()), offset=0, modules=(), files=())
    left = [name for name, mutant in MUTANTS.items() if rules.left_out(Case(*mutant.test.split("::", 1)))]
    assert len(left) <= len(MUTANTS) * 0.05, left


@pytest.mark.parametrize("trap", TRAPS)
def test_each_trap_has_tests(trap: str) -> None:
    for guard in TRAPS[trap]:
        file, _, test = guard.partition("::")
        assert guard in MUTANTS or f"def {test}(" in (ROOT / file).read_text(), guard


def test_a_text_that_is_not_there_once_is_no_mutant() -> None:
    mutant = next(iter(MUTANTS.values()))
    [(right, _)] = mutant.changes
    for source in ("", right * 2):
        with pytest.raises(ValueError, match="instead of once"):
            mutated(source, mutant)
