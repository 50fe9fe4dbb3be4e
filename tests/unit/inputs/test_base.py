"""Counts: of many threads, over forks and pickles."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading

from dfc.inputs.base import Counts


def test_counts_travel() -> None:
    counts = Counts(samples=3)
    counts.note(ValueError("no"))
    found = pickle.loads(pickle.dumps(counts))  # noqa: S301  (our own)
    assert found == counts
    assert found.as_dict()["errors"] == ["ValueError: no"]
    found.add(samples=1, size=5)
    assert (found.samples, found.size, counts.samples) == (4, 5, 3)


def test_a_child_counts_whatever_the_threads_of_its_parent_did() -> None:
    counts = Counts()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            counts.add(size=1)

    threads = [threading.Thread(target=work) for _ in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that a thread is often in the middle of it
    try:
        for thread in threads:
            thread.start()
        for _ in range(10):
            child = os.fork()
            if child == 0:
                signal.alarm(10)
                counts.add(size=1)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
