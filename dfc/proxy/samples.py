"""Samples at a proxy: look into a shard, and search many."""

from __future__ import annotations

import asyncio
import tarfile
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from io import BytesIO
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import msgspec

from dfc import limits
from dfc.addresses import Refusals
from dfc.batch.items import BatchItem, BatchRequest
from dfc.errors import BucketNotFound, DfcError, NotAShard, NotFound, ObjectCorrupt, RangeNotSatisfiable, TooLarge, Unavailable
from dfc.http.peer import AnswerTooLong
from dfc.http.retry import RemoteError
from dfc.listing.pages import ListingQuery, Row, rfc3339
from dfc.listing.search import (
    ELSEWHERE,
    FoundSamples,
    KeyQuery,
    SamplePlace,
    SearchPart,
    SearchRequest,
    begin_of,
    found_samples,
)
from dfc.listing.specs import check, expand
from dfc.names import check_object_name, object_path
from dfc.placement.map import BucketEntry, NodeEntry
from dfc.placement.mapped import in_order
from dfc.proxy.cluster import Cluster
from dfc.proxy.objects import ALL_SHARDS, ROWS_HELD, merged_pages
from dfc.tar.index.format import index_kind
from dfc.wire import HOP_HEADER, MSGPACK, OBJECTS_PATH, SAMPLES_HEADER, UNSAMPLED_HEADER, VERSION_HEADER
from dfc.wire.objects import UnsearchedShard

T = TypeVar("T")
LOOK_S: Final = 20.0  # for the beginning of a field, far behind in a compressed shard
HEADER_BYTES: Final = 512  # of a member in a tar; its bytes follow
_MAGIC_AT: Final = 257
_HEAD_BYTES: Final = 8 * 1024  # of an item in a batch: its headers, with the longest name
_LINES_BYTES_MAX: Final = 32 << 20  # of the list of some samples
Query = Mapping[str, str | int]
_AGAIN: Final = 500  # from this status on another copy is asked


class FieldPlace(msgspec.Struct, frozen=True):
    """Where a field of a sample is in the uncompressed archive."""

    offset: int
    size: int


class SampleRow(msgspec.Struct, frozen=True):
    """A sample: its key, and its members by extension."""

    key: str
    members: dict[str, FieldPlace]


class MemberRow(msgspec.Struct, frozen=True):
    """A member of an archive. `key` and `ext` are None for one that belongs to no sample. `type`: only a `file` has bytes."""

    name: str
    key: str | None
    ext: str | None
    offset: int
    size: int
    type: str


class ShardFacts(NamedTuple):
    """What there is to know of a shard: its size in bytes, its version, when it was stored, and how many samples it has."""

    name: str
    size: int
    etag: str
    version: str
    modified: str
    samples: int


class ObjectHead(NamedTuple):
    """The beginning of an object, and the checksum and size of the whole."""

    content: bytes
    checksum: str
    size: int

    @property
    def is_whole(self) -> bool:
        """Whether the object has no more bytes."""
        return len(self.content) >= self.size


class ShardViews:
    """Looks into shards. `refusals` are asked last."""

    def __init__(self, cluster: Cluster, refusals: Refusals) -> None:
        self._cluster = cluster
        self._refusals = refusals

    async def shard(self, bucket: str, name: str) -> ShardFacts:
        """Return what there is to know of a shard. BucketNotFound, NotAShard, errors of the target."""

        async def look(response: aiohttp.ClientResponse) -> ShardFacts:
            given = response.headers
            samples, size = given.get(SAMPLES_HEADER, ""), given.get("Content-Range", "").rpartition("/")[2]
            if not samples.isdecimal() or not size.isdecimal():
                raise NotAShard(f"{name!r} has no tar index, so its samples are not known")
            try:
                modified = parsedate_to_datetime(given["Last-Modified"]).timestamp() if "Last-Modified" in given else 0.0
            except (ValueError, OverflowError) as error:
                raise Unavailable(f"unexpected answer from a target: {error}") from error
            etag, version = given.get("ETag", "").strip('"'), given.get(VERSION_HEADER, "")
            return ShardFacts(name, int(size), etag, version, rfc3339(int(modified * 1e6)), int(samples))

        try:
            return await self._stream(bucket, name, "", {"Range": "bytes=0-0"}, look)
        except RemoteError as error:
            if error.status == RangeNotSatisfiable.status:
                raise NotAShard(f"{name!r} is empty") from None
            raise

    async def samples(self, bucket: str, name: str, start: int, limit: int) -> list[SampleRow]:
        """Return samples from an ordinal on. Errors of the target."""
        return await self._lines(bucket, name, {"list": "samples", "start": start, "limit": limit}, SampleRow)

    async def members(self, bucket: str, name: str, start: int, limit: int) -> list[MemberRow]:
        """Return members from an ordinal on. Errors of the target."""
        return await self._lines(bucket, name, {"list": "members", "start": start, "limit": limit}, MemberRow)

    async def unsampled(self, bucket: str, name: str, start: int, limit: int) -> list[MemberRow]:
        """Return members of no sample, without directories, from an offset on. Errors of the target."""
        return await self._lines(bucket, name, {"list": "unsampled", "start": start, "limit": limit}, MemberRow)

    async def unsampled_count(self, bucket: str, name: str) -> int:
        """Return how many there are of them. Errors of the target."""

        async def look(response: aiohttp.ClientResponse) -> int:
            count = response.headers.get(UNSAMPLED_HEADER, "")
            if not count.isdecimal():
                raise Unavailable("unexpected answer from a target: no number of members of no sample")
            return int(count)

        return await self._stream(bucket, name, "?list=members&limit=1", {}, look)

    async def _lines(self, bucket: str, name: str, query: Query, kind: type[T]) -> list[T]:
        content = await self._ask("GET", bucket, name, query, b"", {}, _LINES_BYTES_MAX)
        try:
            if len(content) > limits.SMALL_READ_BYTES:  # of samples with thousands of fields: others must not wait for them
                return await asyncio.to_thread(_decoded, content, kind)
            return _decoded(content, kind)
        except msgspec.DecodeError as error:
            raise Unavailable(f"unexpected answer about {name!r}: {error}") from error

    async def beginnings(self, bucket: str, shard: ShardFacts, places: Sequence[FieldPlace], limit: int) -> list[bytes]:
        """Return the first `limit` bytes of fields in a plain tar, with one request; nothing of a field in an archive that is
        none. Errors of the target, also if the shard is another one by now."""
        items = [
            BatchItem(bucket, shard.name, start=place.offset - HEADER_BYTES, length=length, if_match=shard.etag)
            for place, length in ((place, HEADER_BYTES + min(place.size, limit)) for place in places)
        ]
        if not items:
            return []
        body = msgspec.json.encode(BatchRequest(items))
        headers = {"Content-Type": "application/json"}
        content = await self._ask("POST", bucket, shard.name, None, body, headers, len(items) * (_HEAD_BYTES + limit))
        with tarfile.open(fileobj=BytesIO(content), mode="r:") as archive:
            files = [archive.extractfile(member) for member in archive]
            found = [b"" if file is None else file.read() for file in files]
        return [each[HEADER_BYTES:] if each[_MAGIC_AT : _MAGIC_AT + 5] == b"ustar" else b"" for each in found]

    async def head(self, bucket: str, name: str, limit: int) -> ObjectHead:
        """Return the first `limit` bytes of an object of any kind. BucketNotFound, errors of the target."""

        async def look(response: aiohttp.ClientResponse) -> ObjectHead:
            content, given = await _first_bytes(response, limit), response.headers
            whole = given.get("Content-Range", "").rpartition("/")[2]
            size = int(whole) if whole.isdecimal() else int(given.get("Content-Length", len(content)))
            return ObjectHead(content[:limit], given.get("ETag", "").strip('"'), size)

        return await self._stream(bucket, name, "", {"Range": f"bytes=0-{limit - 1}"}, look)

    async def beginning(self, bucket: str, name: str, number: int, ext: str, limit: int) -> bytes:
        """Return the first `limit` bytes of a field of the sample with an ordinal. Errors of the target."""

        async def look(response: aiohttp.ClientResponse) -> bytes:
            return (await _first_bytes(response, limit))[:limit]

        return await self._stream(bucket, name, f"?{urlencode({'number': number, 'ext': ext}, quote_via=quote)}", {}, look)

    async def _stream(
        self,
        bucket: str,
        name: str,
        query: str,
        headers: Mapping[str, str],
        look: Callable[[aiohttp.ClientResponse], Awaitable[T]],
    ) -> T:
        """Ask one target after the other that has the object, and return what `look` makes of the answer, which may be long."""
        problem: Exception = Unavailable("no target has the object")
        for node in self._readers(bucket, name):
            try:
                response = await self._cluster.control.open_stream(node.url + _path(bucket, name) + query, headers)
            except RemoteError as error:
                problem = error
                if error.status < _AGAIN:
                    break
                continue
            except Unavailable as error:
                problem = error
                continue
            try:
                async with asyncio.timeout(LOOK_S):
                    return await look(response)
            except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is one
                problem = Unavailable(f"{node.url} broke off its answer, or took too long")
                problem.__cause__ = error
            finally:
                response.close()
        raise problem

    def _readers(self, bucket: str, name: str) -> list[NodeEntry]:
        return in_order(self._cluster.readers(self._cluster.bucket(bucket), name), self._refusals)

    async def _ask(
        self, method: str, bucket: str, name: str, query: Query | None, body: bytes, headers: Mapping[str, str], bytes_max: int
    ) -> bytes:
        """Ask one target after the other that has the object; a batch (no `query`) of it, or what a query selects inside it."""
        path = "/v1/batch" if query is None else f"{_path(bucket, name)}?{urlencode(query, quote_via=quote)}"
        problem: Exception = Unavailable("no target has the object")
        for node in self._readers(bucket, name):
            try:
                status, _, content = await self._cluster.control.fetch(
                    method, node.url + path, body, {**headers, HOP_HEADER: "1"}, bytes_max=bytes_max
                )
            except AnswerTooLong:
                raise TooLarge(f"the names in this part of {name!r} are too many, or too long, to be shown") from None
            except Unavailable as error:
                problem = error
                continue
            if status < 400:
                return content
            problem = RemoteError(status, content, node.url)
            if status < _AGAIN:
                break
        raise problem


async def _first_bytes(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Read a body up to so many bytes, or a few more."""
    content = bytearray()
    async for piece in response.content.iter_any():
        content += piece
        if len(content) >= limit:
            break
    return bytes(content)


def _decoded(content: bytes, kind: type[T]) -> list[T]:
    return [msgspec.json.decode(line, type=kind) for line in content.splitlines()]


def _path(bucket: str, name: str) -> str:
    check_object_name(name)  # names may come from what anybody has stored, and `..` would lead to other routes
    return OBJECTS_PATH + object_path(bucket, name).removeprefix("/")


# --- Ask the targets that have some shards to search them; what one of them cannot search, others are asked for.

ROUNDS_MAX: Final = 8  # of questions; a move of shards makes one more, and so does each copy that cannot be read
ROUND_S: Final = 0.1  # times the number of rounds so far: while the map changes
ANSWER_S: Final = 1.0  # for an answer, after the time that a target has for its search
ANSWER_BYTES_MAX: Final = 2 * limits.SEARCH_ANSWER_BYTES_MAX + limits.SEARCH_BODY_BYTES_MAX  # with all unsearched shards
_HEADERS: Final = {"Content-Type": MSGPACK}


class Searched(NamedTuple):
    """All answers, and the shards that no target could search."""

    parts: list[SearchPart]
    unsearched: list[UnsearchedShard]


class TargetQuestions:
    """The questions of one search."""

    def __init__(
        self,
        cluster: Cluster,
        refusals: Refusals,
        bucket: BucketEntry,
        query: KeyQuery,
        limit: int,
        start: SamplePlace | None,
        until_s: float,
    ) -> None:
        """`start`: where the search goes on. `until_s`: when it ends, by the loop's clock."""
        self._cluster = cluster
        self._refusals = refusals
        self._bucket = bucket
        self._query = query
        self._limit = limit
        self._start = start
        self._until_s = until_s
        self._asked: dict[str, set[str]] = {}  # by shard: nodes
        self._why: dict[str, UnsearchedShard] = {}
        self._final: list[UnsearchedShard] = []
        self._parts: list[SearchPart] = []

    async def ask(self, names: Sequence[str]) -> Searched:
        """Search shards, each at one target at a time. BucketNotFound."""
        left = list(names)
        for number in range(ROUNDS_MAX):
            if number and any(self._why[name].code == ELSEWHERE for name in left):
                await asyncio.sleep(min(ROUND_S * number, max(0.0, self._left_s())))
            groups = await asyncio.to_thread(self._grouped, sorted(left))  # targets search them in this order
            if not groups:
                return Searched(self._parts, self._final)
            if number and not self._left_s():
                return self._late([name for _, shards in groups for name in shards])
            left = []
            asking = (self._of_target(node, shards) for node, shards in groups)
            for failed in await asyncio.gather(*asking, return_exceptions=True):
                if isinstance(failed, BaseException):
                    raise failed
                left += failed
        return Searched(self._parts, [*self._final, *(self._why[name] for name in left)])

    def _late(self, names: Sequence[str]) -> Searched:
        """When the time is over and some targets failed: a search that goes on finds shards that have moved; of others it is
        said that they were not searched, lest they hold it up for ever."""
        moved = min((name for name in names if self._why[name].code == ELSEWHERE), default=None)
        parts = self._parts
        if moved is not None:
            parts = [*parts, SearchPart(stopped="time", reached=begin_of(moved, self._start))]
        return Searched(parts, [*self._final, *(why for why in map(self._why.__getitem__, names) if why.code != ELSEWHERE)])

    def _left_s(self) -> float:
        return max(0.0, self._until_s - asyncio.get_running_loop().time())

    def _grouped(self, names: Sequence[str]) -> list[tuple[NodeEntry, list[str]]]:
        """Each shard at the first of its readers that was not asked for it; those without one are given up. In a thread."""
        groups: dict[str, tuple[NodeEntry, list[str]]] = {}
        for name in names:
            try:
                node = self._next_reader(name)
            except DfcError as error:
                self._final.append(UnsearchedShard(name, error.code, error.message))
                continue
            if node is None:
                self._final.append(self._why[name])
            else:
                groups.setdefault(node.id, (node, []))[1].append(name)
        return list(groups.values())

    def _next_reader(self, name: str) -> NodeEntry | None:
        readers, asked = in_order(self._cluster.readers(self._bucket, name), self._refusals), self._asked.get(name)
        if not asked:
            return readers[0]
        if name in self._why and self._why[name].code == ELSEWHERE and all(node.id in asked for node in readers):
            asked.clear()  # the map is changing: one of them will have it
        return next((node for node in readers if node.id not in asked), None)

    async def _of_target(self, node: NodeEntry, shards: list[str]) -> list[str]:
        """Ask one target; return what others have to be asked for."""
        try:
            part = await self._fetch(node, shards)
        except DfcError as error:
            if isinstance(error, NotFound) or (isinstance(error, RemoteError) and error.status < 500):
                raise
            failed = [UnsearchedShard(shard, error.code, error.message) for shard in shards]
        else:
            self._parts.append(part)
            failed = part.failed
        for each in failed:
            self._asked.setdefault(each.shard, set()).add(node.id)
            self._why[each.shard] = each
        return [each.shard for each in failed]

    async def _fetch(self, node: NodeEntry, shards: list[str]) -> SearchPart:
        budget_s = min(self._left_s(), limits.SEARCH_LOOKUP_S)  # of which sums of seconds can be a hair more
        asked = SearchRequest(self._bucket.name, self._query, shards, self._limit, budget_s, self._start)
        body = await asyncio.to_thread(msgspec.msgpack.encode, asked)
        url = f"{node.url}/v1/node/search"
        try:
            async with asyncio.timeout(budget_s + ANSWER_S):
                status, _, content = await self._cluster.control.fetch(
                    "POST", url, body, _HEADERS, long=True, bytes_max=ANSWER_BYTES_MAX
                )
        except TimeoutError:
            raise Unavailable(f"target {node.id} did not answer in time") from None
        if status >= 400:
            error = RemoteError(status, content, url)
            raise BucketNotFound(error.message) if error.code == BucketNotFound.code else error
        try:
            return await asyncio.to_thread(msgspec.msgpack.decode, content, type=SearchPart)
        except msgspec.DecodeError as error:
            raise Unavailable(f"unexpected answer from {url}: {error}") from error


# --- Which shards a search goes through: those of a spec, by name or by the listing.


async def shard_names(cluster: Cluster, bucket: BucketEntry, shards: str | None) -> list[str]:
    """Return the names of a spec, sorted, each once: those that are given, whether they exist or not; of patterns and prefixes,
    those of shards that do. BadShardSpec, TooLarge, Unavailable."""
    spec = ALL_SHARDS if shards is None else shards
    check(spec)
    selection = await asyncio.to_thread(expand, spec)
    if isinstance(selection, list):
        names = await asyncio.to_thread(lambda: sorted(set(selection)))
        _check(len(names), chars_of(names))
        return names
    found, chars = list[str](), 0
    async for page in merged_pages(cluster, ListingQuery(bucket.id, selection.prefix), ROWS_HELD):
        more = await asyncio.to_thread(_matching, page.rows, selection.matches)
        found += more
        chars += chars_of(more)
        _check(len(found), chars)
    return found


def chars_of(names: Sequence[str]) -> int:
    """How long all of them are together."""
    return sum(map(len, names))


def _matching(rows: Sequence[Row], matches: Callable[[str], bool]) -> list[str]:
    return [row[0] for row in rows if row[4] is not None and index_kind(row[0]) is not None and matches(row[0])]


def _check(count: int, chars: int) -> None:
    if count > limits.SEARCH_SHARDS_MAX:
        raise TooLarge(f"one search goes through at most {limits.SEARCH_SHARDS_MAX:,} shards: say which with shards=")
    if chars > limits.SEARCH_NAMES_CHARS_MAX:
        raise TooLarge(
            f"the names of these shards have more than {limits.SEARCH_NAMES_CHARS_MAX:,} characters: say fewer with shards="
        )


# --- *Search samples*: find samples by their keys in many shards, at the targets that have them.

LISTING_S: Final = 30.0  # to find out which shards there are


class SampleSearch:
    """*Search samples* of one cluster. `scan_s`: how long keys are looked through, unless one is looked up."""

    def __init__(self, cluster: Cluster, refusals: Refusals, scan_s: float = limits.SEARCH_SCAN_S) -> None:
        self._cluster = cluster
        self._refusals = refusals
        self._scan_s = scan_s

    def room(self, limit: int) -> int:
        """How many bytes a search for so many lines may hold, before it is known which shards it goes through."""
        return limits.SEARCH_BYTES + self._lines_bytes(limit)

    def _lines(self, limit: int) -> int:
        """How many each target is asked for: one more, to know whether there are more."""
        return min(limit, limits.SEARCH_LINES_HELD // self._targets()) + 1

    def _lines_bytes(self, limit: int) -> int:
        return self._targets() * self._lines(limit) * limits.SEARCH_LINE_BYTES

    def _targets(self) -> int:
        return len(self._cluster.map.targets()) or 1

    async def find(
        self,
        bucket: str,
        query: KeyQuery,
        shards: str | None = None,
        limit: int = limits.SEARCH_LINES_DEFAULT,
        start: SamplePlace | None = None,
        holds: Callable[[int], None] | None = None,
    ) -> FoundSamples:
        """Return at most `limit` samples of the shards of a spec (all by default) with keys that a query asks for.

        `start` is where a search that stopped goes on: in that shard if it is there, else with the next one. What could not be
        searched is said; a key is looked up in all shards, or it is an error. `holds` is told how many bytes that takes, when
        it is known. BucketNotFound, BadShardSpec, TooLarge; Unavailable, ObjectCorrupt.
        """
        entry, loop = await self._bucket(bucket), asyncio.get_running_loop()
        try:
            async with asyncio.timeout(LISTING_S):
                names = await shard_names(self._cluster, entry, shards)
        except TimeoutError:
            raise Unavailable("the shards could not be listed in time") from None
        before = 0 if start is None else bisect_left(names, start[0])
        names = names[before:]
        if holds is not None:
            holds(2 * chars_of(names) + len(names) * limits.SEARCH_SHARD_BYTES + self._lines_bytes(limit))
        until_s = loop.time() + (limits.SEARCH_LOOKUP_S if query.is_exact else self._scan_s)
        questions = TargetQuestions(self._cluster, self._refusals, entry, query, self._lines(limit), start, until_s)
        parts, unsearched = await questions.ask(names)
        if query.is_exact and unsearched:
            kind = ObjectCorrupt if unsearched[0].code == ObjectCorrupt.code else Unavailable
            raise kind(f"{unsearched[0].shard!r} cannot be searched: {unsearched[0].message}")
        return await asyncio.to_thread(found_samples, parts, names, limit, unsearched, before)

    async def _bucket(self, name: str) -> BucketEntry:
        try:
            return self._cluster.bucket(name)
        except BucketNotFound:
            await self._cluster.newest()  # it may have been made at another proxy a moment ago
            return self._cluster.bucket(name)
