"""Threads that are not Python's have left the interpreter when it ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dfc.http.retry import Cancelled
from dfc.inputs.numpy import Iteration, ProgramEnds, map_in_threads

# Ends while a thread of the C library reads samples, which says so when there are no more.
PROGRAM = """
import ctypes, os, sys, threading, time
from dfc.inputs import gopen
from dfc.inputs.numpy import Iteration

begun = threading.Event()
samples = Iteration(gopen.sharditerator(sys.argv[1], shuffle=False))

@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def read(_):
    global samples
    os.write(1, b"begun ")
    begun.set()
    for _ in samples:
        pass
    del samples
    time.sleep(0.05)
    os.write(1, b"left")

thread = ctypes.c_ulong()
assert ctypes.CDLL(None).pthread_create(ctypes.byref(thread), None, read, None) == 0
begun.wait()
time.sleep(0.2)
"""


def test_a_thread_is_seen_off_before_the_interpreter_ends(data: Path) -> None:
    for shard in ("pipe:sleep 1000", f"pipe:cat {data}/tendata.tar; sleep 1000", f"{data}/tendata.tar"):
        ended = subprocess.run([sys.executable, "-c", PROGRAM, shard], capture_output=True, text=True, timeout=60, check=False)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "begun left", ""), shard


def test_what_a_reader_was_cancelled_for_comes_out_while_the_program_goes_on() -> None:
    def elements():  # type: ignore[no-untyped-def]
        yield 1
        raise Cancelled("the reader was closed")

    iteration = Iteration(elements())
    assert next(iteration) == 1
    with pytest.raises(Cancelled):
        next(iteration)


def test_an_iteration_ends_when_no_pool_takes_work_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    items = map_in_threads(str, range(1000), 1, 1)
    assert next(items) == "0"
    monkeypatch.setattr("concurrent.futures.thread._shutdown", True)
    with pytest.raises(ProgramEnds):
        list(items)

    with pytest.raises(ProgramEnds):
        next(map_in_threads(str, range(10), 1, 1))
    assert list(Iteration(map_in_threads(str, range(10), 1, 1))) == []


def test_threads_that_cannot_be_started_are_no_end_of_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        list(Iteration(map_in_threads(str, range(10), 1, 1)))
