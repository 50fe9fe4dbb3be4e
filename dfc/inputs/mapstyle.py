"""Random access to samples by number or key, a whole batch with one request.

Made for torch's `DataLoader` as a map-style dataset (samplers, `random_split`, `Subset`), but needs no framework. All shards
must be on one DFC cluster, whose indexes say where each sample is.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, overload

import numpy as np
import xxhash
from numpy.typing import NDArray

from dfc.client import Client
from dfc.inputs.base import Counts, Handler, InputError, Sample, SampleBroken, ShardChanged, resolve_handler
from dfc.inputs.decoding import Decoder, Spec
from dfc.inputs.epochs.corpus import Corpus
from dfc.inputs.epochs.gather import BatchRead, Numbering
from dfc.inputs.sources.streams import DEFAULT_OPTIONS, StreamOptions
from dfc.limits import INPUT_BATCH_ITEMS

Index = int | str
_Group = list[Sample | InputError]


class MapDataset:
    """A map-style dataset: samples by number (0 to `len` - 1 in the order of `spec`, negative from the end) or by key.

    `decode`, `only` and `pickle` are those of `dfc.inputs.decoding.Decoder`. `transform` takes the decoded sample and returns
    the item. A sample that cannot be read or decoded goes to `handler`; if that skips it (`"skip"`, `"warn"`), another sample
    of the same batch replaces it, counted as `samples_replaced`; without another one, the error is raised.
    ValueError if the shards are not all on one DFC cluster, or one has no index; ShardChanged if a shard was replaced since.

    May be used by many threads and by worker processes; each process makes its own connections.
    """

    def __init__(
        self,
        spec: str | Sequence[str] | Corpus,
        *,
        decode: Spec = True,
        only: str | Iterable[str] | None = None,
        pickle: bool = False,
        transform: Callable[[Sample], Any] | None = None,
        options: StreamOptions = DEFAULT_OPTIONS,
        handler: Handler = "raise",
    ) -> None:
        self.corpus = spec if isinstance(spec, Corpus) else Corpus.open(spec, options=options, handler=handler)
        self.counts = Counts()
        self.transform = transform
        self._decoder = Decoder(decode, only if only is None or isinstance(only, str) else frozenset(only), pickle=pickle)
        self._handler = handler
        self._handle = resolve_handler(handler)
        self._numbering = Numbering(self.corpus.counts.tolist())
        self._shards = self.corpus.batch_shards()
        self._keys: KeyIndex | None = None
        self._clients: dict[int, Client] = {}  # by process id: a child must not use the connections of its parent
        self._client()  # raises here rather than in a worker

    def close(self) -> None:
        """Close this process's connections. A later read makes new ones."""
        client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()

    def __del__(self) -> None:
        with suppress(Exception):  # also after a constructor that failed
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_clients": {}}

    def __len__(self) -> int:
        return self._numbering.count

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and len(self.key_index().numbers(key)) > 0

    @overload
    def __getitem__(self, index: int | str) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: Index | slice) -> Any:
        """The sample with a number or key, or the samples of a slice. IndexError, KeyError."""
        if isinstance(index, slice):
            return self.__getitems__(range(*index.indices(len(self))))
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[Index]) -> list[Any]:
        """The samples with these numbers or keys, in that order, by one batch read. Torch's fetcher calls this."""
        found: list[Any] = []
        for start in range(0, len(indices), INPUT_BATCH_ITEMS):
            found += self._read(indices[start : start + INPUT_BATCH_ITEMS])
        return found

    def __iter__(self) -> Iterator[Any]:
        """All samples in order. For many passes over everything, loaders that read whole shards are faster."""
        for start in range(0, len(self), INPUT_BATCH_ITEMS // 8):
            yield from self.__getitems__(range(start, min(start + INPUT_BATCH_ITEMS // 8, len(self))))

    def index(self, key: str) -> int:
        """The number of the first sample with a key. KeyError. The first call reads the keys of all shards."""
        numbers = self.key_index().numbers(key)
        if not len(numbers):
            raise KeyError(key)
        return int(numbers[0])

    def key_index(self) -> KeyIndex:
        """Numbers by key, 16 bytes per sample, read on first use. Call this before workers start, so that they share it."""
        if self._keys is None:
            self._keys = _read_keys(self.corpus, self._client(), self._numbering)
        return self._keys

    def _client(self) -> Client:
        own = os.getpid()
        client = self._clients.get(own)
        if client is None:
            client = self._clients.setdefault(own, self.corpus.connect())
        return client

    def _read(self, indices: Sequence[Index]) -> list[Any]:
        numbers = np.array([self._number(index) for index in indices], dtype=np.int64)
        undecoded = self._fetch(numbers)
        for at, index in enumerate(indices):
            if isinstance(index, str) and isinstance(sample := undecoded[at], dict) and sample["__key__"] != index:
                undecoded[at] = self._other(index)
        good: list[Any] = []
        bad: list[int] = []
        for at, sample in enumerate(undecoded):
            try:
                if isinstance(sample, InputError):
                    raise sample
                decoded = self._decoder(sample)
                good.append(decoded if self.transform is None else self._transformed(self.transform, decoded))
            except InputError as problem:
                self.counts.note(problem)
                if not self._handle(problem):
                    raise
                self.counts.add(samples_skipped=1)
                bad.append(at)
                last = problem
        if bad and not good:
            raise last
        for turn, at in enumerate(bad):  # in ascending order, so that every place is right when it is filled
            good.insert(at, good[(at + turn) % len(good)])
        self.counts.add(samples=len(good), samples_replaced=len(bad))
        return good

    def _number(self, index: Index) -> int:
        if isinstance(index, str):
            return self.index(index)
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} is out of range: there are {len(self)} samples")
        return number % len(self)

    def _fetch(self, numbers: NDArray[np.int64]) -> _Group:
        wanted = self._numbering.locate(numbers)
        read = BatchRead(self._client(), self._shards, wanted, counts=self.counts, policy=self.corpus.options.policy)
        return [sample for portion in read.samples() for sample in portion]

    def _other(self, key: str) -> Sample | InputError:
        """The sample with a key whose hash is also that of another key."""
        for number in self.key_index().numbers(key)[1:]:
            (sample,) = self._fetch(np.array([number], dtype=np.int64))
            if isinstance(sample, InputError) or sample["__key__"] == key:
                return sample
        raise KeyError(key)

    def _transformed(self, transform: Callable[[Sample], Any], sample: Sample) -> Any:
        try:
            return transform(sample)
        except InputError:
            raise
        except Exception as problem:
            if self._handler == "raise":
                raise
            key, url = sample.get("__key__", ""), sample.get("__source__", "")
            raise SampleBroken(f"sample {key!r} of {url}: transform failed: {problem!r}", url=url, key=key) from problem


class KeyIndex:
    """Numbers of samples by the hashes of their keys. Very rarely, two keys have the same hash."""

    def __init__(self, hashes: NDArray[np.uint64], numbers: NDArray[np.int64]) -> None:
        order = np.lexsort((numbers, hashes))
        self._hashes, self._numbers = hashes[order], numbers[order]

    def __len__(self) -> int:
        return len(self._numbers)

    def numbers(self, key: str) -> NDArray[np.int64]:
        """All numbers of samples that may have the key, the lowest first."""
        wanted = np.uint64(hash_of(key))
        lo = int(np.searchsorted(self._hashes, wanted, side="left"))
        hi = int(np.searchsorted(self._hashes, wanted, side="right"))
        return self._numbers[lo:hi]


def hash_of(key: str) -> int:
    """The hash of a key in a `KeyIndex`."""
    return xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogateescape"))


def _read_keys(corpus: Corpus, client: Client, numbering: Numbering) -> KeyIndex:
    hashes = np.zeros(numbering.count, dtype=np.uint64)
    shards: dict[str, dict[str, list[int]]] = {}
    for number, shard in enumerate(corpus.shards):
        shards.setdefault(shard.bucket, {}).setdefault(shard.name, []).append(number)
    for bucket, names in shards.items():
        at: dict[str, int] = {}
        for info in client.keys(bucket, list(names), fields="key"):
            ordinal = at.get(info.shard, 0)
            at[info.shard] = ordinal + 1
            for number in names[info.shard]:  # a shard may be named twice
                if ordinal < (corpus.shards[number].samples or 0):
                    hashes[numbering.first_of(number) + ordinal] = hash_of(info.key)
        for name, numbers in names.items():
            shard = corpus.shards[numbers[0]]
            if at.get(name, 0) != shard.samples:
                url = shard.ref.url
                raise ShardChanged(f"{url} was replaced: it has {at.get(name, 0)} samples now, not {shard.samples}", url=url)
    return KeyIndex(hashes, np.arange(numbering.count, dtype=np.int64))
