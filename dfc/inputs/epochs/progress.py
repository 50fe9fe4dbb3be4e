"""How far an epoch is: what travels in a checkpoint, and whether it may be gone on with."""

from __future__ import annotations

from collections.abc import Iterator
from operator import index
from typing import Any, Protocol

from dfc.inputs.base import Counts, ShardChanged
from dfc.order.epoch import Place

State = dict[str, Any]


class BatchSource(Protocol):
    """What gives the same batches to the same place of the same epoch. `Loader` is one; so are mixtures of loaders."""

    counts: Counts

    @property
    def signature(self) -> State:
        """All that the order follows from, as plain values: a state is good only where it is equal."""
        ...

    def length(self, ranks: int = 1) -> int:
        """Batches of each rank in an epoch. TypeError when it is not known before the end."""
        ...

    def batches(self, place: Place, epoch: int, delivered: int = 0) -> Iterator[Any]:
        """Those of one worker, but for the first `delivered` of them."""
        ...


class Progress:
    """Which epoch it is, and how many batches of it were delivered: what is saved of a loader."""

    def __init__(self, source: BatchSource) -> None:
        self._source = source
        self.epoch = 0
        self.delivered = 0
        self.iteration = 0  # changes whenever what an iteration delivers does not count any more
        self._pending = True  # `epoch` and `delivered` are where the next iteration begins

    def begin(self) -> tuple[int, int]:
        """An iteration begins: its epoch, and how many batches of it are not wanted any more."""
        if not self._pending:
            self.epoch, self.delivered = self.epoch + 1, 0
        self._pending = False
        self.iteration += 1
        return self.epoch, self.delivered

    @property
    def ahead(self) -> int:
        """How many batches the next iteration leaves out, because they were delivered before a state was saved."""
        return self.delivered if self._pending else 0

    def add(self) -> None:
        """One more batch was delivered."""
        self.delivered += 1

    def end(self) -> None:
        """The epoch has ended."""
        self.reset(self.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch; what was loaded of it stays."""
        if not (self._pending and epoch == self.epoch):
            self.reset(epoch)

    def reset(self, epoch: int, delivered: int = 0) -> None:
        """The next iteration begins behind so many batches of this epoch."""
        if epoch < 0 or delivered < 0:
            raise ValueError(f"there is no epoch {epoch} with {delivered} batches")
        self.epoch, self.delivered, self._pending = index(epoch), delivered, True
        self.iteration += 1

    def state_dict(self, ranks: int, workers: int) -> State:
        """Plain values. All batches of an epoch delivered is the beginning of the next one."""
        epoch, delivered = self.epoch, self.delivered
        try:
            ended = delivered and delivered >= self._source.length(ranks)
        except TypeError:
            ended = False
        if ended:
            epoch, delivered = epoch + 1, 0
        return make_state(self._source, ranks, workers, epoch, delivered)

    def load_state_dict(self, state: State, ranks: int, workers: int) -> None:
        """The next iteration goes on there."""
        check_state(self._source, state, ranks, workers)
        if "part" in state:
            raise ValueError("this is the state of a single worker, as torchdata's StatefulDataLoader keeps it")
        self.reset(state["epoch"], state["batches"])


def make_state(source: BatchSource, ranks: int, workers: int, epoch: int, delivered: int) -> State:
    """What is saved: the number of batches that each rank has delivered of an epoch, and what must be the same then."""
    return {"version": 1, "epoch": epoch, "batches": delivered, "ranks": ranks, "workers": workers, **source.signature}


def check_state(source: BatchSource, state: State, ranks: int, workers: int | None) -> None:
    """ValueError when a state is not of such a loader, ShardChanged for other shards. `workers` None: not known yet."""
    if not isinstance(state, dict) or state.get("version") != 1 or not {"epoch", "batches", "ranks", "workers"} <= state.keys():
        raise ValueError("this is no state of a loader, or one of another version of it")
    workers = state["workers"] if workers is None else workers
    if (state["ranks"], state["workers"]) != (ranks, workers):
        raise ValueError(
            f"use {state['ranks']} ranks × {state['workers']} workers again, or begin an epoch anew with set_epoch(): "
            f"the state is of {state['ranks']} ranks × {state['workers']} workers, this is {ranks} ranks × {workers} workers, "
            "and the order of samples depends on both"
        )
    for name, value in source.signature.items():
        if name == "shards" and state.get(name) != value:
            raise ShardChanged("the shards are not those of the state: some were added, removed or replaced")
        if state.get(name) != value:
            raise ValueError(f"the state is of {name}={state.get(name)!r}, this is {name}={value!r}")
