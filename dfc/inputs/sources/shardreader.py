"""Read samples of many shards, or parts of shards, in order: a few threads read ahead, and the caller's thread parses.

Errors go to a handler and are counted; complete samples before an error are handed out first. Nothing is lost silently.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from dfc.http.retry import Cancelled
from dfc.inputs.base import LOG, Counts, Handler, InputError, Sample, ShardBroken, ShardRef, resolve_handler, telling_of_others
from dfc.inputs.sources.pieces import Lane, LaneSegment, Opened, ShardRange
from dfc.inputs.sources.streams import DEFAULT_OPTIONS, StreamOptions, shown
from dfc.limits import INPUT_AHEAD_BYTES, INPUT_AHEAD_SHARDS, INPUT_BUFFER_BYTES, INPUT_READERS_MAX
from dfc.tar.header import TarError
from dfc.tar.sampleparser import SampleParser

_JOIN_S = 2.0  # how long `close` waits for the threads; they end in milliseconds, except with files on dead disks


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a shard, in whole samples.

    `start` and `end` are offsets in the uncompressed archive, each of the first header of a sample; reading stops at `end`
    (None: at the end of the archive). The first `skip` samples are skipped, then `count` are handed out (None: all). `etag` is
    the expected version. `indexed` means that the headers were checked when the shard was stored (the server may also say so).
    """

    ref: ShardRef
    start: int = 0
    skip: int = 0
    count: int | None = None
    etag: str | None = None
    indexed: bool = False
    end: int | None = None


class Portion(list[Sample]):
    """Some samples of one segment, in order.

    `number` is the number of the segment, from 0. To read the samples again, start at offset `at` in the archive and skip
    `skipped` samples. `etag` is the version of the shard, empty if its server sends none.
    """

    __slots__ = ("at", "etag", "number", "segment", "skipped")

    segment: Segment
    number: int
    at: int
    skipped: int
    etag: str


class SegmentReader:
    """Reads segments in order. `segments` may be endless, since it is consumed lazily.

    `readers` threads read ahead, one segment each, at most `ahead_bytes` in all (and at least two buffers of 2 MiB each).
    `handler` decides about a shard that cannot be read to its end: continue with the next one, stop quietly, or raise. `counts`
    gets `shards`, `shards_skipped`, `samples_skipped` (truncated ones), `keys_repeated`, `shards_unended`, `size` and
    `retries`; the caller counts `samples`. With `fields`, other extensions are not copied.
    """

    def __init__(
        self,
        segments: Iterable[Segment],
        *,
        options: StreamOptions = DEFAULT_OPTIONS,
        counts: Counts | None = None,
        handler: Handler = "raise",
        ahead_bytes: int = INPUT_AHEAD_BYTES,
        readers: int = 2,
        fields: Collection[str] | None = None,
    ) -> None:
        if not 1 <= readers <= INPUT_READERS_MAX:
            raise ValueError(f"readers must be 1 to {INPUT_READERS_MAX}, not {readers}")
        self.counts = Counts() if counts is None else counts
        self._segments = enumerate(segments)
        self._handler = resolve_handler(handler)
        self._fields = fields
        slots = max(2, ahead_bytes // readers // INPUT_BUFFER_BYTES)
        self._lanes = [Lane(options, self.counts, slots) for _ in range(readers)]
        self._planned: deque[tuple[int, Segment]] = deque()
        self._closed = False
        self.number = 0  # of the segment being read
        # Also closes an abandoned reader, and at interpreter exit.
        self._finalizer = weakref.finalize(self, _close_all, self._lanes)

    def portions(self) -> Iterator[Portion]:
        """The undecoded samples in lists, which are never empty and never hold samples of two segments.

        Raises what the handler raises; by default ShardUnreadable, ShardBroken, ShardChanged.
        """
        try:
            self._plan()
            while self._planned and not self._closed:
                number, segment = self._planned.popleft()
                self.number = number
                try:
                    yield from self._read(number, segment)
                except Cancelled:
                    if self._closed:
                        return
                    raise
                except InputError as problem:
                    self.counts.add(shards_skipped=1)
                    self.counts.note(problem)
                    if not self._handler(problem):
                        return
                self._plan()
        finally:
            self.close()

    def close(self) -> None:
        """End the threads and `portions`, at any time and from any thread."""
        self._closed = True
        self._finalizer()
        for lane in self._lanes:
            lane.join(_JOIN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _plan(self) -> None:
        """Give the lanes segments to read ahead."""
        while len(self._planned) < len(self._lanes) * INPUT_AHEAD_SHARDS:
            entry = next(self._segments, None)
            if entry is None:
                return
            number, segment = entry
            self._planned.append(entry)
            self._lane(number).add(LaneSegment(number, ShardRange(segment.ref, segment.start, segment.end, segment.etag)))

    def _lane(self, number: int) -> Lane:
        return self._lanes[number % len(self._lanes)]

    def _read(self, number: int, segment: Segment) -> Iterator[Portion]:
        lane = self._lane(number)
        if segment.count == 0:
            lane.abandon(number)
            return
        parser: SampleParser | None = None
        whole = False
        try:
            opened = lane.take(number)
            if not isinstance(opened, Opened):
                assert isinstance(opened, Exception)
                raise opened
            indexed = segment.indexed or opened.indexed
            others = telling_of_others(self._fields)
            parser = SampleParser(opened.url, start=segment.start, indexed=indexed, fields=self._fields, leave_out=others)
            cutter = _Cutter(number, segment, opened.etag)
            # If the last sample of a shard is wanted, read to the last byte, where its checksum is compared.
            while not cutter.done or (parser.ended and not cutter.surplus):
                at = parser.sample_at
                problem: Exception | None = None
                try:
                    more = self._feed(lane, number, parser, segment)
                except TarError as error:
                    more, problem = False, ShardBroken(f"{shown(segment.ref.url)}: {error}", url=segment.ref.url)
                    problem.__cause__ = error
                except Exception as error:
                    more, problem = False, error
                if parser.samples and (portion := cutter.cut(parser, at)):
                    yield portion
                if problem is not None and not (cutter.done and cutter.surplus):
                    raise problem
                if not more:
                    break
            cutter.check()
            whole = True
            self.counts.add(shards=1)
        finally:
            lane.abandon(number)
            if parser is not None:
                cut_off = not whole and parser.has_open_sample()
                self.counts.add(keys_repeated=parser.keys_repeated, shards_unended=parser.unended, samples_skipped=cut_off)

    def _feed(self, lane: Lane, number: int, parser: SampleParser, segment: Segment) -> bool:
        """Feed the next piece to the parser; False if there is none."""
        item = lane.take(number)
        if item is None:
            parser.finish(whole=segment.end is None)
            for text, offset in parser.oddities:
                LOG.warning("%s: %s, at offset %d", shown(segment.ref.url), text, offset)
            return False
        if isinstance(item, Exception):
            raise item
        assert not isinstance(item, Opened)
        try:
            for data, size in item.parts:
                parser.feed(data, 0, size)
        finally:
            lane.give_back(item)
        return True


class _Cutter:
    """Takes the wanted samples of a segment from a parser."""

    def __init__(self, number: int, segment: Segment, etag: str) -> None:
        self.done = False
        self.surplus = False  # whether there are samples after the last wanted one
        self._number = number
        self._segment = segment
        self._etag = etag
        self._skip = segment.skip
        self._given = 0

    def cut(self, parser: SampleParser, at: int) -> Portion | None:
        """The wanted ones of the parser's samples, the first of which begins at offset `at`."""
        found = parser.samples
        skipped = min(self._skip, len(found))
        self._skip -= skipped
        count = self._segment.count
        stop = len(found) if count is None else min(len(found), skipped + count - self._given)
        portion = Portion(found[skipped:stop] if skipped or stop < len(found) else found)
        self.surplus = self.surplus or stop < len(found)
        self._given += len(portion)
        self.done = self._given == count
        parser.samples.clear()
        if not portion:
            return None
        portion.number, portion.segment, portion.etag = self._number, self._segment, self._etag
        portion.at, portion.skipped = at, skipped
        return portion

    def check(self) -> None:
        """Raise ShardBroken if there were fewer samples than expected."""
        count = self._segment.count
        if not self.done and (self._skip or (count is not None and self._given < count)):
            url = self._segment.ref.url
            found = self._segment.skip - self._skip + self._given
            expected = self._segment.skip + (count or 0)
            raise ShardBroken(f"{shown(url)} has only {found} samples, but {expected} were expected", url=url)


def _close_all(lanes: list[Lane]) -> None:
    for lane in lanes:
        lane.close()
