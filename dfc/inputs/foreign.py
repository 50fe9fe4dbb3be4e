"""Iterators for foreign threads, such as TensorFlow's, that stop safely at interpreter exit.

A thread that asks for the GIL while the interpreter shuts down is frozen. If it belongs to a C++ library, the library later
waits for it forever when it destroys its objects. So before the interpreter exits, this module makes sure that these threads
have left Python and do not come back.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
from collections.abc import Generator, Iterator
from time import monotonic, sleep
from typing import Any, Final
from weakref import WeakSet

from dfc.http.calls.retry import Cancelled
from dfc.inputs.numpy import ProgramEnds
from dfc.inputs.shards.ahead import close_lanes

_log: Final = logging.getLogger("dfc.inputs")
_END_S: Final = 10.0  # at exit, do not wait longer than this for a transform
_QUIET_S: Final = 0.1  # a thread that waits for room outside of Python may never ask for the next element
_ENDING: Final = threading.Event()
_THREADS: Final = set[int | None]()  # that have called `__next__`; ids are reused, so there are never many
_ITERATIONS: Final = WeakSet["Iteration"]()  # that their threads have not released


class Iteration:
    """Iterate over a generator; at interpreter exit the iteration ends."""

    def __init__(self, elements: Generator[Any, None, None]) -> None:
        self._elements = elements
        _ITERATIONS.add(self)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        _THREADS.add(threading.get_ident())
        if _ENDING.is_set():
            raise StopIteration
        try:
            return next(self._elements)
        except ProgramEnds:
            raise StopIteration from None
        except Cancelled:
            if _ENDING.is_set():
                raise StopIteration from None
            raise


def _own_threads() -> set[int | None]:
    """The ids of threads started by Python, which may have reused the id of a foreign thread."""
    return {thread.ident for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)}


@atexit.register  # registered after the handler of the lanes, and so called before it
def _see_off() -> None:
    _ENDING.set()
    if not _ITERATIONS:
        return
    close_lanes()
    begun = quiet = monotonic()
    while (now := monotonic()) < begun + _END_S:
        left = len(_ITERATIONS)  # count before looking who is inside Python, since an iteration is released there, too
        inside = (_THREADS - _own_threads()) & sys._current_frames().keys()
        if inside:
            quiet = now
        elif not left or now > quiet + _QUIET_S:
            return
        sleep(0.002)  # releases the GIL for them
    _log.warning("a thread that reads samples is still running after %g s; the program may hang at exit", _END_S)
