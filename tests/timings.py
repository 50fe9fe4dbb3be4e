"""How long tests take: written down by a run (`--timings FILE`), and put together for *durations.json*.

python -m timings renew DIRECTORY     the median of the last three runs of each test (`make durations`)
python -m timings again FILE          why tests failed in a run; run them once more, each alone, and say which are racy
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from tiers import DURATIONS, ROOT, durations, is_full, key_of

RUNS: Final = 3
NAMED_S: Final = 0.2  # a short test that takes less is not worth a line
AGAIN_MAX: Final = 20  # more failures than this are no races
AGAIN_S: Final = 600
ERROR_LINES_MAX: Final = 30


class Recorder:
    """Of one run, in the process that others report to."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._path = Path(config.option.timings)
        self._seconds: dict[str, float] = defaultdict(float)
        self._failed: dict[str, str] = {}
        self._errors: list[str] = []
        self._began = time.time()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """What fixtures of a module take is no test's own."""
        self._seconds[report.nodeid] += report.duration - getattr(report, "shared_s", 0.0)
        if report.failed:
            terminal = self._config.pluginmanager.get_plugin("terminalreporter")
            why = report.longreprtext.rstrip().rpartition("\nE  ")[2].partition("\n")[0].strip()
            self._failed[report.nodeid] = f"{report.when}: {why[:200]}"
            terminal.write_line(f"\nFAILED {report.nodeid} ({report.when}): {why[:200]}")  # a run that is cut off has said it

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = "it cannot be read"

    def pytest_internalerror(self, excrepr: object) -> None:
        """pytest ends then, and what fails in one of its processes it tells only in the midst of all else."""
        self._errors += str(excrepr).splitlines()[-ERROR_LINES_MAX:]

    def pytest_sessionfinish(self) -> None:
        record = {
            "began": self._began,
            "wall": time.time() - self._began,
            "load": os.getloadavg()[0],
            "failed": self._failed,
            "errors": self._errors,
            "seconds": {name: round(seconds, 3) for name, seconds in self._seconds.items()},
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(record, indent=0))


class Shared:
    """Of one process that runs tests: what the fixtures of more than one test take."""

    def __init__(self) -> None:
        self._depth = 0
        self._seconds = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        if fixturedef.scope == "function" or self._depth:
            return (yield)
        began = time.perf_counter()
        self._depth += 1
        try:
            return (yield)
        finally:
            self._depth -= 1
            self._seconds += time.perf_counter() - began

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report: Any = yield
        report.shared_s, self._seconds = self._seconds, 0.0
        return report


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("tiers").addoption("--timings", metavar="FILE", default="", help="write how long each test took to a file")


def pytest_configure(config: pytest.Config) -> None:
    if not config.option.timings:
        return
    config.pluginmanager.register(Shared())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(config))


# --- afterwards


def renewed(before: dict[str, dict[str, float]], runs: Iterable[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The lists, when there were these runs, the last one first. A test that ran in none keeps its place while it exists."""
    found: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        longest: dict[str, float] = {}  # of tests of one name in several folders
        for nodeid, seconds in run["seconds"].items():
            key = key_of(*nodeid.split("::", 1))
            longest[key] = max(seconds, longest.get(key, 0.0))
        for key, seconds in longest.items():
            found[key].append(seconds)
    medians = {**before["full"], **before["short"]}
    medians |= {key: round(statistics.median(seconds[:RUNS]), 2) for key, seconds in found.items()}
    full = {key: seconds for key, seconds in sorted(medians.items()) if is_full(key in before["full"], seconds)}
    short = {key: seconds for key, seconds in sorted(medians.items()) if key not in full and seconds >= NAMED_S}
    return {"full": full, "short": short}


def is_there(key: str) -> bool:
    """Whether there is a file of this name, and a function; that may be in a file that others inherit from."""
    file, _, name = key.partition("::")
    files, functions = _names()
    return file in files and name.partition("[")[0].rpartition("::")[2] in functions


@cache
def _names() -> tuple[set[str], set[str]]:
    """Of files and functions of tests, by their text."""
    paths = list((ROOT / "tests").rglob("*.py"))
    return {path.name for path in paths}, {name for path in paths for name in re.findall(r"def (test_\w+)\(", path.read_text())}


def renew(directory: Path) -> None:
    """Put the records of a directory together, and write the lists."""
    runs = sorted((json.loads(path.read_text()) for path in directory.glob("*.json")), key=lambda run: -run["began"])
    if not runs:
        raise SystemExit(f"{directory} has no records: run `make test` and `make test-full` first")
    made = renewed(durations(), runs)
    kept = {name: {key: seconds for key, seconds in keys.items() if is_there(key)} for name, keys in made.items()}
    DURATIONS.write_text(json.dumps(kept, indent=0, ensure_ascii=False) + "\n")
    print(f"{len(runs)} runs: {len(kept['full'])} tests above a second, {len(kept['short'])} shorter ones worth naming")


def again(path: Path) -> None:
    """Run what failed alone. Whatever comes of it, it has failed."""
    if not path.exists():
        print(f"{path}: there is no record: the run was killed")
        return
    record = json.loads(path.read_text())
    for line in record["errors"]:
        print(f"pytest failed: {line}")
    failed = list(record["failed"].items())
    for nodeid, why in failed[:AGAIN_MAX]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", nodeid]
        try:
            status = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=AGAIN_S).returncode
        except subprocess.TimeoutExpired:
            status = -1
        print(f"{'RACY: it passes alone' if status == 0 else 'it fails alone, too'}: {nodeid} ({why})", flush=True)
    if len(failed) > AGAIN_MAX:
        print(f"{len(failed) - AGAIN_MAX} more have failed, and were not run again")


def main() -> None:
    match sys.argv[1:]:
        case ["renew", directory]:
            renew(Path(directory))
        case ["again", *files]:
            for file in files:
                again(Path(file))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
