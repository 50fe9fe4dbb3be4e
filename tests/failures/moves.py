"""A target joins, gets its share of the objects, is drained and removed, again and again, under writers and listings: nobody
notices, and no more bytes are moved than belong elsewhere."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from failures.fixed import Rounds, check_all, stored_bytes, under_rounds
from failures.found import Found, looked_into
from failures.kills import until_at_replica
from failures.nodes import PROXY, Nodes
from failures.writers import Writer

BUCKET = "moves"
MOVE_S = 120.0
SURPLUS_S = 120.0
SURPLUS_BYTES = 1.05  # moved at most, of those that have another replica


@dataclass(frozen=True)
class Plan(Rounds):
    """`refused_share`: of all requests, how many may fail. `kills`: nodes are killed in the middle of
    moves, each a moment later started again; then requests fail, too."""

    copies: int = 2
    kills: bool = False
    refused_share: float = 0.005  # an upload that ends just when its object is handed over is answered 503


def run(directory: Path, plan: Plan, seed: int, say: Callable[[str], None] = print) -> Found:
    """Let a target come and go, then look at everything."""
    found, chance = Found(), random.Random(seed)
    settings = {"join_wait_s": 0.5, "down_after_s": plan.down_after_s, "hold_s": 15, "drain_timeout_s": 5}
    nodes = Nodes(directory, plan.targets + 1, 1, expected_targets=plan.targets, **settings)
    late = nodes.targets.pop()
    with looked_into(nodes, found):
        one = partial(come_and_go, nodes, late, plan, chance, found)
        writers, fixed = under_rounds(nodes, BUCKET, plan, seed, found, say, one, plan.copies)
        _count_refusals(found, plan, writers)
        nodes.until_calm(60.0)
        until_at_replica(nodes, plan.copies, SURPLUS_S)
        _move_in_peace(nodes, late, found)
        until_at_replica(nodes, plan.copies, SURPLUS_S)
        found.problems += check_all(nodes, BUCKET, writers, fixed, plan.copies)
    return found


def come_and_go(nodes: Nodes, late: str, plan: Plan, chance: random.Random, found: Found) -> None:
    """One round: a target joins and gets objects, is drained, and removed."""
    nodes.targets.append(late)
    nodes.start(late)
    nodes.until(lambda: nodes.is_serving([late]), "the target to join")
    found.counts["ms for moves to it"] += _until_moved(nodes, late, plan, chance, found, is_in=True)
    node_id = _id_of(nodes, late)
    nodes.ask(f"/v1/cluster/nodes/{node_id}", "PATCH", b'{"state": "draining"}')
    found.counts["ms for moves from it"] += _until_moved(nodes, late, plan, chance, found, is_in=False)
    nodes.until(lambda: nodes.is_serving(nodes.targets), "all to be up")
    own = str(nodes.disks_of(late)[0])
    nodes.until(lambda: all(row[0] != own for row in nodes.sizes()), "all to be gone from it", SURPLUS_S)
    nodes.kill(late, signal.SIGTERM)
    nodes.targets.remove(late)
    nodes.until(lambda: _state_of(nodes, node_id) == "down", "it to be down")
    nodes.ask(f"/v1/cluster/nodes/{node_id}", "DELETE")
    found.counts["rounds"] += 1


def _until_moved(nodes: Nodes, late: str, plan: Plan, chance: random.Random, found: Found, *, is_in: bool) -> int:
    """Wait until the target holds objects, or none; for how many milliseconds."""
    begun, back_at = time.monotonic(), dict[str, float]()
    kill_at = begun + chance.uniform(0.5, 3.0) if plan.kills else float("inf")

    def has_moved() -> bool:
        nonlocal kill_at
        now = time.monotonic()
        for name in [name for name, at in back_at.items() if now >= at]:
            nodes.start(name)
            del back_at[name]
        if now >= kill_at and not back_at:
            kill_at = float("inf")
            name = chance.choice([PROXY, *nodes.targets])
            nodes.kill(name)
            found.counts[f"kills of {'the proxy' if name == PROXY else 'targets'}"] += 1
            back_at[name] = now + chance.choice((0.2, 6.0))
        try:
            known = nodes.map()
        except OSError:
            return False
        in_use = {disk for layout in known["layouts"] for disk in layout["disks"]}
        own = {disk["id"] for node in known["nodes"] if node["advertise_url"] == nodes.url_of(late) for disk in node["disks"]}
        is_moving = any(run.get("to") is not None for run in known["slices"])
        return not back_at and not is_moving and bool(own & in_use) == is_in

    nodes.until(has_moved, f"objects to be moved {'to' if is_in else 'from'} it", MOVE_S)
    return int((time.monotonic() - begun) * 1000)


def _id_of(nodes: Nodes, name: str) -> str:
    return next(str(node["id"]) for node in nodes.map()["nodes"] if node["advertise_url"] == nodes.url_of(name))


def _state_of(nodes: Nodes, node_id: str) -> str:
    return next(str(node["state"]) for node in nodes.map()["nodes"] if node["id"] == node_id)


def _count_refusals(found: Found, plan: Plan, writers: list[Writer]) -> None:
    refused = sum(count for what, count in found.counts.items() if what.startswith(("put ", "delete ", "get ")))
    done = found.counts["put"] + found.counts["delete"] + found.counts["get"]
    found.counts["requests in all"], found.counts["requests that failed"] = done + refused, refused
    if refused > plan.refused_share * done and not plan.kills:
        found.problems.append(f"{refused} of {done + refused} requests failed")
        found.problems += [refusal for writer in writers for refusal in writer.refusals]


def _move_in_peace(nodes: Nodes, late: str, found: Found) -> None:
    """Nobody writes: what is stored on disks for one more move is what belongs elsewhere afterwards."""
    bytes_before = stored_bytes(nodes)
    nodes.targets.append(late)
    before = set(nodes.sizes())
    nodes.start(late)
    _until_moved(nodes, late, Plan(), random.Random(0), found, is_in=True)
    nodes.until_calm(60.0)
    sizes = nodes.sizes()
    due = sum(size for row, size in sizes.items() if row not in before)
    moved = stored_bytes(nodes) - bytes_before
    found.counts["KiB that belong elsewhere"], found.counts["KiB moved"] = due // 1024, moved // 1024
    if not due <= moved <= SURPLUS_BYTES * due:
        found.problems.append(f"{moved} bytes were moved, but {due} belong elsewhere")


def describe(plan: Plan) -> str:
    """What a run of this plan is called."""
    kills = ", with kills" if plan.kills else ""
    return f"a target joins, is drained and removed {plan.rounds} times, copies {plan.copies}{kills}"
