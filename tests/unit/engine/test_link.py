"""The node's side of the pipes to an engine process that has ended."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from dfc.engine.base import EngineLost
from dfc.engine.environment import Begin
from dfc.engine.link import Link


def kill_unnoticed(pid: int) -> None:
    """The event loop stands still meanwhile; the thread that waits for the process is asyncio's."""
    os.kill(pid, signal.SIGKILL)
    while list_open(pid):
        time.sleep(0.01)


def list_open(pid: int) -> list[str]:
    """Descriptors of a process: none when it is dead, whether or not somebody has waited for it."""
    try:
        return os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return []


async def test_a_pipe_that_breaks_leaves_no_error_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is killed and nobody here has noticed. Python 3.11.2 logs what the pipe broke with unless somebody asks."""
    (tmp_path / "idle_engine.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    link = await Link.open(Begin(str(tmp_path), 1), lambda count: None, module="idle_engine")
    kill_unnoticed(link.pid)
    with pytest.raises(EngineLost, match="the engine process ended"):
        await link.run(b"task", None)
    assert not link.is_alive
    await link.close()
    assert link._process.returncode == -signal.SIGKILL
