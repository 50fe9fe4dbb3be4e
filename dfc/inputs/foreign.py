"""Iterators for threads that are not Python's, such as TensorFlow's, and their end with the program.

A thread that wants the interpreter while that is ending is stopped where it stands. If it belongs to a C++ library, somebody
waits for it later, when the library's objects are taken down, for ever. So before the interpreter ends it is seen to that
these threads have left it, and do not come back.
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
_END_S: Final = 10.0  # a transform that takes longer than this when the program ends is not waited for
_QUIET_S: Final = 0.1  # a thread that waits for room, outside of the interpreter, may never ask for the next element
_ENDING: Final = threading.Event()
_THREADS: Final = set[int | None]()  # that have asked; ids are used again, so there are never many
_ITERATIONS: Final = WeakSet["Iteration"]()  # that their threads have not let go of


class Iteration:
    """The elements of a generator, until the program ends: then there are no more."""

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
    """Those that Python has started: an id may be theirs by now."""
    return {thread.ident for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)}


@atexit.register  # after that of the lanes, and so called before it
def _see_off() -> None:
    _ENDING.set()
    if not _ITERATIONS:
        return
    close_lanes()
    begun = quiet = monotonic()
    while (now := monotonic()) < begun + _END_S:
        left = len(_ITERATIONS)  # before who is inside is looked at: to let go of one is done inside, too
        inside = (_THREADS - _own_threads()) & sys._current_frames().keys()
        if inside:
            quiet = now
        elif not left or now > quiet + _QUIET_S:
            return
        sleep(0.002)  # and lets them have the interpreter
    _log.warning("a thread that reads samples does not end; the program may hang")
