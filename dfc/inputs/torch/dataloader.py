"""torch's DataLoader, counting what it hands out, with the batches of its workers in memory that is used again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from typing import Any, Final, Literal

import torch
from torch.utils import data

from dfc.inputs.base import Counts
from dfc.inputs.epochs.batchmemory import AVAILABLE, Reader, Writer
from dfc.inputs.epochs.progress import Progress, State
from dfc.inputs.torch.batchmemory import Sending
from dfc.inputs.torch.dataset import ShardDataset
from dfc.limits import LOADER_BATCHES_HELD, LOADER_WORKERS_MAX

_PREFETCHED: Final = 2  # torch's default
_WORKER_END_S: Final = 1.0  # from when a worker's connections break until it is known to have ended


class DataLoader(data.DataLoader[Any]):  # type: ignore[misc]
    """torch's DataLoader for a `ShardDataset`; it counts the batches that it hands out, to be resumed at any of them.

    Options are those of torch's, where the last five, about making batches, may only be absent: that is the dataset's here. The
    state is that of the last batch that was handed out, however many the workers have made ahead. Batches of workers lie in
    memory that is used again once nothing of them is alive in this process; `reuse_memory=False` has all of them copied into
    new memory instead, as torch does it.
    """

    dataset: ShardDataset

    def __init__(
        self,
        dataset: ShardDataset,
        num_workers: int = 0,
        *,
        reuse_memory: bool = True,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: torch.Generator | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        batch_size: None = None,
        shuffle: Literal[False] | None = None,
        sampler: None = None,
        batch_sampler: None = None,
        drop_last: Literal[False] = False,
    ) -> None:
        made = {"batch_size": batch_size, "shuffle": shuffle, "sampler": sampler, "batch_sampler": batch_sampler}
        for name, value in {**made, "drop_last": drop_last}.items():
            if value:
                raise ValueError(f"{name}= is an option of the dataset here: it makes the batches")
        if num_workers > LOADER_WORKERS_MAX:
            raise ValueError(f"at most {LOADER_WORKERS_MAX} workers, not {num_workers}")
        self._memory: Writer | None = None
        collate = collate_fn or _as_it_is
        if isinstance(collate, Sending):  # of another DataLoader, of which this one is a copy
            collate = collate.collate
        if num_workers and reuse_memory and AVAILABLE:
            self._memory = Writer((prefetch_factor or _PREFETCHED) + LOADER_BATCHES_HELD)
            collate = Sending(collate, self._memory)
        # What is younger than the oldest torch that will do, or on its way out, is passed on only where it says something.
        more: dict[str, Any] = {} if in_order else {"in_order": in_order}
        if pin_memory_device:
            more["pin_memory_device"] = pin_memory_device
        super().__init__(
            dataset,
            batch_size=None,
            num_workers=num_workers,
            collate_fn=collate,
            pin_memory=pin_memory,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            **more,
        )
        dataset.driven = True

    @property
    def epoch(self) -> int:
        """The epoch that is running, or comes next."""
        return self.dataset.progress.epoch

    @property
    def counts(self) -> Counts:
        """Those of the dataset."""
        return self.dataset.counts

    def __repr__(self) -> str:
        return f"DataLoader({self.dataset!r}, {self.num_workers} workers)"

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next iteration is. What was loaded of that epoch stays loaded."""
        self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Any]:
        """The next epoch, or what is left of the one that a state was loaded of."""
        progress = self.dataset.progress
        if progress.ahead:
            self.dataset.check_workers(self._workers)
        epoch, delivered = progress.begin()
        self.dataset.start(epoch, delivered, self._workers)
        return self._counted(super().__iter__(), progress, progress.iteration)

    def _get_iterator(self) -> Any:
        """torch's, for each iteration or once with persistent workers. What workers send is received as long as it lives."""
        memory, reader = self._memory, Reader()
        if memory is not None:
            memory.token = reader.token
        self.dataset.memory = memory
        try:
            iterator = super()._get_iterator()  # starts the workers
        finally:
            self.dataset.memory = None
        iterator.batch_memory = reader
        return iterator

    def _counted(self, batches: Iterator[Any], progress: Progress, iteration: int) -> Iterator[Any]:
        try:
            for batch in batches:
                if progress.iteration == iteration:  # or else another one has begun meanwhile
                    progress.add()
                yield batch
        except Exception as problem:
            try:
                _blame_worker(batches, problem)
            finally:
                self._end_workers(batches)
            raise
        if progress.iteration == iteration:
            progress.end()

    def _end_workers(self, batches: Iterator[Any]) -> None:
        """After an error, which holds torch's iterator in a cycle: the garbage collector would wait 5 s for each worker."""
        shut_down = getattr(batches, "_shutdown_workers", None)
        if shut_down is not None:
            shut_down()
            self._iterator = None  # of persistent workers: the next iteration starts new ones

    def state_dict(self) -> State:
        """Where it is, as plain values: to be saved with a checkpoint. RuntimeError with `in_order=False`."""
        if not getattr(self, "in_order", True):
            raise RuntimeError(
                "with in_order=False batches come as they are made: no number of them tells which were delivered"
            )
        return self.dataset.progress.state_dict(self.dataset.place.ranks, self._workers)

    def load_state_dict(self, state: State) -> None:
        """Go on behind the batches that were handed out. ValueError for the state of something else, ShardChanged."""
        self.dataset.progress.load_state_dict(state, self.dataset.place.ranks, self._workers)
        self.dataset.start(state["epoch"], state["batches"], self._workers)

    @property
    def _workers(self) -> int:
        return max(1, int(self.num_workers))


def _blame_worker(batches: Iterator[Any], problem: Exception) -> None:
    """RuntimeError, as torch's own, when a worker ended just while it handed over a batch."""
    workers = getattr(batches, "_workers", ())
    if workers and isinstance(problem, ConnectionError | EOFError | FileNotFoundError):
        ending = wait([worker.sentinel for worker in workers], _WORKER_END_S)
        ended = [str(worker.pid) for worker in workers if worker.sentinel in ending]
        if ended:
            raise RuntimeError(f"DataLoader worker (pid {', '.join(ended)}) exited unexpectedly") from problem


def _as_it_is(batch: Any) -> Any:
    return batch  # the dataset has made tensors of all that can be one
