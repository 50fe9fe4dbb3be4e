"""A target is away while some of very many objects change. When it is back, the time until it is in sync must depend on what
has changed, not on what there is, and no catalog may be walked for it.

The rows are written straight into the catalogs, and have no blobs: only what changes is ever read.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import xxhash

from failures.found import Found, looked_into
from failures.kills import check_replicas
from failures.nodes import Nodes
from loadtest.seed import object_name, seed_cluster

BUCKET = "away"
LOOK_S = 0.05
TIMEOUT_S = 30.0
REPEAT_S = 60.0  # for how long a change that was refused is tried again
SURPLUS_S = 900.0  # to look through all rows for those that are on disks that are no replicas of them
DELETED_EVERY = 10  # one change of so many is a delete
# A process that reads as much as this part of its catalog, and for each change more than some pages, has walked it.
WALKED_SHARE = 0.5
BYTES_A_CHANGE = 16_000


@dataclass(frozen=True)
class Plan:
    """How much there is, and how much of it changes. `afterwards_s`: for how long it is watched what is read then.

    `judges_reads`: whether reading much is taken for a walk. Until all are in sync, targets also walk through their catalogs to
    count what lacks copies, slowly; where that takes long because a machine is busy, they read much.
    """

    objects: int = 1_000_000
    changed: int = 1000
    away_s: float = 30.0
    by_signal: int = signal.SIGKILL
    sync_s_max: float = 5.0
    down_after_s: float = 4.0
    afterwards_s: float = 20.0
    judges_reads: bool = True
    targets: int = 3


def run(directory: Path, plan: Plan, seed: int, say: Callable[[str], None] = print) -> Found:
    """Fill a cluster, change a part of it while a target is away, and see how that comes back."""
    found = Found()
    # The scrubber would find that the seeded rows have no blobs.
    nodes = Nodes(directory, plan.targets, 1, down_after_s=plan.down_after_s, hold_s=15, drain_timeout_s=5, scrub_interval_s=0)
    with looked_into(nodes, found):
        _fill(nodes, plan, say)
        since_us = time.time_ns() // 1000
        away = random.Random(seed).choice(nodes.targets)
        nodes.kill(away, plan.by_signal)
        begun = time.monotonic()
        contents = _change(nodes, plan, seed, found)
        time.sleep(max(0.0, begun + plan.away_s - time.monotonic()))
        found.counts["seconds away"] = round(time.monotonic() - begun)
        found.counts["hints at the return"] = sum(nodes.count("hints"))
        _come_back(nodes, away, plan, found)
        found.problems += _check(nodes, plan, contents, since_us)
    return found


def _fill(nodes: Nodes, plan: Plan, say: Callable[[str], None]) -> None:
    nodes.start_all()
    nodes.ask(f"/v1/buckets/{BUCKET}", "PUT", b'{"copies": 2}')
    nodes.until(nodes.is_calm, "a new cluster to be calm")
    with httpx.Client(verify=False) as http:
        document = http.get(f"{nodes.url}/v1/cluster").content
    nodes.stop_all()
    begun = time.monotonic()
    seed_cluster(nodes.directory, document, BUCKET, plan.objects)
    say(f"{plan.objects:,} objects were written into catalogs in {time.monotonic() - begun:.0f} s")
    nodes.start_all()
    nodes.until(nodes.is_calm, "the cluster to be calm")
    if plan.afterwards_s:
        _until_idle(nodes)


def _until_idle(nodes: Nodes) -> None:
    """What targets do once after a start is over: they read little any more."""

    def is_idle() -> bool:
        before = _read(nodes)
        time.sleep(2.0)
        return all(after - before[name] < 1_000_000 for name, after in _read(nodes).items())

    nodes.until(is_idle, "targets to have nothing to do", 300.0)


def _change(nodes: Nodes, plan: Plan, seed: int, found: Found) -> dict[str, str | None]:
    """Replace and delete some objects, evenly over the time; what they are then."""
    names = [object_name(number) for number in random.Random(seed).sample(range(plan.objects), plan.changed)]
    begun = time.monotonic()

    def change(number: int) -> tuple[str, str | None]:
        time.sleep(max(0.0, begun + plan.away_s * 0.9 * number / len(names) - time.monotonic()))
        is_delete = number % DELETED_EVERY == 0
        body = None if is_delete else b"%d of %d" % (number, seed)
        _ask_patiently(http, f"{nodes.url}/v1/objects/{BUCKET}/{names[number]}", body)
        return names[number], None if body is None else xxhash.xxh3_128_hexdigest(body)

    with httpx.Client(timeout=TIMEOUT_S, params={"relay": "1"}, verify=False) as http, ThreadPoolExecutor(8) as threads:
        contents = dict(threads.map(change, range(len(names))))
    found.counts["objects changed"] = len(contents)
    found.counts["objects in all"] = plan.objects
    return contents


def _ask_patiently(http: httpx.Client, url: str, body: bytes | None) -> None:
    """Put or delete, again while it is answered 503."""
    deadline_s = time.monotonic() + REPEAT_S
    while True:
        answer = http.delete(url) if body is None else http.put(url, content=body)
        if answer.status_code in (200, 201, 204, 404):
            return
        assert answer.status_code == 503, f"{url}: {answer.status_code} {answer.text[:200]}"
        assert time.monotonic() < deadline_s, f"{url}: {answer.text[:200]}"
        time.sleep(0.2)


def _come_back(nodes: Nodes, away: str, plan: Plan, found: Found) -> None:
    """Start the target, and measure until all disks are in sync, and what was read for it."""
    others = [name for name in nodes.targets if name != away]
    before, begun = _read(nodes), time.monotonic()
    nodes.start(away)
    nodes.until(lambda: nodes.is_serving([away]), "the target to be up")
    up_at, cpu = time.monotonic(), _cpu_s(nodes)
    while not nodes.is_calm():
        assert time.monotonic() < begun + 120, "the target is not in sync after two minutes"
        time.sleep(LOOK_S)
    in_sync_at, after = time.monotonic(), _read(nodes)
    found.counts["ms of processors from up to in sync"] = int((_cpu_s(nodes) - cpu) * 1000)
    found.counts["ms from the start to up"] = int((up_at - begun) * 1000)
    found.counts["ms from up to in sync"] = int((in_sync_at - up_at) * 1000)
    time.sleep(plan.afterwards_s)
    afterwards, sizes = _read(nodes), {name: _catalog_bytes(nodes, name) for name in nodes.targets}
    for name in nodes.targets:
        kind = "that was away" if name == away else f"that stayed ({others.index(name) + 1})"
        found.counts[f"KiB of a catalog, target {kind}"] = sizes[name] // 1024
        found.counts[f"KiB read until in sync, target {kind}"] = (after[name] - before.get(name, 0)) // 1024
        found.counts[f"KiB read {plan.afterwards_s:.0f} s afterwards, target {kind}"] = (afterwards[name] - after[name]) // 1024
    if in_sync_at - up_at > plan.sync_s_max:
        found.problems.append(f"in sync {in_sync_at - up_at:.1f} s after it was up, instead of {plan.sync_s_max:g}")
    for name in others if plan.judges_reads else ():
        if after[name] - before[name] > max(BYTES_A_CHANGE * plan.changed, WALKED_SHARE * sizes[name]):
            found.problems.append(f"{name} has read as much as if it had walked its catalog")


def _read(nodes: Nodes) -> dict[str, int]:
    """The bytes that each running target has read from files, whether or not they were in memory."""
    found = {}
    for name in nodes.targets:
        if name in nodes.processes:
            fields = Path(f"/proc/{nodes.processes[name].pid}/io").read_text().split()
            found[name] = int(fields[fields.index("rchar:") + 1])
    return found


def _cpu_s(nodes: Nodes) -> float:
    """The time that processors have worked for all nodes, which is not a matter of what else a machine does."""
    ticks = 0
    for process in nodes.processes.values():
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _catalog_bytes(nodes: Nodes, name: str) -> int:
    return sum((disk / "catalog.sqlite").stat().st_size for disk in nodes.disks_of(name))


def _check(nodes: Nodes, plan: Plan, contents: dict[str, str | None], since_us: int) -> list[str]:
    """All changes are there, on all replicas, and nothing else has changed."""
    nodes.until(lambda: not nodes.handoffs(), "surplus rows to go", SURPLUS_S)
    problems: list[str] = check_replicas(nodes, 2, since_us=since_us)

    def read(name: str) -> Any:
        answer = http.get(f"{nodes.url}/v1/objects/{BUCKET}/{name}")
        return xxhash.xxh3_128_hexdigest(answer.content) if answer.status_code == 200 else answer.status_code

    with httpx.Client(timeout=TIMEOUT_S, params={"relay": "1"}, verify=False) as http, ThreadPoolExecutor(4) as threads:
        for name, answer in zip(contents, threads.map(read, contents), strict=True):
            if answer != (contents[name] or 404):
                problems.append(f"{name} is {answer} instead of {contents[name]}")
    left = plan.objects - sum(content is None for content in contents.values())
    if (totals := nodes.totals()) != [(0, left), (1, left)]:
        problems.append(f"objects by rank are {totals}, instead of {left} of ranks 0 and 1")
    return problems
