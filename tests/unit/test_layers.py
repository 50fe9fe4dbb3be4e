"""A module imports only from its own layer and from those above it. Imports for type checkers count like all others."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from layers import LAYERS, MODULES, ROOT, imports_of

RANK = {name: rank for rank, (_, names) in enumerate(LAYERS) for name in names}
NODES_AND_STORAGE = {"proxy", "target", "storage", "api", "servers"}
FORBIDDEN = {
    "proxy": {"target", "storage"},
    "target": {"proxy"},
    "api": {"storage"},
    "client": NODES_AND_STORAGE,
    "cli": NODES_AND_STORAGE,
    "inputs": NODES_AND_STORAGE,
    "supervisor": NODES_AND_STORAGE,
}
HEAVY = {
    "PIL", "aiohttp", "dask", "distributed", "fsspec", "httpx", "isal", "jinja2", "lz4", "numpy", "prometheus_client",
    "pyarrow", "torch", "typer", "uvloop",
}  # fmt: skip
SERVER = {"aiohttp", "prometheus_client", "uvloop"}
# By what is started: how many modules of ours it imports, and which heavy libraries.
CLOSURES: dict[str, tuple[int, set[str]]] = {
    "dfc.jobs.sandbox.child": (11, set()),
    "dfc.engine.host": (9, set()),
    "dfc.supervisor": (7, set()),
    "dfc.cli.main": (18, {"typer"}),
    "dfc.cli.listing": (10, {"typer"}),
    "dfc.client": (2, set()),
    "dfc.client.client": (42, {"httpx", "isal", "lz4"}),
    "dfc.inputs.gopen": (44, {"isal", "lz4", "numpy"}),
    "dfc.servers.proxy": (132, SERVER),
    "dfc.servers.target": (148, SERVER | {"isal", "lz4", "numpy"}),
}
# Class names that mean two things. Each of them is one too many: the list may only shrink. (`Options` is each operation's own.)
NAMES_TWICE = {
    "Loader", "Options", "Stage", "TarWriter",
}  # fmt: skip
SHORT = {
    "jobs/operations/reshard.py": "each operation is a module of its own, found by its name",
    "jobs/operations/reshuffle.py": "the same",
    "ui/target.py": "a target would load all pages with it",
}
# The two kinds of node, or one thing in general and in particular.
TWICE_IN_A_PACKAGE = {
    "api/proxy.py", "api/target.py", "inputs/memory.py", "storage/copies.py", "tar/reader.py", "target/objects.py",
}  # fmt: skip
# The product itself works on values and disks; wires are the plumbing's.
NETWORK = {"socket", "ssl", "asyncio", "http", "httpx", "aiohttp", "h11", "uvloop", "urllib.request", "socketserver"}


def part_of(name: str) -> str:
    """`dfc.http.server.X` → `http`; what `dfc/__init__.py` itself defines → `__init__`."""
    first = name.split(".")[1] if "." in name else "__init__"
    return first if (ROOT / "dfc" / first).is_dir() or (ROOT / "dfc" / f"{first}.py").is_file() else "__init__"


def violations(own: str, source: str, package: str) -> list[str]:
    """What a module of the part `own` must not import."""
    found = []
    for name in imports_of(source, package):
        if name == "dfc" or name.startswith("dfc."):
            part = part_of(name)
            if RANK[part] > RANK[own]:
                found.append(f"{name}: {part} is below {own}")
            elif part in FORBIDDEN.get(own, ()):
                found.append(f"{name}: {own} never imports {part}")
        elif RANK[own] <= 1 and any(name == module or name.startswith(f"{module}.") for module in NETWORK):
            found.append(f"{name}: {own} never touches the network")
    return found


def arrows(modules: Iterable[tuple[str, str, str]]) -> dict[str, set[str]]:
    """Which part imports which, of modules given as (part, source, package)."""
    found: dict[str, set[str]] = {}
    for own, source, package in modules:
        names = (name for name in imports_of(source, package) if name == "dfc" or name.startswith("dfc."))
        found.setdefault(own, set()).update({part_of(name) for name in names} - {own})
    return found


def circle(imports: dict[str, set[str]]) -> list[str]:
    """Parts that import each other in a circle; empty when there is none."""
    try:
        list(TopologicalSorter(imports).static_order())
    except CycleError as error:
        return list(error.args[1])
    return []


def public_classes(source: str) -> Iterator[str]:
    return (node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))


def all_modules() -> Iterator[tuple[str, str, str]]:
    for path in MODULES:
        parts = path.relative_to(ROOT / "dfc").with_suffix("").parts
        yield parts[0], path.read_text(encoding="utf-8"), ".".join(("dfc", *parts[:-1]))


def test_no_parts_import_each_other_in_a_circle():
    """Also not in a function, or for type checkers alone."""
    assert circle(arrows(all_modules())) == []


def who_imports(names: set[str], modules: Iterable[tuple[str, str, str]]) -> set[str]:
    """The modules, by their paths, that import one of these; modules are given as (path, source, package)."""
    return {path for path, source, package in modules if any(is_of(name, names) for name in imports_of(source, package))}


def is_of(name: str, modules: set[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


# The one place where a proxy chooses its registry; all others know only what every registry does.
CHOOSES_REGISTRY = "servers/proxy.py"
REGISTRIES = {"dfc.registry.embedded", "dfc.registry.etcd"}


def test_only_one_place_knows_which_registry_it_is():
    paths = {str(path.relative_to(ROOT / "dfc")): path for path in MODULES}
    modules = [(name, path.read_text(encoding="utf-8"), "dfc." + name.split("/")[0]) for name, path in paths.items()]
    assert who_imports(REGISTRIES, modules) == {CHOOSES_REGISTRY, "registry/offline.py"}


def test_another_such_place_would_be_found():
    fine = ("proxy/a.py", "from dfc.registry.base import Registry", "dfc.proxy")
    for source in ("from dfc.registry import embedded", "def f():\n    from dfc.registry.embedded import RegistryFile"):
        assert who_imports(REGISTRIES, [fine, ("proxy/b.py", source, "dfc.proxy")]) == {"proxy/b.py"}


# A node decides and acts; what a request and an answer look like is known to faces alone.
REQUESTS_AND_ANSWERS = {
    f"dfc.http.{name}" for name in ("answers", "common", "conditions", "exchange", "face", "relay", "router", "server")
}
NODES = {"proxy", "target"}


def modules_of(parts: set[str]) -> Iterator[tuple[str, str, str]]:
    """The modules of some parts, as (path, source, package)."""
    for path in MODULES:
        within = path.relative_to(ROOT / "dfc").parts
        if within[0] in parts:
            yield "/".join(within), path.read_text(encoding="utf-8"), ".".join(("dfc", *within[:-1]))


def test_nodes_know_no_requests_and_answers():
    assert who_imports(REQUESTS_AND_ANSWERS, modules_of(NODES)) == set()


def reaches_inside(modules: Iterable[tuple[str, str, str]]) -> set[str]:
    """The modules that touch the parts of a disk: what is called `parts` of anything, or the module that defines them."""
    found = who_imports({"dfc.storage.parts"}, modules := list(modules))
    for path, source, _ in modules:
        if any(isinstance(node, ast.Attribute) and node.attr in ("parts", "_parts") for node in ast.walk(ast.parse(source))):
            found.add(path)
    return found


# All that can have a disk in hand: no other part imports the target or the storage.
WITH_DISKS = {"target", "api", "servers"}


def test_only_storage_reaches_inside_a_disk():
    assert reaches_inside(modules_of(WITH_DISKS)) == set()


def faces_of_faces(modules: Iterable[tuple[str, str, str]]) -> set[str]:
    """The modules of faces that import another face; `dfc.api.v1` is one, and what lies in `dfc.api` itself is shared."""
    faces = {path.name for path in (ROOT / "dfc" / "api").iterdir() if path.is_dir()}
    found = set()
    for path, source, package in modules:
        others = {f"dfc.api.{face}" for face in faces - {path.split("/")[1]}}
        if len(path.split("/")) > 2 and any(is_of(name, others) for name in imports_of(source, package)):
            found.add(path)
    return found


def test_faces_never_import_each_other():
    assert faces_of_faces(modules_of({"api"})) == set()


def test_a_breach_of_these_would_be_found():
    for source in ("from dfc.http.answers import Answer", "if TYPE_CHECKING:\n    from dfc.http import exchange"):
        assert who_imports(REQUESTS_AND_ANSWERS, [("target/a.py", source, "dfc.target")]) == {"target/a.py"}
    fine, odd = ("api/web/a.py", "from dfc.api import stored", "dfc.api.web"), "from dfc.api.v1 import objects"
    assert faces_of_faces([fine, ("api/web/b.py", odd, "dfc.api.web")]) == {"api/web/b.py"}

    for source in (
        "def f(place):\n    return place.disk.parts.catalog",
        "def f(disk):\n    parts = disk.parts",
        "from dfc.storage.parts import DiskParts",
        "from dfc.storage import parts",
        "def f(staging):\n    return staging._parts",
    ):
        assert reaches_inside([("target/a.py", source, "dfc.target")]) == {"target/a.py"}
    assert (
        reaches_inside([("target/a.py", "from dfc.batch.peers import PeerParts\nparts = disk.space()", "dfc.target")]) == set()
    )


def test_a_circle_would_be_found():
    to = ("formats", "def f():\n    from dfc.jobs.data.samples import read_samples", "dfc.formats")
    fro = ("jobs", "if TYPE_CHECKING:\n    from dfc.formats.base import Sink", "dfc.jobs")
    assert set(circle(arrows((to, fro)))) == {"formats", "jobs"}
    assert circle(arrows((to,))) == circle(arrows((fro,))) == []


def module_arrows() -> dict[str, set[str]]:
    """Which module imports which. A package is the module of its `__init__`; importing a module of it is no import of it."""
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in MODULES}
    found = {}
    for name, path in paths.items():
        package = ".".join(path.relative_to(ROOT).parts[:-1])
        whole = set()
        for full in imports_of(path.read_text(encoding="utf-8"), package):
            whole |= {full} if full in paths else {full.rpartition(".")[0]} & set(paths)
        found[name] = whole - {name}
    return found


def test_no_modules_import_each_other_in_a_circle():
    found = module_arrows()
    assert found["dfc.api.web"] >= {"dfc.proxy.admin", "dfc.errors"}
    assert circle(found) == []


def folders() -> Iterator[tuple[Path, list[tuple[str, str, str]]]]:
    """Each package that has packages in it, with the modules of these: (package within, source, package)."""
    for folder in sorted({path.parent.parent for path in MODULES} - {ROOT}):
        inside = []
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).parts
            if len(parts) > 1:
                package = ".".join(path.relative_to(ROOT).parts[:-1])
                inside.append((parts[0], path.read_text(encoding="utf-8"), package))
        yield folder, inside


@pytest.mark.parametrize(
    ("folder", "modules"), list(folders()), ids=lambda value: value.name if isinstance(value, Path) else ""
)
def test_no_packages_of_a_part_import_each_other_in_a_circle(folder, modules):
    """`storage/blobs` and `storage/catalog`, say. What lies in `storage` itself is their face, and what they share."""
    own = ".".join(folder.relative_to(ROOT).parts)
    found: dict[str, set[str]] = {name: set() for name, _, _ in modules}
    for name, source, package in modules:
        for imported in imports_of(source, package):
            first = imported.removeprefix(f"{own}.").split(".")[0]
            if imported.startswith(f"{own}.") and first in found and first != name:
                found[name].add(first)
    assert circle(found) == []


@pytest.mark.parametrize("module", CLOSURES)
def test_what_is_started_imports_no_more_than_it_did(module):
    """A start takes as long as its imports, and a child of the sandbox may use what it has imported. If the number of modules
    is less by now, write that down."""
    count, heavy = CLOSURES[module]
    program = f"import {module}, sys, json; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    found = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert found & HEAVY == heavy
    own = sum(name.partition(".")[0] == "dfc" for name in json.loads(done.stdout))
    assert 0.9 * count - 2 < own <= count


def test_a_target_loads_nothing_of_a_proxy():
    """It knows the paths that only a proxy answers, and no more of it."""
    program = "import dfc.servers.target, sys; sys.exit(any(name.startswith('dfc.proxy') for name in sys.modules))"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_house_is_of_a_size_that_one_reads():
    """At most 15 files a folder, 60 to 720 lines a file, two folders deep; and one file of a name in a package."""
    files = [path.relative_to(ROOT / "dfc") for path in MODULES if not path.name.startswith("__")]
    folders = Counter(path.parent.as_posix() for path in files)
    assert {folder: count for folder, count in folders.items() if count > 15} == {}
    assert [path for path in files if len(path.parts) > 3] == []
    lines = {path.as_posix(): (ROOT / "dfc" / path).read_text(encoding="utf-8").count("\n") for path in files}
    assert {name: count for name, count in lines.items() if count > 720} == {}
    assert {name for name, count in lines.items() if count < 60} == set(SHORT)
    names = Counter((path.parts[0], path.name) for path in files if len(path.parts) > 1)
    assert {f"{package}/{name}" for (package, name), count in names.items() if count > 1} == TWICE_IN_A_PACKAGE


def words_of_before() -> dict[str, str]:
    """By each word that is not used any more, what is said instead."""
    lines = (ROOT / "tests" / "words.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split(": ") for line in lines if not line.startswith("#"))


def said_again(text: str) -> list[str]:
    """The words of before in a text, each with what is said instead."""
    words = words_of_before()
    found = re.findall(rf"(?<![A-Za-z0-9_])(?:{'|'.join(map(re.escape, words))})(?![A-Za-z0-9_])", text)
    return [f"{word}: say {words[word]}" for word in found]


def test_no_word_of_before_is_said_again():
    folders = [path for name in ("dfc", "docs", "deploy") for path in (ROOT / name).rglob("*")]
    paths = [
        path for path in folders if path.is_file() and "decisions" not in path.parts and path.suffix not in (".pyc", ".png")
    ]
    assert len(paths) > 350
    texts = {path: path.read_text(encoding="utf-8") for path in [*paths, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]}
    assert [f"{path}: {word}" for path, text in texts.items() for word in said_again(text)] == []


def test_a_word_of_before_would_be_found():
    assert said_again("copies.owed_to(name), and a stand-in; not disowed_to, nor owed_to_2") == [
        "owed_to: say hinted_disks, hints_for",
        "stand-in: say handoff replica",
    ]


def test_a_public_class_name_means_one_thing():
    found = Counter(name for _, source, _ in all_modules() for name in public_classes(source))
    assert {name for name, count in found.items() if count > 1} == NAMES_TWICE


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_up(path):
    parts = path.relative_to(ROOT / "dfc").with_suffix("").parts
    assert parts[0] in RANK, f"{parts[0]} has no place in a layer; give it one in tests/layers.py and docs/code.md"
    package = ".".join(("dfc", *parts[:-1]))
    assert violations(parts[0], path.read_text(encoding="utf-8"), package) == []


@pytest.mark.parametrize(
    ("own", "source"),
    [
        ("errors", "import dfc.http.server"),
        ("names", "from dfc import storage"),
        ("tar", "from dfc.http.faces import Route"),
        ("storage", "def f():\n    from dfc.registry import embedded"),
        ("storage", "import asyncio"),
        ("placement", "from urllib.request import urlopen"),
        ("http", "if TYPE_CHECKING:\n    from dfc.servers.target import TargetNode"),
        ("target", "from dfc.proxy.cluster import Cluster"),
        ("proxy", "import dfc.target"),
        ("proxy", "from dfc.storage.disk import Disk"),
        ("api", "from dfc.storage.rows import ObjectRow"),
        ("client", "from dfc.storage import Disk"),
        ("cli", "from dfc.target import node"),
        ("http", "from ..proxy import buckets"),
        ("http", "from .. import proxy"),
    ],
)
def test_what_would_be_found(own, source):
    assert violations(own, source, f"dfc.{own}")


@pytest.mark.parametrize(
    ("own", "source"),
    [
        ("errors", "import re"),
        ("client", "from dfc import __version__, errors"),
        ("target", "from dfc.registry.messages import Registered\nfrom dfc.storage.disk import Disk"),
        ("storage", "from dfc.tar.index.reader import ShardIndex\nfrom urllib.parse import quote"),
        ("http", "from .answers import Answer\nfrom . import router\nimport asyncio"),
        ("cli", "from dfc.client import Client\nfrom dfc.http.node import load_for"),
    ],
)
def test_what_is_fine(own, source):
    assert violations(own, source, f"dfc.{own}") == []
