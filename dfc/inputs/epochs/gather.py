"""Fetch samples of a corpus in any order by batch reads, for the global shuffle and for random access.

The order is an iterator of sample numbers, counted through all shards in order. Groups of them become batch reads; `readers`
threads read ahead, each the next group, into `ahead_bytes` of memory in all.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from queue import SimpleQueue
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dfc.client import Client, RetryPolicy
from dfc.inputs.base import Counts, InputError, Sample
from dfc.inputs.epochs.batches import Arrival, BatchRead, BatchShard
from dfc.limits import (
    INPUT_BATCH_AHEAD_BYTES,
    INPUT_BATCH_BYTES,
    INPUT_BATCH_FIRST_ITEMS,
    INPUT_BATCH_ITEMS,
    INPUT_BATCH_PORTION_BYTES,
)

Integers = NDArray[np.int64]
READERS: Final = 2  # the cluster looks up the items of one read while those of the other arrive
_GROUPS_MAX: Final = 16  # groups requested at a time, however small


class Numbering:
    """Numbers of samples over many shards: 0 is the first sample of the first shard."""

    def __init__(self, samples: Iterable[int]) -> None:
        self._ends = np.cumsum(np.fromiter(samples, dtype=np.int64))
        self._starts = np.concatenate((np.zeros(1, dtype=np.int64), self._ends[:-1])) if len(self._ends) else self._ends
        self.count = int(self._ends[-1]) if len(self._ends) else 0

    def locate(self, numbers: Integers) -> list[tuple[int, int]]:
        """The shard of each number, and the ordinal there. IndexError outside of 0 to `count` - 1."""
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < self.count:
            asked = f"{int(numbers.min())} to {int(numbers.max())}"
            raise IndexError(f"sample numbers {asked} are out of range: there are {self.count} samples")
        shards = np.searchsorted(self._ends, numbers, side="right")
        return list(zip(shards.tolist(), (numbers - self._starts[shards]).tolist(), strict=True))

    def first_of(self, shard: int) -> int:
        """The number of a shard's first sample."""
        return int(self._starts[shard])


class Gather:
    """Yields undecoded samples in the order of `numbers`, in lists. Iterate once; close it, or use it as a context manager.

    `numbers` is an iterator of arrays of any length, consumed as far as is read ahead. `size` is the bytes of all shards, from
    which the size of a sample is estimated. `connect` makes the client, which this object closes. `fields` are the extensions
    to keep.
    """

    def __init__(
        self,
        shards: Sequence[BatchShard],
        numbers: Iterable[Integers],
        connect: Callable[[], Client],
        *,
        size: int = 0,
        readers: int = READERS,
        ahead_bytes: int = INPUT_BATCH_AHEAD_BYTES,
        counts: Counts | None = None,
        policy: RetryPolicy | None = None,
        fields: Collection[str] | None = None,
    ) -> None:
        self._policy = policy
        self._fields = fields
        self._shards = shards
        self._numbering = Numbering(shard.samples for shard in shards)
        self._numbers = numbers
        self._connect = connect
        self._readers = readers
        self._ahead_bytes = max(INPUT_BATCH_PORTION_BYTES, ahead_bytes)
        self._average = max(1, size // max(1, self._numbering.count))
        # Several groups fit into memory at a time, so that each one that has arrived makes room for the next.
        group_bytes = min(INPUT_BATCH_BYTES, self._ahead_bytes // (2 * readers))
        self._items = int(min(INPUT_BATCH_ITEMS, max(1, group_bytes // self._average)))
        self.counts = counts or Counts()
        self._lost: dict[int, InputError] = {}  # by shard
        self._client: Client | None = None
        self._tasks: SimpleQueue[_Group | None] = SimpleQueue()
        self._pending: deque[_Group] = deque()

    def __enter__(self) -> Gather:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads and connections at once. Idempotent."""
        client, self._client = self._client, None
        if client is None:
            return
        client.abort()
        for group in self._pending:
            group.close()
        self._pending.clear()
        for _ in range(self._readers):
            self._tasks.put(None)
        client.close()

    def __iter__(self) -> Iterator[list[Sample | InputError]]:
        """Lists of samples; an error takes the place of each sample that cannot be read.

        Raises ShardUnreadable if the cluster is unreachable after all retries.
        """
        self._client = client = self._connect()
        spare: list[bytearray] = []
        for number in range(self._readers):
            threading.Thread(target=_work, args=(self._tasks,), daemon=True, name=f"dfc-gather-{number}").start()
        groups = self._groups()
        try:
            self._fill(groups, client, spare)
            while self._pending:
                group = self._pending[0]
                done = 0
                while (portion := group.take()) is not None:
                    found = group.read.parse(portion, done)
                    done = portion.places[-1] + 1
                    if len(spare) < 2 * self._readers and len(portion.data) == INPUT_BATCH_PORTION_BYTES:
                        spare.append(portion.data)
                    yield found
                if done < group.count:
                    yield group.read.missing(done, group.count)
                self._pending.popleft()
                self._fill(groups, client, spare)
        finally:
            self.close()

    def _fill(self, groups: Iterator[Integers], client: Client, spare: list[bytearray]) -> None:
        """Request as many groups as fit completely into memory, and at least two.

        So a slow consumer does not make a node keep an answer open, of which it has a limited number.
        """
        while len(self._pending) < 2 or self._held() + self._items * self._average <= self._ahead_bytes:
            numbers = next(groups, None) if len(self._pending) < _GROUPS_MAX else None
            if numbers is None:
                return
            read = BatchRead(
                client,
                self._shards,
                self._numbering.locate(numbers),
                counts=self.counts,
                lost=self._lost,
                policy=self._policy,
                fields=self._fields,
            )
            group = _Group(read, len(numbers), self._ahead_bytes, spare)
            self._pending.append(group)
            self._tasks.put(group)

    def _held(self) -> int:
        """The estimated bytes of the requested groups."""
        return self._average * sum(group.count for group in self._pending)

    def _groups(self) -> Iterator[Integers]:
        """The numbers in groups that start small, so that the first samples come soon."""
        limit = min(INPUT_BATCH_FIRST_ITEMS, self._items)
        held: list[Integers] = []
        count = 0
        for piece in self._numbers:
            numbers = np.asarray(piece, dtype=np.int64)
            while len(numbers):
                taken = numbers[: limit - count]
                numbers = numbers[len(taken) :]
                held.append(taken)
                count += len(taken)
                if count == limit:
                    yield np.concatenate(held)
                    held, count = [], 0
                    limit = min(4 * limit, self._items)
        if held:
            yield np.concatenate(held)


class _Group:
    """One batch read and its arrived portions. A thread fills it up to `limit` bytes, and the consumer empties it."""

    def __init__(self, read: BatchRead, count: int, limit: int, spare: list[bytearray]) -> None:
        self.read = read
        self.count = count
        self._limit = limit
        self._spare = spare
        self._held = 0
        self._portions: deque[Arrival] = deque()
        self._problem: BaseException | None = None
        self._ended = self._closed = False
        self._changed = threading.Condition()

    def work(self) -> None:
        """Read to the end, or until closed. Runs in the thread; errors go to the consumer."""
        try:
            for portion in self.read.portions(self._spare):
                with self._changed:
                    while self._held and self._held + len(portion.data) > self._limit and not self._closed:
                        self._changed.wait()
                    if self._closed:
                        return
                    self._held += len(portion.data)
                    self._portions.append(portion)
                    self._changed.notify_all()
        except BaseException as problem:
            self._problem = problem
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def take(self) -> Arrival | None:
        """Wait for the next portion; None after the last. Raises the thread's error."""
        with self._changed:
            while not self._portions and not self._ended:
                self._changed.wait()
            if self._portions:
                portion = self._portions.popleft()
                self._held -= len(portion.data)
                self._changed.notify_all()
                return portion
        if self._problem is not None:
            raise self._problem
        return None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._portions.clear()
            self._changed.notify_all()


def _work(tasks: SimpleQueue[_Group | None]) -> None:
    """Run groups in a thread until None arrives."""
    while (group := tasks.get()) is not None:
        group.work()
