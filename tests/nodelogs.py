"""What the nodes of clusters logged during a test: printed when it fails, and looked through for leaks in any case."""

from __future__ import annotations

import json
import signal
import time
from contextlib import suppress
from os import kill
from pathlib import Path
from typing import Any

from leaks import SAID

TAIL_LINES = 60  # of each node
LINE_CHARS = 2000
STACKS_WITHIN_S = 3.0
Marks = dict[Path, int]


class NodeLogs:
    """The logs below the directories of clusters (`harness.Cluster` adds its own), and how far they were read."""

    def __init__(self) -> None:
        self._directories: list[Path] = []
        self._read: Marks = {}
        self._began: Marks = {}

    def add(self, directory: Path) -> None:
        if directory not in self._directories:
            self._directories.append(directory)

    def _files(self) -> list[Path]:
        return [path for directory in self._directories for path in sorted((directory / "logs").glob("*.log"))]

    def begin(self) -> None:
        """A test begins: what is there already is not its own."""
        self._began = self._sizes()

    def _sizes(self) -> Marks:
        found = {}
        for path in self._files():
            with suppress(OSError):
                found[path] = path.stat().st_size
        return found

    def _since(self, marks: Marks, path: Path, size: int) -> str:
        begin = marks.get(path, 0)
        with suppress(OSError), path.open("rb") as file:
            file.seek(begin if begin <= size else 0)  # shorter than it was: cut by the supervisor, or another cluster's
            return file.read().decode(errors="replace")
        return ""

    def tails(self) -> str:
        """The last lines of each node since the test began."""
        parts = []
        for path, size in self._sizes().items():
            lines = self._since(self._began, path, size).splitlines()
            if lines:
                left = f" (the last {TAIL_LINES} of {len(lines)} lines)" if len(lines) > TAIL_LINES else ""
                parts.append(f"--- {path.parent.parent.name}/{path.stem}{left}")
                parts += [_readable(line)[:LINE_CHARS] for line in lines[-TAIL_LINES:]]
        return "\n".join(parts)

    def leaks(self) -> list[str]:
        """The lines since the last call that tell of leaks. A line that is being written is left for the next call."""
        found = []
        for path, size in self._sizes().items():
            text = self._since(self._read, path, size)
            whole = text[: text.rfind("\n") + 1]
            begin = self._read.get(path, 0)
            self._read[path] = (begin if begin <= size else 0) + len(whole.encode(errors="replace"))
            lines = whole.splitlines()
            found += [f"{path.parent.parent.name}/{path.stem}: {_readable(line)}" for line in lines if SAID.search(line)]
        return found


def _readable(line: str) -> str:
    """A traceback of an event in lines of its own; anything else as it is."""
    with suppress(ValueError, AttributeError):
        event: dict[str, Any] = json.loads(line)
        trace = event.pop("traceback", None)
        return line if trace is None else f"{json.dumps(event, ensure_ascii=False)}\n{trace}"
    return line


def dump_stacks(pids: list[int], logs: NodeLogs) -> None:
    """Ask nodes for the stacks of their threads (SIGUSR1), and wait a moment until they have written them."""
    before = sum(logs._sizes().values())
    for pid in pids:
        with suppress(ProcessLookupError):
            kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + STACKS_WITHIN_S
    while pids and time.monotonic() < deadline and sum(logs._sizes().values()) < before + len(pids):
        time.sleep(0.05)


LOGS = NodeLogs()
