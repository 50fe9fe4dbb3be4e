"""Run a reader in a process of its own and give what it found."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import msgspec

from loadtest.processes import ProcessFailed, descendants, meanwhile, memory_bytes

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 600.0
PEAK_POLL_S = 0.02


def read(name: str, *, watch: bool = False, source: Path = ROOT, **options: Any) -> dict[str, Any]:
    """The result of a reader of `loadtest.inputs.readers`. ProcessFailed when it fails or takes ten minutes.

    `source` is the source tree whose code reads.
    With `watch` it also has `workers_peak_bytes`, the largest VmHWM of any process that it started.
    """
    argv = [sys.executable, "-m", "loadtest.inputs.readers", name]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, cwd=source) as process:
        try:
            with _peak_below(process.pid) if watch else nullcontext([0]) as peak:
                out, err = process.communicate(msgspec.json.encode(options), TIMEOUT_S)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise ProcessFailed(f"reader {name}: exit code {process.returncode}\n{err.decode(errors='replace')[-2000:]}")
    found: dict[str, Any] = msgspec.json.decode(out)
    return {**found, "workers_peak_bytes": peak[0]} if watch else found


@contextmanager
def _peak_below(parent: int) -> Iterator[list[int]]:
    """The largest VmHWM of any process below one, looked at now and then: they are gone at the end."""
    peak = [0]

    def watch(ended: threading.Event) -> None:
        while not ended.wait(PEAK_POLL_S):
            for pid in descendants(parent):
                with suppress(OSError, KeyError):  # it ended meanwhile
                    peak[0] = max(peak[0], memory_bytes(pid)[1])

    with meanwhile(watch):
        yield peak
