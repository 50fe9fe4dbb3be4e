"""Threads never meet a struct whose fields msgspec is just looking at: that ends the process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from dfc.http import node
from dfc.jobs.operations import OPERATIONS, operation

LOOKS = """
import sys, msgspec
{imports}
from dfc.wire import _below, prepare_structs

looked = []
def notice(frame, event, _):
    if event == "call" and frame.f_code.co_name == "get_class_annotations":
        looked.append(frame.f_locals.get("obj"))

def look():
    looked.clear()
    sys.setprofile(notice)
    {work}
    sys.setprofile(None)
    return looked

def decode_all():
    for kind in _below(msgspec.Struct):
        if kind.__module__.startswith("dfc."):
            try:
                msgspec.json.Decoder(kind)
            except (TypeError, NameError):
                pass

before = len(look())
prepare_structs()
after = len(look())
print(before, after)
"""


def looks(imports: str, work: str) -> tuple[int, int]:
    """How many structs are looked at by some work, before they are prepared and after."""
    source = LOOKS.format(imports=imports, work=work)
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120, check=True)
    before, after = map(int, ended.stdout.split())
    return before, after


def test_all_structs_of_a_node_are_known_once_they_are_prepared() -> None:
    before, after = looks("import dfc.servers.proxy, dfc.servers.target", "prepare_structs()")
    assert before > 100
    assert after == 0
    assert looks(
        "import dfc.servers.proxy, dfc.servers.target; from dfc.wire import prepare_structs; prepare_structs()", "decode_all()"
    ) == (0, 0)


def test_a_node_prepares_them_before_it_has_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    steps: list[str] = []

    def run(coroutine: Coroutine[Any, Any, int]) -> int:
        coroutine.close()
        steps.append("run")
        return 0

    monkeypatch.setattr(node, "prepare_structs", lambda: steps.append("prepared"))
    monkeypatch.setattr(node.uvloop, "run", run)
    monkeypatch.setattr(node.Watchdog, "end_within", lambda *_: None)
    monkeypatch.setattr(node, "_raise_file_limit", lambda: None)
    monkeypatch.setattr(node, "configure_logging", lambda _: None)
    node.run_node("proxy", lambda _: None, ["--dir", str(tmp_path)])  # type: ignore[arg-type,return-value]
    assert steps == ["prepared", "run"]


@pytest.mark.parametrize("name", OPERATIONS)
def test_options_of_an_operation_are_known_when_it_is(name: str) -> None:
    kind = f"operation({name!r}).Options"
    source = f"from dfc.jobs.operations import operation; kind = {kind}"
    assert looks(source, "msgspec.json.Decoder(kind)") == (0, 0)
    assert operation(name).Options
