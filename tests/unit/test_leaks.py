"""The suite's own eyes: leaks fail the test that leaves them, and logs of nodes are looked through and printed."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from nodelogs import TAIL_LINES, NodeLogs

ROOT = Path(__file__).resolve().parents[2]
LEAKY = """
import asyncio, gc, socket, subprocess, sys, threading
import pytest

def test_clean():
    with socket.socket():
        pass

def test_socket():
    cycle = [socket.socket()]
    cycle.append(cycle)

@pytest.fixture(scope="module")
def left_by_a_module():
    cycle = [open(__file__)]
    cycle.append(cycle)
    yield

async def test_error_of_a_task():
    async def fail():
        raise ValueError("nobody asks")
    task = asyncio.create_task(fail())
    while not task.done():
        await asyncio.sleep(0)

async def test_future():
    asyncio.get_running_loop().create_future().set_exception(ValueError("nobody asks"))

def test_task_that_is_destroyed():
    loop = asyncio.new_event_loop()
    task = loop.create_task(asyncio.sleep(1))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()

async def test_callback():
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await asyncio.sleep(0)

def test_finalizer():
    class Bad:
        def __del__(self):
            raise ValueError("nowhere to go")
    Bad()

def test_thread():
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()

def test_coroutine():
    asyncio.sleep(1)

def test_expected(leaks):
    asyncio.get_event_loop_policy()
    import logging
    logging.getLogger("asyncio").error("Task exception was never retrieved")
    leaks.records.clear()

def test_of_the_module(left_by_a_module):
    pass
"""


def test_what_is_left_behind_fails_the_test_that_leaves_it(tmp_path: Path) -> None:
    (tmp_path / "test_leaky.py").write_text(LEAKY)
    command = [sys.executable, "-m", "pytest", "-n0", "-rA", "-p", "leaks", "-p", "no:cacheprovider"]
    command += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), str(tmp_path / "test_leaky.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=150, cwd=tmp_path).stdout
    passed, bad = (
        set(re.findall(rf"^(?:{outcome}) test_leaky\.py::(\w+)", said, re.MULTILINE)) for outcome in ("PASSED", "FAILED|ERROR")
    )
    assert bad == set(re.findall(r"def (test_\w+)", LEAKY)) - {"test_clean", "test_expected"}, said
    assert {"test_clean", "test_expected"} <= passed, said


@pytest.fixture
def logs(tmp_path: Path) -> tuple[NodeLogs, Path]:
    (tmp_path / "c0/logs").mkdir(parents=True)
    found = NodeLogs()
    found.add(tmp_path / "c0")
    return found, tmp_path / "c0/logs/target-0.log"


def test_a_leak_in_a_log_is_told_once_and_when_its_line_is_whole(logs: tuple[NodeLogs, Path]) -> None:
    found, log = logs
    log.write_text('{"message": "fine"}\n{"message": "Task exception was never retrieved", "traceback": "a\\nb"}\n')
    (leak,) = found.leaks()
    assert leak == 'c0/target-0: {"message": "Task exception was never retrieved"}\na\nb'
    assert found.leaks() == []
    with log.open("a") as file:
        file.write("Exception igno")
    assert found.leaks() == []
    with log.open("a") as file:
        file.write("red in: <x>\n")
    assert found.leaks() == ["c0/target-0: Exception ignored in: <x>"]
    log.write_text("Unclosed connection\n")  # the supervisor has cut it
    assert found.leaks() == ["c0/target-0: Unclosed connection"]


def test_what_was_logged_before_the_test_is_not_printed(logs: tuple[NodeLogs, Path]) -> None:
    found, log = logs
    log.write_text("before\n")
    found.begin()
    assert found.tails() == ""
    with log.open("a") as file:
        file.writelines(f"line {number}\n" for number in range(100))
    lines = found.tails().splitlines()
    assert lines[0] == f"--- c0/target-0 (the last {TAIL_LINES} of 100 lines)"
    assert lines[1:] == [f"line {number}" for number in range(100 - TAIL_LINES, 100)]


async def test_a_connection_that_comes_when_a_server_is_closed_is_closed() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    asyncio.get_running_loop().call_later(0.01, server.close)
    with socket.create_connection(server.sockets[0].getsockname(), timeout=20) as client:
        time.sleep(0.05)  # noqa: ASYNC251  # in the next turn of the loop it is accepted, and then the server is closed
        await asyncio.sleep(0.01)
        assert await asyncio.to_thread(client.recv, 1) == b""
