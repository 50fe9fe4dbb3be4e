"""A `Loader` that decodes ahead in threads: batches of NumPy arrays, for no framework or one that takes arrays (JAX).

    from dfc.inputs.numpy import Loader

    for batch in Loader("http://nvdata/imagenet-@000147.tar", 256, decode="rgb8", fields=["jpg", "cls"], threads=8): …

Image decoders and decompressors release the GIL, so threads are enough for them. Python code (`transform`) runs in one thread
at a time and needs processes instead: `dfc.inputs.torch`.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from time import monotonic, sleep
from typing import Any, Final, TypeVar, Unpack
from weakref import WeakSet

from dfc.http.retry import Cancelled
from dfc.inputs import loader
from dfc.inputs.epochs.corpus import Corpus
from dfc.inputs.loader import LoaderOptions
from dfc.inputs.sources.pieces import close_lanes
from dfc.limits import INPUT_THREADS_MAX
from dfc.order import Place

A = TypeVar("A")
B = TypeVar("B")
_THREADS: Final = "dfc-decode"
_GROUP: Final = 8  # samples that a thread is given at a time: handing over costs some 30 µs, decoding a picture 1 ms
_AHEAD_BATCHES: Final = 2  # decoded ahead of the caller
_AHEAD_SAMPLES: Final = 64  # the same without batches


class Loader(loader.Loader):
    """A `dfc.inputs.loader.Loader`, with its options, that decodes and transforms in `threads` threads (0: in the caller's).

    The order is the same for any number of threads. The threads end with the iteration, even if it is abandoned.
    """

    @loader.spelt_out
    def __init__(
        self,
        shards: str | Sequence[str] | Corpus,
        batch_size: int | None = None,
        *,
        threads: int | None = None,
        rank: int = 0,
        ranks: int = 1,
        **given: Unpack[LoaderOptions],
    ) -> None:
        super().__init__(shards, batch_size, rank=rank, ranks=ranks, **given)
        self.threads = default_threads() if threads is None else threads
        if not 0 <= self.threads <= INPUT_THREADS_MAX:
            raise ValueError(f"threads must be 0 to {INPUT_THREADS_MAX}, not {threads}")

    def batches(self, place: Place, epoch: int, delivered: int = 0) -> Generator[Any, None, None]:
        """See `Loader.batches`."""
        return threaded(self, self.threads, place, epoch, delivered)


def default_threads() -> int:
    """One thread for each core of this process, at most eight: beyond that, reading and parsing are the bottleneck."""
    return min(8, len(os.sched_getaffinity(0)))


def threaded(source: loader.Loader, threads: int, place: Place, epoch: int, delivered: int = 0) -> Generator[Any, None, None]:
    """The batches of a loader or mixture, decoded in threads."""
    policy = source.policy()
    ahead = _AHEAD_SAMPLES if source.batch_size is None else _AHEAD_BATCHES * source.batch_size
    with closing(source.slots(place, epoch, delivered, policy)) as slots:
        if threads == 0 or source.processing.nothing:
            yield from source.assemble(slots if source.processing.nothing else map(source.processing, slots), policy)
            return
        with closing(map_in_threads(source.processing, slots, threads, ahead)) as items:
            yield from source.assemble(items, policy)


def map_in_threads(function: Callable[[A], B], values: Iterable[A], threads: int, ahead: int) -> Generator[B, None, None]:
    """`map` in threads: results in order, with at least `ahead` values in progress."""
    iterator = iter(values)
    running: deque[Future[list[B]]] = deque()
    groups = max(threads + 1, -(-ahead // _GROUP))
    pool = ThreadPoolExecutor(threads, thread_name_prefix=_THREADS)

    def fill() -> None:
        while len(running) < groups and (group := list(islice(iterator, _GROUP))):
            try:
                running.append(pool.submit(lambda some: [function(value) for value in some], group))
            except RuntimeError as problem:
                # At interpreter exit, pools refuse new work before anything else learns of it. Any other RuntimeError, such as
                # "can't start new thread", is a real error: to take it for the exit would silently lose samples.
                if not str(problem).startswith("cannot schedule new futures after"):
                    raise
                raise ProgramEnds("the interpreter is shutting down, and the decoding threads with it") from problem

    try:
        fill()
        while running:
            found = running.popleft().result()
            fill()
            yield from found
    finally:
        # Wait for running threads: one that outlived its loader would take memory and cores from whatever runs next. But never
        # wait in one of these threads itself, where the garbage collector may have brought us.
        pool.shutdown(wait=not threading.current_thread().name.startswith(_THREADS), cancel_futures=True)


class ProgramEnds(Cancelled):
    """The interpreter is shutting down and accepts no more work."""


# --- Iterators for foreign threads, such as TensorFlow's, that stop safely at interpreter exit.
#
# A thread that asks for the GIL while the interpreter shuts down is frozen. If it belongs to a C++ library, the library later
# waits for it forever when it destroys its objects. So before the interpreter exits, this module makes sure that these threads
# have left Python and do not come back.

_log: Final = logging.getLogger("dfc.inputs")
_END_S: Final = 10.0  # at exit, do not wait longer than this for a transform
_QUIET_S: Final = 0.1  # a thread that waits for room outside of Python may never ask for the next element
_ENDING: Final = threading.Event()
_FOREIGN: Final = set[int | None]()  # that have called `__next__`; ids are reused, so there are never many
_ITERATIONS: Final = WeakSet["Iteration"]()  # that their threads have not released


class Iteration:
    """Iterate over a generator; at interpreter exit the iteration ends."""

    def __init__(self, elements: Generator[Any, None, None]) -> None:
        self._elements = elements
        _ITERATIONS.add(self)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        _FOREIGN.add(threading.get_ident())
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


@atexit.register  # registered after the handler of the lanes, and so called before it
def _see_off() -> None:
    _ENDING.set()
    if not _ITERATIONS:
        return
    close_lanes()
    begun = quiet = monotonic()
    while (now := monotonic()) < begun + _END_S:
        left = len(_ITERATIONS)  # count before looking who is inside Python, since an iteration is released there, too
        # Threads started by Python may have reused the id of a foreign one.
        own = {thread.ident for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)}
        if (_FOREIGN - own) & sys._current_frames().keys():
            quiet = now
        elif not left or now > quiet + _QUIET_S:
            return
        sleep(0.002)  # releases the GIL for them
    _log.warning("a thread that reads samples is still running after %g s; the program may hang at exit", _END_S)
