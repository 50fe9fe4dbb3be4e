"""What a run of the tests does when one of its processes crashes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from crashed import told_of
from harness import Cluster

TESTS = Path(__file__).resolve().parents[1]
MODULE = """
import os, signal, time, pytest

time.sleep({{"gw2": 0.2, "gw3": 0.5}}.get(os.environ["PYTEST_XDIST_WORKER"], 0))  # the second one that takes over is later

@pytest.mark.parametrize("number", range({count}))
def test_one(number):
    if number == {at}:
        os.kill(os.getpid(), signal.SIG{signal})
"""


@pytest.mark.parametrize(
    ("files", "at", "signal", "cause"),
    [("b", 0, "SEGV", "Segmentation fault"), ("b", 4, "KILL", "killed"), ("ab", 0, "KILL", "killed")],
)
def test_all_other_tests_are_run(tmp_path: Path, files: str, at: int, signal: str, cause: str) -> None:
    for name, count in (("a", 3), ("b", 5), ("c", 1), ("d", 3)):
        crashes = at if name in files else -1
        (tmp_path / f"test_{name}.py").write_text(MODULE.format(count=count, at=crashes, signal=signal))
    command = [sys.executable, "-m", "pytest", "-p", "crashed", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {"PYTHONPATH": str(TESTS), "TMPDIR": str(tmp_path)}
    ended = subprocess.run(
        [*command, "--no-loadscope-reorder", "."], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
    )
    assert f"{len(files)} failed, {12 - len(files)} passed" in ended.stdout
    for file in files:
        assert f"FAILED test_{file}.py::test_one[{at}]" in ended.stdout
    told = ended.stdout.partition("processes of the tests that crashed")[2]
    assert re.search(rf"^gw\d: .*{cause}", told, re.MULTILINE)
    assert ("in test_one" in told) == (signal == "SEGV")
    assert list(tmp_path.glob("dfc-crash-*")) == []


def test_a_cluster_that_has_ended_has_no_nodes(tmp_path: Path) -> None:
    """Those of a test that took too long are asked for their stacks; an error there would end the whole run."""
    cluster = Cluster(tmp_path, 1, 1)
    assert cluster.pids() == []
    cluster.process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert cluster.pids() == []
    cluster.process.communicate("\n")
    assert cluster.pids() == []


def test_of_many_stacks_that_of_the_thread_is_told() -> None:
    stacks = "Thread 0x1 (most recent first):\n  File a\n\nCurrent thread 0x2 (most recent first):\n  File b\n\nThread 0x3:\n"
    told = told_of(f"Fatal Python error: Aborted\n\n{stacks}  File c\n")
    assert told == "Fatal Python error: Aborted\nCurrent thread 0x2 (most recent first):\n  File b"
    assert told_of("") == "it was killed, or ended by itself"
