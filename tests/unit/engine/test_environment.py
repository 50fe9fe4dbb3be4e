"""What the processes of jobs leave behind when they are ended: nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import multiprocessing, sys
from dfc.engine.environment import end_group
lock = multiprocessing.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
end_group(sys.argv[1])
"""


def test_no_named_semaphore_outlives_the_group(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-c", PROGRAM, str(scratch)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, start_new_session=True)
    name = done.stdout.strip()
    assert name.startswith("/mp-"), done.stderr
    assert not Path("/dev/shm", f"sem.{name[1:]}").exists()
    assert not scratch.exists()
