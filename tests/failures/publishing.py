"""Jobs publish while targets are killed or restarted: all outputs of a job that succeeded are on all their replicas."""

from __future__ import annotations

import json
import random
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etcd_process import etcd
from job_shards import tar_of

from failures.found import Found, looked_into
from failures.kills import check_replicas
from failures.nodes import Nodes

INPUTS = 6
SAMPLES = 60  # in each
SAMPLES_OUT = 15
OUTPUTS = INPUTS * SAMPLES // SAMPLES_OUT
LOOK_S = 0.002
SUBMIT_S = 30.0
SAMPLE_BYTES = (500, 6_000)  # shards below and above what goes with its row
UNFINISHED = ("queued", "running", "publishing")


@dataclass(frozen=True)
class Plan:
    """How many jobs, and the `copies` of their outputs. A target, or a proxy in some rounds, is ended by one of the `signals`
    so many milliseconds after the job is seen to publish, and started again at once or after `away_s`, or for a share of the
    targets, `stay_share`, when the job is over."""

    rounds: int = 40
    copies: tuple[int, ...] = (2, 3)
    after_ms: tuple[int, ...] = (0, 5, 10, 18, 25, 35, 50)
    away_s: tuple[float, float] = (0.0, 6.0)
    signals: tuple[int, ...] = (signal.SIGKILL, signal.SIGTERM)
    proxy_share: float = 0.15
    proxies: int = 1  # with several, the registry is in etcd
    stay_share: float = 0.3
    down_after_s: float = 3.0
    job_s_max: float = 120.0


def run(directory: Path, plan: Plan, seed: int, say: Callable[[str], None] = print) -> Found:
    """Run one cluster through all rounds."""
    found, chance = Found(), random.Random(seed)
    settings: dict[str, Any] = {"down_after_s": plan.down_after_s, "hold_s": 10, "drain_timeout_s": 2, "jobs_workers": 1}
    with ExitStack() as stack:
        if plan.proxies > 1:
            settings["etcd_urls"] = ",".join(stack.enter_context(etcd(1, directory / "etcd")).urls)
        nodes = Nodes(directory, 4, 1, proxies=plan.proxies, **settings)
        stack.enter_context(looked_into(nodes, found))
        nodes.start_all()
        fill(nodes, chance, plan.copies)
        for number in range(plan.rounds):
            _round(nodes, plan, number, chance, found, say)
        for copies in plan.copies:
            nodes.until(lambda: not nodes.handoffs(), "surplus rows to go", 60.0)
            found.problems += check_replicas(nodes, copies, nodes.bucket_id(f"out-{copies}"))
    return found


def _round(nodes: Nodes, plan: Plan, number: int, chance: random.Random, found: Found, say: Callable[[str], None]) -> None:
    bucket, size = f"out-{plan.copies[number % len(plan.copies)]}", chance.choice(SAMPLE_BYTES)
    how = plan.signals[number // len(plan.copies) % len(plan.signals)]
    after_ms = chance.choice(plan.after_ms)
    job = _submitted(nodes, job_of(bucket, f"r{number}-%03d.tar", size), say)
    _until(nodes, job, lambda state: state not in ("queued", "running"), plan.job_s_max)
    time.sleep(after_ms / 1000)
    name = chance.choice(nodes.proxies if chance.random() < plan.proxy_share else nodes.targets)
    nodes.kill(name, how)
    stays = name in nodes.targets and chance.random() < plan.stay_share
    if not stays:
        time.sleep(chance.uniform(*plan.away_s) if chance.random() < 0.5 else 0)
        nodes.start(name)
    state = _until(nodes, job, lambda state: state not in UNFINISHED, plan.job_s_max)
    outputs = [f"r{number}-{each:03d}.tar" for each in range(OUTPUTS)]
    missing = [each for each in outputs if stays and not _is_there(nodes, bucket, each)]
    if stays:
        found.counts["jobs over while a target was away"] += 1
        nodes.start(name)
    nodes.until(nodes.is_calm, "calm", 60.0)
    missing += [each for each in outputs if each not in missing and not _is_there(nodes, bucket, each)]
    found.counts[f"{signal.Signals(how).name} of {'a target' if name in nodes.targets else 'a proxy'}"] += 1
    found.counts[f"jobs {state}"] += 1
    found.counts["outputs there"] += OUTPUTS - len(missing)
    if state != "succeeded" or missing:
        found.problems.append(f"round {number}: {name} ended after {after_ms} ms: the job has {state}, missing {missing}")
    say(f"round {number}: {name} by {how} after {after_ms} ms: {state}, {len(missing)} missing")


def shard(chance: random.Random, number: int, size: int) -> bytes:
    """A tar of `SAMPLES` samples of so many bytes."""
    return tar_of([(f"{number:02d}-{sample:05d}.bin", chance.randbytes(size)) for sample in range(SAMPLES)])


def fill(nodes: Nodes, chance: random.Random, copies: Collection[int], kinds: Collection[str] = ("out",)) -> None:
    """Make the buckets, and put what jobs read."""
    nodes.ask("/v1/buckets/in", "PUT", b'{"copies": 2}')
    for each in copies:
        for kind in kinds:
            nodes.ask(f"/v1/buckets/{kind}-{each}", "PUT", b'{"copies": %d}' % each)
    for size in SAMPLE_BYTES:
        for number in range(INPUTS):
            put_input(nodes, f"in-{size}-{number}.tar", shard(chance, number, size))


def put_input(nodes: Nodes, name: str, body: bytes) -> None:
    """Put a shard into the bucket of inputs."""
    with urllib.request.urlopen(urllib.request.Request(f"{nodes.url}/in/{name}?relay=1", body, method="PUT"), timeout=30):
        pass


def job_of(bucket: str, pattern: str, size: int) -> dict[str, Any]:
    """What asks for a job that makes `OUTPUTS` shards of those whose samples have so many bytes."""
    return {
        "operation": "reshuffle",
        "input": {"bucket": "in", "shards": f"in-{size}-*.tar"},
        "output": {"bucket": bucket, "pattern": pattern},
        "options": {"seed": 5, "samples_per_shard": SAMPLES_OUT},
    }


def _submitted(nodes: Nodes, job: dict[str, Any], say: Callable[[str], None]) -> str:
    """The id of a job, submitted again while that is answered 503: a proxy that was killed may still be starting workers."""
    end_s = time.monotonic() + SUBMIT_S
    while True:
        try:
            return str(nodes.ask("/v1/jobs", "POST", json.dumps(job).encode())["id"])
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() > end_s:
                raise
            say(f"submitted again after: {error.read(300)!r}")
            time.sleep(0.2)


def _until(nodes: Nodes, job: str, holds: Callable[[str], bool], timeout_s: float) -> str:
    """The state of a job, once it is the right one. TimeoutError."""
    end_s, state = time.monotonic() + timeout_s, "unknown"
    while time.monotonic() < end_s:
        try:
            state = nodes.ask(f"/v1/jobs/{job}")["state"]
        except OSError:
            state = "unknown"
        if state != "unknown" and holds(state):
            return state
        time.sleep(LOOK_S if state in ("running", "publishing") else 0.05)
    raise TimeoutError(f"job {job} is {state} after {timeout_s:g} s")


def _is_there(nodes: Nodes, bucket: str, name: str) -> bool:
    try:
        with urllib.request.urlopen(f"{nodes.url}/{bucket}/{name}?relay=1", timeout=30) as answer:
            return len(answer.read()) > 0
    except urllib.error.HTTPError:
        return False
