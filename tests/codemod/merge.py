"""Merges modules by a plan, from the root of the tree: `python tests/codemod/merge.py tests/codemod/plan.txt [PREFIX ...]`.

It goes again when that is done. `before.patch` beside it has the few edits that merging needs first, `renames.txt` the names
that would clash. A line of the plan is `new: old old old`: a path below dfc without suffix, and dotted names without `dfc.`.
Only new modules that begin with a prefix are made. The first old one gives the docstring. Every import, dotted name and path in
the tree follows. It fails on what it cannot decide: names that clash, and imports that would mean something else. Afterwards:
`ruff check --fix --select I,F401,UP,B033`, `ruff format`, and `after.py` for the layers, closures and docs/code.md.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOTS = ("dfc", "tests", "loadtest", "examples")
TEXTS = ("docs", "deploy", "README.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml", "docker-compose.yml", ".ci")
HISTORY = ("docs/decisions", "CHANGELOG.md")
DOTTED = re.compile(r"(?<![\w./-])dfc(?:\.[A-Za-z_]\w*)+")
PATH = re.compile(r"(?<![\w.-])(?<!\w/)dfc/[\w/]+\.py\b")

BELOW = re.compile(r"(?<=[`\"'])([a-z]\w*(?:/\w+)+)(\.py)?(?=[`\"'])")  # in pages and tests, without dfc/


class Undecided(Exception):
    """What a person has to say."""


def path_of(module: str) -> Path:
    path = Path(*module.split("."))
    return path / "__init__.py" if (path / "__init__.py").exists() else path.with_suffix(".py")


@dataclass
class Edits:
    """Replacements in a text, by offset; what is in a removed range is not replaced."""

    text: str
    found: list[tuple[int, int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._starts = [0]
        for line in self.text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._lines = self.text.splitlines(keepends=True)

    def offset(self, line: int, column: int) -> int:
        """Of a node of `ast`, whose columns are bytes."""
        content = self._lines[line - 1] if line <= len(self._lines) else ""
        return self._starts[line - 1] + len(content.encode()[:column].decode())

    def range_of(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def replace(self, node: ast.expr | ast.stmt, new: str) -> None:
        self.found.append((*self.range_of(node), new))

    def remove_lines(self, node: ast.stmt) -> None:
        """With the comment at its end."""
        assert node.end_lineno is not None
        self.found.append((self._starts[node.lineno - 1], self._starts[node.end_lineno], ""))

    def result(self) -> str:
        text, end = self.text, len(self.text) + 1
        for start, stop, new in sorted(self.found, key=lambda each: (-each[0], each[2] != "")):
            if stop <= end:
                text, end = text[:start] + new + text[stop:], start
            elif new:
                raise Undecided(f"two edits of the same place: {self.text[start:stop]!r}")
        return text


def read_plan(path: Path, prefixes: list[str]) -> dict[str, list[str]]:
    plan: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        new, _, olds = line.partition("#")[0].partition(":")
        if new.strip() and (not prefixes or any(new.startswith(prefix) for prefix in prefixes)):
            plan["dfc." + new.strip().replace("/", ".").removesuffix(".__init__")] = ["dfc." + old for old in olds.split()]
    return plan


def target_of(statement: ast.ImportFrom, module: str) -> str:
    """The module that a `from` import names."""
    if not statement.level:
        return statement.module or ""
    parts = module.split(".")
    base = parts[: len(parts) - statement.level + (path_of(module).name == "__init__.py")]
    return ".".join([*base, *([statement.module] if statement.module else [])])


def is_typing(node: ast.stmt) -> bool:
    """Whether it is imports for the type checker alone."""
    if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
        return False
    return all(isinstance(each, (ast.Import, ast.ImportFrom, ast.Pass)) for each in node.body)


def bound(node: ast.stmt) -> list[str]:
    """The names that a statement at the top of a module defines."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def heading_of(docstring: str) -> str:
    """The docstring of a module as the comment above a part of one."""
    found: list[str] = []
    paragraphs = docstring.split("\n\n")
    for at, paragraph in enumerate(paragraphs):
        is_plain = not re.search(r"^\s|^[-*] ", paragraph, re.MULTILINE)
        first = "# --- " if at == 0 else "# "
        found += [] if at == 0 else ["#"]
        if is_plain:
            found += textwrap.wrap(
                " ".join(paragraph.split()), 128, initial_indent=first, subsequent_indent="# ", break_on_hyphens=False
            )
        else:
            found += [f"{first if number == 0 else '# '}{line}".rstrip() for number, line in enumerate(paragraph.splitlines())]
    return "\n".join(found) + "\n"


class Merger:
    def __init__(self, plan: dict[str, list[str]], renames: dict[tuple[str, str], str]) -> None:
        self.plan, self.renames = plan, renames
        self.new_of = {old: new for new, olds in plan.items() for old in olds}
        self.moved = {old: new for old, new in self.new_of.items() if old != new}
        self.modules = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in Path("dfc").rglob("*.py")}
        self.problems: list[str] = []

    # --- names

    def dotted(self, name: str) -> str:
        """What a dotted name is called afterwards: the longest part of it that is a module decides."""
        parts = name.split(".")
        for count in range(len(parts), 1, -1):
            module, rest = ".".join(parts[:count]), parts[count:]
            if module in self.new_of or module in self.modules:
                if rest and (renamed := self.renames.get((module, rest[0]))):
                    rest[0] = renamed
                return ".".join([self.new_of.get(module, module), *rest])
        return name

    def text(self, text: str) -> str:
        """A text with the names and paths of the plan."""
        text = DOTTED.sub(lambda match: self.dotted(match[0]), text)

        def moved(match: re.Match[str]) -> str:
            old = match[0].removesuffix(".py").replace("/", ".").removesuffix(".__init__")
            new = self.moved.get(old)
            return match[0] if new is None else self.file_of(new).as_posix()

        def below(match: re.Match[str]) -> str:
            new = self.moved.get("dfc." + match[1].replace("/", "."))
            if new is None:
                return match[0]
            return self.file_of(new).relative_to("dfc").with_suffix("").as_posix().removesuffix("/__init__") + (match[2] or "")

        return BELOW.sub(below, PATH.sub(moved, text))

    def file_of(self, new: str) -> Path:
        """The file of a new module."""
        path = Path(*new.split("."))
        is_package = any(other.startswith(new + ".") for other in (*self.plan, *(self.modules - set(self.moved))))
        return path / "__init__.py" if is_package else path.with_suffix(".py")

    # --- imports of modules as objects

    def aliases(self, tree: ast.Module, module: str) -> Iterator[tuple[ast.ImportFrom, ast.alias, str]]:
        """Imports of modules as objects, wherever in a file: the statement, the name and the module."""
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                origin = target_of(node, module)
                for alias in node.names:
                    if f"{origin}.{alias.name}" in self.modules:
                        yield node, alias, f"{origin}.{alias.name}"

    def follow(self, text: str, module: str, group: list[str] | None = None) -> str:
        """A file with its imports, names and strings as they are afterwards. Of a `group` that becomes one module the names of
        one are those of all: imports among them go."""
        group = group or []
        tree = ast.parse(text)
        edits = Edits(text)
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | {
            node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)
        }
        stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        names |= {f"={name}" for name in stored}
        objects = {alias.asname or alias.name: old for _, alias, old in self.aliases(tree, module)}
        renamed: dict[str, str] = {}  # names of modules, and of what was imported under another name
        emptied: set[int] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                self._follow_import(node, module, group, edits, names, renamed, emptied)
        bodies = [
            getattr(node, part) for node in ast.walk(tree) for part in ("body", "orelse", "finalbody") if hasattr(node, part)
        ]
        for body in bodies:
            if isinstance(body, list) and body and all(id(each) in emptied for each in body) and body is not tree.body:
                edits.found = [each for each in edits.found if each[0] != edits.offset(body[0].lineno, 0) or each[2]]
                edits.replace(body[0], "pass")
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in objects:
                old = objects[node.value.id]
                attribute = self.renames.get((old, node.attr), node.attr)
                if old in group:
                    edits.replace(node, attribute)
                elif attribute != node.attr or node.value.id in renamed:
                    edits.replace(node, f"{renamed.get(node.value.id, node.value.id)}.{attribute}")
            elif isinstance(node, ast.Name) and node.id in renamed and not self._within(tree, node, objects):
                edits.replace(node, renamed[node.id])
            elif isinstance(node, ast.Call) and len(node.args) > 1 and isinstance(node.args[0], ast.Name):
                first, second = node.args[0].id, node.args[1]
                if first in objects and isinstance(second, ast.Constant) and isinstance(second.value, str):
                    new = self.renames.get((objects[first], second.value))
                    if new:
                        edits.replace(second, f'"{new}"')
        used = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and not self._within(tree, node, objects)]
        for name, old in objects.items():
            if old in group and any(node.id == name for node in used):
                self.problems.append(f"{module}: {name} is a module of its own group, used as an object")
        return self.text(edits.result())

    def _within(self, tree: ast.Module, name: ast.Name, objects: dict[str, str]) -> bool:
        """Whether a name is the module in `module.attribute`."""
        if name.id not in objects:
            return False
        if not hasattr(tree, "heads"):
            tree.heads = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}  # type: ignore[attr-defined]
        return id(name) in tree.heads  # type: ignore[attr-defined]

    def _follow_import(
        self,
        node: ast.ImportFrom,
        module: str,
        group: list[str],
        edits: Edits,
        names: set[str],
        renamed: dict[str, str],
        emptied: set[int],
    ) -> None:
        origin = target_of(node, module)
        kept: list[str] = []  # names that still come from `origin`, wherever that is then
        others: list[str] = []
        for alias in node.names:
            full, bound_as = f"{origin}.{alias.name}", alias.asname or alias.name
            if full in self.modules:
                if full in group:
                    continue
                new = self.new_of.get(full, full)
                package, _, last = new.rpartition(".")
                if bound_as in (last, alias.asname):
                    others.append(f"from {package} import {last}" + (f" as {bound_as}" if bound_as != last else ""))
                elif last not in names and f"={bound_as}" not in names:
                    renamed[bound_as] = last
                    others.append(f"from {package} import {last}")
                else:
                    others.append(f"from {package} import {last} as {bound_as}")
            elif origin in group:
                own = self.renames.get((origin, alias.name), alias.name)
                if own != bound_as:
                    renamed[bound_as] = own
            else:
                own = self.renames.get((origin, alias.name), alias.name)
                kept.append(own if own == bound_as else f"{own} as {bound_as}")
        if origin not in self.new_of and origin not in group and not others and len(kept) == len(node.names) and not node.level:
            return
        statements = others
        if kept:
            statements = [f"from {self.new_of.get(origin, origin)} import {', '.join(kept)}", *others]
        if not statements:
            emptied.add(id(node))
            edits.remove_lines(node)
            return
        indent = " " * node.col_offset
        edits.replace(node, f"\n{indent}".join(statements))

    # --- one new module

    def ordered(self, olds: list[str], trees: dict[str, ast.Module]) -> list[str]:
        """Those that others need at their import come first."""
        needs: dict[str, set[str]] = {old: set() for old in olds}
        for old in olds:
            for node in trees[old].body:
                if isinstance(node, ast.ImportFrom):
                    origin = target_of(node, old)
                    needs[old] |= {origin} & set(olds) | {f"{origin}.{each.name}" for each in node.names} & set(olds)
        found: list[str] = []
        while len(found) < len(olds):
            ready = [old for old in olds if old not in found and needs[old] - {old} <= set(found)]
            if not ready:
                raise Undecided(f"a circle among {olds}")
            found.append(ready[0])
        return found

    def merged(self, new: str, olds: list[str]) -> str:
        sources = {old: path_of(old).read_text() for old in olds}
        if len(olds) == 1:
            return self.follow(sources[olds[0]], olds[0])
        for old in olds:
            sources[old] = self._renamed_inside(sources[old], old)
        trees = {old: ast.parse(sources[old]) for old in olds}
        imports: dict[str, None] = {}
        typing: dict[str, None] = {}
        origins: dict[str, str] = {}
        defined: dict[str, tuple[str, str]] = {}
        bodies: list[str] = []
        for old in self.ordered(olds, trees):
            text = self.follow(sources[old], old, olds)
            tree = ast.parse(text)
            edits = Edits(text)
            for at, node in enumerate(tree.body):
                if at == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                    edits.remove_lines(node)
                elif isinstance(node, (ast.Import, ast.ImportFrom)):
                    edits.remove_lines(node)
                    for line in self._lines_of(node, text, origins, old):
                        imports[line] = None
                elif is_typing(node):
                    assert isinstance(node, ast.If)
                    edits.remove_lines(node)
                    for each in node.body:
                        if isinstance(each, (ast.Import, ast.ImportFrom)):
                            for line in self._lines_of(each, text, origins, old):
                                typing[line] = None
                else:
                    source = ast.unparse(node)
                    for name in bound(node):
                        if name in defined and defined[name][0] == source:
                            edits.remove_lines(node)
                        elif name in defined and defined[name][1] != old:
                            self.problems.append(f"{new}: {name} is defined in {defined[name][1]} and in {old}")
                        else:
                            defined[name] = (source, old)
            docstring = ast.get_docstring(tree, clean=True) or ""
            body = edits.result().strip("\n")
            heading = heading_of(docstring)
            first = not bodies
            bodies.append(body if old == olds[0] and first else f"{heading}\n{body}")
        for name, origin in origins.items():
            if name in defined:
                self.problems.append(f"{new}: {name} is defined in {defined[name][1]}, and imported from {origin}")
        typing = {line: None for line in typing if line not in imports}
        docstring = ast.get_docstring(trees[olds[0]], clean=False) or ""
        parts = [f'"""{self.text(docstring)}"""\n\nfrom __future__ import annotations\n', "\n".join(imports)]
        if typing:
            parts.append("if TYPE_CHECKING:\n" + "\n".join(f"    {line}" for line in typing))
        return "\n\n".join([*parts, "\n\n\n".join(bodies)]) + "\n"

    def _renamed_inside(self, text: str, old: str) -> str:
        """A module in which what clashes has its new name."""
        wanted = {name: new for (module, name), new in self.renames.items() if module == old}
        edits = Edits(text)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Name) and node.id in wanted:
                edits.replace(node, wanted[node.id])
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name in wanted:
                start, stop = edits.range_of(node)
                at = re.compile(rf"\b{node.name}\b").search(text, start, stop)
                assert at is not None
                edits.found.append((at.start(), at.end(), wanted[node.name]))
        return edits.result()

    def _lines_of(self, node: ast.Import | ast.ImportFrom, text: str, origins: dict[str, str], old: str) -> Iterator[str]:
        """An import as lines of one name each, and a check that a name is not imported from two places."""
        for alias in node.names:
            name = alias.asname or alias.name
            if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                continue
            origin = f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
            if origins.setdefault(name, origin) != origin:
                self.problems.append(f"{old}: {name} is {origin}, and {origins[name]} in another one of its group")
            what = alias.name + (f" as {alias.asname}" if alias.asname else "")
            yield f"from {node.module} import {what}" if isinstance(node, ast.ImportFrom) else f"import {what}"

    # --- the tree

    def run(self) -> None:
        made = {new: self.merged(new, olds) for new, olds in self.plan.items()}
        followed: dict[Path, str] = {}
        gone = {path_of(old) for old in self.new_of}
        for root in ROOTS:
            for path in sorted(Path(root).rglob("*.py")):
                if path not in gone and "codemod" not in path.parts:
                    module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
                    followed[path] = self.follow(path.read_text(), module)
        for each in TEXTS:
            base = Path(each)
            for path in [base] if base.is_file() else sorted(base.rglob("*")):
                if path.is_file() and not any(str(path).startswith(past) for past in HISTORY):
                    try:
                        followed[path] = self.text(path.read_text())
                    except UnicodeDecodeError:
                        continue
        if self.problems:
            raise Undecided("\n".join(sorted(set(self.problems))))
        for path, text in followed.items():
            if path.read_text() != text:
                path.write_text(text)
        files = {self.file_of(new): text for new, text in made.items()}
        for old in gone - set(files):
            subprocess.run(["git", "rm", "-qf", str(old)], check=True)
        for file, text in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        for init in sorted(Path("dfc").rglob("__init__.py"), reverse=True):
            if not any(each != init for each in init.parent.rglob("*.py")):
                print(f"{init} goes:", ast.unparse(ast.parse(init.read_text())).replace("\n", " "))
                subprocess.run(["git", "rm", "-qf", str(init)], check=True)
        print("made", len(files), "of", len(gone))


def main() -> None:
    plan = read_plan(Path(sys.argv[1]), sys.argv[2:])
    renames: dict[tuple[str, str], str] = {}
    table = Path(sys.argv[1]).with_name("renames.txt")
    for line in table.read_text().splitlines() if table.exists() else ():
        if line.partition("#")[0].strip():
            module, name, new = line.partition("#")[0].split()
            renames["dfc." + module, name] = new
    try:
        Merger(plan, renames).run()
    except Undecided as problem:
        sys.exit(str(problem))


if __name__ == "__main__":
    main()
