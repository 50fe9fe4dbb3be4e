"""Fetch samples by shard and ordinal with one batch read, in portions, retrying when the connection breaks.

The answer contains the length of each item, so samples are never mixed up, whatever their keys, and a broken answer is resumed
after the last portion that arrived. Every shard is pinned to its ETag: a shard that was replaced is not read any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from dfc.client import BatchItem, Client, RetryPolicy
from dfc.errors import Conflict, DfcError, NotFound, ObjectCorrupt, PreconditionFailed, StorageFailed, Unreachable
from dfc.http.calls.retry import Retries
from dfc.inputs.base import Counts, InputError, Sample, SampleBroken, ShardChanged, ShardUnreadable, telling_of_others
from dfc.limits import BATCH_ITEMS_MAX, INPUT_BATCH_PORTION_BYTES
from dfc.reach.batch import BatchReader
from dfc.tar.header import TarError
from dfc.tar.sampleparser import parse_item
from dfc.wire import ITEM_HEADER


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
