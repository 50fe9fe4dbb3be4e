"""The samples of one worker in the order of an epoch, what happens if some cannot be read, and what is said of it.

If the numbers of samples are known, only what is needed is read: each lane begins and ends at the byte of a sample, found by
one small request for each end. Otherwise, whole shards are dealt out to all workers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from dfc.inputs.base import LOG, Counts, Handler, InputError, Sample, SampleBroken, ShardUnreadable, resolve_handler
from dfc.inputs.epochs.corpus import Corpus
from dfc.inputs.sources.shardreader import Segment, SegmentReader
from dfc.inputs.sources.streams import shown
from dfc.limits import INPUT_AHEAD_BYTES
from dfc.order import Place, Rules, SampleRun, WindowShuffle, WorkerPart, draw_seed, shard_order

# --- Handle shards and samples that cannot be read: the handler decides, and the number of batches stays the same.
#
# An error takes the place of a broken sample. If the handler lets the loader continue, a recent good sample is handed out again
# instead, so that all ranks still have the same number of batches.

# A sample, or the error in its place.
Slot = Sample | InputError


class Ended(Exception):
    """The handler asked to stop quietly."""


class Policy:
    """Asks the handler about errors, and counts them.

    More than `maxerrs` lost shards raise whatever the handler says. So do more than `maxerrs` broken samples, where each good
    sample offsets one.
    """

    def __init__(self, handler: Handler, maxerrs: int, counts: Counts) -> None:
        self._handler = resolve_handler(handler)
        self._maxerrs = maxerrs
        self._counts = counts
        self.strained = 0  # broken samples not yet offset by good ones
        self._known: set[str] = set()  # shards of missing samples
        self._lost: set[str] = set()  # lost shards, counted once each

    def good(self) -> None:
        """Count a good sample."""
        if self.strained:
            self.strained -= 1

    def lost(self, problem: Exception) -> bool:
        """Handle a shard that cannot be read to its end. Works like a handler, but raises Ended. Does not change `counts`."""
        self._lost.add(getattr(problem, "url", ""))
        if len(self._lost) > self._maxerrs:
            raise problem
        if not self._handler(problem):
            raise Ended
        return True

    def missing(self, problem: InputError) -> None:
        """Handle a position without a good sample. Raises what the handler raises, or Ended if it asks to stop."""
        if isinstance(problem, SampleBroken):
            self.strained += 1
            self._counts.note(problem)
            if self.strained > self._maxerrs:
                raise problem
            if not self._handler(problem):
                raise Ended
        elif problem.url not in self._known:  # otherwise it is another sample of the same shard
            self._known.add(problem.url)
            self._counts.add(shards_skipped=1)
            self._counts.note(problem)
            self.lost(problem)
        self._counts.add(samples_skipped=1)


def repaired(items: Iterable[Any], policy: Policy, counts: Counts) -> Iterator[Any]:
    """Replace errors by good items. ShardUnreadable if there is not a single good one."""
    last: Any = None
    broken = 0  # broken items at the beginning
    problem: InputError | None = None
    for item in items:
        if isinstance(item, InputError):
            problem = item
            policy.missing(item)
            if last is None:
                broken += 1
            else:
                counts.add(samples_replaced=1)
                yield _copy(last)
            continue
        last = item
        if policy.strained or broken:
            policy.good()
            for _ in range(broken):
                counts.add(samples_replaced=1)
                yield _copy(item)
            broken = 0
        yield item
    if broken and problem is not None:
        raise ShardUnreadable(f"not a single sample can be read: {problem}", url=problem.url) from problem


def _copy(item: Any) -> Any:
    return dict(item) if isinstance(item, dict) else item


# --- Messages of a loader about itself: a one-line summary, the padding warning, and a missing `epoch_batches`.

_SPEC_CHARS_SHOWN: Final = 100
_PADDING_SHARE: Final = 10  # warn if more than one sample in this many is repeated
_warned: set[tuple[int, int, int]] = set()  # warned once per process


def contents(spec: str, corpus: Corpus) -> str:
    """`spec: N shards, n samples`; the samples only if known."""
    return f"{spec}: {len(corpus)} shards" + (f", {corpus.samples} samples" if corpus.indexed else "")


def spec_shown(spec: object) -> str:
    """A spec, or the shards of a corpus, shortened and without secrets."""
    if isinstance(spec, Corpus):
        spec = [shard.ref.url for shard in spec.shards[:2]]
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        return f"[{', '.join(map(spec_shown, spec[:1]))}{', …' if len(spec) > 1 else ''}]"
    text = shown(str(spec))
    return text if len(text) <= _SPEC_CHARS_SHOWN else text[:_SPEC_CHARS_SHOWN] + "…"


def warn_of_padding(samples: int, repeated: int, batch: int, ranks: int) -> None:
    """Warn if a large part of an epoch consists of repeated samples that fill batches."""
    what = (samples, batch, ranks)
    if repeated * _PADDING_SHARE <= samples or what in _warned:
        return
    _warned.add(what)
    advice = ["a smaller batch_size"] if batch > 1 else []
    advice += ["fewer ranks"] if ranks > 1 else []
    advice += ['equal="drop", which leaves out the rest'] if samples >= batch * ranks else []
    LOG.warning(
        "%d samples are repeated to fill an epoch of %d samples up to full batches of %d for each of %d ranks; use %s",
        *(repeated, samples, batch, ranks, " or ".join(advice)),
    )


def needs_epoch_batches(corpus: Corpus, place: Place) -> str:
    """The error text for several readers of shards whose number of samples is unknown."""
    url = next(shard.ref.url for shard in corpus.shards if shard.samples is None)
    return (
        f"{place.ranks} ranks × {place.workers} workers cannot share shards without an index ({url}) evenly: "
        "pass epoch_batches=, or store the shards in a DFC cluster"
    )


# --- The undecoded samples of one worker, in the order of an epoch (`order`), starting at any batch.

_READERS: Final = 2  # threads of a lane: one opens the next shard while the other still reads
_EMPTY_ROUNDS_MAX: Final = 100  # rounds without a sample for a worker before an error: its shards may be empty in some


@dataclass(frozen=True)
class Reading:
    """Options of reading: `fields` are the wanted extensions (None: all), `ahead_bytes` the read-ahead of all lanes."""

    fields: frozenset[str] | None = None
    ahead_bytes: int = INPUT_AHEAD_BYTES


def part_slots(corpus: Corpus, part: WorkerPart, start: int, reading: Reading, counts: Counts) -> Iterator[Slot]:
    """The samples of a part in order of delivery, from the `start`-th on; an error in place of each that cannot be read."""
    if part.epoch.rules.scattered:
        yield from _scattered(corpus, part, start, reading, counts)
        return
    firsts, gone = part.still_needed(start)
    repeated = part.repeated()
    waiting: dict[int, Slot] = {}
    count = part.lanes
    with ExitStack() as stack:
        lanes = []
        for lane, first in enumerate(firsts):
            lo, hi = part.lane(lane)
            slots = _lane_slots(corpus, part.epoch.runs(min(lo + first, hi), hi), reading, count, counts)
            lanes.append(stack.enter_context(closing(slots)))
        following = [first * count + lane for lane, first in enumerate(firsts)]
        for chunk in part.order(start):
            for i in chunk.tolist():
                while i not in waiting:
                    lane = i % count
                    found = next(lanes[lane])
                    after = following[lane] + len(found) * count
                    fresh = range(following[lane], after, count)
                    waiting.update(zip(fresh, found, strict=True))
                    following[lane] = after
                    for other in gone.intersection(fresh) if gone else ():
                        gone.remove(other)
                        del waiting[other]
                if repeated is not None and i // count >= repeated[i % count]:
                    counts.add(samples_padded=1)
                yield waiting.pop(i)


class _LaneCounts(Counts):
    """Counts for a reader whose lost samples and shards are counted later, when their positions are reached."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self._total = counts

    def add(self, **amounts: int) -> None:
        self._total.add(**{name: amount for name, amount in amounts.items() if not name.endswith("_skipped")})

    def note(self, problem: BaseException) -> None:
        pass


def _lane_slots(
    corpus: Corpus, runs: Iterable[SampleRun], reading: Reading, lanes: int, counts: Counts
) -> Generator[list[Sample] | list[InputError], None, None]:
    """The samples of these runs, in exactly their number: errors take the places of those that cannot be read."""
    lengths: list[int] = []
    problems: dict[int, InputError] = {}  # of segments with too few samples, or found to be damaged at their end

    def segments() -> Iterator[Segment]:
        for run in runs:
            lengths.append(run.length)
            yield _segment(corpus, run)

    def keep(problem: Exception) -> bool:
        assert isinstance(problem, InputError)
        problems[reader.number] = problem
        return True

    number = given = 0
    # Hold back the last sample of a segment until its end, where the checksum of a whole shard is compared.
    last: list[Sample] = []

    def ended(stop: int) -> Iterator[list[Sample] | list[InputError]]:
        for segment in range(number, stop):
            problem = problems.pop(segment, None)
            if problem is not None:
                yield [problem] * (lengths[segment] - (given if segment == number else 0))
            else:
                yield last

    with SegmentReader(
        segments(),
        options=corpus.options,
        counts=_LaneCounts(counts),
        handler=keep,
        ahead_bytes=reading.ahead_bytes // lanes,
        readers=_READERS,
        fields=reading.fields,
    ) as reader:
        for portion in reader.portions():
            if number < portion.number:
                yield from ended(portion.number)
                number, given = portion.number, 0
            if given + len(portion) == lengths[number]:
                last = [portion.pop()]
            given += len(portion)
            if portion:
                yield portion
        yield from ended(len(lengths))


def _segment(corpus: Corpus, run: SampleRun) -> Segment:
    """The segment of a run in its shard, by byte offsets, so that nothing else is read."""
    shard = corpus.shards[run.shard]
    etag, indexed = shard.etag or None, bool(shard.name)
    if run.start == 0 and run.length == shard.samples:
        return Segment(shard.ref, count=run.length, etag=etag, indexed=indexed)
    stop = run.start + run.length
    try:
        offsets = corpus.sample_offsets(run.shard)
    except InputError:
        # Reading the shard will raise the error at the right position.
        return Segment(shard.ref, skip=run.start, count=run.length, etag=etag, indexed=indexed)
    if shard.size is not None and int(offsets[-1]) > shard.size:  # compressed, despite its name
        return Segment(shard.ref, skip=run.start, count=run.length, etag=etag, indexed=indexed)
    end = int(offsets[stop]) if stop + 1 < len(offsets) else None
    return Segment(shard.ref, int(offsets[run.start]), 0, run.length, etag, indexed, end)


def _scattered(corpus: Corpus, part: WorkerPart, start: int, reading: Reading, counts: Counts) -> Iterator[Slot]:
    """The samples of a global shuffle, by batch reads."""
    from dfc.inputs.epochs.gather import Gather

    repeated = part.repeated()
    place = start
    gather = Gather(
        corpus.batch_shards(),
        part.numbers(start),
        corpus.connect,
        size=corpus.size,
        ahead_bytes=reading.ahead_bytes,
        counts=counts,
        policy=corpus.options.policy,
        fields=reading.fields,
    )
    with gather:
        for found in gather:
            for slot in found:
                if repeated is not None and place >= repeated[0]:
                    counts.add(samples_padded=1)
                place += 1
                yield slot


def dealt_slots(
    corpus: Corpus, rules: Rules, place: Place, epoch: int, reading: Reading, policy: Policy, counts: Counts
) -> Generator[Sample, None, None]:
    """The samples of one worker if the numbers of samples are unknown: whole shards, dealt out to the workers of all ranks.

    If the rules set the number of batches of an epoch, the shards are repeated. With fewer shards than workers, the workers
    that share a shard take its samples in turn.
    """
    round_number = empty = 0
    while True:
        seed = draw_seed(rules.seed, epoch, place.rank, place.ranks, place.worker, place.workers, round_number)
        order = shard_order(len(corpus), rules, epoch, round_number).tolist()
        # A worker without samples in the previous round gets another shard in this one, even if the order is always the same.
        order = order[empty % len(order) :] + order[: empty % len(order)]
        found = 0
        # No sample moves into another round, so all samples come before any is repeated.
        with closing(_dealt(corpus, order, place, reading, policy, counts)) as samples:
            for sample in _shuffled(samples, WindowShuffle(seed, rules.window, None)):
                found += 1
                yield sample
        if rules.batches is None:
            return
        empty = 0 if found else empty + 1
        if empty == _EMPTY_ROUNDS_MAX:
            url = corpus.shards[order[0]].ref.url
            raise ShardUnreadable(
                f"no samples found in {_EMPTY_ROUNDS_MAX} rounds over the shards, for example in {url}", url=url
            )
        round_number += 1


def _shuffled(samples: Iterator[list[Sample]], shuffle: WindowShuffle) -> Iterator[Sample]:
    waiting: dict[int, Sample] = {}
    read = given = 0
    ended = False
    for chunk in shuffle.order():
        for i in chunk.tolist():
            while i >= read and not ended:
                some = next(samples, None)
                if some is None:
                    ended = True
                else:
                    waiting.update(enumerate(some, read))
                    read += len(some)
            if i < read:
                given += 1
                yield waiting.pop(i)
            if ended and given == read:
                return


def _dealt(
    corpus: Corpus, order: list[int], place: Place, reading: Reading, policy: Policy, counts: Counts
) -> Generator[list[Sample], None, None]:
    """The share of one worker in all shards, in this order."""
    consumers, consumer = place.ranks * place.workers, place.rank * place.workers + place.worker
    first = consumer % len(order)
    # How many workers share the shard at this position of the order, and the number of this one among them.
    sharing, turn = len(range(first, consumers, len(order))), consumer // len(order)
    shards = (corpus.shards[number] for number in order[first::consumers])
    number = seen = 0
    with SegmentReader(
        (Segment(shard.ref, etag=shard.etag or None) for shard in shards),
        options=corpus.options,
        counts=counts,
        handler=policy.lost,
        ahead_bytes=reading.ahead_bytes,
        readers=_READERS,
        fields=reading.fields,
    ) as reader:
        for portion in reader.portions():
            if portion.number != number:
                number, seen = portion.number, 0
            mine = portion[(turn - seen) % sharing :: sharing] if sharing > 1 else portion
            seen += len(portion)
            if mine:
                yield mine


def filled_up(samples: Iterator[Sample], rules: Rules, counts: Counts) -> Iterator[Sample]:
    """Complete the last batch by repeating the first samples, or drop it if incomplete, as the rules say."""
    batch = rules.batch
    first: list[Sample] = []
    total = 0
    while chunk := list(islice(samples, batch)):
        first = first or chunk
        lacking = batch - len(chunk)
        total += len(chunk)
        if lacking and rules.equal == "drop":
            return
        chunk += [dict(first[n % len(first)]) for n in range(lacking)]
        counts.add(samples_padded=lacking)
        warn_of_padding(total, lacking, batch, 1)
        yield from chunk
