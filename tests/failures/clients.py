"""Stock clients run through everything that changes in a cluster, and notice nothing: PyTorch, WebDataset, curl, `dfc ls` and
jobs, while targets join, are drained, are killed, are given up and come back, and disks are wiped."""

from __future__ import annotations

import gzip
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
from job_shards import tar_of

from failures.digests import digest_of
from failures.found import Found, looked_into
from failures.kills import until_at_replica
from failures.losses import is_back, is_healed
from failures.moves import Plan as MovesPlan
from failures.moves import come_and_go
from failures.nodes import ROOT, Nodes
from failures.stock import Client, Curl, Listings, Shards, Training, WebDatasets
from failures.wipes import wipe

BUCKET = "clients"
BACK_S = 180.0
JOB_S = 240.0
UNAVAILABLE = 4  # the exit code of `dfc` for an answer 503
DURING_S = 1.5  # after the beginning of a change the second job is posted
SURPLUS_S = 120.0
_DIGEST: Final = re.compile(r"\b([0-9a-f]{32})\b")


@dataclass(frozen=True)
class Plan:
    """How often, and how much. `changes`: those of a round, in order."""

    rounds: int = 5
    changes: tuple[str, ...] = ("joins", "killed", "lost", "wiped")
    shards: int = 6
    samples: int = 40  # of each shard; all together are a multiple of what all ranks read in a step
    size: int = 30_000
    targets: int = 3
    down_after_s: float = 3.0
    out_after_s: float = 8.0


def run(directory: Path, plan: Plan, seed: int, say: Callable[[str], None] = print) -> Found:
    """Let everything happen under the clients, then look at what they have read, and at the disks."""
    found, chance = Found(), random.Random(seed)
    settings = {"join_wait_s": 0.5, "down_after_s": plan.down_after_s, "out_after_s": plan.out_after_s, "default_copies": 2}
    settings |= {"hold_s": 15, "drain_timeout_s": 5, "jobs_workers": 1}
    nodes = Nodes(directory, plan.targets + 1, 1, expected_targets=plan.targets, **settings)
    late = nodes.targets.pop()
    with looked_into(nodes, found):
        nodes.start_all()
        shards = fill(nodes, plan, seed)
        jobs = Jobs(nodes, found)
        jobs.finish([jobs.post("undisturbed")])
        with reading(directory, shards, seed, found):
            for number in range(plan.rounds):
                for change in plan.changes:
                    begun = time.monotonic()
                    _Change(nodes, late, chance, found, jobs, f"{number}-{change}").run(change)
                    found.counts[f"{change}: s"] += round(time.monotonic() - begun)
                    found.counts[f"{change}: times"] += 1
                say(f"{number + 1} of {plan.rounds} rounds, {len(found.problems)} problems")
        nodes.until_calm(60.0)
        until_at_replica(nodes, 2, SURPLUS_S)
        found.problems += jobs.differences()
    return found


def fill(nodes: Nodes, plan: Plan, seed: int) -> Shards:
    """Store shards, every second one compressed."""
    bodies, samples = dict[str, bytes](), dict[str, str]()
    nodes.ask(f"/v1/buckets/{BUCKET}", "PUT", b'{"copies": 2}')
    for shard in range(plan.shards):
        draw, members = random.Random(f"{seed} {shard}"), list[tuple[str, bytes]]()
        for number in range(plan.samples):
            key = f"{shard:03}/{number:04}"
            sample = {"bin": draw.randbytes(plan.size), "cls": b"%d" % number}
            samples[key] = digest_of(sample)
            members += [(f"{key}.{name}", body) for name, body in sample.items()]
        tar = tar_of(members)
        bodies[f"f-{shard:03}.{'tgz' if shard % 2 else 'tar'}"] = gzip.compress(tar, 1) if shard % 2 else tar
    with httpx.Client(timeout=60) as http:
        for name, body in bodies.items():
            http.put(f"{nodes.url}/{BUCKET}/{name}", content=body).raise_for_status()
    return Shards(nodes.url, BUCKET, bodies, samples)


@contextmanager
def reading(directory: Path, shards: Shards, seed: int, found: Found) -> Iterator[None]:
    """Have all clients read for so long; what that came to."""
    clients: list[Client] = [
        Training(directory / "torch", shards),
        WebDatasets(directory / "webdataset", shards),
        Curl(directory, shards, seed),
        Listings(shards),
    ]
    try:
        for client in clients:
            client.start()
        yield
        for client in clients:
            client.stop()
        for client in clients:
            client.join()
            found.counts.update(client.counts)
            found.problems += client.problems
    finally:
        for client in clients:
            client.kill()


class Job(threading.Thread):
    """A run of `dfc reshuffle` into a bucket of its own, posted again while it is refused because a target is down."""

    def __init__(self, nodes: Nodes, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.digest, self.problem, self.refusals = "", "", 0
        self._nodes = nodes

    def run(self) -> None:
        command = [sys.executable, "-m", "dfc", "reshuffle", f"{BUCKET}/f-*", f"{self.name}/r-%04d.tar"]
        command += ["--seed", "7", "--samples-per-shard", "20", "--label", self.name]
        environment, deadline_s = {**os.environ, "DFC_URL": self._nodes.url, "PYTHONPATH": str(ROOT)}, time.monotonic() + JOB_S
        while True:
            done = subprocess.run(command, capture_output=True, text=True, timeout=JOB_S, env=environment)
            if done.returncode != UNAVAILABLE or self.is_accepted() or time.monotonic() > deadline_s:
                break
            self.refusals += 1
            time.sleep(1.0)
        digest = _DIGEST.search(done.stdout + done.stderr)
        if done.returncode != 0 or digest is None:
            self.problem = f"job {self.name} ended with {done.returncode}: {done.stdout[-400:]}{done.stderr[-400:]}"
        else:
            self.digest = digest[1]

    def is_accepted(self) -> bool:
        """Whether the cluster has it, in whatever state."""
        return any(each["label"] == self.name for each in self._nodes.ask("/v1/jobs")["jobs"])


class Jobs:
    """Runs of one job, all of which must come to the same."""

    def __init__(self, nodes: Nodes, found: Found) -> None:
        self._nodes, self._found = nodes, found
        self._done: list[Job] = []

    def post(self, name: str) -> Job:
        """Begin one."""
        job = Job(self._nodes, name)
        job.start()
        return job

    def finish(self, posted: Iterable[Job]) -> None:
        """Wait for jobs."""
        for job in posted:
            job.join(JOB_S)
            if job.is_alive():
                self._found.problems.append(f"job {job.name} does not end")
                continue
            self._found.counts["jobs: refused while a target was down"] += job.refusals
            self._found.counts["jobs: succeeded"] += bool(job.digest)
            self._found.problems += [job.problem] * bool(job.problem)
            self._done += [job] * bool(job.digest)

    def differences(self) -> list[str]:
        """The runs whose outputs are not those of the first one."""
        first, *others = self._done
        wanted, problems = self._objects(first), list[str]()
        for job in others:
            if job.digest != first.digest or self._objects(job) != wanted:
                problems.append(f"job {job.name} has made something else than {first.name}")
        return problems

    def _objects(self, job: Job) -> list[tuple[str, str]]:
        made = self._nodes.ask(f"/v1/buckets/{job.name}/objects?limit=1000")["objects"]
        return [(each["name"], each["etag"]) for each in made]


class _Change:
    """One change in the cluster, with a job posted before it and one during it."""

    def __init__(self, nodes: Nodes, late: str, chance: random.Random, found: Found, jobs: Jobs, name: str) -> None:
        self._nodes, self._late, self._chance, self._found, self._jobs, self._name = nodes, late, chance, found, jobs, name

    def run(self, change: str) -> None:
        """Wait until the change and both jobs are over."""
        before = self._jobs.post(f"{self._name}-before")
        posted = [before]
        self._nodes.until(lambda: before.is_accepted() or not before.is_alive(), "a job to be accepted")
        if change in ("lost", "wiped"):
            # A job waits for a target that dies, and no disk is given up while there is a job; and a job whose staged outputs
            # are wiped fails, since they have one copy.
            before.join(JOB_S)
        timer = threading.Timer(DURING_S, lambda: posted.append(self._jobs.post(f"{self._name}-during")))
        timer.start()
        try:
            getattr(self, f"_{change}")()
        finally:
            timer.join()
            self._jobs.finish(posted)

    def _joins(self) -> None:
        come_and_go(self._nodes, self._late, MovesPlan(), self._chance, self._found)

    def _killed(self) -> None:
        name = self._killed_one()
        time.sleep(self._chance.uniform(1.0, 6.0))
        self._nodes.start(name)
        self._until_back(name)

    def _lost(self) -> None:
        name = self._killed_one()
        self._nodes.until(lambda: is_healed(self._nodes, name), f"objects of {name} to get other replicas", BACK_S)
        time.sleep(1.0)
        self._nodes.start(name)
        self._until_back(name)

    def _wiped(self) -> None:
        name = self._chance.choice(self._nodes.targets)
        wipe(self._nodes, name)
        self._until_back(name)

    def _killed_one(self) -> str:
        name = self._chance.choice(self._nodes.targets)
        self._nodes.kill(name)
        return name

    def _until_back(self, name: str) -> None:
        nodes = self._nodes
        nodes.until(lambda: nodes.is_serving(nodes.targets) and is_back(nodes), f"{name} to have all its objects", BACK_S)


def describe(plan: Plan) -> str:
    """What a run of this plan is called."""
    return f"stock clients run through {', '.join(plan.changes)}, {plan.rounds} times"
