"""A disk is replaced by an empty one under its id, again and again, under writers and listings: what it held comes from other
copies, and nothing else is moved."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from failures.fixed import Rounds, check_all, stored_bytes, under_rounds
from failures.found import Found, looked_into
from failures.losses import disks_of, is_back, settle
from failures.nodes import Nodes

BUCKET = "wipes"
DOWN_S = 60.0
HEAL_S = 120.0
SURPLUS_BYTES = 1.05  # copied at most, of those that the disk held


@dataclass(frozen=True)
class Plan(Rounds):
    down_after_s: float = 2.0


def run(directory: Path, plan: Plan, seed: int, say: Callable[[str], None] = print) -> Found:
    """Wipe disks one after the other, each when the one before has got its objects back, then look at everything."""
    found, chance = Found(), random.Random(seed)
    nodes = Nodes(directory, plan.targets, 1, down_after_s=plan.down_after_s, hold_s=15, drain_timeout_s=5)
    with looked_into(nodes, found):
        writers, fixed = under_rounds(nodes, BUCKET, plan, seed, found, say, partial(_wipe_one, nodes, chance, found))
        settle(nodes)
        _wipe_in_peace(nodes, found)
        found.problems += check_all(nodes, BUCKET, writers, fixed)
    return found


def wipe(nodes: Nodes, name: str) -> None:
    """Kill a target, put an empty disk in the place of its own, as an operator does it, and start it again."""
    [disk] = nodes.disks_of(name)
    [entry] = disks_of(nodes, name)
    nodes.kill(name)
    shutil.rmtree(disk)
    nodes.until(lambda: bool(disks_of(nodes, name)[0]["down_step"]), f"{name} to be marked down", DOWN_S)
    command = [sys.executable, "-m", "dfc", "disk", "replace", str(disk), entry["id"]]
    environment = {**os.environ, "DFC_URL": nodes.url}
    said = list[str]()

    def is_replaced() -> bool:
        """Refused for as long as another disk is out of sync, by a write that it has missed."""
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        said.append(done.stderr)
        return done.returncode == 0

    try:
        nodes.until(is_replaced, f"the disk of {name} to be replaced", DOWN_S)
    except AssertionError as error:
        raise AssertionError(f"{error}: {said[-1]}") from None
    identity = json.loads((disk / "dfc-disk.json").read_text())
    assert identity["disk_id"] == entry["id"], f"the disk of {name} is {identity}"
    nodes.start(name)


def _wipe_one(nodes: Nodes, chance: random.Random, found: Found) -> None:
    """One round."""
    name = chance.choice(nodes.targets)
    wipe(nodes, name)
    begun = time.monotonic()
    nodes.until(lambda: nodes.is_serving(nodes.targets) and is_back(nodes), f"{name} to get its objects back", HEAL_S)
    found.counts["ms until healed"] += int((time.monotonic() - begun) * 1000)
    found.counts["rounds"] += 1


def _wipe_in_peace(nodes: Nodes, found: Found) -> None:
    """Nobody writes: what is stored is what the disk held, and it is stored there."""
    name = nodes.targets[0]
    own = {str(each) for each in nodes.disks_of(name)}
    before, held_elsewhere = nodes.sizes(), stored_bytes(nodes, without=name)
    held = sum(size for row, size in before.items() if row[0] in own)
    wipe(nodes, name)
    nodes.until(lambda: nodes.is_serving(nodes.targets) and is_back(nodes), f"{name} to get its objects back", HEAL_S)
    settle(nodes)
    copied = stored_bytes(nodes) - held_elsewhere  # its own count began with its start
    found.counts["KiB that a wiped disk held"], found.counts["KiB copied"] = held // 1024, copied // 1024
    if not held <= copied <= SURPLUS_BYTES * held:
        found.problems.append(f"{copied} bytes were copied, but the wiped disk held {held}")
    if nodes.sizes() != before:
        found.problems.append("disks hold other objects than before a disk was wiped")


def describe(plan: Plan) -> str:
    """What a run of this plan is called."""
    return f"a disk is replaced by an empty one {plan.rounds} times"
