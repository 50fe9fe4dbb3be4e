"""Nodes are killed at random and stay away for a while, under writers: nothing acknowledged is lost, torn, stale or back."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from failures.found import Found
from failures.nodes import PROXY, Nodes
from failures.writers import Writer, final_check

# What must have happened for a run of 20 minutes to mean anything.
LEAST: Mapping[str, int] = {
    "targets marked down": 50,
    "handoff replica rows": 1000,
    "disks that caught up": 20,
    "acknowledged": 20_000,
}


@dataclass(frozen=True)
class Plan:
    """How long, how often, and how much. `proxy_share`: of kills that hit the proxy. `least`: what the run counts only with.
    `serve_s_max`: from the last kill until every node serves."""

    seconds: float = 1200.0
    pause_s: tuple[float, float] = (2.0, 5.0)
    away_s: tuple[float, float] = (0.5, 30.0)
    writers: int = 16
    sizes: tuple[int, int] = (4_000, 1_000_000)
    copies: int = 2
    targets: int = 3
    disks: int = 2
    down_after_s: float = 4.0
    proxy_share: float = 0.1
    serve_s_max: float = 10.0
    least: Mapping[str, int] = field(default_factory=lambda: LEAST)


def run(directory: Path, plan: Plan, seed: int, say: Callable[[str], None] = print) -> Found:
    """Run a cluster under kills, then let it heal, and check everything."""
    found, chance = Found(), random.Random(seed)
    settings = {"down_after_s": plan.down_after_s, "hold_s": 15, "drain_timeout_s": 5}
    with Nodes(directory, plan.targets, plan.disks, **settings) as nodes:
        nodes.start_all()
        nodes.ask("/v1/buckets/kills", "PUT", b'{"copies": %d}' % plan.copies)
        writers = [Writer(nodes.url, "kills", number, seed, plan.sizes) for number in range(plan.writers)]
        for writer in writers:
            writer.start()
        _kill(nodes, plan, chance, found, say)
        serve_s = _back(nodes)
        found.counts["ms until all serve"] = round(1000 * serve_s)
        if serve_s > plan.serve_s_max:
            found.problems.append(f"every node serves {serve_s:.1f} s after the last kill, instead of {plan.serve_s_max:g}")
        for writer in writers:
            writer.stopping.set()
        for writer in writers:
            writer.join(60)
        found.counts["seconds until calm"] = round(nodes.until(nodes.is_calm, "all disks to have caught up"))
        for writer in writers:
            found.counts.update(writer.counts)
            found.problems += writer.problems
        found.problems += final_check(nodes.url, "kills", writers)
        nodes.until(lambda: not nodes.handoffs(), "surplus rows to go", 60.0)
        found.problems += check_replicas(nodes, plan.copies)
        _count_log(nodes, found)
        found.counts["acknowledged"] = found.counts["put"] + found.counts["delete"]
        for what, least in plan.least.items():
            if found.counts[what] < least:
                found.problems.append(f"it does not count: {what}: {found.counts[what]}, of at least {least}")
        nodes.stop_all()
    return found


def _kill(nodes: Nodes, plan: Plan, chance: random.Random, found: Found, say: Callable[[str], None]) -> None:
    """Kill nodes and start them again, until the time is over."""
    end, back_at, handoffs = time.monotonic() + plan.seconds, dict[str, float](), set[tuple[str, str, int]]()
    next_kill, next_look = time.monotonic() + 2.0, time.monotonic()
    while (now := time.monotonic()) < end:
        for name, at in list(back_at.items()):
            if now >= at:
                del back_at[name]
                nodes.start(name)
        if now >= next_kill:
            next_kill = now + chance.uniform(*plan.pause_s)
            running = [name for name in nodes.targets if name in nodes.processes]
            name = PROXY if chance.random() < plan.proxy_share else chance.choice(nodes.targets)
            away_s = chance.uniform(*plan.away_s) if chance.random() < 0.5 else chance.uniform(plan.away_s[0], 3.0)
            if name in nodes.processes and (name == PROXY or len(running) > 1):
                nodes.kill(name)
                found.counts[f"kills of {'the proxy' if name == PROXY else 'targets'}"] += 1
                back_at[name] = time.monotonic() + (min(away_s, 3.0) if name == PROXY else away_s)
        if now >= next_look:
            next_look = now + 1.0
            handoffs |= nodes.handoffs()
        time.sleep(0.05)
    found.counts["handoff replica rows"] = len(handoffs)
    say(f"killed for {plan.seconds:.0f} s: {dict(found.counts)}")


def _back(nodes: Nodes) -> float:
    begun = time.monotonic()
    for name in (PROXY, *nodes.targets):
        if name not in nodes.processes:
            nodes.start(name)
    nodes.until(lambda: nodes.is_serving(nodes.targets), "every node to serve")
    return time.monotonic() - begun


def check_replicas(nodes: Nodes, copies: int, bucket_id: str | None = None, since_us: int = 0) -> list[str]:
    """Every object, or every one of a bucket or written since, is on exactly so many disks, which are its replicas, in one
    version and with one checksum."""
    by_name: dict[tuple[str, str], list[tuple[str, tuple[int, int], str, int]]] = {}
    for row in nodes.rows(since_us):
        if bucket_id not in (None, row.bucket_id):
            continue
        by_name.setdefault((row.bucket_id, row.name), []).append((row.disk, row.version, row.checksum, row.rank))
    problems = []
    for (_, name), rows in by_name.items():
        if len(rows) != copies or len({row[1:3] for row in rows}) != 1 or sorted(row[3] for row in rows) != list(range(copies)):
            problems.append(f"{name}: on disks {rows}")
    return problems


def until_at_replica(nodes: Nodes, copies: int, timeout_s: float) -> None:
    """Wait until all objects are where they belong after a move. Ranks are those of before until all rows have been walked, so
    they do not tell which rows are surplus."""
    nodes.until(lambda: not check_replicas(nodes, copies), "all objects to be at their replicas and nowhere else", timeout_s)


def _count_log(nodes: Nodes, found: Found) -> None:
    log = nodes.log_of(PROXY).read_text(errors="replace")
    found.counts["targets marked down"] = log.count("marked down")
    found.counts["disks that caught up"] = log.count("has caught up")
