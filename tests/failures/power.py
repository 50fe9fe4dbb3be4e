"""All disks lose power at once, again and again, under writers: whatever was acknowledged is there after the next start.

Each node keeps all it has on an ext4 file system of its own. At a random moment, now and then within a start, all of them stop
writing without a flush, and all processes are killed. Then the journals are replayed and the nodes started.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from losable_disk import FLUSH_ALL, FLUSH_JOURNAL, FLUSH_NOTHING, LosableDisk, losable_disks, why_not

from failures.found import Found
from failures.kills import check_replicas
from failures.nodes import PROXY, Nodes
from failures.writers import Known, Writer, final_check

BUCKET = "power"
PATIENCE_S = 40.0  # for reads of what nodes that just started have yet to settle
ROOT = Path(__file__).resolve().parents[2]
SIMULATED = ("tests/crash/test_copies.py", "tests/crash/test_power_loss.py")  # what runs where there can be no such file system
MEMORY = Path("/dev/shm")  # what counts is what ext4 has handed on, not what becomes of it then


@dataclass(frozen=True)
class Plan:
    """How often, and what is done in between. `in_start_share`: of losses that come before all nodes serve."""

    cycles: int = 200
    copies: int = 2
    writers: int = 6
    names: int = 12
    sizes: tuple[int, int] = (100, 600_000)
    writing_s: tuple[float, float] = (0.1, 1.2)
    in_start_share: float = 0.1
    in_start_s: tuple[float, float] = (0.2, 2.5)
    targets: int = 3


def why_simulated() -> str:
    """Why no file system can lose power here; empty if one can."""
    return why_not()


def run_simulated(directory: Path, seed: int, say: Callable[[str], None] = print) -> Found:
    """Let simulated file systems lose power under single disks, with copies and without, as the seed says."""
    say(f"a simulated file system loses power, under one disk at a time: {', '.join(SIMULATED)} ({why_simulated()})")
    directory.mkdir(parents=True, exist_ok=True)
    # No options that are meant for the run which this may be part of.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "POWER_LOSS"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *SIMULATED]
    environment["POWER_LOSS_SEED"] = str(seed)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    (directory / "pytest.log").write_text(done.stdout + done.stderr)
    found = Found()
    for line in done.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR")):
            found.problems.append(line)
        for count, what in re.findall(r"(\d+) (passed|failed|skipped|error)", line) if " in " in line else ():
            found.counts[f"simulated: tests {what}"] = int(count)
    if done.returncode and not found.problems:
        found.problems.append(f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-500:]}")
    if not found.counts["simulated: tests passed"]:
        found.problems.append("no test has passed")
    return found


class Machines:
    """Nodes, the file systems they are on, and what writers know of them."""

    def __init__(self, directory: Path, disks: dict[str, LosableDisk], plan: Plan, seed: int, found: Found) -> None:
        places = {name: disk.root / "node" for name, disk in disks.items()}
        self.nodes = Nodes(directory, plan.targets, 1, places=places, hold_s=15, drain_timeout_s=5, down_after_s=10)
        self._disks = disks
        self._plan, self._seed, self._found = plan, seed, found
        self._chance = random.Random(seed)
        self._known: list[dict[str, Known] | None] = [None] * plan.writers
        self._lost = threading.Event()

    def begin(self) -> None:
        """The first start."""
        self.nodes.start_all()
        self.nodes.ask(f"/v1/buckets/{BUCKET}", "PUT", b'{"copies": %d}' % self._plan.copies)

    def cycle(self, number: int) -> None:
        """Write, lose power, start, and look at everything."""
        writers = self._writers(number)
        for writer in writers:
            writer.start()
        time.sleep(self._chance.uniform(*self._plan.writing_s))
        self._lose_power()
        for writer in writers:
            writer.stopping.set()
        for writer in writers:
            writer.join(60)
            self._found.counts.update(writer.counts)
            self._found.problems += [f"cycle {number}: {problem}" for problem in writer.problems]
        self._known = [writer.known for writer in writers]
        self._come_back()
        if self._chance.random() < self._plan.in_start_share:
            for name in (PROXY, *self.nodes.targets):
                self.nodes.start(name)
            time.sleep(self._chance.uniform(*self._plan.in_start_s))
            self._lose_power()
            self._come_back()
            self._found.counts["losses in a start"] += 1
        begun = time.monotonic()
        self.nodes.start_all()
        self._found.counts["start ms"] += int((time.monotonic() - begun) * 1000)
        self._verify(number)

    def end(self) -> None:
        """Let everything be confirmed, and look at the catalogs."""
        self.nodes.until(self.nodes.is_calm, "nothing to be pending or hints")
        self.nodes.until(lambda: not self.nodes.handoffs(), "surplus rows to go", 60.0)
        self._verify(-1)
        self._found.problems += check_replicas(self.nodes, self._plan.copies)
        self.nodes.stop_all()

    def _writers(self, number: int) -> list[Writer]:
        plan, seed = self._plan, self._seed * 1_000_003 + number
        return [
            Writer(self.nodes.url, BUCKET, each, seed, plan.sizes, plan.names, known=known, lost=self._lost)
            for each, known in enumerate(self._known)
        ]

    def _verify(self, number: int) -> None:
        writers = self._writers(number)

        def look(writer: Writer) -> list[str]:
            return final_check(self.nodes.url, BUCKET, [writer], PATIENCE_S)

        with ThreadPoolExecutor(3) as threads:
            problems = [problem for found in threads.map(look, writers) for problem in found]
        self._found.counts["objects looked at"] += sum(len(writer.known) for writer in writers)
        self._found.problems += [f"after cycle {number}: {problem}" for problem in problems]

    def _lose_power(self) -> None:
        """The file systems go first, the processes a moment later: what they say in between no longer counts."""
        self._lost.set()
        for disk in self._disks.values():
            disk.lose_power(self._chance.choices((FLUSH_NOTHING, FLUSH_JOURNAL, FLUSH_ALL), (8, 1, 1))[0])
        time.sleep(self._chance.random() * 0.05)  # how long a machine lives on is chance; nothing waits for it
        self.nodes.kill_all()
        self._found.counts["losses"] += 1

    def _come_back(self) -> None:
        for disk in self._disks.values():
            disk.end_users()
            disk.unmount()
            disk.mount()
        self._lost.clear()


@contextmanager
def _disks(names: list[str]) -> Iterator[dict[str, LosableDisk]]:
    in_memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="dfc-power-", dir=in_memory) as directory:
        for name in names:
            (Path(directory) / name).mkdir()
        with losable_disks(Path(directory) / name for name in names) as made:
            yield dict(zip(names, made, strict=True))


def run(directory: Path, plan: Plan, seed: int, say: Callable[[str], None] = print) -> Found:
    """Lose power so often. AssertionError, after which the disks are as they were found, if nodes do not start."""
    found = Found()
    with _disks([PROXY, *(f"target-{number}" for number in range(plan.targets))]) as disks:
        machines = Machines(directory, disks, plan, seed, found)
        begun = time.monotonic()
        try:
            machines.begin()
            for number in range(plan.cycles):
                machines.cycle(number)
                if found.problems:
                    say(f"problems after cycle {number}: {found.problems[:5]}")
                    break
                if number % 20 == 19:
                    say(f"{number + 1} cycles of {plan.cycles} in {time.monotonic() - begun:.0f} s")
            found.counts["ms a cycle"] = int((time.monotonic() - begun) * 1000 / max(1, found.counts["losses"]))
            machines.end()
        except AssertionError as error:
            found.problems.append(f"after {found.counts['losses']} losses: {error}")
        finally:
            machines.nodes.kill_all()
    return found
