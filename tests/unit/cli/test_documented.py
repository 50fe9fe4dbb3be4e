"""docs/cli.md names every command, option and exit code; docs/python.md every public call of the client."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from dfc.cli import main, tarshards
from dfc.cli.session import Exit
from dfc.client import AsyncClient, Client

DOCS = Path(__file__).parents[3] / "docs"
CLI = (DOCS / "cli.md").read_text()
PYTHON = (DOCS / "python.md").read_text()
NODE_COMMANDS = {"serve", "proxy", "target", "config"}  # described with the settings of nodes


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.*)$", CLI, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def commands(command: Any, name: str) -> list[tuple[str, Any]]:
    found = getattr(command, "commands", None)
    if found is None:
        return [(name, command)]
    return [each for child, sub in found.items() for each in commands(sub, f"{name} {child}")]


ALL = [*commands(typer.main.get_command(main.app), "dfc"), ("tarshards", typer.main.get_command(tarshards.app))]


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
def test_commands_and_options(name: str, command: Any) -> None:
    top = " ".join(name.split()[:2])
    section = next(text for title, text in sections().items() if top in title.split(", "))
    if len(name.split()) == 3:
        assert name in section
    if name.split()[-1] in NODE_COMMANDS or name.startswith("dfc config"):
        return
    missing = [
        option
        for parameter in command.params
        for option in getattr(parameter, "opts", ())
        if option.startswith("-") and option not in ("--help", "-h") and f"`{option}" not in section
    ]
    assert missing == []


def test_exit_codes() -> None:
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", sections()["Exit codes"], flags=re.MULTILINE)}
    assert listed == set(map(int, Exit))


def test_public_calls_of_the_client() -> None:
    names = {name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")} - {"close"}
    assert {name for name in names if f"{name}(" not in PYTHON and f"`{name}`" not in PYTHON} == set()
    own = {name for name, _ in inspect.getmembers(AsyncClient, inspect.isfunction) if not name.startswith("_")}
    assert names - own <= {"abort", "list_pages"}
