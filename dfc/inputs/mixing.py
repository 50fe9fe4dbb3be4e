"""Mix several datasets by weight, in an order as deterministic, divisible and resumable as that of a single dataset.

    mixed = Mixture([Loader(web, decode="rgb8"), Loader(books, decode="rgb8")], [0.7, 0.3], batch_size=256, seed=1)

The mixed order is endless. It consists of blocks of BLOCK positions. In every block a source has the same number of positions
(its share, rounded), at positions drawn from (seed, block). So the number of samples of each source before any position is
known without counting, and ranks, workers and states divide it like a single dataset. A source that is exhausted continues
with its own next epoch. docs/inputs.md describes it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, Final, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from dfc.inputs.base import Counts, Handler
from dfc.inputs.epochs.progress import Progress, State
from dfc.inputs.epochs.slots import Policy, Reading, Slot, part_slots
from dfc.inputs.loader import ERRORS_MAX, Loader
from dfc.limits import INPUT_MIX_SOURCES_MAX
from dfc.order import ORDER_VERSION, Epoch, Equal, Place, Rules, WindowShuffle, WorkerPart, draw_seed, padded_total, split

T = TypeVar("T")
Integers = NDArray[np.int64]
BLOCK: Final = 10_000  # positions; the precision of a share. Any window of some thousand samples nearly has the shares
_WINDOW_MIN: Final = 100  # samples that are mixed even in a source of small weight
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


class Turns:
    """Map each position of the endless mixed order to a source. Pure.

    ValueError for weights that are not positive numbers, or less than 1/BLOCK of their sum.
    """

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        if not 1 <= len(weights) <= INPUT_MIX_SOURCES_MAX:
            raise ValueError(f"a mixture takes 1 to {INPUT_MIX_SOURCES_MAX} sources, not {len(weights)}")
        given = np.array(weights, dtype=np.float64)
        if not (np.isfinite(given).all() and (given > 0).all()):
            raise ValueError(f"weights must be positive numbers, not {list(weights)}")
        edges = np.rint(np.concatenate((np.zeros(1), np.cumsum(given))) / given.sum() * BLOCK).astype(np.int64)
        self.shares: Integers = np.diff(edges)
        if not self.shares.all():
            raise ValueError(f"each weight must be at least 1/{BLOCK} of their sum: {list(weights)}")
        self._plain = np.repeat(np.arange(len(weights), dtype=np.int64), self.shares)
        self._seed = seed

    def before(self, place: int) -> Integers:
        """The number of positions before `place` that belong to each source."""
        block, rest = divmod(place, BLOCK)
        counts = block * self.shares
        if rest:
            counts = counts + np.bincount(self._block(block)[:rest], minlength=len(self.shares))
        return counts

    def sources(self, start: int, end: int) -> Iterator[Integers]:
        """The sources of the positions from `start` up to `end`, in chunks."""
        while start < end:
            block, first = divmod(start, BLOCK)
            last = min(BLOCK, first + end - start)
            yield self._block(block)[first:last]
            start += last - first

    def _block(self, number: int) -> Integers:
        z = (np.arange(BLOCK, dtype=np.uint64) + np.uint64(1)) * _GOLDEN + np.uint64(draw_seed(self._seed, number, 2))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return self._plain[np.argsort(z ^ (z >> np.uint64(31)), kind="stable")]


class Mixture(Loader):
    """Batches of samples from several loaders, in proportion to their weights.

    The loaders must have no `batch_size`, and all their shards must have an index. Their `shuffle`, `seed`, `fields`, `decode`
    and `transform` are used, and their samples should have the same fields. `epoch_samples` (default: the samples of all
    sources together) is the length of an epoch of the mixture. The next epoch continues where the last one ended, so in the
    long run each source is read evenly, whatever its size. Everything else is as in `Loader`.
    """

    def __init__(
        self,
        sources: Sequence[Loader],
        weights: Sequence[float],
        batch_size: int | None = None,
        *,
        rank: int = 0,
        ranks: int = 1,
        seed: int = 0,
        equal: Equal = "pad",
        epoch_samples: int | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        handler: Handler = "raise",
        maxerrs: int = ERRORS_MAX,
    ) -> None:
        if len(sources) != len(weights):
            raise ValueError(f"each source needs one weight: {len(sources)} sources, {len(weights)} weights")
        for source in sources:
            if source.batch_size is not None or source.rules.batches is not None:
                raise ValueError(
                    "the sources of a mixture must give single samples: pass batch_size and epoch_batches to the mixture"
                )
        self.sources = tuple(sources)
        self.turns = Turns(weights, seed)
        self._samples = sum(source.samples for source in sources) if epoch_samples is None else epoch_samples
        if self._samples < 1 or not all(source.samples for source in sources):
            raise ValueError("a mixture needs samples: a source, or epoch_samples, is empty")
        self.place = Place(rank, ranks)
        self.counts = Counts()
        self.batch_size = batch_size
        self.rules = Rules(1 if batch_size is None else batch_size, seed, equal=equal)
        self.handler = handler
        self.maxerrs = maxerrs
        self.processing = _ByTurn(self.sources)  # type: ignore[assignment]
        self._collate = collate
        self.progress = Progress(self)
        self._running = None

    @property
    def samples(self) -> int:
        """The samples of an epoch, before padding."""
        return self._samples

    @property
    def signature(self) -> State:
        """See `BatchSource`."""
        return {
            "order": ORDER_VERSION,
            "shards": [source.corpus.digest for source in self.sources],
            "sources": [
                {name: value for name, value in source.signature.items() if name not in ("order", "shards")}
                for source in self.sources
            ],
            "shares": self.turns.shares.tolist(),
            "seed": self.rules.seed,
            "batch_size": self.batch_size,
            "equal": self.rules.equal,
            "epoch_samples": self._samples,
        }

    def _contents(self) -> str:
        return f"{len(self.sources)} sources, {self._samples} samples"

    def length(self, ranks: int = 1) -> int:
        """See `BatchSource`."""
        return padded_total(self._samples, self.rules, ranks) // ranks // self.rules.batch

    def slots(self, place: Place, epoch: int, delivered: int, policy: Policy) -> Generator[Any, None, None]:
        """Pairs of the number of a source and its undecoded sample, or the error in its place. See `Loader.slots`."""
        if epoch < 0:
            raise ValueError(f"epoch must not be negative, not {epoch}")
        batch = self.rules.batch
        first, last = split(self.length(place.ranks), place.workers, place.worker)
        front = epoch * self._samples
        start = front + (place.rank * self.length(place.ranks) + first) * batch
        begin, end = start + delivered * batch, start + (last - first) * batch
        starts, begins, ends = (self.turns.before(at).tolist() for at in (start, begin, end))
        with ExitStack() as stack:
            following = []
            for number, source in enumerate(self.sources):
                slots = self._source_slots(number, source, starts[number], ends[number], begins[number] - starts[number])
                following.append(stack.enter_context(closing(slots)))
            at = begin
            for chunk in self.turns.sources(begin, end):
                for number in chunk.tolist():
                    yield number, next(following[number])
                # Padding takes the first samples of the next epoch, which repeats them.
                at += len(chunk)
                self.counts.add(samples_padded=max(0, min(len(chunk), at - front - self._samples)))

    def _source_slots(self, number: int, source: Loader, lo: int, hi: int, skip: int) -> Generator[Slot, None, None]:
        """Samples `lo` to `hi` of a source, counted through all its epochs, without the first `skip` of them."""
        # Two sources with the same seed and number of shards should not have the same order.
        seed, window = draw_seed(source.rules.seed, number, 3), source.rules.window
        if source.shuffle is True:
            # The mixture mixes as many neighbours as a single dataset would, and all sources need no more memory than one.
            window = min(window, max(_WINDOW_MIN, window * int(self.turns.shares[number]) // BLOCK))
        rules = replace(source.rules, batch=1, lanes=1, seed=seed, window=window)
        reading = Reading(source.processing.wanted, max(1, source._reading.ahead_bytes // len(self.sources)))
        while lo < hi:
            turn, at = divmod(lo, source.samples)
            size = min(hi - lo, source.samples - at)
            if skip < size:
                stretch = _Stretch(Epoch(source.corpus.counts, rules, turn), at, size)
                yield from part_slots(source.corpus, stretch, skip, reading, self.counts)
            skip = max(0, skip - size)
            lo += size


class _Stretch(WorkerPart):
    """A range of positions of an epoch, as a part."""

    def __init__(self, epoch: Epoch, start: int, size: int) -> None:
        rules = epoch.rules
        self.epoch = epoch
        self.batches = self.size = size
        self.start = start
        self.lanes = 1
        window = 0 if rules.scattered else rules.window
        self._window = WindowShuffle(draw_seed(rules.seed, epoch.epoch, start, size), window, size)


class _ByTurn:
    """Process each slot as its own source does. See `dfc.inputs.loader.Processing`."""

    nothing = False  # the number of the source must be removed

    def __init__(self, sources: Sequence[Loader]) -> None:
        self._processing = [source.processing for source in sources]

    def __call__(self, slot: tuple[int, Slot]) -> Any:
        number, sample = slot
        return self._processing[number](sample)


def mixed(
    sources: Sequence[Iterable[T]], weights: Sequence[float], *, seed: int = 0, until: Literal["first", "last"] = "first"
) -> Iterator[T]:
    """Mix items of any iterables by weight, in the order of a `Mixture`: for sources without an index, such as `sharditerator`.

    Stops when the first source ends; with `until="last"` it leaves out sources that have ended, until all have.
    """
    if len(sources) != len(weights):
        raise ValueError(f"each source needs one weight: {len(sources)} sources, {len(weights)} weights")
    if until not in ("first", "last"):
        raise ValueError(f"until must be 'first' or 'last', not {until!r}")
    return _mixed(sources, Turns(weights, seed), until)


_END: Final = object()


def _mixed(sources: Sequence[Iterable[T]], turns: Turns, until: str) -> Iterator[T]:
    iterators = [iter(source) for source in sources]
    running = set(range(len(iterators)))
    place = 0
    while True:
        for chunk in turns.sources(place, place + BLOCK):
            for number in chunk.tolist():
                if number not in running:
                    continue
                item = next(iterators[number], _END)
                if item is not _END:
                    yield cast(T, item)
                    continue
                running.discard(number)
                if until == "first" or not running:
                    return
        place += BLOCK
