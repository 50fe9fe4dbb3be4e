"""The loader without a framework, and what is done with its samples before they are batched.

`Loader` iterates in this process. The modules that spread the work over threads or processes (`torch`, `numpy`, `tensorflow`)
ask it, or any other `BatchSource`, for the batches of each `Place`. `Progress` tracks the position in an epoch for checkpoints.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from inspect import Parameter, signature
from itertools import islice
from operator import index
from typing import Any, Final, Literal, TypedDict, TypeVar

from dfc.inputs.base import Counts, Handler, InputError, Sample, SampleBroken, Wanted
from dfc.inputs.decoding import Decoder, Spec, broken
from dfc.inputs.epochs.corpus import Corpus
from dfc.inputs.epochs.memory import outside
from dfc.inputs.epochs.progress import Progress, State
from dfc.inputs.epochs.slots import (
    Ended,
    Policy,
    Reading,
    Slot,
    contents,
    dealt_slots,
    filled_up,
    needs_epoch_batches,
    part_slots,
    repaired,
    spec_shown,
    warn_of_padding,
)
from dfc.inputs.sources.streams import DEFAULT_OPTIONS, StreamOptions
from dfc.limits import INPUT_AHEAD_BYTES, MIB
from dfc.order import ORDER_VERSION, Epoch, Equal, Place, Rules, WorkerPart, padded_total, split

# --- Process undecoded samples for batching: choose fields, decode, transform. Works in any thread or process.


class Processing:
    """Turns an undecoded sample into an item for a batch. Errors pass through, and a sample that fails becomes an error."""

    def __init__(
        self,
        fields: Sequence[str] | None,
        decode: Spec,
        pickle: bool,
        transform: Callable[[Sample], Any] | None,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        if isinstance(fields, str):
            raise ValueError(f"fields= must be a list of extensions, not {fields!r}")
        # The alternative names of each field; it gets the first one.
        self._fields = [[name for name in field.lower().split(";") if name] for field in fields or ()]
        self.wanted = None if fields is None else Wanted(name for names in self._fields for name in names)
        self._decoder = Decoder(decode, pickle=pickle)
        self._transform = transform
        self._stays = transform is None and collate is None  # whether decoded samples are batched as they are
        # Whether samples stay as they are.
        self.nothing = fields is None and transform is None and (decode is False or decode is None)

    def __call__(self, slot: Slot) -> Any:
        if isinstance(slot, InputError):
            return slot
        try:
            chosen = slot if self.wanted is None else self._chosen(slot, self.wanted)
            item: Any = self._decoder(chosen) if self._stays else outside(self._decoder, chosen)
            if self._transform is not None:
                try:
                    item = self._transform(item)
                except InputError:
                    raise
                except Exception as problem:
                    raise broken(slot, "transform failed", problem) from problem
                if item is None:
                    raise broken(slot, "transform returned None; it must return the sample")
        except InputError as problem:
            return problem
        return item

    def _chosen(self, sample: Sample, wanted: Wanted) -> Sample:
        chosen: Sample = {"__key__": sample["__key__"], "__source__": sample["__source__"]}
        for names in self._fields:
            name = next((name for name in names if name in sample), None)
            if name is None:
                raise broken(sample, wanted.lacking(names, sample))
            chosen[names[0]] = sample[name]
        return chosen


# --- The loader without a framework: deterministic batches for a rank, or for one worker of a rank.

F = TypeVar("F", bound=Callable[..., Any])
Shuffle = bool | int | Literal["global"]
WINDOW: Final = 1000  # samples that `shuffle=True` mixes in each worker,
WINDOW_BYTES: Final = 128 * MIB  # or fewer if they are large, since they are held in memory
STREAMS: Final = 2  # positions of the order that a worker reads at the same time when it shuffles
ERRORS_MAX: Final = 10


class LoaderOptions(TypedDict, total=False):
    """What a `Loader` can be given beside shards, the size of batches and the rank: for what passes that on."""

    shuffle: Shuffle
    seed: int
    equal: Equal
    fields: Sequence[str] | None
    decode: Spec
    pickle: bool
    transform: Callable[[Sample], Any] | None
    collate: Callable[[list[Any]], Any] | None
    handler: Handler
    maxerrs: int
    epoch_batches: int | None
    streams: int | None
    cache_dir: str | None
    ahead_bytes: int
    options: StreamOptions


class Loader:
    """Batches of samples from shards, in an order determined by `seed` and the epoch. Can be resumed at any batch.

        loader = Loader("http://nvdata/imagenet-{000000..000146}.tar", 256, decode="rgb8", fields=["jpg;png", "cls"])
        for batch in loader: train(batch["jpg"], batch["cls"])

    `shards` is any spec of docs/inputs.md, or a `Corpus`. With `batch_size` None, single samples are returned. Each iteration
    is one epoch: the next one, unless `set_epoch` chooses another. `rank` of `ranks` gets its own share. All ranks have the
    same number of batches: `equal="pad"` repeats fewer than ranks × batch_size samples, "drop" leaves out fewer than that.
    `shuffle`: False; True (mix 1,000 samples, fewer if they are large) or the number of samples to mix, with the shards in
    random order; "global" shuffles all samples and fetches them one by one (DFC only). `streams` is the number of positions
    of the order that are read at the same time.
    `fields` names the extensions that a sample must have; "jpg;png" takes whichever is there and calls it by the first name.
    `decode` is that of `dfc.inputs.decoding`. `transform` gets each decoded sample; `collate` (a function of a list) makes a
    batch of the results. `handler` and `maxerrs`: see docs/inputs.md. `epoch_batches` sets the number of batches of each rank
    in an epoch; it is required for several ranks or workers if the shards have no index (servers other than DFC).
    `cache_dir` keeps whole shards as local files. A `Corpus` has its other options already.
    Raises ShardUnreadable, ValueError.
    """

    def __init__(
        self,
        shards: str | Sequence[str] | Corpus,
        batch_size: int | None = None,
        *,
        rank: int = 0,
        ranks: int = 1,
        shuffle: Shuffle = True,
        seed: int = 0,
        equal: Equal = "pad",
        fields: Sequence[str] | None = None,
        decode: Spec = True,
        pickle: bool = False,
        transform: Callable[[Sample], Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        handler: Handler = "raise",
        maxerrs: int = ERRORS_MAX,
        epoch_batches: int | None = None,
        streams: int | None = None,
        cache_dir: str | None = None,
        ahead_bytes: int = INPUT_AHEAD_BYTES,
        options: StreamOptions = DEFAULT_OPTIONS,
    ) -> None:
        batch_size, seed = None if batch_size is None else index(batch_size), index(seed)
        self.place = Place(rank, ranks)
        self.counts = Counts()
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.handler = handler
        self.maxerrs = maxerrs
        self.processing = Processing(fields, decode, pickle, transform, collate)
        self._collate = collate
        self._reading = Reading(self.processing.wanted, ahead_bytes)
        if isinstance(shards, Corpus):
            if options not in (DEFAULT_OPTIONS, shards.options):
                raise ValueError("a Corpus already has its options; pass options= to Corpus.open instead")
            options = shards.options
        if cache_dir is not None:
            options = replace(options, cache_dir=cache_dir)
        if isinstance(shards, Corpus):
            self.corpus = replace(shards, options=options)
        else:
            self.corpus = Corpus.open(shards, options=options, handler=handler, counts=self.counts, seed=seed)
        rules = _rules(batch_size, _window(self.corpus) if shuffle is True else shuffle, seed, equal, streams)
        self.rules = replace(rules, batches=epoch_batches)
        if self.rules.scattered and not self.corpus.indexed:
            raise ValueError("shuffle='global' needs the index of a DFC cluster, but these shards have none")
        self._spec = spec_shown(shards)
        if self.corpus.indexed and self.samples and rank == 0 and equal == "pad" and epoch_batches is None:
            warn_of_padding(self.samples, self.padding(ranks), self.rules.batch, ranks)
        self.progress = Progress(self)
        self._running: weakref.ref[Generator[Any, None, None]] | None = None  # weak, so that an abandoned iteration ends

    @cached_property
    def samples(self) -> int:
        """The total number of samples. ValueError if unknown."""
        return self.corpus.samples

    def padding(self, ranks: int = 1) -> int:
        """The number of samples repeated in an epoch, over all ranks; if negative, the number left out."""
        return padded_total(self.samples, self.rules, ranks) - self.samples

    @cached_property
    def signature(self) -> State:
        """See `BatchSource`."""
        rules = self.rules
        return {
            "order": ORDER_VERSION,
            "shards": self.corpus.digest,
            "seed": rules.seed,
            "batch_size": self.batch_size,
            "shuffle": "global" if rules.scattered else rules.window if rules.shuffled else "none",
            "streams": rules.lanes,
            "equal": rules.equal,
            "epoch_batches": rules.batches,
        }

    def length(self, ranks: int = 1) -> int:
        """See `BatchSource`. ValueError for `equal="drop"` if there is less than one batch for each rank."""
        if self.rules.batches is not None:
            return self.rules.batches
        if not self.corpus.indexed:
            raise TypeError("the number of batches is unknown because these shards have no index; pass epoch_batches=")
        return padded_total(self.samples, self.rules, ranks) // ranks // self.rules.batch

    def batches(self, place: Place, epoch: int, delivered: int = 0) -> Generator[Any, None, None]:
        """See `BatchSource`. Raises what the handler raises; closing the iterator ends its threads."""
        policy = self.policy()
        with closing(self.slots(place, epoch, delivered, policy)) as slots:
            yield from self.assemble(slots if self.processing.nothing else map(self.processing, slots), policy)

    # The parts of `batches`, for callers that decode in their own threads.

    def policy(self) -> Policy:
        """The error policy for one iteration."""
        return Policy(self.handler, self.maxerrs, self.counts)

    def slots(self, place: Place, epoch: int, delivered: int, policy: Policy) -> Generator[Slot, None, None]:
        """The undecoded samples of these batches, with errors in place of lost ones. Any thread may decode by `processing`."""
        batch, batches = self.rules.batch, self.rules.batches
        if self.corpus.indexed:
            part = WorkerPart(Epoch(self.corpus.counts, self.rules, epoch), place)
            yield from part_slots(self.corpus, part, delivered * batch, self._reading, self.counts)
            return
        if batches is None and place.ranks * place.workers > 1:
            raise ValueError(needs_epoch_batches(self.corpus, place))
        found = dealt_slots(self.corpus, self.rules, place, epoch, self._reading, policy, self.counts)
        with closing(found):
            if batches is None:
                yield from islice(filled_up(found, self.rules, self.counts), delivered * batch, None)
            else:
                first, last = split(batches, place.workers, place.worker)
                yield from islice(found, delivered * batch, (last - first) * batch)

    def assemble(self, items: Iterable[Any], policy: Policy) -> Generator[Any, None, None]:
        """Make batches of the results of `processing`, in order."""
        good = repaired(items, policy, self.counts)
        try:
            if self.batch_size is None:
                for item in good:
                    self.counts.add(samples=1)
                    yield item
                return
            while batch := list(islice(good, self.batch_size)):
                self.counts.add(samples=len(batch))
                made = [self._collated(batch, policy)]
                del batch  # nothing of it is held while the next one is made
                yield made.pop()
        except Ended:
            return

    def _collated(self, batch: list[Any], policy: Policy) -> Any:
        from dfc.inputs.filters.stages import collate, odd_one

        if self._collate is not None:
            return self._collate(batch)
        for _ in batch:
            try:
                return collate(batch)
            except SampleBroken as problem:  # it lacks a field that others have
                policy.missing(problem)
                odd, other, _ = odd_one(batch)  # the error may have no key to find the sample by
                batch[odd] = batch[other]
                self.counts.add(samples_replaced=1)
        return collate(batch)

    # Iteration in this process.

    def __len__(self) -> int:
        return self.length(self.place.ranks)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the next epoch, or the rest of the epoch whose state was loaded."""
        running = self._iterate(*self.progress.begin(), self.progress.iteration)
        self._running = weakref.ref(running)
        return running

    def _iterate(self, epoch: int, delivered: int, iteration: int) -> Generator[Any, None, None]:
        with closing(self.batches(self.place, epoch, delivered)) as batches:
            for batch in batches:
                if self.progress.iteration == iteration:
                    self.progress.add()
                yield batch
        if self.progress.iteration == iteration:
            self.progress.end()

    @property
    def epoch(self) -> int:
        """The epoch that is running, or the next one."""
        return self.progress.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self.progress.set_epoch(epoch)

    def state_dict(self) -> State:
        """The current position as plain values, for a checkpoint. Save it right after the last batch that was used."""
        return self.progress.state_dict(self.place.ranks, 1)

    def load_state_dict(self, state: State) -> None:
        """Resume after the batches that were delivered. ValueError for the state of another loader, ShardChanged."""
        self.progress.load_state_dict(state, self.place.ranks, 1)

    def close(self) -> None:
        """Stop the last iteration and its threads, if it is unfinished. An iterator without references has stopped already."""
        running, self._running = self._running, None
        iteration = None if running is None else running()
        if iteration is not None:
            iteration.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_running": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.summary(self.place.ranks)})"

    def summary(self, ranks: int) -> str:
        """One line: what is read, and how much for each rank. Makes no requests."""
        try:
            what = "samples" if self.batch_size is None else "batches"
            return f"{self._contents()}, {self.length(ranks)} {what} for each of {ranks} ranks"
        except (TypeError, ValueError):  # unknown, or none
            return self._contents()

    def _contents(self) -> str:
        return contents(self._spec, self.corpus)


def spelt_out(function: F) -> F:
    """Let a function that passes on `LoaderOptions` show them, with their defaults, to those who ask for help."""
    own = signature(function)
    kept = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    options = [each for each in signature(Loader).parameters.values() if each.name in LoaderOptions.__annotations__]
    function.__signature__ = own.replace(parameters=[*kept, *options])  # type: ignore[attr-defined]
    return function


def options_given(options: Mapping[str, Any]) -> list[str]:
    """The names of the `Loader` options that differ from their defaults. TypeError for one that there is not."""
    signature(Loader).bind_partial(**options)
    defaults = {name: parameter.default for name, parameter in signature(Loader).parameters.items()}
    return [
        name
        for name, value in options.items()
        if value is not defaults[name] and (defaults[name] is None or value != defaults[name])
    ]


def _window(corpus: Corpus) -> int:
    """The window of `shuffle=True` for samples of this size."""
    if not corpus.indexed or not corpus.samples:
        return WINDOW
    return min(WINDOW, max(1, WINDOW_BYTES * corpus.samples // max(1, corpus.size)))


def _rules(batch_size: int | None, shuffle: Shuffle, seed: int, equal: Equal, streams: int | None) -> Rules:
    batch = 1 if batch_size is None else batch_size
    if isinstance(shuffle, str):
        if shuffle != "global":
            raise ValueError(f"shuffle must be True, False, a number of samples or 'global', not {shuffle!r}")
        return Rules(batch, seed, scattered=True, equal=equal)
    if shuffle is False:
        return Rules(batch, seed, shuffled=False, lanes=streams or 1, equal=equal)
    return Rules(batch, seed, window=shuffle, lanes=STREAMS if streams is None else streams, equal=equal)
