"""What pytest does about the rules of *tiers.py*: which files it reads, which tests it leaves out, and what it says of that.

`--tier default` and `--tier full` are `make test` and `make test-full`; without it, everything that is named runs. Each test is
in exactly one of them, as long as the tree, `--base` and `--offset` are the same.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from tiers import (
    BY_CHANGE,
    SMOKE,
    TIERS,
    Case,
    Graph,
    Rules,
    default_base,
    differing,
    durations,
    full_packages_of,
    modules_of,
    offset_of_tree,
    smoke_names,
)

ROOT: Final = Path(__file__).resolve().parents[1]
VARIABLE: Final = "GATE_RULES"  # of the processes of a run: what the first one has found out
RULES: Final = pytest.StashKey[Rules]()
FOUND: Final = pytest.StashKey[dict[str, Any]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--tier", choices=TIERS, help="run `make test` (default), or what it leaves out (full)")
    group.addoption("--changed", action="store_true", help="run the files that a difference from the base makes worth running")
    group.addoption("--base", default="", help="the commit to differ from; by default, where this left the remote's main")
    group.addoption(
        "--offset", default="", help="which of the thinned tests are in `make test`; by default, by the tree's files"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For `-n auto`: one more than there are processors, since tests wait a quarter of their time. Three more where most have a
    cluster: they wait for half of it, and do not start all at once (`harness.starting`). A single test needs one."""
    processors, has_frameworks = len(os.sched_getaffinity(0)), _may_have_frameworks(config)
    if config.option.tier == "default" and has_frameworks and not _found(config)["files"]:
        return 1
    return processors + (3 if config.option.tier == "full" and not has_frameworks else 1)


def _may_have_frameworks(config: pytest.Config) -> bool:
    return not any("frameworks" in str(path) for path in config.option.ignore or ())


def _found(config: pytest.Config) -> dict[str, Any]:
    """What `_find_out` has found, in the first process of a run, when somebody first asks for it."""
    if FOUND not in config.stash:
        if not hasattr(config, "workerinput"):
            os.environ[VARIABLE] = json.dumps(_find_out(config))
        config.stash[FOUND] = json.loads(os.environ[VARIABLE])
    return config.stash[FOUND]


def _is_choosing(config: pytest.Config) -> bool:
    return config.option.tier is not None or config.option.changed


def pytest_configure(config: pytest.Config) -> None:
    if not _is_choosing(config):
        return
    found = _found(config)
    smoke = smoke_names(SMOKE.read_text())
    full = durations()["full"]
    config.stash[RULES] = Rules(full, smoke, found["offset"], frozenset(found["modules"]), frozenset(found["files"]))


def _find_out(config: pytest.Config) -> dict[str, Any]:
    """What takes time, and is the same in all processes."""
    option = config.option
    try:
        base = option.base or default_base()
        files = differing(base)
    except LookupError as error:  # no repository, or one commit alone
        if option.base or option.changed:
            raise pytest.UsageError(f"cannot tell what differs from {option.base or 'the last commit'}: {error}") from None
        base, files = "", []
    is_asked = option.changed or _may_have_frameworks(config)  # reading all imports takes seconds
    chosen = Graph(started=option.changed).tests(files) if is_asked and any(file.endswith(".py") for file in files) else set()
    left = () if option.changed else chosen  # that brings all packages
    missing = {file: names for file in left if (names := full_packages_of(ROOT / file))}
    return {
        "base": base[:12],
        "offset": int(option.offset) if option.offset else offset_of_tree(),
        "modules": sorted(modules_of(files)),
        "files": sorted(chosen - set(missing)),
        "missing": missing,
    }


def pytest_report_header(config: pytest.Config) -> list[str]:
    """What will be left out, before anything is read."""
    if not _is_choosing(config):
        return []
    found = _found(config)
    differ = f"{len(found['modules'])} modules of dfc differ from {found['base'] or 'nothing known'}"
    missing = [
        f"left to `make test-full`, which installs {', '.join(names)}: {file}" for file, names in found["missing"].items()
    ]
    if config.option.changed:
        return [f"{differ}; {len(found['files'])} test files stand on what differs, and run whole", *missing]
    if config.option.tier == "full":
        return [f"what `make test` leaves out with OFFSET={found['offset']}; {differ}"]
    if not config.option.ignore:
        files = [file for file in found["files"] if file.split("/")[1] in BY_CHANGE]
        return [f"{differ}, and {len(files)} files of frameworks stand on them: {', '.join(files) or 'none'}", *missing]
    return [
        f"OFFSET={found['offset']}; {differ}. `make test-full` runs what is left out:",
        f"  {len(durations()['full'])} tests longer than a second, and all of a cluster, a browser or a framework that",
        "  tests/smoke.txt does not name; most cases of simulations and crashes; mutants of modules that are as they were",
    ]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files without a test to run need not be imported."""
    if not _is_choosing(config) or not collection_path.match("test_*.py"):
        return None
    rules, path = config.stash[RULES], str(collection_path.relative_to(ROOT))
    if config.option.changed:
        may = path in rules.files
    else:
        may = rules.may_run(path) if config.option.tier == "default" else rules.may_leave_out(path)
    return None if may else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not _is_choosing(config):
        return
    rules, numbers = config.stash[RULES], Counter[tuple[Path, str]]()
    kept, left = [], []
    for item in items:
        function = (item.path, item.name.partition("[")[0])
        case = _case(item, numbers[function])
        numbers[function] += 1
        if config.option.changed:
            is_in = not case.about or any(module in rules.modules for module in case.about)
        else:
            is_in = bool(rules.left_out(case)) == (config.option.tier == "full")
        (kept if is_in else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = longest_first(kept) if config.option.tier == "full" else kept


def longest_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """File by file, so that no process has the longest one to do when the others are done."""
    known = durations()["full"] | durations()["short"]
    seconds = Counter[Path]()
    for item in items:
        seconds[item.path] += known.get(_case(item, 0).key, 0.0)
    return sorted(items, key=lambda item: -seconds[item.path])


def _case(item: pytest.Item, number: int) -> Case:
    thinned = item.get_closest_marker("thinned")
    about = tuple(name for mark in item.iter_markers("about") for name in mark.args)
    path, _, name = item.nodeid.partition("::")
    return Case(path, name, number, thinned.args[0] if thinned else 1, about)
