"""`python -m loadtest.compare BEFORE`: whether this source tree is slower than another version, or takes more processor time.

BEFORE is a revision of this repository, or the directory of a source tree. Both versions run side by side under the same
Python and packages and take turns, so that what else the machine does meets both. Exit code 0 when all was measured,
1 when something was not, or with `--strict` when a median misses.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from loadtest.bench.__main__ import ensure_programs, warn_when_busy
from loadtest.bench.context import disk_parent, memory_parent
from loadtest.compare.measures import MEASURES, Measure
from loadtest.compare.side import Sample, Side, Work
from loadtest.processes import ProcessFailed, interruptible, run
from loadtest.report import write_json

ROOT = Path(__file__).parents[2]
RATE_LEAST: Final = 0.95  # of the version before, the median of pairs
PROCESSOR_MOST: Final = 1.03
SETTLE_S_MAX: Final = 10.0
SETTLE_POLL_S: Final = 0.3
IDLE_SHARE: Final = 0.1  # of a processor, that both clusters take together when they have nothing to do


@dataclass(frozen=True, slots=True)
class Result:
    """Pairs of one measure, (before, after) in the order in which they were taken."""

    name: str
    operation: str
    pairs: list[tuple[Sample, Sample]]

    @property
    def rates(self) -> list[float]:
        """Rate after / rate before, pair by pair."""
        return [after.rate / before.rate for before, after in self.pairs]

    @property
    def processor(self) -> list[float]:
        """Processor time after / before, of an operation, pair by pair."""
        return [after.processor_s / before.processor_s for before, after in self.pairs]

    @property
    def passed(self) -> bool:
        return statistics.median(self.rates) >= RATE_LEAST and statistics.median(self.processor) <= PROCESSOR_MOST

    def as_json(self) -> dict[str, object]:
        sides = {
            name: {
                "rates": [pair[at].rate for pair in self.pairs],
                "processor_s": [pair[at].processor_s for pair in self.pairs],
            }
            for at, name in enumerate(("before", "after"))
        }
        return {"measure": self.name, "operation": self.operation, "passed": self.passed, **sides}


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.compare", description="Compare this source tree with another version."
    )
    parser.add_argument("before", help="a revision of this repository, or the directory of a source tree")
    parser.add_argument("--rows", default=",".join(MEASURES), help=f"of {', '.join(MEASURES)} (all of these)")
    parser.add_argument("--pairs", type=int, default=5, help="alternated pairs of each (5)")
    parser.add_argument("--turns", type=int, default=1, help="how often each runs in a pair; the median of them counts (1)")
    parser.add_argument("--json", metavar="FILE", help="write all figures there ('-' is standard output)")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a median misses")
    arguments = parser.parse_args(argv)
    arguments.rows = [name for name in arguments.rows.split(",") if name]
    if unknown := [name for name in arguments.rows if name not in MEASURES]:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(MEASURES)}")
    if not 1 <= arguments.pairs <= 100:
        parser.error("--pairs is 1 to 100")
    if not 1 <= arguments.turns <= 100:
        parser.error("--turns is 1 to 100")
    return arguments


@contextlib.contextmanager
def source_tree(name: str, directory: Path) -> Iterator[Path]:
    """The tree of a directory or, extracted into `directory`, of a revision."""
    if Path(name).is_dir():
        yield Path(name).resolve()
        return
    archive = directory / "source.tar"
    run(["git", "-C", str(ROOT), "archive", f"--output={archive}", name])
    tree = directory / "source"
    tree.mkdir()
    run(["tar", "-xf", str(archive), "-C", str(tree)])
    yield tree


def compare(name: str, measure: Measure, before: Path, pairs: int, turns: int) -> Result:
    """Measure pairs, the order turned round in every other one.

    Each pair has new processes: how fast one of them is depends by a tenth and more on where its memory happens to lie. Several
    turns help against what else the machine does meanwhile.
    """
    found = []
    for number in range(pairs):
        with _sides(before) as sides:
            samples: dict[int, list[Sample]] = {0: [], 1: []}
            order = (0, 1) if number % 2 == 0 else (1, 0)
            works: dict[int, Work] = {at: measure.prepare(sides[at]) for at in order}
            for at in order * (1 + turns):
                _settle(sides)
                samples[at].append(sides[at].run(works[at], readers=measure.readers))
            found.append((_median(samples[0][1:]), _median(samples[1][1:])))  # the first run of each warms it up
    return Result(name, measure.operation, found)


def _median(samples: Sequence[Sample]) -> Sample:
    return Sample(statistics.median(each.rate for each in samples), statistics.median(each.processor_s for each in samples))


def _settle(sides: tuple[Side, Side]) -> None:
    """Wait until what the runs before have left to do is done: pages to write, files to remove."""
    os.sync()
    deadline = time.monotonic() + SETTLE_S_MAX
    while time.monotonic() < deadline:
        before = sum(side.processor_s() for side in sides)
        time.sleep(SETTLE_POLL_S)
        if sum(side.processor_s() for side in sides) - before <= IDLE_SHARE * SETTLE_POLL_S:
            return


def compare_all(
    before: Path, rows: Sequence[str], pairs: int, turns: int, console: Console
) -> tuple[list[Result], dict[str, str]]:
    """Results, and for rows that could not be measured, why."""
    results: list[Result] = []
    failures: dict[str, str] = {}
    for name in rows:
        begin = time.monotonic()
        try:
            results.append(compare(name, MEASURES[name], before, pairs, turns))
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}"
            console.print(f"{name} could not be measured: {failures[name]}", style="red", markup=False)
            continue
        console.print(f"{_line(results[-1])} ({time.monotonic() - begin:.0f} s)", style="dim", markup=False, highlight=False)
    return results, failures


@contextlib.contextmanager
def _sides(before: Path) -> Iterator[tuple[Side, Side]]:
    with (
        tempfile.TemporaryDirectory(prefix="dfc-compare-", dir=disk_parent()) as disk,
        tempfile.TemporaryDirectory(prefix="dfc-compare-", dir=memory_parent() or disk) as memory,
        contextlib.ExitStack() as stack,
    ):
        sides = []
        for name, source in (("before", before), ("after", ROOT)):
            side = Side(name, source, Path(disk) / name, Path(memory) / name)
            stack.callback(side.close)
            sides.append(side)
        yield sides[0], sides[1]


def _line(result: Result) -> str:
    def told(values: Sequence[float]) -> str:
        return f"{statistics.median(values):.2f} of {' '.join(f'{value:.2f}' for value in values)}"

    return f"{result.name}: rate {told(result.rates)}; processor time {told(result.processor)}"


def print_table(results: Sequence[Result], console: Console) -> None:
    table = Table(title="After beside before, medians of alternated pairs, all pairs behind them", title_justify="left")
    for column in ("row", "an operation", "before", "after", "rate x", "processor x", ""):
        table.add_column(column, overflow="fold")
    for result in results:
        before, after = (
            f"{statistics.median(pair[at].rate for pair in result.pairs):,.4g}/s,"
            f" {statistics.median(pair[at].processor_s for pair in result.pairs):.3g} s"
            for at in (0, 1)
        )
        ratios = [f"{statistics.median(v):.2f} ({' '.join(f'{x:.2f}' for x in v)})" for v in (result.rates, result.processor)]
        table.add_row(result.name, result.operation, before, after, *ratios, "pass" if result.passed else "MISS")
    console.print(table)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
    console = Console(stderr=arguments.json == "-", width=None if sys.stdout.isatty() else 180)
    if not ensure_programs(console, ["get8"]):
        return 2
    warn_when_busy(console)
    interruptible()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="dfc-compare-") as directory,
            source_tree(arguments.before, Path(directory)) as before,
        ):
            results, failures = compare_all(before, arguments.rows, arguments.pairs, arguments.turns, console)
    except KeyboardInterrupt:
        console.print("interrupted: ending what was started")
        return 130
    except ProcessFailed as error:
        console.print(str(error), style="red", markup=False)
        return 1
    print_table(results, console)
    if arguments.json:
        rows = [result.as_json() for result in results]
        write_json(arguments.json, {"rows": rows, "not_measured": failures})
    missed = any(not result.passed for result in results)
    return 1 if failures or (arguments.strict and missed) else 0


if __name__ == "__main__":
    sys.exit(main())
