"""What a run of the tests does when one of its processes crashes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from crashed import told_of

TESTS = Path(__file__).resolve().parents[1]
MODULE = """
import os, signal, pytest

@pytest.mark.parametrize("number", range({count}))
def test_one(number):
    if number == {at}:
        os.kill(os.getpid(), signal.SIG{signal})
"""


@pytest.mark.parametrize(("at", "signal", "cause"), [(0, "SEGV", "Segmentation fault"), (4, "KILL", "killed")])
def test_all_other_tests_are_run(tmp_path: Path, at: int, signal: str, cause: str) -> None:
    for name, count in (("a", 3), ("b", 5), ("c", 1), ("d", 3)):
        crashes = at if name == "b" else -1
        (tmp_path / f"test_{name}.py").write_text(MODULE.format(count=count, at=crashes, signal=signal))
    command = [sys.executable, "-m", "pytest", "-p", "crashed", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {"PYTHONPATH": str(TESTS), "TMPDIR": str(tmp_path)}
    ended = subprocess.run(
        [*command, "--no-loadscope-reorder", "."], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
    )
    assert "1 failed, 11 passed" in ended.stdout
    assert f"FAILED test_b.py::test_one[{at}]" in ended.stdout
    told = ended.stdout.partition("processes of the tests that crashed")[2]
    assert re.search(rf"^gw\d: .*{cause}", told, re.MULTILINE)
    assert ("in test_one" in told) == (signal == "SEGV")
    assert list(tmp_path.glob("dfc-crash-*")) == []


def test_of_many_stacks_that_of_the_thread_is_told() -> None:
    stacks = "Thread 0x1 (most recent first):\n  File a\n\nCurrent thread 0x2 (most recent first):\n  File b\n\nThread 0x3:\n"
    told = told_of(f"Fatal Python error: Aborted\n\n{stacks}  File c\n")
    assert told == "Fatal Python error: Aborted\nCurrent thread 0x2 (most recent first):\n  File b"
    assert told_of("") == "it was killed, or ended by itself"
