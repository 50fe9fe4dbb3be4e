"""Workers of a training process that is killed end too, also with more to say than a pipe holds."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from harness import wait_for
from job_shards import tar_of

from dfc.inputs.torch.dataset import end_with_parent

PROGRAM = """
import multiprocessing, sys
from dfc.inputs.torch import DataLoader, ShardDataset

if __name__ == "__main__":
    shards, way = sys.argv[1:]
    dataset = ShardDataset(shards, 64, decode=False, epoch_batches=1000)
    batches = iter(DataLoader(dataset, num_workers=2, multiprocessing_context=way))
    for _ in range(4): next(batches)
    print(*(process.pid for process in multiprocessing.active_children()), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(("way", "how"), [("fork", signal.SIGKILL), ("fork", signal.SIGTERM), ("spawn", signal.SIGKILL)])
def test_workers_end_with_the_process_that_is_killed(tmp_path: Path, way: str, how: signal.Signals) -> None:
    """Its batches have 200 kB, and it has taken a few of them."""
    (tmp_path / "s.tar").write_bytes(tar_of([(f"{number:03d}.bin", bytes(3000)) for number in range(200)]))
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "s.tar"), way]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        workers = [int(pid) for pid in child.stdout.readline().split()]
        child.send_signal(how)
        assert child.wait(60) == -how
        assert len(workers) == 2
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "its workers to end")


def test_a_process_that_nobody_waits_for_has_no_watch() -> None:
    """The training process itself: without workers the dataset is read there."""
    end_with_parent()
    assert not [thread for thread in threading.enumerate() if thread.name == "dfc-parent"]
