"""docs/code.md says what the code is: its table of packages, the ways through the modules, and the names of threads."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from layers import LAYERS, MODULES, ROOT, imports_of

PAGE = (ROOT / "docs" / "code.md").read_text(encoding="utf-8")
SOURCES = {path.relative_to(ROOT / "dfc").with_suffix("").as_posix().removesuffix("/__init__"): path for path in MODULES}
WAYS = re.findall(r"^    (.+)$", PAGE.split("## Six ways")[1].split("## Processes")[0], re.MULTILINE)


def first_line(path: Path) -> str:
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first = " ".join(said.split("\n\n")[0].split())
    assert first, f"{path} does not say what it is for"
    return first.rstrip(":")


def table(what: str) -> str:
    """Of the packages, or of the modules that are in none."""
    rows = []
    for name, path in SOURCES.items():
        kind = "packages" if path.name == "__init__.py" else "modules"
        is_inside = path.parent.name != "dfc"
        if kind == what and is_inside == (kind == "packages") and name != "__main__":
            rows.append(f"| `{name}` | {first_line(path)} |")
    return "\n".join([f"| {what[:-1]} | what is in it |", "| --- | --- |", *rows])


@pytest.mark.parametrize("what", ["packages", "modules"])
def test_the_tables_are_those_of_the_code(what: str) -> None:
    found = PAGE.split(f"<!-- {what} -->\n")[1].split(f"<!-- /{what} -->")[0].rstrip("\n")
    assert found == table(what), f"docs/code.md wants this table:\n{table(what)}"


def test_the_layers_are_those_that_are_checked() -> None:
    for layer, names in LAYERS:
        row = re.search(rf"^\| {layer} \| `([^`]+)`", PAGE, re.MULTILINE)
        assert row, layer
        assert set(row[1].split()) == names - {"__init__", "__main__"}, layer


def imported_by(name: str) -> set[str]:
    path = SOURCES[name]
    parts = path.relative_to(ROOT).parts[:-1]
    found = set()
    for full in imports_of(path.read_text(encoding="utf-8"), ".".join(parts)):
        module = full.removeprefix("dfc.").replace(".", "/")
        found |= {module, module.rpartition("/")[0]}
    return found


@pytest.mark.parametrize("way", WAYS)
def test_ways_follow_the_imports(way: str) -> None:
    modules = re.split(r" [→⇒] ", way)
    assert len(modules) > 2
    for module in modules:
        assert module in SOURCES, module
    for left, arrow, right in zip(modules, re.findall("[→⇒]", way), modules[1:], strict=False):
        if arrow == "→":
            assert right in imported_by(left), f"{left} does not import {right}"


def test_there_are_ways() -> None:
    assert len(WAYS) > 10
    assert imported_by("http/relay") >= {"http/transfer", "http/answers"}
    assert "http/relay" not in imported_by("http/transfer")


def test_threads_are_called_so_where_it_says() -> None:
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", PAGE.split("## Processes")[1].split("###")[0], re.MULTILINE)
    assert len(rows) > 6
    for names, places in rows:
        sources = ""
        for place in re.findall("`([^`]+)`", places):
            paths = [path for name, path in SOURCES.items() if name == place or name.startswith(f"{place}/")]
            assert paths, place
            sources += "".join(path.read_text(encoding="utf-8") for path in paths)
        for name in re.findall("`([^`]+)`", names):
            assert f'"{name.removesuffix("…")}' in sources, f"no thread {name} in {places}"
    named = re.compile(r"""(?:thread_name_prefix=|Thread\(.*name=)f?"([a-z-]+)""")
    for name in {name for path in MODULES for name in named.findall(path.read_text(encoding="utf-8"))}:
        assert f"`{name}" in PAGE, f"docs/code.md says nothing of the thread {name}"
