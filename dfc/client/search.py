"""Samples found by their keys, and read in batches."""

from __future__ import annotations

import io
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, BinaryIO, Final, cast

import msgspec

from dfc.batch.items import BatchItem, BatchRequest, OnMissing
from dfc.client.control import Control
from dfc.client.transfers import make_source
from dfc.errors import BadRequest, DfcError, ObjectCorrupt, Unreachable
from dfc.http.retry import Retries
from dfc.limits import MIB, SEARCH_LINES_MAX, SEARCH_UNSEARCHED_MAX
from dfc.listing.search import PARAMETERS, How, KeyQuery, token_of
from dfc.listing.specs import list_specs
from dfc.names import check_bucket_name
from dfc.reach.objects import ObjectCalls
from dfc.reach.reading import BatchReader, read_lengths
from dfc.tar.header import TarError
from dfc.tar.reader import iterate_members
from dfc.wire import MSGPACK, prepared
from dfc.wire.objects import SampleMatch, UnsearchedShard

STALLS_MAX: Final = 3  # answers in a row that got nowhere in their time


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a search has found, in order of shards and ordinals.

    There were `shards` to search, and `searched` of them were. `stopped`: "limit" if there may be more samples than were
    wanted, which are in the shards after the first `searched` ones or in the last of these; "time" if the nodes are too busy
    to search on; else None. If it stopped, another search goes on with `next_token`. `unsearched` has the first shards that
    could not be searched, of `unsearched_count`.
    """

    samples: tuple[SampleMatch, ...] = ()
    shards: int = 0
    searched: int = 0
    stopped: str | None = None
    next_token: str | None = None
    unsearched: tuple[UnsearchedShard, ...] = ()
    unsearched_count: int = 0


class _Line(msgspec.Struct):
    shard: str = ""
    number: int = 0
    key: str = ""
    members: dict[str, int] = {}
    end: SearchResult | None = None


def query_of(key: str | None, prefix: str | None, contains: str | None) -> KeyQuery:
    """Return the query for one of three. ValueError unless it is one; BadRequest for what no key can be."""
    texts: tuple[tuple[How, str | None], ...] = (("exact", key), ("prefix", prefix), ("contains", contains))
    given = [(how, text) for how, text in texts if text is not None]
    if len(given) != 1:
        raise ValueError("give one of key, prefix and contains")
    how, text = given[0]
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRequest("a key that is not valid Unicode is in no shard") from None
    return KeyQuery(how, text)


class SearchReader:
    """An iterator over the samples that a search finds, in order of shards and ordinals. It asks for them page by page, until
    all are found or there are as many as were wanted."""

    def __init__(
        self,
        control: Control,
        bucket: str,
        query: KeyQuery,
        shards: str | Sequence[str] | None,
        limit: int | None,
        token: str | None,
    ) -> None:
        """Begin a search of the shards of a spec, of a list, or all of a bucket: see `Client.open_search`."""
        if limit is not None and limit < 1:
            raise BadRequest("limit must be 1 or more")
        self._control = control
        self._path = f"/v1/buckets/{check_bucket_name(bucket)}/samples"
        self._query = query
        self._specs: list[str | None] = (
            [shards] if shards is None or isinstance(shards, str) else [*list_specs(sorted(set(shards)))]
        )
        self._left = limit
        self._token = token
        self._result = SearchResult()
        self._samples = self._find()

    @property
    def result(self) -> SearchResult:
        """What there is to say of the search until now: all but the samples."""
        return self._result

    def __iter__(self) -> Iterator[SampleMatch]:
        return self

    def __next__(self) -> SampleMatch:
        return next(self._samples)

    def _find(self) -> Iterator[SampleMatch]:
        for spec in self._specs:
            if self._result.stopped is None and self._left != 0:
                yield from self._find_in(spec)
                continue
            names = msgspec.json.decode(spec or "[]", type=list[str])  # only lists are split into several
            token, stopped = self._result.next_token or token_of((names[0], 0)), self._result.stopped or "limit"
            shards = self._result.shards + len(names)
            self._result = msgspec.structs.replace(self._result, shards=shards, stopped=stopped, next_token=token)

    def _find_in(self, spec: str | None) -> Iterator[SampleMatch]:
        """Search the shards of one spec, after those of others."""
        before, token, stalls = self._result, self._token, 0
        while True:
            page = self._page(spec, token)
            if self._left is not None:
                self._left -= len(page.samples)
            # Shards before a page count as searched there. Those that were not, it cannot know.
            skipped = self._result.unsearched_count - before.unsearched_count
            self._result = SearchResult(
                shards=before.shards + page.shards,
                searched=before.searched + page.searched - skipped,
                stopped="limit" if page.stopped and self._left == 0 else page.stopped,
                next_token=page.next_token,
                unsearched=(*self._result.unsearched, *page.unsearched)[:SEARCH_UNSEARCHED_MAX],
                unsearched_count=self._result.unsearched_count + page.unsearched_count,
            )
            yield from page.samples
            stalls = stalls + 1 if page.next_token == token else 0
            if page.next_token is None or self._left == 0 or stalls == STALLS_MAX:
                return
            token = page.next_token

    def _page(self, spec: str | None, token: str | None) -> SearchResult:
        left = SEARCH_LINES_MAX if self._left is None else self._left
        parameters: dict[str, str | int] = {PARAMETERS[self._query.how]: self._query.key, "limit": min(left, SEARCH_LINES_MAX)}
        for name, value in (("shards", spec), ("token", token)):
            if value is not None:
                parameters[name] = value
        return _read(self._control.call("GET", self._path, params=parameters))


def _read(content: bytes) -> SearchResult:
    try:
        lines = msgspec.json.Decoder(prepared(_Line)).decode_lines(content)
    except msgspec.MsgspecError as problem:
        raise Unreachable(f"cannot decode the answer to a search: {problem}") from None
    if not lines or lines[-1].end is None:
        raise Unreachable("the answer to a search ends too early")
    samples = [SampleMatch(shard=each.shard, number=each.number, key=each.key, members=each.members) for each in lines[:-1]]
    return msgspec.structs.replace(lines[-1].end, samples=tuple(samples))


# --- Batch reads: items from anywhere in the cluster as one ordered tar stream, raw or member by member.

ITEMS_A_REQUEST: Final = 20_000  # a longer list is split; the next part is requested once this one has been read
READ_BYTES: Final = MIB
Items = Iterable[BatchItem | Mapping[str, Any]]


def open_batch(calls: ObjectCalls, items: Sequence[BatchItem], on_missing: OnMissing, *, lengths: bool = False) -> BatchReader:
    """Send one batch request. Raises the node's error, which names the item, before anything is read."""
    body = make_source(msgspec.msgpack.encode(BatchRequest(list(items), on_missing)))
    query = "?lengths=1" if lengths else ""
    # Ask the owner of a random item: its own items take one hop less, and the load is spread over the nodes.
    near = random.choice(items) if items else None
    owned = None if near is None else (near.bucket, near.object)
    retries = Retries(calls.policy)
    while True:
        answer = calls.stream(f"/v1/batch{query}", "POST", {"Content-Type": MSGPACK}, body, near=owned)
        try:
            return read_lengths(answer, len(items)) if lengths else BatchReader(answer)
        except Unreachable as problem:  # nothing has been handed out yet
            if not retries.again(problem, calls.wait):
                raise


def read_batch(calls: ObjectCalls, items: Items, on_missing: OnMissing) -> Iterator[tuple[str, bytes]]:
    """Yield the name and bytes of each member, with as many requests as the list needs."""
    rest = map(as_item, items)
    begin = 0
    while group := list(islice(rest, ITEMS_A_REQUEST)):
        with _open_group(calls, group, on_missing, begin) as reader:
            try:
                for member, data in iterate_members(cast(BinaryIO, io.BufferedReader(reader, READ_BYTES)), strict=True):
                    yield member.name, data.readall() or b""
            except TarError as problem:
                raise ObjectCorrupt(f"the batch arrived as a damaged tar: {problem}") from None
        begin += len(group)


def _open_group(calls: ObjectCalls, group: list[BatchItem], on_missing: OnMissing, begin: int) -> BatchReader:
    try:
        return open_batch(calls, group, on_missing)
    except DfcError as error:
        if begin:
            error.message = f"in the request that starts at item {begin}: {error.message}"
        raise


def portions(members: Iterator[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    """Group members into lists of about 1 MiB, for consumers that pay a thread switch per list."""
    portion: list[tuple[str, bytes]] = []
    size = 0
    for name, data in members:
        portion.append((name, data))
        size += len(data) + len(name)
        if size >= READ_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def as_item(item: BatchItem | Mapping[str, Any]) -> BatchItem:
    """Convert an item that may be given as a mapping to a BatchItem. BadRequest."""
    if isinstance(item, BatchItem):
        return item
    try:
        return msgspec.convert(item, BatchItem)
    except msgspec.ValidationError as problem:
        raise BadRequest(f"invalid batch item: {problem}") from None
