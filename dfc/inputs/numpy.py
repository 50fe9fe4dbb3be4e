"""Batches of NumPy arrays for no framework at all, or for one that takes arrays (JAX): a `Loader` whose threads decode ahead.

    from dfc.inputs.numpy import Loader

    for batch in Loader("http://nvdata/imagenet-@000147.tar", 256, decode="rgb8", fields=["jpg", "cls"], threads=8): …

Decoders of pictures and decompressors let other threads run meanwhile, so threads are enough for them; Python code
(`transform`) takes turns, and wants processes: `dfc.inputs.torch`.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from typing import Any, Final, TypeVar

from dfc.http.calls.retry import Cancelled
from dfc.inputs import loader
from dfc.inputs.base import Handler, Sample
from dfc.inputs.decoding import Spec
from dfc.inputs.epochs.corpus import Corpus
from dfc.inputs.loader import ERRORS_MAX, Shuffle
from dfc.inputs.sources.streams import DEFAULT_OPTIONS, StreamOptions
from dfc.limits import INPUT_AHEAD_BYTES, INPUT_THREADS_MAX
from dfc.order.epoch import Equal, Place

A = TypeVar("A")
B = TypeVar("B")
_THREADS: Final = "dfc-decode"
_GROUP: Final = 8  # samples that a thread is given at a time: handing over costs some 30 µs, decoding a picture 1 ms
_AHEAD_BATCHES: Final = 2  # that are decoded before they are asked for
_AHEAD_SAMPLES: Final = 64  # the same without batches


class Loader(loader.Loader):
    """`dfc.inputs.loader.Loader`, with its options, that decodes and transforms in `threads` threads; 0: in the caller's own.

    The order is the same for any number of threads. Threads end with the iteration, also one that is left before its end.
    """

    def __init__(
        self,
        shards: str | Sequence[str] | Corpus,
        batch_size: int | None = None,
        *,
        threads: int | None = None,
        rank: int = 0,
        ranks: int = 1,
        shuffle: Shuffle = True,
        seed: int = 0,
        equal: Equal = "pad",
        fields: Sequence[str] | None = None,
        decode: Spec = True,
        pickle: bool = False,
        transform: Callable[[Sample], Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        handler: Handler = "raise",
        maxerrs: int = ERRORS_MAX,
        epoch_batches: int | None = None,
        streams: int | None = None,
        cache_dir: str | None = None,
        ahead_bytes: int = INPUT_AHEAD_BYTES,
        options: StreamOptions = DEFAULT_OPTIONS,
    ) -> None:
        super().__init__(
            shards,
            batch_size,
            rank=rank,
            ranks=ranks,
            shuffle=shuffle,
            seed=seed,
            equal=equal,
            fields=fields,
            decode=decode,
            pickle=pickle,
            transform=transform,
            collate=collate,
            handler=handler,
            maxerrs=maxerrs,
            epoch_batches=epoch_batches,
            streams=streams,
            cache_dir=cache_dir,
            ahead_bytes=ahead_bytes,
            options=options,
        )
        self.threads = default_threads() if threads is None else threads
        if not 0 <= self.threads <= INPUT_THREADS_MAX:
            raise ValueError(f"a loader has 0 to {INPUT_THREADS_MAX} threads, not {threads}")

    def batches(self, place: Place, epoch: int, delivered: int = 0) -> Generator[Any, None, None]:
        """See `Loader.batches`."""
        return threaded(self, self.threads, place, epoch, delivered)


def default_threads() -> int:
    """As many as this process has cores, eight at most: then reading and parsing are what is left to wait for."""
    return min(8, len(os.sched_getaffinity(0)))


def threaded(source: loader.Loader, threads: int, place: Place, epoch: int, delivered: int = 0) -> Generator[Any, None, None]:
    """The batches of a loader, or of a mixture, decoded in threads."""
    policy = source.policy()
    ahead = _AHEAD_SAMPLES if source.batch_size is None else _AHEAD_BATCHES * source.batch_size
    with closing(source.slots(place, epoch, delivered, policy)) as slots:
        if threads == 0 or source.processing.nothing:
            yield from source.assemble(slots if source.processing.nothing else map(source.processing, slots), policy)
            return
        with closing(map_in_threads(source.processing, slots, threads, ahead)) as items:
            yield from source.assemble(items, policy)


def map_in_threads(function: Callable[[A], B], values: Iterable[A], threads: int, ahead: int) -> Generator[B, None, None]:
    """`map` in order, with `ahead` values at least in work before they are asked for."""
    iterator = iter(values)
    running: deque[Future[list[B]]] = deque()
    groups = max(threads + 1, -(-ahead // _GROUP))
    pool = ThreadPoolExecutor(threads, thread_name_prefix=_THREADS)

    def fill() -> None:
        while len(running) < groups and (group := list(islice(iterator, _GROUP))):
            try:
                running.append(pool.submit(_apply, function, group))
            except RuntimeError as problem:
                # When the program ends, pools take nothing any more before anybody else is told. Anything else, such as that
                # no thread can be started, is an error: who took it for the end would lose samples without a word.
                if not str(problem).startswith("cannot schedule new futures after"):
                    raise
                raise ProgramEnds("the program ends, and with it the threads that decode") from problem

    try:
        fill()
        while running:
            found = running.popleft().result()
            fill()
            yield from found
    finally:
        # What runs is waited for: a thread that outlives its loader would use memory and cores of what comes next. But not in
        # one of them, where the garbage collector may have come by.
        pool.shutdown(wait=not threading.current_thread().name.startswith(_THREADS), cancel_futures=True)


class ProgramEnds(Cancelled):
    """The interpreter is on its way out, and takes no more work."""


def _apply(function: Callable[[A], B], group: list[A]) -> list[B]:
    return [function(value) for value in group]
