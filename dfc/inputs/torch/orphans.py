"""Make workers exit when the training process is gone, however it ended.

torch's workers check for this themselves and leave their loop. But then they wait at exit until the last batches are written to
a pipe, forever if these are larger than the pipe, since the other workers hold its other end open.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import wait
from threading import Thread
from typing import Final

_LOOK_S: Final = 2.0  # interval of checks for the parent; usually its sentinel tells at once
_watched: set[int] = set()  # ids of processes that watch their parent: this one, and its ancestors before forks


def end_with_parent() -> None:
    """Make a multiprocessing child exit when its parent is gone. Calling it again does nothing."""
    parent = multiprocessing.parent_process()
    own = os.getpid()
    if parent is None or own in _watched:
        return
    _watched.add(own)
    Thread(target=_watch, args=(parent.sentinel, os.getppid()), name="dfc-parent", daemon=True).start()


def _watch(sentinel: int, started_by: int) -> None:
    # Workers that were forked later also hold the other end of the sentinel, so forked workers would wait for each other.
    while os.getppid() == started_by and not wait([sentinel], _LOOK_S):
        pass
    os._exit(1)
