"""`python -m loadtest.bench`: measure the rows of the table and say which ones reach what is required.

Exit code 0 when every row that was asked for could be measured (also when one misses), 1 when one could not,
2 when nginx or wrk is missing and cannot be installed. With `--strict` a miss gives 1 as well.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from loadtest.bench import (
    bulk,
    comparing,
    copies,
    dropping,
    indexing,
    inputs,
    jobs,
    listing,
    memory,
    moves,
    pages,
    placement,
    proxies,
    searching,
    small,
)
from loadtest.bench.context import NGINX_WORKERS, Bench
from loadtest.bench.row import Row, format_figure
from loadtest.processes import find_program, interruptible
from loadtest.report import write_json

ROWS: dict[str, Callable[[Bench], list[Row]]] = {
    "get1": bulk.get_one,
    "get8": bulk.get_eight,
    "relay": bulk.relay,
    "put-relaxed": bulk.put_relaxed,
    "put-fsync": bulk.put_fsync,
    "small-get": small.small_get,
    "redirect": small.redirect,
    "small-put": small.small_put,
    "member": small.member,
    "list": listing.listing,
    "index": indexing.index,
    "placement": placement.placement,
    "memory": memory.memory,
    "copies-put": copies.put,
    "copies-small-put": copies.small_put,
    "copies-list": copies.listing,
    "start": jobs.start,
    "reshuffle-large": jobs.reshuffle_large,
    "reshuffle-disk": jobs.reshuffle_disk,
    "reshuffle-small": jobs.reshuffle_small,
    "batch": jobs.batch,
    "keys": jobs.keys,
    "convert": jobs.convert,
    "samples-10k": inputs.samples_small,
    "samples-100k": inputs.samples_large,
    "jpeg": inputs.jpeg,
    "tgz": inputs.tgz,
    "epoch-start": inputs.epoch_start,
    "resume": inputs.resume,
    "input-memory": inputs.input_memory,
    "move": moves.large,
    "move-small": moves.small,
    "move-plan": moves.plan,
    "compare-digests": comparing.digests,
    "buckets": proxies.buckets,
    "page-load": pages.load,
    "page-grid": pages.grid,
    "page-ends": pages.ends,
    "thumbnail": pages.thumbnail,
    "page-beside": pages.beside,
    "page-drop-file": dropping.file,
    "page-drop-folder": dropping.folder,
    "search": searching.search,
}
CORE: Final = tuple(ROWS)[:16]
JOBS: Final = tuple(ROWS)[16:23]
INPUTS: Final = tuple(ROWS)[23:30]
MOVES: Final = tuple(ROWS)[30:35]
PAGES: Final = tuple(ROWS)[35:]
BUSY_SHARE = 0.3  # load a processor before a run; an idle machine with a desktop or monitoring stays below
PROGRAMS = {"curl": "curl", "nginx": "nginx", "wrk": "wrk"}  # program: Debian package


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description="Measure DFC beside nginx, row by row.")
    rows = f"of {','.join(CORE)} (all of these), {','.join(JOBS)}, {','.join(INPUTS)}, {','.join(MOVES)} and {','.join(PAGES)}"
    parser.add_argument("--rows", default=",".join(CORE), help=rows)
    parser.add_argument("--jobs", action="store_true", help="the rows about jobs instead of those of the core")
    parser.add_argument("--inputs", action="store_true", help="the rows about loaders instead")
    parser.add_argument("--moves", action="store_true", help="the rows about moves of objects and about many proxies instead")
    parser.add_argument("--pages", action="store_true", help="the rows about the pages instead")
    parser.add_argument("--pairs", type=int, default=7, help="alternated pairs, or runs, of each row (7)")
    parser.add_argument("--dir", type=Path, help="a directory on the disk to measure (the temporary directory)")
    parser.add_argument("--json", metavar="FILE", help="write all figures there ('-' is standard output)")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a row misses what is required")
    arguments = parser.parse_args(argv)
    arguments.rows = [name for name in arguments.rows.split(",") if name]
    chosen = ((arguments.jobs, JOBS), (arguments.inputs, INPUTS), (arguments.moves, MOVES), (arguments.pages, PAGES))
    if any(is_chosen for is_chosen, _ in chosen):
        arguments.rows = [row for is_chosen, rows in chosen if is_chosen for row in rows]
    unknown = [name for name in arguments.rows if name not in ROWS]
    if unknown or not arguments.rows:
        parser.error(f"no such row: {', '.join(unknown) or '(none)'}; there are {', '.join(ROWS)}")
    if not 1 <= arguments.pairs <= 100:
        parser.error("--pairs is 1 to 100")
    if arguments.dir is not None and not arguments.dir.is_dir():
        parser.error(f"{arguments.dir} is not a directory")
    return arguments


def ensure_programs(console: Console, rows: Sequence[str]) -> bool:
    """Find what the rows need; install what is missing with apt-get when we may. False when something stays missing."""
    needed = PROGRAMS if set(rows) - set(INPUTS) else ("curl",)
    missing = [name for name in needed if find_program(name) is None]
    if missing and os.geteuid() == 0 and find_program("apt-get"):
        console.print(f"installing {', '.join(missing)} with apt-get …")
        # RUNLEVEL=1: the package's start script leaves its service alone.
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        for command in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", *(PROGRAMS[m] for m in missing)]):
            subprocess.run(["apt-get", *command], env=environment, stdout=subprocess.DEVNULL, check=False)
        missing = [name for name in needed if find_program(name) is None]
    if missing:
        console.print(f"missing: {', '.join(missing)}. As root: apt-get install {' '.join(PROGRAMS[name] for name in missing)}")
    return not missing


def warn_when_busy(console: Console) -> None:
    """Say so when others use the processors: ratios get noisy and absolute rates wrong."""
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    if load > BUSY_SHARE * cpus:
        console.print(f"this machine is busy: load {load:.1f} on {cpus} processors. The figures will be off.", style="yellow")


def measure(bench: Bench, names: Sequence[str]) -> tuple[list[Row], dict[str, str]]:
    """The rows of these names and, for those that could not be measured, why."""
    rows: list[Row] = []
    failures: dict[str, str] = {}
    for name in names:
        begin = time.monotonic()
        bench.console.print(f"{name} …", style="dim")
        try:
            found = ROWS[name](bench)
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}"
            bench.console.print(f"{name} could not be measured: {failures[name]}", style="red", markup=False)
            continue
        rows += found
        for row in found:
            bench.console.print(f"  {row.measured} {_verdict(row)} ({time.monotonic() - begin:.0f} s)", style="dim")
    return rows, failures


def _verdict(row: Row) -> str:
    if row.required is None:
        return "measured"
    return "pass" if row.passed else "MISS"


def print_table(rows: Sequence[Row], console: Console) -> None:
    table = Table(title="DFC beside its requirements", title_justify="left")
    for column in ("row", "what", "measured", "beside", "reached", "required", ""):
        table.add_column(column, justify="right" if column in ("reached", "required") else "left", overflow="fold")
    for row in rows:
        colour = "green" if row.passed else "red"
        verdict = f"[{colour}]{_verdict(row)}[/{colour}]"
        table.add_row(
            row.name, row.what, row.measured, row.beside, format_figure(row.reached, row.unit), row.requirement, verdict
        )
    console.print(table)
    for row in rows:
        if row.note:
            console.print(f"{row.name}: {row.note}", markup=False, highlight=False)


def environment(bench: Bench) -> dict[str, object]:
    """What the figures depend on."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpus": os.cpu_count(),
        "load_before": bench.load_before,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "pairs": bench.pairs,
        "nginx_workers": NGINX_WORKERS,
        "memory_backed": bench.in_memory,
    }


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
    console = Console(stderr=arguments.json == "-", width=None if sys.stdout.isatty() else 160)
    if not ensure_programs(console, arguments.rows):
        return 2
    warn_when_busy(console)
    interruptible()
    bench = Bench(console, pairs=arguments.pairs, parent=arguments.dir)
    try:
        rows, failures = measure(bench, arguments.rows)
    except KeyboardInterrupt:
        console.print("interrupted: ending what was started")
        return 130
    finally:
        bench.close()
    print_table(rows, console)
    for name, why in failures.items():
        console.print(f"{name}: not measured: {why.splitlines()[0]}", style="red", markup=False)
    if arguments.json:
        document = {"environment": environment(bench), "rows": [row.as_json() for row in rows], "not_measured": failures}
        write_json(arguments.json, document)
    missed = any(not row.passed for row in rows)
    return 1 if failures or (arguments.strict and missed) else 0


if __name__ == "__main__":
    sys.exit(main())
