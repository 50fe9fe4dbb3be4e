"""Engines with real Dask schedulers and workers, as processes of their own, killed for real."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness import open_files, wait_for
from inprocess import until

from dfc.config import Settings
from dfc.engine.base import EngineLost, TaskFailed
from dfc.engine.link import LinkedEngine, open_engine
from dfc.jobs.tasks import Task, TaskResult

PROBE = str(Path(__file__).parents[1] / "probe")
NO_PROXY = "http://127.0.0.1:9"  # nobody listens there: a proxy that is away


def task(function: str, payload: Any = None, number: int = 0) -> bytes:
    payload = {} if payload is None else payload
    return msgspec.msgpack.encode(Task("job", f"probe.{function}", number, "l", msgspec.msgpack.encode(payload), "out", "0a"))


async def facts(
    engine: LinkedEngine, function: str = "who", payload: Any = None, number: int = 0, near: str | None = None
) -> Any:
    """What a task of `tests/probe` has said."""
    answer = await engine.run(task(function, payload, number), near)
    return msgspec.msgpack.decode(msgspec.msgpack.decode(answer, type=TaskResult).data)


def group(pid: int) -> set[int]:
    """The processes of an engine: it leads a process group."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(stat[2]) == pid and stat[0] != "Z":
                found.add(int(entry.name))
    return found


def listening(pids: set[int]) -> set[str]:
    """Addresses on which these processes listen, in hexadecimal as the kernel shows them."""
    inodes: set[str] = set()
    for pid in pids:
        inodes |= {name[8:-1] for name in open_files(pid) if name.startswith("socket:[")}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(fields[1].partition(":")[0])
    return found


@pytest.fixture(autouse=True)
def probe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", PROBE)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[LinkedEngine]:
    """A local one of two workers."""
    opened = open_engine(Settings(jobs_workers=2), str(tmp_path / "node"), NO_PROXY)
    assert isinstance(opened, LinkedEngine)
    await opened.start()
    yield opened
    pid = opened.pid
    await opened.close()
    if pid is not None:
        wait_for(lambda: not group(pid), "the end of all processes of the engine")
    scratch = tmp_path / "node" / "engine"
    assert not scratch.exists() or [path.name for path in scratch.iterdir()] == ["engine.log"]


async def test_nothing_runs_before_the_first_task(engine):
    assert engine.pid is None
    assert engine.slots == 2


async def test_five_hundred_small_tasks_on_two_quiet_workers(engine, tmp_path, capfd):
    found = await asyncio.gather(*(facts(engine, number=number) for number in range(500)))
    assert [said["number"] for said in found] == list(range(500))
    assert len({said["pid"] for said in found}) == 2
    assert engine.pid not in {said["pid"] for said in found}
    assert {said["nice"] for said in found} == {10}
    assert all(said["temporary"].startswith(str(tmp_path / "node" / "engine" / "run-")) for said in found)
    assert all(said["scratch"].startswith(said["temporary"]) for said in found)
    assert engine.pid is not None
    assert listening(group(engine.pid)) <= {"0100007F"}, "on 127.0.0.1 and nowhere else"
    assert not (tmp_path / "home").exists()
    assert not (Path.cwd() / "dask-worker-space").exists()
    assert not (Path.cwd() / "dask-scratch-space").exists()
    assert capfd.readouterr() == ("", "")


async def test_starts_are_quick(engine):
    begun = time.monotonic()
    await facts(engine)
    first_s = time.monotonic() - begun
    begun = time.monotonic()
    await facts(engine)
    later_s = time.monotonic() - begun
    print(f"first {first_s:.2f} s, later {later_s:.3f} s")
    # 3 s and 0.3 s on a machine of its own; tests share theirs.
    assert first_s < 60
    assert later_s < 10


async def test_errors_come_back_as_they_were(engine):
    for name, code, retryable in (
        ("input_changed", "input_changed", False),
        ("unavailable", "unavailable", True),
        ("os", "io_error", True),
        ("tar", "bad_archive", False),
        ("bug", "internal_error", False),
    ):
        with pytest.raises(TaskFailed) as caught:
            await engine.run(task("fail", name), None)
        assert (caught.value.code, caught.value.retryable) == (code, retryable)
    for broken in (b"", b"nonsense", task("no such function")):
        with pytest.raises(TaskFailed):
            await engine.run(broken, None)


async def test_what_a_task_prints_disturbs_nobody(engine):
    assert (await facts(engine, "chatter"))["pid"] > 0
    assert (await facts(engine))["pid"] > 0


async def test_a_task_that_kills_its_worker_is_lost_and_its_neighbours_are_not(engine, tmp_path):
    others = [asyncio.create_task(facts(engine, payload={"sleep_s": 0.05}, number=number)) for number in range(30)]
    for _ in range(3):
        with pytest.raises(EngineLost, match="died"):
            await engine.run(task("die"), None)
    assert [said["number"] for said in await asyncio.gather(*others)] == list(range(30))
    once = str(tmp_path / "once")
    with pytest.raises(EngineLost):
        await engine.run(task("die", {"once": once}), None)
    assert (await facts(engine, "die", {"once": once}))["pid"] > 0


async def test_a_killed_worker_is_replaced(engine):
    before = {said["pid"] for said in await asyncio.gather(*(facts(engine, payload={"sleep_s": 0.3}) for _ in range(2)))}
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    for _ in range(20):
        try:
            after = {said["pid"] for said in await asyncio.gather(*(facts(engine, payload={"sleep_s": 0.3}) for _ in range(2)))}
            break
        except EngineLost:
            continue  # given to a worker whose death was not known yet
    assert before.isdisjoint(after)


async def test_a_cancelled_task_is_taken_back(engine, tmp_path):
    busy = [asyncio.create_task(facts(engine, payload={"sleep_s": 1.0})) for _ in range(2)]
    waiting = [asyncio.create_task(engine.run(task("mark", str(tmp_path / f"m{n}")), None)) for n in range(8)]
    await asyncio.sleep(0)
    for each in waiting:
        each.cancel()
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in done)
    await asyncio.gather(*busy)
    assert (await facts(engine, number=7))["number"] == 7
    assert not list(tmp_path.glob("m*")), "none of them has run"


async def test_the_engine_is_killed_and_begins_anew(engine):
    running = asyncio.create_task(engine.run(task("who", {"sleep_s": 60.0}), None))
    await facts(engine)
    first = engine.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    with pytest.raises(EngineLost):
        await running
    wait_for(lambda: not group(first), "the end of the workers of a dead engine")
    assert (await facts(engine, number=3))["number"] == 3
    assert engine.pid not in (None, first)


async def test_an_idle_engine_ends_and_comes_back(tmp_path):
    engine = open_engine(Settings(jobs_workers=1, jobs_engine_idle_s=0.2), str(tmp_path / "node"), NO_PROXY)
    assert isinstance(engine, LinkedEngine)
    try:
        await facts(engine)
        first = engine.pid
        assert first is not None
        await asyncio.sleep(0.3)

        async def is_gone() -> bool:
            return not group(first)

        await until(is_gone)  # and not `wait_for`: the loop has to close it
        assert engine.pid is None
        assert (await facts(engine, number=1))["number"] == 1
    finally:
        await engine.close()
    with pytest.raises(EngineLost):
        await facts(engine)


OWNER = """
import asyncio, sys
from dfc.config import Settings
from dfc.engine.link import open_engine
async def main():
    engine = open_engine(Settings(jobs_workers=2), sys.argv[1], "http://127.0.0.1:9")
    first = asyncio.create_task(engine.run(bytes.fromhex(sys.argv[2]), None))
    await engine.run(bytes.fromhex(sys.argv[3]), None)
    print(engine.pid, flush=True)
    await first
asyncio.run(main())
"""


def test_no_process_outlives_a_killed_node(tmp_path):
    arguments = [sys.executable, "-c", OWNER, str(tmp_path), task("who", {"sleep_s": 600.0}).hex(), task("who").hex()]
    owner = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert len(group(pid)) >= 4
    owner.kill()
    owner.wait()
    owner.stdout.close()
    wait_for(lambda: not group(pid), "the end of all processes of a dead node's engine")
    wait_for(lambda: not list((tmp_path / "engine").glob("run-*")), "the removal of the scratch directory")


async def test_scratch_of_a_killed_engine_goes_with_the_next_one(engine, tmp_path):
    await facts(engine)
    scratch = tmp_path / "node" / "engine"
    (old,) = scratch.glob("run-*")
    assert engine.pid is not None
    os.killpg(engine.pid, signal.SIGKILL)
    for _ in range(20):
        try:
            await facts(engine)
            break
        except EngineLost:
            continue
    assert not old.exists()
    assert len(list(scratch.glob("run-*"))) == 1
