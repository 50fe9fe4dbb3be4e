"""The position in an epoch, its state in a checkpoint, and whether a state can be resumed."""

from __future__ import annotations

from collections.abc import Iterator
from operator import index
from typing import Any, Protocol

from dfc.inputs.base import Counts, ShardChanged
from dfc.order import Place

State = dict[str, Any]


class BatchSource(Protocol):
    """A source that gives the same batches for the same place and epoch. `Loader` is one, and so is `Mixture`."""

    counts: Counts

    @property
    def signature(self) -> State:
        """All that determines the order, as plain values. A state can be resumed only if its signature is equal."""
        ...

    def length(self, ranks: int = 1) -> int:
        """The number of batches of each rank in an epoch. TypeError if it is not known before the end."""
        ...

    def batches(self, place: Place, epoch: int, delivered: int = 0) -> Iterator[Any]:
        """The batches of one worker, without the first `delivered`."""
        ...


class Progress:
    """The position of a loader, which is saved in checkpoints: the epoch, and the number of batches delivered."""

    def __init__(self, source: BatchSource) -> None:
        self._source = source
        self.epoch = 0
        self.delivered = 0
        self.iteration = 0  # changes when the batches of the running iteration no longer count
        self._pending = True  # whether `epoch` and `delivered` are the start of the next iteration

    def begin(self) -> tuple[int, int]:
        """Begin an iteration. Returns its epoch, and the number of batches to skip."""
        if not self._pending:
            self.epoch, self.delivered = self.epoch + 1, 0
        self._pending = False
        self.iteration += 1
        return self.epoch, self.delivered

    @property
    def ahead(self) -> int:
        """The number of batches that the next iteration skips, because they were delivered before the state was saved."""
        return self.delivered if self._pending else 0

    def add(self) -> None:
        """Count one delivered batch."""
        self.delivered += 1

    def end(self) -> None:
        """End the epoch."""
        self.reset(self.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. A state loaded for that epoch stays loaded."""
        if not (self._pending and epoch == self.epoch):
            self.reset(epoch)

    def reset(self, epoch: int, delivered: int = 0) -> None:
        """Begin the next iteration after `delivered` batches of this epoch."""
        if epoch < 0 or delivered < 0:
            raise ValueError(f"the epoch and the batches delivered must not be negative, not {epoch} and {delivered}")
        self.epoch, self.delivered, self._pending = index(epoch), delivered, True
        self.iteration += 1

    def state_dict(self, ranks: int, workers: int) -> State:
        """The position as plain values. If all batches of an epoch are delivered, it is the beginning of the next one."""
        epoch, delivered = self.epoch, self.delivered
        try:
            ended = delivered and delivered >= self._source.length(ranks)
        except TypeError:
            ended = False
        if ended:
            epoch, delivered = epoch + 1, 0
        return make_state(self._source, ranks, workers, epoch, delivered)

    def load_state_dict(self, state: State, ranks: int, workers: int) -> None:
        """Resume at a state in the next iteration."""
        check_state(self._source, state, ranks, workers)
        if "part" in state:
            raise ValueError("this is the state of a single worker, as torchdata's StatefulDataLoader keeps it; load it there")
        self.reset(state["epoch"], state["batches"])


def make_state(source: BatchSource, ranks: int, workers: int, epoch: int, delivered: int) -> State:
    """Make a state: the number of batches that each rank has delivered in an epoch, and what must be equal to resume."""
    return {"version": 1, "epoch": epoch, "batches": delivered, "ranks": ranks, "workers": workers, **source.signature}


def check_state(source: BatchSource, state: State, ranks: int, workers: int | None) -> None:
    """Check that a state fits a loader: ValueError if not, ShardChanged for other shards. `workers` None: not known yet."""
    if not isinstance(state, dict) or state.get("version") != 1 or not {"epoch", "batches", "ranks", "workers"} <= state.keys():
        raise ValueError("not the state of a loader, or the state of another version of it")
    workers = state["workers"] if workers is None else workers
    if (state["ranks"], state["workers"]) != (ranks, workers):
        raise ValueError(
            f"the state is of {state['ranks']} ranks × {state['workers']} workers, but this loader has {ranks} ranks × "
            f"{workers} workers, and the order of samples depends on both: use {state['ranks']} ranks × {state['workers']} "
            "workers again, or restart an epoch with set_epoch()"
        )
    for name, value in source.signature.items():
        if name == "shards" and state.get(name) != value:
            raise ShardChanged("the shards have changed since the state was saved: some were added, removed or replaced")
        if state.get(name) != value:
            raise ValueError(f"the state has {name}={state.get(name)!r}, but this loader has {name}={value!r}")
