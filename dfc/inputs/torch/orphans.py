"""Workers end when the training process is gone, however it ended.

torch's workers look for it themselves, and then leave their loop. But at their exit they wait until the last batches are
written to a pipe, for ever if these are larger than the pipe: its other end is open in the workers beside them.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import wait
from threading import Thread
from typing import Final

_LOOK_S: Final = 2.0  # so often the parent is looked for; most of the time its end is told at once
_watched: set[int] = set()  # the processes that do so: this one, and before forks its ancestors


def end_with_parent() -> None:
    """In a process that multiprocessing started: end it when the process that started it is gone. Once is enough."""
    parent = multiprocessing.parent_process()
    own = os.getpid()
    if parent is None or own in _watched:
        return
    _watched.add(own)
    Thread(target=_watch, args=(parent.sentinel, os.getppid()), name="dfc-parent", daemon=True).start()


def _watch(sentinel: int, started_by: int) -> None:
    # Of forked workers, those which were forked later hold the other end of the sentinel too: they would wait for each other.
    while os.getppid() == started_by and not wait([sentinel], _LOOK_S):
        pass
    os._exit(1)
