"""What a worker does with a task, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from harness import wait_for

import dfc.engine.worker.run as worker
import dfc.jobs.operations
from dfc.engine.base import TaskFailed, WorkerSettings, decode_answer
from dfc.jobs.store import InputChanged
from dfc.jobs.tasks import Task, TaskResult

SETTINGS = WorkerSettings("http://127.0.0.1:9", priority="normal", memory_bytes=12_345)


def task(function: str, job: str = "job") -> bytes:
    return msgspec.msgpack.encode(Task(job, function, 0, "label", b"", "out", "0a"))


def run(function: str, settings: WorkerSettings = SETTINGS) -> TaskResult:
    answer = decode_answer(worker.run_task(task(function), settings.encode()))
    return msgspec.msgpack.decode(answer, type=TaskResult)


@pytest.fixture(autouse=True)
def functions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An operation `test` whose functions are those below."""

    def memory(_: Task, store: Any) -> TaskResult:
        return TaskResult(samples=store.memory_bytes)

    def changed(_: Task, store: Any) -> TaskResult:
        raise InputChanged("in/a.tar has changed")

    def left(_: Task, store: Any) -> TaskResult:
        left_open.append(store.create("x"))
        return TaskResult()

    left_open: list[Any] = []
    module = SimpleNamespace(FUNCTIONS={"memory": memory, "changed": changed, "left": left})
    monkeypatch.setattr(dfc.jobs.operations, "operation", lambda name: module)
    yield
    for output in left_open:
        with pytest.raises(ValueError):
            output.write(b"after the end")
    worker._close_idle()


def test_a_task_runs_with_the_settings_that_came_with_it():
    assert run("test.memory").samples == 12_345
    assert run("test.memory", msgspec.structs.replace(SETTINGS, memory_bytes=99)).samples == 99


def test_the_worker_tells_how_long_it_took():
    told = run("test.memory").run
    assert (told.worker, 0 <= told.seconds < 60) == ("", True), "there is no name outside of Dask"


def test_errors_are_answers():
    with pytest.raises(TaskFailed, match="has changed") as caught:
        run("test.changed")
    assert (caught.value.code, caught.value.retryable) == ("input_changed", False)
    with pytest.raises(TaskFailed, match="KeyError"):
        run("test.nothing")
    with pytest.raises(TaskFailed):
        decode_answer(worker.run_task(b"\xc1", SETTINGS.encode()))
    with pytest.raises(TaskFailed):
        decode_answer(worker.run_task(task("test.memory"), b"\xc1"))


def test_outputs_that_a_task_leaves_open_are_aborted():
    run("test.left")


def test_what_is_open_is_kept_for_the_next_task_and_closed_when_idle(monkeypatch):
    run("test.memory")
    first = worker._workshop
    assert first is not None
    run("test.memory")
    assert worker._workshop is first
    monkeypatch.setattr(worker, "IDLE_S", 0.05)
    run("test.memory")
    wait_for(lambda: worker._workshop is None, "it to be closed")
