"""Run a reader in a process of its own and give what it found."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

from loadtest.processes import ProcessFailed, descendants, memory_bytes

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
        peaks = _Peaks(process.pid) if watch else None
        try:
            out, err = process.communicate(msgspec.json.encode(options), TIMEOUT_S)
        except BaseException:
            process.kill()
            raise
        finally:
            found_peak = peaks.end() if peaks else 0
    if process.returncode != 0:
        raise ProcessFailed(f"reader {name}: exit code {process.returncode}\n{err.decode(errors='replace')[-2000:]}")
    found: dict[str, Any] = msgspec.json.decode(out)
    return {**found, "workers_peak_bytes": found_peak} if watch else found


class _Peaks:
    """The largest VmHWM of any process below one, looked at now and then: they are gone at the end."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(PEAK_POLL_S):
            for pid in descendants(self._pid):
                try:
                    self._bytes = max(self._bytes, memory_bytes(pid)[1])
                except (OSError, KeyError):  # it ended meanwhile
                    continue

    def end(self) -> int:
        self._ended.set()
        self._thread.join()
        return self._bytes
