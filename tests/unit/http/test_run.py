"""Nodes as processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("role", ["proxy", "target"])
def test_a_node_starts_no_threads_for_linear_algebra(role: str) -> None:
    """NumPy's would be as many as there are processors."""
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    program = f"import dfc.servers.{role}, numpy, os; print(len(os.listdir('/proc/self/task')))"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
