"""The long runs against clusters of real processes, in `tests/`: `python -m failures all --seed 2`, or one of its rows.

Exit code 1: something acknowledged was lost, torn, stale or back, or a promise about time was broken.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from failures import (
    away,
    chaos,
    clients,
    failover,
    flips,
    kills,
    losses,
    moves,
    partitions,
    power,
    publishing,
    rollbacks,
    simulated,
    upgrade,
    wipes,
)
from failures.found import Found


class Row(NamedTuple):
    """One run: what it is called, and what it does in a directory with a seed."""

    title: str
    run: Callable[[Path, int], Found]


def _kills(given: argparse.Namespace) -> list[Row]:
    least = kills.LEAST if given.seconds >= kills.Plan.seconds else {}  # a shorter run is for a look
    plan = kills.Plan(seconds=given.seconds, copies=given.copies, least=least)
    return [Row(f"kills for {given.seconds:g} s", lambda directory, seed: kills.run(directory, plan, seed))]


def _chaos(given: argparse.Namespace) -> list[Row]:
    plan = chaos.Plan(seconds=given.seconds)
    title = f"everything at once for {given.seconds:g} s"
    return [Row(title, lambda directory, seed: chaos.run(directory, plan, seed))]


def _power(given: argparse.Namespace) -> list[Row]:
    if power.why_simulated():
        return [Row("power losses of a simulated file system", power.run_simulated)]
    plan = power.Plan(cycles=given.cycles, copies=given.copies)
    title = f"{given.cycles} power losses of real file systems, copies {given.copies}"
    return [Row(title, lambda directory, seed: power.run(directory, plan, seed))]


def _partitions(given: argparse.Namespace) -> list[Row]:
    plan = partitions.Plan(schedules=given.schedules, by=given.by)
    title = f"{given.schedules} schedules of cut links"
    if given.etcd:
        plan = partitions.Plan(schedules=given.schedules, by=given.by, proxies=2, members=3)
        title += ", two proxies and three members of etcd"
    return [Row(title, lambda directory, seed: partitions.run(directory, plan, seed))]


def _away(given: argparse.Namespace) -> list[Row]:
    plan = away.Plan(objects=given.objects, changed=given.changed, by_signal=getattr(signal, given.signal))
    title = f"{given.changed:,} of {given.objects:,} objects changed while a target was away ({given.signal})"
    return [Row(title, lambda directory, seed: away.run(directory, plan, seed))]


def _failover(given: argparse.Namespace) -> list[Row]:
    return [Row("a target ends and stays away", lambda directory, seed: failover.run(directory, failover.Plan(), seed))]


def _flips(given: argparse.Namespace) -> list[Row]:
    plan = flips.Plan(objects=given.objects, damaged=given.damaged)
    title = f"one of two copies of {given.damaged:,} of {given.objects:,} objects is damaged"
    return [Row(title, lambda directory, seed: flips.run(directory, plan, seed))]


def _moves(given: argparse.Namespace) -> list[Row]:
    plan = moves.Plan(rounds=given.rounds, copies=given.copies, kills=given.kills)
    return [Row(moves.describe(plan), lambda directory, seed: moves.run(directory, plan, seed))]


def _losses(given: argparse.Namespace) -> list[Row]:
    plan = losses.Plan(rounds=given.rounds)
    return [Row(losses.describe(plan), lambda directory, seed: losses.run(directory, plan, seed))]


def _rollbacks(given: argparse.Namespace) -> list[Row]:
    plan = rollbacks.Plan(rounds=given.rounds, copies=given.copies, kinds=tuple(given.kind or ()))
    return [Row(rollbacks.describe(plan), lambda directory, seed: rollbacks.run(directory, plan, seed))]


def _wipes(given: argparse.Namespace) -> list[Row]:
    plan = wipes.Plan(rounds=given.rounds)
    return [Row(wipes.describe(plan), lambda directory, seed: wipes.run(directory, plan, seed))]


def _clients(given: argparse.Namespace) -> list[Row]:
    plan = clients.Plan(rounds=given.rounds)
    return [Row(clients.describe(plan), lambda directory, seed: clients.run(directory, plan, seed))]


def _publishing(given: argparse.Namespace) -> list[Row]:
    plan = publishing.Plan(rounds=given.rounds)
    if given.etcd:
        plan = publishing.Plan(rounds=given.rounds, proxies=2, proxy_share=0.4)
    title = f"{given.rounds} jobs publish while a node ends{', with two proxies' if given.etcd else ''}"
    return [Row(title, lambda directory, seed: publishing.run(directory, plan, seed))]


def _upgrade(given: argparse.Namespace) -> list[Row]:
    reason = upgrade.why_not(given.revision)
    if reason:
        raise SystemExit(reason)
    plan = upgrade.Plan(revision=given.revision)
    title = f"a cluster is {f'updated from {given.revision}' if given.revision else 'restarted'}, moved to etcd and back"
    return [Row(title, lambda directory, seed: upgrade.run(directory, plan, seed))]


def _simulation(given: argparse.Namespace) -> list[Row]:
    plan = simulated.Plan(seeds=given.seeds)
    return [Row(f"{given.seeds:,} seeds of the simulation", lambda directory, seed: simulated.run(directory, plan, seed))]


def _all(given: argparse.Namespace) -> list[Row]:
    """Every row with its usual counts."""
    commands = ["simulation", "failover", "kills", "chaos", "power --copies 1", "power --copies 2", "partitions"]
    commands += ["partitions --etcd --schedules 50", "upgrade"]
    commands += ["away", "away --signal SIGTERM", "flips", "moves --copies 1", "moves --copies 2"]
    commands += ["losses", "wipes", "clients", "publishing", "publishing --etcd"]
    commands += ["rollbacks --copies 1", "rollbacks --copies 2"]
    commands += ["moves --rounds 10 --kills --copies 1", "moves --rounds 10 --kills --copies 2"]
    found: dict[str, Row] = {}  # a simulation of power losses is the same one whatever the copies
    for command in commands:
        found |= {row.title: row for row in rows_of(command)}
    return list(found.values())


def rows_of(command: str) -> list[Row]:
    """The rows of a command line."""
    given = _parser().parse_args(command.split())
    found: list[Row] = given.rows(given)
    return found


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--seed", type=int, default=1, help="what happens, and when, follows from it, nearly (default: 1)")
    common.add_argument("--dir", type=Path, help="where the clusters are, and stay (default: a temporary directory)")
    parser = argparse.ArgumentParser(prog="python -m failures", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="WHAT")

    def add(name: str, rows: Callable[[argparse.Namespace], list[Row]], doc: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, parents=[common], help=doc, description=doc)
        command.set_defaults(rows=rows)
        return command

    command = add("kills", _kills, "nodes are killed at random")
    command.add_argument("--seconds", type=float, default=1200.0, help="for how long (default: 1200)")
    command.add_argument("--copies", type=int, default=2)
    command = add("chaos", _chaos, "nodes and etcd are killed and stopped, under writers, jobs and moves")
    command.add_argument("--seconds", type=float, default=1200.0, help="for how long (default: 1200)")
    command = add("power", _power, "all disks lose power at once (as root, with loop devices; otherwise a simulated one)")
    command.add_argument("--cycles", type=int, default=200, help="how often (default: 200)")
    command.add_argument("--copies", type=int, default=2)
    command = add("partitions", _partitions, "links between nodes are cut, one way or both")
    command.add_argument("--schedules", type=int, default=30, help="of 25 s each (default: 30)")
    choices = ("auto", "namespaces", "forwarder")
    command.add_argument("--etcd", action="store_true", help="with two proxies, and etcd of three members")
    command.add_argument("--by", choices=choices, default="auto", help="how; auto: namespaces if they can be had")
    command = add("away", _away, "a target is away while objects change")
    command.add_argument("--objects", type=int, default=1_000_000)
    command.add_argument("--changed", type=int, default=1000)
    command.add_argument("--signal", choices=("SIGKILL", "SIGTERM"), default="SIGKILL", help="how it ends")
    command = add("upgrade", _upgrade, "a cluster is updated, or just restarted, under writers, node by node")
    command.add_argument("--from", dest="revision", default="", help="from which version, as git knows it (default: this one)")
    add("failover", _failover, "a target is killed, or told to stop, and stays away: reads and writes of its objects are timed")
    command = add("flips", _flips, "bits flip on disks while objects are read, and the scrubber runs")
    command.add_argument("--objects", type=int, default=10_000)
    command.add_argument("--damaged", type=int, default=1000)
    command = add("moves", _moves, "a target joins, is drained and removed, under writers and listings")
    command.add_argument("--rounds", type=int, default=20)
    command.add_argument("--copies", type=int, default=2)
    command.add_argument("--kills", action="store_true", help="kill nodes in the middle of it")
    command = add("losses", _losses, "a target is away until its disk is given up, and comes back, under writers and listings")
    command.add_argument("--rounds", type=int, default=20, help="how often (default: 20)")
    command = add("wipes", _wipes, "a disk is replaced by an empty one, under writers and listings")
    command.add_argument("--rounds", type=int, default=20, help="how often (default: 20)")
    command = add("rollbacks", _rollbacks, "a disk or the registry is put back or damaged, or a copy of a target runs")
    command.add_argument("--rounds", type=int, default=100, help="how often (default: 100)")
    command.add_argument("--kind", action="append", choices=list(rollbacks.KINDS), help="only this, or these")
    command.add_argument("--copies", type=int, default=2)
    command = add("clients", _clients, "PyTorch, WebDataset, curl, listings and jobs go on through all of that (needs PyTorch)")
    command.add_argument("--rounds", type=int, default=5, help="how often (default: 5)")
    command = add("publishing", _publishing, "jobs publish while targets and the proxy are killed or restarted")
    command.add_argument("--rounds", type=int, default=100, help="how many jobs (default: 100)")
    command.add_argument("--etcd", action="store_true", help="with two proxies, and etcd")
    command = add("simulation", _simulation, "the rules of replication in a cluster in virtual time")
    command.add_argument("--seeds", type=int, default=20_000, help="how many runs (default: 20000)")
    add("all", _all, "one after the other")
    return parser


def _run(row: Row, directory: Path, seed: int) -> Found:
    """What a row has found. One that breaks off does not keep the others from running."""
    try:
        return row.run(directory, seed)
    except Exception as error:
        traceback.print_exc()
        return Found([f"broken off: {type(error).__name__}: {error}"])


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nodes end with it
    given = _parser().parse_args()
    rows, totals, failed = given.rows(given), list[str](), False
    directory = given.dir or Path(tempfile.mkdtemp(prefix="dfc-failures-"))
    for number, row in enumerate(rows):
        begun = time.monotonic()
        found = _run(row, directory / str(number), given.seed)
        print(f"{row.title}, seed {given.seed}, in {directory / str(number)}:\n{found}", flush=True)
        outcome = f"{len(found.problems)} problems" if found.problems else "nothing lost, torn, stale or back"
        if not found.problems and given.dir is None:
            shutil.rmtree(directory / str(number), ignore_errors=True)
        totals.append(f"{row.title}: {outcome}, in {time.monotonic() - begun:.0f} s")
        failed = failed or bool(found.problems)
    print(f"\ntotals, seed {given.seed}:", *totals, sep="\n  ", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
