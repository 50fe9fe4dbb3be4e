"""Each mistake is noticed by the test that the table names, and the table is about the source as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from mutants.mutant import mutated
from mutants.patching import VARIABLE, Ending, ending
from mutants.table import GROUPS, MUTANTS

ROOT: Final = Path(__file__).resolve().parents[2]
# What the tests do not need, and takes time to import; and they must not fail by being slow.
PLUGINS: Final = ("-p", "mutants.patching", "-p", "no:xdist", "-p", "no:cacheprovider")


def run(test: str, mutant: str | None) -> tuple[int, str]:
    """Run a test in a process of its own, with a mistake or as it is; the exit code and the output."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PYTEST_ADDOPTS": ""}
    environment |= {} if mutant is None else {VARIABLE: mutant}
    command = [sys.executable, "-m", "pytest", "-q", *PLUGINS, test]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240
    )
    return done.returncode, done.stdout


def test_each_name_is_used_once() -> None:
    assert len(MUTANTS) == sum(len(group) for group in GROUPS)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_table_is_about_the_source_as_it_is(name: str) -> None:
    mutant = MUTANTS[name]
    source = (ROOT / (mutant.module.replace(".", "/") + ".py")).read_text()
    changed = mutated(source, mutant)
    assert changed != source
    compile(changed, mutant.module, "exec")


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str) -> None:
    mutant = MUTANTS[name]
    status, output = run(mutant.test, name)
    assert ending(output) == Ending("call", mutant.error, is_made=True), output
    assert status == 1, output
    assert mutant.test.rpartition("::")[2] in output


def test_a_test_without_a_mistake_passes() -> None:
    status, output = run(next(iter(MUTANTS.values())).test, None)
    assert (status, ending(output)) == (0, None), output
