"""Clients as they come, which read a bucket that nobody changes until they are told to stop: processes of PyTorch and
WebDataset, and threads that run `curl` and `dfc ls`. Each says what was wrong, and counts what it read, and its retries."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import httpx

from failures.nodes import ROOT

END_S: Final = 240.0  # for an epoch, or a pass, that waits for objects
CUT_OFF: Final = (18, 52, 56)  # exit codes of curl: the connection broke; it does not repeat that by itself
STATUSES: Final = {"200", "206", "307", "503"}
CURL: Final = ("curl", "-s", "-v", "-f", "-L", "--retry", "60", "--retry-delay", "1", "--retry-connrefused", "-m", "200")
_STATUS: Final = re.compile(r"^< HTTP/1\.1 (\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Shards:
    """A bucket of shards: the bytes of each by its name, and the digest of each sample by its key."""

    url: str
    bucket: str
    bodies: Mapping[str, bytes]
    samples: Mapping[str, str]

    def urls(self) -> list[str]:
        return [f"{self.url}/{self.bucket}/{name}" for name in sorted(self.bodies)]


class Client(Protocol):
    """What reads until it is stopped."""

    counts: Counter[str]
    problems: list[str]

    def start(self) -> None:
        """Begin to read."""

    def stop(self) -> None:
        """Have it end; `join` waits for that."""

    def join(self) -> None:
        """Wait for its end, after which counts and problems are complete."""

    def kill(self) -> None:
        """End it, whatever it does."""


class Programs:
    """Python programs of this directory."""

    def __init__(self, folder: Path) -> None:
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.folder = folder
        self._processes: list[subprocess.Popen[str]] = []
        folder.mkdir()

    def _start(self, program: str, *arguments: str) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}"}
        errors = open(self.folder / f"{len(self._processes)}.err", "w")
        with errors:
            command = [sys.executable, "-m", f"failures.{program}", *arguments]
            self._processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment))

    def stop(self) -> None:
        (self.folder / "stop").touch()

    def kill(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def _said(self) -> list[dict[str, object]]:
        """What the programs print at their end. A program that failed is a problem."""
        found, deadline_s = list[dict[str, object]](), time.monotonic() + END_S
        for number, process in enumerate(self._processes):
            try:
                said, _ = process.communicate(timeout=max(1.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.problems.append(f"{self.folder.name} {number} does not end")
                continue
            if process.returncode != 0:
                errors = (self.folder / f"{number}.err").read_text()[-1500:]
                self.problems.append(f"{self.folder.name} {number} ended with {process.returncode}: {errors}")
            else:
                found.append(json.loads(said.splitlines()[-1]))
        return found


class Training(Programs):
    """Two ranks of PyTorch, which read each sample once an epoch."""

    RANKS: Final = 2

    def __init__(self, folder: Path, shards: Shards) -> None:
        super().__init__(folder)
        self._shards = shards

    def start(self) -> None:
        spec = f"{self._shards.url}/{self._shards.bucket}/f-*"
        for rank in range(self.RANKS):
            self._start("trainrank", spec, str(self.folder), str(rank), str(self.RANKS))

    def join(self) -> None:
        said = self._said()
        if len(said) < self.RANKS:
            return
        epochs = {int(str(each["epochs"])) for each in said}
        self.counts["torch: epochs"] = max(epochs)
        self.counts["torch: retries"] = sum(int(str(each["retries"])) for each in said)
        self.problems += [f"torch: epochs {epochs}"] * (len(epochs) != 1)
        self.problems += [f"torch: skipped {each['errors']}" for each in said if each["errors"]]
        self.problems += [f"torch: {each['padding']} samples are repeated" for each in said if each["padding"]]
        self._check_epochs(max(epochs))

    def _check_epochs(self, epochs: int) -> None:
        found: dict[int, Counter[str]] = {epoch: Counter() for epoch in range(epochs)}
        for rank in range(self.RANKS):
            for line in (self.folder / f"samples.{rank}").read_text().splitlines():
                epoch, key, digest = line.split()
                found[int(epoch)][key] += 1
                self.counts["torch: samples"] += 1
                if self._shards.samples.get(key) != digest:
                    self.problems.append(f"torch: wrong bytes of {key} in epoch {epoch}")
        for epoch, keys in found.items():
            if keys != dict.fromkeys(self._shards.samples, 1):
                lost, twice = set(self._shards.samples) - set(keys), [key for key, count in keys.items() if count > 1]
                self.problems.append(f"torch: epoch {epoch} lacks {len(lost)} samples and has {len(twice)} twice")


class WebDatasets(Programs):
    """The stock WebDataset."""

    def __init__(self, folder: Path, shards: Shards) -> None:
        super().__init__(folder)
        self._urls = shards.urls()
        (folder / "samples.json").write_text(json.dumps(dict(shards.samples)))

    def start(self) -> None:
        self._start("webreader", str(self.folder), *self._urls)

    def join(self) -> None:
        for said in self._said():
            passes, problems = said["passes"], said["problems"]
            assert isinstance(passes, dict)
            assert isinstance(problems, list)
            self.counts.update({f"WebDataset: passes by {way}": count for way, count in passes.items()})
            self.problems += problems
        log = self.folder / "curl.log"
        counts, wrong = look_into(log.read_text(errors="replace") if log.exists() else "")
        self.counts.update({f"WebDataset by pipe:curl: {what}": count for what, count in counts.items()})
        self.problems += [f"WebDataset: curl was answered {status}" for status in wrong]


class Thread(threading.Thread):
    """One that does something again and again."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.once()
            except Exception as error:
                self.problems.append(f"{self.name}: {type(error).__name__}: {error}")
                return

    def once(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self._stopping.set()

    def join(self, timeout: float | None = END_S) -> None:
        super().join(timeout)
        if self.is_alive():
            self.problems.append(f"{self.name} does not end")

    def kill(self) -> None:
        self.stop()


class Curl(Thread):
    """`curl --location` for whole objects and ranges: from the proxy, which passes them on, or from the targets it names."""

    def __init__(self, folder: Path, shards: Shards, seed: int) -> None:
        super().__init__("curl")
        self._shards, self._chance = shards, random.Random(seed)
        self._path = folder / "curl.bin"

    def once(self) -> None:
        name = self._chance.choice(sorted(self._shards.bodies))
        body, is_direct = self._shards.bodies[name], self._chance.random() < 0.5
        url = f"{self._shards.url}/{'v1/objects/' if is_direct else ''}{self._shards.bucket}/{name}"
        command, first, last = [*CURL, "-o", str(self._path), url], 0, len(body) - 1
        if self._chance.random() < 0.5:
            first, last = sorted(self._chance.sample(range(len(body)), 2))
            command += ["-r", f"{first}-{last}"]
        self._path.unlink(missing_ok=True)
        done = subprocess.run(command, capture_output=True, timeout=END_S)
        counts, wrong = look_into(done.stderr.decode(errors="replace"))
        self.counts.update({f"curl: {what}": count for what, count in counts.items()})
        self.problems += [f"curl {url} was answered {status}" for status in wrong]
        if done.returncode in CUT_OFF and is_direct:
            self.counts["curl: cut off by a target that was killed"] += 1
        elif done.returncode != 0:
            self.problems.append(f"curl {url} ended with {done.returncode}: {done.stderr.decode(errors='replace')[-600:]}")
        elif self._path.read_bytes() != body[first : last + 1]:
            self.problems.append(f"curl {url} got other bytes, of {first} to {last}")
        else:
            self.counts["curl: reads"] += 1


class Listings(Thread):
    """`dfc ls`, and the count of objects."""

    def __init__(self, shards: Shards) -> None:
        super().__init__("listings")
        self._shards = shards
        self._names = sorted(shards.bodies)

    def once(self) -> None:
        command = [sys.executable, "-m", "dfc", "ls", f"{self._shards.bucket}/"]
        environment = {**os.environ, "DFC_URL": self._shards.url, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=END_S, env=environment)
        if done.returncode != 0:
            self.counts["dfc ls: refused"] += 1
            if "503" not in done.stderr and "incomplete" not in done.stderr and "down" not in done.stderr:
                self.problems.append(f"dfc ls ended with {done.returncode}: {done.stderr[-400:]}")
        elif done.stdout.split() != self._names:
            self.problems.append(f"dfc ls said {done.stdout.split()[:20]}")
        else:
            self.counts["dfc ls: listings"] += 1
        with httpx.Client(timeout=60, verify=False) as http:
            for _ in range(5):
                self._count(http)
                time.sleep(0.2)

    def _count(self, http: httpx.Client) -> None:
        answer = http.get(f"{self._shards.url}/v1/buckets/{self._shards.bucket}")
        if answer.status_code != 200:
            self.counts["counts: refused"] += 1
            self.problems += [f"a count was answered {answer.status_code}"] * (answer.status_code != 503)
        elif not answer.json()["exact"]:
            self.counts["counts: estimates"] += 1
        elif answer.json()["objects"] != len(self._names):
            self.problems.append(f"there are {answer.json()['objects']} of {len(self._names)} objects, it says")
        else:
            self.counts["counts: exact"] += 1


def look_into(log: str) -> tuple[Counter[str], Sequence[str]]:
    """What `curl -v` says of its retries, and the statuses that it should not have been answered."""
    statuses = Counter(_STATUS.findall(log))
    refused = log.count("Connection refused")
    counts = Counter({"redirects": statuses["307"], "retries for 503": statuses["503"], "retries since refused": refused})
    return counts, sorted(set(statuses) - STATUSES)
