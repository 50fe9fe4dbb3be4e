"""A target dies and stays away until its disk is given up and all objects have their copies again; then it comes back with what
it had. All that under writers and listings."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from failures.fixed import Rounds, check_all, stored_bytes, under_rounds
from failures.found import Found, looked_into
from failures.kills import until_at_replica
from failures.nodes import Nodes

BUCKET = "losses"
HEAL_S = 120.0
SURPLUS_S = 120.0
SURPLUS_BYTES = 1.05  # copied at most, of those that a lost disk held


@dataclass(frozen=True)
class Plan(Rounds):
    """A target stays away for `away_s` after all has been healed."""

    targets: int = 4
    down_after_s: float = 2.0
    out_after_s: float = 2.0
    away_s: float = 2.0
    forget_s: float = 6.0  # longer than it takes to find what is surplus


def run(directory: Path, plan: Plan, seed: int, say: Callable[[str], None] = print) -> Found:
    """Let targets die and come back one after the other, then look at everything."""
    found, chance = Found(), random.Random(seed)
    settings = {"out_after_s": plan.out_after_s, "down_after_s": plan.down_after_s, "hold_s": 15, "drain_timeout_s": 5}
    # Tombstones are kept for a few seconds only, so that what comes back brings what nobody remembers.
    nodes = Nodes(directory, plan.targets, 1, forget_s=plan.forget_s, **settings)
    with looked_into(nodes, found):
        writers, fixed = under_rounds(nodes, BUCKET, plan, seed, found, say, partial(_lose_one, nodes, chance, plan, found))
        settle(nodes)
        _lose_in_peace(nodes, found)
        found.problems += check_all(nodes, BUCKET, writers, fixed)
    return found


def settle(nodes: Nodes) -> None:
    """Wait until all objects are where they belong, and nowhere else."""
    nodes.until_calm(60.0)
    until_at_replica(nodes, 2, SURPLUS_S)


def _lose_one(nodes: Nodes, chance: random.Random, plan: Plan, found: Found) -> None:
    """One round."""
    name, begun = chance.choice(nodes.targets), time.monotonic()
    nodes.kill(name)
    nodes.until(lambda: is_healed(nodes, name), f"objects of {name} to get other replicas", HEAL_S)
    found.counts["ms until healed"] += int((time.monotonic() - begun) * 1000)
    time.sleep(plan.away_s)  # overwrites and deletes go on
    begun = time.monotonic()
    nodes.start(name)
    nodes.until(lambda: is_back(nodes), f"{name} to get its objects again", HEAL_S)
    found.counts["ms until back"] += int((time.monotonic() - begun) * 1000)
    found.counts["rounds"] += 1


def disks_of(nodes: Nodes, name: str) -> list[dict[str, Any]]:
    """The entries in the map of a target's disks."""
    return [disk for node in nodes.map()["nodes"] if node["advertise_url"] == nodes.url_of(name) for disk in node["disks"]]


def _is_peered(nodes: Nodes) -> bool:
    return all(run.get("to") is None for run in nodes.map()["slices"])


def is_healed(nodes: Nodes, name: str) -> bool:
    """Whether a target's disks were given up, and all objects have other replicas."""
    known = nodes.map()
    gone = {disk for layout in known["layouts"] for disk in layout.get("gone", ())}
    lost = {disk["id"] for disk in disks_of(nodes, name) if disk["evicted"]}
    return bool(lost) and lost <= gone and len(known["layouts"]) == 1 and _is_peered(nodes)


def is_back(nodes: Nodes) -> bool:
    """Whether no disk is given up, and all objects are where they belong."""
    known = nodes.map()
    disks = [disk for node in known["nodes"] for disk in node["disks"]]
    gone = any(layout.get("gone") for layout in known["layouts"])
    away = any(disk["evicted"] or disk["out_of_sync_with"] or disk["down_step"] for disk in disks)
    return not gone and not away and _is_peered(nodes)


def _lose_in_peace(nodes: Nodes, found: Found) -> None:
    """Nobody writes: what is stored on other disks is what the lost one held."""
    name = nodes.targets[0]
    own = {str(each) for each in nodes.disks_of(name)}
    held = sum(size for row, size in nodes.sizes().items() if row[0] in own)
    before = stored_bytes(nodes, without=name)
    nodes.kill(name)
    nodes.until(lambda: is_healed(nodes, name), f"objects of {name} to get other replicas", HEAL_S)
    copied = stored_bytes(nodes, without=name) - before
    found.counts["KiB that a lost disk held"], found.counts["KiB copied"] = held // 1024, copied // 1024
    if not held <= copied <= SURPLUS_BYTES * held:
        found.problems.append(f"{copied} bytes were copied, but the lost disk held {held}")
    nodes.start(name)
    nodes.until(lambda: is_back(nodes), f"{name} to get its objects again", HEAL_S)
    settle(nodes)


def describe(plan: Plan) -> str:
    """What a run of this plan is called."""
    return f"a target dies and comes back when its disk has been given up, {plan.rounds} times"
