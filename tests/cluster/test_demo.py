"""`make demo` as a user runs it: it must end with exit code 0, in time, and leave nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from harness import command_line, wait_for, was_interrupted

ROOT = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "loadtest.demo"]
END_S = 550  # a quarter of a minute on an idle machine; the tests share it


def processes_with(text: str) -> list[str]:
    """Command lines of live processes that hold this text."""
    lines = [command_line(int(entry.name)) for entry in Path("/proc").glob("[0-9]*")]
    return [line for line in lines if text in line]


@pytest.mark.timeout(600)
def test_the_demo_gets_every_byte_back(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(DEMO, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=END_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every byte came back" in done.stdout
    assert "make demo KEEP=1" in done.stdout
    commands = (
        "$ dfc serve",
        "$ tar",
        "| tarshards",
        "$ curl -sS --fail-with-body -T",
        "?sample=",
        "$ dfc reshuffle",
        "$ dfc convert",
    )
    for command in commands:
        assert command in done.stdout
    assert done.stdout.startswith("On an idle machine this takes a quarter of a minute. Nothing is downloaded")
    parts = re.findall(r"^(\d+)/(\d+) ", done.stdout, re.MULTILINE)
    assert parts == [(str(number), "9") for number in range(1, 10)]
    for far in (" 200 of 1100 images", "1100 of 1100 images", " 1 of 11 shards", "11 of 11 shards"):
        assert far in done.stdout
    assert list(tmp_path.iterdir()) == []
    assert processes_with(str(tmp_path)) == []


@pytest.mark.timeout(600)
def test_the_demo_can_be_looked_at_until_it_is_interrupted(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [*DEMO, "--keep"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        said = ""
        for line in run.stdout:
            said += line
            if "Look at it in a browser" in line:
                break
        (url,) = re.findall(r"browser: (http://\S+/ui)", said)
        answer = httpx.get(f"{url}/shard?bucket=default&object=demo-extra.tar", trust_env=False, timeout=60)
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=200)
    assert "Every byte came back" in said
    assert (answer.status_code, run.returncode) == (200, 0)
    assert answer.text.count("<img ") == 60
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_demo_ends_its_cluster(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(DEMO, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        for line in demo.stdout:
            if "DFC is ready" in line:
                break
        assert processes_with(str(tmp_path)) != []
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=200)
    assert was_interrupted(demo.returncode), demo.returncode
    assert list(tmp_path.iterdir()) == []
    wait_for(lambda: not processes_with(str(tmp_path)), "all processes of the demo to end")
