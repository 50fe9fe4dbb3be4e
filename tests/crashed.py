"""When a process of the tests crashes: what it was doing is told at the end, and the other tests are run.

Where tests of a file stay together (`--dist loadfile`), pytest-xdist 3.8 waits for ever then: the process that takes over is
given a file of which all tests are done, or one test and neither another nor the end.
"""

from __future__ import annotations

import faulthandler
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling

STACK_LINES_MAX: Final = 20
_told: Final[list[str]] = []


class Scheduling(LoadFileScheduling):
    """That of `--dist loadfile`, but a test at which a process crashed is not run again, and the others are."""

    def remove_node(self, node: Any) -> str | None:
        work = self.assigned_work.pop(node)
        left = [(unit, test) for unit in work.values() for test, is_done in unit.items() if not is_done]
        if not left:
            return None
        unit, crashed = left[0]
        unit[crashed] = True
        self.workqueue.update({scope: unit for scope, unit in work.items() if not all(unit.values())})
        self._go_on()
        return crashed

    def schedule(self) -> None:
        super().schedule()
        if self.collection:
            self._go_on()

    def _reschedule(self, node: Any) -> None:
        if node in self.registered_collections:  # one that is new is asked when it has read the tests
            super()._reschedule(node)

    def _go_on(self) -> None:
        # Twice, since a process begins its last test only when it knows what comes then.
        for node in [*self.nodes, *self.nodes]:
            self._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def _stacks(run: str, worker: str) -> Path:
    return Path(tempfile.gettempdir(), f"dfc-crash-{run}-{worker}")


@pytest.hookimpl(trylast=True)  # after pytest's own, by which stacks go to standard error, between all else that is printed
def pytest_configure(config: pytest.Config) -> None:
    if worker := getattr(config, "workerinput", None):
        path = _stacks(worker["testrunuid"], worker["workerid"])
        faulthandler.enable(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC))  # open as long as it may write


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    path = _stacks(node.workerinput["testrunuid"], node.workerinput["workerid"])
    try:
        text = path.read_text()
        path.unlink()
    except OSError:
        return
    if error:
        _told.append(f"{node.gateway.id}: {told_of(text)}")


def told_of(text: str) -> str:
    """The cause of a crash, and the stack of the thread that it was in, of all that faulthandler wrote."""
    cause = text.partition("\n")[0] or "it was killed, or ended by itself"
    at = re.search(r"^Current thread.*\n(?:  .*\n)*", text, re.MULTILINE)
    return "\n".join([cause, *(at[0].splitlines()[:STACK_LINES_MAX] if at else ())])


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _told:
        terminalreporter.section("processes of the tests that crashed")
    for told in _told:
        terminalreporter.write_line(told)
