"""Look into a shard from a proxy: some of its samples, and the beginnings of their fields. Targets that have it are asked."""

from __future__ import annotations

import asyncio
import tarfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from io import BytesIO
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import msgspec

from dfc.addresses import Refusals
from dfc.batch.items import BatchItem, BatchRequest
from dfc.errors import NotAShard, RangeNotSatisfiable, TooLarge, Unavailable
from dfc.http.calls.peer import AnswerTooLong
from dfc.http.calls.problems import RemoteError
from dfc.limits import SMALL_READ_BYTES
from dfc.names import check_object_name, object_path
from dfc.pages import rfc3339
from dfc.placement.map import NodeEntry
from dfc.placement.readers import in_order
from dfc.proxy.cluster import Cluster
from dfc.wire import HOP_HEADER, OBJECTS_PATH, SAMPLES_HEADER, UNSAMPLED_HEADER, VERSION_HEADER

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
            if len(content) > SMALL_READ_BYTES:  # of samples with thousands of fields: others must not wait for them
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
            content = bytearray()
            async for piece in response.content.iter_any():
                content += piece
                if len(content) >= limit:
                    break
            given = response.headers
            whole = given.get("Content-Range", "").rpartition("/")[2]
            size = int(whole) if whole.isdecimal() else int(given.get("Content-Length", len(content)))
            return ObjectHead(bytes(content[:limit]), given.get("ETag", "").strip('"'), size)

        return await self._stream(bucket, name, "", {"Range": f"bytes=0-{limit - 1}"}, look)

    async def beginning(self, bucket: str, name: str, number: int, ext: str, limit: int) -> bytes:
        """Return the first `limit` bytes of a field of the sample with an ordinal. Errors of the target."""

        async def look(response: aiohttp.ClientResponse) -> bytes:
            content = b""
            async for piece in response.content.iter_any():
                content += piece
                if len(content) >= limit:
                    break
            return content[:limit]

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
        self,
        method: str,
        bucket: str,
        name: str,
        query: Query | None,
        body: bytes,
        headers: Mapping[str, str],
        bytes_max: int,
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


def _decoded(content: bytes, kind: type[T]) -> list[T]:
    return [msgspec.json.decode(line, type=kind) for line in content.splitlines()]


def _path(bucket: str, name: str) -> str:
    check_object_name(name)  # names may come from what anybody has stored, and `..` would lead to other routes
    return OBJECTS_PATH + object_path(bucket, name).removeprefix("/")
