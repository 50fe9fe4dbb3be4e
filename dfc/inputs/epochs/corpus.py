"""The shards of a spec with their versions, sizes and numbers of samples, looked up once.

Counts come from the index of a DFC cluster, by one listing for each bucket, however many shards. A corpus is a plain value that
is sent to worker processes, so they look nothing up again. Shards on other servers and files have no counts (`indexed` False).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from os.path import commonprefix
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from dfc.errors import DfcError, NotFound, PreconditionFailed
from dfc.inputs.base import Counts, Handler, InputError, ShardChanged, ShardRef, ShardUnreadable, resolve_handler
from dfc.inputs.sources.cluster import ObjectPlace, hint_at_bucket, locate, token_for
from dfc.inputs.sources.specs import locate_for_sure, resolve
from dfc.inputs.sources.streams import DEFAULT_OPTIONS, StreamOptions

if TYPE_CHECKING:
    from dfc.client import Client
    from dfc.inputs.epochs.gather import BatchShard
    from dfc.wire.objects import ObjectInfo

Integers = NDArray[np.int64]
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_PROBE: Final = "x"
_ASK_MAX: Final = 16  # up to this many shards of a bucket are looked up one by one; more by a listing
_ASK_THREADS: Final = 16
# Give up a listing that shows this many times more objects than wanted: the bucket is then much larger than the spec.
_LISTING_RATIO: Final = 100


class Shard(NamedTuple):
    """One shard as looked up. Facts that its server does not tell are empty or None; `bucket` and `name` are set for DFC."""

    ref: ShardRef
    etag: str = ""
    size: int | None = None
    samples: int | None = None
    bucket: str = ""
    name: str = ""


@dataclass(frozen=True)
class Corpus:
    """The shards of a dataset, in the order of their spec. `options` is for opening them; `lost` has errors of missing ones."""

    shards: tuple[Shard, ...]
    options: StreamOptions = DEFAULT_OPTIONS
    lost: tuple[InputError, ...] = field(default=(), compare=False)

    @classmethod
    def open(
        cls,
        spec: str | Sequence[str],
        *,
        options: StreamOptions = DEFAULT_OPTIONS,
        handler: Handler = "raise",
        counts: Counts | None = None,
        seed: int | None = None,
    ) -> Corpus:
        """Look up the shards of a spec (see `dfc.inputs.sources.specs`).

        A missing shard goes to `handler`, and is skipped and counted in `counts` if that allows it. `seed` chooses replicas.
        ShardUnreadable if a server does not answer, or no shard is left.
        """
        handle = resolve_handler(handler)
        shards, lost = [], []
        for found in _look_up(resolve(spec, options=options, seed=seed), options):
            if isinstance(found, Shard):
                shards.append(found)
                continue
            lost.append(found)
            if counts is not None:
                counts.add(shards_skipped=1)
                counts.note(found)
            if not handle(found):
                break
        if not shards:
            raise ShardUnreadable(f"none of the shards in {spec!r} exist")
        return cls(tuple(shards), options, tuple(lost))

    def __len__(self) -> int:
        return len(self.shards)

    @cached_property
    def indexed(self) -> bool:
        """Whether the number of samples of every shard is known."""
        return all(shard.samples is not None for shard in self.shards)

    @cached_property
    def counts(self) -> Integers:
        """The number of samples of each shard. ValueError, with the URL, if one is unknown."""
        for shard in self.shards:
            if shard.samples is None:
                raise ValueError(
                    f"the number of samples in {shard.ref.url} is unknown, because it has no index in a DFC cluster"
                )
        counts = np.array([shard.samples for shard in self.shards], dtype=np.int64)
        counts.flags.writeable = False
        return counts

    @property
    def samples(self) -> int:
        """The total number of samples. ValueError if unknown."""
        return int(self.counts.sum())

    @property
    def size(self) -> int:
        """The bytes of all shards whose size is known."""
        return sum(shard.size or 0 for shard in self.shards)

    @cached_property
    def digest(self) -> str:
        """A checksum of all versions, in hex: equal if the same samples have the same numbers."""
        hasher = xxhash.xxh3_128()
        for shard in self.shards:
            # Without a version, use only the name, since hosts and ports change.
            what = shard.etag or min((shard.ref.url, *shard.ref.replicas)).rpartition("/")[2]
            hasher.update(f"{what}\0{shard.samples}\0{shard.size if shard.etag else ''}\n".encode())
        return hasher.hexdigest()

    def connect(self) -> Client:
        """Make a client for the cluster that has all the shards. ValueError if they are not all on one cluster."""
        from dfc.client import Client

        origins = set()
        # A URL for each server and bucket; empty for what is not on DFC.
        for url in {shard.ref.url.rpartition("/")[0] + "/x" if shard.name else "" for shard in self.shards}:
            place = locate(url, self.options) if url else None
            origins.add(place.cluster.client.url if place is not None else "")
        if len(origins) != 1 or "" in origins:
            raise ValueError("random access and shuffle='global' need all shards on one DFC cluster")
        origin = origins.pop()
        return Client(origin, token_for(origin, self.options), retries=self.options.retries)

    def batch_shards(self) -> list[BatchShard]:
        """The shards for batch reads."""
        from dfc.inputs.epochs.gather import BatchShard

        return [
            BatchShard(shard.ref.url, shard.bucket, shard.name, shard.etag, count)
            for shard, count in zip(self.shards, self.counts.tolist(), strict=True)
        ]

    def sample_offsets(self, number: int) -> NDArray[np.uint64]:
        """The offsets of a shard's samples in the (uncompressed) archive, and the end of the last one, by one small request.

        ShardChanged, ShardUnreadable.
        """
        shard = self.shards[number]
        place = locate(shard.ref.url, self.options)
        if place is None:
            raise ShardUnreadable(f"{shard.ref.url} is no longer on a DFC cluster", url=shard.ref.url)
        try:
            offsets = place.cluster.client.sample_offsets(shard.bucket, shard.name, etag=shard.etag or None)
        except PreconditionFailed as problem:
            raise ShardChanged(f"{shard.ref.url}: {problem}", url=shard.ref.url) from problem
        except DfcError as problem:
            raise ShardUnreadable(f"{shard.ref.url}: {problem}", url=shard.ref.url) from problem
        if len(offsets) != (shard.samples or 0) + 1:
            message = f"{shard.ref.url} was replaced: it has {len(offsets) - 1} samples now, not {shard.samples}"
            raise ShardChanged(message, url=shard.ref.url)
        return offsets


def _look_up(refs: Sequence[ShardRef], options: StreamOptions) -> Iterator[Shard | InputError]:
    """Look up the shards in order; an error for each missing one."""
    places = _places(refs, options)
    wanted: dict[tuple[int, str], tuple[Client, set[str]]] = {}
    for place in places:
        if place is not None and place.name:
            wanted.setdefault((id(place.cluster), place.bucket), (place.cluster.client, set()))[1].add(place.name)
    found: dict[tuple[int, str], dict[str, ObjectInfo]] = {}
    for key, (client, names) in wanted.items():
        try:
            found[key] = _facts(client, key[1], names)
        except NotFound:
            found[key] = {}
        except DfcError as problem:
            raise ShardUnreadable(f"{client.url}/{key[1]}/ cannot be listed: {problem}", url=client.url) from problem
    for ref, place in zip(refs, places, strict=True):
        if place is None or not place.name:
            yield Shard(ref)
            continue
        facts = found[id(place.cluster), place.bucket].get(place.name)
        if facts is not None:
            yield Shard(ref, facts.etag, facts.size, facts.samples, place.bucket, place.name)
        elif ref.replicas:
            yield Shard(ref)  # another server may have it
        else:
            yield ShardUnreadable(f"{ref.url} does not exist{hint_at_bucket(ref.url, options)}", url=ref.url)


def _places(refs: Sequence[ShardRef], options: StreamOptions) -> list[ObjectPlace | None]:
    """`locate` each shard; plain names in the same folder are located only once."""
    folders: dict[str, ObjectPlace | None] = {}
    places: list[ObjectPlace | None] = []
    for ref in refs:
        folder, slash, name = ref.url.rpartition("/")
        if not _PLAIN_NAME.fullmatch(name):
            places.append(locate_for_sure(ref.url, options))
            continue
        if folder not in folders:
            folders[folder] = locate_for_sure(folder + slash + _PROBE, options, meant=ref.url)
        place = folders[folder]
        places.append(place and place._replace(name=place.name.removesuffix(_PROBE) + name))
    return places


def _facts(client: Client, bucket: str, names: set[str]) -> dict[str, ObjectInfo]:
    """The cluster's facts about these objects, without missing ones."""
    if len(names) <= _ASK_MAX:
        return _ask(client, bucket, names)
    ordered = sorted(names, key=str.encode)
    prefix = commonprefix([ordered[0], ordered[-1]])  # noqa: RUF071 — names are no paths
    found: dict[str, ObjectInfo] = {}
    seen = 0
    for page in client.list_pages(bucket, prefix=prefix):
        seen += len(page.objects)
        found.update((info.name, info) for info in page.objects if info.name in names)
        if len(found) == len(names) or (page.objects and page.objects[-1].name.encode() >= ordered[-1].encode()):
            return found
        if seen > _LISTING_RATIO * (bisect_left(ordered, page.objects[-1].name) + _ASK_MAX if page.objects else 1):
            return found | _ask(client, bucket, names - found.keys())
    return found


def _ask(client: Client, bucket: str, names: Iterable[str]) -> dict[str, ObjectInfo]:
    def stat(name: str) -> ObjectInfo | None:
        try:
            return client.stat(bucket, name)
        except NotFound:
            return None

    ordered = list(names)
    if len(ordered) == 1:
        facts = [stat(ordered[0])]
    else:
        with ThreadPoolExecutor(min(_ASK_THREADS, max(1, len(ordered)))) as pool:
            facts = list(pool.map(stat, ordered))
    return {name: found for name, found in zip(ordered, facts, strict=True) if found is not None}
