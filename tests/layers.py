"""The layers of the product and what its modules import: for tests that hold it to its layers, and its pages to it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BASE = {
    "__init__", "addresses", "checksum", "clock", "config", "errors", "filesystem", "handover", "limits", "listing", "logs",
    "metrics", "names", "walcheck", "wire",
}  # fmt: skip
# From the top: what stands on nothing first. `listing` is pure, shared by nodes and those outside.
LAYERS = (
    ("base", _BASE),
    ("domain", {"placement", "replication", "order", "tar", "formats", "storage", "jobs"}),
    ("plumbing", {"http", "batch", "registry", "engine", "reach"}),
    ("nodes", {"proxy", "target"}),
    ("faces", {"api", "ui"}),
    ("servers", {"servers"}),
    ("outside", {"client", "inputs", "cli", "supervisor", "__main__"}),
)
MODULES = sorted((ROOT / "dfc").rglob("*.py"))


def imports_of(source: str, package: str) -> Iterator[str]:
    """Full names of what a module imports, wherever in it; `package` is the one that relative imports start from."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            # `from dfc import errors` names a module, `from dfc import __version__` something in the package itself.
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def module_of(path: Path) -> str:
    """The name under which a file of the tree is imported; what tests share is imported without `tests`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "tests" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def strings_of(source: str) -> Iterator[str]:
    """Dotted names of the product that are texts in a source: what is replaced in a test, or started as a program."""
    yield from re.findall(r"[\"'](dfc(?:\.\w+)+)[\"']", source)
