"""What a type checker tells the user of an installed DFC."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "user_program.py"
# Frameworks are large, and what is tested here are our signatures: they count as not typed, as in our own settings.
SETTINGS = """[mypy]
strict = true
[mypy-torch.*,tensorflow.*]
follow_imports = skip
ignore_missing_imports = true
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An environment with DFC installed in it, not editable, beside what this one has."""
    directory = tmp_path_factory.mktemp("user") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True, timeout=120)
    [packages] = directory.glob("lib/python*/site-packages")
    shutil.copytree(ROOT / "dfc", packages / "dfc", ignore=shutil.ignore_patterns("__pycache__"))
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return str(directory / "bin" / "python")


def complaints(python: str, program: Path, directory: Path) -> set[tuple[int, str]]:
    """Line and code of each error."""
    settings = directory / "mypy.ini"
    settings.write_text(SETTINGS)
    command = [sys.executable, "-m", "mypy", "--config-file", settings, "--python-executable", python, "--no-error-summary"]
    command += ["--cache-dir", directory / "cache", "--hide-error-context", program.name]
    done = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, timeout=170)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = set()
    for line in done.stdout.splitlines():
        match = re.fullmatch(rf"{program.name}:(\d+): error: .* \[([a-z-]+)\]", line)
        assert match or ": note: " in line, line
        if match:
            found.add((int(match[1]), match[2]))
    return found


def test_mypy_sees_what_is_misspelt_or_of_a_wrong_type_and_nothing_else(python: str, tmp_path: Path) -> None:
    marked = set()
    for number, line in enumerate(PROGRAM.read_text().splitlines(), 1):
        if found := re.search(r"# E: ([a-z-]+)$", line):
            marked.add((number, found[1]))
    assert len(marked) >= 20
    assert complaints(python, PROGRAM, tmp_path) == marked


def test_the_marker_of_types_is_part_of_the_package() -> None:
    assert (ROOT / "dfc" / "py.typed").is_file()
