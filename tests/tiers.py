"""Which tests make up `make test`, by rule; all others are `make test-full`.

In `make test` are the tests of FAST folders that take a second at most, and those of *smoke.txt* whatever they take. Of a test
marked `thinned(n)` it has every n-th case, from an offset that follows from the files of the tree; of one marked
`about(module)`, the cases whose module differs from BASE; and of folders in BY_CHANGE, the files that import one that does.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Collection, Iterable
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from layers import LAYERS, ROOT, imports_of, module_of, strings_of

TESTS: Final = ROOT / "tests"
DURATIONS: Final = TESTS / "durations.json"  # made by `make durations`
SMOKE: Final = TESTS / "smoke.txt"
FAST: Final = ("unit", "http", "security", "simulation", "crash", "mutants")
BY_TIME: Final = ("unit", "http", "security")  # of FAST, those in which nothing is thinned, nor about a module
BY_CHANGE: Final = ("frameworks",)
LONG_S: Final = 1.0  # a test that takes longer is left out of `make test`
# It moves only when its median is clearly on the other side, so that it does not go to and fro from machine to machine.
SHORTER_S, LONGER_S = 0.8 * LONG_S, 1.2 * LONG_S

TIERS: Final = ("default", "full")
BASE_LAYER: Final = {f"dfc.{name}" for name in LAYERS[0][1]}
# What a cluster is made of, which tests start and do not import.
STARTED: Final = ("dfc.servers.proxy", "dfc.servers.target", "dfc.supervisor", "dfc.cli.serve")

NAME_CHARS_MAX: Final = 150
# Libraries for tests that `make test` does not install (pyproject.toml, group `full`).
FULL_PACKAGES: Final = {"tensorflow", "pandas", "duckdb", "datasets"}


class Case(NamedTuple):
    """A test, as far as the rules ask. `number`: among the cases of its function; `about`: the modules of its mark."""

    path: str  # from the root of the tree
    name: str  # with its class and the parameters
    number: int = 0
    thinned: int = 1
    about: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        return self.path.split("/")[1]

    @property
    def key(self) -> str:
        return key_of(self.path, self.name)


def key_of(path: str, name: str) -> str:
    """The name of a test in the lists: without its folder, so that it may be moved, and not endless, as some parameters are."""
    if len(name) > NAME_CHARS_MAX:
        name = f"{name[:NAME_CHARS_MAX]}…{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return f"{path.rpartition('/')[2]}::{name}"


class Rules(NamedTuple):
    """What the choice depends on: `full`, the keys of tests that take long; `smoke`, names of tests that run nevertheless;
    `offset`, for what is thinned; `modules`, those that differ from the base, and `files`, tests that they choose."""

    full: Collection[str]
    smoke: Collection[str]
    offset: int
    modules: Collection[str]
    files: Collection[str]

    def left_out(self, case: Case) -> str:
        """Why `make test` does not run this; empty if it does."""
        if case.key in self.smoke or case.key.partition("[")[0] in self.smoke:
            return ""
        if case.about:
            return "" if any(module in self.modules for module in case.about) else "their modules are as they were"
        if case.folder in BY_CHANGE:
            return "" if case.path in self.files else "what they import is as it was"
        if case.folder not in FAST:
            return "not in tests/smoke.txt"
        if case.thinned > 1:
            # Of a scenario in parts, another part than of the one before.
            drawn = case.number + case.number // case.thinned + self.offset
            return "thinned" if drawn % case.thinned else ""
        return "longer than a second" if case.key in self.full else ""

    def may_run(self, path: str) -> bool:
        """Whether `make test` may have tests of this file, by its name alone: otherwise it need not be read."""
        folder, file = path.split("/")[1], path.rpartition("/")[2]
        return folder in FAST or path in self.files or any(name.startswith(f"{file}::") for name in self.smoke)

    def may_leave_out(self, path: str) -> bool:
        """The same for `make test-full`."""
        folder, file = path.split("/")[1], path.rpartition("/")[2]
        return folder not in BY_TIME or any(key.startswith(f"{file}::") for key in self.full)


# --- the lists


def smoke_names(text: str) -> list[str]:
    """The names in a list like *smoke.txt*: one a line, `#` begins a remark."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def is_full(before: bool, seconds: float) -> bool:
    """Whether a test that took so long is left out of `make test`, when it was or was not before."""
    return seconds > (SHORTER_S if before else LONGER_S)


@cache
def durations() -> dict[str, dict[str, float]]:
    """`full` and `short`: seconds by the key of the test; of the short ones those that take long enough to be worth naming."""
    if not DURATIONS.exists():
        return {"full": {}, "short": {}}
    found: dict[str, dict[str, float]] = json.loads(DURATIONS.read_text())
    return found


# --- what differs


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise LookupError(done.stderr.strip())
    return done.stdout.splitlines()


def default_base() -> str:
    """The commit from which this tree began to differ from the remote's main, or the one before the last. LookupError."""
    (head,) = _git("rev-parse", "HEAD")
    try:
        (base,) = _git("merge-base", "HEAD", "origin/main")
    except (LookupError, ValueError):
        base = head
    if base == head:
        (base,) = _git("rev-parse", "--verify", "-q", "HEAD~1^{commit}")
    return base


def differing(base: str) -> list[str]:
    """The files that differ from a commit, also those that were not committed or are new. LookupError."""
    return sorted({*_git("diff", "--name-only", base), *_git("ls-files", "--others", "--exclude-standard")})


def offset_of_tree() -> int:
    """A number that follows from the code and its tests: the same tree has the same."""
    digest = hashlib.sha256()
    for path in sorted(chain.from_iterable((ROOT / folder).rglob("*.py") for folder in ("dfc", "tests"))):
        digest.update(f"{path.relative_to(ROOT)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return int.from_bytes(digest.digest()[:2])


# --- what stands on what


class Graph:
    """Imports of the modules of the product, of loadtest, of the tests and of what they share; also those inside of functions,
    and the modules that a text names. `started`: also those of the processes of a cluster that a test starts."""

    def __init__(self, *, started: bool) -> None:
        files = chain.from_iterable((ROOT / folder).rglob("*.py") for folder in ("dfc", "loadtest", "tests", "examples"))
        self.paths = {module_of(path): path for path in files}
        self._importers: dict[str, set[str]] = defaultdict(set)
        for name, path in self.paths.items():
            source = path.read_text()
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            used = [*imports_of(source, package), *strings_of(source)]
            if path.is_relative_to(TESTS) and name != "conftest":  # that one is everybody's
                used += [f"{module_of(parent)}.conftest" for parent in path.parents if TESTS in parent.parents]
                if started and re.search(r"\b(?:start_(?:shared_)?cluster|cluster|harness)\b", source):
                    used += STARTED
            for each in map(self._module, used):
                if each != name:
                    self._importers[each].add(name)

    def _module(self, name: str) -> str:
        """The module that a dotted name is, or is in; empty if there is none."""
        while name and name not in self.paths:
            name = name.rpartition(".")[0]
        return name

    def standing_on(self, modules: Iterable[str]) -> set[str]:
        """These modules, and all that import them. On the lowest layer everything stands: of that, only what is outside of the
        product and imports it itself."""
        found: set[str] = set()
        waiting = list(modules)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                importers = self._importers[name]
                is_base = ".".join(name.split(".")[:2]) in BASE_LAYER
                waiting += [each for each in importers if not (is_base and each.startswith("dfc."))]
        return found

    def tests(self, files: Iterable[str]) -> set[str]:
        """The test files, as paths from the root, that a difference in these files makes worth running."""
        changed = {module_of(ROOT / file) for file in files if file.endswith(".py")} & set(self.paths)
        paths = (self.paths[name] for name in self.standing_on(changed))
        return {str(path.relative_to(ROOT)) for path in paths if path.name.startswith("test_")}


def modules_of(files: Iterable[str]) -> set[str]:
    """The modules of the product among files of the tree."""
    return {module_of(ROOT / file) for file in files if file.startswith("dfc/") and file.endswith(".py")}


def libraries_of(path: Path) -> set[str]:
    """Modules that a test file imports, also inside of functions, and those that `Lazy` would."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "Lazy":
            found |= {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
    return found


def full_packages_of(path: Path) -> list[str]:
    """Those of FULL_PACKAGES that a test file wants, whether they are installed or not: both tiers must see the same. What
    it starts may want them as well, so it is enough that it names them; but datasets are also what all of this is about."""
    named = {name for name in FULL_PACKAGES - {"datasets"} if name in path.read_text(encoding="utf-8").lower()}
    return sorted({name.partition(".")[0] for name in libraries_of(path)} & FULL_PACKAGES | named)
