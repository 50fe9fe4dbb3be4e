"""What follows the merge in tests and docs/code.md: `python tests/codemod/after.py`, once, after ruff."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from merge import Merger, read_plan

BASE = "addresses attributes checksum clock config errors filesystem handover limits listing logs metrics names walcheck wire"
CLOSURES = {
    "dfc.jobs.sandbox.child": 11,
    "dfc.engine.host": 9,
    "dfc.cli.main": 18,
    "dfc.cli.listing": 10,
    "dfc.client.client": 43,
    "dfc.inputs.gopen": 44,
    "dfc.servers.proxy": 134,
    "dfc.servers.target": 151,
}


def change(path: str, *pairs: tuple[str, str]) -> None:
    text = Path(path).read_text()
    for old, new in pairs:
        found, count = re.subn(old, lambda _, new=new: new, text, count=1, flags=re.DOTALL | re.MULTILINE)  # type: ignore[misc]
        if not count:
            sys.exit(f"{path}: no {old!r}")
        text = found
    Path(path).write_text(text)


def main() -> None:
    names = ", ".join(f'"{name}"' for name in BASE.split())
    change(
        "tests/layers.py",
        (r'    \(\n        "base",.*?\n    \),\n', f'    (\n        "base",\n        {{"__init__", {names}}},\n    ),\n'),
        ("`pages` and `shards` are pure", "`listing` is pure"),
    )
    change(
        "tests/unit/test_layers.py",
        *(((rf'"{re.escape(module)}": \(\d+'), f'"{module}": ({count}') for module, count in CLOSURES.items()),
        (
            r"    assert who_imports\(REGISTRIES, modules\) == \{.*?\n    \}\n",
            '    assert who_imports(REGISTRIES, modules) == {CHOOSES_REGISTRY, "registry/offline.py"}\n',
        ),
        (r"# Folders of more than fifteen files[^\n]*\nLARGE_FOLDERS[^\n]*\n", ""),
        (r"a newcomer takes in; the base, and what is left to be cut, are named here\.", "a newcomer takes in."),
        (
            r'for path in MODULES if path\.name != "__init__\.py"\)\n',
            'for path in MODULES if not path.name.startswith("__"))\n',
        ),
        (
            r"assert \{folder for folder, count in sizes\.items\(\) if count > 15\} == LARGE_FOLDERS",
            "assert {folder: count for folder, count in sizes.items() if count > 15} == {}",
        ),
    )
    change(
        "tests/unit/test_seam.py",
        (r"^SINGLE = \([^\n]*\n", 'SINGLE = ("supervisor.py", "jobs/journal.py")\n'),
        (r"assert len\(paths\) > 35", "assert len(paths) > 25"),
    )
    page = Path("docs/code.md").read_text()
    plan = read_plan(Path("tests/codemod/plan.txt"), [])
    merger = Merger(plan, {})

    def way(match: re.Match[str]) -> str:
        parts = re.split(r"( [→⇒] )", match[1])
        found = [new_name(parts[0])]
        for arrow, module in zip(parts[1::2], parts[2::2], strict=True):
            if new_name(module) != found[-1]:
                found += [arrow, new_name(module)]
        return "    " + "".join(found)

    def new_name(module: str) -> str:
        new = merger.new_of.get("dfc." + module.replace("/", "."))
        return module if new is None else new.removeprefix("dfc.").replace(".", "/")

    before, ways, rest = re.split(r"(## Five ways.*?(?=## Processes))", page, maxsplit=1, flags=re.DOTALL)
    ways = re.sub(r"^    (.+)$", way, ways, flags=re.MULTILINE)
    page = before + ways + rest
    page = re.sub(r"^\| base \| `[^`]+`", f"| base | `{BASE}`", page, flags=re.MULTILINE)
    Path("docs/code.md").write_text(page)
    sys.path[:0] = ["tests", "tests/unit"]
    from test_code_page import table  # type: ignore[import-not-found]

    for what in ("packages", "modules"):
        begin, end = f"<!-- {what} -->\n", f"<!-- /{what} -->"
        first, _, rest = page.partition(begin)
        page = first + begin + table(what) + "\n" + end + rest.partition(end)[2]
    Path("docs/code.md").write_text(page)


if __name__ == "__main__":
    main()
