"""Shards as samples (`sharditerator`, `sharditerator_once`), and any URL as an open file (`gopen`).

from dfc.inputs import gopen

for sample in gopen.sharditerator("http://nvdata/imagenet-@001000.tgz", epochs=90):
    train(sample["png"], sample["cls"])
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Self, cast

import xxhash

from dfc.inputs.base import (
    Counts,
    Handler,
    HandlerFunction,
    InputError,
    Sample,
    SampleBroken,
    ShardBroken,
    ShardChanged,
    ShardRef,
    ShardUnreadable,
    Wanted,
    resolve_handler,
)
from dfc.inputs.decoding import Decoder
from dfc.inputs.decoding import Spec as DecodeSpec
from dfc.inputs.sources.opening import open_stream
from dfc.inputs.sources.shardreader import Segment, SegmentReader
from dfc.inputs.sources.specs import Spec, resolve
from dfc.inputs.sources.streams import DEFAULT_OPTIONS, Stream, StreamOptions, shown
from dfc.limits import INPUT_AHEAD_BYTES, INPUT_AHEAD_SHARDS, INPUT_READERS_MAX, MIB
from dfc.order import Rules, shard_order

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# --- `sharditerator`: iterate over the samples of shards, epoch after epoch, in a seeded order. Can be resumed at any sample.

EPOCHS: Final = 1_000_000  # the published default: practically endless
MAXERRS: Final = 10  # the published default
_STATE_VERSION: Final = 1
_PLANNED_MAX: Final = INPUT_READERS_MAX * INPUT_AHEAD_SHARDS  # segments that a reader takes in advance at most


@dataclass
class _Progress:
    """The position of the next sample: `skip` samples after `offset` in the shard at `place` in the order of `epoch`."""

    epoch: int = 0
    place: int = 0
    offset: int = 0
    skip: int = 0
    etag: str = ""
    replica: int = -1  # the URL of the shard, in alphabetic order, that the etag is from; -1: any
    errors: int = 0  # not yet offset by good samples
    fruitful: int = 0  # number of the last segment that gave a sample


class ShardIterator(Iterator[Sample]):
    """The iterator of `sharditerator`. Not thread-safe, except for `close` and `counts`."""

    def __init__(
        self,
        refs: Sequence[ShardRef],
        *,
        epochs: int,
        rules: Rules,
        maxerrs: int | None,
        decoder: Decoder | None,
        handler: HandlerFunction,
        fields: Sequence[Sequence[str]] | None,
        counts: Counts,
        reading: Mapping[str, Any],
    ) -> None:
        self.counts = counts
        self._refs = refs
        self._epochs = epochs
        self._rules = rules
        self._maxerrs = maxerrs
        self._decoder = decoder
        self._handler = handler
        self._fields = fields
        self._reading = reading
        self._progress = _Progress()
        self._reader: SegmentReader | None = None
        self._samples: Iterator[Sample] | None = None
        self._closed = False

    def __getstate__(self) -> dict[str, Any]:
        # In another process it continues at the same position, without the data read ahead.
        return {**vars(self), "_reader": None, "_samples": None}

    @property
    def seed(self) -> int:
        """The seed of the order; drawn at random if none was given."""
        return self._rules.seed

    @property
    def epoch(self) -> int:
        """The epoch of the last sample handed out."""
        return self._progress.epoch

    @cached_property
    def _digest(self) -> str:
        """A digest of the URLs in order, and of the replicas of each shard in any order."""
        lines = ("\t".join(sorted((ref.url, *ref.replicas))) for ref in self._refs)
        return xxhash.xxh3_128_hexdigest("\n".join(lines).encode())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Sample:
        if self._samples is None:
            self._samples = iter(()) if self._closed else self._begin()
        return next(self._samples)

    def state_dict(self) -> dict[str, Any]:
        """The position after the last sample handed out, as plain values."""
        at = self._progress
        return {
            "version": _STATE_VERSION,
            "seed": self._rules.seed,
            "shuffle": self._rules.shuffled,
            "shards": self._digest,
            "epoch": at.epoch,
            "place": at.place,
            "offset": at.offset,
            "skip": at.skip,
            "etag": at.etag,
            "replica": at.replica,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at this state, with its seed. ValueError for a state of other shards."""
        if state.get("version") != _STATE_VERSION:
            raise ValueError(f"the state has version {state.get('version')!r}, but this version of DFC reads {_STATE_VERSION}")
        if state["shards"] != self._digest:
            raise ValueError("the state belongs to other shards")
        self.close()
        self._closed = False
        self._rules = Rules(seed=state["seed"], shuffled=state["shuffle"])
        replica = state.get("replica", -1)
        self._progress = _Progress(state["epoch"], state["place"], state["offset"], state["skip"], state["etag"], replica)

    def close(self) -> None:
        """Stop reading ahead and end the iteration."""
        if self._reader is not None:
            self._reader.close()
        self._reader = self._samples = None
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> Iterator[Sample]:
        # None of the parts may refer to this object, or an abandoned iterator would wait for the garbage collector.
        progress, maxerrs, handler = self._progress, self._maxerrs, self._handler
        first = progress.epoch * len(self._refs) + progress.place
        progress.fruitful = first

        passed_over: list[Exception] = []  # the last skipped error

        def decide(problem: Exception) -> bool:
            progress.errors += 1
            if maxerrs is not None and progress.errors >= maxerrs:
                raise problem
            goes_on = handler(problem)
            passed_over[:] = [problem] if goes_on and maxerrs is not None else []
            return goes_on

        segments = _segments(self._refs, self._rules, self._epochs, progress)
        self._reader = SegmentReader(segments, handler=decide, counts=self.counts, **self._reading)
        prepare = _preparation(self._decoder, self._fields, self._reading["fields"])
        return _samples(self._reader, first, len(self._refs), progress, prepare, decide, passed_over)


def sharditerator(
    url: Spec,
    epochs: int = EPOCHS,
    shuffle: bool = True,
    maxerrs: int | None = MAXERRS,
    *,
    decode: DecodeSpec = True,
    seed: int | None = None,
    handler: Handler = "warn",
    fields: str | Sequence[str] | None = None,
    pickle: bool = False,
    readers: int = 2,
    ahead_bytes: int = INPUT_AHEAD_BYTES,
    counts: Counts | None = None,
    options: StreamOptions = DEFAULT_OPTIONS,
) -> ShardIterator:
    """Iterate over the samples of all shards for `epochs` epochs, with the shards in a new order each time if `shuffle`.

    `url`: a spec of shards, or a list (docs/inputs.md). A shard or sample that cannot be read goes to `handler`, and is skipped
    unless that raises. `maxerrs` errors raise in any case, where each good sample offsets one error; the last error is also
    raised if there is no sample at all (None: neither). `decode`, `pickle`: see `dfc.inputs.decoding.Decoder`; False keeps
    bytes. `seed`: equal seeds give equal orders; None draws one. `fields`: read only these extensions (a list, or words;
    "jpg;png" means either); a sample that lacks one is broken. `readers` threads read ahead, one shard each, `ahead_bytes`
    bytes in all.
    Raises BadShardSpec, NoShards, and InputError.
    """
    rules = Rules(seed=secrets.randbits(63) if seed is None else seed, shuffled=shuffle)
    groups = _groups(fields)
    wanted = None if groups is None else Wanted(name for group in groups for name in group)
    return ShardIterator(
        resolve(url, options=options, seed=rules.seed),
        epochs=epochs,
        rules=rules,
        maxerrs=maxerrs,
        decoder=Decoder(decode, pickle=pickle) if decode else None,
        handler=resolve_handler(handler),
        fields=groups,
        counts=Counts() if counts is None else counts,
        reading={"options": options, "ahead_bytes": ahead_bytes, "readers": readers, "fields": wanted},
    )


def sharditerator_once(
    url: Spec,
    maxerrs: int | None = MAXERRS,
    *,
    epochs: int = 1,
    shuffle: bool = False,
    decode: DecodeSpec = True,
    seed: int | None = None,
    handler: Handler = "warn",
    fields: str | Sequence[str] | None = None,
    pickle: bool = False,
    readers: int = 2,
    ahead_bytes: int = INPUT_AHEAD_BYTES,
    counts: Counts | None = None,
    options: StreamOptions = DEFAULT_OPTIONS,
) -> ShardIterator:
    """`sharditerator` with other defaults: one epoch, in the order of the shards."""
    return sharditerator(
        url,
        epochs,
        shuffle,
        maxerrs,
        decode=decode,
        seed=seed,
        handler=handler,
        fields=fields,
        pickle=pickle,
        readers=readers,
        ahead_bytes=ahead_bytes,
        counts=counts,
        options=options,
    )


def _segments(refs: Sequence[ShardRef], rules: Rules, epochs: int, progress: _Progress) -> Iterator[Segment]:
    """All shards from the position of `progress` on. InputError if a whole epoch gave no sample, to avoid an endless loop."""
    number = progress.epoch * len(refs) + progress.place
    begin, end = number, epochs * len(refs)
    offset, skip, etag, replica = progress.offset, progress.skip, progress.etag or None, progress.replica
    order = None
    while number < end:
        epoch, place = divmod(number, len(refs))
        if order is None or place == 0:
            order = shard_order(len(refs), rules, epoch)
        if number - progress.fruitful > 2 * len(refs) + _PLANNED_MAX:
            raise InputError(
                f"no samples found in any of {len(refs)} shards, the first of which is {shown(refs[0].url)}", url=refs[0].url
            )
        ref = refs[int(order[place])]
        yield Segment(_beginning_with(ref, replica), offset, skip, etag=etag) if number == begin else Segment(ref)
        number += 1


def _beginning_with(ref: ShardRef, replica: int) -> ShardRef:
    """The same shard with this replica first, since each server makes its own ETags."""
    urls = sorted((ref.url, *ref.replicas))
    first = urls[replica] if 0 <= replica < len(urls) else ref.url
    return ref if first == ref.url else ShardRef(first, tuple(url for url in (ref.url, *ref.replicas) if url != first))


def _samples(
    reader: SegmentReader,
    first: int,
    shards: int,
    progress: _Progress,
    prepare: Callable[[Sample], Sample] | None,
    decide: HandlerFunction,
    passed_over: Sequence[Exception],
) -> Iterator[Sample]:
    """Yield prepared samples. If there are none at all, raise the last skipped error, so that the user notices."""
    counts = reader.counts
    is_empty = not first and not progress.skip  # a resumed iteration has had samples
    for portion in reader.portions():
        number = first + portion.number
        progress.epoch, progress.place = divmod(number, shards)
        progress.offset, progress.skip, progress.etag = portion.at, portion.skipped, portion.etag
        ref, source = portion.segment.ref, portion[0]["__source__"]
        if ref.replicas:
            urls = sorted((ref.url, *ref.replicas))
            progress.replica = urls.index(source) if source in urls else -1
        for sample in portion:
            progress.skip += 1
            if prepare is not None:
                try:
                    sample = prepare(sample)
                except SampleBroken as problem:
                    counts.add(samples_skipped=1)
                    counts.note(problem)
                    if not decide(problem):
                        return
                    continue
            counts.samples += 1  # without the lock: only this thread changes it
            if progress.errors:
                progress.errors -= 1
            progress.fruitful = number
            is_empty = False
            yield sample
    if is_empty and passed_over:
        raise passed_over[-1]


def _preparation(
    decoder: Decoder | None, groups: Sequence[Sequence[str]] | None, wanted: Wanted | None
) -> Callable[[Sample], Sample] | None:
    """The function to apply to a sample before it is handed out; None if there is none."""
    if groups is None or wanted is None:
        return decoder

    def prepare(sample: Sample) -> Sample:
        for group in groups:
            if not any(name in sample for name in group):
                key, source = sample["__key__"], sample["__source__"]
                what = f"{shown(source)}: sample {key!r} {wanted.lacking(group, sample)}"
                raise SampleBroken(what, url=source, key=key)
        return sample if decoder is None else decoder(sample)

    return prepare


def _groups(fields: str | Collection[str] | None) -> list[list[str]] | None:
    if fields is None:
        return None
    words = fields.split() if isinstance(fields, str) else list(fields)
    if not words or not all(words):
        raise ValueError("fields= must name at least one extension")
    return [[name for name in word.lower().split(";") if name] for word in words]


# --- `gopen`: open a URL of any kind as a binary file, to read or write bytes instead of samples.

_BUFFER_BYTES: Final = 1 * MIB


class StreamFile(io.RawIOBase):
    """A stream as a raw file. Not seekable."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self.stream = stream
        self.name = stream.url

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill the buffer, except at the end; 0 there. The errors of `Stream.readinto`."""
        return self.stream.readinto(memoryview(buffer).cast("B"))

    def close(self) -> None:
        if not self.closed:
            self.stream.close()
        super().close()


def gopen(url: str | ShardRef, mode: str = "rb", *, options: StreamOptions = DEFAULT_OPTIONS) -> BinaryIO:
    """Open a URL for reading ("rb") or writing ("wb"): any kind that `open_stream` or `open_upload` supports.

    Reading resumes after broken connections. A written file is stored when closed, whole or not at all.
    ShardUnreadable if it cannot be opened; ValueError for another mode, or a URL of an unknown kind.
    """
    if mode in ("r", "rb"):
        return cast(BinaryIO, io.BufferedReader(StreamFile(open_stream(url, options=options)), _BUFFER_BYTES))
    if mode in ("w", "wb"):
        from dfc.inputs.writers import open_upload

        return cast(BinaryIO, open_upload(url if isinstance(url, str) else url.url, options=options))
    raise ValueError(f"mode must be 'rb' or 'wb', not {mode!r}")


__all__ = [
    "Counts",
    "InputError",
    "SampleBroken",
    "ShardBroken",
    "ShardChanged",
    "ShardIterator",
    "ShardRef",
    "ShardUnreadable",
    "StreamOptions",
    "gopen",
    "sharditerator",
    "sharditerator_once",
]
