"""PyTorch: an `IterableDataset` whose workers make whole batches and end with their trainer.

The processes of a rank share one small tensor in shared memory: the current epoch, the position in it when a state was loaded,
and a row of counters for each worker.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields as fields_of
from itertools import count, islice
from multiprocessing.connection import wait
from multiprocessing.context import get_spawning_popen
from threading import Thread
from typing import Any, Final, Unpack

import numpy as np
import torch
from torch import distributed
from torch.utils import data

from dfc.inputs.base import Counts
from dfc.inputs.epochs.corpus import Corpus
from dfc.inputs.epochs.memory import Writer
from dfc.inputs.epochs.progress import BatchSource, Progress, State, check_state, make_state
from dfc.inputs.loader import Loader, LoaderOptions, options_given, spelt_out
from dfc.limits import LOADER_WORKERS_MAX
from dfc.order import Place, batches_before, draw_seed

# --- Make workers exit when the training process is gone, however it ended.
#
# torch's workers check for this themselves and leave their loop. But then they wait at exit until the last batches are written
# to a pipe, forever if these are larger than the pipe, since the other workers hold its other end open.

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


# --- Convert NumPy arrays to tensors.


def as_tensors(value: Any) -> Any:
    """Convert arrays of numbers, also in dicts, lists and tuples, to tensors that share their memory."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc":
            return value
        return torch.from_numpy(value if value.flags.writeable else value.copy())
    if isinstance(value, Mapping):
        return {name: as_tensors(field) for name, field in value.items()}
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(as_tensors(field) for field in value)
    if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
        return [as_tensors(field) for field in value]
    return value


# --- An `IterableDataset` of shards that makes whole batches in the workers of a DataLoader.

_COUNTERS: Final = tuple(field.name for field in fields_of(Counts) if field.type == "int")
# Columns of row 0 of the shared tensor: where the next iteration begins, the number of workers of the loaded state (0: any),
# and how often this row was set.
_EPOCH, _DELIVERED, _WORKERS, _TURN = range(4)
# Columns of row 1 + w, of worker w: the iteration that it began last and its epoch, in one number so that it is read atomically
# (0: none), and the turn of row 0 at which it began; then its counters.
_BEGUN, _OF_TURN, _COUNTED = range(3)
_EPOCH_BITS: Final = 32
_EPOCH_MASK: Final = (1 << _EPOCH_BITS) - 1
_UPDATE_BATCHES: Final = 16  # share the counters after this many batches, not after every single sample


class ShardDataset(data.IterableDataset[Any]):  # type: ignore[misc]
    """Batches of samples from shards. Use it with this module's `DataLoader`, or with torch's and `batch_size=None`.

    The options are those of `dfc.inputs.loader.Loader`; another `BatchSource` can replace shards and options. `rank` and
    `ranks` default to those of `torch.distributed` if it is initialised, else to `RANK` and `WORLD_SIZE` in the environment,
    else to 0 of 1. Arrays become tensors. Each iteration is one epoch: the next one, unless `set_epoch` chooses another, also
    with persistent workers. A dataset belongs to one DataLoader at a time. `len` is the number of batches of each rank.
    """

    @spelt_out
    def __init__(
        self,
        shards: str | Sequence[str] | Corpus | BatchSource,
        batch_size: int | None = None,
        *,
        rank: int | None = None,
        ranks: int | None = None,
        **given: Unpack[LoaderOptions],
    ) -> None:
        super().__init__()
        if (rank is None) != (ranks is None):
            raise ValueError("pass both rank= and ranks=, or neither")
        self._rank = None if rank is None or ranks is None else (rank, ranks)
        if isinstance(shards, str | Sequence | Corpus):
            place = self.place
            self.source: BatchSource = Loader(shards, batch_size, rank=place.rank, ranks=place.ranks, **given)
        elif batch_size is not None or options_given(given):
            raise ValueError("a source of batches already has its options; pass them when you make it")
        else:
            self.source = shards
        self.progress = Progress(self.source)
        self.driven = False  # whether a DataLoader of this module sets where each iteration begins
        self.memory: Writer | None = None  # in a worker: where batches are made
        self._planned = {name: getattr(self.source.counts, name) for name in _COUNTERS}
        self._shared = torch.zeros((1 + LOADER_WORKERS_MAX, _COUNTED + len(_COUNTERS)), dtype=torch.int64).share_memory_()
        self._loaded: State | None = None  # the state of this worker alone
        self._running: tuple[int, int, int] | None = None  # epoch, part, and batches of it delivered in this process
        self._iterations = 0  # that began in this process

    def __repr__(self) -> str:
        source = self.source
        return f"ShardDataset({source.summary(self.place.ranks) if isinstance(source, Loader) else source})"

    @property
    def place(self) -> Place:
        """This rank, and the number of ranks."""
        if self._rank is not None:
            return Place(*self._rank)
        if distributed.is_available() and distributed.is_initialized():
            return Place(distributed.get_rank(), distributed.get_world_size())
        return Place(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))

    @property
    def counts(self) -> Counts:
        """What all workers have read and skipped, up to now or to a few batches ago."""
        rows = self._shared[1:, _COUNTED:].sum(dim=0).tolist()
        totals = {name: self._planned[name] + row for name, row in zip(_COUNTERS, rows, strict=True)}
        return Counts(**totals, errors=list(self.source.counts.errors))

    @property
    def epoch(self) -> int:
        """The epoch that is running, or the next one."""
        if self.driven:
            return self.progress.epoch
        return max(self._begun(), default=int(self._shared[0, _EPOCH]))

    def __len__(self) -> int:
        return self.source.length(self.place.ranks)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. A state loaded for that epoch stays loaded."""
        if not self.driven and self._begun():
            self.progress.reset(epoch)
        else:
            self.progress.set_epoch(epoch)
        if not self.driven:  # otherwise a worker of the DataLoader that has not begun yet would read it
            self.start(self.progress.epoch, self.progress.delivered, int(self._shared[0, _WORKERS]))

    def start(self, epoch: int, delivered: int = 0, workers: int = 0) -> None:
        """Begin the next iteration after `delivered` batches of an epoch, and the one after it at the next epoch."""
        self._shared[0, :_TURN] = torch.tensor([epoch, delivered, workers])
        self._shared[0, _TURN] += 1

    def _begun(self) -> list[int]:
        """The epochs of the iterations that have begun since `start`."""
        now = int(self._shared[0, _TURN])
        return [begun & _EPOCH_MASK for begun, turn in self._rows() if begun and turn == now]

    def _rows(self) -> list[tuple[int, int]]:
        """The iteration that each worker began last, and its turn."""
        turns = self._shared[1:, _OF_TURN].tolist()  # first: `_note` writes it last
        return list(zip(self._shared[1:, _BEGUN].tolist(), turns, strict=True))

    def _next_epoch(self, worker: int) -> int:
        """The epoch of an iteration that begins in this worker.

        All workers of an iteration get the same epoch, whichever begins first, even if other iterations, with this number of
        workers or another, have begun meanwhile.
        """
        info = data.get_worker_info()
        # torch draws one number for all workers of an iteration; persistent workers keep theirs for all iterations.
        base = int.from_bytes(os.urandom(7), "little") if info is None else info.seed - info.id
        self._iterations += 1
        key = draw_seed(base % (1 << 63), self._iterations) >> _EPOCH_BITS or 1
        now = int(self._shared[0, _TURN])
        rows = self._rows()  # read once, since others may begin meanwhile
        if rows[worker][0] >> _EPOCH_BITS == key:  # an earlier iteration had the same number: torch was seeded again
            key ^= 1 << 30
        for begun, turn in rows:
            if begun >> _EPOCH_BITS == key:
                epoch, now = begun & _EPOCH_MASK, turn
                break
        else:
            since = [begun & _EPOCH_MASK for begun, turn in rows if begun and turn == now]
            epoch = max(since) + 1 if since else int(self._shared[0, _EPOCH])
        self._note(worker, key, epoch, now)
        return epoch

    def _note(self, worker: int, key: int, epoch: int, turn: int) -> None:
        self._shared[1 + worker, _BEGUN] = key << _EPOCH_BITS | epoch
        self._shared[1 + worker, _OF_TURN] = turn

    def check_workers(self, workers: int) -> None:
        """ValueError if the loaded state is of another number of workers."""
        expected = int(self._shared[0, _WORKERS])
        if int(self._shared[0, _DELIVERED]) and expected not in (0, workers):
            raise ValueError(
                f"the state is of {expected} workers per rank, but this loader has {workers}: "
                f"use {expected} workers again, or restart an epoch with set_epoch()"
            )

    def __iter__(self) -> Iterator[Any]:
        """The batches that this process delivers: in a worker its part of the rank's batches, else all of them."""
        worker, workers = _worker()
        if data.get_worker_info() is not None:
            end_with_parent()
        own = self._shared[1 + worker]
        if self._loaded is not None:
            epoch, part, done = self._loaded["epoch"], self._loaded["part"], self._loaded["batches"]
            self._note(worker, 1, epoch, int(self._shared[0, _TURN]))
            self._loaded = None
        else:
            if self.driven:  # the DataLoader has set where the iteration begins
                epoch = int(self._shared[0, _EPOCH])
                self._note(worker, 1, epoch, int(self._shared[0, _TURN]))
            else:
                epoch = self._next_epoch(worker)
            delivered = int(self._shared[0, _DELIVERED]) if epoch == int(self._shared[0, _EPOCH]) else 0
            if delivered:
                self.check_workers(workers)
            # DataLoader takes batches from the workers in turn, starting with worker 0. Rotate the parts to resume in order.
            part = (worker + delivered) % workers
            done = batches_before(delivered, part, workers)
        rank = self.place
        self._running = (epoch, part, done)
        return self._iterate(Place(rank.rank, rank.ranks, part, workers), epoch, done, own)

    def _iterate(self, place: Place, epoch: int, done: int, own: torch.Tensor) -> Generator[Any, None, None]:
        counts = self.source.counts
        row = own.numpy()[_COUNTED:]
        base = row - [getattr(counts, name) for name in _COUNTERS]
        batches = self.source.batches(place, epoch, done)
        try:
            for number in count(1):
                # Hold no batch here while the next one is made, so that its memory can be reused.
                with nullcontext() if self.memory is None else self.memory.making():
                    made = [as_tensors(batch) for batch in islice(batches, 1)]
                if not made:
                    break
                self._running = (epoch, place.worker, done + number)
                if number % _UPDATE_BATCHES == 0:
                    row[:] = base + [getattr(counts, name) for name in _COUNTERS]
                yield made.pop()
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()
            row[:] = base + [getattr(counts, name) for name in _COUNTERS]

    def state_dict(self) -> State:
        """The current position; in a worker, that of this worker, as torchdata's StatefulDataLoader keeps it.

        RuntimeError outside of the workers if workers read the dataset: only the DataLoader knows which batches were taken.
        """
        ranks = self.place.ranks
        info = data.get_worker_info()
        if info is None and self._running is None:
            if self._begun():
                raise RuntimeError("workers read this dataset: call state_dict() of a dfc.inputs.torch.DataLoader instead")
            epoch, delivered = int(self._shared[0, _EPOCH]), int(self._shared[0, _DELIVERED])
            return make_state(self.source, ranks, int(self._shared[0, _WORKERS]) or 1, epoch, delivered)
        workers = _worker()[1]
        if self._running is None:
            epoch, part, done = int(self._shared[0, _EPOCH]), _worker()[0], 0
        else:
            epoch, part, done = self._running
        state = make_state(self.source, ranks, workers, epoch, done)
        return state if info is None else {**state, "part": part}

    def load_state_dict(self, state: State) -> None:
        """Resume there. ValueError for the state of another loader or another number of ranks or workers; ShardChanged."""
        check_state(self.source, state, self.place.ranks, None if data.get_worker_info() is None else _worker()[1])
        if "part" in state:
            if data.get_worker_info() is None:
                raise ValueError(
                    "this is the state of a single worker, as torchdata's StatefulDataLoader keeps it; load it there"
                )
            self._loaded = dict(state)
            return
        self.progress.reset(state["epoch"], state["batches"])
        self._running = None
        self.start(state["epoch"], state["batches"], state["workers"])

    def __getstate__(self) -> dict[str, Any]:
        state = {**vars(self), "_running": None}
        if get_spawning_popen() is not None:  # for a worker of this rank, where `torch.distributed` is not initialised
            state["_rank"] = (self.place.rank, self.place.ranks)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not self._shared.is_shared():
            self._shared = self._shared.share_memory_()


def _worker() -> tuple[int, int]:
    info = data.get_worker_info()
    if info is None:
        return 0, 1
    if info.num_workers > LOADER_WORKERS_MAX:
        raise ValueError(f"num_workers must be at most {LOADER_WORKERS_MAX}, not {info.num_workers}")
    return info.id, info.num_workers
