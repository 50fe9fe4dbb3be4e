"""A resumable version of torch's DataLoader, which reuses the memory of its workers' batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from typing import Any, Final, Literal

import torch
from torch.utils import data

from dfc.inputs.base import Counts
from dfc.inputs.epochs.memory import AVAILABLE, Reader, Writer
from dfc.inputs.epochs.progress import Progress, State
from dfc.inputs.torch.dataset import ShardDataset
from dfc.inputs.torch.memory import Sending
from dfc.limits import LOADER_BATCHES_HELD, LOADER_WORKERS_MAX

_PREFETCHED: Final = 2  # torch's default
_WORKER_END_S: Final = 1.0  # wait for a worker to exit after its connections broke


class DataLoader(data.DataLoader[Any]):  # type: ignore[misc]
    """torch's DataLoader for a `ShardDataset`, resumable at any batch.

    It takes torch's options. The last five, about batching, must not be set, since the dataset makes the batches. The state is
    that of the last batch handed out, however many the workers have prefetched. Batches of workers lie in memory that is reused
    once nothing of them is alive in this process; `reuse_memory=False` copies all of them into new memory instead, as torch
    does.
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
                raise ValueError(f"pass {name}= to the dataset instead: it makes the batches")
        if num_workers > LOADER_WORKERS_MAX:
            raise ValueError(f"num_workers must be at most {LOADER_WORKERS_MAX}, not {num_workers}")
        self._memory: Writer | None = None
        collate = collate_fn or _as_it_is
        if isinstance(collate, Sending):  # this DataLoader is a copy of another one
            collate = collate.collate
        if num_workers and reuse_memory and AVAILABLE:
            self._memory = Writer((prefetch_factor or _PREFETCHED) + LOADER_BATCHES_HELD)
            collate = Sending(collate, self._memory)
        # Options that old versions of torch lack, or that are deprecated, are passed on only if set.
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
        """The epoch that is running, or the next one."""
        return self.dataset.progress.epoch

    @property
    def counts(self) -> Counts:
        """The counts of the dataset."""
        return self.dataset.counts

    def __repr__(self) -> str:
        return f"DataLoader({self.dataset!r}, {self.num_workers} workers)"

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. A state loaded for that epoch stays loaded."""
        self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the next epoch, or the rest of the epoch whose state was loaded."""
        progress = self.dataset.progress
        if progress.ahead:
            self.dataset.check_workers(self._workers)
        epoch, delivered = progress.begin()
        self.dataset.start(epoch, delivered, self._workers)
        return self._counted(super().__iter__(), progress, progress.iteration)

    def _get_iterator(self) -> Any:
        """torch's iterator: one per iteration, or one in all with persistent workers. It owns the reader of the batches."""
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
                if progress.iteration == iteration:  # otherwise another one has begun meanwhile
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
        """Stop the workers after an error. It keeps torch's iterator in a cycle, whose collection would wait 5 s per worker."""
        shut_down = getattr(batches, "_shutdown_workers", None)
        if shut_down is not None:
            shut_down()
            self._iterator = None  # with persistent workers, the next iteration starts new ones

    def state_dict(self) -> State:
        """The current position as plain values, for a checkpoint. RuntimeError with `in_order=False`."""
        if not getattr(self, "in_order", True):
            raise RuntimeError(
                "state_dict() does not work with in_order=False, since the number of batches does not tell which were delivered"
            )
        return self.dataset.progress.state_dict(self.dataset.place.ranks, self._workers)

    def load_state_dict(self, state: State) -> None:
        """Resume after the batches that were handed out. ValueError for the state of another loader, ShardChanged."""
        self.dataset.progress.load_state_dict(state, self.dataset.place.ranks, self._workers)
        self.dataset.start(state["epoch"], state["batches"], self._workers)

    @property
    def _workers(self) -> int:
        return max(1, int(self.num_workers))


def _blame_worker(batches: Iterator[Any], problem: Exception) -> None:
    """RuntimeError, like torch's own, if a worker exited while handing over a batch."""
    workers = getattr(batches, "_workers", ())
    if workers and isinstance(problem, ConnectionError | EOFError | FileNotFoundError):
        ending = wait([worker.sentinel for worker in workers], _WORKER_END_S)
        ended = [str(worker.pid) for worker in workers if worker.sentinel in ending]
        if ended:
            raise RuntimeError(f"DataLoader worker (pid {', '.join(ended)}) exited unexpectedly") from problem


def _as_it_is(batch: Any) -> Any:
    return batch  # the dataset has already converted arrays to tensors
