"""Samples in any order by batch reads, for the global shuffle and for random access.

The order is an iterator of sample numbers, counted through all shards in order. Groups of them become batch reads; `readers`
threads read ahead, each the next group, into `ahead_bytes` of memory in all.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from queue import SimpleQueue
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dfc.client import BatchItem, Client, RetryPolicy
from dfc.errors import Conflict, DfcError, NotFound, ObjectCorrupt, PreconditionFailed, StorageFailed, Unreachable
from dfc.http.retry import Retries
from dfc.inputs.base import Counts, InputError, Sample, SampleBroken, ShardChanged, ShardUnreadable, telling_of_others
from dfc.limits import (
    BATCH_ITEMS_MAX,
    INPUT_BATCH_AHEAD_BYTES,
    INPUT_BATCH_BYTES,
    INPUT_BATCH_FIRST_ITEMS,
    INPUT_BATCH_ITEMS,
    INPUT_BATCH_PORTION_BYTES,
)
from dfc.reach.reading import BatchReader
from dfc.tar.header import TarError
from dfc.tar.sampleparser import parse_item
from dfc.wire import ITEM_HEADER

# --- Fetch samples by shard and ordinal with one batch read, in portions, retrying when the connection breaks.
#
# The answer contains the length of each item, so samples are never mixed up, whatever their keys, and a broken answer is
# resumed after the last portion that arrived. Every shard is pinned to its ETag: a shard that was replaced is not read any
# more.


class BatchShard(NamedTuple):
    """A shard of a cluster: its URL (the `__source__` of its samples), bucket, name, version and number of samples."""

    url: str
    bucket: str
    name: str
    etag: str
    samples: int


class Arrival(NamedTuple):
    """Items that arrived: their positions in the requested list, their lengths in bytes, and the bytes."""

    places: Sequence[int]
    lengths: Sequence[int]
    data: bytearray  # may be longer than all lengths together


class BatchRead:
    """One batch read of a list of samples, each given by the number of its shard in `shards` and its ordinal there.

    `fields` are the extensions to keep (None: all); a sample without any of them has only a key. `lost` has the error of each
    shard that cannot be read (gone, replaced, broken), by its number. Shards that are in it beforehand are not requested.
    """

    def __init__(
        self,
        client: Client,
        shards: Sequence[BatchShard],
        wanted: Sequence[tuple[int, int]],
        *,
        counts: Counts,
        lost: dict[int, InputError] | None = None,
        policy: RetryPolicy | None = None,
        fields: Collection[str] | None = None,
    ) -> None:
        if len(wanted) > BATCH_ITEMS_MAX:
            raise ValueError(f"a batch read takes at most {BATCH_ITEMS_MAX} samples, not {len(wanted)}")
        self._client = client
        self._shards = shards
        self._wanted = wanted
        self._counts = counts
        self._policy = policy or RetryPolicy()
        self._fields = fields
        self.lost: dict[int, InputError] = {} if lost is None else lost

    def samples(self) -> Iterator[list[Sample | InputError]]:
        """The requested samples in order, in lists; an error takes the place of a sample that cannot be read."""
        done = 0
        for portion in self.portions():
            yield self.parse(portion, done)
            done = portion.places[-1] + 1
        if done < len(self._wanted):
            yield self.missing(done, len(self._wanted))

    def portions(self, spare: list[bytearray] | None = None) -> Iterator[Arrival]:
        """The portions that arrive, in buffers of `spare` if there are any. After use, put the buffer of a portion back there.

        Raises ShardUnreadable if the cluster is unreachable after all retries, Cancelled after `Client.abort`.
        """
        places: Sequence[int] = range(len(self._wanted))
        retries = Retries(self._policy)
        while places := self._left(places):
            try:
                reader = self._open(places)
            except DfcError as problem:
                if not self._lose(problem, places):
                    raise ShardUnreadable(f"{self._client.url}: {problem}", url=self._client.url) from problem
                continue
            done = 0
            try:
                with reader:
                    for portion in _read(reader, places, [] if spare is None else spare):
                        done += len(portion.places)
                        self._counts.add(size=sum(portion.lengths))
                        yield portion
                return
            except Unreachable as problem:
                self._client.cancellation.check()
                self._counts.add(retries=1)
                if not retries.again(problem, self._client.cancellation.wait, useful=done > 0):
                    raise ShardUnreadable(f"{self._client.url}: {problem}", url=self._client.url) from problem
            places = places[done:]

    def parse(self, portion: Arrival, done: int) -> list[Sample | InputError]:
        """The samples of a portion, with errors for the positions from `done` on that were left out before or between them."""
        found: list[Sample | InputError] = []
        view = memoryview(portion.data)
        left_out = telling_of_others(self._fields)
        at = 0
        for place, length in zip(portion.places, portion.lengths, strict=True):
            if place > done:
                found += self.missing(done, place)
            done = place + 1
            shard, number = self._wanted[place]
            url = self._shards[shard].url
            sample: Sample | None
            try:
                sample = parse_item(portion.data, view, at, at + length, url, self._fields, left_out)
            except TarError as problem:
                found.append(SampleBroken(f"{url}: sample {number} arrived broken: {problem}", url=url))
            else:
                found.append(sample)
            at += length
        return found

    def missing(self, start: int, end: int) -> list[Sample | InputError]:
        """The errors for the positions from `start` up to `end`, which belong to lost shards."""
        return [self.lost[self._wanted[place][0]] for place in range(start, end)]

    def _left(self, places: Sequence[int]) -> Sequence[int]:
        if not self.lost:
            return places
        return [place for place in places if self._wanted[place][0] not in self.lost]

    def _open(self, places: Sequence[int]) -> BatchReader:
        shards, wanted = self._shards, self._wanted
        items = []
        for place in places:
            number, ordinal = wanted[place]
            shard = shards[number]
            items.append(BatchItem(shard.bucket, shard.name, number=ordinal, if_match=shard.etag or None))
        return self._client.open_batch(items, lengths=True)

    def _lose(self, problem: DfcError, places: Sequence[int]) -> bool:
        """Note a shard as lost if the error is about one shard. Returns whether it was."""
        item = problem.headers.get(ITEM_HEADER, "")
        if not item.isdigit() or int(item) >= len(places):
            return False
        kind: type[InputError]
        if isinstance(problem, PreconditionFailed):
            kind = ShardChanged
        elif isinstance(problem, NotFound | Conflict | ObjectCorrupt | StorageFailed):
            kind = ShardUnreadable
        else:
            return False
        number = self._wanted[places[int(item)]][0]
        url = self._shards[number].url
        self.lost[number] = kind(f"{url}: {problem}", url=url)
        return True


def _read(reader: BatchReader, places: Sequence[int], spare: list[bytearray]) -> Iterator[Arrival]:
    """Read runs of whole items, of at most INPUT_BATCH_PORTION_BYTES, or single larger items."""
    lengths = reader.lengths
    ends = list(accumulate(lengths))
    first, begin = 0, 0
    while first < len(lengths):
        last = first + 1
        while last < len(lengths) and ends[last] - begin <= INPUT_BATCH_PORTION_BYTES:
            last += 1
        size = ends[last - 1] - begin
        if size > INPUT_BATCH_PORTION_BYTES:
            data = bytearray(size)
        else:
            data = spare.pop() if spare else bytearray(INPUT_BATCH_PORTION_BYTES)
        with memoryview(data) as view:
            reader.fill(view[:size])
        yield Arrival(places[first:last], lengths[first:last], data)
        first, begin = last, ends[last - 1]


# --- Fetch samples of a corpus in any order by batch reads, for the global shuffle and for random access.

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
