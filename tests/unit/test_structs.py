"""Threads never meet a struct whose fields msgspec is just looking at: that ends the process."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from layers import ROOT

from dfc.client.control import decode
from dfc.http import node
from dfc.jobs.operations import OPERATIONS, operation

ONE_THREAD = {"measure.py"}  # processes of one thread
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


@pytest.mark.parametrize("folder", ["client", "inputs", "reach", "cli", "batch"])
def test_clients_and_loaders_prepare_what_they_decode(folder: str) -> None:
    found = []
    for path in (ROOT / "dfc" / folder).rglob("*.py"):
        for call in re.findall(r"msgspec\.(?:json|msgpack)\.(?:decode|Decoder)\(.*", path.read_text()):
            kind = re.search(r"type=(\w+)|Decoder\((\w+)", call)
            if kind is not None and (kind[1] or kind[2]) not in ("prepared", "list", "dict"):
                found.append(f"{path.name}: {call}")
    assert [line for line in found if line.partition(":")[0] not in ONE_THREAD] == []


def test_threads_of_a_client_look_at_a_struct_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    class Answer(msgspec.Struct):
        value: int

    looking, most = [0], [0]
    decoder = msgspec.msgpack.Decoder

    def look(kind: type[Answer]) -> Any:
        looking[0] += 1
        most[0] = max(most[0], looking[0])
        time.sleep(0.05)
        looking[0] -= 1
        return decoder(kind)

    decoder(Answer)  # those who look at once would end this process by a segmentation fault
    monkeypatch.setattr(msgspec.msgpack, "Decoder", look)
    with ThreadPoolExecutor(8) as pool:
        assert [answer.value for answer in pool.map(decode, [b'{"value": 1}'] * 8, [Answer] * 8)] == [1] * 8
    assert most == [1]
