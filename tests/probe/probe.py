"""Tasks that answer, sleep, fail or die. The payload is msgpack of what each says."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from distributed import get_worker

from dfc.errors import NoSpace, Unavailable
from dfc.jobs.store import InputChanged
from dfc.jobs.tasks import Task, TaskResult
from dfc.tar.header import TarError

ERRORS = {
    "input_changed": InputChanged("changed"),
    "no_space": NoSpace("full"),
    "unavailable": Unavailable("away"),
    "os": ConnectionResetError("reset"),
    "tar": TarError("broken", 512),
    "bug": ZeroDivisionError("oh"),
}


def _result(**facts: Any) -> TaskResult:
    return TaskResult(data=msgspec.msgpack.encode(facts))


def who(task: Task, store: Any) -> TaskResult:
    """Which process this is, where it may write, how it is ranked, after `sleep_s`."""
    time.sleep(task.decode(dict[str, float]).get("sleep_s", 0.0))
    with store.scratch() as scratch:
        return _result(
            number=task.number,
            pid=os.getpid(),
            scratch=scratch,
            temporary=tempfile.gettempdir(),
            nice=os.getpriority(os.PRIO_PROCESS, 0),
            worker=str(get_worker().name),
        )


def die(task: Task, store: Any) -> TaskResult:
    """Kill this process, unless the file `once` exists; it is made on the way."""
    once = task.decode(dict[str, str]).get("once")
    if once is None or not Path(once).exists():
        if once is not None:
            Path(once).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return _result(pid=os.getpid())


def fail(task: Task, store: Any) -> TaskResult:
    raise ERRORS[task.decode(str)]


def mark(task: Task, store: Any) -> TaskResult:
    """Write the pid into the file `path`, then look after the job every 10 ms until it has ended, and say so in `path`.end."""
    path = Path(task.decode(str))
    path.write_text(str(os.getpid()))
    try:
        while True:
            time.sleep(0.01)
            store.check()
    finally:
        path.with_suffix(".end").touch()


def chatter(task: Task, store: Any) -> TaskResult:
    """Say something where the engine talks to its node."""
    print("hello" * 100, flush=True)
    os.write(1, b"\xff\xff\xff\xff")
    return _result(pid=os.getpid())


FUNCTIONS = {"who": who, "die": die, "fail": fail, "mark": mark, "chatter": chatter}
