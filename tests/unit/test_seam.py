"""Only `dfc.filesystem` makes calls that change or sync what a node keeps; the crash tests rely on it."""

from __future__ import annotations

import ast
from pathlib import Path

import dfc.storage
from dfc.filesystem import FileSystem
from dfc.storage.upkeep.check import HARMLESS

PACKAGE = Path(dfc.storage.__file__).parent
FORBIDDEN = [
    "unlink", "remove", "rename", "replace", "mkdir", "makedirs", "rmdir", "removedirs", "write", "pwrite", "pwritev", "writev",
    "fsync", "fdatasync", "sync", "truncate", "ftruncate", "posix_fallocate", "link", "symlink", "sendfile", "copy_file_range",
]  # fmt: skip
PATH_METHODS = ("write_text", "write_bytes", "mkdir", "touch", "unlink", "rename", "symlink_to")


NODES = ("registry", "proxy", "target")
SINGLE = ("supervisor.py", "jobs/journal.py")
# Logs and the lock of `dfc serve`, and the lock of a directory of scratch files: nothing that a start needs.
NOT_KEPT = {"supervisor.py": ("truncate", "open", "copyfile", "mkdir")}


def test_no_module_of_a_node_makes_such_calls_beside_it() -> None:
    root = PACKAGE.parent
    paths = [root / name for name in SINGLE] + [path for part in NODES for path in (root / part).rglob("*.py")]
    assert len(paths) > 40
    for path in paths:
        allowed = NOT_KEPT.get(path.name, ())
        for node in ast.walk(ast.parse(path.read_text())):
            where = f"{path.name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("os", "shutil"):
                assert node.attr not in FORBIDDEN or node.attr in allowed, f"{where}: {node.value.id}.{node.attr}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if ast.unparse(node.func.value).endswith("filesystem"):
                    continue
                assert node.func.attr not in PATH_METHODS or node.func.attr in allowed, f"{where}: {node.func.attr}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
                modes = [a.value for a in node.args[1:2] if isinstance(a, ast.Constant)]
                assert modes in ([], ["rb"]), f"{where}: open(…, {modes})"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sqlite3":
                assert node.attr != "connect" or path.name == "database.py", f"{where}: sqlite3.connect"


def test_no_other_module_of_a_disk_makes_such_calls() -> None:
    paths = sorted(PACKAGE.rglob("*.py"))
    assert len(paths) > 25
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("os", "shutil"):
                assert node.value.id == "os", f"{path.name}:{node.lineno}: shutil"
                assert node.attr not in FORBIDDEN, f"{path.name}:{node.lineno}: os.{node.attr}"
                if node.attr == "open":
                    assert path.name in ("identity.py", "nowait.py"), f"{path.name}:{node.lineno}: os.open"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
                modes = [a.value for a in node.args[1:2] if isinstance(a, ast.Constant)]
                assert modes in ([], ["rb"]), f"{path.name}:{node.lineno}: open(…, {modes})"


def test_every_method_of_the_seam_is_a_change_or_a_read() -> None:
    methods = {name for name in vars(FileSystem) if not name.startswith("_") and callable(getattr(FileSystem, name))}
    assert methods == {*FileSystem.CHANGES, *FileSystem.READS, "space"}


def test_every_kind_of_problem_is_documented() -> None:
    text = (PACKAGE.parent.parent / "docs" / "on-disk-format.md").read_text()
    source = (PACKAGE / "upkeep" / "check.py").read_text()
    kinds = HARMLESS | {"catalog", "counters", "row_without_blob", "damaged_blob", "quarantined", "foreign_file"}
    for kind in kinds:
        assert f"| `{kind}` |" in text
        assert f'"{kind}"' in source
