"""A plugin for pytest, `-p mutants.patching`: it makes the mistake that DFC_MUTANT names, in this process only.

Nothing is written. The source of one module is changed between reading and compiling it. The last line of the output says how
the test has ended, for `ending`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final, NamedTuple

import pytest

from mutants.mutant import Mutant, mutated
from mutants.starter import VARIABLE, Ran
from mutants.table import MUTANTS

MARK: Final = "mutant: "


class Ending(NamedTuple):
    """How a test has ended: the phase in which it failed ("setup", "call" or "teardown"), by which exception, and whether the
    module with the mistake was imported at all."""

    phase: str
    error: str
    is_made: bool


class Mistake(MetaPathFinder):
    """Finds the one module, and listens to how the test ends."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant
        self.is_made = False
        self._phase = self._error = "none"

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.mutant.module:
            return None
        found = PathFinder.find_spec(name, path)
        assert found is not None
        assert found.origin is not None
        found.loader = _Loader(name, found.origin, self)
        return found

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = yield
        if report.failed and self._phase == "none" and call.excinfo is not None:
            hung = str(call.excinfo.value).startswith("Timeout ")  # of pytest-timeout, which fails the test
            self._phase, self._error = report.when, "Timeout" if hung else call.excinfo.type.__name__
        return report

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.write_line(f"{MARK}{self._phase} {self._error} {self.is_made}")


class _Loader(SourceFileLoader):
    """Compiles the changed source, whatever is in `__pycache__`, and leaves nothing there."""

    def __init__(self, name: str, path: str, mistake: Mistake) -> None:
        super().__init__(name, path)
        self._mistake = mistake

    def get_code(self, fullname: str) -> CodeType:
        source = mutated(Path(self.path).read_text(), self._mistake.mutant)
        self._mistake.is_made = True
        code: CodeType = compile(source, self.path, "exec", dont_inherit=True)
        return code


def ending(output: str) -> Ending | None:
    """What the plugin said; None if it did not come to that."""
    said = [line.removeprefix(MARK).split() for line in output.splitlines() if line.startswith(MARK)]
    return Ending(said[-1][0], said[-1][1], said[-1][2] == "True") if said else None


def is_caught(mutant: Mutant, ran: Ran) -> bool:
    """Whether the test has failed by itself, as the table says: not before its first line, and not because it hung."""
    failed = f"FAILED {mutant.test}" in ran.output
    return ran.status == 1 and failed and ending(ran.output) == Ending("call", mutant.error, is_made=True)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before any `conftest.py` imports the server."""
    wanted = os.environ.get(VARIABLE)
    if wanted is not None:
        mistake = Mistake(MUTANTS[wanted])
        assert mistake.mutant.module not in sys.modules
        sys.meta_path.insert(0, mistake)
        early_config.pluginmanager.register(mistake)
